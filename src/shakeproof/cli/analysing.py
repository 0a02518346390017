"""`profile` and `verify`: make queries, answer them, show the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from shakeproof.cli.certifying import write_certificates
from shakeproof.cli.options import analysis_options, numbers, settings_from
from shakeproof.cli.pictures import check_outputs, write_pictures
from shakeproof.cli.queries import answered, load_pictures, parsed, specified
from shakeproof.cli.satisfiability import answer_version2, check_plain, write_results
from shakeproof.cli.terminal import exit_code, print_results, progress_bar
from shakeproof.errors import InputError


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
    certificate: Path | None,
    as_json: bool,
    quiet: bool,
    results: Path | None = None,
    **how: Any,
) -> int:
    """Make queries, answer them, print the answers."""
    check_outputs(plot, counterexample, results, certificate)
    kernels = parsed(perturbations, strength, plot)
    settings = settings_from(stop_early, whole_curve=not (plot is certificate is None), **how)
    if perturbations:
        from shakeproof.query import perturbed

        network, pictures = load_pictures(model, images, image_shape, mean, std)
        by_kernel = [perturbed(network, pictures, kernel, label, tuple(strength)) for kernel in kernels]
        asked = [(network, [query for of_picture in zip(*by_kernel, strict=True) for query in of_picture])]
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
    about = [network for network, queries in asked for _ in queries]
    answers = [*zip(about, found, strict=True)]
    write_pictures(answers, plot, counterexample)
    if certificate is not None:
        write_certificates(answers, certificate, profile=not stop_early)
    return exit_code(found)
