"""`profile`, `verify` and `compare`: make queries, answer them, show the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import (
    FILE,
    FILES,
    LABEL,
    PLOT,
    PRINTED,
    PROVING,
    REQUIRE,
    WORK,
    InputOptions,
    check_writable,
    numbers,
    picture_options,
    settings_from,
    with_options,
)
from shakeproof.cli.outputs import JunitFile, Outputs, numbered, standard_lines
from shakeproof.cli.queries import Known, answered, load_pictures, perturbed_pictures, specified, unanswered
from shakeproof.cli.recording import ENDINGS, Recording
from shakeproof.cli.terminal import Screen, json_line
from shakeproof.errors import InputError, Refusal, strictly

if TYPE_CHECKING:
    from shakeproof.question import AnyPerturbation, Image, Perturbation, Specification


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, required=True)
@with_options(*WORK, *PROVING, *FILES, *PRINTED, REQUIRE, LABEL)
@picture_options
@click.option("--max-strength", callback=numbers(), default="1", show_default=True, metavar="Z[,Z...]",
              help="Analyse strengths from 0 to Z; for a sum, one Z for all parts or one each.")  # fmt: skip
def profile(
    model: str, images: Sequence[str], perturbations: Sequence[str], max_strength: Sequence[float], **options: Any
) -> int:
    """Find where the prediction changes, or a requirement fails.

    MODEL is an .onnx or .onnx.gz file. IMAGES are pictures, .npy or .npz files, one picture of an array (FILE.npz@7) or
    some (FILE.npz@0:50), folders, patterns ('photos/*.jpg'), or .vnnlib(.gz) files.
    """
    from shakeproof.question import parse_path

    if not perturbations:
        raise InputError("name a perturbation with -p (shakeproof kernels lists them)")
    return _run(model, images, [*map(parse_path, perturbations)], max_strength, stop_early=False, **options)


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, metavar="[IMAGE|QUERY.vnnlib]...")
@with_options(*WORK, *PROVING, *FILES, *PRINTED, REQUIRE, LABEL)
@picture_options
@with_options(
    click.option("--strength", callback=numbers(), metavar="Z[,Z...]",
                 help="Verify all strengths from 0 to Z; for a sum, one Z for all parts or one each. Requires -p."),
    click.option("--profile", "whole_profile", is_flag=True, help="Do not stop at the first confirmed counterexample."),
    click.option("--network", "networks", multiple=True, metavar="NAME=FILE",
                 help="The network that a VNN-LIB 2.0 query names: verify QUERY.vnnlib --network NAME=FILE."),
    click.option("--results", type=FILE,
                 help="Write sat, unsat, unknown or timeout, and any counterexample, in VNN-COMP's format."),
)  # fmt: skip
def verify(
    model: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    strength: Sequence[float] | None,
    whole_profile: bool,
    networks: Sequence[str],
    results: Path | None,
    **options: Any,
) -> int:
    """Prove that the label wins, or that a requirement holds.

    With -p, images are perturbed as for `profile`, and the search stops at the first counterexample. Without -p, each
    QUERY.vnnlib(.gz) is verified: the box in it, or the perturbation in it (shakeproof export --format perturbed).
    """
    from shakeproof.question import parse

    standard = None
    if networks:
        if perturbations or images or results or options["as_json"]:
            raise InputError("verify QUERY.vnnlib --network NAME=FILE takes no image, -p, --results or --json")
        standard, images = _read_standard(model, networks, options), [model]
        model = networks[0].partition("=")[2]
    if not images:
        raise InputError(f"{model}: name what to verify: an image and -p PERTURBATION, or a QUERY.vnnlib")
    if not networks and bool(perturbations) != (strength is not None):
        raise InputError("-p PERTURBATION and --strength Z go together; a QUERY.vnnlib on its own takes neither")
    if results is not None and (perturbations or len(images) > 1):
        raise InputError("--results is about one QUERY.vnnlib, without -p")
    early = not whole_profile and options["plot"] is None
    kernels = [*map(parse, perturbations)]
    return _run(model, images, kernels, strength or (), early, results=results, standard=standard, **options)


def _read_standard(query: str, networks: Sequence[str], options: dict[str, Any]) -> Specification:
    """A query of VNN-LIB 2.0, about the network that is given for it."""
    from shakeproof.question import read_specification

    name, equals, file = networks[0].partition("=")
    if len(networks) > 1 or not equals or not file:
        raise InputError(f"--network {' '.join(networks)}: give one, as NAME=FILE")
    specification = read_specification(Path(query))
    if specification.network not in (None, name):
        raise InputError(f"{query}: declares the network {specification.network!r}, not {name!r}")
    if options["certificate"] is not None:
        raise InputError("--certificate is about perturbed images, not about boxes of inputs; leave it out")
    if options["output"] is not None or options["junit"] is not None:
        raise InputError("verify QUERY.vnnlib --network NAME=FILE takes no --output and no --junit")
    return specification


def _run(
    model: str,
    images: Sequence[str],
    kernels: Sequence[AnyPerturbation],
    strength: Sequence[float],
    stop_early: bool,
    inputs: InputOptions,
    strict: bool,
    as_json: bool,
    quiet: bool,
    require: str | None = None,
    results: Path | None = None,
    standard: Specification | None = None,
    **options: Any,
) -> int:
    """Make queries, answer them, and show each answer as soon as it is known."""
    from shakeproof.question import Perturbation

    files = {field.name: options.pop(field.name) for field in fields(Outputs) if field.name in options}
    outputs = Outputs(results=results, **files)
    outputs.check(ENDINGS)
    for kernel in kernels:
        kernel.strengths(strength)
        if outputs.plot is not None and (not isinstance(kernel, Perturbation) or kernel.parameters > 2):
            raise InputError(f"{kernel}: --plot draws one or two strengths; leave it out, or take fewer parts")
    settings = settings_from(stop_early=stop_early, whole_curve=outputs.plot is not None, **options)
    if kernels:
        deployed = settings.pixel_rounding is not None
        asked = perturbed_pictures(model, images, kernels, strength, inputs, deployed, require)
    elif require is not None:
        raise InputError("--require is for perturbed images; a query file states what must hold; omit the option")
    else:
        asked = specified(model, images, outputs.plot, inputs)
    about_box = results is not None or standard is not None
    if strict or about_box:
        asked = asked.strictly()
    for query in asked.queries if about_box else ():
        if isinstance(query, tuple) and query[1].perturbation is not None:
            name = query[1].name
            raise InputError(f"{name}: carries a perturbation; verify it without --results and --network")
    recording = None if outputs.output is None else Recording(outputs.output, settings)
    asked = asked if recording is None else recording.left(asked)
    line = json_line if as_json else None if standard is None else partial(standard_lines, standard)
    screen = Screen(asked.names, line, quiet)
    cases = [(model, image if kernel == "-" else f"{image} {kernel}") for image, kernel in asked.names]
    junit = None if outputs.junit is None else JunitFile(outputs.junit, cases)
    written, code = [outputs.output], screen.exit_code

    def settle(numbers: range, outcome: Known | Refusal) -> None:
        screen.settle(numbers, outcome)
        if junit is not None:
            junit.settle(numbers, outcome)

    try:
        with screen.progress() as advance:
            begun = recording.begun if recording is not None and outputs.resume else None
            for answer in answered(asked, settings, settle, advance, None if quiet else screen.expect, begun):
                image = answer.result.query.image
                screen.show(answer.number, answer.result, (*answer.network.notes, *(image.notes if image else ())))
                if junit is not None:
                    junit.answer(answer)
                if recording is not None:
                    recording.add(answer)
                written += outputs.write(answer, len(asked.names), profile=not stop_early)
    except KeyboardInterrupt as stop:
        code = partial(screen.interrupted, _kept(stop, recording))
    finally:
        screen.close()
        if junit is not None:
            junit.write()
    screen.wrote([*written, outputs.junit])
    return code()


def _kept(stop: KeyboardInterrupt, recording: Recording | None) -> str:
    """Keep the certified part of the interrupted query, so that a later run can continue from it."""
    from shakeproof.proof import Interrupted

    if not isinstance(stop, Interrupted):
        return ""
    if recording is None:
        return f"; of that one {stop}; with --output FILE, --resume goes on from there"
    recording.keep(stop.network, stop.result)
    return f"; of that one {stop}; --resume goes on from there"


@click.command()
@click.argument("first", metavar="MODEL_A")
@click.argument("second", metavar="MODEL_B")
@click.argument("images", nargs=-1, required=True)
@with_options(*WORK, PLOT, *PRINTED)
@picture_options
@click.option("--max-strength", callback=numbers(1), default="1", show_default=True, metavar="Z",
              help="Compare at strengths from 0 to Z.")  # fmt: skip
def compare(
    first: str,
    second: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    max_strength: tuple[float],
    inputs: InputOptions,
    plot: Path | None,
    strict: bool,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """Find the strengths at which two networks disagree.

    For example a network and its int8 export, or before and after pruning. Both must be piecewise linear; with --pixels
    8bit, any two models will do. Each network gets half of --timeout.

    Exit codes: 0 they agree at every strength, 1 they disagree somewhere, 2 bad input, 3 undecided.
    """
    from shakeproof.comparing import check_comparable, comparisons
    from shakeproof.question import parse_path, sources
    from shakeproof.report import save

    if not perturbations:
        raise InputError("name a perturbation with -p (shakeproof kernels lists them)")
    kernels = [parse_path(text) for text in perturbations]
    if plot is not None:
        check_writable(plot)
    settings = settings_from(whole_curve=plot is not None, **how)
    files = list(sources(images, inputs.array, inputs.labels))
    deployed = settings.pixel_rounding is not None
    (one, pictures), (other, _) = (load_pictures(model, files, inputs, deployed, kernels) for model in (first, second))
    check_comparable(one, other, settings)
    if strict:
        pictures = iter(list(strictly(pictures)))
    names = [(source.name, str(kernel)) for source in files for kernel in kernels]
    screen = Screen(names, json_line if as_json else None, quiet, compares=True)
    waiting: deque[int] = deque()
    written, code = list[Path](), screen.exit_code
    asked = unanswered(_pairs(pictures, kernels), len(kernels), waiting, screen.settle)
    try:
        with screen.progress() as advance:
            for compared in comparisons(one, other, asked, max_strength[0], settings, advance):
                number = waiting.popleft()
                screen.show(number, compared, (*one.notes, *other.notes))
                if (path := numbered(plot, number, len(names))) is not None:
                    save(compared.plot(), path)
                    written.append(path)
    except KeyboardInterrupt:
        code = screen.interrupted
    finally:
        screen.close()
    screen.wrote(written)
    return code()


def _pairs(
    pictures: Iterable[Image | Refusal], kernels: Sequence[Perturbation]
) -> Iterator[tuple[Image, Perturbation] | Refusal]:
    for picture in pictures:
        yield from [picture] if isinstance(picture, Refusal) else ((picture, kernel) for kernel in kernels)
