"""`profile` and `verify`: make queries, answer them, show the answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from shakeproof.cli.certifying import write_certificate
from shakeproof.cli.options import Given, analysis_options, numbers, settings_from
from shakeproof.cli.pictures import check_outputs, numbered, write_pictures
from shakeproof.cli.queries import answered, parsed, perturbed_pictures, specified
from shakeproof.cli.satisfiability import answer_version2, check_plain, write_results
from shakeproof.cli.terminal import Screen
from shakeproof.errors import InputError


@click.command()
@click.argument("model")
@click.argument("images", nargs=-1, required=True)
@analysis_options
@click.option("--max-strength", callback=numbers(), default="1", show_default=True, metavar="Z[,Z...]",
              help="Analyse strengths from 0 to this; one for all parts, or one each.")  # fmt: skip
def profile(images: Sequence[str], perturbations: Sequence[str], max_strength: Sequence[float], **options: Any) -> int:
    """The winning class at every strength, and the exact strength at which the label loses.

    MODEL is .onnx, .onnx.gz or .pt2; an image is a picture, .npy, .npz, one of an array's (FILE.npz@7), some (@0:50), a
    folder, a pattern ('photos/*.jpg'), or .vnnlib(.gz).
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
    given: Given,
    plot: Path | None,
    counterexample: Path | None,
    certificate: Path | None,
    as_json: bool,
    quiet: bool,
    strict: bool,
    results: Path | None = None,
    **how: Any,
) -> int:
    """Make queries, answer them, and show each answer as soon as it is known."""
    check_outputs(plot, counterexample, results, certificate)
    kernels = parsed(perturbations, strength, plot)
    settings = settings_from(stop_early, whole_curve=not (plot is certificate is None), **how)
    if perturbations:
        asked = perturbed_pictures(model, images, kernels, strength, given)
    else:
        asked = specified(model, images, plot, given)
    if strict or results is not None:
        asked = asked.strictly()
    if results is not None:
        check_plain(asked)
    screen = Screen(asked.names, as_json, quiet)
    try:
        with screen.progress() as advance:
            for answer in answered(asked, settings, screen.refuse, advance):
                screen.show(answer)
                own = partial(numbered, number=answer.number, count=len(asked.names))
                write_pictures(answer, own(plot), own(counterexample))
                write_certificate(answer, own(certificate), profile=not stop_early)
                if results is not None:
                    write_results(results, answer.result)
    except KeyboardInterrupt:
        return screen.interrupted()
    finally:
        screen.close()
    return screen.exit_code()
