"""The end kernels of each family. A family is its two ends; everything between is derived from them.

Reference: Brückner & Lomuscio, "Verification of Neural Networks Against Convolutional Perturbations via
Parameterised Kernels", AAAI 2025, Section 3 and appendix (even sizes included).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.kernels.files import LARGEST_SIZE, read_matrix
from shakeproof.kernels.kernel import Matrix, ParameterisedKernel, between, identity_matrix


def identity() -> ParameterisedKernel:
    """The kernel that changes nothing at any strength."""
    return between(identity_matrix(1, 1), identity_matrix(1, 1))


def box_blur(size: int) -> ParameterisedKernel:
    """From the identity to the mean over a size x size square."""
    _check_size(size)
    return _from_identity(tuple((Fraction(1, size * size),) * size for _ in range(size)))


def sharpen(size: int) -> ParameterisedKernel:
    """From the identity to twice the identity minus the mean over the diamond around the centre.

    At an even size the diamond surrounds the four centre entries (the drawing in the paper's appendix).
    """
    _check_size(size)
    centre = identity_matrix(size, size)
    reach = (size - 1) // 2

    def outside(i: int) -> int:
        """How far a row or column is from the middle (from the nearer of two middles at an even size)."""
        return max(reach - i, i - size // 2, 0)

    diamond = [[outside(i) + outside(j) <= reach and not centre[i][j] for j in range(size)] for i in range(size)]
    weight = Fraction(1, sum(map(sum, diamond)))
    return _from_identity(
        tuple(tuple(2 * centre[i][j] - weight * diamond[i][j] for j in range(size)) for i in range(size))
    )


def motion_blur(size: int, angle: float) -> ParameterisedKernel:
    """From the identity to the mean along a line through the centre.

    `angle` is a bearing in degrees: 0 is up, growing clockwise. Each entry of the end kernel is proportional to the
    line's length inside that pixel, the line being clipped to the size x size square.
    """
    _check_size(size)
    if not math.isfinite(angle):
        raise InputError(f"motion-blur: angle must be a finite number of degrees, not {angle}")
    right, down = _direction(angle)
    entries = [[Fraction(0)] * size for _ in range(size)]
    for row, column, share in _pixels_on_ray(size, right, down):
        entries[row][column] += share / 2
        entries[size - 1 - row][size - 1 - column] += share / 2
    return _from_identity(tuple(map(tuple, entries)))


def gaussian_blur(size: int, sigma: float) -> ParameterisedKernel:
    """From the identity to a Gaussian, sampled at the pixels' centres."""
    return _from_identity(_gaussian("gaussian-blur", size, sigma))


def unsharp(size: int, sigma: float) -> ParameterisedKernel:
    """From the identity to twice the identity minus a Gaussian: the image plus what a Gaussian blur takes from it."""
    blurred, same = _gaussian("unsharp", size, sigma), identity_matrix(size, size)
    rows = zip(same, blurred, strict=True)
    return _from_identity(tuple(tuple(2 * s - b for s, b in zip(*pair, strict=True)) for pair in rows))


def defocus(radius: float) -> ParameterisedKernel:
    """From the identity to a disk around the centre: an entry is proportional to the disk's area in its pixel."""
    if not 0.5 < radius <= LARGEST_SIZE / 2:
        raise InputError(
            f"defocus: radius must be above 0.5, or the disk is inside one pixel, and at most {LARGEST_SIZE / 2},"
            f" not {radius:g}"
        )
    reach = math.ceil(radius - 0.5)
    areas = [[Fraction(_area_in_pixel(radius, i, j)) for j in range(i + 1)] for i in range(reach + 1)]
    away = [abs(place - reach) for place in range(2 * reach + 1)]
    return _from_identity(normalised(tuple(tuple(areas[max(i, j)][min(i, j)] for j in away) for i in away)))


def custom_target(path: Path, normalise: bool, index: str | None = None) -> ParameterisedKernel:
    """From the identity to the kernel in a file, as it is there, or divided by its sum."""
    end = read_matrix(path, index)
    return _from_identity(normalised(end, path) if normalise else end)


def psf(path: Path, index: str | None = None) -> ParameterisedKernel:
    """From the identity to a measured point spread function: centred, normalised.

    The centre is the pixel nearest to the centre of mass: blur stays, the shift of the whole image goes. Empty borders
    are cut off, and what is shorter on one side of the centre is padded, so that both sides are odd. A point spread
    function is what a point becomes; to be cross-correlated with, it is turned by 180 degrees.
    """
    spread = read_matrix(path, index)
    if any(entry < 0 for row in spread for entry in row):
        raise InputError(f"{path}: what a point of light becomes has no negative entries; use the family custom")
    spread = normalised(spread, path)
    rows, columns = (_around_mass([sum(line) for line in lines]) for lines in (spread, zip(*spread, strict=True)))
    if max(len(rows), len(columns)) > LARGEST_SIZE:
        raise InputError(f"{path}: centred, the kernel is larger than {LARGEST_SIZE} x {LARGEST_SIZE}; crop it")
    entries = {(i, j): entry for i, row in enumerate(spread) for j, entry in enumerate(row)}
    return _from_identity(
        tuple(tuple(entries.get((i, j), Fraction(0)) for j in reversed(columns)) for i in reversed(rows))
    )


def normalised(matrix: Matrix, path: Path | None = None) -> Matrix:
    """The matrix divided by its sum."""
    total = sum(map(sum, matrix), Fraction(0))
    if total == 0:
        raise InputError(f"{path}: the kernel sums to 0, so it cannot be normalised")
    return tuple(tuple(entry / total for entry in row) for row in matrix)


def _from_identity(end: Matrix) -> ParameterisedKernel:
    return between(identity_matrix(len(end), len(end[0])), end)


def _gaussian(family: str, size: int, sigma: float) -> Matrix:
    """exp(-distance^2 / 2 sigma^2) at each pixel's centre, divided by the sum."""
    _check_size(size)
    if not 0 < sigma < math.inf:
        raise InputError(f"{family}: sigma must be a number of pixels above 0, not {sigma:g}")
    # distances from the centre in halves of a pixel; the nearest is taken off all, so that not all weights vanish
    squares = [(2 * i - size + 1) ** 2 - (size - 1) % 2 for i in range(size)]
    weights = [Fraction(math.exp(-square / 8 / sigma / sigma)) for square in squares]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return tuple(tuple(down * right for right in shares) for down in shares)


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


def _around_mass(weights: Sequence[Fraction | int]) -> range:
    """An odd number of places around the centre of mass that take in everything but zeros."""
    centre = math.floor(sum(place * weight for place, weight in enumerate(weights)) + Fraction(1, 2))
    taken = [place for place, weight in enumerate(weights) if weight]
    reach = max(centre - taken[0], taken[-1] - centre)
    return range(centre - reach, centre + reach + 1)


def _check_size(size: int) -> None:
    if not isinstance(size, int):
        raise InputError(f"kernel size {size!r} is not possible: use a whole number of Python's own, an int")
    if not 3 <= size <= LARGEST_SIZE:
        raise InputError(
            f"kernel size {size} is not possible: use an odd size from 3 or an even size from 4, up to {LARGEST_SIZE}"
        )


def reduced(angle: float) -> float:
    """The same line's angle in [0, 180). (A tiny negative angle modulo 180 rounds to 180 itself, hence twice.)"""
    return angle % 180 % 180


def _direction(angle: float) -> tuple[Fraction, Fraction]:
    """The bearing as (right, down); exact for the multiples of 45 degrees."""
    eighth, rest = divmod(reduced(angle), 45)
    if rest == 0:
        compass = ((0, -1), (1, -1), (1, 0), (1, 1))
        right, down = compass[int(eighth)]
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
        rows, columns = _cells(half + middle * down), _cells(half + middle * right)
        for row in rows:
            for column in columns:
                yield row, column, (after - before) / end / (len(rows) * len(columns))


def _cells(position: Fraction) -> list[int]:
    """The unit cell(s) holding a coordinate: two of them when it lies on a grid line."""
    cell = math.floor(position)
    return [cell - 1, cell] if cell == position else [cell]
