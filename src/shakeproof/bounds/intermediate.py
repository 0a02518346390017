"""Intermediate bounds: every neuron over one box of many inputs, layer by layer, each by alpha-CROWN of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Bend, ascend, bend_of
from shakeproof.bounds.forward import FLOAT_BYTES
from shakeproof.budget import Budget, now
from shakeproof.errors import ProofError
from shakeproof.graph import Graph
from shakeproof.operators import Affine, Elementwise, Operator, Range, Relaxation
from shakeproof.rounding import carried, gammas, noises_of, planes_share, widened

# How many steps each layer's alphas are improved, and the seconds that all layers together may take for it.
LAYER_STEPS, LAYER_SECONDS = 20, 8.0
# So few neurons are bounded before it is known how long that takes.
FIRST_ROWS = 16


@dataclass(frozen=True, eq=False)
class BoxBounds:
    """A network on one box: in float64, which proves, and in float32, which searches."""

    proving: AlphaBetaCrown
    searching: AlphaBetaCrown


def enclose_box(graph: Graph, low: Tensor, high: Tensor, budget: Budget, optimise: bool = True) -> BoxBounds:
    """Bounds on every neuron for inputs from low to high, (*input_shape).

    Alphas are optimised for each layer, or only taken as they come, in a small part of the time.
    """
    return _Walk(graph, Range(low.unsqueeze(0), high.unsqueeze(0)), budget, optimise).bounds()


def rows_within(graph: Graph, budget: Budget) -> int:
    """How many rows may be pulled back at once."""
    neurons = sum(node.shape.numel() for node in graph.nodes if not isinstance(node.operator, Affine))
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    return budget.fitting(FLOAT_BYTES * (10 * neurons + 10 * widest), "bounding the network over a box", share=0.5)


class _Walk:
    """The state of one walk through the layers."""

    def __init__(self, graph: Graph, box: Range, budget: Budget, optimise: bool) -> None:
        self.graph, self.box, self.budget = graph, box, budget
        self.most_rows = rows_within(graph, budget)
        self.values: dict[int, Range] = {0: box}
        self.relaxations: list[Relaxation] = []
        self.ranges: list[tuple[Range, ...]] = []
        self.bends: list[Bend] = []
        self.noise = [planes_share(graph.input_shape, len(graph.nodes)) * _size(box).max().view(1) + graph.tiny]
        self.tight = {0}
        self.left = min(LAYER_SECONDS, 0.2 * budget.seconds_left) if optimise else 0.0

    def bounds(self) -> BoxBounds:
        for index, node in enumerate(self.graph.nodes):
            if not isinstance(node.operator, Affine):
                for value in node.inputs:
                    self.tighten(value)
            inputs = tuple(self.values[i] for i in node.inputs)
            relaxation = node.operator.relaxed(*inputs)
            self.relaxations.append(relaxation)
            self.ranges.append(inputs)
            bend = bend_of(self.graph, index, inputs[0])
            if bend is not None:
                self.bends.append(bend)
            self.values[index + 1] = _interval(self.graph, index, relaxation, inputs)
            terms = relaxation.spread(*map(_size, inputs)).max() + _size(self.values[index + 1]).max()
            terms = terms + torch.stack([_size(r).max() for r in inputs]).max()
            self.noise.append(noises_of(self.graph, terms.view(1, 1), index)[0])
            for dead in self.graph.last_uses[index]:
                del self.values[dead]
        proving = self.crown(len(self.graph.nodes))
        return BoxBounds(proving, proving.to(torch.float32, self.ranges))

    def crown(self, top: int) -> AlphaBetaCrown:
        before = tuple(bend for bend in self.bends if bend.node < top)  # a value may be older than the last bend
        return AlphaBetaCrown(self.graph, self.box, tuple(self.relaxations), before, top, torch.stack(self.noise))

    def tighten(self, value: int) -> None:
        """Backward bounds for those neurons of a value on which later bends depend."""
        if value in self.tight:
            return
        self.tight.add(value)
        low, high = (end.flatten().clone() for end in self.values[value])
        place = self.needed(value).nonzero().squeeze(1)
        shape = self.graph.shape(value)
        crown = self.crown(value)
        narrow = crown.to(torch.float32, self.ranges) if self.bends else None
        stops = self.stops_at_zero(value)
        # what is known where the time is up is sound, if loose
        for part in self.budget.slices(len(place), max(1, self.most_rows // 2), FIRST_ROWS):
            neurons = place[part]
            units = low.new_zeros(len(neurons), low.numel()).scatter_(1, neurons.unsqueeze(1), 1.0)
            units = torch.cat([units, -units]).view(-1, *shape)
            bound = self.bounded(crown, narrow, units, 0.0 if stops else torch.inf, len(neurons) / len(place))
            below, above = bound.chunk(2)
            low[neurons], high[neurons] = torch.maximum(low[neurons], below), torch.minimum(high[neurons], -above)
        if bool((low > high).any()):
            raise ProofError("two bounds on a neuron contradict each other")
        self.values[value] = Range(low.view(1, *shape), high.view(1, *shape))

    def bounded(
        self, crown: AlphaBetaCrown, narrow: AlphaBetaCrown | None, units: Tensor, wanted: float, share: float
    ) -> Tensor:
        """The least values of a value's entries `units` (rows, *shape), with alphas as good as there is time for."""
        whole = crown.start()
        started = now()
        lines = crown.on(whole)
        count = len(units)
        alpha, none = whole.alpha.expand(count, -1), whole.beta.expand(count, -1)
        plain = lines.lowest(lines.relaxations(alpha, none), units).value
        spent = now() - started
        steps = min(LAYER_STEPS, int(self.left * share / max(spent, 1e-6)))
        if narrow is None or steps < 3:
            return plain
        goal = torch.full((count,), wanted, device=units.device)
        better = ascend(narrow, units.float(), narrow.start(), steps, goal, self.budget)
        again = lines.lowest(lines.relaxations(better.alpha.double(), none), units).value
        self.left -= now() - started
        return torch.maximum(plain, again)

    def readers(self, value: int) -> list[Operator]:
        return [node.operator for node in self.graph.nodes if value in node.inputs]

    def needed(self, value: int) -> Tensor:
        """The neurons (flat) whose range matters to a reader."""
        within = self.values[value]
        needed = torch.zeros(within.low.numel(), dtype=torch.bool, device=within.low.device)
        for operator in self.readers(value):
            if isinstance(operator, Elementwise):
                needed |= operator.split_at(within).flatten().isfinite()
            elif not isinstance(operator, Affine):
                needed |= (within.high > within.low).flatten()
        return needed

    def stops_at_zero(self, value: int) -> bool:
        """Whether all readers ignore the range of a neuron that does not cross 0."""
        return all(
            isinstance(operator, Affine) or (isinstance(operator, Elementwise) and operator.tilts is not None)
            for operator in self.readers(value)
        )


def _size(within: Range) -> Tensor:
    return torch.maximum(within.low.abs(), within.high.abs())


def _interval(graph: Graph, index: int, relaxation: Relaxation, inputs: Sequence[Range]) -> Range:
    """The range of a node's output, from its inputs' ranges alone."""
    operator, share = graph.nodes[index].operator, gammas(graph)[index]
    if operator.only_moves:  # the ends themselves: a middle and a radius would round them
        return Range(operator.apply(*(r.low for r in inputs)), operator.apply(*(r.high for r in inputs)))
    interval, sizes = relaxation.image(*inputs), [_size(r) for r in inputs]
    if interval is None:
        centre = relaxation.points(*(r.centre.unsqueeze(0) for r in inputs))[0]
        radius = relaxation.spread(*carried(operator, share, [r.radius for r in inputs], sizes))
        interval = Range(centre - radius, centre + radius)
    return widened(graph, index, interval, relaxation, sizes)
