"""Late rows: new rows of a ReLU that are put in behind the products that follow it, and not before.

Where one neuron alone crosses zero, the ReLU's output is a chord with a kink in that one entry. Behind an affine
operator it is a chord with a kink along what the operator makes of that entry: one column of a matrix, a few pixels of
a convolution. So only some of the rows, the early ones, are multiplied; the others are put between them, on chords with
kinks. With f for fractions, a neuron that crosses at f_j between early rows at f_a and f_b, going `way` on all of the
segment, adds to the chord at f_k, times its column,

    -way (min(f_j, f_k) - f_a) / (f_b - f_a) (f_b - max(f_j, f_k))

which is nothing at the early rows. A late row is off by what rounding makes of this sum: at most OF_LATE units of the
chord's size and of all that kinks may add, in norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.exact.rows import Plan, make_rows
from shakeproof.model import Graph, cached_per_graph
from shakeproof.operators import ABOVE, BLOCK_BYTES, Affine, Entries, Relu
from shakeproof.rounding import OF_CHORDS, RunningError, norm

# No more rows than this, less one, are late between two early ones. Beside what any row between two others is off by,
# six units of a chord are in the place on it and seven in the sum; of a column, seven in how much of it is added, eight
# in the sum, and some in its coefficients.
TOGETHER, OF_COEFFICIENTS, OF_LATE = 8, 16, OF_CHORDS + 32
# Fewer multiplications than this are not worth the trouble.
LEAST_SPARED = 5e6


class Behind(NamedTuple):
    """Nodes behind a ReLU, up to `end`, that say what they make of single entries; multiplications a row they take."""

    end: int
    multiplications: int


@cached_per_graph
def stretches_behind(graph: Graph) -> Mapping[int, Behind]:
    """By number of a ReLU's node, the stretch behind it, where that takes any products.

    It ends with the scores or at another ReLU: where max pooling has ties, rounding would make rows of them.
    """
    bends = [index for index, node in enumerate(graph.nodes) if isinstance(node.operator, Relu)]
    found = {index: _behind(graph, index) for index in bends}
    ends = {*bends, len(graph.nodes)}
    return {index: stretch for index, stretch in found.items() if stretch.multiplications and stretch.end in ends}


def _behind(graph: Graph, start: int) -> Behind:
    device = graph.device
    one = Entries(
        torch.zeros(1, 1, dtype=torch.int64, device=device), torch.ones(1, 1, dtype=torch.float64, device=device)
    )
    entries, roundings, multiplications = {start + 1: one}, {start + 1: 0}, 0
    for index in range(start + 1, len(graph.nodes)):
        node = graph.nodes[index]
        if not carry(graph, index, entries):
            return Behind(index, multiplications)
        if index + 1 in entries:
            assert isinstance(node.operator, Affine)
            roundings[index + 1] = max(roundings[value] for value in node.inputs if value in entries)
            if not node.operator.only_moves:
                roundings[index + 1] += node.operator.roundings + 1
                if roundings[index + 1] > OF_COEFFICIENTS + 1:  # products of products
                    return Behind(index, multiplications)
                multiplications += node.shape.numel() * node.operator.terms(*(graph.shape(i) for i in node.inputs))
    return Behind(len(graph.nodes), multiplications)


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
    made = None if others else node.operator.of_entries(entries[node.inputs[place]], place, shapes)
    if made is None:
        return False
    entries[index + 1] = made
    return True


@dataclass(frozen=True, eq=False)
class Late:
    """A plan's rows in two steps: `early` ones are made from a window's, and all from the early ones by `rest`.

    Of late rows (n): their number among all, that of the early row before each, and their fractions, those of the early
    rows on either side included.
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
        """Where the output of the ReLU has a kink at each late row."""
        return Entries(self.neuron.unsqueeze(1), torch.ones_like(self.way).unsqueeze(1))

    @cached_property
    def _pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Kinks and late rows between the same early ones, and how much of a kink is added there."""
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
        made = make_rows(self.rest, values)
        for number in made.keys() & entries.keys():
            self._add_kinks(made[number].view(len(self.rest.z), -1), entries[number])
        return made

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
        self, sizes: Mapping[int, Tensor], error: Tensor, entries: Mapping[int, Entries], chords: RunningError | None
    ) -> tuple[dict[int, Tensor], Tensor]:
        """The same of the sizes of values, and of how far scores may be from their chords: by late rows as well."""
        made = {number: self._size(size, entries.get(number)) for number, size in sizes.items()}
        error = error[self.rest.source]
        if chords is not None:
            error = torch.where(self.rest.cut, error + chords.between(made, OF_LATE), error)
        return made, error

    def _size(self, early: Tensor, entries: Entries | None) -> Tensor:
        """No less than the norm of any row, nor than that of all that is added up for a late one."""
        size = early[self.rest.source]
        if entries is None:
            return size
        highest = self.way * ((self.at - self.low) / (self.high - self.low)) * (self.high - self.at)
        kinks = torch.zeros_like(early).index_add_(0, self.before, highest * norm(entries.value))
        return (size + kinks[self.rest.source]) * ABOVE


def late_rows(graph: Graph, node: int, plan: Plan) -> Late | None:
    """Which rows of a plan to put in behind the stretch that follows a node; None if it is not worth the trouble."""
    stretch = stretches_behind(graph).get(node)
    if stretch is None or stretch.multiplications * len(plan.z) < LEAST_SPARED:
        return None
    number = torch.arange(len(plan.z), device=plan.z.device)
    fixed = plan.neuron < 0
    fixed[0] = fixed[-1] = True
    early = (number - torch.where(fixed, number, 0).cummax(0).values) % TOGETHER == 0
    late = (~early).nonzero().squeeze(1)
    if not len(late) or stretch.multiplications * len(late) < LEAST_SPARED:
        return None
    chosen, source = early.nonzero().squeeze(1), early.cumsum(0) - 1
    before, at = source[late], plan.fraction[late]
    low, after = plan.fraction[chosen[before]], chosen[before + 1]
    high = torch.where(plan.source[after] == plan.source[late], plan.fraction[after], 1.0)
    share = torch.zeros_like(plan.fraction)
    share[late] = (at - low) / (high - low)
    gap = torch.zeros_like(chosen, dtype=plan.gap.dtype).index_add_(0, source, plan.gap)
    return Late(
        early=plan.only(chosen)._replace(gap=gap),
        rest=plan._replace(source=source, fraction=share),
        number=late,
        before=before,
        at=at,
        low=low,
        high=high,
        neuron=plan.neuron[late],
        way=plan.height[late] / 2,  # of a ReLU
    )
