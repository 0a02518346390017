"""Ways to move entries that take several steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from shakeproof.network.build import LARGEST_VALUE, Builder, Unsupported, Value
from shakeproof.network.compose import Operand, concat, gather, reshaped

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
