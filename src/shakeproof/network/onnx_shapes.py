"""ONNX operators that only move entries: reshaping, cutting, joining, padding."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from shakeproof.network import arrange, compose
from shakeproof.network.build import Unsupported, Value
from shakeproof.network.onnx_call import Array, Call


def shape(call: Call) -> Array:
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    return np.array(call.value().shape[start:end], dtype=np.int64)


def flatten(call: Call) -> Value:
    x, axis = call.value(), call.attributes.get("axis", 1)
    axis = axis % len(x.shape) if axis < 0 else axis
    return call.builder.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def reshape(call: Call) -> Value:
    x = call.value()
    target = call.integers("shape", 1) or []
    if not call.attributes.get("allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        target[target.index(-1)] = prod(x.shape) // max(rest, 1)
    return call.builder.reshape(x, target)


def transpose(call: Call) -> Value:
    x = call.value()
    return call.builder.transpose(x, call.attributes.get("perm", range(len(x.shape))[::-1]))


def squeeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1)
    drop = {a % len(x.shape) for a in axes} if axes is not None else {a for a, s in enumerate(x.shape) if s == 1}
    return call.builder.reshape(x, [s for a, s in enumerate(x.shape) if a not in drop])


def unsqueeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1) or []
    rank = len(x.shape) + len(axes)
    added = {a % rank for a in axes}
    sizes = iter(x.shape)
    return call.builder.reshape(x, [1 if a in added else next(sizes) for a in range(rank)])


def expand(call: Call) -> Value:
    x = call.value()
    return call.builder.expand(x, np.broadcast_shapes(x.shape, tuple(call.constant(1).tolist())))


def concat(call: Call) -> Value:
    return compose.concat(call.builder, call.operands(), call.attributes["axis"])


def gather(call: Call) -> Value:
    indices = _indices(call)
    return compose.gather(call.builder, call.value(), call.attributes.get("axis", 0), indices)


def cut(call: Call) -> Value:
    """Slice: with Python's rules for starts and ends beyond an axis or counted from its end."""
    x = call.value()
    starts, ends = call.integers("starts", 1), call.integers("ends", 2)
    if starts is None or ends is None:
        raise Unsupported("without starts or ends")
    axes = call.integers("axes", 3) or range(len(starts))
    steps = call.integers("steps", 4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        x = call.builder.take(x, axis, range(x.shape[x.axis(axis)])[start:end:step])
    return x


def split(call: Call) -> tuple[Value, ...]:
    x, axis = call.value(), call.attributes.get("axis", 0)
    sizes = call.integers("split", 1)
    if call.attributes.get("num_outputs", call.outputs) != call.outputs:
        raise Unsupported("num_outputs other than the number of outputs")
    if sizes is None:
        length = x.shape[x.axis(axis)]
        sizes = compose.sections(length, -(-length // call.outputs))
    if len(sizes) != call.outputs:
        raise Unsupported(f"{call.outputs} outputs for {len(sizes)} parts")
    return compose.split(call.builder, x, axis, sizes)


def pad(call: Call) -> Value:
    x = call.value()
    rank = len(x.shape)
    pads, mode = call.integers("pads", 1), call.attributes.get("mode", b"constant").decode()
    axes = call.optional(3)
    if pads is None:
        raise Unsupported("without pads")
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes.reshape(-1)]
    sources = [list(range(size)) for size in x.shape]
    for place, axis in enumerate(chosen):
        sources[axis] = arrange.pad_sources(x.shape[axis], pads[place], pads[place + len(chosen)], mode)
    return call.builder.pad(x, sources, call.number("value", 2, 0.0))


def depth_to_space(call: Call) -> Value:
    mode = call.attributes.get("mode", b"DCR").decode()
    if mode not in ("DCR", "CRD"):
        raise Unsupported(f"mode {mode}")
    return arrange.depth_to_space(call.builder, call.value(), call.attributes["blocksize"], mode == "DCR")


def space_to_depth(call: Call) -> Value:
    return arrange.space_to_depth(call.builder, call.value(), call.attributes["blocksize"], blocks_first=True)


def tile(call: Call) -> Value:
    return arrange.tile(call.builder, call.value(), [int(count) for count in call.constant(1).reshape(-1)])


def gather_elements(call: Call) -> Value:
    x = call.value()
    axis = x.axis(call.attributes.get("axis", 0))
    flat = call.builder.reshape(x, (prod(x.shape),))
    return compose.gather(call.builder, flat, 0, arrange.along(x.shape, axis, _indices(call)))


def gather_nd(call: Call) -> Value:
    if call.attributes.get("batch_dims", 0):
        raise Unsupported("batch_dims")
    x, indices = call.value(), _indices(call)
    return arrange.picked(call.builder, x, 0, indices.unbind(-1))


def scatter_elements(call: Call) -> Value:
    _check_reduction(call)
    x = call.operand(0)
    axis = call.attributes.get("axis", 0) % len(x.shape)
    return arrange.replaced(call.builder, x, arrange.along(x.shape, axis, _indices(call)), call.operand(2))


def scatter_nd(call: Call) -> Value:
    _check_reduction(call)
    x, indices = call.operand(0), _indices(call)
    places = arrange.numbered(x.shape)[tuple(indices.unbind(-1))]
    return arrange.replaced(call.builder, x, places, call.operand(2))


def _check_reduction(call: Call) -> None:
    if call.attributes.get("reduction", b"none") != b"none":
        raise Unsupported("a reduction")


def _indices(call: Call) -> torch.Tensor:
    return torch.from_numpy(call.constant(1).astype(np.int64))
