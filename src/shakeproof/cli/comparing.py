"""`compare`: two networks side by side, and where they disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.inputs import Given, picture_options
from shakeproof.cli.options import check_writable, comparing_options, numbers, settings_from
from shakeproof.cli.outputs import numbered
from shakeproof.cli.queries import load_pictures
from shakeproof.cli.terminal import Screen
from shakeproof.errors import InputError, Refusal, strictly

if TYPE_CHECKING:
    from shakeproof.question import Image, Perturbation


@click.command()
@click.argument("first", metavar="MODEL_A")
@click.argument("second", metavar="MODEL_B")
@click.argument("images", nargs=-1, required=True)
@comparing_options
@picture_options
@click.option("--max-strength", callback=numbers(1), default="1", show_default=True, metavar="Z",
              help="Compare at strengths from 0 to this.")  # fmt: skip
def compare(
    first: str,
    second: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    max_strength: tuple[float],
    given: Given,
    plot: Path | None,
    strict: bool,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """The exact strengths at which two networks give an image different classes.

    A network and its int8 export, say, or before and after it was pruned. In real numbers both must be piecewise
    linear; with --pixels 8bit, any two models that their runtimes load will do. Of --timeout, each network has half.
    Exit code 0: they agree at every strength, 1: they disagree somewhere, 3: not all is settled, and no disagreement
    was found, 2: bad input.
    """
    from shakeproof.comparing import check_comparable, comparisons
    from shakeproof.question import parse_path, sources
    from shakeproof.report import save

    if not perturbations:
        raise InputError("say which perturbation is meant, with -p (shakeproof kernels lists them)")
    kernels = [parse_path(text) for text in perturbations]
    if plot is not None:
        check_writable(plot)
    settings = settings_from(
        stop_early=False,
        whole_curve=plot is not None,
        method="auto",
        tolerance=1e-4,
        arithmetic="real",
        **how,
    )
    found = list(sources(images, given.array, given.labels))
    deployed = settings.pixel_rounding is not None
    (one, pictures), (other, _) = (load_pictures(model, found, given, deployed) for model in (first, second))
    check_comparable(one, other, settings)
    if strict:
        pictures = iter(list(strictly(pictures)))
    names = [(source.name, str(kernel)) for source in found for kernel in kernels]
    screen = Screen(names, as_json, quiet, compares=True)
    waiting: list[int] = []

    def asked() -> Iterator[tuple[Image, Perturbation]]:
        for place, picture in enumerate(pictures):
            mine = range(place * len(kernels), (place + 1) * len(kernels))
            if isinstance(picture, Refusal):
                screen.settle(mine, picture)
            else:
                waiting.extend(mine)
                yield from ((picture, kernel) for kernel in kernels)

    try:
        with screen.progress() as advance:
            for compared in comparisons(one, other, asked(), max_strength[0], settings, advance):
                number = waiting.pop(0)
                screen.tell(number, compared, (*one.notes, *other.notes))
                if (own := numbered(plot, number, len(names))) is not None:
                    save(compared.plot(), own)
    except KeyboardInterrupt:
        return screen.interrupted()
    finally:
        screen.close()
    return screen.exit_code()
