"""Forward: every neuron between two parallel affine functions of the parameters, for many cells at once.

A value is enclosed as an affine function of z, known from its values at m + 1 points of each cell, give or take a
radius, in which rounding is included. An affine operator costs m + 1 rows for the points and one, through its absolute
values, for the radius: about m + 2 forward passes a cell. Through many layers absolute values say little: there a bound
on the Euclidean norm of all that is beside the affine functions goes along, and each tightens the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from shakeproof.bounds.domain import Domain
from shakeproof.budget import Budget
from shakeproof.network import Graph
from shakeproof.operators import (
    ABOVE,
    UNIT,
    Affine,
    Elementwise,
    Itself,
    Jumping,
    PiecewiseLinear,
    Range,
    Relaxation,
    stretches,
)
from shakeproof.rounding import carried, gammas, noise_of, norm, planes_share, widened

FLOAT_BYTES = 8


@dataclass(frozen=True, eq=False)
class Enclosure:
    """A value on each cell: affine with values `points` (m + 1, cells, *shape), give or take `radius` (cells, *shape),
    all of whose entries together, as a vector, are no longer than `norm` (cells), where that is known.

    What it lies between follows from that and from `image`, and is worked out when somebody asks.
    """

    domain: Domain
    points: Tensor
    radius: Tensor
    image: Callable[[], Range | None] = field(default=lambda: None)
    norm: Tensor | None = None

    def tightened(self, length: Tensor) -> Enclosure:
        """With a bound (cells) on the norm: no entry is longer than all, and all are no longer than each together."""
        length = torch.fmin(length, norm(self.radius))
        radius = torch.fmin(self.radius, length.view(-1, *(1,) * (self.radius.dim() - 1)))
        return replace(self, radius=radius, norm=length)

    @cached_property
    def range(self) -> Range:
        found, limits = self.domain.extremes(self.points, self.radius), self.image()
        if limits is None:
            return found
        return Range(torch.fmax(found.low, limits.low), torch.fmin(found.high, limits.high))

    @cached_property
    def size(self) -> Tensor:
        """No less than the value's absolute value anywhere on the cell."""
        return _size(self.points).add_(self.radius)

    @cached_property
    def largest(self) -> Tensor:
        """The size (cells) of the largest entry."""
        return self.size.flatten(1).amax(1)


@dataclass(frozen=True, eq=False)
class Enclosed:
    """A network on some cells: its inputs there, how each operator was relaxed, and where the class scores are.

    `noise` (nodes + 1, cells) is what a plane is off by on each cell, for each unit of the coefficients that it had at
    the inputs and at each node on its way back.
    """

    domain: Domain
    inputs: Tensor
    relaxations: Sequence[Relaxation]
    scores: Enclosure
    noise: Tensor


def enclose(graph: Graph, inputs: Tensor, domain: Domain, error: Tensor) -> Enclosed:
    """Bounds on every neuron on each of the domain's cells.

    The inputs are affine in the parameters: (m + 1, cells, *input_shape), their values at the domain's points. They are
    off by at most `error` (cells, *input_shape).
    """
    read = (graph.unit - UNIT) * _size(inputs)  # by a network that takes no float64
    start = Enclosure(domain, inputs, error + read + graph.tiny)
    values = {0: start.tightened(norm(start.radius)) if graph.is_deep else start}
    largest = {0: values[0].largest}
    off = values[0].radius.flatten(1).amax(1)
    noise = [off + 4 * planes_share(graph.input_shape, len(graph.nodes)) * largest[0]]
    relaxations: list[Relaxation] = []
    for index, node in enumerate(graph.nodes):
        given, within = [values[i] for i in node.inputs], torch.stack([largest[i] for i in node.inputs]).amax(0)
        made, relaxation, terms = step(graph, index, given, within)
        values[index + 1], largest[index + 1] = made, terms
        noise.append(noise_of(graph, index, terms))
        relaxations.append(relaxation)
        for dead in graph.last_uses[index]:
            del values[dead]
    scores, noises = values[len(graph.nodes)], torch.stack(noise)
    if graph.largest < torch.inf:  # what overflows on its way is not enclosed
        overflows = noises.isinf().any(0).unsqueeze(1)
        scores = replace(scores, radius=torch.where(overflows, torch.nan, scores.radius))
    return Enclosed(domain, inputs, relaxations, scores, noises)


def step(graph: Graph, index: int, given: Sequence[Enclosure], within: Tensor) -> tuple[Enclosure, Relaxation, Tensor]:
    """A node's output, how it is relaxed, and how large (cells) any of its sums' terms are together.

    No entry of its inputs is larger than `within` (cells). What a piecewise-linear function is rounded by is left to
    whoever reads it, whose share allows for it.
    """
    node, share = graph.nodes[index], gammas(graph)[index]
    operator, constant = node.operator, graph.constants[index]
    if isinstance(operator, Affine) and operator.only_moves:
        relaxation: Relaxation = operator.itself([graph.shape(i) for i in node.inputs])
        radius, terms = relaxation.spread(*(value.radius for value in given)), within + constant.max()
    elif isinstance(operator, Affine):
        relaxation = operator.itself([graph.shape(i) for i in node.inputs])
        radius = relaxation.spread(*(torch.add(value.radius, value.size, alpha=share) for value in given))
        corners = 2 * len(given[0].points) - 1  # a corner is extrapolated from the points, and so is their rounding
        radius = radius + (corners * share * constant + graph.offs[index] + graph.tiny)
        terms = graph.row_sums[index] * torch.stack([value.largest for value in given]).amax(0) + constant.max()
    else:
        relaxation = operator.relaxed(*(value.range for value in given))
        errors = carried(operator, share, [v.radius for v in given], [v.size for v in given])
        radius = relaxation.spread(*errors)
        terms = operator.steepest * within + constant.max() if isinstance(operator, PiecewiseLinear) else within
    points = relaxation.points(*(value.points for value in given))
    if not isinstance(operator, (Affine, Jumping)) or index + 1 == len(graph.nodes):
        radius = radius + ((share + 4 * UNIT) * _size(points) + graph.tiny)
    if isinstance(operator, Elementwise) and not isinstance(operator, PiecewiseLinear):
        radius = radius + share * given[0].size  # parts of a smooth function may cancel
    made = Enclosure(given[0].domain, points, radius, _image(graph, index, relaxation, given))
    if graph.is_deep:
        made = made.tightened(_length(graph, index, relaxation, given, made))
    if not isinstance(operator, (Affine, PiecewiseLinear)):
        terms = relaxation.spread(*(value.size for value in given)).flatten(1).amax(1) + made.largest + within
    return made, relaxation, terms


def _length(graph: Graph, index: int, relaxation: Relaxation, given: Sequence[Enclosure], made: Enclosure) -> Tensor:
    """A bound (cells) on the norm of all that is beside a node's affine functions; infinite if there is none."""
    node, lengths = graph.nodes[index], [value.norm for value in given if value.norm is not None]
    local = norm(
        ((0 if isinstance(node.operator, Affine) else gammas(graph)[index]) + 4 * UNIT) * _size(made.points)
    ) + graph.tiny * float(node.shape.numel())
    if isinstance(node.operator, Affine):
        share = gammas(graph)[index]
        gains = stretches(node.operator, [graph.shape(i) for i in node.inputs])
        local = local + float(share * norm(graph.constants[index]) + norm(graph.offs[index]))
        for value, length, (gain, absolute) in zip(given, lengths, gains, strict=True):
            local = local + gain * length + share * absolute * norm(value.size)
        return ABOVE * local
    if isinstance(node.operator, PiecewiseLinear):
        reach = relaxation.spread(*(torch.zeros_like(value.radius) for value in given))
        return ABOVE * (local + node.operator.stretch * lengths[0] + norm(reach))
    return torch.full_like(local, torch.inf)


def _size(points: Tensor) -> Tensor:
    """|centre| + sum |step| at most, from an affine function's values at the points (m + 1, cells, *shape)."""
    size = points[0].abs()
    for point in points[1:]:
        size += point.abs()
    return size.mul_(len(points))


def _image(graph: Graph, index: int, relaxation: Relaxation, given: Sequence[Enclosure]) -> Callable[[], Range | None]:
    """What the output lies between by the ranges of its inputs, when somebody asks: with what rounding may do to it."""
    if isinstance(relaxation, Itself) and not relaxation.operator.passes_ranges:
        return lambda: None  # and holds on to nothing

    def found() -> Range | None:
        image = relaxation.image(*(value.range for value in given))
        if image is None or (isinstance(relaxation, Itself) and relaxation.operator.only_moves):
            return image
        return widened(graph, index, image, relaxation, [value.size for value in given])

    return found


def cells_within(graph: Graph, budget: Budget, parameters: int) -> int:
    """How many cells may be enclosed at once: those that fit into half of the memory, and one if all of it holds it."""
    neurons = sum(node.shape.numel() for node in graph.nodes)
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    size = FLOAT_BYTES * (9 * neurons + (4 * parameters + 16) * widest)
    return -(-budget.fitting(size, "bounding the network") // 2)
