"""A sweep with twice the digits, for networks so deep that float64 has too few for what rounding may grow to.

It is the sweep (`sweep.py`) in other numbers: rows are twofold as far into the network as their rounding could still
grow to something, and float64 from there on; so are the places of breaks, as fractions of their segments. Products are
put together from slices (`slices.py`), norms are taken with weights of channels (`weights.py`). One line is swept at a
time: one row of such a network is work enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget
from shakeproof.exact.precise_rows import SQUARE, Places, Rows, bent, breaks, high_part, of_segments, put_in, rows_at
from shakeproof.exact.slices import Products, Sliced
from shakeproof.exact.sweep import SHORTEST_WINDOW, Lines, OtherArithmetic, Piece, longest_window
from shakeproof.exact.twofold import Twofold, added, divided, moved
from shakeproof.exact.weights import channel_weights, weighted
from shakeproof.model import Graph, cached_per_graph
from shakeproof.operators import (
    ABOVE,
    UNIT,
    Affine,
    Bending,
    Clip,
    Combine,
    Conv,
    Operator,
    PiecewiseLinear,
    Relu,
    Reshape,
    Transpose,
    stretches,
)
from shakeproof.rounding import LOST, OF_BENDS, OF_CHORDS, Chords, gammas

# In units of SQUARE: a row put between two others, or an input between two pictures, as a share of the larger one, and
# of the way between them; a sum, of its terms; a quotient, and a product from slices, of itself.
OF_ROWS, OF_WAYS, OF_SUMS, OF_QUOTIENTS, OF_PRODUCTS = 8, 16, 4, 24, 5
# Slices that products are put together from, at most.
DEEPEST = 3
# A window has such a share of the rows that one of float64 numbers would have.
MEMORY = 0.4


class Inputs(NamedTuple):
    """Paths as twofold numbers, each entry rounded once: base and slope (paths, *input_shape)."""

    base: Twofold
    slope: Twofold

    @staticmethod
    def of(paths: Sequence[tuple[Sequence[Fraction], Sequence[Fraction]]], shape: torch.Size) -> Inputs:
        """From the slope and the base of each path, in the network's order of inputs."""
        slope, base = (
            Twofold(*(torch.stack(parts) for parts in zip(*map(_twofold, own), strict=True)))
            for own in zip(*paths, strict=True)
        )
        return Inputs(*(own.mapped(lambda x: x.view(-1, *shape)) for own in (base, slope)))

    def at(self, path: int, z: Tensor) -> Twofold:
        """x (rows, *input_shape) on one of the paths at z (rows)."""
        strengths = z.view(-1, *(1,) * (self.base.high.dim() - 1))
        base, slope = (part.mapped(lambda x: x[path]) for part in self)
        return moved(base, slope, Twofold.of(strengths))

    def off(self, path: int) -> float:
        """What is left out of x, at most, by its norm."""
        base, slope = (float(torch.linalg.vector_norm(part.high[path])) for part in self)
        return (OF_ROWS * base + OF_WAYS * slope) * SQUARE * ABOVE + LOST


def _twofold(exact: Sequence[Fraction]) -> tuple[Tensor, Tensor]:
    """The nearest numbers, and those nearest to what is left."""
    high = [float(number) for number in exact]
    low = [float(number - Fraction(nearest)) for number, nearest in zip(exact, high, strict=True)]
    return torch.tensor(high, dtype=torch.float64), torch.tensor(low, dtype=torch.float64)


class Normal(NamedTuple):
    """Node number `node`: (x - centre) / spread, both (*input_shape) as they were given."""

    node: int
    centre: Tensor
    spread: Tensor

    def applied(self, x: Twofold) -> Twofold:
        return divided(added(x, Twofold.of(-self.centre)), Twofold.of(self.spread))

    def left_out(self, size: Tensor) -> Tensor:
        """Of inputs of such a norm: what the difference leaves out, and the quotient of that."""
        terms = size + float(torch.linalg.vector_norm(self.centre)) * ABOVE
        return terms * ((OF_SUMS + OF_QUOTIENTS) * SQUARE / float(self.spread.min()) * ABOVE)


class PreciseWindow(NamedTuple):
    """Rows planned from `values`, before node number `node`; the rest as in `sweep.Window`."""

    node: int
    plan: Places
    values: Mapping[int, Rows]
    sizes: Mapping[int, Tensor]
    error: Tensor


@cached_per_graph
def _gains(graph: Graph, budget: Budget = UNLIMITED) -> tuple[tuple[tuple[float, float], ...], ...]:
    """For each node and input, how much it may stretch weighted norms, and with positive coefficients."""
    return tuple(_gains_of(graph, index, budget) for index in range(len(graph.nodes)))


def _gains_of(graph: Graph, index: int, budget: Budget) -> tuple[tuple[float, float], ...]:
    node, weights = graph.nodes[index], channel_weights(graph, budget)
    if isinstance(node.operator, Affine):
        shapes = [graph.shape(value) for value in node.inputs]
        found = stretches(weighted(graph, index, weights), shapes, budget.check)
    else:
        assert isinstance(node.operator, PiecewiseLinear)
        found = ((node.operator.stretch, node.operator.stretch),)
    if isinstance(node.operator, Conv):  # whose coefficients have the weights in them
        return found
    after, before = weights[index + 1], [weights[value] for value in node.inputs]
    more = [
        float((after / own).max() if after.shape == own.shape else after.max() / own.min()) * ABOVE for own in before
    ]
    return tuple((gain * by, absolute * by) for (gain, absolute), by in zip(found, more, strict=True))


@cached_per_graph
def _effects(graph: Graph) -> tuple[float, ...]:
    """For each value, by how much the weighted norm of what is off there may grow until it is at the scores."""
    found = [0.0] * len(graph.nodes) + [1.0]
    for index, gains in reversed(list(enumerate(_gains(graph)))):
        for value, (gain, _) in zip(graph.nodes[index].inputs, gains, strict=True):
            found[value] += gain * found[index + 1] * ABOVE
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Precise(Chords, OtherArithmetic):
    """The arithmetic of a sweep with twice the digits, and what it leaves out.

    `sliced` are the products that are put together from slices, by node; `normal` is a node whose coefficients were
    rounded, as it is meant. Sizes are weighted norms.
    """

    inputs: Inputs
    sliced: Mapping[int, Sliced]
    normal: Normal | None = None

    @staticmethod
    def of(
        graph: Graph, inputs: Inputs, tolerance: float, normal: Normal | None = None, budget: Budget = UNLIMITED
    ) -> Precise:
        """With as many slices as keep each node's part in what scores are off by small beside the tolerance.

        That is judged by the first path's start; what comes of it is known by sweeping. An error if the time is up
        before that.
        """
        _gains(graph, budget)
        found = Precise(graph, inputs, {}, normal)
        effects, share = _effects(graph), tolerance / len(graph.nodes)
        values: dict[int, Tensor] = {0: inputs.base.high[:1]}
        sizes = {0: found.size(0, values[0])}
        twofold, sliced = {0}, dict[int, Sliced]()
        for index, node in enumerate(graph.nodes):
            budget.check()
            given = [sizes[value] for value in node.inputs]
            if (
                twofold.issuperset(node.inputs)
                and _is_exact(node.operator)
                and float(found.rounded(index, given)) > share
            ):
                assert isinstance(node.operator, Products)
                for depth in range(1, DEEPEST + 1):
                    sliced[index] = Sliced.of(node.operator, depth)
                    above = sliced[index].above(values[node.inputs[0]])
                    if effects[index + 1] * found.beside(sliced[index], index, above) <= share:
                        break
            passes = _is_twofold(node.operator) or (normal is not None and index == normal.node)
            if index in sliced or (passes and twofold.issuperset(node.inputs)):
                twofold.add(index + 1)
            values[index + 1] = node.operator.apply(*(values[value] for value in node.inputs))
            sizes[index + 1] = found.size(index + 1, values[index + 1])
        return replace(found, sliced=sliced)

    # -- what is off ------------------------------------------------------------------------------------------------

    def size(self, value: int, rows: Rows) -> Tensor:
        """The weighted norm of the larger of each segment's rows."""
        return of_segments(self.norm(value, high_part(rows)))

    def norm(self, value: int, rows: Tensor) -> Tensor:
        """The weighted norm of each row (rows, ...) of a value."""
        weights = channel_weights(self.graph)[value]
        channels = torch.linalg.vector_norm(rows.flatten(1).unflatten(1, (-1, len(weights))), dim=1)
        norms: Tensor = torch.linalg.vector_norm(channels * weights, dim=1) * ABOVE + LOST
        return norms

    def put_between(self, value: int, rows: Rows, size: Tensor, way: Tensor) -> Tensor:
        """What it does to the scores that rows were put between others, which are so far apart (rows)."""
        if isinstance(rows, Twofold):
            off = (size * OF_ROWS + of_segments(way) * OF_WAYS) * SQUARE
        else:
            off = size * ((OF_CHORDS + 4) * UNIT)  # the fraction is rounded, too
        return off * (_effects(self.graph)[value] * ABOVE)

    def rounded(self, index: int, given: Sequence[Tensor]) -> Tensor:
        """What a node does to the scores that is computed in float64, of inputs that are rounded to that."""
        node, effects = self.graph.nodes[index], _effects(self.graph)
        gains = _gains(self.graph)[index]
        share, constant = gammas(self.graph)[index], self._constant(index)
        if not isinstance(node.operator, Affine):
            bends = len(node.operator.thresholds) if isinstance(node.operator, Bending) else 2
            share = OF_BENDS * bends * UNIT
        total = torch.zeros(()) + (share * constant[0] + constant[1]) * effects[index + 1]
        for value, size, (_, absolute) in zip(node.inputs, given, gains, strict=True):
            total = total + size * (share * absolute * effects[index + 1] + UNIT * effects[value])
        return total * ABOVE

    def beside(self, sliced: Sliced, index: int, above: float) -> float:
        """What a product from slices leaves out in weighted norm, beside a share of itself, of values below that."""
        weights, places = channel_weights(self.graph)[index + 1], self.graph.nodes[index].shape.numel()
        scales = sliced.scale.view(-1, len(weights)) * weights
        norm = float(torch.linalg.vector_norm(scales)) * (places / scales.numel()) ** 0.5
        return float(norm * sliced.share * above * ABOVE)

    def _constant(self, index: int) -> tuple[float, float]:
        """The weighted norms of a node's constant, and of what that is off by."""
        graph = self.graph
        tiny = graph.tiny * float(graph.nodes[index].shape.numel() ** 0.5)
        constant, off = (float(self.size(index + 1, x[index])) for x in (graph.constants, graph.offs))
        return constant, off + tiny * float(channel_weights(graph)[index + 1].max())

    # -- rows -------------------------------------------------------------------------------------------------------

    def made_of(self, index: int, inputs: Sequence[Rows], given: Sequence[Tensor]) -> tuple[Rows, Tensor | float]:
        """What a node makes of its inputs, twofold values as long as it can, and what it leaves out.

        Beyond that, products leave out a share of themselves, and what is computed in float64 what `rounded` says.
        """
        operator = self.graph.nodes[index].operator
        if all(isinstance(x, Twofold) for x in inputs):
            first, *others = map(Twofold.of, inputs)
            if (sliced := self.sliced.get(index)) is not None:
                above = sliced.above(first.high)
                return sliced.apply(first, above), self.beside(sliced, index, above)
            if self.normal is not None and index == self.normal.node:
                return self.normal.applied(first), self.normal.left_out(given[0])
            if isinstance(operator, Combine) and _is_twofold(operator):
                made = added(first, others[0] if operator.sign > 0 else -others[0])
                sides = zip(given, _gains(self.graph)[index], strict=True)  # one may be repeated along the other
                return made, sum(size * absolute for size, (_, absolute) in sides) * (OF_SUMS * SQUARE)
            if isinstance(operator, (Reshape, Transpose)):
                return first.mapped(operator.apply), 0.0
            if isinstance(operator, (Relu, Clip)):
                return bent(operator, first), 0.0
        return operator.apply(*map(high_part, inputs)), 0.0

    def evaluated_at(self, path: int, z: Tensor, budget: Budget = UNLIMITED) -> tuple[Tensor, Tensor]:
        """Class scores (rows, classes) on one of the paths at given strengths, and how far they may be off (rows).

        An error if the time is up before that.
        """
        start = self.inputs.at(path, z)
        values: dict[int, Rows] = {0: start}
        sizes = {0: self.size(0, start)}
        error = torch.full_like(z, self.inputs.off(path) * _effects(self.graph)[0] * ABOVE)
        for index in range(len(self.graph.nodes)):
            budget.check()
            error = error + self.step(index, values, sizes, None)
        return self.scores(values, sizes, error)

    def scores(self, values: Mapping[int, Rows], sizes: Mapping[int, Tensor], error: Tensor) -> tuple[Tensor, Tensor]:
        """The last value in float64, and what it is off by."""
        last = len(self.graph.nodes)
        found = values[last]
        return (found.high, error + sizes[last] * UNIT) if isinstance(found, Twofold) else (found, error)

    def step(self, index: int, values: dict[int, Rows], sizes: dict[int, Tensor], gap: Tensor | None) -> Tensor:
        """Let a node make its value, and forget those that nobody needs any more; what that does to the scores."""
        inputs = self.graph.nodes[index].inputs
        given = [sizes[value] for value in inputs]
        made, left_out = self.made_of(index, [values[value] for value in inputs], given)
        values[index + 1], sizes[index + 1] = made, self.size(index + 1, made)
        for dead in self.graph.last_uses[index]:
            del values[dead], sizes[dead]
        off = sizes[index + 1] * (OF_PRODUCTS * SQUARE * (index in self.sliced)) + left_out
        off = (off if gap is None else off + gap) * (_effects(self.graph)[index + 1] * ABOVE)
        return off if isinstance(made, Twofold) else off + self.rounded(index, given)

    # -- the sweep --------------------------------------------------------------------------------------------------

    def sweep(self, lines: Lines, budget: Budget, is_open: Callable[[], Tensor] | None) -> Iterator[Piece]:
        longest = max(SHORTEST_WINDOW, int(MEMORY * longest_window(self.graph, budget)))
        for number in range(len(lines)):
            stack = [self._line(lines, number)]
            while stack and (is_open is None or bool(is_open()[number])):
                step = _advance(self, stack.pop(), budget)
                if step is None:
                    return
                if isinstance(step, PreciseWindow):
                    stack.extend(_cut(step, longest))
                else:
                    z, scores, error = step
                    yield Piece(torch.full_like(z, number, dtype=torch.int64), z, scores, error)

    def _line(self, lines: Lines, number: int) -> PreciseWindow:
        path, z = int(lines.path[number]), torch.stack([lines.start[number], lines.end[number]])
        rows, nothing = self.inputs.at(path, z), torch.zeros_like(z)
        plan = Places(z, torch.arange(2, device=z.device), Twofold(nothing, nothing), nothing)
        error = torch.full_like(z, self.inputs.off(path) * _effects(self.graph)[0] * ABOVE)
        return PreciseWindow(-1, plan, {0: rows}, {0: self.size(0, rows)}, error)


def _advance(
    precise: Precise, window: PreciseWindow, budget: Budget
) -> PreciseWindow | tuple[Tensor, Tensor, Tensor] | None:
    """As `sweep.advance`: to the next node that bends between the rows, or to the end; None where the time is up."""
    graph, plan = precise.graph, window.plan
    values, sizes, error = dict[int, Rows](), dict[int, Tensor](), window.error[plan.source]
    is_cut = of_segments((plan.fraction.high > 0).to(error.dtype))
    for value, rows in window.values.items():
        values[value], way = rows_at(plan, rows, partial(precise.norm, value))
        sizes[value] = window.sizes[value][plan.source]
        error = error + is_cut * precise.put_between(value, values[value], sizes[value], way)
    for index in range(max(window.node, 0), len(graph.nodes)):
        if budget.is_late():
            return None
        node, bends = graph.nodes[index], index == window.node
        if isinstance(node.operator, PiecewiseLinear) and not bends:
            found = breaks(node.operator, values[node.inputs[0]], channel_weights(graph)[index + 1])
            if len(found.segment):
                return PreciseWindow(index, put_in(plan.z, found), values, sizes, error)
        error = error + precise.step(index, values, sizes, plan.gap if bends else None)
    return plan.z, *precise.scores(values, sizes, error)


def _cut(window: PreciseWindow, longest: int) -> Iterator[PreciseWindow]:
    """As `sweep.cut_into_windows`: the leftmost comes last, and each begins with the last row of the one before it."""
    end = len(window.plan.z)
    count = max(1, -(-(end - 1) // (longest - 1)))
    for start in reversed([end * k // count for k in range(count)]):
        yield window._replace(plan=window.plan.part(slice(max(start - 1, 0), end)))
        end = start


def _is_exact(operator: Operator) -> bool:
    """Whether it is a product with weights that were not rounded on their way from the file."""
    return isinstance(operator, Products) and operator.roundings == 0 and operator.off is None


def _is_twofold(operator: Operator) -> bool:
    """Whether twofold values pass through."""
    return isinstance(operator, (Relu, Clip, Reshape, Transpose, Combine))
