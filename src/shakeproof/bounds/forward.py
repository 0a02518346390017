"""Forward: every neuron between two parallel affine functions of the parameters, for many cells at once.

A value is enclosed as an affine function of z, known from its values at m + 1 points of each cell, give or take a
radius, in which rounding is included. An affine operator costs m + 1 rows for the points and one, through its absolute
values, for the radius: about m + 2 forward passes a cell. Through many layers absolute values say little: there a bound
on the Euclidean norm of all that is beside the affine functions goes along, and each tightens the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, reduce

import torch
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget
from shakeproof.graph import Graph, cached_per_graph
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
    operator_norms,
)
from shakeproof.rounding import carried, gammas, noises_of, norm, planes_share, widened, work_out_norms

FLOAT_BYTES = 8
# Sums of a few shares and slopes are off by less, as a share of their sizes.
ROUNDED = 2.0**-42
# No side that matters is smaller.
SMALLEST = 1e-200


class Domain(ABC):
    """Many cells of the parameter space, each with a bounding box: low and high (cells, m).

    An affine function of m parameters is known from its values at m + 1 points of a cell: its centre, and a step from
    there along each axis.
    """

    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    @cached_property
    def centre(self) -> Tensor:
        return (self.low + self.high) / 2

    @cached_property
    def half(self) -> Tensor:
        """Half the sides; the rounded centre's larger distance to an end, so that nothing of the cell sticks out."""
        return torch.maximum(self.high - self.centre, self.centre - self.low)

    @cached_property
    def points(self) -> Tensor:
        """The centre and a step of `half` along each axis: (m + 1, cells, m)."""
        steps = torch.eye(self.low.shape[1], dtype=self.low.dtype, device=self.low.device).unsqueeze(1) * self.half
        return torch.cat([self.centre.unsqueeze(0), self.centre + steps])

    def __getitem__(self, cells: Tensor) -> Domain:
        """Some of the cells."""
        return replace(self, low=self.low[cells], high=self.high[cells])  # type: ignore[type-var]

    def lowest(self, offset: Tensor, gradient: Tensor) -> Tensor:
        """The least values (cells) of affine functions, offset (cells) and gradient (cells, m), one on each cell."""
        return offset + torch.minimum(gradient * self.low, gradient * self.high).sum(1)

    @abstractmethod
    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        """The least and greatest of affine functions over each cell, from their values at the points.

        Values (m + 1, cells, *shape); what is known only up to `radius` (cells, *shape) may be so much farther out.
        """


@dataclass(frozen=True, eq=False)
class Boxes(Domain):
    """Boxes from low to high, both (cells, m)."""

    low: Tensor
    high: Tensor

    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        reach = torch.zeros_like(values[0]) if radius is None else radius.clone()
        for value in values[1:]:
            reach += (value - values[0]).abs_()
        return Range(values[0] - reach, values[0] + reach)


@dataclass(frozen=True, eq=False)
class Shares(Domain):
    """What of boxes from low to high, both (cells, m), sums to at most `total`: parts of a simplex.

    A linear function has its least value where what is left of the total goes to the steepest axes, as far as the box
    allows: a fractional knapsack. Whatever is given to whom is within the box, so rounding is that of a box.
    """

    low: Tensor
    high: Tensor
    total: float

    @cached_property
    def left(self) -> Tensor:
        """What is left of the total (cells) beside the least shares, at least; below 0 where a cell is empty."""
        return self.total - self.low.sum(1) + ROUNDED * self.total

    @property
    def is_empty(self) -> Tensor:
        """Which cells (cells) hold nothing."""
        return self.left < -ROUNDED * self.total

    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        shape = (-1, *(1,) * (values.dim() - 2))
        halves = self.half.t().reshape(-1, len(self), *shape[1:])
        changes = values[1:] - values[0]
        slopes, widths = changes / halves.clamp(min=SMALLEST), (2 * halves).expand_as(changes)
        start = values[0] - changes.sum(0)
        least, most = (sign * _knapsack(sign * slopes, widths, self.left.view(shape)) for sign in (1, -1))
        slack = ROUNDED * values.abs().sum(0)
        slack = slack if radius is None else slack + radius
        return Range(start + least - slack, start + most + slack)

    def lowest(self, offset: Tensor, gradient: Tensor) -> Tensor:
        least = _knapsack(gradient.t(), (self.high - self.low).t(), self.left)
        start = offset + (gradient * self.low).sum(1)
        return start + least - ROUNDED * (offset.abs() + (gradient.abs() * self.high).sum(1))


def _knapsack(slopes: Tensor, widths: Tensor, left: Tensor) -> Tensor:
    """The least sum of slopes (m, *shape) times amounts from 0 to widths that are all together at most `left`."""
    falling, order = slopes.clamp(max=0).sort(dim=0)
    widths = widths.gather(0, order)
    amounts = (left - widths.cumsum(0) + widths).clamp(min=0).minimum(widths)
    return (falling * amounts).sum(0)


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
        return self.within(radius, length)

    def within(self, radius: Tensor, length: Tensor | None = None) -> Enclosure:
        """The same affine functions, give or take another radius."""
        enclosure = replace(self, radius=radius, norm=length)
        vars(enclosure)["extent"] = self.extent  # that of the same points
        return enclosure

    @cached_property
    def range(self) -> Range:
        interval, limits = self.domain.extremes(self.points, self.radius), self.image()
        if limits is None:
            return interval
        return Range(torch.fmax(interval.low, limits.low), torch.fmin(interval.high, limits.high))

    @cached_property
    def extent(self) -> Tensor:
        """|centre| + sum |step| at most, of the affine functions: they are no larger anywhere on the cell."""
        if len(self.points) == 2:
            return self.points.abs().sum(0).mul_(2)
        extent = self.points[0].abs()
        for point in self.points[1:]:
            extent += point.abs()
        return extent.mul_(len(self.points))

    @cached_property
    def size(self) -> Tensor:
        """No less than the value's absolute value anywhere on the cell."""
        return self.extent + self.radius

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


def enclose(graph: Graph, inputs: Tensor, domain: Domain, error: Tensor, budget: Budget = UNLIMITED) -> Enclosed:
    """Bounds on every neuron on each of the domain's cells; an error if the time is up before that.

    The inputs are affine in the parameters: (m + 1, cells, *input_shape), their values at the domain's points. They are
    off by at most `error` (cells, *input_shape).
    """
    if graph.is_deep:
        work_out_norms(graph, budget)
    start = Enclosure(domain, inputs, error)
    read = (graph.unit - UNIT) * start.extent  # by a network that takes no float64
    start = start.within(error + read + graph.tiny)
    values = {0: start.tightened(norm(start.radius)) if graph.is_deep else start}
    largest = {0: values[0].largest}
    off = values[0].radius.flatten(1).amax(1)
    noise = (off + 4 * planes_share(graph.input_shape, len(graph.nodes)) * largest[0]).unsqueeze(0)
    relaxations: list[Relaxation] = []
    all_terms: list[Tensor] = []
    for index, node in enumerate(graph.nodes):
        budget.check()
        operands, within = [values[i] for i in node.inputs], reduce(torch.maximum, [largest[i] for i in node.inputs])
        enclosure, relaxation, terms = step(graph, index, operands, within)
        values[index + 1], largest[index + 1] = enclosure, terms
        all_terms.append(terms)
        relaxations.append(relaxation)
        for dead in graph.last_uses[index]:
            del values[dead]
    scores, noises = values[len(graph.nodes)], torch.cat([noise, noises_of(graph, torch.stack(all_terms))])
    if graph.largest < torch.inf:  # what overflows on its way is not enclosed
        overflows = (noises.isinf().any(0) | (largest[0] >= graph.largest)).unsqueeze(1)
        scores = replace(scores, radius=torch.where(overflows, torch.nan, scores.radius))
    return Enclosed(domain, inputs, relaxations, scores, noises)


def step(graph: Graph, index: int, inputs: Sequence[Enclosure], within: Tensor) -> tuple[Enclosure, Relaxation, Tensor]:
    """A node's output, how it is relaxed, and how large (cells) any of its sums' terms are together.

    No entry of its inputs is larger than `within` (cells). What a piecewise-linear function is rounded by is left to
    whoever reads it, whose share allows for it.
    """
    node, share, constant = graph.nodes[index], gammas(graph)[index], graph.largest_constants[index]
    operator = node.operator
    if isinstance(operator, Affine) and operator.only_moves:
        relaxation: Relaxation = operator.itself([graph.shape(i) for i in node.inputs])
        radius, terms = relaxation.spread(*(value.radius for value in inputs)), within + constant
    elif isinstance(operator, Affine):
        relaxation = operator.itself([graph.shape(i) for i in node.inputs])
        radius = relaxation.spread(*(torch.add(value.radius, value.size, alpha=share) for value in inputs))
        radius = radius + _made(graph)(len(inputs[0].points))[index]
        terms = graph.row_sums[index] * reduce(torch.maximum, [value.largest for value in inputs]) + constant
    else:
        relaxation = operator.relaxed(*(value.range for value in inputs))
        errors = carried(operator, share, [v.radius for v in inputs], [v.size for v in inputs])
        radius = relaxation.spread(*errors)
        terms = operator.steepest * within + constant if isinstance(operator, PiecewiseLinear) else within
    points = relaxation.points(*(value.points for value in inputs))
    output = Enclosure(inputs[0].domain, points, radius, _image(graph, index, relaxation, inputs))
    if not isinstance(operator, (Affine, Jumping)) or index + 1 == len(graph.nodes):
        output = output.within(torch.add(output.radius, output.extent, alpha=share + 4 * UNIT).add_(graph.tiny))
    if isinstance(operator, Elementwise) and not isinstance(operator, PiecewiseLinear):
        output = output.within(output.radius + share * inputs[0].size)  # parts of a smooth function may cancel
    if graph.is_deep:
        output = output.tightened(_length(graph, index, relaxation, inputs, output))
    if not isinstance(operator, (Affine, PiecewiseLinear)):
        terms = relaxation.spread(*(value.size for value in inputs)).flatten(1).amax(1) + output.largest + within
    return output, relaxation, terms


def _length(graph: Graph, index: int, relaxation: Relaxation, inputs: Sequence[Enclosure], output: Enclosure) -> Tensor:
    """A bound (cells) on the norm of a node's deviation from its affine functions; infinite if there is none."""
    node, lengths = graph.nodes[index], [value.norm for value in inputs if value.norm is not None]
    share = gammas(graph)[index]
    local = norm(output.extent) * ((0 if isinstance(node.operator, Affine) else share) + 4 * UNIT)
    if isinstance(node.operator, Affine):
        gains = operator_norms(node.operator, [graph.shape(i) for i in node.inputs])
        local = local + _lengths_made(graph)[index]
        for value, length, (gain, absolute) in zip(inputs, lengths, gains, strict=True):
            local = local + gain * length + share * absolute * norm(value.size)
        return ABOVE * local
    local = local + graph.tiny * node.shape.numel()
    if isinstance(node.operator, PiecewiseLinear):
        reach = relaxation.spread(*(torch.zeros_like(value.radius) for value in inputs))
        return ABOVE * (local + node.operator.lipschitz * lengths[0] + norm(reach))
    return torch.full_like(local, torch.inf)


@cached_per_graph
def _lengths_made(graph: Graph) -> tuple[float, ...]:
    """What each affine node's constant adds to the norm of its deviation."""
    return tuple(
        float(share * norm(constant) + norm(off)) + graph.tiny * node.shape.numel()
        for node, share, constant, off in zip(graph.nodes, gammas(graph), graph.constants, graph.offs, strict=True)
    )


@cached_per_graph
def _made(graph: Graph) -> Callable[[int], tuple[Tensor, ...]]:
    """What each node's constant adds to the radius of an affine one, by the number of a cell's points: a corner is
    extrapolated from the points, and so is their rounding.
    """
    tiny, terms = graph.tiny, list(zip(gammas(graph), graph.constants, graph.offs, strict=True))

    @cache
    def radii(points: int) -> tuple[Tensor, ...]:
        return tuple((2 * points - 1) * share * constant + off + tiny for share, constant, off in terms)

    return radii


def _image(graph: Graph, index: int, relaxation: Relaxation, inputs: Sequence[Enclosure]) -> Callable[[], Range | None]:
    """The output's range from the ranges of its inputs, computed on demand; rounding is included."""
    if isinstance(relaxation, Itself) and not relaxation.operator.passes_ranges:
        return lambda: None  # and holds on to nothing

    def within_ranges() -> Range | None:
        image = relaxation.image(*(value.range for value in inputs))
        if image is None or (isinstance(relaxation, Itself) and relaxation.operator.only_moves):
            return image
        return widened(graph, index, image, relaxation, [value.size for value in inputs])

    return within_ranges


def cells_within(graph: Graph, budget: Budget, parameters: int) -> int:
    """How many cells may be enclosed at once: those that fit into half of the memory, and one if all of it holds it."""
    neurons = sum(node.shape.numel() for node in graph.nodes)
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    size = FLOAT_BYTES * (9 * neurons + (4 * parameters + 16) * widest)
    return -(-budget.fitting(size, "bounding the network") // 2)
