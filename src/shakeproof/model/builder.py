"""Builds a graph node by node: a rule calls methods of values (convolve, pool, reshape), and each adds its nodes.

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
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shakeproof.operators as ops
from shakeproof.graph import NORMAL, Graph, Node
from shakeproof.model.onnx_model import LARGEST_VALUE, Array, Unsupported

CHANNELS_LAST = (0, 3, 1, 2)
# Numbers below this are as good as minus infinity.
LOWEST = -1e30
NO_NUMBERS_READ = "minus infinity, or a number as low as a mask's, other than under a softmax"


class Builder:
    """The nodes so far.

    `origin` is what is being read, as the file names it. `no_numbers`, by a stored value's number: what constants make
    of its entries, -inf, as low, NaN, or 0 for usual numbers.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        self.input_shape = torch.Size(input_shape)
        self.nodes: list[Node] = []
        self.origin = ""
        self.computed: list[str] = []
        self.no_numbers: dict[int, Tensor] = {}
        self.moved: dict[tuple[int, tuple[int, ...]], int] = {}

    def note_computed(self) -> None:
        """Note that the file computes constants with rounding, which every runtime does in its own way."""
        self.computed.append(self.origin or "a computed constant")

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """The network with `outputs`, each flattened, one after another."""
        flat = [output.reshape((prod(output.shape),), keep=True) for output in outputs]
        scores = flat[0] if len(flat) == 1 else concat(flat, 0)
        if scores.index in self.no_numbers:
            raise Unsupported(NO_NUMBERS_READ)
        return Graph(self.input_shape, tuple(self.nodes), computed=tuple(self.computed))

    def value(self, index: int) -> Value:
        """A value as it is stored; 0 is the network's input."""
        shape = self.shape(index)
        return Value(self, index, tuple(shape), tuple(range(len(shape))))

    def shape(self, index: int) -> torch.Size:
        return self.nodes[index - 1].shape if index else self.input_shape

    def no_numbers_of(self, index: int) -> Tensor:
        return self.no_numbers.get(index, torch.zeros(self.shape(index), dtype=torch.float64))

    def add(self, operator: ops.Operator, *inputs: int, no_numbers: Tensor | None = None) -> int:
        """The number of the stored value that a new node makes."""
        if no_numbers is None and any(i in self.no_numbers for i in inputs):
            no_numbers = _no_numbers_after(operator, [self.no_numbers_of(i) for i in inputs])
            if no_numbers is None:
                raise Unsupported(NO_NUMBERS_READ)
        _check_size(operator, [self.shape(i) for i in inputs])
        zeros = (torch.zeros(1, *self.shape(i), dtype=torch.float64) for i in inputs)
        self.nodes.append(Node(operator, inputs, operator.apply(*zeros).shape[1:], self.origin))
        if no_numbers is not None and bool((no_numbers != 0).any()):
            self.no_numbers[len(self.nodes)] = no_numbers
        return len(self.nodes)


@dataclass(frozen=True, eq=False)
class Value:
    """A value as the exporter sees it: axis i of `shape` is axis order[i] of the stored value number `index`.

    Methods that tensors have as well are called as theirs, so that a rule may be given either.
    """

    builder: Builder
    index: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def axis(self, number: int) -> int:
        """An axis that may be counted from the end, counted from the front."""
        if not -len(self.shape) <= number < len(self.shape):
            raise Unsupported(f"axis {number} of a value of shape {list(self.shape)}")
        return number % len(self.shape)

    # -- affine ------------------------------------------------------------------------------------------------

    def linear(self, weight: Tensor) -> Value:
        """x @ weight along the last axis."""
        if self.shape[-1] != weight.shape[0]:
            raise Unsupported(f"a product of {self.shape[-1]} values with a {list(weight.shape)} matrix")
        layer = ops.Linear(weight.t().contiguous(), torch.zeros(weight.shape[1], dtype=weight.dtype))
        return self.builder.value(self.builder.add(layer, self._stored_as(range(len(self.shape)))))

    def scale(
        self,
        factor: Tensor | float,
        offset: Tensor | float = 0.0,
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
            return self.scale(factor, offset.masked_fill(hides, 0.0), roundings, terms).where(~hides, offset)
        size = factor[factor != 0].abs()
        if roundings and not bool(((size > NORMAL[0]) & (size < NORMAL[1])).all()):
            raise Unsupported("a factor that is computed, and infinite or too small for float64's digits")
        x = self.broadcast(factor.shape, offset.shape)
        if not roundings and terms is None and bool((factor == 1).all()) and bool((offset == 0).all()):
            return x
        off = None if terms is None else x._turned(torch.as_tensor(ops.CONSTANT_ROUNDINGS * ops.UNIT * terms))
        return x.elementwise(ops.Scale(x._turned(factor), x._turned(offset), roundings=roundings, off=off))

    def where(self, kept: Tensor, otherwise: Tensor) -> Value:
        """The value where `kept`, and a constant elsewhere: minus infinity, or as low, only if a softmax reads it."""
        x = self.broadcast(kept.shape, otherwise.shape)
        if bool(kept.all()):
            return x
        kept, otherwise = x._turned(kept), x._turned(otherwise.double())
        put = torch.where(kept, 0.0, otherwise)
        if bool((put.isnan() | (put == inf)).any()):
            raise Unsupported("a constant that is infinite or NaN")
        hidden = put.masked_fill(put >= LOWEST, 0.0)
        no_numbers = torch.where(kept, self.builder.no_numbers_of(x.index), hidden)
        scale = ops.Scale(kept.double(), put.masked_fill(put < LOWEST, 0.0))
        return replace(x, index=self.builder.add(scale, x.index, no_numbers=no_numbers))

    @property
    def no_numbers(self) -> Tensor:
        """What constants make of the value's entries: -inf, as low, NaN, or 0 for usual numbers."""
        return self.builder.no_numbers_of(self.index).permute(self.order)

    def combine(self, other: Value, sign: int = 1) -> Value:
        """self + sign * other."""
        return self._with(ops.Combine(sign), other)

    def mean(self, axes: Sequence[int], keep: bool) -> Value:
        axes = [self.axis(axis) for axis in axes]
        if len(set(axes)) < len(axes):
            raise Unsupported(f"the same axis twice in {axes}")
        index = self.builder.add(ops.Mean(tuple(self.order[axis] for axis in axes)), self.index)
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(self.shape))
        kept = Value(self.builder, index, shape, self.order)
        return kept if keep else kept.reshape([size for axis, size in enumerate(shape) if axis not in axes])

    def conv(self, weight: Tensor, bias: Tensor | None, window: ops.SlidingWindow, groups: int) -> Value:
        """Cross-correlation; `weight` (channels out, channels in / groups, height, width)."""
        outputs, depth, height, width = weight.shape
        if self.shape[1] != depth * groups or outputs % groups:
            raise Unsupported(f"a convolution of {self.shape[1]} channels with weights for {depth * groups}")
        by_group = weight.reshape(groups, outputs // groups, depth, height, width)
        matrix = by_group.permute(0, 1, 3, 4, 2).reshape(groups, outputs // groups, height * width * depth)
        zero = torch.zeros(outputs, dtype=weight.dtype)
        return self._on_picture(ops.Conv(matrix.contiguous(), zero if bias is None else zero + bias, window), window)

    def conv_transpose(
        self,
        weight: Tensor,
        bias: Tensor | None,
        groups: int,
        strides: ops.Pair,
        dilations: ops.Pair,
        cropped: Sequence[Sequence[int]],
    ) -> Value:
        """The transpose of a convolution with `weight` (channels in, channels out / groups, height, width).

        Of its lines and columns, those in `cropped`. Tap t of a kernel reaches dilation * t entries on: so many blocks
        of a stride, and a place in the last one.
        """
        inputs, outputs, *kernel = weight.shape
        if self.shape[1] != inputs or inputs % groups:
            raise Unsupported(f"a convolution of {self.shape[1]} channels with weights for {inputs}")
        (down, across), (tall, wide) = strides, ((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
        lines, columns = -(-tall // down), -(-wide // across)
        taps = weight.new_zeros(groups, inputs // groups, outputs, lines * down, columns * across)
        taps[..., : tall : dilations[0], : wide : dilations[1]] = weight.unflatten(0, (groups, -1))
        by_block = taps.unflatten(4, (columns, across)).unflatten(3, (lines, down)).flip(3, 5)
        kernels = by_block.permute(0, 4, 6, 2, 1, 3, 5).flatten(0, 3)  # (group, down, across, out), in, lines, columns
        repeated = None if bias is None else bias.view(groups, 1, -1).expand(-1, down * across, -1).flatten()
        height, width = (
            max(side, -(-(crop[-1] + 1) // step))
            for side, crop, step in zip(self.shape[2:], cropped, strides, strict=True)
        )
        pads = (lines - 1, columns - 1, height - self.shape[2], width - self.shape[3])
        blocks = self.conv(kernels, repeated, ops.SlidingWindow((lines, columns), pads=pads), groups)
        batch = blocks.shape[0]
        if strides != (1, 1):
            apart = blocks.permute((0, 2, 3, 1)).reshape((batch, height, width, groups, down, across, outputs))
            beside = apart.permute((0, 1, 4, 2, 5, 3, 6))
            whole = beside.reshape((batch, height * down, width * across, groups * outputs))
            blocks = whole.permute((0, 3, 1, 2))
        return blocks.pad([range(batch), range(blocks.shape[1]), *cropped], 0.0)

    def average_pool(self, window: ops.SlidingWindow, divisor: Tensor) -> Value:
        return self._on_picture(ops.AveragePool(window, divisor), window)

    def resample(self, axis: int, sources: Sequence[Sequence[int]], weight: Tensor, roundings: int) -> Value:
        """Along one axis, output i is the sum over taps t of weight[t, i] times entry sources[t][i]."""
        axis, taps = self.axis(axis), tuple(tuple(source) for source in sources)
        index = self.builder.add(ops.Resample(self.order[axis], taps, weight, roundings=roundings), self.index)
        shape = (*self.shape[:axis], weight.shape[1], *self.shape[axis + 1 :])
        return Value(self.builder, index, shape, self.order)

    # -- not affine --------------------------------------------------------------------------------------------

    def elementwise(self, operator: ops.Operator) -> Value:
        """An operator that treats all neurons alike, or has parameters that fit the value as stored."""
        return replace(self, index=self.builder.add(operator, self.index))

    def leaky_relu(self, slope: Tensor | float) -> Value:
        slope = torch.as_tensor(slope, dtype=torch.float64)
        if slope.dim() > len(self.shape):
            raise Unsupported(f"a slope of shape {list(slope.shape)} for a value of shape {list(self.shape)}")
        return self.elementwise(ops.LeakyRelu(self._turned(slope)))

    def clip(self, low: float, high: float) -> Value:
        if not low <= high:
            raise Unsupported(f"clipping to [{low}, {high}]")
        return self if abs(low) == abs(high) == inf else self.elementwise(ops.Clip(low, high))

    def max_pool(self, window: ops.SlidingWindow) -> Value:
        return self._on_picture(ops.MaxPool(window), window)

    def multiply(self, other: Value) -> Value:
        """self * other, entry by entry."""
        return self._with(ops.Multiply(), other)

    def matmul(self, other: Value) -> Value:
        """self @ other along the last two axes, both of rank 2 or more."""
        rank = max(len(self.shape), len(other.shape))
        stored = (x._with_rank(rank)._stored_as(range(rank)) for x in (self, other))
        return self.builder.value(self.builder.add(ops.MatMul(), *stored))

    def normalise(self, axes: Sequence[int], epsilon: float) -> Value:
        """(x - mean) / sqrt(variance + epsilon), both over some axes."""
        return self.elementwise(ops.Normalise(tuple(self.order[self.axis(axis)] for axis in axes), epsilon))

    def softmax(self, axis: int) -> Value:
        axis = self.order[self.axis(axis)]
        if self.index not in self.builder.no_numbers:
            return self.elementwise(ops.Softmax(axis))
        entries = self.builder.no_numbers[self.index]
        left = _no_numbers_after_softmax(entries, axis)
        if left is None:
            raise Unsupported("a mask of finite numbers that leaves nothing")
        masked = ops.Softmax(axis, (entries == 0).double())
        return replace(self, index=self.builder.add(masked, self.index, no_numbers=left))

    # -- moves of entries --------------------------------------------------------------------------------------

    def reshape(self, shape: Sequence[int], keep: bool = False) -> Value:
        """The same entries in another shape; `keep` makes a node even if nothing changes."""
        if prod(shape) != prod(self.shape):
            raise Unsupported(f"reshaping {list(self.shape)} to {list(shape)}")
        if tuple(shape) == self.shape and not keep:
            return self
        stored = ops.Reshape(tuple(shape) or (1,))  # a single number is stored with an axis
        index = self.builder.add(stored, self._stored_as(range(len(self.shape))))
        return Value(self.builder, index, tuple(shape), tuple(range(len(shape))))

    def permute(self, order: Sequence[int]) -> Value:
        return replace(self, shape=tuple(self.shape[i] for i in order), order=tuple(self.order[i] for i in order))

    @property
    def mT(self) -> Value:  # noqa: N802 - as tensors have it
        """The last two axes exchanged."""
        rank = len(self.shape)
        return self.permute((*range(rank - 2), rank - 1, rank - 2))

    def pad(self, sources: Sequence[Sequence[int]], value: float) -> Value:
        """Entries added or dropped along each axis: `sources[a]` lists the index each output index copies, or -1."""
        ends = zip(sources, self.shape, strict=True)
        if abs(value) == inf and any(size and max(source, default=-1) != size - 1 for source, size in ends):
            raise Unsupported("cropping and padding with an infinite value at once")
        if len(self.shape) != 4:
            return self._copied(sources, value)
        # a picture: what follows will want it with channels last
        stored = Value(self.builder, self._stored_as(CHANNELS_LAST), self.shape, CHANNELS_LAST)
        return stored._copied(sources, value)

    def take(self, axis: int, sources: Sequence[int]) -> Value:
        """Entries along one axis: `sources` lists the index each output index copies, or -1 for a zero."""
        every: list[Sequence[int]] = [range(size) for size in self.shape]
        every[self.axis(axis)] = sources
        return self._copied(every, 0.0)

    def gather(self, axis: int, indices: Tensor) -> Value:
        """Entries along an axis, which becomes the axes of `indices`: none for a single number."""
        axis = self.axis(axis)
        size, chosen = self.shape[axis], indices.reshape(-1).tolist()
        if not all(-size <= index < size for index in chosen):
            raise Unsupported(f"indices {chosen} along an axis of length {size}")
        taken = self.take(axis, [index % size for index in chosen])
        return taken.reshape((*self.shape[:axis], *indices.shape, *self.shape[axis + 1 :]))

    def broadcast(self, *shapes: tuple[int, ...]) -> Value:
        """The value repeated along axes of length 1, and along new ones in front, as numpy would beside such shapes."""
        shape = np.broadcast_shapes(self.shape, *shapes)
        x = self._with_rank(len(shape))
        if prod(shape) > LARGEST_VALUE:
            raise Unsupported(f"repeating a value of shape {list(x.shape)} to {list(shape)}")
        sources = [range(wide) if wide == size else (0,) * wide for size, wide in zip(x.shape, shape, strict=True)]
        return x._copied(sources, 0.0)

    # -- how it is stored --------------------------------------------------------------------------------------

    def _with(self, operator: ops.Operator, other: Value) -> Value:
        """An operator that broadcasts two values against each other, stored as the larger one is."""
        rank = max(len(self.shape), len(other.shape))
        first, second = self._with_rank(rank), other._with_rank(rank)
        order = max(first, second, key=lambda x: prod(x.shape)).order
        index = self.builder.add(operator, first._stored_as(order), second._stored_as(order))
        return Value(self.builder, index, np.broadcast_shapes(first.shape, second.shape), order)

    def _copied(self, sources: Sequence[Sequence[int]], value: float) -> Value:
        if prod(map(len, sources)) > LARGEST_VALUE:
            raise Unsupported(f"a value of {prod(map(len, sources))} entries")
        if not all(sources):
            raise Unsupported(f"an empty part of a value of shape {list(self.shape)}")
        if all(tuple(source) == tuple(range(size)) for source, size in zip(sources, self.shape, strict=True)):
            return self
        stored: list[tuple[int, ...]] = [()] * len(self.shape)
        for axis, source in zip(self.order, sources, strict=True):
            stored[axis] = tuple(source)
        index = self.builder.add(ops.Pad(tuple(stored), value), self.index)
        return Value(self.builder, index, tuple(map(len, sources)), self.order)

    def _on_picture(self, operator: ops.Operator, window: ops.SlidingWindow) -> Value:
        if min(window.output_size(self.shape[2], self.shape[3])) < 1:
            kernel = f"{window.kernel[0]} x {window.kernel[1]}"
            raise Unsupported(f"a {kernel} window on a {self.shape[2]} x {self.shape[3]} picture")
        index = self.builder.add(operator, self._stored_as(CHANNELS_LAST))
        n, height, width, channels = self.builder.shape(index)
        return Value(self.builder, index, (n, channels, height, width), CHANNELS_LAST)

    def _stored_as(self, order: Sequence[int]) -> int:
        """The number of a stored value whose axes are seen through `order` as this one's are."""
        move = tuple(self.order[i] for i in _inverse(order))
        if move == tuple(range(len(move))):
            return self.index
        moved, stored = self.builder.moved, self.builder.shape(self.index)
        if (self.index, move) not in moved:
            # Where only axes of length 1 move, the entries stay where they are.
            stays = [a for a in move if stored[a] > 1] == [a for a in sorted(move) if stored[a] > 1]
            operator = ops.Reshape(tuple(stored[a] for a in move)) if stays else ops.Transpose(move)
            moved[self.index, move] = self.builder.add(operator, self.index)
        return moved[self.index, move]

    def _turned(self, constant: Tensor) -> Tensor:
        """A constant that broadcasts against the value as seen, turned to broadcast against it as stored."""
        if constant.numel() == 1:
            return constant.reshape(())
        wide = constant.reshape((1,) * (len(self.shape) - constant.dim()) + constant.shape)
        return wide.permute(_inverse(self.order)).contiguous()

    def _with_rank(self, rank: int) -> Value:
        return self.reshape((1,) * (rank - len(self.shape)) + self.shape)


def _inverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def concat(parts: Sequence[Value | Tensor], axis: int) -> Value:
    """Values and constants one after another: constants are added where the values leave room for them."""
    first, *others = values = [part for part in parts if isinstance(part, Value)]
    joined, axis = first, first.axis(axis)
    if others:
        stored = (value._stored_as(first.order) for value in values)
        shape = [sum(v.shape[axis] for v in values) if a == axis else size for a, size in enumerate(first.shape)]
        index = first.builder.add(ops.Concat(first.order[axis]), *stored)
        joined = Value(first.builder, index, tuple(shape), first.order)
    if len(values) == len(parts):
        return joined
    indices = iter(range(joined.shape[axis]))
    sources = [next(indices) if isinstance(part, Value) else -1 for part in parts for _ in range(part.shape[axis])]
    zeros = (part if isinstance(part, Tensor) else torch.zeros(part.shape, dtype=torch.float64) for part in parts)
    return joined.take(axis, sources).scale(1.0, torch.cat(list(zeros), axis))


def _check_size(operator: ops.Operator, shapes: Sequence[torch.Size]) -> None:
    """Refuse what would make a value, or need room, beyond any picture's: worked out on no rows of it."""
    try:
        none = (torch.empty(0, *shape, dtype=torch.float64) for shape in shapes)
        entries = max(operator.apply(*none).shape[1:].numel(), operator.workspace(*shapes) // 8)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return  # run on numbers, it will say itself what is wrong
    if entries > LARGEST_VALUE:
        raise Unsupported(f"a value of {entries} entries")


def _no_numbers_after(operator: ops.Operator, entries: Sequence[Tensor]) -> Tensor | None:
    """What an operator makes of such entries, by the rules of floating point; None if that may not be read."""
    linear: ops.Operator | None = None
    if isinstance(operator, ops.Affine) and operator.only_moves:
        linear = operator.magnitude()
    elif isinstance(operator, ops.Scale):
        linear = replace(operator, offset=torch.zeros_like(operator.offset))
    elif isinstance(operator, ops.Combine):
        linear = operator
    if linear is None:
        return None
    result = linear.apply(*(one.unsqueeze(0) for one in entries)).squeeze(0)
    return result if bool(((result == 0) | (result < LOWEST) | result.isnan()).all()) else None


def _no_numbers_after_softmax(entries: Tensor, axis: int) -> Tensor | None:
    """NaN along an axis on which nothing but minus infinity is left, or NaN already; elsewhere numbers.

    None where nothing but low numbers are left: floats have forgotten what they were added to, and real numbers not.
    """
    nothing = (entries == -inf).all(axis, keepdim=True) | entries.isnan().any(axis, keepdim=True)
    if bool((~nothing & (entries != 0).all(axis, keepdim=True)).any()):
        return None
    return torch.where(nothing, torch.nan, 0.0).expand_as(entries).double()


# -- one node as its rule sees it -------------------------------------------------------------------------------------


class Attributes(dict[str, Any]):
    """A node's attributes, which remember what a rule has looked at: the others it would silently ignore."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        super().__init__(attributes)
        self.unread = set(attributes)

    def __getitem__(self, name: str) -> Any:
        self.unread.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.unread.discard(name)
        return super().get(name, default)


@dataclass(frozen=True)
class Call:
    """One ONNX node: its inputs (values, constants, or None where left out), attributes and number of outputs.

    `roundings` counts how often its constants were rounded, at most, while they were computed.
    """

    builder: Builder
    opset: int
    inputs: tuple[Value | Array | None, ...]
    attributes: Attributes
    outputs: int
    roundings: int = 0

    def value(self, index: int = 0) -> Value:
        operand = self._input(index)
        if not isinstance(operand, Value):
            raise Unsupported(f"input {index} is a constant")
        return operand

    def constant(self, index: int) -> Array:
        operand = self._input(index)
        if isinstance(operand, Value):
            raise Unsupported(f"input {index} is computed by the network; only a constant is supported there")
        return operand

    def tensor(self, index: int) -> Tensor:
        """A constant in float64."""
        return torch.from_numpy(np.array(self.constant(index), dtype=np.float64))

    def operand(self, index: int) -> Value | Tensor:
        """An input that may be either."""
        operand = self._input(index)
        return operand if isinstance(operand, Value) else self.tensor(index)

    def operands(self) -> list[Value | Tensor]:
        return [self.operand(index) for index in range(len(self.inputs))]

    def computed_first(self) -> list[Value | Tensor]:
        return sorted(self.operands(), key=lambda x: not isinstance(x, Value))

    def two(self) -> tuple[Value | Tensor, Value | Tensor]:
        return self.operand(0), self.operand(1)

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return len(self.inputs) > index and self.inputs[index] is not None

    def optional(self, index: int) -> Array | None:
        return self.constant(index) if self.has(index) else None

    def indices(self) -> Tensor:
        """The second input, as whole numbers."""
        return torch.from_numpy(self.constant(1).astype(np.int64))

    def text(self, name: str, default: str) -> str:
        return str(self.attributes.get(name, default.encode()).decode())

    def single(self, name: str, default: float) -> float:
        """A number that is an attribute. Attributes are float32 numbers, and so are their defaults."""
        return float(self.attributes.get(name, np.float32(default)))

    def integers(self, name: str, index: int) -> list[int] | None:
        """A list of integers that older opsets give as an attribute and newer ones as an input."""
        listed = self.attributes.get(name) if name in self.attributes else self.optional(index)
        return None if listed is None else [int(i) for i in np.ravel(listed)]

    def number(self, name: str, index: int, default: float) -> float:
        """A number that older opsets give as an attribute and newer ones as an input."""
        number = self.attributes.get(name) if name in self.attributes else self.optional(index)
        return default if number is None else float(np.asarray(number).reshape(()))

    def _input(self, index: int) -> Value | Array:
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise Unsupported(f"input {index} is missing")
        return operand
