"""Networks of few neurons with weights of any size, and what they are in rational arithmetic: nothing is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from shakeproof.network import Graph
from shakeproof.network.graph import Node
from shakeproof.operators import (
    Abs,
    Clip,
    Combine,
    LeakyRelu,
    Linear,
    MaxPool,
    Operator,
    Relu,
    Reshape,
    Scale,
    SlidingWindow,
)
from shakeproof.path import Path

Exact = list[Fraction]


def exact(x: Tensor | np.ndarray) -> Exact:
    """The numbers of a tensor, flat."""
    return [Fraction(float(entry)) for entry in np.asarray(x).ravel()]


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
    if isinstance(operator, Reshape):
        return x
    assert isinstance(operator, MaxPool)
    _, height, width, channels = shape
    assert operator.window.kernel == operator.window.strides == (2, 2)
    return [
        max(x[((2 * i + a) * width + 2 * j + b) * channels + c] for a in range(2) for b in range(2))
        for i in range(height // 2)
        for j in range(width // 2)
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


def exact_path(path: Path, z: Sequence[Fraction]) -> Exact:
    """x(z), exactly."""
    found = exact(path.base)
    for slope, place in zip(path.slopes, z, strict=True):
        found = [v + place * s for v, s in zip(found, exact(slope), strict=True)]
    return found


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
