"""Curves of kernels as chains of chords, and a proof of how far the chords are from the curve, in the sum of absolute
differences of all entries.

Nodes are placed one after another, each as far from the one before as the bound of the chord between them stays below a
tolerance. The bounds follow from derivatives, or from what grows; nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from shakeproof.errors import InputError
from shakeproof.question.kernel_matrices import disk, gaussian, squared_distances
from shakeproof.question.perturbation import Matrix, ParameterisedKernel, centred, identity_matrix
from shakeproof.question.scale import MOST_SEGMENTS, ParameterScale

Bound = Callable[[float, float], float]
"""How far the curve is from the chord between two values, at most; more, the farther they are apart."""
# A node is placed as exactly as this share of its step. Its kernel is rounded to so many parts of 1.
STEP, UNITS = 1e-3, 2**40
# A disk inside one pixel changes nothing.
ONE_PIXEL = 0.5


def widening_gaussian(size: int, start: float, end: float, tolerance: float) -> ParameterisedKernel:
    """From one standard deviation to a larger one; 0 is the identity."""

    def kernel(sigma: float) -> Matrix:
        return gaussian(size, sigma) if sigma else identity_matrix(size, size)

    nodes = _nodes(start, end, tolerance, lambda a, b: gaussian_bound(size, a, b) + _off(size))
    return _chords("sigma", kernel, nodes, tolerance)


def _off(size: int) -> float:
    """What rounding may add to a distance: of each entry to half a unit, of all of them again in the middle, and less
    than that in float64.
    """
    return 4 * size * size / UNITS


def gaussian_bound(size: int, start: float, end: float) -> float:
    """The kernel is w x w, with weights w_i = exp(-u s_i) / Z, of the squared distances s_i, and u = 1 / (2 sigma^2).

    So dw/du = -w (s - E s) and d^2w/du^2 = w ((s - E s)^2 - Var s), whose absolute values add up to at most 2 E s (or
    the root of E s^2) and 2 E s^2. Both means grow with sigma, and so are largest at the end of the step; du/dsigma =
    -sigma^-3 and d^2u/dsigma^2 = 3 sigma^-4 are at its start. With M for all of the kernel's second derivative, the
    chord is off by M (end - start)^2 / 8. From sigma = 0, both curve and chord are near the identity: the weight in the
    middle only falls.
    """
    squares = [square / 4 for square in squared_distances(size)]
    weights = [math.exp(-square / 2 / end / end) for square in squares]
    total = math.fsum(weights)
    if not start:
        middle = math.fsum(weight for weight, square in zip(weights, squares, strict=True) if not square) / total
        return 4 * (1 - middle * middle)
    mean, mean_square = (
        math.fsum(weight * square**power for weight, square in zip(weights, squares, strict=True)) / total
        for power in (1, 2)
    )
    away = min(2 * mean, math.sqrt(mean_square))
    first, second = away / start**3, 2 * mean_square / start**6 + 3 * away / start**4
    return (2 * second + 2 * first * first) * (end - start) ** 2 / 8


def widening_disk(start: float, end: float, tolerance: float, size: int | None = None) -> ParameterisedKernel:
    """From one radius to a larger one; up to half a pixel, the disk is inside one."""
    side = size or len(disk(end))
    if side < len(disk(end)) or side % 2 == 0:
        raise InputError(
            f"defocus: size must be odd, and at least {len(disk(end))} for a radius of {end:g}, not {size}"
        )

    def kernel(radius: float) -> Matrix:
        return centred(disk(radius) if radius > ONE_PIXEL else identity_matrix(1, 1), side, side)

    nodes = [start] if start < ONE_PIXEL else []
    nodes += _nodes(max(start, ONE_PIXEL), end, tolerance, lambda a, b: disk_bound(a, b) + _off(side))
    return _chords("radius", kernel, nodes, tolerance)


def disk_bound(start: float, end: float) -> float:
    """Of each pixel, the disk covers an area that only grows with the radius.

    Say that the disk has grown by a share s of all that it grows by in the step, G = pi (end^2 - start^2). If each
    pixel had grown by the same share, that would be a place on the chord: s of the growth of some pixels is missing in
    it, 1 - s of that of others is too much, so it differs by at most 2 s (1 - s) G <= G / 2 from the disk. Kernels are
    that divided by the area of the disk.

    But the chord is at the radius's share of the way, not at this place. These shares differ by at most
    2 end^2 / (start (start + end)) - 1, and the ends of the chord by 2 (1 - start^2 / end^2).
    """
    by_area = (end * end - start * start) / (2 * start * start)
    return by_area + (2 * end * end / (start * (start + end)) - 1) * 2 * (1 - start * start / (end * end))


def _nodes(start: float, end: float, tolerance: float, bound: Bound) -> list[float]:
    """From start to end, each so far from the one before that the chord's bound is within the tolerance."""
    nodes = [start]
    while nodes[-1] < end:
        if len(nodes) > MOST_SEGMENTS:
            raise InputError(
                f"tolerance {tolerance:g} takes more than {MOST_SEGMENTS} segments; allow more, or ask about less"
            )
        nodes.append(_farthest(nodes[-1], end, lambda value: bound(nodes[-1], value) <= tolerance))
    return nodes


def _farthest(start: float, end: float, is_near: Callable[[float], bool]) -> float:
    """About the largest value that is near: never one that is not."""
    if is_near(end):
        return end
    low, high = start, end
    while high - low > STEP * max(low - start, math.ulp(start)):
        middle = (low + high) / 2
        low, high = (middle, high) if is_near(middle) else (low, middle)
    if not start < low:
        raise InputError("the tolerance is too small for float64; allow more")
    return low


def _chords(
    name: str, kernel: Callable[[float], Matrix], nodes: Sequence[float], tolerance: float
) -> ParameterisedKernel:
    scale = ParameterScale.along(name, "pixels", map(Fraction, nodes), distance=tolerance)
    return ParameterisedKernel.through([_rounded(kernel(node)) for node in nodes], scale, kernel)


def _rounded(matrix: Matrix) -> Matrix:
    """To numbers that are small as fractions; what the sum is off by goes to the middle."""
    rounded = [[Fraction(round(entry * UNITS), UNITS) for entry in row] for row in matrix]
    rest = 1 - sum(map(sum, rounded))
    middle = identity_matrix(len(matrix), len(matrix[0]))
    return tuple(tuple(a + rest * b for a, b in zip(*rows, strict=True)) for rows in zip(rounded, middle, strict=True))
