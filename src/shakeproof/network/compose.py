"""Words that both readers know and that take several operators, or another one where an operand is a constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.operators import CONSTANT_ROUNDINGS, Power

# Computed by the network, or a constant.
Operand = Value | Tensor

NEITHER_COMPUTED = Unsupported("neither operand is computed by the network")
# A product with a stack of matrices is one linear layer for each.
LARGEST_STACK = 64


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


def multiply(b: Builder, first: Operand, second: Operand) -> Value:
    """first * second."""
    match first, second:
        case Value() as x, Value() as y:
            return b.multiply(x, y)
        case (Value() as x, Tensor() as constant) | (Tensor() as constant, Value() as x):
            return b.scale(x, constant, 0.0)
    raise NEITHER_COMPUTED


def divide(b: Builder, first: Operand, second: Operand) -> Value:
    """first / second."""
    if isinstance(first, Value) and isinstance(second, Tensor):
        return b.scale(first, 1.0 / second, 0.0, roundings=1)
    return multiply(b, first, power(b, second, -1.0) if isinstance(second, Value) else 1.0 / second)


def power(b: Builder, x: Value, exponent: float) -> Value:
    if exponent == 0:
        return b.scale(x, 0.0, 1.0)
    return x if exponent == 1 else b.elementwise(Power(exponent), x)


def matmul(b: Builder, first: Operand, second: Operand) -> Value:
    """first @ second as numpy means it."""
    if len(first.shape) == 1:
        product = matmul(b, _reshaped(b, first, (1, *first.shape)), second)
        return b.reshape(product, (*product.shape[:-2], product.shape[-1]))
    if len(second.shape) == 1:
        product = matmul(b, first, _reshaped(b, second, (*second.shape, 1)))
        return b.reshape(product, product.shape[:-1])
    match first, second:
        case Value() as x, Value() as y:
            return b.matmul(x, y)
        case Value() as x, Tensor() as constant:
            return _times_constant(b, x, constant)
        case Tensor() as constant, Value() as x:
            return swapped(b, _times_constant(b, swapped(b, x), constant.transpose(-1, -2)))
    raise NEITHER_COMPUTED


def _times_constant(b: Builder, x: Value, matrices: Tensor) -> Value:
    """x @ matrices, where the constant's leading axes are a batch."""
    if matrices.dim() == 2:
        return b.linear(x, matrices, None)
    if prod(matrices.shape[:-2]) > LARGEST_STACK:
        raise Unsupported(f"a product with {prod(matrices.shape[:-2])} constant matrices")
    x = b.expand(x, (*np.broadcast_shapes(x.shape[:-2], matrices.shape[:-2]), *x.shape[-2:]))
    if len(matrices) == 1:
        return _times_constant(b, x, matrices[0])
    axis = len(x.shape) - matrices.dim()
    parts = [_times_constant(b, b.take(x, axis, [i]), matrix) for i, matrix in enumerate(matrices)]
    return b.concat(parts, axis)


def swapped(b: Builder, x: Value) -> Value:
    """The last two axes exchanged."""
    rank = len(x.shape)
    return b.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def transposed(b: Builder, x: Operand) -> Operand:
    return x.transpose(-1, -2) if isinstance(x, Tensor) else swapped(b, x)


def total(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The sum over some axes."""
    return b.scale(b.mean(x, axes, keep), float(prod(x.shape[axis] for axis in axes)), 0.0)


def batch_norm(
    b: Builder, x: Value, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, by channel."""
    factor = weight / torch.sqrt(variance + epsilon)
    moved = mean * factor
    along = (-1,) + (1,) * (len(x.shape) - 2)
    constants = (factor, bias - moved, bias.abs() + moved.abs())
    factor, offset, terms = (constant.reshape(along) for constant in constants)
    return b.scale(x, factor, offset, CONSTANT_ROUNDINGS, terms)


def layer_norm(
    b: Builder, x: Value, axes: Sequence[int], epsilon: float, weight: Tensor | float, bias: Tensor | float
) -> Value:
    """(x - mean) / sqrt(variance + epsilon), scaled and shifted; mean and variance are over some axes."""
    centred = b.combine(x, b.mean(x, axes, keep=True), -1)
    variance = b.mean(power(b, centred, 2.0), axes, keep=True)
    return b.scale(b.multiply(centred, power(b, b.scale(variance, 1.0, epsilon), -0.5)), weight, bias)


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


def split(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    """Parts of the given sizes, one after another along an axis."""
    length = x.shape[x.axis(axis)]
    if sum(sizes) != length or min(sizes, default=0) < 1:
        raise Unsupported(f"parts of sizes {list(sizes)} of an axis of length {length}")
    ends = np.cumsum(sizes).tolist()
    return tuple(b.take(x, axis, range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def sections(length: int, size: int) -> list[int]:
    """The sizes of the parts when so many entries are cut after every `size`."""
    return [min(size, length - start) for start in range(0, length, size)]


def _reshaped(b: Builder, x: Operand, shape: tuple[int, ...]) -> Operand:
    return x.reshape(shape) if isinstance(x, Tensor) else b.reshape(x, shape)
