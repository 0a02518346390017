"""ONNX operators that only move entries: reshaping, cutting, joining, padding."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from shakeproof.network import compose
from shakeproof.network.build import Unsupported, Value
from shakeproof.network.onnx_call import Array, Call

LARGEST_PAD = 10_000


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
    indices = torch.from_numpy(call.constant(1).astype(np.int64))
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
    sources = [np.arange(size) for size in x.shape]
    for place, axis in enumerate(chosen):
        sources[axis] = _pad_sources(x.shape[axis], pads[place], pads[place + len(chosen)], mode)
    return call.builder.pad(x, [source.tolist() for source in sources], call.number("value", 2, 0.0))


def _pad_sources(size: int, before: int, after: int, mode: str) -> Array:
    """Which index each index of the padded axis copies; -1 for the constant. Negative padding crops."""
    if max(before, after) > LARGEST_PAD:
        raise Unsupported(f"padding by {max(before, after)} entries")
    inner = np.arange(size)[max(0, -before) : size - max(0, -after)]
    widths = (max(0, before), max(0, after))
    if mode == "constant":
        return np.pad(inner, widths, constant_values=-1)
    # By mode, how far a picture reaches when it is continued once; beyond, and for crops, runtimes differ.
    reach = {"reflect": size - 1, "edge": LARGEST_PAD, "wrap": size}
    if mode not in reach:
        raise Unsupported(f"mode {mode}")
    if min(before, after) < 0 or max(before, after) > reach[mode]:
        raise Unsupported(f"mode {mode}, by {before} and {after} entries on an axis of {size}")
    return np.asarray(np.pad(inner, widths, mode=mode))  # type: ignore[call-overload]
