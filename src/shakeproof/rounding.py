"""How far float64 may have strayed: the one rule, for cells, for planes and for the chords of a sweep.

A sum of n products is off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values, in whatever
order it is added up (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). So errors run through a
network as

    e' = |W| e + gamma (|W| |x| + |b|)

entry by entry, where |W| is an operator's `magnitude`; other operators say by their own enclosure how far they carry an
error. Beyond some ten layers that says little. There the Euclidean norm of all of a value's errors is carried along,

    |e'| <= |W|_2 |e| + gamma (||W||_2 |x| + |b|)

with norms of the layers that are proved (`operator_norms`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.graph import Graph, Node, cached_per_graph
from shakeproof.operators import (
    ABOVE,
    UNIT,
    Affine,
    Bending,
    Clip,
    Conv,
    Itself,
    Jumping,
    LeakyRelu,
    Linear,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
    Unrolled,
    operator_norms,
)

# Squares of what is smaller than this may underflow.
LOST = 2.0**-500
# A row put between two others is off by so many units of their size; and where it was put because a neuron bends there,
# what the function makes of that by so many, for each of its thresholds.
OF_CHORDS, OF_BENDS = 8, 48


@cached_per_graph
def gammas(graph: Graph) -> tuple[float, ...]:
    """For each node, the relative rounding of its sums, and of a line around what it reads."""
    return tuple(gamma(graph, node) for node in graph.nodes)


def gamma(graph: Graph, node: Node) -> float:
    """The same of one node.

    What piecewise-linear functions give back is rounded once, if at all, and so is what they compare with. Whole
    numbers are not rounded.
    """
    operator = node.operator
    if operator.only_moves or isinstance(operator, Jumping):
        return 0.0
    if isinstance(operator, PiecewiseLinear):
        return 2 * graph.unit if isinstance(operator, (Clip, LeakyRelu)) else UNIT
    count = operator.terms(*(graph.shape(value) for value in node.inputs)) + 8
    if isinstance(operator, Affine):
        count += operator.roundings
    return count * graph.unit / (1 - count * graph.unit) if count * graph.unit < 1 else float("inf")


def planes_share(shape: torch.Size, nodes: int = 0, roundings: int = 0) -> float:
    """The relative rounding of a plane pulled through a value: no sum there has more terms than it has entries, its
    constant is added to as many times as there are nodes, and so are coefficients that several nodes give it.
    """
    count = shape.numel() + 2 * nodes + roundings + 12
    return count * UNIT / (1 - count * UNIT)


@cached_per_graph
def _noises(graph: Graph) -> Tensor:
    """What a plane is off by at each node, as a share of its sums' terms, and beyond that: (2, nodes, 1)."""
    noises = []
    for node, share, off in zip(graph.nodes, gammas(graph), graph.offs, strict=True):
        roundings = node.operator.roundings if isinstance(node.operator, Affine) else 0
        planes = planes_share(node.shape, len(graph.nodes), roundings)
        noises.append((2 * planes + share, float(off.max()) + graph.tiny))
    return torch.tensor(noises, dtype=torch.float64, device=graph.device).t().unsqueeze(2)


def noises_of(graph: Graph, terms: Tensor, first: int = 0) -> Tensor:
    """What a plane is off by (nodes, cells) for each unit of the coefficients that it had at some nodes, from the first
    on, whose sums' terms (nodes, cells) are so large together.
    """
    share, off = _noises(graph)[:, first : first + len(terms)]
    noise = torch.addcmul(off, share, terms)
    return noise if graph.largest == torch.inf else torch.where(terms < graph.largest, noise, torch.inf)


def carried(operator: Operator, share: float, errors: Sequence[Tensor], sizes: Sequence[Tensor]) -> list[Tensor]:
    """Errors of an operator's inputs together with those that its own rounding makes of them.

    |W| (e + 2 gamma |x|) + gamma |y| is no less than |W| e + gamma (|W| |x| + |b|), since |b| <= |W| |x| + |y|, and
    takes one product instead of two.
    """
    if isinstance(operator, PiecewiseLinear):
        return list(errors)
    return [torch.add(error, size, alpha=2 * share) for error, size in zip(errors, sizes, strict=True)]


def widened(graph: Graph, index: int, image: Range, relaxation: Relaxation, sizes: Sequence[Tensor]) -> Range:
    """The range of a node's output from its inputs' ranges, widened by the possible rounding."""
    share = gammas(graph)[index]
    slack = share * torch.maximum(image.low.abs(), image.high.abs()) + graph.tiny
    if isinstance(relaxation, Itself):
        slack = slack + share * (relaxation.spread(*sizes) + graph.constants[index]) + graph.offs[index]
    elif len(sizes) == 1 and sizes[0].shape == slack.shape:  # parts of a smooth function may cancel
        slack = slack + share * sizes[0]
    return Range(image.low - slack, image.high + slack)


def norm(x: Tensor) -> Tensor:
    """No less than the Euclidean norm of each row of `x` (rows, *shape)."""
    length: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1).mul_(ABOVE).add_(LOST)
    return length  # squares of what is tiny may have been lost


def work_out_norms(graph: Graph, budget: Budget) -> None:
    """See that the norms of a network's layers are known, or an error if the time is up before that."""
    for node in graph.nodes:
        if isinstance(node.operator, Affine):
            operator_norms(node.operator, [graph.shape(value) for value in node.inputs], budget.check)


class Coefficients(NamedTuple):
    """How a node carries norms: for each input how much it may stretch it, and how much with positive coefficients;
    its share of rounding; the norm of its constant, and what that is off by.
    """

    gains: tuple[tuple[float, float], ...]
    share: float
    constant: float
    off: float


@dataclass(frozen=True, eq=False)
class RunningError:
    """How far scores may be from the chords of a sweep, by one number for each segment.

    Whatever is off at a value, by its norm, is off by at most `effects` times as much at the scores. So one number adds
    up what all nodes have done. Of a value, only its size is carried along: the norm of the larger of a segment's rows.
    """

    graph: Graph

    def start(self, rows: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        """The size of inputs (rows, *input_shape), and what it does to scores that they are `off` (rows), in norm, and
        that constants are rounded.
        """
        return _of_segments(norm(rows)), torch.add(_of_constants(self.graph), off, alpha=self.effects[0] * ABOVE)

    def between(self, sizes: Mapping[int, Tensor], units: float = OF_CHORDS) -> Tensor:
        """What rows put between others, off by so many units of the sizes of values (by number), do to the scores."""
        parts = [size * (units * UNIT * self.effects[number]) for number, size in sizes.items()]
        return reduce(torch.add, parts) * ABOVE

    def after(
        self, index: int, sizes: Sequence[Tensor], output: Tensor, error: Tensor, gaps: Tensor | None = None
    ) -> Tensor:
        """The size of a node's output, from the sizes of its inputs. What it does to the scores that it was computed is
        added to the `error` (rows); `gaps` (rows) says what bends that have no row may add.
        """
        node, effect = self.coefficients[index], self.effects[index + 1] * ABOVE
        for size, (_, absolute) in zip(sizes, node.gains, strict=True):
            error.add_(size, alpha=node.share * absolute * effect)
        if gaps is not None:
            error.add_(gaps, alpha=effect)
        if index in self.measured:
            return _of_segments(norm(output))
        bound = torch.full_like(error, node.constant * ABOVE)
        for size, (_, absolute) in zip(sizes, node.gains, strict=True):
            bound.add_(size, alpha=absolute * ABOVE)
        return bound

    def evaluated(self, rows: Tensor, off: Tensor) -> Tensor:
        """How far scores may be off that are evaluated directly, of inputs that are off by so much (rows), in norm."""
        size, error = self.start(rows, off)
        sizes = [size]
        for index, y in enumerate(self.graph.values(rows)):
            sizes.append(self.after(index, [sizes[value] for value in self.graph.nodes[index].inputs], y, error))
        return error

    @cached_property
    def measured(self) -> frozenset[int]:
        """The nodes whose output norms are needed: the inputs of large sums, and the scores."""
        sums = [node for node in self.graph.nodes if isinstance(node.operator, (Linear, Conv, Unrolled))]
        return frozenset({value - 1 for node in sums for value in node.inputs} | {len(self.graph.nodes) - 1})

    @cached_property
    def coefficients(self) -> tuple[Coefficients, ...]:
        return _coefficients(self.graph)

    @cached_property
    def effects(self) -> tuple[float, ...]:
        """For each value, the factor by which an error's norm may grow on its way to the scores."""
        return _effects(self.graph)


@cached_per_graph
def _coefficients(graph: Graph) -> tuple[Coefficients, ...]:
    return tuple(_coefficients_of(graph, index) for index in range(len(graph.nodes)))


@cached_per_graph
def _effects(graph: Graph) -> tuple[float, ...]:
    effects = [0.0] * len(graph.nodes) + [1.0]
    for index, coefficients in reversed(list(enumerate(_coefficients(graph)))):
        for value, (gain, _) in zip(graph.nodes[index].inputs, coefficients.gains, strict=True):
            effects[value] += gain * effects[index + 1] * ABOVE
    return tuple(effects)


@cached_per_graph
def _of_constants(graph: Graph) -> Tensor:
    """What the rounding of all nodes' constants, and of sums with them, does to the scores."""
    nodes = zip(_coefficients(graph), _effects(graph)[1:], strict=True)
    parts = [(node.share * node.constant + node.off) * effect * ABOVE for node, effect in nodes]
    return torch.tensor(sum(parts), dtype=torch.float64, device=graph.device)


def _coefficients_of(graph: Graph, index: int) -> Coefficients:
    node = graph.nodes[index]
    operator, constant = node.operator, float(norm(graph.constants[index]))
    shapes = [graph.shape(value) for value in node.inputs]
    tiny = graph.tiny * float(node.shape.numel() ** 0.5)
    if isinstance(operator, Affine):
        off = float(norm(graph.offs[index])) + tiny
        return Coefficients(operator_norms(operator, shapes), gammas(graph)[index], constant, off)
    assert isinstance(operator, PiecewiseLinear)
    bends = len(operator.thresholds) if isinstance(operator, Bending) else 2
    return Coefficients(((operator.lipschitz, operator.lipschitz),), OF_BENDS * bends * UNIT, constant, tiny)


def _of_segments(rows: Tensor) -> Tensor:
    """The larger of each row's and the next one's; of the last, which has no segment, of any two."""
    return torch.maximum(rows, rows.roll(-1))
