"""What strengths from 0 to 1 mean: the values of a path's own parameter, in its own unit.

A chain is a path of several segments, x_0 -> x_1 -> ... -> x_n, each of them straight. They meet at strengths, the
`nodes` of its scale, at which the parameter has known values. A plain kernel is a chain of one segment, whose parameter
is the strength itself.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from shakeproof.errors import InputError, ProofError

Between = Literal["affine", "reciprocal", "cotangent"]
# In degrees: many times what float64's tangents may be off by.
ANGLES_OFF = 1e-10
# More segments than this are refused: each is a picture in memory.
MOST_SEGMENTS = 2000


@dataclass(frozen=True)
class ParameterScale:
    """The parameter `name` has `values` at the strengths `nodes`, the first of which is 0 and the last 1.

    Between two nodes, it is affine in the strength, or something else of it is. `reciprocal`: 1 / the value, as for
    means over a growing stretch. `cotangent`: that of the angle to the nearest axis, in degrees, as for lines that
    turn. Where a segment begins at 0, or goes across an axis, its picture stands still.

    Where the chain stands for a curve, `distance` bounds by how much the kernel at a value may differ from the curve's,
    in the sum of all entries; None where the chain is what is meant. `included`: what is meant is the curve, and all
    that is so near to the chain is part of what is proved.
    """

    name: str = "strength"
    unit: str = ""
    nodes: tuple[float, ...] = (0.0, 1.0)
    values: tuple[Fraction, ...] = (Fraction(0), Fraction(1))
    between: Between = "affine"
    distance: float | None = None
    included: bool = False

    def __post_init__(self) -> None:
        steps = [*pairwise(self.nodes)]
        same_length, ends = len(self.nodes) == len(self.values) > 1, (self.nodes[0], self.nodes[-1])
        if not same_length or ends != (0.0, 1.0) or not all(before < after for before, after in steps):
            raise ProofError("the segments of a chain do not cover all strengths from 0 to 1")
        directions = {after > before for before, after in pairwise(self.values)}
        if len(directions) > 1 or (self.between == "reciprocal" and (directions != {True} or self.values[0] < 0)):
            raise ProofError("a chain's parameter does not go one way")

    @staticmethod
    def along(
        name: str, unit: str, values: Iterable[Fraction], between: Between = "affine", distance: float | None = None
    ) -> ParameterScale:
        """A scale whose nodes are at the share of the way that the parameter has gone, as float64 has it."""
        several = tuple(values)
        if len(several) > MOST_SEGMENTS + 1:
            raise InputError(
                f"{name}: {len(several) - 1} segments are more than {MOST_SEGMENTS}; ask about a shorter path"
            )
        first, way = several[0], several[-1] - several[0]
        nodes = tuple(float((value - first) / way) for value in several)
        if not all(before < after for before, after in pairwise(nodes)):
            raise InputError(f"{name}: some segments are too short beside the others; leave them out")
        return ParameterScale(name, unit, nodes, several, between, distance)

    @property
    def segments(self) -> int:
        return len(self.nodes) - 1

    def place(self, strength: Fraction | float) -> tuple[int, Fraction]:
        """On which segment a strength is, and which share of it lies before."""
        segment = min(bisect_right(self.nodes, strength), self.segments) - 1
        start, end = map(Fraction, self.nodes[segment : segment + 2])
        return segment, (Fraction(strength) - start) / (end - start)

    def shares(self, strength: Fraction | float) -> list[Fraction]:
        """How much of each segment's change has been made."""
        segment, share = self.place(strength)
        return [Fraction(1)] * segment + [share] + [Fraction(0)] * (self.segments - segment - 1)

    def value(self, strength: Fraction | float) -> Fraction:
        """The parameter's value at a strength: exactly, but for angles between two nodes."""
        segment, share = self.place(strength)
        start, end = self.values[segment : segment + 2]
        if self.between == "reciprocal" and start:
            return 1 / (1 / start + share * (1 / end - 1 / start))
        if self.between == "cotangent" and 0 < share < 1:
            axis = 90 * round((start + end) / 180)
            first, last = (math.tan(math.radians(float(value - axis))) for value in (start, end))
            if first * last > 0:
                turned = math.degrees(math.atan(1 / (1 / first + float(share) * (1 / last - 1 / first))))
                return axis + Fraction(turned)
        return start + share * (end - start)

    def reached(self, strength: float) -> float:
        """The value at a strength, rounded towards the value at 0: what is proved up to there is proved up to here."""
        return self._rounded(strength, -1)

    def passed(self, strength: float) -> float:
        """The same, rounded away from the value at 0: what is lost there is lost by here."""
        return self._rounded(strength, 1)

    def _rounded(self, strength: float, side: int) -> float:
        towards = side if self.values[-1] > self.values[0] else -side
        between = self.between == "cotangent" and strength not in self.nodes
        exact = self.value(strength) + (towards * Fraction(ANGLES_OFF) if between else 0)
        low, high = sorted((self.values[0], self.values[-1]))
        exact = min(max(exact, low), high)
        nearest = float(exact)
        beside = nearest < exact if towards > 0 else nearest > exact
        return math.nextafter(nearest, math.inf * towards) if beside else nearest


STRENGTH = ParameterScale()
