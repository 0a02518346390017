"""A network made ready for splitting: a property's claims become its outputs, and every maximum a ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shakeproof.model.graph import Graph, Node
from shakeproof.operators import Combine, Linear, MaxPool, Operator, Pad, Relu, SlidingWindow


def with_claims(graph: Graph, coefficients: Tensor, constants: Tensor) -> Graph:
    """The network with one output for each case: positive if some row of coefficients @ scores + constants is.

    Coefficients (cases, rows, classes), constants (cases, rows).
    """
    cases, rows, _ = coefficients.shape
    by_row = coefficients.transpose(0, 1).flatten(0, 1), constants.t().flatten()
    made = _Nodes(list(graph.nodes))
    values = made.add(Linear(*(x.contiguous() for x in by_row)), len(graph.nodes), shape=(rows * cases,))
    if rows > 1:
        parts = [Pad((tuple(range(start, start + cases)),), 0.0) for start in range(0, rows * cases, cases)]
        made.largest([made.add(part, values, shape=(cases,)) for part in parts])
    return replace(graph, nodes=tuple(made.nodes))


def without_max_pools(graph: Graph) -> Graph:
    """The same function with ReLUs for every max pooling: neurons can be split, a choice among many cannot."""
    made = _Nodes([])
    renamed = {0: 0}
    for index, node in enumerate(graph.nodes):
        inputs = tuple(renamed[value] for value in node.inputs)
        views = _views(node.operator.window, graph.shape(node.inputs[0])) if isinstance(node.operator, MaxPool) else []
        if isinstance(node.operator, MaxPool) and views:
            entries = [made.add(view, *inputs, shape=node.shape) for view in views]
            if node.operator.floor == 0:
                entries[0] = made.add(Relu(), entries[0], shape=node.shape)
            renamed[index + 1] = made.largest(entries)
        else:
            renamed[index + 1] = made.add(node.operator, *inputs, shape=node.shape)
    return replace(graph, nodes=tuple(made.nodes))


class _Nodes:
    """Nodes of a network, as they are added."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def add(self, operator: Operator, *inputs: int, shape: Sequence[int]) -> int:
        """The number of the value that the new node makes."""
        self.nodes.append(Node(operator, inputs, torch.Size(shape)))
        return len(self.nodes)

    def largest(self, values: list[int]) -> int:
        """The maximum of values of one shape, two at a time: max(a, b) = relu(a - b) + b."""
        shape = self.nodes[values[0] - 1].shape
        while len(values) > 1:
            first, second, *rest = values
            above = self.add(Relu(), self.add(Combine(-1), first, second, shape=shape), shape=shape)
            values = [*rest, self.add(Combine(1), above, second, shape=shape)]
        return values[0]


def _views(window: SlidingWindow, shape: torch.Size) -> list[Pad]:
    """What selects each entry of every window; where that lies in the border, another entry of the same window.

    Nothing, if a window lies in the border as a whole.
    """
    batch, height, width, channels = shape
    top, left, _, _ = window.pads
    sizes = (height, width), window.output_size(height, width), window.kernel
    steps = window.strides, window.dilations, (top, left)
    down, across = (_entries(*axis) for axis in zip(*sizes, *steps, strict=True))
    batches, every = tuple(range(batch)), tuple(range(channels))
    return [Pad((batches, rows, columns, every), 0.0) for rows in down for columns in across]


def _entries(size: int, positions: int, kernel: int, stride: int, dilation: int, before: int) -> list[tuple[int, ...]]:
    """Along one axis, where each entry of a kernel lies at every position; inside, if only by another entry's place."""
    first = [stride * position - before for position in range(positions)]
    places = [[start + dilation * entry for entry in range(kernel)] for start in first]
    inside = [[place for place in own if 0 <= place < size] for own in places]
    if not all(inside):
        return []
    return [
        tuple(own[entry] if 0 <= own[entry] < size else valid[0] for own, valid in zip(places, inside, strict=True))
        for entry in range(kernel)
    ]
