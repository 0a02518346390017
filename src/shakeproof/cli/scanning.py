"""`scan`: motion blur of many sizes in many directions, as a table, JSON and a polar map."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import (
    EFFORT,
    FILE,
    LABEL,
    InputOptions,
    check_writable,
    numbers,
    picture_options,
    settings_from,
    with_options,
)
from shakeproof.cli.queries import load_pictures
from shakeproof.cli.terminal import (
    EXIT_INTERRUPTED,
    EXIT_UNDECIDED,
    EXIT_UNSAFE,
    complain,
    plain_table,
    progress_bar,
    say,
    terminal,
)
from shakeproof.errors import strictly

if TYPE_CHECKING:
    from shakeproof.scanning import Scan, Scanned

RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?")
EXIT_CODES = {"safe": 0, "unsafe": EXIT_UNSAFE, "misclassified": EXIT_UNSAFE, "undecided": EXIT_UNDECIDED}
COLOURS = {"safe": "green", "unsafe": "red", "misclassified": "red", "undecided": "yellow"}
# So many values stand for a range at most.
MOST_VALUES = 10_000


def values(step: float, whole: bool) -> Callable[..., Any]:
    """Reads `3..15`, `0..180:5` (in steps of 5), or `3,5,9`."""

    def read(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
        kind = int if whole else float
        try:
            if (given := RANGE.fullmatch(value)) is None:
                return tuple(kind(part) for part in value.split(","))
            low, high, each = kind(given[1]), kind(given[2]), kind(given[3] or step)
            count = int((high - low) // each) + 1 if each > 0 and high - low < MOST_VALUES * each else 0
        except ValueError:
            count = 0
        if count < 1:
            raise click.BadParameter(f"{value!r} is not a range such as 3..15, 0..180:5 or a list such as 3,5,9")
        return tuple(low + number * each for number in range(count))

    return read


@click.command()
@click.argument("model")
@click.argument("image")
@with_options(
    click.option("--sizes", callback=values(2, whole=True), default="3..15", show_default=True,
                 metavar="LOW..HIGH[:STEP]", help="Sizes of the motion, in pixels; STEP is 2 by default."),
    click.option("--angles", callback=values(15, whole=False), default="0..180", show_default=True,
                 metavar="LOW..HIGH[:STEP]", help="Directions as bearings (0 is up); STEP is 15 degrees by default."),
    click.option("--max-strength", callback=numbers(1), default="1", show_default=True, metavar="Z",
                 help="Analyse strengths from 0 to Z."),
    click.option("--between", is_flag=True,
                 help="Certify every angle between, too: for each size, at the largest strength that is found."),
    click.option("--padding", default="reflect", show_default=True,
                 help="Image beyond its edge: reflect, zeros, replicate, circular."),
    click.option("--at", type=click.Choice(["network", "original"]), default="network", show_default=True,
                 help="Blur the network's picture, or the photograph before it is resized."),
    *EFFORT,
    click.option("--plot", type=FILE, help="Write a polar map of the certified strengths (.png, .svg)."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("--quiet", is_flag=True, help="Print no progress, notes or table."),
    LABEL,
)  # fmt: skip
@picture_options
def scan(
    model: str,
    image: str,
    sizes: Sequence[int],
    angles: Sequence[float],
    max_strength: tuple[float],
    between: bool,
    padding: str,
    at: str,
    plot: Path | None,
    as_json: bool,
    quiet: bool,
    inputs: InputOptions,
    **how: Any,
) -> int:
    """Find the weakest size and direction of motion blur for an image.

    Each size and angle is analysed like a `profile`, exactly if possible; nothing is claimed between them. MODEL and
    IMAGE as for `profile`; --timeout is for each size and angle.
    """
    if plot is not None:
        check_writable(plot)
    settings = settings_from(**how)
    from shakeproof.question import one_source
    from shakeproof.scanning import Scanning, grid

    kernels = grid(sizes, angles, padding, at == "original")
    source = one_source(image, inputs.array, inputs.labels)
    network, pictures = load_pictures(model, [source], inputs, settings.pixel_rounding is not None, kernels)
    (picture,) = strictly(pictures)
    scanning = Scanning(network, picture, kernels, inputs.label, max_strength[0], settings, between)
    silent = as_json or quiet
    for note in () if silent else (*network.notes, *picture.notes):
        terminal().print(f"note: {note}", style="dim", markup=False)
    try:
        with progress_bar("scanning", quiet, len(scanning)) as bar:
            for number, _ in enumerate(scanning, start=1):
                bar.advance(number)
                if number == 1 and not (bar.is_seen or quiet):
                    seconds = scanning.cells[0].seconds * len(kernels)
                    say(f"{len(kernels)} sizes and angles, about {seconds:.0f} s", sys.stderr)
    except KeyboardInterrupt:
        complain(f"interrupted; {len(scanning.cells)} of {len(kernels)} sizes and angles answered")
        return EXIT_INTERRUPTED
    found = scanning.scan
    if as_json:
        say(json.dumps(found.to_json()))
    elif not quiet:
        _print(found)
    if plot is not None:
        from shakeproof.report import save

        save(found.plot(), plot)
        if not quiet:
            say(f"wrote {plot}", sys.stderr if as_json else None)
    return EXIT_CODES[found.status.value]


def _print(found: Scan) -> None:
    """A row for each angle, a column for each size."""
    table = plain_table("angle", *(f"size {size}" for size in found.sizes))
    for angle in found.angles:
        table.add_row(f"{angle:g}", *(_cell(found.cell(size, angle)) for size in found.sizes))
    if found.between:
        first = found.between[0]
        at = ("none" if one.strength is None else f"at {one.strength:g}" for one in found.between)
        table.add_row(f"every angle, {first.start:g} to {first.end:g}", *at)
    console = terminal()
    console.print(table)
    console.print(f"{Path(found.image).name}: {found.sentence}", markup=False)
    console.print(
        f"Numbers: certified up to this strength ([red]red[/]: the class flips there); safe: up to {found.strength:g}."
        + (
            " The last row: every angle is certified at this very strength. Nothing else is claimed between them."
            if found.between
            else " Nothing is claimed between these sizes and angles."
        )
    )


def _cell(cell: Scanned) -> str:
    """The strength, rounded down, in the colour of the status."""
    words = "safe" if cell.status == "safe" else f"{int(cell.certified * 1e4) / 1e4:.4f}"
    return f"[{COLOURS[cell.status.value]}]{words}[/]" + "?" * (cell.status == "undecided")
