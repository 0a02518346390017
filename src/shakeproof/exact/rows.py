"""Rows along lines: which are to be made from others, where breaks put new ones, and how they are made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.operators import Breaks

# Points between so few rows are a product with two weights each; points of so few entries, what takes the fewest steps.
FEW_ROWS, FEW_ENTRIES = 12, 2**15


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
    # what is no number falls on the start; its gap is none either
    at = torch.fmin(torch.fmax(torch.addcmul(start, breaks.fraction, end - start), start), end)
    at, order = torch.cat([z, at]).sort(stable=True)  # a row comes before the breaks that fall on it
    several = bool(plan.line[0] != plan.line[-1])
    if several:  # z begins anew with each line
        line = torch.cat([plan.line, plan.line.index_select(0, breaks.segment)]).index_select(0, order)
        by_line = line.argsort(stable=True)
        at, order = at.index_select(0, by_line), order.index_select(0, by_line)
    source = (order < z.shape[0]).cumsum(0) - 1
    nothing = torch.zeros_like(z)

    def merged(of_rows: Tensor, of_breaks: Tensor) -> Tensor:
        return torch.cat([of_rows, of_breaks]).index_select(0, order)

    made = Plan(
        line=plan.line.index_select(0, source),
        z=at,
        source=source,
        fraction=merged(nothing, breaks.fraction),
        gap=torch.zeros_like(at),
        neuron=merged(torch.full_like(plan.line, -1), neuron),
        height=merged(nothing, breaks.height),
    )
    falls = (at[1:] == at[:-1]) & (order[1:] >= z.shape[0])  # not a row: a line may have no length
    if several:
        falls &= made.line[1:] == made.line[:-1]
    if not bool(falls.any()):
        return made
    falls = functional.pad(falls, (1, 0))
    return _with_gaps(made, falls, Breaks(*(column[order[falls] - z.shape[0]] for column in breaks[:3])))


def _with_gaps(plan: Plan, falls: Tensor, fallen: Breaks) -> Plan:
    """The same without the breaks that fall on the row before them, which are gaps of the segments beside it."""
    row = (~falls).cumsum(0)[falls] - 1
    segment, fraction, height = fallen[:3]
    made = plan.only(~falls)
    gap = (made.source[row] - segment + made.fraction[row] - fraction).abs() * height
    for side in (row, (row - 1).clamp(min=0)):
        made.gap.index_add_(0, side, gap)
    made.neuron[row] = -1
    return made


def make_rows(plan: Plan, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The planned rows of values (by number): rows of theirs, and points on the chords between them.

    They may be what was given, where these are all of their rows and no others.
    """
    is_new = plan.fraction > 0
    count = plan.source.shape[0]
    if count * sum(rows[0].numel() for rows in values.values()) < FEW_ENTRIES:
        after = plan.source + is_new
        return {number: _between(rows, plan.source, after, plan.fraction) for number, rows in values.items()}
    new = is_new.nonzero().squeeze(1)
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


def _between(rows: Tensor, source: Tensor, after: Tensor, fraction: Tensor) -> Tensor:
    """Points at some fractions of the way from rows to those after them; rows themselves, where that is nothing."""
    start, end = rows.index_select(0, source), rows.index_select(0, after)
    return torch.addcmul(start, end.sub_(start), fraction.view(-1, *[1] * (rows.dim() - 1)))


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(rows.shape[0], -1)


def _like(rows: Tensor, flat: Tensor) -> Tensor:
    return flat.view(-1, *rows.shape[1:])
