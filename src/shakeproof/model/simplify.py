"""Small rewrites that leave the function as it is and the graph shorter. All in float64."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shakeproof.model.graph import Graph, Node
from shakeproof.operators import (
    CONSTANT_ROUNDINGS,
    UNIT,
    Affine,
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

# Factors that are folded into weights: with others, values that overflow or vanish in between would not be seen.
FOLDED = 2.0**-40, 2.0**40
# Of numbers between these, roundings are relative: none has lost digits by underflow.
NORMAL = 2.0**-1000, 2.0**1000


def simplify(graph: Graph) -> Graph:
    """Recognise functions, drop what the output does not need, fold scalings and ReLUs into neighbours, unroll."""
    return unroll(fold(without_dead_nodes(recognise(graph))))


def recognise(graph: Graph) -> Graph:
    """x * x and x * sigmoid(x) as functions of x, whose enclosures are tighter than those of a product."""
    nodes = []
    for node in graph.nodes:
        function = of_one(graph, node) if isinstance(node.operator, Multiply) else None
        nodes.append(replace(node, operator=function[0], inputs=(function[1],)) if function else node)
    return replace(graph, nodes=tuple(nodes))


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
            nodes[inputs[0] - 1] = replace(previous, operator=merged, shape=node.shape)
            renamed[index + 1] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
            renamed[index + 1] = len(nodes)
        alone[renamed[index + 1]] = uses[index + 1] == 1
    return replace(graph, nodes=tuple(nodes))


def merge(first: Operator, second: Operator) -> Operator | None:
    """One operator that does both, if there is one."""
    if isinstance(second, Scale):
        return scaled(first, second)
    if isinstance(first, Relu) and isinstance(second, Relu):
        return first
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
    is_exact = Fraction(first) * Fraction(second) == Fraction(first * second)
    return Power(first * second) if is_exact and not whole else None


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
    constants = (scale.factor, scale.offset, torch.zeros_like(scale.offset) if scale.off is None else scale.off)
    size = scale.factor[scale.factor != 0].abs()
    if bool(((size < FOLDED[0]) | (size > FOLDED[1])).any()):
        return None
    if isinstance(first, Scale):
        shapes = [first.factor.shape, first.offset.shape]
        if np.broadcast_shapes(*shapes) != np.broadcast_shapes(*shapes, *(c.shape for c in constants)):
            return None
        made = _folded(first, first.offset, *constants, scale.roundings)
        if not (_keeps_digits(first.factor, scale.factor) and _keeps_digits(first.offset, scale.factor)):
            return None
        return Scale(first.factor * scale.factor, made.constant, roundings=made.roundings, off=made.off)
    if not isinstance(first, (Linear, Conv)) or not all(c.numel() in (1, _last(c)) for c in constants):
        return None
    factor, offset, off = (c.reshape(-1).expand(first.bias.numel()) for c in constants)
    made = _folded(first, first.bias, factor, offset, off, scale.roundings)
    by_output = factor.unsqueeze(1) if isinstance(first, Linear) else factor.reshape(first.weight.shape[0], -1, 1)
    if not (_keeps_digits(first.weight, by_output) and _keeps_digits(first.bias, factor)):
        return None
    weight = first.weight * by_output
    return replace(first, weight=weight, bias=made.constant, roundings=made.roundings, off=made.off)


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


def _folded(first: Affine, constant: Tensor, factor: Tensor, offset: Tensor, off: Tensor, roundings: int) -> _Folded:
    """constant * factor + offset: its terms may cancel, their roundings do not."""
    moved = constant * factor
    shifts = bool((factor.frexp().mantissa.abs() == 0.5).all())  # powers of two
    adds = bool(((moved != 0) & (offset != 0)).any())
    together = first.roundings + roundings + (not shifts) + adds
    # a sum may begin with its constant, and be rounded at that size with every term
    share = UNIT * (together + (first.terms() + CONSTANT_ROUNDINGS) * (adds or not shifts))
    carried = 0.0 if first.off is None else factor.abs() * first.off
    wrong = carried + off + share * (moved.abs() + offset.abs())
    return _Folded(moved + offset, together, wrong if bool((wrong > 0).any()) else None)


def unroll(graph: Graph) -> Graph:
    """Convolutions of small pictures as plain matrices, where that is less work."""
    nodes = []
    for node in graph.nodes:
        small = unrolled(node.operator, graph.shape(node.inputs[0])) if isinstance(node.operator, Conv) else None
        nodes.append(replace(node, operator=small or node.operator))
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
