"""Aten operators that only move entries: reshaping, cutting, joining, padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from shakeproof.network import arrange, compose
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.compose import Operand
from shakeproof.network.torch_call import operand

# What ONNX calls torch's ways to pad.
PADDINGS = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def view(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return b.reshape(x, _known(shape, prod(x.shape)))


def _known(shape: Sequence[int], entries: int) -> list[int]:
    """A shape for so many entries, in which one length may be left open with -1."""
    rest = prod(size for size in shape if size != -1)
    return [entries // rest if size == -1 else size for size in shape]


def unflatten(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> Value:
    axis = x.axis(axis)
    return b.reshape(x, (*x.shape[:axis], *_known(sizes, x.shape[axis]), *x.shape[axis + 1 :]))


def flatten(b: Builder, x: Value, start: int = 0, end: int = -1) -> Value:
    start, end = start % len(x.shape), end % len(x.shape)
    return b.reshape(x, (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def squeeze(b: Builder, x: Value, axes: int | Sequence[int] | None = None) -> Value:
    chosen = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    drop = {axis % len(x.shape) for axis in chosen}
    return b.reshape(x, [s for axis, s in enumerate(x.shape) if s > 1 or axis not in drop])


def unsqueeze(b: Builder, x: Value, axis: int) -> Value:
    place = axis % (len(x.shape) + 1)
    return b.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return b.transpose(x, order)


def pad(b: Builder, x: Value, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    if mode not in PADDINGS:
        raise Unsupported(f"padding mode {mode}")
    sources = [list(range(size)) for size in x.shape]
    for place, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = len(x.shape) - 1 - place
        sources[axis] = arrange.pad_sources(x.shape[axis], before, after, PADDINGS[mode])
    return b.pad(x, sources, value or 0.0)


def expand(b: Builder, x: Value, sizes: Sequence[int], *, implicit: bool = False) -> Value:
    new = len(sizes) - len(x.shape)
    return b.expand(x, [x.shape[axis - new] if size == -1 else size for axis, size in enumerate(sizes)])


def cut(b: Builder, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    return b.take(x, axis, range(x.shape[x.axis(axis)])[start:end:step])


def index(b: Builder, x: Value, indices: Sequence[Any]) -> Value:
    given = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = [indices[axis] for axis in given]
    masks = any(not isinstance(i, Tensor) or i.dtype in (torch.bool, torch.uint8) for i in chosen)  # both are masks
    if masks or given != list(range(given[0], given[0] + len(given))):
        raise Unsupported("indexing other than by constant tables of indices for neighbouring axes")
    return arrange.picked(b, x, given[0], chosen)


def index_select(b: Builder, x: Value, axis: int, indices: Any) -> Value:
    if not isinstance(indices, Tensor):
        raise Unsupported("computed indices")
    return compose.gather(b, x, axis, indices.reshape(-1))


def split(b: Builder, x: Value, size: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    sizes = compose.sections(x.shape[x.axis(axis)], size) if isinstance(size, int) else size
    return compose.split(b, x, axis, sizes)


def chunk(b: Builder, x: Value, count: int, axis: int = 0) -> tuple[Value, ...]:
    return split(b, x, -(-x.shape[x.axis(axis)] // count), axis)


def unbind(b: Builder, x: Value, axis: int = 0) -> tuple[Value, ...]:
    return tuple(compose.gather(b, x, axis, torch.tensor(i)) for i in range(x.shape[x.axis(axis)]))


def cat(b: Builder, parts: Sequence[Any], axis: int = 0) -> Value:
    return compose.concat(b, [operand(part) for part in parts], axis)


def stack(b: Builder, parts: Sequence[Any], axis: int = 0) -> Value:
    widened = [unsqueeze(b, part, axis) if isinstance(part, Value) else part.unsqueeze(axis) for part in parts]
    return cat(b, widened, axis)


def flip(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    for axis in axes:
        x = b.take(x, axis, range(x.shape[x.axis(axis)])[::-1])
    return x


def roll(b: Builder, x: Value, shifts: int | Sequence[int], axes: int | Sequence[int] = ()) -> Value:
    shifts, axes = ([each] if isinstance(each, int) else each for each in (shifts, axes))
    return arrange.roll(b, x, shifts, axes)


def tile(b: Builder, x: Value, repeats: Sequence[int]) -> Value:
    return arrange.tile(b, x, [*(1,) * (len(x.shape) - len(repeats)), *repeats])


def repeat_interleave(
    b: Builder, x: Value, repeats: int, axis: int | None = None, *, output_size: int | None = None
) -> Value:
    if axis is None:
        return repeat_interleave(b, b.reshape(x, (prod(x.shape),)), repeats, 0)
    return b.take(x, axis, [i for i in range(x.shape[x.axis(axis)]) for _ in range(repeats)])


def movedim(b: Builder, x: Value, source: Any, target: Any) -> Value:
    told_apart = torch.empty([axis + 1 for axis in range(len(x.shape))], device="meta")
    return b.transpose(x, [size - 1 for size in told_apart.movedim(source, target).shape])


def gather(b: Builder, x: Value, axis: int, indices: Tensor, *, sparse_grad: bool = False) -> Value:
    flat = b.reshape(x, (prod(x.shape),))
    return compose.gather(b, flat, 0, arrange.along(x.shape, x.axis(axis), indices))


def scatter(b: Builder, x: Any, axis: int, indices: Tensor, updates: Any) -> Value:
    x, updates = operand(x), operand(updates)
    updates = updates.expand(indices.shape) if isinstance(updates, Tensor) else updates
    return arrange.replaced(b, x, arrange.along(x.shape, axis % len(x.shape), indices), updates)


def slice_scatter(
    b: Builder, x: Any, updates: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    return _put(b, x, axis, range(*slice(start, end, step).indices(x.shape[axis])), updates)


def select_scatter(b: Builder, x: Any, updates: Any, axis: int, index: int) -> Value:
    return _put(b, x, axis, [index % x.shape[axis]], updates)


def _put(b: Builder, x: Any, axis: int, places: Sequence[int], updates: Any) -> Value:
    """Entries put in the places of those with some indices along an axis."""
    numbers = arrange.numbered(x.shape).index_select(axis, torch.tensor(places))
    updates = compose.reshaped(b, operand(updates), tuple(numbers.shape))
    return arrange.replaced(b, operand(x), numbers, updates)


def copied(b: Builder, x: Any, source: Any) -> Operand:
    """What becomes of a value into which another is written."""
    given = operand(source)
    return given.expand(x.shape) if isinstance(given, Tensor) else b.expand(given, x.shape)


def index_put(b: Builder, x: Any, indices: Sequence[Any], updates: Any, accumulate: bool = False) -> Value:
    if accumulate or any(isinstance(i, Value) for i in indices):
        raise Unsupported("adding up entries, or computed indices")
    numbers = arrange.numbered(x.shape)[tuple(slice(None) if i is None else i for i in indices)]
    return arrange.replaced(b, operand(x), numbers, copied(b, numbers, updates))


def channel_shuffle(b: Builder, x: Value, groups: int) -> Value:
    grouped = b.reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return b.reshape(b.transpose(grouped, (0, 2, 1, *range(3, len(grouped.shape)))), x.shape)
