"""`kernels`: which perturbations there are, and what they look like."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from shakeproof.cli.options import check_writable, numbers
from shakeproof.cli.terminal import plain_table, say, terminal
from shakeproof.errors import InputError


@click.command()
@click.argument("perturbation", required=False)
@click.option(
    "--strength",
    callback=numbers(),
    default="1",
    show_default=True,
    help="One for all parts, or one each, e.g. 0.2,0.3.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Write the kernel and its effect on an image.")
@click.option("--image", help="The image to show the effect on [a bundled one].")
def kernels(perturbation: str | None, strength: Sequence[float], png: Path | None, image: str | None) -> int:
    """List the families of perturbations, or show the kernel of one, or of several joined by +."""
    from shakeproof.question import FAMILIES, MOST_PARTS, PADDINGS, parse_path

    if perturbation is None:
        table = plain_table("family", "what it does at strength 1", "for example")
        for name, family in FAMILIES.items():
            table.add_row(name, family.summary, family.example)
        console = terminal()
        console.print(table)
        console.print(f"Kernels take padding={'|'.join(PADDINGS)} (default reflect); all take clip=LOW..HIGH (off).")
        console.print(f"Up to {MOST_PARTS} add up, a strength each: motion-blur:size=5,angle=0+brightness:max=0.2")
        return 0
    if png is not None:
        check_writable(png)
    shown = parse_path(perturbation)
    strengths = [Fraction(str(z)) for z in shown.strengths(strength)]  # the decimals as they were written
    matrix, offset = shown.kernel.at(*strengths), shown.offset(*strengths)
    say(f"{shown} at strength {','.join(f'{float(z):g}' for z in strengths)}")
    if len(matrix) == len(matrix[0]) == 1:
        say(f"every pixel times {_entry(matrix[0][0])}")
    else:
        entries = [[_entry(value) for value in row] for row in matrix]
        width = max(len(entry) for row in entries for entry in row)
        for row in entries:
            say("  ".join(entry.rjust(width) for entry in row))
        say(f"{len(matrix)} x {len(matrix[0])}, sum {_entry(sum(map(sum, matrix)))}")
    if offset:
        say(f"then {_entry(offset)} is added to every pixel")
    if len(shown.paddings) > 1:
        say(f"at the edges, each part goes by its own padding ({', '.join(shown.paddings)})")
    if png is not None:
        from shakeproof import demo
        from shakeproof.question import Specification, as_picture, read_image
        from shakeproof.report import kernel_figure, save

        raw = read_image(image or str(demo.images()[0][0]))
        own = raw.own_shape()
        if own is None or isinstance(raw.array, Specification):
            raise InputError(f"{raw.name}: not a picture to show a kernel's effect on")
        save(kernel_figure(shown, strength, as_picture(raw.array, own, raw.name)), png)
    return 0


def _entry(value: Any) -> str:
    """A fraction where that says more than digits would."""
    return str(value) if value.denominator < 100_000 else f"{float(value):.6g}"
