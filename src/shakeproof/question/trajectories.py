"""Measured camera motion: files of samples, as places in pixels over time, in exact fractions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from shakeproof.errors import InputError
from shakeproof.files import read_text

PIXELS, RADIANS = ("time", "x", "y"), ("time", "wx", "wy")
EXAMPLE = f"{','.join(PIXELS)} (seconds, and pixels to the right and down) or {','.join(RADIANS)} (rad/s)"
# Decimals with more digits than this, or of other magnitudes, are no measurements.
NUMBER = re.compile(r"[+-]?(?=\.?\d)\d{0,15}(\.\d{0,20})?([eE][+-]?\d{1,2})?")
MOST_SAMPLES = 100_000


class MotionSample(NamedTuple):
    """From a time on, until the next sample, the picture is so many pixels to the right and down of where it was."""

    time: Fraction
    right: Fraction
    down: Fraction


def read_trajectory(path: Path, focal: Fraction | None = None) -> list[MotionSample]:
    """The samples of a file, whose first row names the columns; relative to the first of them.

    A gyroscope's rates are integrated, each held until the next sample. With x to the right, y down and z forward in
    the camera, a turn at the rate (wx, wy) moves what is in the middle by focal * (-wy, wx) pixels a second: a small
    angle moves all pixels alike. `focal` is the focal length in pixels.
    """
    lines = [line.strip() for line in read_text(path).splitlines()]
    names = tuple(name.strip().lower() for name in (lines[0] if lines else "").split(","))
    if names not in (PIXELS, RADIANS):
        raise InputError(f"{path}: the first line names the columns: {EXAMPLE}")
    if (names == RADIANS) != (focal is not None):
        raise InputError(
            f"{path}: focal=PIXELS goes with a gyroscope's rates, {','.join(RADIANS)}, and with nothing else"
        )
    rows = [_numbers(path, number, line) for number, line in enumerate(lines[1:], 2) if line]
    if not 2 <= len(rows) <= MOST_SAMPLES:
        raise InputError(f"{path}: a trajectory has 2 to {MOST_SAMPLES} samples, not {len(rows)}")
    for before, after in pairwise(rows):
        if not before[0] < after[0]:
            raise InputError(f"{path}: times must increase, but {float(after[0]):g} follows {float(before[0]):g}")
    places = [*_integrated(rows, focal)] if focal is not None else [(right, down) for _, right, down in rows]
    (start, *_), (right, down) = rows[0], places[0]
    return [MotionSample(row[0] - start, x - right, y - down) for row, (x, y) in zip(rows, places, strict=True)]


def _integrated(rows: Sequence[Sequence[Fraction]], focal: Fraction) -> Iterator[tuple[Fraction, Fraction]]:
    """Where each sample begins, in pixels."""
    steps = [(after[0] - before[0], before[1], before[2]) for before, after in pairwise(rows)]
    return zip(
        accumulate((-focal * wy * time for time, _, wy in steps), initial=Fraction(0)),
        accumulate((focal * wx * time for time, wx, _ in steps), initial=Fraction(0)),
        strict=True,
    )


def _numbers(path: Path, line: int, text: str) -> list[Fraction]:
    words = [word.strip() for word in text.split(",")]
    if len(words) != len(PIXELS):
        raise InputError(f"{path}: line {line} has {len(words)} numbers instead of {len(PIXELS)}")
    for word in words:
        if not NUMBER.fullmatch(word):
            raise InputError(f"{path}: line {line}: {word[:40]!r} is not a number that was measured")
    return [Fraction(word) for word in words]
