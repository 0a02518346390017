"""The matrices of end kernels, in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.question.perturbation import LARGEST_SIZE, Matrix


def check_size(size: int) -> None:
    if not isinstance(size, int):
        raise InputError(f"kernel size {size!r} is not possible: use a whole number of Python's own, an int")
    if not 3 <= size <= LARGEST_SIZE:
        raise InputError(
            f"kernel size {size} is not possible: use an odd size from 3 or an even size from 4, up to {LARGEST_SIZE}"
        )


def motion_line(size: int, angle: float) -> Matrix:
    """The share of a line through the centre in each pixel; `angle` is a bearing in degrees (0 is up, clockwise)."""
    return line_matrix(size, *direction(angle))


def line_matrix(size: int, right: Fraction, down: Fraction) -> Matrix:
    """The same of a line that goes so far down where it goes so far to the right."""
    entries = [[Fraction(0)] * size for _ in range(size)]
    for row, column, share in _pixels_on_ray(size, right, down):
        entries[row][column] += share / 2
        entries[size - 1 - row][size - 1 - column] += share / 2
    return tuple(map(tuple, entries))


def direction(angle: float) -> tuple[Fraction, Fraction]:
    """A step to the right and down; `angle` is a bearing in degrees (0 is up, clockwise), equal modulo 180."""
    eighth, rest = divmod(angle % 180 % 180, 45)  # a tiny negative angle modulo 180 rounds to 180 itself, hence twice
    if rest == 0:  # exact
        right, down = ((0, -1), (1, -1), (1, 0), (1, 1))[int(eighth)]
        return Fraction(right), Fraction(down)
    return Fraction(math.sin(math.radians(angle))), Fraction(-math.cos(math.radians(angle)))


def _pixels_on_ray(size: int, right: Fraction, down: Fraction) -> Iterator[tuple[int, int, Fraction]]:
    """(row, column, share of the ray's length) of each pixel met from the centre to the square's border.

    A ray that runs along the border between two pixels is shared equally by both.
    """
    half = Fraction(size, 2)
    end = half / max(abs(right), abs(down))
    cuts = {Fraction(0), end}
    for component in (right, down):
        if component:
            lines = (half - k for k in range(size + 1))
            cuts.update(t for t in (line / component for line in lines) if 0 < t < end)
    for before, after in pairwise(sorted(cuts)):
        middle = (before + after) / 2
        places = (half + middle * component for component in (down, right))
        # the rows and the columns that hold the middle: two of them where it lies on a grid line
        rows, columns = ({math.ceil(place) - 1, math.floor(place)} for place in places)
        for row, column in product(rows, columns):
            yield row, column, (after - before) / end / (len(rows) * len(columns))


def gaussian(size: int, sigma: float) -> Matrix:
    """exp(-distance^2 / 2 sigma^2) at each pixel's centre, divided by the sum."""
    weights = [Fraction(math.exp(-square / 8 / sigma / sigma)) for square in squared_distances(size)]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return tuple(tuple(down * right for right in shares) for down in shares)


def squared_distances(size: int) -> list[int]:
    """Of the places of a row from its middle, in halves of a pixel.

    The nearest is taken off all, so that not all weights of a narrow Gaussian vanish.
    """
    return [(2 * i - size + 1) ** 2 - (size - 1) % 2 for i in range(size)]


def disk(radius: float) -> Matrix:
    """The share of a disk around the centre in each pixel; as large as it has to be."""
    reach = math.ceil(radius - 0.5)
    areas = [[Fraction(_area_in_pixel(radius, i, j)) for j in range(i + 1)] for i in range(reach + 1)]
    away = [abs(place - reach) for place in range(2 * reach + 1)]
    return normalised(tuple(tuple(areas[max(i, j)][min(i, j)] for j in away) for i in away))


def _area_in_pixel(radius: float, down: int, right: int) -> float:
    """The area that a disk around the origin has in common with the pixel around (right, down), both at least 0."""
    left, bottom = max(right - 0.5, 0.0), max(down - 0.5, 0.0)
    # of a pixel on an axis, this is half, or of the one on both a quarter
    halves = (1 + (right == 0)) * (1 + (down == 0))
    return halves * _area_in_rectangle(radius, left, right + 0.5, bottom, down + 0.5)


def _area_in_rectangle(radius: float, left: float, right: float, bottom: float, top: float) -> float:
    """The same for a rectangle in the quadrant: of its full height as far as the disk reaches at its top, then under
    the arc as far as the disk reaches at its bottom.
    """

    def height(x: float) -> float:
        return math.sqrt(max(radius * radius - x * x, 0.0))

    def under_arc(x: float) -> float:
        return (x * height(x) + radius * radius * math.asin(min(x / radius, 1.0))) / 2

    full, end = (min(max(height(y), left), right) for y in (top, bottom))
    arc = under_arc(end) - under_arc(full) - bottom * (end - full)
    return (full - left) * (top - bottom) + max(arc, 0.0)


# Of kernels from transfer functions: frequencies per cycle in a pixel, up to how many cycles, and the unit of entries.
FREQUENCIES, HIGHEST, UNITS = 256, 4, 2**40


@lru_cache(maxsize=16)
def transferred(
    size: int,
    jitter: tuple[float, float],
    defocus: float | None = None,
    aperture: float | None = None,
    turbulence: float | None = None,
) -> Matrix:
    """What a point becomes where light is passed on by H(u, v), with u and v in cycles per pixel.

    H is the product of exp(-2 pi^2 (across^2 u^2 + down^2 v^2)) for a jitter of the line of sight with two standard
    deviations, exp(-pi^2 / 4 defocus^2 r^2) with r^2 = u^2 + v^2, exp(-3.44 (r / turbulence)^(5/3)) for long exposures,
    and 2 / pi (arccos s - s sqrt(1 - s^2)) with s = r / aperture up to 1, beyond which it is 0. An entry is the
    integral of H cos(2 pi u x) cos(2 pi v y) at a pixel's centre (x, y), by the trapezoid rule.
    Reference: Holst, "Electro-Optical Imaging System Performance"; pyBSM has the same formulas.
    """
    import numpy as np

    steps = np.arange(FREQUENCIES * HIGHEST + 1)
    across, down = (steps / FREQUENCIES) ** 2, (steps[:, None] / FREQUENCIES) ** 2
    away = across + down
    decay = 2 * np.pi**2 * (jitter[0] ** 2 * across + jitter[1] ** 2 * down)
    if defocus is not None:
        decay += np.pi**2 / 4 * defocus**2 * away
    if turbulence is not None:
        decay += 3.44 * (np.sqrt(away) / turbulence) ** (5 / 3)
    passed = np.exp(-decay)
    if aperture is not None:
        share = np.minimum(np.sqrt(away) / aperture, 1.0)
        passed *= 2 / np.pi * (np.arccos(share) - share * np.sqrt(1 - share**2))
    # All but the first and the last step stand for two frequencies, one on each side of 0.
    weights = np.where((steps == 0) | (steps == steps[-1]), 1, 2)[:, None]
    waves = weights * np.cos(2 * np.pi / FREQUENCIES * (np.outer(steps, range(size // 2 + 1)) % FREQUENCIES))
    corner = waves.T @ passed @ waves / FREQUENCIES**2
    # Rounded, they are the same on every machine. What is below 0 is an error of the integral.
    whole = np.maximum(np.rint(corner * UNITS), 0).astype(object)
    places = abs(np.arange(size) - size // 2)
    return normalised(tuple(tuple(map(Fraction, row)) for row in whole[np.ix_(places, places)].tolist()))


def resized(matrix: Matrix, scale: Fraction) -> Matrix:
    """A matrix whose pixels are so many times as large, each spread evenly over the pixels that it then covers."""
    if scale == 1:
        return matrix

    def covers(count: int) -> list[list[Fraction]]:
        """Which share of each pixel before falls into each one after."""
        after = math.ceil(count * scale)
        start = (after - count * scale) / 2
        ends = [(start + scale * place, start + scale * (place + 1)) for place in range(count)]
        pixels = [(Fraction(place), Fraction(place + 1)) for place in range(after)]
        return [[max(min(end, b) - max(first, a), Fraction(0)) / scale for first, end in ends] for a, b in pixels]

    rows, columns = covers(len(matrix)), covers(len(matrix[0]))
    wide = [[sum(a * b for a, b in zip(line, column, strict=True) if a and b) for column in columns] for line in matrix]
    pairs = [[(share, line) for share, line in zip(row, wide, strict=True) if share] for row in rows]
    return tuple(
        tuple(sum((share * line[place] for share, line in pair), Fraction(0)) for place in range(len(columns)))
        for pair in pairs
    )


def spread_matrix(spread: Matrix, file: str | Path = "") -> Matrix:
    """A point spread function as a kernel: divided by its sum, centred, and turned by 180 degrees."""
    if any(entry < 0 for row in spread for entry in row):
        raise InputError(f"{file}: what a point of light becomes has no negative entries; use the family custom")
    spread = normalised(spread, file)
    rows, columns = (_around_mass([sum(line) for line in lines]) for lines in (spread, zip(*spread, strict=True)))
    if max(len(rows), len(columns)) > LARGEST_SIZE:
        raise InputError(f"{file}: centred, the kernel is larger than {LARGEST_SIZE} x {LARGEST_SIZE}; crop it")
    entries = {(i, j): entry for i, row in enumerate(spread) for j, entry in enumerate(row)}
    return tuple(tuple(entries.get((i, j), Fraction(0)) for j in reversed(columns)) for i in reversed(rows))


def _around_mass(weights: Sequence[Fraction | int]) -> range:
    """An odd number of places around the centre of mass that take in everything but zeros."""
    centre = math.floor(sum(place * weight for place, weight in enumerate(weights)) + Fraction(1, 2))
    taken = [place for place, weight in enumerate(weights) if weight]
    reach = max(centre - taken[0], taken[-1] - centre)
    return range(centre - reach, centre + reach + 1)


def normalised(matrix: Matrix, file: str | Path = "") -> Matrix:
    """The matrix divided by its sum."""
    total = sum(map(sum, matrix), Fraction(0))
    if total == 0:
        raise InputError(f"{file}: the kernel sums to 0, so it cannot be normalised")
    return tuple(tuple(entry / total for entry in row) for row in matrix)
