"""Graphs made from graphs: shorter ones for the same function, and those that activation splitting works on.

Simplification computes new weights in float64 and notes how often it rounded them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import shakeproof.operators as ops
from shakeproof.graph import NORMAL, Graph, Node

# Factors that are folded into weights: with others, values that overflow or vanish in between would not be seen.
FOLDED = 2.0**-40, 2.0**40
# In float32, all factors that shrink together may not shrink by more, nor factors folded into one weight grow by more.
SHRUNK, GROWN = 2.0**-60, 2.0**12


def simplify(graph: Graph) -> Graph:
    """Recognise functions, drop what the output does not need, fold scalings and ReLUs into neighbours, unroll."""
    return unroll(fold(without_dead_nodes(recognise(graph))))


def recognise(graph: Graph) -> Graph:
    """x * x and x * sigmoid(x) as functions of x, whose enclosures are tighter than those of a product."""
    nodes = []
    for node in graph.nodes:
        function = of_one(graph, node) if isinstance(node.operator, ops.Multiply) else None
        nodes.append(replace(node, operator=function[0], inputs=(function[1],)) if function else node)
    return replace(graph, nodes=tuple(nodes))


def of_one(graph: Graph, product: Node) -> tuple[ops.Operator, int] | None:
    """The function of one value that a product is, and that value, if it is one."""
    first, second = product.inputs
    if first == second:
        return ops.Power(2.0), first
    for x, gate in ((first, second), (second, first)):
        if gate and isinstance(graph.nodes[gate - 1].operator, ops.Sigmoid) and graph.nodes[gate - 1].inputs == (x,):
            return ops.Silu(), x
    return None


def fold(graph: Graph) -> Graph:
    """Merge a node into the node it reads from wherever that node serves it alone and a rule applies.

    Factors by which float32 may lose what it should not are noted as computed by the runtime.
    """
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    nodes: list[Node] = []
    grown: list[float] = []  # by how much factors that were merged into a node may make what was lost there larger
    lost, shrunk = list[str](), 1.0
    renamed = {0: 0}
    alone = {0: False}  # by new value number: is it read once?
    for index, node in enumerate(graph.nodes):
        inputs = tuple(renamed[i] for i in node.inputs)
        previous = nodes[inputs[0] - 1] if len(inputs) == 1 and alone[inputs[0]] else None
        merged = merge(previous.operator, node.operator) if previous else None
        least, most = _factors(node.operator)
        shrunk *= min(least, 1.0)
        if shrunk < SHRUNK and least < 1:
            lost.append(node.origin)
        if previous and merged:
            grown[inputs[0] - 1] = max(grown[inputs[0] - 1], 1.0) * most
            if grown[inputs[0] - 1] > GROWN:
                lost.append(node.origin)
            nodes[inputs[0] - 1] = replace(previous, operator=merged, shape=node.shape)
            renamed[index + 1] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
            grown.append(1.0)
            renamed[index + 1] = len(nodes)
        alone[renamed[index + 1]] = uses[index + 1] == 1
    return replace(graph, nodes=tuple(nodes), computed=(*graph.computed, *lost))


def _factors(operator: ops.Operator) -> tuple[float, float]:
    """The least and the largest factor of a scaling, but for zeros."""
    size = operator.factor[operator.factor != 0].abs() if isinstance(operator, ops.Scale) else torch.ones(1)
    return (float(size.min()), float(size.max())) if size.numel() else (1.0, 1.0)


def merge(first: ops.Operator, second: ops.Operator) -> ops.Operator | None:
    """One operator that does both, if there is one."""
    if isinstance(second, ops.Scale):
        return scaled(first, second)
    if isinstance(first, ops.Relu) and isinstance(second, ops.Relu):
        return first
    if isinstance(first, ops.Relu) and isinstance(second, ops.MaxPool):
        # max(relu(a), relu(b)) = max(a, b, 0): a ReLU's break below the maximum is none of the output's.
        return replace(second, floor=max(second.floor, 0.0))
    if isinstance(first, ops.Pad) and isinstance(second, ops.MaxPool) and first.value == -torch.inf:
        return padded(first, second)
    if isinstance(first, ops.Power) and isinstance(second, ops.Power):
        return powered(first.exponent, second.exponent)
    return None


def powered(first: float, second: float) -> ops.Power | None:
    """A power of a power: 1 / sqrt(x). Both are defined for positive x only, as long as no exponent is whole."""
    whole = first.is_integer() or (first * second).is_integer()
    is_exact = Fraction(first) * Fraction(second) == Fraction(first * second)
    return ops.Power(first * second) if is_exact and not whole else None


def padded(pad: ops.Pad, pool: ops.MaxPool) -> ops.MaxPool | None:
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


def scaled(first: ops.Operator, scale: ops.Scale) -> ops.Operator | None:
    """Linear, Conv or Scale followed by a scaling that is the same at every position: batch norm, mostly."""
    constants = (scale.factor, scale.offset, torch.zeros_like(scale.offset) if scale.off is None else scale.off)
    size = scale.factor[scale.factor != 0].abs()
    if bool(((size < FOLDED[0]) | (size > FOLDED[1])).any()):
        return None
    if isinstance(first, ops.Scale):
        shapes = [first.factor.shape, first.offset.shape]
        if np.broadcast_shapes(*shapes) != np.broadcast_shapes(*shapes, *(c.shape for c in constants)):
            return None
        folded = _folded(first, first.offset, *constants, scale.roundings)
        if not (_keeps_digits(first.factor, scale.factor) and _keeps_digits(first.offset, scale.factor)):
            return None
        return ops.Scale(first.factor * scale.factor, folded.constant, roundings=folded.roundings, off=folded.off)
    if not isinstance(first, (ops.Linear, ops.Conv)) or not all(c.numel() in (1, _last(c)) for c in constants):
        return None
    factor, offset, off = (c.reshape(-1).expand(first.bias.numel()) for c in constants)
    folded = _folded(first, first.bias, factor, offset, off, scale.roundings)
    by_output = factor.unsqueeze(1) if isinstance(first, ops.Linear) else factor.reshape(first.weight.shape[0], -1, 1)
    if not (_keeps_digits(first.weight, by_output) and _keeps_digits(first.bias, factor)):
        return None
    weight = first.weight * by_output
    return replace(first, weight=weight, bias=folded.constant, roundings=folded.roundings, off=folded.off)


def _keeps_digits(first: Tensor, second: Tensor) -> bool:
    """Whether a product is rounded by its last digit only: none of its entries overflows, or underflows."""
    size = (first * second).abs()
    is_normal = (size > NORMAL[0]) & (size < NORMAL[1])
    return bool((is_normal | (first == 0) | (second == 0)).all())


class _Folded(NamedTuple):
    """A constant that two were made into, how often coefficients were rounded, and what the constant is off by."""

    constant: Tensor
    roundings: int
    off: Tensor | None


def _folded(
    first: ops.Affine, constant: Tensor, factor: Tensor, offset: Tensor, off: Tensor, roundings: int
) -> _Folded:
    """constant * factor + offset: its terms may cancel, their roundings do not."""
    moved = constant * factor
    shifts = bool((factor.frexp().mantissa.abs() == 0.5).all())  # powers of two
    adds = bool(((moved != 0) & (offset != 0)).any())
    together = first.roundings + roundings + (not shifts) + adds
    # a sum may begin with its constant, and be rounded at that size with every term
    share = ops.UNIT * (together + (first.terms() + ops.CONSTANT_ROUNDINGS) * (adds or not shifts))
    carried = 0.0 if first.off is None else factor.abs() * first.off
    wrong = carried + off + share * (moved.abs() + offset.abs())
    return _Folded(moved + offset, together, wrong if bool((wrong > 0).any()) else None)


def unroll(graph: Graph) -> Graph:
    """Convolutions of small pictures as plain matrices, where that is less work."""
    nodes = list(graph.nodes)
    for index, node in enumerate(nodes):
        if isinstance(node.operator, ops.Conv):
            matrix = ops.unrolled(node.operator, graph.shape(node.inputs[0]))
            nodes[index] = replace(node, operator=matrix or node.operator)
    return replace(graph, nodes=tuple(nodes))


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
    return replace(graph, nodes=tuple(replace(n, inputs=tuple(number[i] for i in n.inputs)) for n in nodes))


# -- for activation splitting: claims as outputs, and every maximum as ReLUs -------------------------------------------


def with_claims(graph: Graph, coefficients: Tensor, constants: Tensor) -> Graph:
    """The network with one output for each case: positive if some row of coefficients @ scores + constants is.

    Coefficients (cases, rows, classes), constants (cases, rows).
    """
    cases, rows, _ = coefficients.shape
    by_row = coefficients.transpose(0, 1).flatten(0, 1), constants.t().flatten()
    nodes = _Nodes(list(graph.nodes))
    values = nodes.add(ops.Linear(*(x.contiguous() for x in by_row)), len(graph.nodes), shape=(rows * cases,))
    if rows > 1:
        parts = [ops.Pad((tuple(range(start, start + cases)),), 0.0) for start in range(0, rows * cases, cases)]
        nodes.largest([nodes.add(part, values, shape=(cases,)) for part in parts])
    return replace(graph, nodes=tuple(nodes.nodes))


def without_max_pools(graph: Graph) -> Graph:
    """The same function with ReLUs for every max pooling: neurons can be split, a choice among many cannot."""
    nodes = _Nodes([])
    renamed = {0: 0}
    for index, node in enumerate(graph.nodes):
        inputs = tuple(renamed[value] for value in node.inputs)
        pool = node.operator if isinstance(node.operator, ops.MaxPool) else None
        views = _views(pool.window, graph.shape(node.inputs[0])) if pool else []
        if pool and views:
            entries = [nodes.add(view, *inputs, shape=node.shape) for view in views]
            if pool.floor == 0:
                entries[0] = nodes.add(ops.Relu(), entries[0], shape=node.shape)
            renamed[index + 1] = nodes.largest(entries)
        else:
            renamed[index + 1] = nodes.add(node.operator, *inputs, shape=node.shape)
    return replace(graph, nodes=tuple(nodes.nodes))


class _Nodes:
    """Nodes of a network, as they are added."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def add(self, operator: ops.Operator, *inputs: int, shape: Sequence[int]) -> int:
        """The number of the value that the new node makes."""
        self.nodes.append(Node(operator, inputs, torch.Size(shape)))
        return len(self.nodes)

    def largest(self, values: list[int]) -> int:
        """The maximum of values of one shape, two at a time: max(a, b) = relu(a - b) + b."""
        shape = self.nodes[values[0] - 1].shape
        while len(values) > 1:
            first, second, *rest = values
            above = self.add(ops.Relu(), self.add(ops.Combine(-1), first, second, shape=shape), shape=shape)
            values = [*rest, self.add(ops.Combine(1), above, second, shape=shape)]
        return values[0]


def _views(window: ops.SlidingWindow, shape: torch.Size) -> list[ops.Pad]:
    """What selects each entry of every window; where that lies in the border, another entry of the same window.

    Nothing, if a window lies in the border as a whole.
    """
    batch, height, width, channels = shape
    top, left, _, _ = window.pads
    sizes = (height, width), window.output_size(height, width), window.kernel
    steps = window.strides, window.dilations, (top, left)
    down, across = (_entries(*axis) for axis in zip(*sizes, *steps, strict=True))
    batches, every = tuple(range(batch)), tuple(range(channels))
    return [ops.Pad((batches, rows, columns, every), 0.0) for rows in down for columns in across]


def _entries(size: int, positions: int, kernel: int, stride: int, dilation: int, before: int) -> list[tuple[int, ...]]:
    """Along one axis, where each entry of a kernel lies at every position; inside, if only by another entry's place."""
    first = [stride * position - before for position in range(positions)]
    places = [[start + dilation * entry for entry in range(kernel)] for start in first]
    inside = [[place for place in along if 0 <= place < size] for along in places]
    if not all(inside):
        return []
    return [
        tuple(
            along[entry] if 0 <= along[entry] < size else valid[0] for along, valid in zip(places, inside, strict=True)
        )
        for entry in range(kernel)
    ]
