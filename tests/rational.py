"""Networks of few neurons with weights of any size, and what they are in rational arithmetic: nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shakeproof.graph import Graph, Node
from shakeproof.operators import (
    Abs,
    Ceil,
    Clip,
    Combine,
    Floor,
    LeakyRelu,
    Linear,
    MaxPool,
    Operator,
    Positive,
    Relu,
    Reshape,
    Round,
    Scale,
    Sign,
    SlidingWindow,
)
from shakeproof.question import Path

Exact = list[Fraction]
# What jumps, and the numbers at which it may, for inputs of this size or less.
JUMPS: dict[type[Operator], tuple[Callable[[Fraction], int], Callable[[int], list[Fraction]]]] = {
    Sign: (lambda v: 1 if v > 0 else -1 if v < 0 else 0, lambda size: [Fraction(0)]),
    Round: (round, lambda size: [Fraction(2 * k + 1, 2) for k in range(-size - 1, size + 1)]),
    Floor: (floor, lambda size: [Fraction(k) for k in range(-size, size + 1)]),
    Ceil: (ceil, lambda size: [Fraction(k) for k in range(-size, size + 1)]),
}


class ExactLine(NamedTuple):
    """A path before any rounding."""

    slopes: list[Exact]
    base: Exact


def exact(x: Tensor | np.ndarray | Exact) -> Exact:
    """The numbers of a tensor, flat."""
    return [entry if isinstance(entry, Fraction) else Fraction(float(entry)) for entry in np.asarray(x).ravel()]


def applied(operator: Operator, given: Sequence[Exact], shapes: Sequence[torch.Size]) -> Exact:
    """What an operator makes of exact numbers, by rules of its own: not those that are tested."""
    x, (shape, *_) = given[0], shapes
    if isinstance(operator, Linear):
        rows = zip(operator.weight.tolist(), operator.bias.tolist(), strict=True)
        return [sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), start=Fraction(bias)) for row, bias in rows]
    if isinstance(operator, Scale):
        factor, offset = (exact(t.expand(shape)) for t in (operator.factor, operator.offset))
        return [f * v + o for f, v, o in zip(factor, x, offset, strict=True)]
    if isinstance(operator, Combine):
        return [a + operator.sign * b for a, b in zip(*given, strict=True)]
    if isinstance(operator, Relu):
        return [max(v, Fraction(0)) for v in x]
    if isinstance(operator, Abs):
        return [abs(v) for v in x]
    if isinstance(operator, LeakyRelu):
        return [v if v > 0 else Fraction(float(operator.slope)) * v for v in x]
    if isinstance(operator, Clip):
        return [min(max(v, Fraction(operator.low)), Fraction(operator.high)) for v in x]
    if isinstance(operator, Positive):
        return [Fraction(v > 0 or (v == 0 and operator.or_zero)) for v in x]
    if type(operator) in JUMPS:
        return [Fraction(JUMPS[type(operator)][0](v)) for v in x]
    if isinstance(operator, Reshape):
        return x
    assert isinstance(operator, MaxPool)
    _, height, width, channels = shape
    assert operator.window.kernel == operator.window.strides
    rows, columns = operator.window.kernel
    return [
        max(x[((rows * i + a) * width + columns * j + b) * channels + c] for a in range(rows) for b in range(columns))
        for i in range(height // rows)
        for j in range(width // columns)
        for c in range(channels)
    ]


def exact_values(graph: Graph, x: Exact) -> list[Exact]:
    """Every value of the network at one input: first the input itself, last the scores."""
    values = [x]
    for node in graph.nodes:
        shapes = [graph.shape(i) for i in node.inputs]
        values.append(applied(node.operator, [values[i] for i in node.inputs], shapes))
    return values


def exact_scores(graph: Graph, x: Exact) -> Exact:
    return exact_values(graph, x)[-1]


def exact_path(path: Path | ExactLine, z: Sequence[Fraction]) -> Exact:
    """x(z), exactly."""
    found = exact(path.base)
    for slope, place in zip(path.slopes, z, strict=True):
        found = [v + place * s for v, s in zip(found, exact(slope), strict=True)]
    return found


def exact_pieces(graph: Graph, path: Path | ExactLine, end: Fraction) -> list[Fraction]:
    """Every strength at which the network may bend or jump, with 0 and the end. Nothing but evaluations is used.

    Node by node: between two strengths an input is straight as far as nodes before it neither bend nor jump there, so
    two evaluations say where it meets a threshold, or another entry of its window.
    """
    places = [Fraction(0), end]
    for node in graph.nodes:
        if not isinstance(node.operator, (Abs, Clip, LeakyRelu, MaxPool, Positive, Relu, *JUMPS)):
            continue
        found = set(places)
        for low, high in pairwise(places):
            one, two = low + (high - low) / 3, low + (high - low) * 2 / 3
            values = [exact_values(graph, exact_path(path, [z]))[node.inputs[0]] for z in (one, two)]
            forms = [((b - a) / (two - one), a - (b - a) / (two - one) * one) for a, b in zip(*values, strict=True)]
            for slope, base in _meetings(node.operator, forms, high):
                if slope and low < -base / slope < high:
                    found.add(-base / slope)
        places = sorted(found)
    return places


def _meetings(
    operator: Operator, forms: list[tuple[Fraction, Fraction]], high: Fraction
) -> list[tuple[Fraction, Fraction]]:
    """Affine functions of the strength that are 0 where the operator may bend or jump."""
    if isinstance(operator, MaxPool):
        return [(a - c, b - d) for a, b in forms for c, d in forms]
    if type(operator) in JUMPS:
        size = ceil(max(abs(b) + abs(a) * high for a, b in forms))
        thresholds = JUMPS[type(operator)][1](size)
    elif isinstance(operator, Positive):
        thresholds = [Fraction(0)]
    else:
        thresholds = [Fraction(t) for t in getattr(operator, "thresholds")]  # noqa: B009 - of several kinds
    return [(a, b - t) for a, b in forms for t in thresholds]


class Stack:
    """A network as it grows; what is added reads the newest value unless told otherwise."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.nodes = torch.Size(shape), list[Node]()

    @property
    def graph(self) -> Graph:
        return Graph(self.shape, tuple(self.nodes))

    def add(self, operator: Operator, *inputs: int) -> int:
        inputs = inputs or (len(self.nodes),)
        rows = (torch.ones(1, *self.graph.shape(i), dtype=torch.float64) for i in inputs)
        self.nodes.append(Node(operator, inputs, operator.apply(*rows).shape[1:]))
        return len(self.nodes)

    def linear(self, weight: np.ndarray, bias: np.ndarray) -> int:
        return self.add(Linear(torch.from_numpy(weight), torch.from_numpy(bias)))


def badly_scaled(seed: int, pooled: bool = True) -> Graph:
    """A few layers whose weights are of very different sizes, with sums that cancel, a branch, and max pooling."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        reach = random.integers(0, 12)
        return random.normal(size=shape) * 10.0 ** random.uniform(-reach, reach / 2, shape)

    def cancelling(outputs: int, inputs: int) -> np.ndarray:
        """Each row is nearly the one before it: their differences are made of rounding."""
        row = numbers(inputs)
        return np.stack([row * (1 + random.integers(-4, 5) * 2.0**-50) for _ in range(outputs)])

    made = Stack(4)
    bends = [Relu(), LeakyRelu(torch.tensor(random.uniform(-0.5, 0.9)).double()), Abs(), Clip(-1.5, 2.5)]
    for layer in range(random.integers(1, 5)):
        inputs = made.graph.shape(len(made.nodes)).numel()
        kind = random.integers(0, 3)
        weight = [numbers, cancelling, numbers][kind](8, inputs)
        made.linear(weight, numbers(8) if kind else np.zeros(8))
        if kind == 2:
            difference = np.eye(8) - np.roll(np.eye(8), 1, 0)
            made.linear(difference * 2.0 ** random.integers(0, 20), numbers(8))
        if pooled and random.random() < 0.4:
            made.add(Reshape((1, 2, 4, 1)))
            made.add(MaxPool(SlidingWindow((2, 2), (2, 2))))
            made.add(Reshape((2,)))
        else:
            before = len(made.nodes)
            bent = made.add(bends[random.integers(len(bends))])
            if layer % 2:
                made.add(Combine(-1), bent, before)
                made.add(Scale(torch.from_numpy(numbers(8)), torch.from_numpy(numbers(8))))
    made.linear(numbers(3, made.graph.shape(len(made.nodes)).numel()), numbers(3))
    return made.graph


def bending_often(seed: int) -> Graph:
    """Layers of many ReLUs whose weights are of different sizes, with a branch that leads past one of them."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        return random.normal(size=shape) * 10.0 ** random.uniform(-random.integers(0, 8), 1, shape)

    made = Stack(4)
    made.linear(random.normal(size=(24, 4)), random.normal(size=24) / 4)
    first = made.add(Relu())
    made.linear(numbers(24, 24), numbers(24))
    made.add(Relu())
    made.linear(numbers(24, 24), numbers(24))
    made.add(Combine(-1), len(made.nodes), first)
    made.add(Relu())
    made.linear(numbers(3, 24), numbers(3))
    return made.graph


def binarised(seed: int) -> tuple[Graph, Path]:
    """A few layers that jump, and a line of inputs: with ties, sums that are 0 for a while, and jumps that coincide."""
    random = np.random.default_rng(seed)

    def numbers(*shape: int) -> np.ndarray:
        kind = random.integers(0, 4)
        if kind == 0:
            return random.integers(-2, 3, shape).astype(float)
        if kind == 1:
            return random.choice([-1.0, 1.0], shape)
        if kind == 2:
            return random.choice([0.1, 0.2, 0.3, -0.1, -0.3, 0.0], shape)  # sums are 0, or nearly
        return random.normal(size=shape)

    made = Stack(4)
    jumps = [Sign(), Sign(), Round(), Floor(), Ceil(), Positive(False), Positive(True)]
    bends = [Relu(), LeakyRelu(torch.tensor(0.25).double()), Abs(), Clip(-1.0, 2.0)]
    for layer in range(random.integers(1, 4)):
        inputs = made.graph.shape(len(made.nodes)).numel()
        weight = numbers(6, inputs)
        if random.random() < 0.3:
            weight[3:] = weight[:3] * random.choice([-1.0, 1.0, 3.0], (3, 1))  # jump where others do
        made.linear(weight, numbers(6) if random.random() < 0.5 else np.zeros(6))
        before = len(made.nodes)
        if random.random() < 0.3:
            made.add(Scale(torch.from_numpy(numbers(6)), torch.from_numpy(numbers(6))))
        if random.random() < 0.3:
            made.add(bends[random.integers(len(bends))])
        elif random.random() < 0.2:
            made.add(Reshape((1, 2, 3, 1)))
            made.add(MaxPool(SlidingWindow((2, 2), (2, 2))))
            made.add(Reshape((1,)))
            before = 0
        jumped = made.add(jumps[random.integers(len(jumps))])
        if layer and before and random.random() < 0.3:
            made.add(Combine(1), jumped, before)
    made.linear(numbers(3, made.graph.shape(len(made.nodes)).numel()), numbers(3))
    slope, base = numbers(1, 4), numbers(4)
    black = random.random(4) < 0.25
    slope[:, black], base[black] = 0.0, 0.0
    return made.graph, Path(torch.from_numpy(slope), torch.from_numpy(base))


def amplifying(factor: float = 1024.0, layers: int = 6, bias: float = 1.0) -> Graph:
    """What float64 rounds away at first is all that counts in the end.

    A neuron is 3 + (sum of 4 inputs) 2^-55, another is 3; both are 3 in float64. Their difference is made larger layer
    by layer. The first score leads by `bias` less what that has become, which for inputs that sum to more than
    2^55 bias / factor^layers is nothing; in float64 it leads by `bias` everywhere.
    """
    made = Stack(4)
    tiny = 2.0**-55
    made.linear(np.array([[0.0] * 4, [tiny] * 4]), np.array([3.0, 3.0]))
    made.add(Relu())
    made.linear(np.array([[1.0, -1.0]]), np.zeros(1))
    made.add(Clip(-4.0, 4.0))
    for _ in range(layers):
        made.linear(np.array([[factor]]), np.zeros(1))
        made.add(Clip(-64.0, 64.0))
    made.linear(np.array([[1.0], [0.0]]), np.array([bias, 0.0]))
    return made.graph


def long_sum(seed: int, count: int = 20_000) -> Graph:
    """A sum of many terms that cancels: each addition is rounded the same way, and what is left is made of that."""
    random = np.random.default_rng(seed)
    up, down = random.uniform(0.1, 0.2, 2)
    half = count // 2
    weight = np.concatenate([np.full(half, up), np.full(half, -down)])
    weight[-1] -= weight.sum()  # so that there is next to nothing left for equal inputs
    made = Stack(count)
    made.linear(np.stack([weight, np.zeros(count)]), np.zeros(2))
    return made.graph
