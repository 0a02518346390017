"""Rows along lines: where breaks put new ones, how they are made from others, and which are deferred.

Where one neuron alone crosses zero, a ReLU's output is a chord with a kink in that one entry. Behind an affine operator
it is a chord with a kink along what the operator makes of that entry: one column of a matrix, a few pixels of a
convolution. So only some of the new rows, the early ones, are multiplied by the products that follow the ReLU; the
others are deferred, and put between them behind the products, on chords with kinks. With f for fractions, a neuron that
crosses at f_j between early rows at f_a and f_b, going `way` on all of the segment, adds to the chord at f_k, times its
column,

    -way (min(f_j, f_k) - f_a) / (f_b - f_a) (f_b - max(f_j, f_k))

which is nothing at the early rows. A deferred row is off by what rounding makes of this sum: at most OF_DEFERRED units
of the chord's size and of all that kinks may add, in norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.graph import Graph, cached_per_graph
from shakeproof.linalg import places_of
from shakeproof.operators import ABOVE, BLOCK_BYTES, Affine, Breaks, Entries, Relu
from shakeproof.rounding import OF_CHORDS, RunningError, norm

# No more rows than this, less one, are deferred between two early ones. Beside what any row between two others is off
# by, six units of a chord are in the place on it and seven in the sum; of a column, seven in how much of it is added,
# eight in the sum, and some in its coefficients.
TOGETHER, OF_COEFFICIENTS, OF_DEFERRED = 8, 16, OF_CHORDS + 32
# Fewer multiplications than this are not worth the trouble.
LEAST_SPARED = 5e6


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

    rows = Plan(
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
        falls &= rows.line[1:] == rows.line[:-1]
    if not bool(falls.any()):
        return rows
    falls = functional.pad(falls, (1, 0))
    segment, fraction, height = (column[order[falls] - z.shape[0]] for column in breaks[:3])
    return _with_gaps(rows, falls, Breaks(segment, fraction, height))


def _with_gaps(plan: Plan, falls: Tensor, fallen: Breaks) -> Plan:
    """The same without the breaks that fall on the row before them, which are gaps of the segments beside it."""
    row = (~falls).cumsum(0)[falls] - 1
    segment, fraction, height = fallen[:3]
    rows = plan.only(~falls)
    gap = (rows.source[row] - segment + rows.fraction[row] - fraction).abs() * height
    for side in (row, (row - 1).clamp(min=0)):
        rows.gap.index_add_(0, side, gap)
    rows.neuron[row] = -1
    return rows


def make_rows(plan: Plan, values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The planned rows of values (by number): rows of theirs, and points on the chords between them.

    They may be what was given, where these are all of their rows and no others.
    """
    is_new = plan.fraction > 0
    new = places_of(is_new)
    if not new.shape[0]:
        is_all = plan.source.shape[0] == next(iter(values.values())).shape[0]
        return {number: rows if is_all else rows.index_select(0, plan.source) for number, rows in values.items()}
    # A row of theirs has one part, and a point between two of them has two.
    parts = is_new + 1
    ends = parts.cumsum(0)
    second = ends[new] - 1
    index, share = plan.source.repeat_interleave(parts), (1 - plan.fraction).repeat_interleave(parts)
    index[second] += 1
    share[second] = plan.fraction[new]
    added = partial(functional.embedding_bag, index, offsets=ends - parts, mode="sum", per_sample_weights=share)
    return {
        number: added(weight=rows.reshape(rows.shape[0], -1)).view(-1, *rows.shape[1:])
        for number, rows in values.items()
    }


# -- deferred rows -----------------------------------------------------------------------------------------------------


class AffineRun(NamedTuple):
    """Nodes behind a ReLU, up to `end`, that say what they make of single entries; multiplications a row they take."""

    end: int
    multiplications: int


@cached_per_graph
def affine_runs(graph: Graph) -> Mapping[int, AffineRun]:
    """By number of a ReLU's node, the run behind it, where that takes any products.

    It ends with the scores or at another ReLU: where max pooling has ties, rounding would make rows of them.
    """
    bends = [index for index, node in enumerate(graph.nodes) if isinstance(node.operator, Relu)]
    runs = {index: _behind(graph, index) for index in bends}
    ends = {*bends, len(graph.nodes)}
    return {index: run for index, run in runs.items() if run.multiplications and run.end in ends}


def _behind(graph: Graph, start: int) -> AffineRun:
    device = graph.device
    one = Entries(
        torch.zeros(1, 1, dtype=torch.int64, device=device), torch.ones(1, 1, dtype=torch.float64, device=device)
    )
    entries, roundings, multiplications = {start + 1: one}, {start + 1: 0}, 0
    for index in range(start + 1, len(graph.nodes)):
        node = graph.nodes[index]
        if not carry(graph, index, entries):
            return AffineRun(index, multiplications)
        if index + 1 in entries:
            assert isinstance(node.operator, Affine)
            roundings[index + 1] = max(roundings[value] for value in node.inputs if value in entries)
            if not node.operator.only_moves:
                roundings[index + 1] += node.operator.roundings + 1
                if roundings[index + 1] > OF_COEFFICIENTS + 1:  # products of products
                    return AffineRun(index, multiplications)
                multiplications += node.shape.numel() * node.operator.terms(*(graph.shape(i) for i in node.inputs))
    return AffineRun(len(graph.nodes), multiplications)


def carry(graph: Graph, index: int, entries: dict[int, Entries]) -> bool:
    """Add what a node makes of entries to them, if it reads any; whether it can."""
    node = graph.nodes[index]
    places = [place for place, value in enumerate(node.inputs) if value in entries]
    if not isinstance(node.operator, Affine) or node.operator.roundings > OF_COEFFICIENTS:
        return False
    if not places:
        return True
    shapes = [graph.shape(value) for value in node.inputs]
    (place, *others) = places
    output = None if others else node.operator.of_entries(entries[node.inputs[place]], place, shapes)
    if output is None:
        return False
    entries[index + 1] = output
    return True


@dataclass(frozen=True, eq=False)
class DeferredRows:
    """A plan's rows in two steps: `early` ones are made from a window's, and all from the early ones by `rest`.

    Of deferred rows (n): their number among all, that of the early row before each, and their fractions, those of the
    early rows on either side included.
    """

    early: Plan
    rest: Plan
    number: Tensor
    before: Tensor
    at: Tensor
    low: Tensor
    high: Tensor
    neuron: Tensor
    way: Tensor

    @property
    def entries(self) -> Entries:
        """Where the output of the ReLU has a kink at each deferred row."""
        return Entries(self.neuron.unsqueeze(1), torch.ones_like(self.way).unsqueeze(1))

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Kinks and deferred rows between the same early ones, and how much of a kink is added there."""
        count = len(self.number)
        kink = torch.arange(count, device=self.number.device).unsqueeze(1)
        row = kink + torch.arange(2 - TOGETHER, TOGETHER - 1, device=kink.device)
        inside = (row >= 0) & (row < count)
        inside &= self.before[row.clamp(0, count - 1)] == self.before[kink]
        kink, row = kink.expand_as(row)[inside], row[inside]
        one, other, low, high = self.at[kink], self.at[row], self.low[kink], self.high[kink]
        share = (torch.minimum(one, other) - low) / (high - low) * (high - torch.maximum(one, other))
        return kink, row, -self.way[kink] * share

    def completed(self, values: Mapping[int, Tensor], entries: Mapping[int, Entries]) -> dict[int, Tensor]:
        """All rows of values (by number), from their early ones, with kinks along entries."""
        rows = make_rows(self.rest, values)
        for number in rows.keys() & entries.keys():
            self._add_kinks(rows[number].view(len(self.rest.z), -1), entries[number])
        return rows

    def _add_kinks(self, flat: Tensor, entries: Entries) -> None:
        kinks, at, amounts = self._pairs
        step = max(1, BLOCK_BYTES // (8 * entries.value.shape[1]))
        for kink, row, amount in zip(kinks.split(step), at.split(step), amounts.split(step), strict=True):
            value, number = entries.value.index_select(0, kink).mul_(amount.unsqueeze(1)), self.number[row]
            if entries.at is None:
                flat.index_add_(0, number, value)
            else:
                index = entries.at.index_select(0, kink).add_((number * flat.shape[1]).unsqueeze(1))
                flat.view(-1).scatter_add_(0, index.view(-1), value.view(-1))

    def sized(
        self,
        sizes: Mapping[int, Tensor],
        error: Tensor,
        entries: Mapping[int, Entries],
        running_error: RunningError | None,
    ) -> tuple[dict[int, Tensor], Tensor]:
        """The same of the sizes of values, and of how far scores may be from their chords: by deferred rows as well."""
        larger = {number: self._size(size, entries.get(number)) for number, size in sizes.items()}
        error = error[self.rest.source]
        if running_error is not None:
            error = torch.where(self.rest.cut, error + running_error.between(larger, OF_DEFERRED), error)
        return larger, error

    def _size(self, early: Tensor, entries: Entries | None) -> Tensor:
        """No less than the norm of any row, nor than that of all that is added up for a deferred one."""
        size = early[self.rest.source]
        if entries is None:
            return size
        highest = self.way * ((self.at - self.low) / (self.high - self.low)) * (self.high - self.at)
        kinks = torch.zeros_like(early).index_add_(0, self.before, highest * norm(entries.value))
        return (size + kinks[self.rest.source]) * ABOVE


def defer_rows(graph: Graph, node: int, plan: Plan) -> DeferredRows | None:
    """Which rows of a plan to put in behind the affine run that follows a node; None if it is not worth the trouble."""
    run = affine_runs(graph).get(node)
    if run is None or run.multiplications * len(plan.z) < LEAST_SPARED:
        return None
    number = torch.arange(len(plan.z), device=plan.z.device)
    fixed = plan.neuron < 0
    fixed[0] = fixed[-1] = True
    early = (number - torch.where(fixed, number, 0).cummax(0).values) % TOGETHER == 0
    deferred = places_of(~early)
    if not len(deferred) or run.multiplications * len(deferred) < LEAST_SPARED:
        return None
    chosen, source = places_of(early), early.cumsum(0) - 1
    before, at = source[deferred], plan.fraction[deferred]
    low, after = plan.fraction[chosen[before]], chosen[before + 1]
    high = torch.where(plan.source[after] == plan.source[deferred], plan.fraction[after], 1.0)
    share = torch.zeros_like(plan.fraction)
    share[deferred] = (at - low) / (high - low)
    gap = torch.zeros_like(chosen, dtype=plan.gap.dtype).index_add_(0, source, plan.gap)
    return DeferredRows(
        early=plan.only(chosen)._replace(gap=gap),
        rest=plan._replace(source=source, fraction=share),
        number=deferred,
        before=before,
        at=at,
        low=low,
        high=high,
        neuron=plan.neuron[deferred],
        way=plan.height[deferred] / 2,  # of a ReLU
    )
