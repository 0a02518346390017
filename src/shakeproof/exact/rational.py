"""Small networks without any rounding: what float64 cannot tell apart, whole numbers can.

Weights and pixels are whole numbers over powers of two, kernels fractions. Along a line, on a stretch on which no
neuron bends, each value of the network is a z + b; here a and b are whole numbers over a common scale. A stretch is cut
wherever an operator bends, depth first, so the numbers grow with the layers and not with the cuts. Where one jumps, a
cut is a stretch of its own: a point, between two stretches without their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations, pairwise
from math import ceil, floor, lcm
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.graph import Graph, Node
from shakeproof.operators import (
    Abs,
    Affine,
    AveragePool,
    Ceil,
    Clip,
    Combine,
    Concat,
    Conv,
    Floor,
    Jumping,
    LeakyRelu,
    Linear,
    MaxPool,
    Mean,
    Operator,
    Pad,
    Pairs,
    Positive,
    Ranked,
    Relu,
    Reshape,
    Round,
    Scale,
    Sign,
    Transpose,
    Unrolled,
)

# Networks whose sums have more terms than this, all layers together, take too long.
MOST_TERMS = 300_000
# So do those whose matrices have more entries than this, zeros included.
MOST_ENTRIES = 2**25
AFFINE = (AveragePool, Combine, Concat, Conv, Linear, Mean, Pad, Pairs, Reshape, Scale, Transpose, Unrolled)
JUMPS: Mapping[type[Operator], Callable[[Fraction], int]] = {Ceil: ceil, Floor: floor, Round: round}
Form = tuple[int, int]
Windows = list[list[int]]


@dataclass(frozen=True)
class Forms:
    """The entries (a z + b) / scale of a value on a stretch."""

    entries: list[Form]
    scale: int

    def over(self, scale: int) -> list[Form]:
        """The same entries over a multiple of the scale."""
        factor = scale // self.scale
        return self.entries if factor == 1 else [(a * factor, b * factor) for a, b in self.entries]


@dataclass(frozen=True)
class Rows:
    """An affine operator: each output is a sum of coefficients times inputs, plus a constant, all over one scale.

    Inputs are numbered one after another, those of the second value after those of the first.
    """

    terms: list[list[tuple[int, int]]]
    constants: list[int]
    scale: int

    def apply(self, values: Sequence[Forms]) -> Forms:
        common = lcm(*(value.scale for value in values))
        entries = [entry for value in values for entry in value.over(common)]
        forms = [
            (sum(w * entries[i][0] for i, w in row), sum(w * entries[i][1] for i, w in row) + constant * common)
            for row, constant in zip(self.terms, self.constants, strict=True)
        ]
        return Forms(forms, common * self.scale)


class Least(NamedTuple):
    """A least lead, where it is, and over which rival."""

    lead: Fraction
    place: Fraction
    rival: int


@dataclass(frozen=True, eq=False)
class RationalNetwork:
    """A network whose coefficients are exactly the file's."""

    graph: Graph

    @cached_property
    def is_possible(self) -> bool:
        """Whether it is small, made of operators that are known here, and nothing in it was ever rounded."""
        if sum(self._terms) > MOST_TERMS:
            return False
        affine = [node for node in self.graph.nodes if isinstance(node.operator, Affine)]
        if any(self.graph.shape(i).numel() * n.shape.numel() > MOST_ENTRIES for n in affine for i in n.inputs):
            return False
        return all(_is_known(node.operator) for node in self.graph.nodes)

    def least_lead(
        self,
        line: tuple[Sequence[Fraction], Sequence[Fraction]],
        stretch: tuple[float, float],
        label: int,
        rivals: Sequence[int],
        spend: Callable[[int], bool] = lambda terms: True,
    ) -> Least | None:
        """The least lead of the label over any of some rivals, on a stretch of a line slope z + base.

        `spend` is told how many terms are to be added up next, and says whether there is time for them: else None.
        """
        scale = lcm(*(number.denominator for part in line for number in part))
        start = Forms([(int(a * scale), int(b * scale)) for a, b in zip(*line, strict=True)], scale)
        least: Least | None = None
        low, high = map(Fraction, stretch)
        waiting = [(low, high, 0, {0: start}, False, True)]
        while waiting:
            low, high, index, values, straight, closed = waiting.pop()
            for index in range(index, len(self.graph.nodes)):  # noqa: B020 - goes on from there
                node = self.graph.nodes[index]
                inputs = [values[i] for i in node.inputs]
                if not isinstance(node.operator, Affine) and not straight:
                    if not spend(_jumps(node.operator, inputs[0], low, high)):
                        return None
                    cuts = sorted(
                        {
                            low,
                            high,
                            *(
                                cut
                                for cut in _cuts(node.operator, self._windows[index], inputs[0], low, high)
                                if low < cut < high
                            ),
                        }
                    )
                    jumps = isinstance(node.operator, Jumping)
                    if len(cuts) > 2 or (jumps and closed and low < high):
                        with_ends = closed and not jumps
                        points = [] if with_ends else cuts if closed else cuts[1:-1]
                        parts = [*((z, z, True) for z in points), *((*ends, with_ends) for ends in pairwise(cuts))]
                        waiting += [(a, b, index, values, True, whole) for a, b, whole in reversed(parts)]
                        break
                straight = False
                if not spend(self._terms[index]):
                    return None
                middle = (low + high) / 2
                if index in self._rows:
                    output = self._rows[index].apply(inputs)
                else:
                    output = _bent(node, self._windows[index], inputs[0], middle)
                values = {**values, index + 1: output}
                for dead in self.graph.last_uses[index]:
                    del values[dead]
            else:
                scores = values[len(self.graph.nodes)]
                for rival in rivals:
                    a, b = (x - y for x, y in zip(scores.entries[label], scores.entries[rival], strict=True))
                    place = low if a * low <= a * high else high
                    candidate = Least((a * place + b) / scores.scale, place, rival)
                    least = candidate if least is None else min(least, candidate)
        return least

    @cached_property
    def _terms(self) -> list[int]:
        return [_terms(node) for node in self.graph.nodes]

    @cached_property
    def _rows(self) -> dict[int, Rows]:
        return {
            index: _rows_of(self.graph, node)
            for index, node in enumerate(self.graph.nodes)
            if isinstance(node.operator, Affine)
        }

    @cached_property
    def _windows(self) -> list[Windows]:
        return [
            _windows(node.operator, self.graph.shape(node.inputs[0]), (node.shape[1], node.shape[2]))
            if isinstance(node.operator, MaxPool)
            else _groups(self.graph.shape(node.inputs[0]))
            if isinstance(node.operator, Ranked)
            else []
            for node in self.graph.nodes
        ]


def _is_known(operator: Operator) -> bool:
    if isinstance(operator, Affine):
        return isinstance(operator, AFFINE) and operator.roundings == 0 and operator.off is None
    if isinstance(operator, MaxPool):
        return operator.floor in (0, -torch.inf)
    return isinstance(operator, (Abs, Clip, LeakyRelu, Ranked, Relu, Positive, Sign, *JUMPS))


def _terms(node: Node) -> int:
    """How many terms its sums have, all together."""
    operator = node.operator
    if isinstance(operator, (Linear, Unrolled)):
        return operator.weight.numel() * node.shape.numel() // operator.weight.shape[0]
    depth = operator.weight.shape[2] if isinstance(operator, Conv) else 1
    return depth * node.shape.numel()


def _rows_of(graph: Graph, node: Node) -> Rows:
    """From what the operator makes of each unit vector: one coefficient each, which nothing rounds."""
    operator, shapes = node.operator, [graph.shape(value) for value in node.inputs]
    bare, whole = operator, 1
    divisors: list[int] = []
    if isinstance(operator, (Linear, Conv, Pairs, Unrolled)):
        bare = replace(operator, bias=torch.zeros_like(operator.bias))
    elif isinstance(operator, Scale):
        bare = replace(operator, offset=torch.zeros_like(operator.offset))
    elif isinstance(operator, Pad):
        bare = replace(operator, value=0.0)
    elif isinstance(operator, Mean):
        whole = operator.terms(*shapes) - 1
    elif isinstance(operator, AveragePool):
        bare = replace(operator, divisor=torch.ones_like(operator.divisor))
        divisors = operator.divisor.expand(node.shape).flatten().long().tolist()
        whole = lcm(*divisors)
    zeros = [torch.zeros(1, *shape, dtype=torch.float64) for shape in shapes]
    constants = operator.apply(*zeros).flatten().tolist()
    columns: list[list[tuple[int, float]]] = []
    for place, shape in enumerate(shapes):
        units = torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
        inputs = [
            units if other == place else zero.expand(len(units), *zero.shape[1:]) for other, zero in enumerate(zeros)
        ]
        response = bare.apply(*inputs).flatten(1)
        if isinstance(operator, Mean):  # of so many: what is left after multiplying by their number is 1
            response = (response * whole).round()
        columns += [_sparse(column) for column in response]
    scale = 1
    for number in (*constants, *(number for column in columns for _, number in column)):
        scale = max(scale, number.as_integer_ratio()[1])
    terms: list[list[tuple[int, int]]] = [[] for _ in constants]
    for number, column in enumerate(columns):
        for output, weight in column:
            share = whole // divisors[output] if divisors else 1
            terms[output].append((number, int(Fraction(weight) * scale) * share))
    return Rows(terms, [int(Fraction(constant) * scale * whole) for constant in constants], scale * whole)


def _sparse(column: Tensor) -> list[tuple[int, float]]:
    places = column.nonzero().squeeze(1)
    return list(zip(places.tolist(), column[places].tolist(), strict=True))


def _cuts(operator: Operator, windows: Windows, value: Forms, low: Fraction, high: Fraction) -> Iterator[Fraction]:
    """Where the operator may bend, or jump."""
    if isinstance(operator, MaxPool):
        for window in windows:
            yield from _envelope([_line(value, place) for place in window], low)
        return
    if isinstance(operator, Ranked):  # any two lines may change places
        for window in windows:
            for one, other in combinations((value.entries[place] for place in window), 2):
                yield from (Fraction(other[1] - one[1], one[0] - other[0]) for _ in range(one[0] != other[0]))
        return
    if isinstance(operator, Jumping):
        for a, b in value.entries:
            first, last = sorted(_jumped(operator, (a * z + b) / value.scale) for z in (low, high))
            steps = torch.arange(first, last, dtype=torch.float64)
            yield from ((Fraction(t) * value.scale - b) / a for t in operator.leaves(steps).tolist())
        return
    thresholds = operator.thresholds if isinstance(operator, (Abs, Clip, LeakyRelu, Relu)) else ()
    for threshold in map(Fraction, thresholds):
        level = threshold * value.scale
        yield from ((level - b) / a for a, b in value.entries if a)


def _jumps(operator: Operator, value: Forms, low: Fraction, high: Fraction) -> int:
    """How often the operator jumps between two strengths."""
    if not isinstance(operator, Jumping):
        return 0
    ends = (sorted(_jumped(operator, (a * z + b) / value.scale) for z in (low, high)) for a, b in value.entries)
    return sum(last - first for first, last in ends)


def _envelope(lines: list[Form], low: Fraction) -> Iterator[Fraction]:
    """Where the maximum of lines passes from one to another, from `low` on."""
    a, b = max(lines, key=lambda line: (line[0] * low + line[1], line[0]))
    while steeper := [(Fraction(b - d, c - a), c, d) for c, d in lines if c > a]:
        first, a, b = min(steeper, key=lambda meeting: (meeting[0], -meeting[1]))
        yield first


def _bent(node: Node, windows: Windows, value: Forms, middle: Fraction) -> Forms:
    """The operator's output on a segment without bends, from its state in the middle."""
    operator, scale = node.operator, value.scale
    heights = [a * middle + b for a, b in value.entries]
    if isinstance(operator, Relu):
        return Forms([e if h > 0 else (0, 0) for e, h in zip(value.entries, heights, strict=True)], scale)
    if isinstance(operator, Abs):
        return Forms([e if h > 0 else (-e[0], -e[1]) for e, h in zip(value.entries, heights, strict=True)], scale)
    if isinstance(operator, LeakyRelu):
        slopes = operator.slope.double().expand(node.shape).flatten().tolist()
        whole = max(slope.as_integer_ratio()[1] for slope in slopes)
        factors = [whole if h > 0 else int(Fraction(s) * whole) for s, h in zip(slopes, heights, strict=True)]
        return Forms([(f * a, f * b) for f, (a, b) in zip(factors, value.entries, strict=True)], scale * whole)
    if isinstance(operator, Clip):
        limits = [Fraction(limit) if abs(limit) < float("inf") else None for limit in (operator.low, operator.high)]
        whole = max(1 if limit is None else limit.denominator for limit in limits)
        low, high = (None if limit is None else (0, int(limit * whole) * scale) for limit in limits)
        forms = [
            low
            if low is not None and h * whole <= low[1]
            else high
            if high is not None and h * whole >= high[1]
            else (a * whole, b * whole)
            for (a, b), h in zip(value.entries, heights, strict=True)
        ]
        return Forms(forms, scale * whole)
    if isinstance(operator, Jumping):
        return Forms([(0, _jumped(operator, h / scale)) for h in heights], 1)
    if isinstance(operator, Ranked):
        by_height = (sorted(window, key=heights.__getitem__) for window in windows)
        return Forms([value.entries[window[operator.rank - 1]] for window in by_height], scale)
    lines = ([_line(value, place) for place in window] for window in windows)
    return Forms([max(group, key=lambda line: line[0] * middle + line[1]) for group in lines], scale)


def _jumped(operator: Jumping, x: Fraction) -> int:
    if isinstance(operator, Positive):
        return int(x > 0 or (operator.or_zero and x == 0))
    return (x > 0) - (x < 0) if isinstance(operator, Sign) else JUMPS[type(operator)](x)


def _line(value: Forms, place: int) -> Form:
    """An entry, or the 0 that takes part in every maximum."""
    return value.entries[place] if place >= 0 else (0, 0)


def _groups(shape: torch.Size) -> Windows:
    """The entries along the last axis of a value of `shape`."""
    groups: Windows = torch.arange(shape.numel()).view(-1, shape[-1]).tolist()
    return groups


def _windows(pool: MaxPool, shape: torch.Size, size: tuple[int, int]) -> list[list[int]]:
    """The entries under each position of the window on a value of `shape`; -1 is the floor."""
    numbers = torch.arange(shape.numel(), dtype=torch.float64).view(shape)
    views = pool.window.shifted(pool.window.padded(numbers, -1.0))
    windows = torch.stack([view.flatten() for view in views], 1).long().tolist()
    floor = [-1] if pool.floor == 0 else []
    return [[place for place in window if place >= 0] + floor for window in windows]
