"""One ONNX node as its rule sees it, and operations on operands that the network computes or the file states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shakeproof.model.builder import Array, Builder, Unsupported, Value
from shakeproof.operators import Power, Relu

# Computed by the network, or a constant.
Operand = Value | Tensor

NEITHER_COMPUTED = Unsupported("neither operand is computed by the network")
# A product with a stack of matrices is one linear layer for each.
LARGEST_STACK = 64


class Attributes(Mapping[str, Any]):
    """A node's attributes, which remember what a rule has looked at: the others it would silently ignore."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._attributes = attributes
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes)

    def __len__(self) -> int:
        return len(self._attributes)

    @property
    def unread(self) -> frozenset[str]:
        return frozenset(self._attributes) - self._read


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

    def operand(self, index: int) -> Operand:
        """An input that may be either."""
        operand = self._input(index)
        return operand if isinstance(operand, Value) else self.tensor(index)

    def operands(self) -> list[Operand]:
        return [self.operand(index) for index in range(len(self.inputs))]

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
        if name in self.attributes:
            return [int(i) for i in np.atleast_1d(self.attributes[name])]
        constant = self.optional(index)
        return None if constant is None else [int(i) for i in constant.reshape(-1)]

    def number(self, name: str, index: int, default: float) -> float:
        """A number that older opsets give as an attribute and newer ones as an input."""
        number = self.attributes.get(name) if name in self.attributes else self.optional(index)
        return default if number is None else float(np.asarray(number).reshape(()))

    def _input(self, index: int) -> Value | Array:
        operand = self.inputs[index] if index < len(self.inputs) else None
        if operand is None:
            raise Unsupported(f"input {index} is missing")
        return operand


# -- arithmetic -------------------------------------------------------------------------------------------------------


def add(b: Builder, first: Operand, second: Operand, sign: int = 1) -> Value:
    """first + sign * second."""
    match first, second:
        case Value() as x, Value() as y:
            return b.combine(x, y, sign)
        case Value() as x, Tensor() as constant:
            return b.scale(x, 1.0, sign * constant)
        case Tensor() as constant, Value() as x:
            return b.scale(x, float(sign), constant)
    raise NEITHER_COMPUTED


def multiply(b: Builder, first: Operand, second: Operand, roundings: int = 0) -> Value:
    """first * second; a constant among them was rounded so many times."""
    match first, second:
        case Value() as x, Value() as y:
            return b.multiply(x, y)
        case (Value() as x, Tensor() as constant) | (Tensor() as constant, Value() as x):
            return b.scale(x, constant, 0.0, roundings)
    raise NEITHER_COMPUTED


def divide(b: Builder, first: Operand, second: Operand, roundings: int = 0) -> Value:
    """first / second; a constant among them was rounded so many times."""
    if isinstance(second, Value):
        return multiply(b, first, power(b, second, -1.0), roundings)
    return multiply(b, first, 1.0 / second, roundings + 1)


def power(b: Builder, x: Value, exponent: float) -> Value:
    if exponent == 0:
        return b.scale(x, 0.0, 1.0)
    return x if exponent == 1 else b.elementwise(Power(exponent), x)


def maximum(b: Builder, first: Operand, second: Operand) -> Value:
    """The larger of two, as relu(first - second) + second: what they have in common stays known to bounds."""
    x, other, limit = _compared(b, first, second)
    if limit is not None:
        return b.clip(x, limit, inf)
    return add(b, b.elementwise(Relu(), add(b, x, other, -1)), other)


def minimum(b: Builder, first: Operand, second: Operand) -> Value:
    """The smaller of two, as second - relu(second - first)."""
    x, other, limit = _compared(b, first, second)
    if limit is not None:
        return b.clip(x, -inf, limit)
    return add(b, other, b.elementwise(Relu(), add(b, other, x, -1)), -1)


def _compared(b: Builder, first: Operand, second: Operand) -> tuple[Value, Operand, float | None]:
    """Two that are compared, the first of them computed; and the second as a number, if it is the same throughout."""
    if isinstance(first, Tensor):
        first, second = second, first
    if isinstance(first, Tensor):
        raise NEITHER_COMPUTED
    if isinstance(second, Value) or not bool((second == second.flatten()[0]).all()):
        return first, second, None
    return b.expand(first, np.broadcast_shapes(first.shape, second.shape)), second, float(second.flatten()[0])


def matmul(b: Builder, first: Operand, second: Operand) -> Value:
    """first @ second as numpy means it."""
    if len(first.shape) == 1:
        product = matmul(b, reshaped(b, first, (1, *first.shape)), second)
        return b.reshape(product, (*product.shape[:-2], product.shape[-1]))
    if len(second.shape) == 1:
        product = matmul(b, first, reshaped(b, second, (*second.shape, 1)))
        return b.reshape(product, product.shape[:-1])
    match first, second:
        case Value() as x, Value() as y:
            return b.matmul(x, y)
        case Value() as x, Tensor() as constant:
            return _times_constant(b, x, constant)
        case Tensor() as constant, Value() as x:
            return _swapped(b, _times_constant(b, _swapped(b, x), constant.transpose(-1, -2)))
    raise NEITHER_COMPUTED


def _times_constant(b: Builder, x: Value, matrices: Tensor) -> Value:
    """x @ matrices, where the constant's leading axes are a batch."""
    if matrices.dim() == 2:
        return b.linear(x, matrices)
    if prod(matrices.shape[:-2]) > LARGEST_STACK:
        raise Unsupported(f"a product with {prod(matrices.shape[:-2])} constant matrices")
    x = b.expand(x, (*np.broadcast_shapes(x.shape[:-2], matrices.shape[:-2]), *x.shape[-2:]))
    if len(matrices) == 1:
        return _times_constant(b, x, matrices[0])
    axis = len(x.shape) - matrices.dim()
    parts = [_times_constant(b, b.take(x, axis, [i]), matrix) for i, matrix in enumerate(matrices)]
    return b.concat(parts, axis)


# -- moves of entries -------------------------------------------------------------------------------------------------


def _swapped(b: Builder, x: Value) -> Value:
    """The last two axes exchanged."""
    rank = len(x.shape)
    return b.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def transposed(b: Builder, x: Operand) -> Operand:
    """The last two axes exchanged."""
    return x.transpose(-1, -2) if isinstance(x, Tensor) else _swapped(b, x)


def reshaped(b: Builder, x: Operand, shape: tuple[int, ...]) -> Operand:
    return x.reshape(shape) if isinstance(x, Tensor) else b.reshape(x, shape)


def concat(b: Builder, parts: Sequence[Operand], axis: int) -> Value:
    """Values and constants one after another: constants are added where the values leave room for them."""
    values = [part for part in parts if isinstance(part, Value)]
    joined = b.concat(values, axis) if len(values) > 1 else values[0]
    if len(values) == len(parts):
        return joined
    axis = joined.axis(axis)
    indices = iter(range(joined.shape[axis]))
    sources = [next(indices) if isinstance(part, Value) else -1 for part in parts for _ in range(part.shape[axis])]
    zeros = (part if isinstance(part, Tensor) else torch.zeros(part.shape, dtype=torch.float64) for part in parts)
    return b.scale(b.take(joined, axis, sources), 1.0, torch.cat(list(zeros), axis))


def gather(b: Builder, x: Value, axis: int, indices: Tensor) -> Value:
    """Entries along an axis, which becomes the axes of `indices`: none for a single number."""
    axis = x.axis(axis)
    size = x.shape[axis]
    chosen = indices.reshape(-1).tolist()
    if not all(-size <= index < size for index in chosen):
        raise Unsupported(f"indices {chosen} along an axis of length {size}")
    taken = b.take(x, axis, [index % size for index in chosen])
    return b.reshape(taken, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
