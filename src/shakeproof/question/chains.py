"""Paths with a parameter of their own: the kernels at which their segments meet, in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from shakeproof.errors import InputError
from shakeproof.question.kernel_matrices import direction, line_matrix
from shakeproof.question.perturbation import LARGEST_SIZE, Matrix, ParameterisedKernel, identity_matrix
from shakeproof.question.scale import ParameterScale
from shakeproof.question.trajectories import MotionSample

Place = tuple[int, int]
"""How many pixels below and to the right of the middle."""
HALF = Fraction(1, 2)
# All kernels of a chain have so many entries at most: some seconds of work.
MOST_ENTRIES = 500_000


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
    lengths = [2 * unit * t for t in (Fraction(0), *sorted(ends))]
    scale = ParameterScale.along("length", "pixels", lengths, "reciprocal")
    return ParameterisedKernel.through(_matrices(kernels), scale)


def turning_line(size: int, start: float, end: float, strength: Fraction) -> ParameterisedKernel:
    """Motion blur of one strength and of an odd size whose angle turns from `start` to `end`.

    In the eighth of a turn beside an axis, the line is (u, m u) with u from the middle to the border, and m the tangent
    of its angle to the axis. It enters the next row at u = (j + 1/2) / m, and another column at u = k + 1/2. As long as
    no two of these places pass each other, each entry is affine in 1 / m, exactly. Segments meet where two of them are
    the same: at m = (2 j + 1) / (2 k + 1). Before the first of them, 1 / size, nothing changes at all.
    """
    odd = range(1, size + 1, 2)
    tangents = {Fraction(p, q) for q in odd for p in odd if p <= q}
    low, high = sorted((start, end))
    directions = {}
    for quarter in range(math.floor(low / 90), math.ceil(high / 90) + 1):
        right, down = ((0, -1), (1, 0), (0, 1), (-1, 0))[quarter % 4]  # the axis; at its right hand is (-down, right)
        for tangent in (*tangents, *(-tangent for tangent in tangents)):
            turned = right - tangent * down, down + tangent * right
            directions[90 * quarter + math.degrees(math.atan(tangent))] = turned
    angles = [start, *sorted((angle for angle in directions if low < angle < high), reverse=start > end), end]
    identity = identity_matrix(size, size)
    kernels = []
    for angle in angles:
        line = line_matrix(size, *(directions.get(angle) or direction(angle)))
        rows = zip(identity, line, strict=True)
        kernels.append(tuple(tuple(a + strength * (b - a) for a, b in zip(*row, strict=True)) for row in rows))
    return ParameterisedKernel.through(
        kernels, ParameterScale.along("angle", "degrees", map(Fraction, angles), "cotangent")
    )


def exposed(samples: Sequence[MotionSample], upto: float) -> ParameterisedKernel:
    """The mean over an exposure that lasts from 0 to `upto` seconds, while the picture moves.

    A sample's place holds until the next one. So with W_j for the shift by sample j (bilinear between pixels), the sum
    A(T) of all that was seen in T seconds grows by W_j a second, from t_j to t_j+1: the mean A(T) / T = W_j + (A(t_j) -
    t_j W_j) / T is affine in 1 / T, exactly. Segments meet at the samples.
    """
    seen = [sample for sample in samples if float(sample.time) < upto]
    times = [*(sample.time for sample in seen), Fraction(upto)]
    parts = (
        {place: share * (end - sample.time) for place, share in _shift(sample)}
        for sample, end in zip(seen, times[1:], strict=True)
    )
    kernels = [dict(_shift(seen[0]))]
    for time, total in zip(times[1:], accumulate(parts, _added), strict=True):
        kernels.append({place: share / time for place, share in total.items()})
    return ParameterisedKernel.through(_matrices(kernels), ParameterScale.along("exposure", "s", times, "reciprocal"))


def _shift(sample: MotionSample) -> Iterator[tuple[Place, Fraction]]:
    """The kernel that moves a picture to a sample's place: what is seen here was as far up and to the left."""
    up, left = -sample.down, -sample.right
    for row, vertical in _beside(up):
        yield from (((row, column), vertical * horizontal) for column, horizontal in _beside(left))


def _beside(place: Fraction) -> Iterator[tuple[int, Fraction]]:
    """The whole numbers beside a place, and the share of each."""
    below = math.floor(place)
    yield below, 1 - (place - below)
    if place > below:
        yield below + 1, place - below


def _added(first: dict[Place, Fraction], second: dict[Place, Fraction]) -> dict[Place, Fraction]:
    return first | {place: first.get(place, Fraction(0)) + share for place, share in second.items()}


def _matrices(kernels: Iterable[dict[Place, Fraction]]) -> list[Matrix]:
    """Kernels by their places as matrices of one size, whose middle is (0, 0)."""
    several = list(kernels)
    down, right = (max(abs(place[axis]) for kernel in several for place in kernel) for axis in (0, 1))
    if 2 * max(down, right) + 1 > LARGEST_SIZE or len(several) * (2 * down + 1) * (2 * right + 1) > MOST_ENTRIES:
        what = f"{len(several)} kernels of {2 * down + 1} x {2 * right + 1}"
        raise InputError(f"a chain through {what} is too large; ask about a shorter one, or about fewer samples")
    rows, columns = range(-down, down + 1), range(-right, right + 1)
    zero = Fraction(0)
    return [tuple(tuple(kernel.get((row, column), zero) for column in columns) for row in rows) for kernel in several]
