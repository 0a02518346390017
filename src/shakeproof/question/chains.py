"""Paths with a parameter of their own: the kernels at which their segments meet, in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import accumulate, pairwise

from shakeproof.question.kernel_matrices import direction
from shakeproof.question.perturbation import Matrix, ParameterisedKernel
from shakeproof.question.scale import ParameterScale

Place = tuple[int, int]
"""How many pixels below and to the right of the middle."""
HALF = Fraction(1, 2)


def growing_line(angle: float, upto: float) -> ParameterisedKernel:
    """The mean along a line through the middle whose length grows from 0 to `upto` pixels.

    Each entry is the share of the line in its pixel. With a(t) for the length of the line in a pixel, up to t from the
    middle, it is a(t) / t. Until the line enters the next pixel, a' is 0 or 1: so a(t) / t is affine in 1 / t, exactly.
    Segments meet where it enters the next one, at odd halves across.
    """
    right, down = direction(angle)
    unit = Fraction(math.hypot(right, down))  # of a diagonal, steps are not of length 1
    end = Fraction(upto) / unit / 2
    ends = {end}
    for component in filter(None, map(abs, (right, down))):
        ends |= {
            (k + HALF) / component for k in range(math.ceil(end * component + HALF)) if (k + HALF) / component < end
        }
    parts = []
    for before, after in pairwise([Fraction(0), *sorted(ends)]):
        row, column = (math.floor((before + after) / 2 * component + HALF) for component in (down, right))
        parts.append({(row, column): after - before})
    kernels: list[dict[Place, Fraction]] = [{(0, 0): Fraction(1)}]
    for length, along in zip(sorted(ends), accumulate(parts, _added), strict=True):
        both = _added(along, {(-row, -column): share for (row, column), share in along.items()})
        kernels.append({place: share / length / 2 for place, share in both.items()})
    scale = ParameterScale.along(
        "length", "pixels", (2 * unit * t for t in [Fraction(0), *sorted(ends)]), reciprocal=True
    )
    return ParameterisedKernel.through(_matrices(kernels), scale)


def _added(first: dict[Place, Fraction], second: dict[Place, Fraction]) -> dict[Place, Fraction]:
    return first | {place: first.get(place, Fraction(0)) + share for place, share in second.items()}


def _matrices(kernels: Iterable[dict[Place, Fraction]]) -> list[Matrix]:
    """Kernels by their places as matrices of one size, whose middle is (0, 0)."""
    several = list(kernels)
    down, right = (max(abs(place[axis]) for kernel in several for place in kernel) for axis in (0, 1))
    rows, columns = range(-down, down + 1), range(-right, right + 1)
    zero = Fraction(0)
    return [tuple(tuple(kernel.get((row, column), zero) for column in columns) for row in rows) for kernel in several]
