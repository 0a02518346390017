"""Weights of channels that make norms of layers small: any are sound, and good ones take many powers of ten off a deep
network's product of norms.

The norm of D x, with a positive number for each channel in D, passes through an elementwise function that is nowhere
steeper than 1 just as the plain norm does; and a layer W stretches it by |D' W D^-1|, D' being its output's. So weights
may be chosen for each value between layers. They are found by descent: what is to become small is the sum, over all
values, of a value's size times the factor by which an error there may grow until it is at the scores. Depthwise layers
are made to stretch every channel alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget
from shakeproof.model import Graph, Node, cached_per_graph
from shakeproof.operators import Affine, Clip, Combine, Conv, PiecewiseLinear, Relu, stretches

# Steps of descent (Adam), the size of the first of them; the last ones are small.
STEPS, FIRST_STEP, MOMENTUM, SCALING = 150, 0.02, 0.9, 0.999
# A channel's weight is not moved by more than this for being nearly dead.
NEARLY_DEAD = 0.05


@cached_per_graph
def channel_weights(graph: Graph, budget: Budget = UNLIMITED) -> tuple[Tensor, ...]:
    """For each value a positive number for each channel, the last axis; ones at the input and at the scores.

    An error if the time is up before they are found.
    """
    return _Descent(graph).weights(budget)


def weighted(graph: Graph, index: int, weights: tuple[Tensor, ...]) -> Affine:
    """An affine node as it acts on weighted values."""
    node = graph.nodes[index]
    operator = node.operator
    assert isinstance(operator, Affine)
    if not isinstance(operator, Conv):
        return operator
    before, after = weights[node.inputs[0]], weights[index + 1]
    groups, outputs, _ = operator.weight.shape
    by_channel = operator.weight.unflatten(2, (prod(operator.window.kernel), -1))
    scaled = by_channel * after.view(groups, outputs, 1, 1) / before.view(groups, 1, 1, -1)
    return replace(operator, weight=scaled.flatten(2))


@dataclass(frozen=True, eq=False)
class _Descent:
    """The logarithms of weights, one set for each group of values that share them."""

    graph: Graph

    def weights(self, budget: Budget) -> tuple[Tensor, ...]:
        logs = {group: torch.zeros_like(self.shares[group]) for group in set(self.groups) if group is not None}
        vectors = {index: matrix.new_ones(matrix.shape[1:]) for index, matrix in self.kernels.items()}
        first, second = ({group: torch.zeros_like(own) for group, own in logs.items()} for _ in range(2))
        for step in range(1, STEPS + 1):
            budget.check()
            size = FIRST_STEP * (1 - step / (STEPS + 1))
            for group, slope in self.slopes(logs, vectors).items():
                first[group] = MOMENTUM * first[group] + (1 - MOMENTUM) * slope
                second[group] = SCALING * second[group] + (1 - SCALING) * slope.square()
                root = (second[group] / (1 - SCALING**step)).sqrt() + 1e-12
                logs[group] = logs[group] - size * first[group] / (1 - MOMENTUM**step) / root
        return tuple(torch.exp(self.logarithm(value, logs)) for value in range(len(self.groups)))

    def logarithm(self, value: int, logs: dict[int, Tensor]) -> Tensor:
        group = self.groups[value]
        return self.shares[value] if group is None else self.shares[value] + logs[group]

    def slopes(self, logs: dict[int, Tensor], vectors: dict[int, Tensor]) -> dict[int, Tensor]:
        """How the logarithm of that sum changes with each weight's; `vectors` (power iteration) are moved on."""
        graph, own = self.graph, [self.logarithm(value, logs) for value in range(len(self.groups))]
        gains, ends = list(self.gains), dict[int, tuple[Tensor, Tensor]]()
        for index, kernel in self.kernels.items():
            matrix = kernel * torch.exp(own[index + 1]).view(-1, 1, 1) * torch.exp(-own[graph.nodes[index].inputs[0]])
            image = torch.tensordot(matrix, vectors[index], 2)
            vector = torch.tensordot(image / torch.linalg.vector_norm(image), matrix, 1)
            gain = torch.linalg.vector_norm(vector)
            vectors[index], gains[index] = vector / gain, (float(gain),)
            ends[index] = (image / torch.linalg.vector_norm(image)).square(), vectors[index].square().sum(0)
        sizes = [self._size(value, log_weights) for value, log_weights in enumerate(own)]
        grown, growth = list(sizes), [0.0] * len(graph.nodes) + [1.0]
        for index, node in enumerate(graph.nodes):
            grown[index + 1] += sum(gain * grown[value] for value, gain in zip(node.inputs, gains[index], strict=True))
        for index, node in reversed(list(enumerate(graph.nodes))):
            for value, gain in zip(node.inputs, gains[index], strict=True):
                growth[value] += gain * growth[index + 1]
        found, total = {group: torch.zeros_like(x) for group, x in logs.items()}, grown[-1]
        for value, group in enumerate(self.groups):
            if group is not None:
                squares = torch.exp(2 * own[value])
                found[group] += growth[value] * sizes[value] / total * squares / squares.sum()
        for index, (outputs, inputs) in ends.items():
            before, after = self.groups[graph.nodes[index].inputs[0]], self.groups[index + 1]
            share = grown[graph.nodes[index].inputs[0]] * gains[index][0] * growth[index + 1] / total
            if after is not None:
                found[after] += share * outputs
            if before is not None:
                found[before] -= share * inputs
        return found

    def _size(self, value: int, log_weights: Tensor) -> float:
        places = self.graph.shape(value).numel() / len(log_weights)
        return float((places * torch.exp(2 * log_weights).sum()).sqrt())

    @cached_property
    def kernels(self) -> dict[int, Tensor]:
        """Of the convolutions that mix channels, their weights (outputs, kernel entries, channels)."""
        return {
            index: node.operator.weight[0].unflatten(1, (prod(node.operator.window.kernel), -1))
            for index, node in enumerate(self.graph.nodes)
            if isinstance(node.operator, Conv) and _mixes(node)
        }

    @cached_property
    def gains(self) -> tuple[tuple[float, ...], ...]:
        """For each node, about how much it stretches its inputs' norms, where that does not depend on weights."""
        found: list[tuple[float, ...]] = []
        for node in self.graph.nodes:
            if isinstance(node.operator, PiecewiseLinear):
                found.append((node.operator.stretch,))
            elif isinstance(node.operator, Affine) and not isinstance(node.operator, Conv):
                shapes = [self.graph.shape(value) for value in node.inputs]
                found.append(tuple(gain for gain, _ in stretches(node.operator, shapes)))
            else:
                found.append((1.0,) * len(node.inputs))
        return tuple(found)

    @cached_property
    def groups(self) -> list[int | None]:
        """For each value, the number of one that shares its weights, up to given shares; None: they must be ones."""
        parent = list(range(len(self.graph.nodes) + 1))

        def root(value: int) -> int:
            while parent[value] != value:
                value = parent[value]
            return value

        plain = {0, len(self.graph.nodes)}
        for index, node in enumerate(self.graph.nodes):
            if _keeps_channels(self.graph, node):
                for value in node.inputs:
                    parent[root(value)] = root(index + 1)
            elif not _mixes(node):
                plain |= {*node.inputs, index + 1}
        fixed = {root(value) for value in plain}
        return [None if root(value) in fixed else root(value) for value in range(len(parent))]

    @cached_property
    def shares(self) -> list[Tensor]:
        """For each value, the logarithms of its weights beside those of its group."""
        shapes = [self.graph.shape(value)[-1:] or (1,) for value in range(len(self.groups))]
        shares = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
        for index, node in enumerate(self.graph.nodes):
            if self.groups[index + 1] is not None and _keeps_channels(self.graph, node):
                shares[index + 1] = shares[node.inputs[0]]
                if isinstance(node.operator, Conv):
                    gains = _gains(node.operator)
                    shares[index + 1] = shares[index + 1] - gains.clamp(min=NEARLY_DEAD * float(gains.median())).log()
        return shares


def _keeps_channels(graph: Graph, node: Node) -> bool:
    """Whether what a node reads and what it makes have the same channels, each on its own."""
    operator = node.operator
    if isinstance(operator, Conv):
        return operator.weight.shape[1] == 1 and operator.weight.shape[2] == prod(operator.window.kernel)
    if isinstance(operator, Combine):
        return all(graph.shape(value) == node.shape for value in node.inputs)
    return isinstance(operator, (Relu, Clip))


def _mixes(node: Node) -> bool:
    """Whether it is a convolution of all channels together."""
    return isinstance(node.operator, Conv) and len(node.operator.weight) == 1 and node.operator.bias.numel() > 1


def _gains(conv: Conv) -> Tensor:
    """By how much a depthwise convolution stretches each channel, about."""
    kernels = conv.weight.view(-1, *conv.window.kernel)
    size = [4 * side for side in conv.window.kernel]
    gains: Tensor = torch.fft.fft2(kernels, s=size).abs().flatten(1).amax(1)
    return gains
