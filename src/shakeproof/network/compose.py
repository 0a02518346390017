"""Operations that take several operators, or another one where an operand is a constant."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from shakeproof.network.build import Builder, Pooling, Unsupported, Value
from shakeproof.operators import Abs, Elu, Exp, Log, Positive, Power, Relu

# Computed by the network, or a constant.
Operand = Value | Tensor

NEITHER_COMPUTED = Unsupported("neither operand is computed by the network")
# Differences of whole numbers up to this are not rounded.
WHOLE = 2.0**50
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


def negative(b: Builder, x: Value) -> Value:
    return b.scale(x, -1.0, 0.0)


def larger(b: Builder, first: Operand, second: Operand, or_equal: bool = False) -> Value:
    """1 where the first is larger than the second (or equal to it), 0 elsewhere."""
    return b.elementwise(Positive(or_equal), add(b, first, second, -1))


def smaller(b: Builder, first: Operand, second: Operand, or_equal: bool = False) -> Value:
    return larger(b, second, first, or_equal)


def where(b: Builder, condition: Operand, first: Operand, second: Operand) -> Value:
    """The first where a condition holds, the second elsewhere: both constant, or the condition is."""
    if isinstance(condition, Value):
        if isinstance(first, Value) or isinstance(second, Value):
            raise Unsupported("a computed choice between computed values")
        if not bool((first.isfinite() & second.isfinite()).all()):
            raise Unsupported("a computed choice of infinite values")
        whole = all(bool(((c == c.round()) & (c.abs() < WHOLE)).all()) for c in (first, second))
        terms = None if whole else first.abs() + second.abs()
        return b.scale(condition, first - second, second, int(not whole), terms)
    condition = condition.bool()
    match first, second:
        case Value() as x, Tensor() as constant:
            return b.where(x, condition, constant)
        case Tensor() as constant, Value() as x:
            return b.where(x, ~condition, constant)
        case Value() as x, Value() as y:
            zero = torch.zeros((), dtype=torch.float64)
            return b.combine(b.where(x, condition, zero), b.where(y, ~condition, zero))
    raise NEITHER_COMPUTED


def elu(b: Builder, x: Value, alpha: float) -> Value:
    return b.elementwise(Elu(alpha) if alpha else Relu(), x)


def celu(b: Builder, x: Value, alpha: float) -> Value:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    if not alpha > 0:
        raise Unsupported(f"alpha={alpha:g}")
    return b.scale(elu(b, b.scale(x, 1 / alpha, 0.0, roundings=1), 1.0), alpha, 0.0)


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


def log_softmax(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    return add(b, x, log_sum_exp(b, x, axes, keep=True), -1)


def largest(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The maximum over some axes: max pooling of a picture that has them as its height, and all others as channels."""
    reduced = [x.axis(axis) for axis in axes]
    others = [axis for axis in range(len(x.shape)) if axis not in reduced]
    height, channels = prod(x.shape[axis] for axis in reduced), prod(x.shape[axis] for axis in others)
    picture = b.transpose(b.reshape(b.transpose(x, (*reduced, *others)), (1, height, 1, channels)), (0, 3, 1, 2))
    found = b.max_pool(picture, Pooling((height, 1), (1, 1)))
    kept = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    return b.reshape(found, kept if keep else [x.shape[axis] for axis in others])


def smallest(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return negative(b, largest(b, negative(b, x), axes, keep))


def norm(b: Builder, x: Value, axes: Sequence[int], keep: bool, order: float = 2.0) -> Value:
    """The sum of |x|^order over some axes, to the power 1 / order; the largest |x| if that is infinite."""
    if order not in (1.0, 2.0, inf):
        raise Unsupported(f"a norm of order {order:g}")
    if order == 2:
        return power(b, square_sum(b, x, axes, keep), 0.5)
    return (largest if order == inf else total)(b, b.elementwise(Abs(), x), axes, keep)


def square_sum(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return total(b, power(b, x, 2.0), axes, keep)


def log_sum(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return b.elementwise(Log(), total(b, x, axes, keep))


def log_sum_exp(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return log_sum(b, b.elementwise(Exp(), x), axes, keep)


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


def reshaped(b: Builder, x: Operand, shape: tuple[int, ...]) -> Operand:
    return x.reshape(shape) if isinstance(x, Tensor) else b.reshape(x, shape)
