"""`profile` and `verify`: make queries, answer them, show the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shakeproof.cli.options import PICTURES, analysis_options, check_writable, numbers, settings_from
from shakeproof.cli.queries import answered, load_pictures, parsed, specified
from shakeproof.cli.satisfiability import answer_version2, check_plain, write_results
from shakeproof.cli.terminal import exit_code, print_results, progress_bar
from shakeproof.errors import InputError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.result import BoxResult, Result

    Answer = TypeVar("Answer", Result, BoxResult, Result | BoxResult)


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, required=True)
@analysis_options
@click.option("--max-strength", callback=numbers(), default="1", show_default=True, metavar="Z[,Z...]",
              help="Analyse strengths from 0 to this; one for all parts, or one each.")  # fmt: skip
def profile(images: Sequence[str], perturbations: Sequence[str], max_strength: Sequence[float], **options: Any) -> int:
    """The winning class at every strength, and the exact strength at which the label loses.

    MODEL is .onnx, .onnx.gz or .pt2; an image is a picture, .npy, FILE.npz@INDEX or .vnnlib(.gz).
    """
    from shakeproof.perturbation import parse_path

    if not perturbations:
        raise InputError("say which perturbation is meant, with -p (shakeproof kernels lists them)")
    for text in perturbations:
        parse_path(text)
    return _run(images=images, perturbations=perturbations, strength=max_strength, stop_early=False, **options)


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, metavar="[IMAGE|QUERY.vnnlib]...")
@analysis_options
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
        return answer_version2(model, networks, **options)
    if not images:
        raise InputError(f"{model}: say what to verify: an image and -p PERTURBATION, or a QUERY.vnnlib")
    if bool(perturbations) != (strength is not None):
        raise InputError("-p PERTURBATION and --strength Z go together; a QUERY.vnnlib on its own takes neither")
    if results is not None and (perturbations or len(images) > 1):
        raise InputError("--results is about one QUERY.vnnlib, without -p")
    early = not whole_profile and options["plot"] is None
    return _run(model, images, perturbations, strength or (), early, results=results, **options)


def _run(
    model: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    strength: Sequence[float],
    stop_early: bool,
    label: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_shape: tuple[int, int, int] | None,
    plot: Path | None,
    counterexample: Path | None,
    as_json: bool,
    quiet: bool,
    results: Path | None = None,
    **how: Any,
) -> int:
    """Make queries, answer them, print the answers."""
    _check_outputs(plot, counterexample, results)
    kernels = parsed(perturbations, strength, plot)
    settings = settings_from(stop_early, whole_curve=plot is not None, **how)
    if perturbations:
        from shakeproof.analysis import perturbed_query

        network, pictures = load_pictures(model, images, image_shape, mean, std)
        pairs = [(picture, kernel) for picture in pictures for kernel in kernels]
        asked = [(network, [perturbed_query(network, *pair, label, tuple(strength)) for pair in pairs])]
    else:
        asked = specified(model, images, label, plot, image_shape, mean, std)
        if results is not None:
            check_plain(asked[0][1][0])
    with progress_bar("certifying", quiet or as_json) as advance:
        found = answered(asked, settings, advance)
    if results is not None:
        write_results(results, found[0])
    if as_json:
        for result in found:
            click.echo(json.dumps(result.to_json()))
    elif not quiet:
        print_results([network for network, _ in asked], found)
    _write_pictures(found, plot, counterexample)
    return exit_code(found)


def _check_outputs(plot: Path | None, counterexample: Path | None, results: Path | None) -> None:
    """Find out before the work whether what is asked for can be written."""
    for path, endings in ((plot, PICTURES), (counterexample, (*PICTURES, ".npy")), (results, ())):
        if path is not None:
            check_writable(path, endings)


def _write_pictures(results: Sequence[Result | BoxResult], plot: Path | None, counterexample: Path | None) -> None:
    from shakeproof.report.plot import counterexample_figure, result_figure, save
    from shakeproof.result import Result

    if plot is not None:
        drawn = [result for result in results if isinstance(result, Result)]
        for path, result in _numbered(plot, drawn):
            save(result_figure(result), path)
    if counterexample is not None:
        lost = [result for result in results if result.counterexample is not None]
        for path, found in _numbered(counterexample, lost):
            if path.suffix == ".npy":
                write_whole({path: _array(found)})
            else:
                save(counterexample_figure(found), path)


def _numbered(path: Path, results: Sequence[Answer]) -> Iterator[tuple[Path, Answer]]:
    """A file for each result, numbered if there are several."""
    for number, result in enumerate(results, start=1):
        yield (path if len(results) == 1 else path.with_stem(f"{path.stem}-{number}")), result


def _array(result: Result | BoxResult) -> bytes:
    """The input that the runtime was given, as an .npy file."""
    import numpy as np

    from shakeproof.report.plot import perturbed_image
    from shakeproof.result import Result

    assert result.counterexample is not None
    if isinstance(result, Result):
        query = result.query
        array = perturbed_image(query.perturbation, query.image.pixels, result.counterexample.strength).float().numpy()
    else:
        array = result.counterexample.input
    data = BytesIO()
    np.save(data, array)
    return data.getvalue()
