"""`profile` and `verify`: make queries, answer them, show the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shakeproof.cli.inputs import Given, input_options
from shakeproof.cli.junit import JunitFile
from shakeproof.cli.options import analysis_options, numbers, settings_from
from shakeproof.cli.outputs import Outputs
from shakeproof.cli.queries import Known, answered, parsed, perturbed_pictures, specified
from shakeproof.cli.recording import Recording
from shakeproof.cli.satisfiability import answer_version2, check_plain
from shakeproof.cli.terminal import Screen
from shakeproof.errors import InputError, Refusal


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, required=True)
@analysis_options
@input_options
@click.option("--max-strength", callback=numbers(), default="1", show_default=True, metavar="Z[,Z...]",
              help="Analyse strengths from 0 to this; one for all parts, or one each.")  # fmt: skip
def profile(
    model: str, images: Sequence[str], perturbations: Sequence[str], max_strength: Sequence[float], **options: Any
) -> int:
    """The winning class at every strength, and the exact strength at which the label loses.

    MODEL is .onnx or .onnx.gz; an image is a picture, .npy, .npz, one of an array's (FILE.npz@7), some (@0:50), a
    folder, a pattern ('photos/*.jpg'), or .vnnlib(.gz).
    """
    from shakeproof.question import parse_path

    if not perturbations:
        raise InputError("say which perturbation is meant, with -p (shakeproof kernels lists them)")
    for text in perturbations:
        parse_path(text)
    return _run(model, images, perturbations, max_strength, False, Outputs.taken_from(options), **options)


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, metavar="[IMAGE|QUERY.vnnlib]...")
@analysis_options
@input_options
@click.option(
    "--strength",
    callback=numbers(),
    metavar="Z[,Z...]",
    help="All strengths from 0 to this must be safe; one for all parts, or one each. Goes with -p.",
)
@click.option("--profile", "whole_profile", is_flag=True, help="Do not stop at the first confirmed counterexample.")
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="NAME=FILE",
    help="The network that a query names: verify QUERY.vnnlib --network NAME=FILE, as VNN-LIB 2.0 has it.",
)
@click.option("--results", type=click.Path(path_type=Path),
              help="Write sat, unsat, unknown or timeout, and a counterexample, as VNN-COMP has it.")  # fmt: skip
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
    """Whether the label wins at every strength up to a given one; or whether a query has no counterexample.

    With -p, images are perturbed, as for `profile`. Without, each QUERY.vnnlib(.gz) is verified as it stands, or by the
    perturbation that it carries itself (shakeproof export --format perturbed).
    """
    if networks:
        if perturbations or images or results or options["as_json"]:
            raise InputError("verify QUERY.vnnlib --network NAME=FILE takes no image, -p, --results or --json")
        return answer_version2(model, networks, Outputs.taken_from(options), **options)
    if not images:
        raise InputError(f"{model}: say what to verify: an image and -p PERTURBATION, or a QUERY.vnnlib")
    if bool(perturbations) != (strength is not None):
        raise InputError("-p PERTURBATION and --strength Z go together; a QUERY.vnnlib on its own takes neither")
    if results is not None and (perturbations or len(images) > 1):
        raise InputError("--results is about one QUERY.vnnlib, without -p")
    early = not whole_profile and options["plot"] is None
    outputs = replace(Outputs.taken_from(options), results=results)
    return _run(model, images, perturbations, strength or (), early, outputs, **options)


def _run(
    model: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    strength: Sequence[float],
    stop_early: bool,
    outputs: Outputs,
    given: Given,
    strict: bool,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """Make queries, answer them, and show each answer as soon as it is known."""
    outputs.check()
    kernels = parsed(perturbations, strength, outputs.plot)
    settings = settings_from(stop_early=stop_early, whole_curve=outputs.plot is not None, **how)
    if perturbations:
        asked = perturbed_pictures(
            model, images, kernels, strength, given, deployed=settings.pixel_rounding is not None
        )
    else:
        asked = specified(model, images, outputs.plot, given)
    if strict or outputs.results is not None:
        asked = asked.strictly()
    if outputs.results is not None:
        check_plain(asked)
    recording = None if outputs.output is None else Recording(outputs.output, settings)
    asked = asked if recording is None else recording.left(asked)
    screen = Screen(asked.names, as_json, quiet)
    junit = None if outputs.junit is None else JunitFile(outputs.junit, model, asked.names)

    def settle(numbers: range, found: Known | Refusal) -> None:
        screen.settle(numbers, found)
        if junit is not None:
            junit.settle(numbers, found)

    try:
        with screen.progress() as advance:
            begun = recording.begun if recording is not None and outputs.resume else None
            for answer in answered(asked, settings, settle, advance, None if quiet else screen.expect, begun):
                screen.show(answer)
                if junit is not None:
                    junit.answer(answer)
                if recording is not None:
                    recording.add(answer)
                outputs.write(answer, len(asked.names), profile=not stop_early)
    except KeyboardInterrupt:
        return screen.interrupted()
    finally:
        screen.close()
        if junit is not None:
            junit.write()
    return screen.exit_code()
