"""Rows along lines: which are to be made from others, where breaks put new ones, and how they are made."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.operators import Breaks

FEW_ROWS = 12
# Rows are put between others in blocks of so many bytes, which stay in the cache.
BETWEEN_BYTES = 2**18


class Plan(NamedTuple):
    """Rows to be made from the rows of a window: row k lies on segment source[k], at `fraction` of it, at z.

    `gap` is what a bend that falls together with a row may add to the error of the segments on either side. Where a row
    is due to one neuron alone, that is its `neuron`, and how sharply it bends its `height`; -1 elsewhere.
    """

    line: Tensor
    z: Tensor
    source: Tensor
    fraction: Tensor
    gap: Tensor
    neuron: Tensor
    height: Tensor

    @staticmethod
    def of(line: Tensor, z: Tensor) -> Plan:
        """Rows as they are."""
        nothing, number = torch.zeros_like(z), torch.arange(len(z), device=z.device)
        return Plan(line, z, number, nothing, nothing, torch.full_like(number, -1), nothing)

    def part(self, start: int, end: int) -> Plan:
        return Plan(*(column[start:end] for column in self))

    def only(self, which: Tensor) -> Plan:
        """Those rows of a mask, or with some numbers."""
        return Plan(*(column[which] for column in self))

    @property
    def cut(self) -> Tensor:
        """Which rows are at the start or the end of a part of a segment that new rows cut: each one's own part."""
        new = self.fraction > 0
        new[:-1] |= new[1:].clone()
        return new

    def of_lines(self, open_lines: Tensor) -> Plan:
        """Only the rows on lines that are still open (lines,)."""
        keep = open_lines[self.line]
        return self if bool(keep.all()) else self.only(keep)


def insert(plan: Plan, breaks: Breaks) -> Plan:
    """The rows of a window together with its breaks, in order.

    A break that falls on an end of its segment, or on another break, adds nothing: no segment of length zero. By what
    fraction it is missed says how much the output bends between rows, a gap.
    """
    z, neuron = plan.z, torch.full_like(breaks.segment, -1) if breaks.neuron is None else breaks.neuron
    start, end = z.index_select(0, breaks.segment), z.index_select(0, breaks.segment + 1)
    at = torch.addcmul(start, breaks.fraction, end - start).clamp_(start, end)
    inside = (at > start) & (at < end)
    order = at.argsort()
    order = order[breaks.segment[order].argsort(stable=True)]
    at, inside, neuron = at[order], inside[order], neuron[order]
    segment, fraction, height = (column[order] for column in breaks[:3])
    fresh = inside.clone()
    fresh[1:] &= (at.diff() != 0) | (segment.diff() != 0)
    all_fresh = bool(fresh.all())

    kept = segment if all_fresh else segment[fresh]
    source = torch.repeat_interleave(torch.bincount(kept, minlength=z.shape[0]) + 1)
    new = torch.zeros_like(source, dtype=torch.bool)
    torch.eq(source[1:], source[:-1], out=new[1:])
    nothing = z.new_zeros(3, source.shape[0])

    def merged(of_old: Tensor, of_new: Tensor) -> Tensor:
        return of_old.masked_scatter_(new, of_new if all_fresh else of_new[fresh])

    made = Plan(
        line=plan.line[source],
        z=merged(z[source], at),
        source=source,
        fraction=merged(nothing[0], fraction),
        gap=nothing[1],
        neuron=merged(torch.full_like(source, -1), neuron),
        height=merged(nothing[2], height),
    )
    if not all_fresh:
        _add_gaps(made, new, fresh, Breaks(segment, fraction, height), inside, at == z[segment + 1])
    return made


def _add_gaps(made: Plan, new: Tensor, fresh: Tensor, breaks: Breaks, inside: Tensor, at_end: Tensor) -> None:
    """What breaks that have no row of their own, of all in order, add to the segments beside the row they fall on.

    `inside` says that it is that of the break before, at `at_end` that it is the end of their segment.
    """
    missed = ~fresh
    number = (fresh.cumsum(0) - 1)[missed].clamp(min=0)
    segment, fraction, height = (column[missed] for column in breaks[:3])
    inside, at_end = inside[missed], at_end[missed]
    row = (~new).nonzero().squeeze(1)[segment + at_end.long()]
    if bool(inside.any()):
        row = torch.where(inside, new.nonzero().squeeze(1)[number], row)
    there = torch.where(inside, made.fraction[row], at_end.to(fraction.dtype))
    gap = (fraction - there).abs() * height
    for side in (row, (row - 1).clamp(min=0)):
        made.gap.index_add_(0, side, gap)
    made.neuron[row] = -1


def make_rows(plan: Plan, rows: Tensor) -> Tensor:
    """The planned rows of one value: copies of its rows, and points on the chords between them."""
    flat = rows.reshape(rows.shape[0], -1)
    new = plan.fraction.nonzero().squeeze(1)
    if not new.shape[0]:
        return flat.index_select(0, plan.source).view(-1, *rows.shape[1:])
    first, last = int(plan.source[0]), min(int(plan.source[-1]) + 1, rows.shape[0] - 1)
    if last - first < FEW_ROWS:
        # Many points on few segments: a product with two weights a row writes each entry once.
        weights = rows.new_zeros(plan.z.shape[0], last - first + 1)
        weights.scatter_(1, (plan.source - first).unsqueeze(1), (1 - plan.fraction).unsqueeze(1))
        weights[new, plan.source[new] + 1 - first] = plan.fraction[new]
        made = weights @ flat[first : last + 1]
    else:
        made = flat.index_select(0, plan.source)
        source, fraction = plan.source[new], plan.fraction[new].unsqueeze(1)
        step = max(1, BETWEEN_BYTES // (8 * flat.shape[1]))
        for place, number, share in zip(new.split(step), source.split(step), fraction.split(step), strict=True):
            start, end = flat.index_select(0, number), flat.index_select(0, number + 1)
            made.index_copy_(0, place, end.sub_(start).mul_(share).add_(start))
    return made.view(-1, *rows.shape[1:])
