"""`compare`: two networks side by side, and where they disagree."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import (
    PLOT,
    PRINTED,
    WORK,
    InputOptions,
    check_writable,
    numbers,
    picture_options,
    settings_from,
    with_options,
)
from shakeproof.cli.outputs import numbered
from shakeproof.cli.queries import load_pictures, unanswered
from shakeproof.cli.terminal import Screen, json_line
from shakeproof.errors import InputError, Refusal, strictly

if TYPE_CHECKING:
    from shakeproof.question import Image, Perturbation


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
    (one, pictures), (other, _) = (load_pictures(model, files, inputs, deployed) for model in (first, second))
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
