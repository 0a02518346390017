"""Bounds on every neuron over one box of many inputs, layer by layer, each layer's from backward bounds of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.bounds.ascent import ascend
from shakeproof.bounds.tilted import Bend, Tilted, bend_of
from shakeproof.errors import MemoryBudgetError
from shakeproof.network.graph import Graph
from shakeproof.operators import Affine, Elementwise, Range, Relaxation

# How many steps each layer's slopes are improved, and the seconds that all layers together may take for it.
LAYER_STEPS, LAYER_SECONDS = 20, 8.0
FLOAT_BYTES = 8


@dataclass(frozen=True, eq=False)
class Root:
    """A network on one box: in float64, which proves, and in float32, which searches.

    `largest` is how large any value inside the network is, `outputs` what its outputs lie between.
    """

    proving: Tilted
    searching: Tilted
    outputs: Range
    largest: float


def enclose_box(graph: Graph, low: Tensor, high: Tensor, deadline: float, memory: float, optimise: bool = True) -> Root:
    """Bounds on every neuron for inputs from low to high, (*input_shape); within `memory` bytes.

    Slopes are optimised for each layer, or only taken as they come, in a small part of the time.
    """
    return _Walk(graph, Range(low.unsqueeze(0), high.unsqueeze(0)), deadline, memory, optimise).root()


def rows_within(graph: Graph, memory: float) -> int:
    """How many rows may be pulled at once within `memory` bytes."""
    neurons = sum(node.shape.numel() for node in graph.nodes if not isinstance(node.operator, Affine))
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    size = FLOAT_BYTES * (10 * neurons + 10 * widest)
    if memory < size:
        raise MemoryBudgetError(
            f"bounds over a box need {size / 2**30:.2g} GiB of working memory a row, the budget is"
            f" {memory / 2**30:.2g} GiB; raise it with --memory"
        )
    return int(memory // size)


class _Walk:
    """The state of one walk through the layers."""

    def __init__(self, graph: Graph, box: Range, deadline: float, memory: float, optimise: bool) -> None:
        self.graph, self.box, self.deadline = graph, box, deadline
        self.most_rows = rows_within(graph, memory)
        self.values: dict[int, Range] = {0: box}
        self.relaxations: list[Relaxation] = []
        self.ranges: list[tuple[Range, ...]] = []
        self.bends: list[Bend] = []
        self.tight = {0}
        self.left = min(LAYER_SECONDS, 0.2 * (deadline - time.perf_counter())) if optimise else 0.0

    def root(self) -> Root:
        sizes = [end.abs().max() for end in self.box]
        for index, node in enumerate(self.graph.nodes):
            if not isinstance(node.operator, Affine):
                for value in node.inputs:
                    self.tighten(value)
            given = tuple(self.values[i] for i in node.inputs)
            relaxation = node.operator.relaxed(*given)
            self.relaxations.append(relaxation)
            self.ranges.append(given)
            bend = bend_of(self.graph, index, given[0])
            if bend is not None:
                self.bends.append(bend)
            self.values[index + 1] = _interval(relaxation, given)
            sizes += [end.abs().max() for end in self.values[index + 1]]
            for dead in self.graph.last_uses[index]:
                del self.values[dead]
        proving, outputs = self.tilted(len(self.graph.nodes)), self.values[len(self.graph.nodes)]
        largest = float(torch.stack(sizes).max())  # NaN if one is
        return Root(proving, proving.to(torch.float32, self.ranges), outputs, largest)

    def tilted(self, top: int) -> Tilted:
        before = tuple(bend for bend in self.bends if bend.node < top)  # a value may be older than the last bend
        return Tilted(self.graph, self.box, tuple(self.relaxations), before, top)

    def tighten(self, value: int) -> None:
        """Backward bounds for the neurons of a value that somebody's bends depend on."""
        if value in self.tight:
            return
        self.tight.add(value)
        low, high = (end.flatten().clone() for end in self.values[value])
        place = self.needed(value).nonzero().squeeze(1)
        shape = self.graph.shape(value)
        tilted = self.tilted(value)
        narrow = tilted.to(torch.float32, self.ranges) if self.bends else None
        stops = self.stops_at_zero(value)
        for start in range(0, len(place), max(1, self.most_rows // 2)):
            some = place[start : start + max(1, self.most_rows // 2)]
            if time.perf_counter() > self.deadline:
                break  # what is known so far is sound, if loose
            units = low.new_zeros(len(some), low.numel()).scatter_(1, some.unsqueeze(1), 1.0)
            units = torch.cat([units, -units]).view(-1, *shape)
            bound = self.bounded(tilted, narrow, units, 0.0 if stops else torch.inf, len(some) / len(place))
            below, above = bound.chunk(2)
            low[some], high[some] = torch.maximum(low[some], below), torch.minimum(high[some], -above)
        crossed = low > high  # by rounding alone
        low, high = torch.where(crossed, high, low), torch.where(crossed, low, high)
        self.values[value] = Range(low.view(1, *shape), high.view(1, *shape))

    def bounded(self, tilted: Tilted, narrow: Tilted | None, units: Tensor, wanted: float, share: float) -> Tensor:
        """The least values of a value's entries `units` (rows, *shape), with slopes as good as there is time for."""
        rows = tilted.start()
        started = time.perf_counter()
        lines = tilted.on(rows)
        count = len(units)
        slope, none = rows.slope.expand(count, -1), rows.share.expand(count, -1)
        plain = lines.lowest(lines.relaxations(slope, none), units).value
        spent = time.perf_counter() - started
        steps = min(LAYER_STEPS, int(self.left * share / max(spent, 1e-6)))
        if narrow is None or steps < 3:
            return plain
        goal = torch.full((count,), wanted)
        better, _ = ascend(narrow, units.float(), narrow.start(), steps, goal, self.deadline)
        again = lines.lowest(lines.relaxations(better.slope.double(), none), units).value
        self.left -= time.perf_counter() - started
        return torch.maximum(plain, again)

    def readers(self, value: int) -> list[int]:
        return [index for index, node in enumerate(self.graph.nodes) if value in node.inputs]

    def needed(self, value: int) -> Tensor:
        """The neurons (flat) whose range matters to a reader."""
        within = self.values[value]
        needed = torch.zeros(within.low.numel(), dtype=torch.bool, device=within.low.device)
        for index in self.readers(value):
            operator = self.graph.nodes[index].operator
            if isinstance(operator, Elementwise):
                needed |= operator.split_at(within).flatten().isfinite()
            elif not isinstance(operator, Affine):
                needed |= (within.high > within.low).flatten()
        return needed

    def stops_at_zero(self, value: int) -> bool:
        """Whether no reader cares where a neuron lies that is known not to cross 0."""
        operators = [self.graph.nodes[index].operator for index in self.readers(value)]
        return all(isinstance(op, Affine) or (isinstance(op, Elementwise) and op.tilts is not None) for op in operators)


def _interval(relaxation: Relaxation, given: Sequence[Range]) -> Range:
    """What the output lies between, from the inputs' ranges alone."""
    found = relaxation.image(*given)
    if found is not None:
        return found
    centre = relaxation.points(*(r.centre.unsqueeze(0) for r in given))[0]
    radius = relaxation.spread(*(r.radius for r in given))
    return Range(centre - radius, centre + radius)
