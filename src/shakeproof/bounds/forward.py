"""Forward: every neuron between two parallel affine functions of the parameters, for many cells at once.

A value is enclosed as an affine function of z, known from its values at m + 1 points of each cell, give or take a
radius. An affine operator costs m + 1 rows for the points and one, through its absolute values, for the radius: about
m + 2 forward passes a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.bounds.domain import Domain
from shakeproof.network.graph import Graph
from shakeproof.operators import Range, Relaxation
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
    """A value on each cell: affine with values `points` (m + 1, cells, *shape), up to `radius`; and within `range`."""

    points: Tensor
    radius: Tensor
    range: Range


@dataclass(frozen=True, eq=False)
class Enclosed:
    """A network on some cells: its inputs there, how each operator was relaxed, and where the class scores are.

    `largest` (cells) is how large any value inside the network may be.
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
    values = {0: Enclosure(inputs, torch.zeros_like(inputs[0]), domain.extremes(inputs))}
    relaxations = []
    largest = inputs.new_zeros(len(domain))
    for index, node in enumerate(graph.nodes):
        given = [values[i] for i in node.inputs]
        relaxation = node.operator.relaxed(*(value.range for value in given))
        points = relaxation.points(*(value.points for value in given))
        radius = relaxation.spread(*(value.radius for value in given))
        low, high = domain.extremes(points)
        found = Range(low - radius, high + radius)
        limits = relaxation.range()
        if limits is not None:
            found = Range(torch.fmax(found.low, limits.low), torch.fmin(found.high, limits.high))
        for end in found:
            largest = torch.maximum(largest, end.flatten(1).abs().amax(1))
        values[index + 1] = Enclosure(points, radius, found)
        relaxations.append(relaxation)
        for dead in graph.last_uses[index]:
            del values[dead]
    return Enclosed(domain, inputs, relaxations, values[len(graph.nodes)], largest)


def cells_within(graph: Graph, memory: float, parameters: int, rows: int = 0) -> int:
    """How many cells may be enclosed at once within a number of bytes, with `rows` pulled back for each."""
    neurons = sum(node.shape.numel() for node in graph.nodes)
    widest = max(graph.input_shape.numel(), *(node.shape.numel() for node in graph.nodes))
    floats = 8 * neurons + (4 * parameters + 6 * rows + 16) * widest
    return max(1, int(memory // (FLOAT_BYTES * floats)))
