"""A network as a frozen graph of operators, and the few ways to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from shakeproof.operators import UNIT, Affine, Clip, Conv, Jumping, Linear, Operator, PiecewiseLinear, Unrolled

FEW_LAYERS = 10
# What is straight between bends and jumps, so that its pieces can be enumerated.
STRAIGHT = (Affine, PiecewiseLinear, Jumping)
# What underflow may do to a result, and much more.
TINY = 2.0**-1000
# Of numbers between these, roundings are relative: none has lost digits by underflow.
NORMAL = 2.0**-1000, 2.0**1000
# Runtimes fold factors into weights that are before or behind them. With sums up to this, and factors that shrink by
# 2^-60 at most all together (`rewriting.fold`), nothing comes near 2^128 in any order.
LARGEST_FLOAT32 = 2.0**40
# A weight may underflow when a factor is folded into it: that loses 2^-126 of up to 2^40, in up to 2^24 terms, and a
# factor that was folded into our own weights behind it may make 2^12 times as much of that.
TINY_FLOAT32 = 2.0**-50
Found = TypeVar("Found")
More = ParamSpec("More")


@dataclass(frozen=True, eq=False)
class Node:
    """An operator and the values it reads. Value 0 is the network's input; node i makes value i + 1.

    `origin` is what it was read from, as the file names it.
    """

    operator: Operator
    inputs: tuple[int, ...]
    shape: torch.Size
    origin: str = ""


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in an order in which they can run; the last one makes the class scores, (rows, classes).

    In the arithmetic that is meant, any operation is off by a share `unit` of its result at most, and by `tiny`; both
    are at least those of float64, in which it is run here. Sums of terms up to `largest` do not overflow. `computed`
    names what has constants that a runtime computes itself: its float32 makes others of them, or loses them.
    """

    input_shape: torch.Size
    nodes: tuple[Node, ...]
    unit: float = UNIT
    tiny: float = TINY
    largest: float = float("inf")
    computed: tuple[str, ...] = ()

    def run(self, x: Tensor) -> Tensor:
        """Class scores (rows, classes) of inputs (rows, *input_shape)."""
        for value in self.values(x):
            x = value
        return x

    def values(self, x: Tensor) -> Iterator[Tensor]:
        """The value of each node, in order; values are dropped once no node needs them."""
        values = {0: x}
        for index, node in enumerate(self.nodes):
            values[index + 1] = node.operator.apply(*(values[i] for i in node.inputs))
            yield values[index + 1]
            for dead in self.last_uses[index]:
                del values[dead]

    @cached_property
    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the values that nothing reads after it."""
        last = {value: index for index, node in enumerate(self.nodes) for value in node.inputs}
        dead: list[list[int]] = [[] for _ in self.nodes]
        for value, index in last.items():
            dead[index].append(value)
        return tuple(map(tuple, dead))

    @cached_property
    def is_deep(self) -> bool:
        """Whether products of absolute values, from layer to layer, would say little about its outputs."""
        return sum(isinstance(node.operator, (Linear, Conv, Unrolled)) for node in self.nodes) > FEW_LAYERS

    @cached_property
    def row_sums(self) -> tuple[float, ...]:
        """For each affine node, the largest sum of an output's absolute coefficients; 0 for the others."""
        return tuple(
            float(node.operator.itself(shapes).spread(*(like.new_ones(1, *shape) for shape in shapes)).max())
            if isinstance(node.operator, Affine)
            else 0.0
            for node in self.nodes
            for shapes, like in (([self.shape(value) for value in node.inputs], self._parameter),)
        )

    @cached_property
    def constants(self) -> tuple[Tensor, ...]:
        """For each node, the absolute value of its output (1, *shape) where its inputs are 0: of an affine one, |b|."""
        return tuple(
            node.operator.apply(*(self._parameter.new_zeros(1, *self.shape(value)) for value in node.inputs)).abs()
            for node in self.nodes
        )

    @cached_property
    def largest_constants(self) -> tuple[float, ...]:
        """The largest entry of each of these."""
        return tuple(float(constant.max()) for constant in self.constants)

    @cached_property
    def offs(self) -> tuple[Tensor, ...]:
        """For each node, what its constant (1, *shape) is off by, beyond the rounding that its sums allow for."""
        return tuple(
            torch.zeros_like(constant) if off is None else (self.unit / UNIT * off).expand_as(constant)
            for constant, node in zip(self.constants, self.nodes, strict=True)
            for off in (getattr(node.operator, "off", None),)
        )

    @cached_property
    def _parameter(self) -> Tensor:
        """Any of its parameters, to make others like it."""
        tensors = (value for node in self.nodes for value in vars(node.operator).values() if isinstance(value, Tensor))
        return next(tensors, torch.empty(0, dtype=torch.float64))

    @property
    def device(self) -> torch.device:
        return self._parameter.device

    def shape(self, value: int) -> torch.Size:
        """A value's shape, without the row axis."""
        return self.input_shape if value == 0 else self.nodes[value - 1].shape

    @cached_property
    def live_sizes(self) -> tuple[int, ...]:
        """For each node, how many numbers of a row are held while it runs: what it or a later one reads."""
        sizes = [self.input_shape.numel()]
        for node, dead in zip(self.nodes, self.last_uses, strict=True):
            sizes.append(sizes[-1] + node.shape.numel() - sum(self.shape(value).numel() for value in dead))
        return tuple(sizes[:-1])

    @cached_property
    def entries(self) -> int:
        """How many numbers a row has, in all values."""
        return self.input_shape.numel() + sum(node.shape.numel() for node in self.nodes)

    @property
    def classes(self) -> int:
        return self.shape(len(self.nodes)).numel()

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether it is straight between bends and jumps, so that pieces can be enumerated."""
        return not self.smooth_operators

    @cached_property
    def jumping_operators(self) -> tuple[str, ...]:
        """The kinds of operators that jump."""
        return tuple(sorted({type(n.operator).__name__ for n in self.nodes if isinstance(n.operator, Jumping)}))

    @cached_property
    def smooth_operators(self) -> tuple[str, ...]:
        """The kinds of operators that are not piecewise linear: curves and products."""
        kinds = {type(n.operator) for n in self.nodes if not isinstance(n.operator, STRAIGHT)}
        return tuple(sorted(kind.__name__ for kind in kinds))

    @cached_property
    def unpredictable_operators(self) -> tuple[str, ...]:
        """What no standard says how float32 rounds: operators that are not known to, and computed constants."""
        kinds = (n.origin or type(n.operator).__name__ for n in self.nodes if not n.operator.rounds_as_ieee)
        return tuple(sorted({*kinds, *self.computed}))

    def to(self, where: torch.device | torch.dtype) -> Graph:
        if where in (self._parameter.device, self._parameter.dtype):
            return self
        nodes = tuple(replace(n, operator=n.operator.to(where)) for n in self.nodes)
        return replace(self, nodes=nodes)

    def in_float32(self) -> Graph:
        """The same network under any float32 evaluation, in any order of summation."""
        return replace(self, unit=UNIT + 2.0**-24, tiny=TINY_FLOAT32, largest=LARGEST_FLOAT32)

    def after(self, operator: Operator) -> Graph:
        """This network with an operator that keeps the input's shape put in front (a clip, a normalisation)."""
        shifted = (replace(n, inputs=tuple(i + 1 for i in n.inputs)) for n in self.nodes)
        return replace(self, nodes=(Node(operator, (0,), self.input_shape), *shifted))

    def behind_clip(self, clip: tuple[float, float]) -> Graph:
        """This network with a clip in front; the same object each time, so that its caches stay valid."""
        graphs = _behind_clips(self)
        if clip not in graphs:
            graphs[clip] = self.after(Clip(*clip))
        return graphs[clip]

    def then(self, operator: Operator) -> Graph:
        """This network with an operator that keeps the scores' shape put behind it."""
        last = len(self.nodes)
        return replace(self, nodes=(*self.nodes, Node(operator, (last,), self.shape(last))))


def cached_per_graph(work: Callable[Concatenate[Graph, More], Found]) -> Callable[Concatenate[Graph, More], Found]:
    """A function of a graph, worked out once and kept as long as the graph is; what it finds must not refer to it.

    Whatever else it takes, such as the time that it may take, must not matter to what it finds.
    """
    results: WeakKeyDictionary[Graph, Found] = WeakKeyDictionary()

    @wraps(work)
    def cached(graph: Graph, /, *more: More.args, **named: More.kwargs) -> Found:
        if graph not in results:
            results[graph] = work(graph, *more, **named)
        return results[graph]

    return cached


@cached_per_graph
def _behind_clips(graph: Graph) -> dict[tuple[float, float], Graph]:
    """The network behind clips, as they were asked for."""
    return {}


def bending_neurons(graph: Graph) -> Mapping[str, int]:
    """How many neurons may bend, at once or smoothly, by kind of operator."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if not isinstance(node.operator, Affine):
            kind = type(node.operator).__name__
            counts[kind] = counts.get(kind, 0) + node.shape.numel()
    return counts


@cached_per_graph
def bending_values(graph: Graph) -> int:
    """How many values are looked at by operators that may bend; a pool bends more often than it has outputs."""
    return sum(graph.shape(node.inputs[0]).numel() for node in graph.nodes if not isinstance(node.operator, Affine))
