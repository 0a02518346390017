"""Rows along lines: which are to be made from others, where breaks put new ones, and how they are made."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.operators import Breaks

FEW_ROWS = 12


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
    z, (segment, fraction, height, neuron) = plan.z, breaks
    at = z[segment] + fraction * (z[segment + 1] - z[segment])
    at = torch.minimum(torch.maximum(at, z[segment]), z[segment + 1])
    order = at.argsort()
    order = order[segment[order].argsort(stable=True)]
    at, segment, fraction, height = at[order], segment[order], fraction[order], height[order]
    inside = (at > z[segment]) & (at < z[segment + 1])
    fresh = inside.clone()
    fresh[1:] &= (at[1:] != at[:-1]) | (segment[1:] != segment[:-1])

    rows, kept = torch.arange(len(z), device=z.device), segment[fresh]
    before = torch.bincount(kept, minlength=len(z)).cumsum(0).roll(1)
    before[0] = 0
    old, new = rows + before, kept + 1 + torch.arange(len(kept), device=z.device)

    def merged(of_old: Tensor, of_new: Tensor) -> Tensor:
        column = of_old.new_empty(len(of_old) + len(of_new))
        column[old] = of_old
        column[new] = of_new
        return column

    made = Plan(
        merged(plan.line, plan.line[kept]),
        merged(z, at[fresh]),
        merged(rows, kept),
        merged(torch.zeros_like(z), fraction[fresh]),
        z.new_zeros(len(z) + len(kept)),
        merged(torch.full_like(plan.source, -1), torch.full_like(kept, -1) if neuron is None else neuron[order][fresh]),
        merged(torch.zeros_like(z), height[fresh]),
    )
    missed = ~fresh
    if bool(missed.any()):
        at_end = at == z[segment + 1]
        number = fresh.cumsum(0) - 1  # of the break that an equal one was merged with
        row = (
            torch.where(inside, new[number], old[segment + at_end.long()]) if len(new) else old[segment + at_end.long()]
        )
        there = torch.where(inside, made.fraction[row], at_end.to(z.dtype))
        gap = ((fraction - there).abs() * height)[missed]
        for side in (row[missed], (row[missed] - 1).clamp(min=0)):
            made.gap.index_add_(0, side, gap)
        made.neuron[row[missed]] = -1
    return made


def make_rows(plan: Plan, rows: Tensor) -> Tensor:
    """The planned rows of one value: copies of its rows, and points on the chords between them."""
    flat = rows.reshape(len(rows), -1)
    first, last = int(plan.source[0]), min(int(plan.source[-1]) + 1, len(rows) - 1)
    new = plan.fraction.nonzero().squeeze(1)
    if last - first < FEW_ROWS and len(new):
        # Many points on few segments: a product with two weights a row writes each entry once.
        weights = rows.new_zeros(len(plan.z), last - first + 1)
        weights.scatter_(1, (plan.source - first).unsqueeze(1), (1 - plan.fraction).unsqueeze(1))
        weights[new, plan.source[new] + 1 - first] = plan.fraction[new]
        made = weights @ flat[first : last + 1]
    else:
        made = flat.index_select(0, plan.source)
        if len(new):
            start, end = (flat.index_select(0, plan.source[new] + step) for step in (0, 1))
            made.index_copy_(0, new, end.sub_(start).mul_(plan.fraction[new].unsqueeze(1)).add_(start))
    return made.view(-1, *rows.shape[1:])
