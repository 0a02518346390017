"""Forward: every neuron between two parallel affine functions of the parameters, for many cells at once.

A value is enclosed as an affine function of z, known from its values at m + 1 points of each cell, give or take a
radius. An affine operator costs m + 1 rows for the points and one, through its absolute values, for the radius: about
m + 2 forward passes a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from shakeproof.bounds.domain import Domain
from shakeproof.errors import MemoryBudgetError
from shakeproof.network.graph import Graph
from shakeproof.operators import Affine, Range, Relaxation
from shakeproof.operators.base import Itself
from shakeproof.rounding import OF_SCORES, OF_VALUES

FLOAT_BYTES = 8


@dataclass(frozen=True, eq=False)
class Path:
    """Inputs x(z) = sum of slopes[i] z_i + base; slopes (m, *input_shape), base (*input_shape)."""

    slopes: Tensor
    base: Tensor

    @property
    def parameters(self) -> int:
        return len(self.slopes)

    def at(self, z: Tensor) -> Tensor:
        """The inputs (..., *input_shape) at z (..., m)."""
        moved: Tensor = torch.tensordot(z, self.slopes, dims=1)
        return moved.add_(self.base)


@dataclass(frozen=True, eq=False)
class Enclosure:
    """A value on each cell: affine with values `points` (m + 1, cells, *shape), give or take `radius` (cells, *shape).

    What it lies between follows from that and from `image`, and is worked out when somebody asks.
    """

    domain: Domain
    points: Tensor
    radius: Tensor
    image: Callable[[], Range | None] = field(default=lambda: None)

    @cached_property
    def range(self) -> Range:
        found, limits = self.domain.extremes(self.points, self.radius), self.image()
        if limits is None:
            return found
        return Range(torch.fmax(found.low, limits.low), torch.fmin(found.high, limits.high))


@dataclass(frozen=True, eq=False)
class Enclosed:
    """A network on some cells: its inputs there, how each operator was relaxed, and where the class scores are.

    `largest` (cells) is how large any value inside the network is.
    """

    domain: Domain
    inputs: Tensor
    relaxations: Sequence[Relaxation]
    scores: Enclosure
    largest: Tensor

    @property
    def guard(self) -> Tensor:
        """How large a bound on each cell (cells) must be before rounding cannot explain it."""
        low, high = self.scores.range
        return OF_SCORES * torch.maximum(low.abs(), high.abs()).amax(1) + OF_VALUES * self.largest


def enclose(graph: Graph, inputs: Tensor, domain: Domain) -> Enclosed:
    """Bounds on every neuron on each of the domain's cells.

    The inputs are affine in the parameters: (m + 1, cells, *input_shape), their values at the domain's points.
    """
    values = {0: Enclosure(domain, inputs, torch.zeros_like(inputs[0]))}
    relaxations: list[Relaxation] = []
    largest = inputs.new_zeros(len(domain))
    for index, node in enumerate(graph.nodes):
        given = [values[i] for i in node.inputs]
        if isinstance(node.operator, Affine):
            relaxation: Relaxation = node.operator.itself([graph.shape(i) for i in node.inputs])
        else:
            relaxation = node.operator.relaxed(*(value.range for value in given))
        points = relaxation.points(*(value.points for value in given))
        radius = relaxation.spread(*(value.radius for value in given))
        largest = torch.maximum(largest, points.abs().flatten(2).amax(2).amax(0) + radius.flatten(1).amax(1))
        values[index + 1] = Enclosure(domain, points, radius, _image(relaxation, given))
        relaxations.append(relaxation)
        for dead in graph.last_uses[index]:
            del values[dead]
    return Enclosed(domain, inputs, relaxations, values[len(graph.nodes)], largest)


def _image(relaxation: Relaxation, given: Sequence[Enclosure]) -> Callable[[], Range | None]:
    if isinstance(relaxation, Itself) and not relaxation.operator.passes_ranges:
        return lambda: None  # and holds on to nothing
    return lambda: relaxation.image(*(value.range for value in given))


def cells_within(graph: Graph, memory: float, parameters: int) -> int:
    """How many cells may be enclosed at once within `memory` bytes, which are half of a budget."""
    neurons = sum(node.shape.numel() for node in graph.nodes)
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    size = FLOAT_BYTES * (8 * neurons + (4 * parameters + 16) * widest)
    if memory < size:
        raise MemoryBudgetError(
            f"the network's bounds need {2 * size / 2**30:.2g} GiB of working memory, the budget is"
            f" {2 * memory / 2**30:.2g} GiB; raise it with --memory"
        )
    return int(memory // size)
