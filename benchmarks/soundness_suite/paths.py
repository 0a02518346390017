"""What a perturbation does to an image, in exact fractions: x(z) = base + z slope, then clipped if it says so.

Written from the documentation of the families, not from the package's code: a mistake in a kernel shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

Matrix = list[list[Fraction]]
Exact = list[Fraction]
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")


@dataclass(frozen=True)
class ExactPath:
    """x(z) = base + z slope for z in [0, end], entries in C order of the picture (channels, height, width)."""

    base: Exact
    slope: Exact
    shape: tuple[int, int, int]
    end: Fraction
    clip: tuple[Fraction, Fraction] | None = None

    def at(self, z: Fraction) -> Exact:
        x = [b + z * s for b, s in zip(self.base, self.slope, strict=True)]
        return x if self.clip is None else [min(max(v, self.clip[0]), self.clip[1]) for v in x]


def path(image: np.ndarray, perturbation: str, strength: float) -> ExactPath:
    """The path of an image (channels, height, width) under a perturbation given as text, up to a strength."""
    family, _, rest = perturbation.partition(":")
    options = dict(option.split("=", 1) for option in rest.split(",") if option)
    low, _, high = options.get("clip", "").partition("..")
    clip = (Fraction(float(low)), Fraction(float(high))) if high else None
    pixels = [[[Fraction(float(v)) for v in row] for row in channel] for channel in image]
    if family in ("brightness", "contrast"):
        change = Fraction(options["max"])
        base = [v for channel in pixels for row in channel for v in row]
        slope = [change * v for v in base] if family == "contrast" else [change] * len(base)
    else:
        target = kernel(family, options)
        start, padding = identity(len(target)), options.get("padding", "reflect")
        base, ends = (
            [v for channel in pixels for row in convolved(channel, matrix, padding) for v in row]
            for matrix in (start, target)
        )
        slope = [e - b for b, e in zip(base, ends, strict=True)]
    return ExactPath(base, slope, tuple(image.shape), Fraction(float(strength)), clip)  # type: ignore[arg-type]


def kernel(family: str, options: dict[str, str]) -> Matrix:
    """The kernel at full strength."""
    if family == "identity":
        return [[Fraction(1)]]
    size = int(options["size"])
    if family == "box-blur":
        return [[Fraction(1, size * size)] * size for _ in range(size)]
    if family == "sharpen":
        return sharpen(size)
    if family == "motion-blur":
        return motion_blur(size, Fraction(options["angle"]))
    raise ValueError(f"no such family: {family}")


def identity(size: int) -> Matrix:
    """A 1 in the middle; an even size has four middles."""
    middles = {(size - 1) // 2, size // 2}
    share = Fraction(1, len(middles) ** 2)
    return [[share if {i, j} <= middles else Fraction(0) for j in range(size)] for i in range(size)]


def sharpen(size: int) -> Matrix:
    """Twice the identity minus the mean over the diamond around the middle, the middle left out."""
    middle, reach = [(size - 1) // 2, size // 2], (size - 1) // 2
    away = [min(abs(i - m) for m in middle) for i in range(size)]
    diamond = {(i, j) for i, j in product(range(size), repeat=2) if 0 < away[i] + away[j] <= reach}
    same = identity(size)
    return [
        [2 * same[i][j] - (Fraction(1, len(diamond)) if (i, j) in diamond else 0) for j in range(size)]
        for i in range(size)
    ]


def motion_blur(size: int, angle: Fraction) -> Matrix:
    """The share of each pixel in the line through the middle, clipped to the square; 0 is up, clockwise."""
    right, down = direction(angle)
    entries = [
        [ray(size, i, j, right, down) + ray(size, i, j, -right, -down) for j in range(size)] for i in range(size)
    ]
    total = sum(map(sum, entries), Fraction(0))
    return [[entry / total for entry in row] for row in entries]


def direction(angle: Fraction) -> tuple[Fraction, Fraction]:
    """(right, down) of a bearing, the larger one being 1 or -1, the other exact for multiples of 45, else to 1e-30."""
    angle %= 180
    if angle % 45 == 0:
        return tuple(map(Fraction, ((0, -1), (1, -1), (1, 0), (1, 1))[int(angle // 45)]))  # type: ignore[return-value]
    right, down = series(angle, 1), -series(angle, 0)
    larger = max(abs(right), abs(down))
    coarse = [Fraction(round(component / larger * 2**100), 2**100) for component in (right, down)]
    return coarse[0], coarse[1]


def series(degrees: Fraction, first: int) -> Fraction:
    """Sine (first = 1) or cosine (first = 0), by its power series."""
    x = degrees * PI / 180
    total, term, power = Fraction(0), x if first else Fraction(1), first
    while abs(term) > Fraction(1, 10**45):
        total += term
        term = -term * x * x / ((power + 1) * (power + 2))
        power += 2
    return total


def ray(size: int, row: int, column: int, right: Fraction, down: Fraction) -> Fraction:
    """How long a ray from the middle stays in one pixel; along the border of two pixels, half of that is each one's."""
    low, high, share = Fraction(0), Fraction(size, 2), Fraction(1)  # the larger component is 1: this is the border
    for place, component in ((row, down), (column, right)):
        first, last = place - Fraction(size, 2), place + 1 - Fraction(size, 2)
        if component == 0:
            if not first <= 0 <= last:
                return Fraction(0)
            share /= 2 if 0 in (first, last) else 1
        else:
            enter, leave = sorted((first / component, last / component))
            low, high = max(low, enter), min(high, leave)
    return max(high - low, Fraction(0)) * share


def convolved(channel: Matrix, matrix: Matrix, padding: str) -> Matrix:
    """Cross-correlation to the same size; an even kernel reaches one pixel further down and to the right."""
    height, width, reach = len(channel), len(channel[0]), (len(matrix) - 1) // 2
    taps = [(i - reach, j - reach, w) for i, row in enumerate(matrix) for j, w in enumerate(row) if w]

    def pixel(i: int, j: int) -> Fraction:
        places = source(i, height, padding), source(j, width, padding)
        return Fraction(0) if None in places else channel[places[0]][places[1]]  # type: ignore[index]

    return [
        [sum((w * pixel(i + di, j + dj) for di, dj, w in taps), Fraction(0)) for j in range(width)]
        for i in range(height)
    ]


def source(place: int, count: int, padding: str) -> int | None:
    """Which pixel stands at a place that may lie outside; None: a zero."""
    if 0 <= place < count:
        return place
    if padding == "zeros":
        return None
    if padding == "replicate":
        return 0 if place < 0 else count - 1
    if padding == "circular":
        return place % count
    assert padding == "reflect"
    return -place if place < 0 else 2 * (count - 1) - place


def dot(weights: Sequence[float] | np.ndarray, x: Exact) -> Fraction:
    return sum((Fraction(float(w)) * v for w, v in zip(weights, x, strict=True) if w), Fraction(0))
