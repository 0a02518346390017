"""Builds a graph node by node: convolve, pool, reshape, multiply.

Exporters think of pictures with channels first, our operators store them with channels last. Each value therefore
carries the order in which its stored axes are seen. A transposition only changes that order; entries are moved when an
operator needs them moved. A network in either layout becomes the same graph, without transpositions in its midst.

Where constants alone make a value no number (minus infinity under a mask), nothing uses what a node stores there: a
softmax leaves such entries out, and a guard puts something else in their place. Everything else that reads them is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.model.graph import Graph, Node
from shakeproof.model.rewriting import NORMAL, simplify
from shakeproof.operators import (
    CONSTANT_ROUNDINGS,
    UNIT,
    Affine,
    AveragePool,
    Clip,
    Combine,
    Concat,
    Conv,
    LeakyRelu,
    Linear,
    MatMul,
    MaxPool,
    Mean,
    Multiply,
    Normalise,
    Operator,
    Pad,
    Pair,
    Resample,
    Reshape,
    Scale,
    SlidingWindow,
    Softmax,
    Transpose,
)

Array = NDArray[Any]
CHANNELS_LAST = (0, 3, 1, 2)
# Nothing that a picture becomes has more entries; a repetition to more is a mistake in the file.
LARGEST_VALUE = 10**8


class Unsupported(Exception):  # noqa: N818 - a finding, not a failure
    """An operator, or a use of one, that the graph cannot express; the reader collects these and goes on."""


@dataclass(frozen=True)
class Value:
    """A value as the exporter sees it: axis i of `shape` is axis order[i] of the stored value number `index`."""

    index: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def axis(self, number: int) -> int:
        """An axis that may be counted from the end, counted from the front."""
        if not -len(self.shape) <= number < len(self.shape):
            raise Unsupported(f"axis {number} of a value of shape {list(self.shape)}")
        return number % len(self.shape)


@dataclass(frozen=True)
class Pooling:
    """A window as exporters write it: kernel, strides, dilations, pads, and whether a last partial window counts."""

    kernel: Pair
    strides: Pair
    dilations: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil: bool = False

    def window(self, height: int, width: int) -> SlidingWindow:
        """The window for a picture size. Partial windows become padding at the bottom and right."""
        top, left, bottom, right = self.pads
        if self.ceil:
            bottom += self._missing(height + top + bottom, 0, height + top)
            right += self._missing(width + left + right, 1, width + left)
        return SlidingWindow(self.kernel, self.strides, self.dilations, (top, left, bottom, right))

    def _missing(self, padded: int, axis: int, content: int) -> int:
        reach = self.dilations[axis] * (self.kernel[axis] - 1) + 1
        steps = -(-(padded - reach) // self.strides[axis])
        if steps * self.strides[axis] >= content:  # a window must not start beyond the picture
            steps -= 1
        return max(0, steps * self.strides[axis] + reach - padded)


class Builder:
    """Collects nodes. Methods take and return values as the exporter sees them."""

    def __init__(self, input_shape: Sequence[int]) -> None:
        self._input_shape = torch.Size(input_shape)
        self._nodes: list[Node] = []
        self._moved: dict[tuple[int, tuple[int, ...]], int] = {}
        # By a stored value's number, what constants make of its entries: -inf, as low, NaN, or 0 for usual numbers.
        self._no_numbers: dict[int, Tensor] = {}
        self.input = self._seen(0)
        self.origin = ""  # what is being read, as the file names it
        self._computed: list[str] = []

    def note_computed(self) -> None:
        """What is being read has constants that every runtime computes in its own way, and rounds."""
        self._computed.append(self.origin or "a computed constant")

    def finish(self, output: Value) -> Graph:
        """The simplified graph, with `output`, flattened, as class scores."""
        scores = self.reshape(output, (prod(output.shape),), keep=True)
        if scores.index in self._no_numbers:
            raise Unsupported(REFUSED)
        graph = simplify(Graph(self._input_shape, tuple(self._nodes), computed=tuple(self._computed)))
        if any(isinstance(n.operator, Pad) and abs(n.operator.value) == float("inf") for n in graph.nodes):
            raise Unsupported("padding with an infinite value, other than for max pooling")
        return graph

    # -- affine ------------------------------------------------------------------------------------------------

    def linear(self, x: Value, weight: Tensor) -> Value:
        """x @ weight along the last axis."""
        if x.shape[-1] != weight.shape[0]:
            raise Unsupported(f"a product of {x.shape[-1]} values with a {list(weight.shape)} matrix")
        layer = Linear(weight.t().contiguous(), torch.zeros(weight.shape[1], dtype=weight.dtype))
        return self._seen(self._node(layer, self._arranged(x, tuple(range(len(x.shape))))))

    def scale(
        self,
        x: Value,
        factor: Tensor | float,
        offset: Tensor | float,
        roundings: int = 0,
        terms: Tensor | float | None = None,
    ) -> Value:
        """factor * x + offset with numpy's broadcasting; a wider constant widens the value.

        Both were rounded so many times; where the offset was added up, `terms` is the sum of the absolute values of
        what it was made of.
        """
        factor, offset = (torch.as_tensor(c, dtype=torch.float64) for c in (factor, offset))
        hides = (offset < LOWEST) | ~offset.isfinite()
        if bool(hides.any()):
            return self.where(self.scale(x, factor, offset.masked_fill(hides, 0.0), roundings, terms), ~hides, offset)
        size = factor[factor != 0].abs()
        if roundings and not bool(((size > NORMAL[0]) & (size < NORMAL[1])).all()):
            raise Unsupported("a factor that is computed, and infinite or too small for float64's digits")
        x = self.expand(x, np.broadcast_shapes(factor.shape, offset.shape, x.shape))
        if not roundings and terms is None and bool((factor == 1).all()) and bool((offset == 0).all()):
            return x
        off = None if terms is None else self._stored(torch.as_tensor(CONSTANT_ROUNDINGS * UNIT * terms), x)
        stored = (self._stored(constant, x) for constant in (factor, offset))
        return self.elementwise(Scale(*stored, roundings=roundings, off=off), x)

    def where(self, x: Value, kept: Tensor, otherwise: Tensor) -> Value:
        """The value where `kept`, and a constant elsewhere: minus infinity, or as low, only if a softmax reads it."""
        x = self.expand(x, np.broadcast_shapes(x.shape, kept.shape, otherwise.shape))
        if bool(kept.all()):
            return x
        kept, otherwise = (self._stored(constant, x) for constant in (kept, otherwise.double()))
        put = torch.where(kept, 0.0, otherwise)
        if bool((put.isnan() | (put == torch.inf)).any()):
            raise Unsupported("a constant that is infinite or no number")
        hidden = put.masked_fill(put >= LOWEST, 0.0)
        no_numbers = torch.where(kept, self._no_numbers_of(x.index), hidden)
        scale = Scale(kept.double(), put.masked_fill(put < LOWEST, 0.0))
        return Value(self._node(scale, x.index, no_numbers=no_numbers), x.shape, x.order)

    def no_numbers(self, x: Value) -> Tensor:
        """What constants make of the value's entries: -inf, as low, NaN, or 0 for usual numbers."""
        return self._no_numbers_of(x.index).permute(x.order)

    def _no_numbers_of(self, index: int) -> Tensor:
        return self._no_numbers.get(index, torch.zeros(self._shape(index), dtype=torch.float64))

    def combine(self, first: Value, second: Value, sign: int = 1) -> Value:
        """first + sign * second."""
        return self._aligned(Combine(sign), first, second)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        first = values[0]
        axis = first.axis(axis)
        index = self._node(Concat(first.order[axis]), *(self._arranged(v, first.order) for v in values))
        shape = list(first.shape)
        shape[axis] = sum(v.shape[axis] for v in values)
        return Value(index, tuple(shape), first.order)

    def mean(self, x: Value, axes: Sequence[int], keep: bool) -> Value:
        axes = [x.axis(axis) for axis in axes]
        if len(set(axes)) < len(axes):
            raise Unsupported(f"the same axis twice in {axes}")
        index = self._node(Mean(tuple(x.order[axis] for axis in axes)), x.index)
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        kept = Value(index, shape, x.order)
        return kept if keep else self.reshape(kept, [s for axis, s in enumerate(shape) if axis not in axes])

    def conv(self, x: Value, weight: Tensor, bias: Tensor | None, pooling: Pooling, groups: int) -> Value:
        """Cross-correlation; `weight` (channels out, channels in / groups, height, width)."""
        outputs, depth, height, width = weight.shape
        if x.shape[1] != depth * groups or outputs % groups:
            raise Unsupported(f"a convolution of {x.shape[1]} channels with weights for {depth * groups}")
        by_group = weight.reshape(groups, outputs // groups, depth, height, width)
        matrix = by_group.permute(0, 1, 3, 4, 2).reshape(groups, outputs // groups, height * width * depth)
        zero = torch.zeros(outputs, dtype=weight.dtype)
        window = pooling.window(x.shape[2], x.shape[3])
        return self._picture(Conv(matrix.contiguous(), zero if bias is None else zero + bias, window), x, window)

    def average_pool(self, x: Value, pooling: Pooling, count_padding: bool) -> Value:
        window = pooling.window(x.shape[2], x.shape[3])
        counted = torch.ones(1, *x.shape[2:], 1, dtype=torch.float64)
        inner = SlidingWindow(window.kernel, pads=pooling.pads).padded(counted, float(count_padding))
        extra = tuple(w - p for w, p in zip(window.pads, pooling.pads, strict=True))
        whole = replace(window, pads=(extra[0], extra[1], extra[2], extra[3])).padded(inner, 0.0)
        divisor = torch.stack(window.shifted(whole, window.output_size(*x.shape[2:]))).sum(0)[0]
        return self._picture(AveragePool(window, divisor), x, window)

    def resample(self, x: Value, axis: int, sources: Sequence[Sequence[int]], weight: Tensor, roundings: int) -> Value:
        """Along one axis, output i is the sum over taps t of weight[t, i] times entry sources[t][i]."""
        axis, taps = x.axis(axis), tuple(tuple(source) for source in sources)
        index = self._node(Resample(x.order[axis], taps, weight, roundings=roundings), x.index)
        return Value(index, (*x.shape[:axis], weight.shape[1], *x.shape[axis + 1 :]), x.order)

    # -- not affine --------------------------------------------------------------------------------------------

    def elementwise(self, operator: Operator, x: Value) -> Value:
        """An operator that treats all neurons alike, or has parameters that fit the value as stored."""
        return Value(self._node(operator, x.index), x.shape, x.order)

    def leaky_relu(self, x: Value, slope: Tensor | float) -> Value:
        slope = torch.as_tensor(slope, dtype=torch.float64)
        if slope.dim() > len(x.shape):
            raise Unsupported(f"a slope of shape {list(slope.shape)} for a value of shape {list(x.shape)}")
        return self.elementwise(LeakyRelu(self._stored(slope, x)), x)

    def clip(self, x: Value, low: float, high: float) -> Value:
        if not low <= high:
            raise Unsupported(f"clipping to [{low}, {high}]")
        if abs(low) == abs(high) == float("inf"):
            return x
        return self.elementwise(Clip(low, high), x)

    def max_pool(self, x: Value, pooling: Pooling) -> Value:
        window = pooling.window(x.shape[2], x.shape[3])
        return self._picture(MaxPool(window), x, window)

    def multiply(self, first: Value, second: Value) -> Value:
        """first * second, entry by entry."""
        return self._aligned(Multiply(), first, second)

    def matmul(self, first: Value, second: Value) -> Value:
        """first @ second along the last two axes, both of rank 2 or more."""
        rank = max(len(first.shape), len(second.shape))
        straight = tuple(range(rank))
        stored = (self._arranged(self._with_rank(x, rank), straight) for x in (first, second))
        return self._seen(self._node(MatMul(), *stored))

    def normalise(self, x: Value, axes: Sequence[int], epsilon: float) -> Value:
        """(x - mean) / sqrt(variance + epsilon), both over some axes."""
        return self.elementwise(Normalise(tuple(x.order[x.axis(axis)] for axis in axes), epsilon), x)

    def softmax(self, x: Value, axis: int) -> Value:
        axis = x.order[x.axis(axis)]
        if x.index not in self._no_numbers:
            return self.elementwise(Softmax(axis), x)
        entries = self._no_numbers[x.index]
        left = after_softmax(entries, axis)
        if left is None:
            raise Unsupported("a mask of finite numbers that leaves nothing")
        index = self._node(Softmax(axis, (entries == 0).double()), x.index, no_numbers=left)
        return Value(index, x.shape, x.order)

    # -- shape -------------------------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[int], keep: bool = False) -> Value:
        """The same entries in another shape; `keep` makes a node even if nothing changes."""
        if prod(shape) != prod(x.shape):
            raise Unsupported(f"reshaping {list(x.shape)} to {list(shape)}")
        if tuple(shape) == x.shape and not keep:
            return x
        straight = self._arranged(x, tuple(range(len(x.shape))))
        index = self._node(Reshape(tuple(shape) or (1,)), straight)  # a single number is stored with an axis
        return Value(index, tuple(shape), tuple(range(len(shape))))

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        return Value(x.index, tuple(x.shape[i] for i in order), tuple(x.order[i] for i in order))

    def pad(self, x: Value, sources: Sequence[Sequence[int]], value: float) -> Value:
        """Entries added or dropped along each axis: `sources[a]` lists the index each output index copies, or -1."""
        crops = any(size and max(source, default=-1) != size - 1 for source, size in zip(sources, x.shape, strict=True))
        if crops and abs(value) == float("inf"):
            raise Unsupported("cropping and padding with an infinite value at once")
        if len(x.shape) == 4:  # a picture: what follows will want it with channels last
            x = Value(self._arranged(x, CHANNELS_LAST), x.shape, CHANNELS_LAST)
        return self._copied(x, sources, value)

    def take(self, x: Value, axis: int, sources: Sequence[int]) -> Value:
        """Entries along one axis: `sources` lists the index each output index copies, or -1 for a zero."""
        every: list[Sequence[int]] = [range(size) for size in x.shape]
        every[x.axis(axis)] = sources
        return self._copied(x, every, 0.0)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """The value repeated along axes of length 1, and along new ones in front, until it has a shape."""
        x = self._with_rank(x, len(shape))
        if np.broadcast_shapes(x.shape, shape) != tuple(shape) or prod(shape) > LARGEST_VALUE:
            raise Unsupported(f"repeating a value of shape {list(x.shape)} to {list(shape)}")
        repeated = [range(wide) if wide == size else (0,) * wide for size, wide in zip(x.shape, shape, strict=True)]
        return self._copied(x, repeated, 0.0)

    # -- how values are stored ---------------------------------------------------------------------------------

    def _node(self, operator: Operator, *inputs: int, no_numbers: Tensor | None = None) -> int:
        if no_numbers is None and any(i in self._no_numbers for i in inputs):
            no_numbers = carried(operator, [self._no_numbers_of(i) for i in inputs])
            if no_numbers is None:
                raise Unsupported(REFUSED)
        _check_size(operator, [self._shape(i) for i in inputs])
        zeros = (torch.zeros(1, *self._shape(i), dtype=torch.float64) for i in inputs)
        self._nodes.append(Node(operator, inputs, operator.apply(*zeros).shape[1:], self.origin))
        if no_numbers is not None and bool((no_numbers != 0).any()):
            self._no_numbers[len(self._nodes)] = no_numbers
        return len(self._nodes)

    def _shape(self, index: int) -> torch.Size:
        return self._nodes[index - 1].shape if index else self._input_shape

    def _seen(self, index: int) -> Value:
        shape = self._shape(index)
        return Value(index, tuple(shape), tuple(range(len(shape))))

    def _aligned(self, operator: Operator, first: Value, second: Value) -> Value:
        """An operator that broadcasts two values against each other, stored as the larger one is."""
        rank = max(len(first.shape), len(second.shape))
        first, second = self._with_rank(first, rank), self._with_rank(second, rank)
        order = max(first, second, key=lambda x: prod(x.shape)).order
        index = self._node(operator, self._arranged(first, order), self._arranged(second, order))
        return Value(index, np.broadcast_shapes(first.shape, second.shape), order)

    def _copied(self, x: Value, sources: Sequence[Sequence[int]], value: float) -> Value:
        if prod(map(len, sources)) > LARGEST_VALUE:
            raise Unsupported(f"a value of {prod(map(len, sources))} entries")
        if not all(sources):
            raise Unsupported(f"an empty part of a value of shape {list(x.shape)}")
        if all(tuple(source) == tuple(range(size)) for source, size in zip(sources, x.shape, strict=True)):
            return x
        stored: list[tuple[int, ...]] = [()] * len(x.shape)
        for axis, source in zip(x.order, sources, strict=True):
            stored[axis] = tuple(source)
        return Value(self._node(Pad(tuple(stored), value), x.index), tuple(map(len, sources)), x.order)

    def _picture(self, operator: Operator, x: Value, window: SlidingWindow) -> Value:
        if min(window.output_size(x.shape[2], x.shape[3])) < 1:
            raise Unsupported(
                f"a {window.kernel[0]} x {window.kernel[1]} window on a {x.shape[2]} x {x.shape[3]} picture"
            )
        index = self._node(operator, self._arranged(x, CHANNELS_LAST))
        n, height, width, channels = self._shape(index)
        return Value(index, (n, channels, height, width), CHANNELS_LAST)

    def _arranged(self, x: Value, order: tuple[int, ...]) -> int:
        """The number of a stored value whose axes are seen through `order` as `x` is."""
        inverse = sorted(range(len(order)), key=order.__getitem__)
        move = tuple(x.order[i] for i in inverse)
        stored = self._shape(x.index)
        if move == tuple(range(len(move))):
            return x.index
        if (x.index, move) not in self._moved:
            # Where only axes of length 1 move, the entries stay where they are.
            stays = [a for a in move if stored[a] > 1] == [a for a in sorted(move) if stored[a] > 1]
            operator = Reshape(tuple(stored[a] for a in move)) if stays else Transpose(move)
            self._moved[x.index, move] = self._node(operator, x.index)
        return self._moved[x.index, move]

    def _stored(self, constant: Tensor, x: Value) -> Tensor:
        """A constant that broadcasts against `x` as seen, turned to broadcast against `x` as stored."""
        if constant.numel() == 1:
            return constant.reshape(())
        inverse = sorted(range(len(x.order)), key=x.order.__getitem__)
        return constant.reshape((1,) * (len(x.shape) - constant.dim()) + constant.shape).permute(inverse).contiguous()

    def _with_rank(self, x: Value, rank: int) -> Value:
        return x if len(x.shape) >= rank else self.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)


def _check_size(operator: Operator, shapes: Sequence[torch.Size]) -> None:
    """Refuse what would make a value, or need room, beyond any picture's: worked out on no rows of it."""
    try:
        none = (torch.empty(0, *shape, dtype=torch.float64) for shape in shapes)
        entries = max(operator.apply(*none).shape[1:].numel(), operator.workspace(*shapes) // 8)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # run on numbers, it will say itself what is wrong
    if entries > LARGEST_VALUE:
        raise Unsupported(f"a value of {entries} entries")


# -- where a value is no number ---------------------------------------------------------------------------------------

# Numbers below this are as good as minus infinity.
LOWEST = -1e30
REFUSED = "minus infinity, or a number as low as a mask's, other than under a softmax"


def carried(operator: Operator, given: Sequence[Tensor]) -> Tensor | None:
    """What an operator makes of such entries, by the rules of floating point; None if that may not be read."""
    linear: Operator | None = None
    if isinstance(operator, Affine) and operator.only_moves:
        linear = operator.magnitude()
    elif isinstance(operator, Scale):
        linear = replace(operator, offset=torch.zeros_like(operator.offset))
    elif isinstance(operator, Combine):
        linear = operator
    if linear is None:
        return None
    found = linear.apply(*(entries.unsqueeze(0) for entries in given)).squeeze(0)
    return found if bool(((found == 0) | (found < LOWEST) | found.isnan()).all()) else None


def after_softmax(entries: Tensor, axis: int) -> Tensor | None:
    """NaN along an axis on which nothing but minus infinity is left, or NaN already; elsewhere numbers.

    None where nothing but low numbers are left: floats have forgotten what they were added to, and real numbers not.
    """
    nothing = (entries == -torch.inf).all(axis, keepdim=True) | entries.isnan().any(axis, keepdim=True)
    if bool((~nothing & (entries != 0).all(axis, keepdim=True)).any()):
        return None
    return torch.where(nothing, torch.nan, 0.0).expand_as(entries).double()
