"""Rows along lines: which are to be made from others, where breaks put new ones, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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
    z, neuron = plan.z, torch.full_like(breaks.segment, -1) if breaks.neuron is None else breaks.neuron
    start, end = z.index_select(0, breaks.segment), z.index_select(0, breaks.segment + 1)
    at = torch.addcmul(start, breaks.fraction, end - start).clamp_(start, end)
    inside = (at > start) & (at < end)
    order = at.argsort(stable=True)
    if plan.line[0] != plan.line[-1]:  # or they increase from segment to segment
        order = order[breaks.segment[order].argsort(stable=True)]
    at, inside, neuron = (column.index_select(0, order) for column in (at, inside, neuron))
    segment, fraction, height = (column.index_select(0, order) for column in breaks[:3])
    fresh = inside.clone()
    fresh[1:] &= (at[1:] != at[:-1]) | (segment[1:] != segment[:-1])
    all_fresh = bool(fresh.all())

    kept = segment if all_fresh else segment[fresh]
    source = torch.repeat_interleave(torch.bincount(kept, minlength=z.shape[0]) + 1)
    new = torch.zeros_like(source, dtype=torch.bool)
    torch.eq(source[1:], source[:-1], out=new[1:])
    nothing = z.new_zeros(3, source.shape[0])

    def merged(of_old: Tensor, of_new: Tensor) -> Tensor:
        return of_old.masked_scatter_(new, of_new if all_fresh else of_new[fresh])

    made = Plan(
        line=plan.line.index_select(0, source),
        z=merged(z.index_select(0, source), at),
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


def make_rows(plan: Plan, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The planned rows of values (by number): rows of theirs, and points on the chords between them.

    Where these are all of their rows and no others, they are what was given.
    """
    is_new = plan.fraction > 0
    new = is_new.nonzero().squeeze(1)
    count = plan.source.shape[0]
    if not new.shape[0]:
        return {
            number: rows if count == rows.shape[0] else rows.index_select(0, plan.source)
            for number, rows in values.items()
        }
    first, last = int(plan.source[0]), int(plan.source[-1]) + 1
    if last - first < FEW_ROWS:
        # Many points on few segments: a product with two weights a row writes each entry once.
        weights = plan.fraction.new_zeros(count, last - first + 1)
        weights.scatter_(1, (plan.source - first).unsqueeze(1), (1 - plan.fraction).unsqueeze(1))
        weights[new, plan.source[new] + 1 - first] = plan.fraction[new]
        few = slice(first, last + 1)
        return {number: _like(rows, weights[:, : len(rows[few])] @ _flat(rows[few])) for number, rows in values.items()}
    # Otherwise, a row of theirs has one part, and a point between two of them has two.
    parts = is_new + 1
    ends = parts.cumsum(0)
    second = ends[new] - 1
    index, share = plan.source.repeat_interleave(parts), (1 - plan.fraction).repeat_interleave(parts)
    index[second] += 1
    share[second] = plan.fraction[new]
    added = partial(functional.embedding_bag, index, offsets=ends - parts, mode="sum", per_sample_weights=share)
    return {number: _like(rows, added(weight=_flat(rows))) for number, rows in values.items()}


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(rows.shape[0], -1)


def _like(rows: Tensor, flat: Tensor) -> Tensor:
    return flat.view(-1, *rows.shape[1:])
