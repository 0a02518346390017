"""Operations that take several operators, or another one where an operand is a constant; moves and normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from shakeproof.model.build import LARGEST_VALUE, Builder, Pooling, Unsupported, Value
from shakeproof.operators import CONSTANT_ROUNDINGS, Abs, Elu, Exp, Log, Positive, Power, Relu

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


# -- moves of entries -------------------------------------------------------------------------------------------------

LARGEST_PAD = 10_000


def depth_to_space(b: Builder, x: Value, block: int, blocks_first: bool) -> Value:
    """Channels to pixels: each pixel becomes a block; channels are numbered block by block, or by channel first."""
    n, channels, height, width = _picture(x)
    if block < 1 or channels % block**2:
        raise Unsupported(f"{channels} channels as blocks of {block} x {block} pixels")
    depth = channels // block**2
    if blocks_first:
        split = b.transpose(b.reshape(x, (n, block, block, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        split = b.transpose(b.reshape(x, (n, depth, block, block, height, width)), (0, 1, 4, 2, 5, 3))
    return b.reshape(split, (n, depth, height * block, width * block))


def space_to_depth(b: Builder, x: Value, block: int, blocks_first: bool) -> Value:
    """Pixels to channels, the other way round."""
    n, channels, height, width = _picture(x)
    if block < 1 or height % block or width % block:
        raise Unsupported(f"a picture of {height} x {width} in blocks of {block} x {block} pixels")
    split = b.reshape(x, (n, channels, height // block, block, width // block, block))
    order = (0, 3, 5, 1, 2, 4) if blocks_first else (0, 1, 3, 5, 2, 4)
    return b.reshape(b.transpose(split, order), (n, channels * block**2, height // block, width // block))


def _picture(x: Value) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise Unsupported(f"a value of shape {list(x.shape)}, which is no picture")
    return x.shape[0], x.shape[1], x.shape[2], x.shape[3]


def pad_sources(size: int, before: int, after: int, mode: str) -> list[int]:
    """Which index each index of the padded axis copies; -1 for the constant. Negative padding crops."""
    if max(before, after) > LARGEST_PAD:
        raise Unsupported(f"padding by {max(before, after)} entries")
    inner = np.arange(size)[max(0, -before) : size - max(0, -after)]
    widths = (max(0, before), max(0, after))
    if mode == "constant":
        return [int(i) for i in np.pad(inner, widths, constant_values=-1)]
    # By mode, how far a picture reaches when it is continued once; beyond, and for crops, runtimes differ.
    reach = {"reflect": size - 1, "edge": LARGEST_PAD, "wrap": size}
    if mode not in reach:
        raise Unsupported(f"mode {mode}")
    if min(before, after) < 0 or max(before, after) > reach[mode]:
        raise Unsupported(f"mode {mode}, by {before} and {after} entries on an axis of {size}")
    return [int(i) for i in np.pad(inner, widths, mode=mode)]  # type: ignore[call-overload]


def tile(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    """The value one after another, so many times along each axis; further axes are new ones in front."""
    x = b.reshape(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    if len(repeats) != len(x.shape) or prod(x.shape) * prod(repeats) > LARGEST_VALUE:
        raise Unsupported(f"repeating a value of shape {list(x.shape)} by {list(repeats)}")
    for axis, (size, count) in enumerate(zip(x.shape, repeats, strict=True)):
        x = b.take(x, axis, [*range(size)] * count)
    return x


def picked(b: Builder, x: Value, axis: int, indices: Sequence[Tensor]) -> Value:
    """Entries by a table of indices for each of some neighbouring axes, the first of them given."""
    sizes = x.shape[axis : axis + len(indices)]
    tables = torch.broadcast_tensors(*indices)
    if any(bool(((t < -size) | (t >= size)).any()) for t, size in zip(tables, sizes, strict=True)):
        raise Unsupported(f"indices beyond axes of lengths {list(sizes)}")
    flat = torch.zeros_like(tables[0])
    for table, size in zip(tables, sizes, strict=True):
        flat = flat * size + table % size
    joined = b.reshape(x, (*x.shape[:axis], prod(sizes), *x.shape[axis + len(indices) :]))
    return gather(b, joined, axis, flat)


def replaced(b: Builder, x: Operand, places: Tensor, updates: Operand) -> Value:
    """Entries put in the place of others, which are numbered as in a flat value."""
    if places.unique().numel() < places.numel() or places.shape != updates.shape:
        raise Unsupported("several entries for one place, or a place for several")
    count = prod(x.shape)
    flat = torch.arange(count)
    flat[places.reshape(-1)] = count + torch.arange(places.numel())
    both = concat(b, [reshaped(b, part, (prod(part.shape),)) for part in (x, updates)], 0)
    return b.reshape(b.take(both, 0, flat.tolist()), x.shape)


def numbered(shape: Sequence[int]) -> Tensor:
    """The places of a value's entries as in a flat one."""
    return torch.from_numpy(np.arange(prod(shape)).reshape(shape))


def along(shape: Sequence[int], axis: int, indices: Tensor) -> Tensor:
    """The places, as in a flat value, of the entries that indices along one axis mean."""
    if not bool(((indices >= -shape[axis]) & (indices < shape[axis])).all()):
        raise Unsupported(f"indices beyond an axis of length {shape[axis]}")
    return numbered(shape).gather(axis, indices % shape[axis])


# -- normalisations ---------------------------------------------------------------------------------------------------


def batch_norm(
    b: Builder, x: Value, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, by channel."""
    b.note_computed()
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
    return b.scale(b.normalise(x, axes, epsilon), weight, bias)


def group_norm(
    b: Builder, x: Value, groups: int, epsilon: float, weight: Tensor | float, bias: Tensor | float
) -> Value:
    """Channels (axis 1) in so many groups, each normalised on its own; weight and bias are by channel."""
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        raise Unsupported(f"{channels} channels in {groups} groups")
    grouped = b.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    even = b.reshape(b.normalise(grouped, range(2, len(grouped.shape)), epsilon), x.shape)
    along = (-1,) + (1,) * (len(x.shape) - 2)
    factor, offset = (torch.as_tensor(c, dtype=torch.float64).expand(channels).reshape(along) for c in (weight, bias))
    return b.scale(even, factor, offset)


def divided_by_norm(b: Builder, x: Value, axis: int, order: float) -> Value:
    return b.multiply(x, power(b, norm(b, x, [axis], True, order), -1.0))
