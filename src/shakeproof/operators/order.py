"""What margins are made of: differences of outputs, and the number of a given rank among others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shakeproof.linalg import ABOVE, UNIT, Check
from shakeproof.operators.base import (
    Affine,
    Breaks,
    Cells,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
    envelope_breaks,
)
from shakeproof.operators.elementwise import TwoLines

# So many pairs of chords are compared at once.
PAIRS_AT_ONCE = 2**22
# Where two chords cross, others may be as high but for so many units.
AS_HIGH = 16


@dataclass(frozen=True, eq=False)
class Pairs(Affine):
    """Sums of two entries each: weight (outputs, 2) times the entries at `places` (outputs, 2), plus bias (outputs)."""

    rounds_as_ieee = True

    weight: Tensor
    places: Tensor
    bias: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        first, second = (inputs[0].index_select(-1, places) for places in self.places.unbind(1))
        return first * self.weight[:, 0] + second * self.weight[:, 1] + self.bias

    def to(self, where: torch.device | torch.dtype) -> Pairs:
        places = self.places.to(where) if isinstance(where, torch.device) else self.places
        return replace(self, weight=self.weight.to(where), places=places, bias=self.bias.to(where))

    def terms(self, *inputs: torch.Size) -> int:
        return 3

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs(), bias=torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        pulled = coefficients.new_zeros(*coefficients.shape[:-1], shapes[0][-1])
        for side in range(2):
            pulled.index_add_(-1, self.places[:, side], coefficients * self.weight[:, side])
        return (pulled,)

    def norm(self, shape: torch.Size, check: Check) -> float:
        """The root of the largest row sum times the largest column sum, both of absolute values."""
        size = self.weight.abs()
        columns = size.new_zeros(shape[-1]).index_add_(0, self.places.flatten(), size.flatten())
        return float((size.sum(1).max() * columns.max()).sqrt() * ABOVE)


@dataclass(frozen=True, eq=False)
class Ranked(PiecewiseLinear):
    """Along the last axis, the number that has a `rank` when all are put in order: 1 is the least. The axis stays."""

    rounds_as_ieee = True

    rank: int

    def apply(self, *inputs: Tensor) -> Tensor:
        return _ranked(inputs[0], self.rank)

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        """Where the number of this rank passes from one chord to another: only where two chords of it cross."""
        rows = x.reshape(len(x), -1, x.shape[-1])
        left, right = rows[:-1], rows[1:]
        low, high = torch.minimum(left, right), torch.maximum(left, right)
        least, most = (_ranked(side, self.rank) for side in (low, high))
        may_be = (high >= least) & (low <= most)  # the others are always below, or always above
        segment, group = ((may_be.sum(2) > 1) & joined.unsqueeze(1)).nonzero(as_tuple=True)
        chosen = left[segment, group], right[segment, group]
        if self.rank in (1, x.shape[-1]):
            sign = 1 if self.rank > 1 else -1
            bends = envelope_breaks(*(sign * side for side in chosen))
        else:
            below = (high < least)[segment, group].sum(1)
            bends = _crossings(*chosen, may_be[segment, group], self.rank - below)
        return bends._replace(segment=segment[bends.segment])

    def relaxed(self, *ranges: Range) -> Relaxation:
        """The entry that has the rank in the middle of the ranges, and how far the one that has it may be from that; or
        a constant, where that is closer.
        """
        (within,) = ranges
        place = within.centre.argsort(-1)[..., self.rank - 1 : self.rank]
        low, high = (side.gather(-1, place) for side in within)
        # the entry of this rank, less the chosen one, is of this rank among the differences
        beside = Range(within.low - high, within.high - low)
        itself = torch.zeros_like(low)
        moved = Range(*(_ranked(side.scatter(-1, place, itself), self.rank) for side in beside))
        image = Range(*(_ranked(side, self.rank) for side in within))
        follows = moved.high - moved.low <= image.high - image.low
        least, greatest = (torch.where(follows, one, other) for one, other in zip(moved, image, strict=True))
        slope, gap = follows.to(least.dtype), Range(least, greatest)
        lines = TwoLines(slope, gap.centre, gap.radius, (slope, least), (slope, greatest))
        return RankedEntry(lines, image, place, within.low.shape[-1])

    def workspace(self, *inputs: torch.Size) -> int:
        return 8 * 8 * inputs[0].numel()


def _ranked(x: Tensor, rank: int) -> Tensor:
    """NaN where one of them is."""
    if rank == 1:
        return x.amin(-1, keepdim=True)
    if rank == x.shape[-1]:
        return x.amax(-1, keepdim=True)
    ordered = x.sort(-1).values
    return torch.where(ordered[..., -1:].isnan(), torch.nan, ordered[..., rank - 1 : rank])


def _crossings(left: Tensor, right: Tensor, may_be: Tensor, rank: Tensor) -> Breaks:
    """Where two chords of a group cross and have a rank there, all (p, k) but rank (p): one among those that `may_be`.

    Between two such places, whatever has the rank keeps it: to lose it, it would have to cross another.
    """
    count = int(may_be.sum(1).max()) if len(may_be) else 0
    order = may_be.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :count]
    left, right, may_be = (part.gather(1, order) for part in (left, right, may_be))
    first, second = torch.triu_indices(count, count, 1, device=left.device)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    step = max(1, PAIRS_AT_ONCE // max(1, len(first)))
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        before, after = (side[part][:, first] - side[part][:, second] for side in (left, right))
        crosses = (before * after < 0) | ((before > 0) & (after < 0)) | ((before < 0) & (after > 0))
        crosses &= may_be[part][:, first] & may_be[part][:, second]
        group, pair = crosses.nonzero(as_tuple=True)
        before, after = before[group, pair], after[group, pair]
        fraction, group = before / (before - after), group + start
        heights = torch.where(may_be[group], torch.lerp(left[group], right[group], fraction.unsqueeze(1)), torch.inf)
        crossing = heights.gather(1, first[pair].unsqueeze(1))
        ends = torch.maximum(left[group].abs(), right[group].abs())
        as_high = AS_HIGH * UNIT * torch.where(may_be[group], ends, 0.0).amax(1, keepdim=True)
        under, up_to = (heights < crossing - as_high).sum(1), (heights <= crossing + as_high).sum(1)
        there = (under < rank[group]) & (rank[group] <= up_to) & (fraction > 0) & (fraction < 1)
        kept.append((group[there], fraction[there], (after - before).abs()[there]))
    if not kept:
        return Breaks(rank, left.new_empty(0), left.new_empty(0))
    segment, fraction, height = map(torch.cat, zip(*kept, strict=True))
    return Breaks(segment, fraction, height)


@dataclass(frozen=True, eq=False)
class RankedEntry(Relaxation):
    """The number of a rank, enclosed by lines over one chosen entry of its `length` numbers."""

    lines: TwoLines
    limits: Range
    place: Tensor
    length: int

    def points(self, *values: Tensor) -> Tensor:
        (x,) = values
        return self.lines.points(x.gather(-1, self.place.expand(len(x), *self.place.shape)))

    def spread(self, *radii: Tensor) -> Tensor:
        return self.lines.spread(radii[0].gather(-1, self.place))

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        (pulled,), constant = self.lines.pull(coefficients, cell)
        place = self.place[cell].expand_as(pulled)
        return (pulled.new_zeros(*pulled.shape[:-1], self.length).scatter_(-1, place, pulled),), constant

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        (x,) = values
        picked = x.gather(-1, self.place.expand(*x.shape[:-1], 1))
        return self.lines.attained(coefficients, picked)

    def image(self, *ranges: Range) -> Range | None:
        return self.limits
