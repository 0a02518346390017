"""Small rewrites that leave the function as it is and the graph shorter. All in float64."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from shakeproof.network.graph import Graph, Node
from shakeproof.operators import (
    Conv,
    Linear,
    MaxPool,
    Multiply,
    Operator,
    Pad,
    Power,
    Relu,
    Scale,
    Sigmoid,
    Silu,
    unrolled,
)


def simplify(graph: Graph) -> Graph:
    """Recognise functions, drop what the output does not need, fold scalings and ReLUs into neighbours, unroll."""
    return unroll(fold(without_dead_nodes(recognise(graph))))


def recognise(graph: Graph) -> Graph:
    """x * x and x * sigmoid(x) as functions of x, whose enclosures are tighter than those of a product."""
    nodes = []
    for node in graph.nodes:
        function = of_one(graph, node) if isinstance(node.operator, Multiply) else None
        nodes.append(Node(function[0], (function[1],), node.shape) if function else node)
    return Graph(graph.input_shape, tuple(nodes))


def of_one(graph: Graph, product: Node) -> tuple[Operator, int] | None:
    """The function of one value that a product is, and that value, if it is one."""
    first, second = product.inputs
    if first == second:
        return Power(2.0), first
    for x, gate in ((first, second), (second, first)):
        if gate and isinstance(graph.nodes[gate - 1].operator, Sigmoid) and graph.nodes[gate - 1].inputs == (x,):
            return Silu(), x
    return None


def fold(graph: Graph) -> Graph:
    """Merge a node into the node it reads from wherever that node serves it alone and a rule applies."""
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    nodes: list[Node] = []
    renamed = {0: 0}
    alone = {0: False}  # by new value number: is it read once?
    for index, node in enumerate(graph.nodes):
        inputs = tuple(renamed[i] for i in node.inputs)
        previous = nodes[inputs[0] - 1] if len(inputs) == 1 and alone[inputs[0]] else None
        merged = merge(previous.operator, node.operator) if previous else None
        if previous and merged:
            nodes[inputs[0] - 1] = Node(merged, previous.inputs, node.shape)
            renamed[index + 1] = inputs[0]
        else:
            nodes.append(Node(node.operator, inputs, node.shape))
            renamed[index + 1] = len(nodes)
        alone[renamed[index + 1]] = uses[index + 1] == 1
    return Graph(graph.input_shape, tuple(nodes))


def merge(first: Operator, second: Operator) -> Operator | None:
    """One operator that does both, if there is one."""
    if isinstance(second, Scale):
        return scaled(first, second)
    if isinstance(first, Relu) and isinstance(second, MaxPool):
        # max(relu(a), relu(b)) = max(a, b, 0): a ReLU's break below the maximum is none of the output's.
        return replace(second, floor=max(second.floor, 0.0))
    if isinstance(first, Pad) and isinstance(second, MaxPool) and first.value == -torch.inf:
        return padded(first, second)
    if isinstance(first, Power) and isinstance(second, Power):
        return powered(first.exponent, second.exponent)
    return None


def powered(first: float, second: float) -> Power | None:
    """A power of a power: 1 / sqrt(x). Both are defined for positive x only, as long as no exponent is whole."""
    whole = first.is_integer() or (first * second).is_integer()
    return None if whole else Power(first * second)


def padded(pad: Pad, pool: MaxPool) -> MaxPool | None:
    """Max pooling that pads by itself, where a padding with -inf adds a border around the picture and no more."""
    widths = []
    for source in pad.sources:
        inner = [index for index in source if index >= 0]
        before = next((place for place, index in enumerate(source) if index >= 0), 0)
        if inner != list(range(len(inner))) or list(source[before : before + len(inner)]) != inner:
            return None
        widths.append((before, len(source) - before - len(inner)))
    if any(map(any, (widths[0], widths[3]))):
        return None
    top, left, bottom, right = pool.window.pads
    pads = (top + widths[1][0], left + widths[2][0], bottom + widths[1][1], right + widths[2][1])
    return replace(pool, window=replace(pool.window, pads=pads))


def scaled(first: Operator, scale: Scale) -> Operator | None:
    """Linear, Conv or Scale followed by a scaling that is the same at every position: batch norm, mostly."""
    factor, offset = scale.factor, scale.offset
    if isinstance(first, Scale) and np.broadcast_shapes(first.factor.shape, first.offset.shape) == np.broadcast_shapes(
        first.factor.shape, first.offset.shape, factor.shape, offset.shape
    ):
        return Scale(first.factor * factor, first.offset * factor + offset)
    if not isinstance(first, (Linear, Conv)) or not all(c.numel() in (1, _last(c)) for c in (factor, offset)):
        return None
    outputs = first.bias.numel()
    factor, offset = (c.reshape(-1).expand(outputs) for c in (factor, offset))
    if isinstance(first, Linear):
        return Linear(first.weight * factor.unsqueeze(1), first.bias * factor + offset)
    by_group = factor.reshape(first.weight.shape[0], -1, 1)
    return replace(first, weight=first.weight * by_group, bias=first.bias * factor + offset)


def unroll(graph: Graph) -> Graph:
    """Convolutions of small pictures as plain matrices, where that is less work."""
    nodes = []
    for node in graph.nodes:
        small = unrolled(node.operator, graph.shape(node.inputs[0])) if isinstance(node.operator, Conv) else None
        nodes.append(replace(node, operator=small or node.operator))
    return Graph(graph.input_shape, tuple(nodes))


def _last(constant: torch.Tensor) -> int:
    return constant.shape[-1] if constant.dim() else 1


def without_dead_nodes(graph: Graph) -> Graph:
    """Only the nodes that the output depends on."""
    needed = {len(graph.nodes)}
    for index in range(len(graph.nodes), 0, -1):
        if index in needed:
            needed.update(graph.nodes[index - 1].inputs)
    kept = sorted(needed | {0})
    number = {old: new for new, old in enumerate(kept)}
    nodes = (graph.nodes[old - 1] for old in kept if old)
    return Graph(
        graph.input_shape,
        tuple(Node(n.operator, tuple(number[i] for i in n.inputs), n.shape) for n in nodes),
    )
