"""Twofold rows along a line: where they bend, which new ones that makes, and how these are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.exact.twofold import Twofold, added, divided, moved
from shakeproof.operators import ABOVE, UNIT, Clip, PiecewiseLinear, Relu

SQUARE = UNIT * UNIT
# A neuron is off where it bends by so many units of SQUARE, of how far it goes and of its threshold.
OF_CROSSINGS = 64

Rows = Tensor | Twofold


class Places(NamedTuple):
    """Where rows are to be made: row k lies on segment source[k], at the share `fraction` of it, near z.

    `gap` is what bends at and beside a row add to what is off on either side of it.
    """

    z: Tensor
    source: Tensor
    fraction: Twofold
    gap: Tensor

    def part(self, rows: slice) -> Places:
        return Places(self.z[rows], self.source[rows], self.fraction.mapped(lambda x: x[rows]), self.gap[rows])


class Found(NamedTuple):
    """Breaks as `Breaks`, unordered; `off` is what the neuron is off by there, weighted as the `height` is."""

    segment: Tensor
    fraction: Twofold
    height: Tensor
    off: Tensor

    def taken(self, which: Tensor) -> Found:
        return Found(self.segment[which], self.fraction.mapped(lambda x: x[which]), self.height[which], self.off[which])


def breaks(operator: PiecewiseLinear, rows: Rows, weights: Tensor) -> Found:
    """Where an operator bends between rows that follow one another, with weights for the channels of its output."""
    if isinstance(rows, Twofold) and isinstance(operator, (Relu, Clip)):
        parts = [_crossings(rows, threshold, weights) for threshold in operator.thresholds]
        segment, high, low, height, off = (
            torch.cat(column) for column in zip(*((p[0], *p[1], *p[2:]) for p in parts), strict=True)
        )
        return Found(segment, Twofold(high, low), height, off)
    plain = high_part(rows)
    found = operator.breaks(plain, torch.ones(len(plain) - 1, dtype=torch.bool, device=plain.device))
    height = found.height * float(weights.max())
    return Found(found.segment, Twofold.of(found.fraction), height, torch.zeros_like(height))


def _crossings(rows: Twofold, threshold: float, weights: Tensor) -> Found:
    """Where neurons pass a threshold, between rows that follow one another."""
    high, low = rows.mapped(lambda x: x.flatten(1))
    above = (high if threshold == 0 else (high - threshold).add_(low)) > 0
    segment, neuron = (above[1:] ^ above[:-1]).nonzero(as_tuple=True)
    level = Twofold.of(torch.full_like(high[0, :1], -threshold))
    start, end = (added(Twofold(high[row, neuron], low[row, neuron]), level) for row in (segment, segment + 1))
    way = added(start, -end)
    fraction = divided(start, way)
    weight = weights[neuron % len(weights)]
    far = weight * (start.high.abs() + end.high.abs())
    found = Found(segment, fraction, 2 * far, OF_CROSSINGS * SQUARE * (far + weight * abs(threshold)))
    return found.taken((start.high != 0) & (end.high != 0))


def put_in(z: Tensor, found: Found) -> Places:
    """As `sweep.insert`: rows together with breaks, in order, and gaps for breaks that have no row of their own."""
    segment = found.segment
    at = z[segment] + found.fraction.high * (z[segment + 1] - z[segment])
    at = torch.minimum(torch.maximum(at, z[segment]), z[segment + 1])
    order = at.argsort()
    order = order[segment[order].argsort(stable=True)]
    at, found = at[order], found.taken(order)
    segment = found.segment
    inside = (at > z[segment]) & (at < z[segment + 1])
    fresh = inside.clone()
    fresh[1:] &= (at[1:] != at[:-1]) | (segment[1:] != segment[:-1])
    kept, count = segment[fresh], len(z)
    before = torch.bincount(kept, minlength=count).cumsum(0).roll(1)
    before[0] = 0
    old, new = torch.arange(count, device=z.device) + before, kept + 1 + torch.arange(len(kept), device=z.device)
    made = z.new_zeros(4, count + len(kept))  # z, both parts of fractions, gaps
    made[0, old], made[0, new] = z, at[fresh]
    made[1, new], made[2, new] = found.fraction.high[fresh], found.fraction.low[fresh]
    source = torch.empty(count + len(kept), dtype=torch.int64, device=z.device)
    source[old], source[new] = torch.arange(count, device=z.device), kept
    row = old[segment + (at == z[segment + 1]).long()]
    if len(new):
        row = torch.where(inside, new[(fresh.cumsum(0) - 1).clamp(min=0)], row)
    there = torch.where(inside, made[1, row], (at == z[segment + 1]).to(z.dtype))
    missed = (found.fraction.high - there) + (found.fraction.low - torch.where(inside, made[2, row], 0.0))
    gap = (missed.abs() * found.height * (~fresh) + found.off) * ABOVE
    for side in (row, (row - 1).clamp(min=0)):
        made[3].index_add_(0, side, gap)
    return Places(made[0], source, Twofold(made[1], made[2]), made[3])


def rows_at(plan: Places, rows: Rows, norm: Callable[[Tensor], Tensor]) -> tuple[Rows, Tensor]:
    """The rows of one value at given places: copies of its rows, and points on chords between them; and for each the
    norm of the difference of the rows that it lies between.
    """
    new = plan.fraction.high.nonzero().squeeze(1)
    parts = Twofold.of(rows).mapped(lambda x: x.flatten(1))
    start, end = (parts.mapped(lambda x: x.index_select(0, plan.source[new] + step)) for step in (0, 1))  # noqa: B023
    way = added(end, -start)
    between = moved(start, way, plan.fraction.mapped(lambda x: x[new].unsqueeze(1)))
    shape = high_part(rows).shape[1:]

    def put(old: Tensor, fresh: Tensor) -> Tensor:
        return old.index_select(0, plan.source).index_copy_(0, new, fresh).view(-1, *shape)

    ways = torch.zeros_like(plan.z).index_copy_(0, new, norm(way.high))
    if isinstance(rows, Twofold):
        return Twofold(*map(put, parts, between)), ways
    return put(parts.high, between.high), ways


def bent(operator: Relu | Clip, x: Twofold) -> Twofold:
    """A function that passes its input on between two limits, and is constant outside of them."""
    low, high = (operator.low, operator.high) if isinstance(operator, Clip) else (0.0, float("inf"))
    inside = (x.high if low == 0 else (x.high - low).add_(x.low)) > 0
    if high != float("inf"):
        inside &= (x.high - high).add_(x.low) < 0
    return Twofold(x.high.clamp(low, high), x.low * inside)


def high_part(rows: Rows) -> Tensor:
    return rows.high if isinstance(rows, Twofold) else rows


def of_segments(rows: Tensor) -> Tensor:
    """The larger of each row's and the next one's."""
    return torch.maximum(rows, torch.cat([rows[1:], rows[-1:]]))
