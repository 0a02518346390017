"""ONNX operators on pictures and axes: windows, other sizes, normalisations, moves of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from math import ceil, floor, prod
from typing import Any

import numpy as np
import onnx
import torch

import shakeproof.model.compose as compose
from shakeproof.model.build import Builder, Pooling, Unsupported, Value
from shakeproof.model.onnx_constants import FLOATS, NOTHING_BACKWARDS, Array, Call, single, tensor


def conv(call: Call) -> Value:
    x, weight = call.value(), tensor(call.constant(1))
    bias = call.optional(2)
    kernel = list(weight.shape[2:])
    if list(call.attributes.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"a kernel_shape other than the weights' {kernel}")
    if _padding(call).startswith("SAME") and max(call.attributes.get("dilations", (1,))) > 1:
        raise Unsupported("auto_pad with dilations, which onnxruntime does not run")
    return _on_picture(
        call,
        x,
        kernel,
        lambda picture, pooling: call.builder.conv(
            picture,
            weight if weight.dim() == 4 else weight.unsqueeze(2),
            None if bias is None else tensor(bias),
            pooling,
            call.attributes.get("group", 1),
        ),
    )


def max_pool(call: Call) -> Value:
    _check_same_padding(call)
    return _on_picture(call, call.value(), call.attributes["kernel_shape"], call.builder.max_pool)


def average_pool(call: Call) -> Value:
    _check_same_padding(call)
    count_padding = bool(call.attributes.get("count_include_pad", 0))
    return _on_picture(
        call,
        call.value(),
        call.attributes["kernel_shape"],
        lambda picture, pooling: call.builder.average_pool(picture, pooling, count_padding),
    )


def _padding(call: Call) -> str:
    """How windows are padded: by `pads` (NOTSET), so that the size is kept (SAME_*), or not at all (VALID)."""
    auto = str(call.attributes.get("auto_pad", b"NOTSET").decode())
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"auto_pad={auto}")
    if auto != "NOTSET" and any(call.attributes.get("pads", ())):
        raise Unsupported(f"auto_pad={auto} and pads at once")
    return auto


def _check_same_padding(call: Call) -> None:
    """Refuse what onnxruntime pads unlike ONNX says: it forgets dilations, and crops where windows leave gaps."""
    if not _padding(call).startswith("SAME"):
        return
    kernel = call.attributes["kernel_shape"]
    if max(call.attributes.get("dilations", (1,))) > 1:
        raise Unsupported("auto_pad with dilations")
    if any(s > k for s, k in zip(call.attributes.get("strides", (1,) * len(kernel)), kernel, strict=True)):
        raise Unsupported("auto_pad with strides larger than the kernel")


def global_average_pool(call: Call) -> Value:
    x = call.value()
    return call.builder.mean(x, range(2, len(x.shape)), keep=True)


def global_max_pool(call: Call) -> Value:
    x = call.value()
    return _on_picture(call, x, list(x.shape[2:]), call.builder.max_pool)


def _on_picture(call: Call, x: Value, kernel: Sequence[int], operation: Callable[[Value, Pooling], Value]) -> Value:
    """A windowed operation in two dimensions; one-dimensional signals are pictures of height 1."""
    if len(kernel) not in (1, 2) or len(x.shape) != len(kernel) + 2:
        raise Unsupported(f"a window of {len(kernel)} dimensions on a value of shape {list(x.shape)}")
    if len(kernel) == 1:
        picture = call.builder.reshape(x, (*x.shape[:2], 1, x.shape[2]))
        flat = operation(picture, _pooling(call, [1, kernel[0]], picture.shape[2:], one_dimensional=True))
        return call.builder.reshape(flat, (*flat.shape[:2], flat.shape[3]))
    return operation(x, _pooling(call, kernel, x.shape[2:]))


def _pooling(call: Call, kernel: Sequence[int], size: Sequence[int], one_dimensional: bool = False) -> Pooling:
    def pair(name: str) -> tuple[int, int]:
        given = list(call.attributes.get(name, ()))
        padded = [1, *given] if one_dimensional and given else given or [1, 1]
        return padded[0], padded[1]

    strides, dilations = pair("strides"), pair("dilations")
    pads = list(call.attributes.get("pads", (0,) * (2 if one_dimensional else 4)))
    auto = _padding(call)
    if one_dimensional:
        pads = [0, pads[0], 0, pads[1]]
    if auto.startswith("SAME"):
        totals = [
            max(0, (-(-side // stride) - 1) * stride + dilation * (k - 1) + 1 - side)
            for side, stride, dilation, k in zip(size, strides, dilations, kernel, strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = [*small, *large] if auto == "SAME_UPPER" else [*large, *small]
    if min(pads) < 0:
        raise Unsupported("negative padding of a window")
    return Pooling(
        (int(kernel[0]), int(kernel[1])),
        strides,
        dilations,
        (pads[0], pads[1], pads[2], pads[3]),
        bool(call.attributes.get("ceil_mode", 0)),
    )


def resize(call: Call) -> Value:
    """Along one axis after another; before opset 11 (and when it was called Upsample) it knew one kind of coordinates.

    Which entry is nearest, and the weights of those around a place, runtimes work out in float32.
    """
    x, old = call.value(), call.opset < 11
    mode = call.attributes.get("mode", b"nearest").decode()
    coordinates = b"asymmetric" if old else call.attributes.get("coordinate_transformation_mode", b"half_pixel")
    rounding = b"floor" if old else call.attributes.get("nearest_mode", b"round_prefer_floor")
    bend = Fraction(call.attributes.get("cubic_coeff_a", -0.75))
    weights: dict[str, Weights] = {"linear": linear, "cubic": partial(cubic, bend=bend)}
    if mode not in ("nearest", *weights):
        raise Unsupported(f"mode {mode}")
    _check_resize(call)
    for axis, wanted, scale in _resized_axes(call):
        call.builder.note_computed()
        number = np.float32 if mode == "nearest" else Fraction
        where = places(x.shape[axis], wanted, scale, coordinates.decode(), number)
        if mode == "nearest":
            x = nearest(call.builder, x, axis, where, rounding.decode())
        else:
            x = interpolated(call.builder, x, axis, where, weights[mode])
    return x


def _check_resize(call: Call) -> None:
    """Refuse what is rarely asked for: smoothing while shrinking, keeping a ratio, leaving entries outside out."""
    policy = call.attributes.get("keep_aspect_ratio_policy", b"stretch").decode()
    if call.attributes.get("antialias") or call.attributes.get("exclude_outside") or policy != "stretch":
        raise Unsupported("antialias, exclude_outside or keep_aspect_ratio_policy")


def _resized_axes(call: Call) -> Iterator[tuple[int, int, Fraction]]:
    """Each axis that gets another size, that size, and the scale between the two: as was said, or by the sizes."""
    x = call.value()
    scales, sizes = (call.optional(1), None) if call.opset < 11 else (call.optional(2), call.optional(3))
    if "scales" in call.attributes:
        scales = np.asarray(call.attributes["scales"])
    given = sizes if sizes is not None and sizes.size else scales
    axes = call.attributes.get("axes", range(len(x.shape)))
    if given is None or given.size != len(axes):
        raise Unsupported("without a size or a scale for each axis")
    for axis, number in zip(map(x.axis, axes), given.reshape(-1).tolist(), strict=True):
        size = x.shape[axis]
        scale = Fraction(number) if given is scales else Fraction(int(number), size)
        if scale != 1:
            yield axis, floor(size * scale), scale


# -- other sizes ------------------------------------------------------------------------------------------------------

HALF = Fraction(1, 2)
# By coordinate mode, where output i of an axis lies among its inputs, given both sizes and the scale between them; in
# steps that are as exact as the kind of number.
PLACES: dict[str, Callable[[Any, int, int, Any], Any]] = {
    "half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2,
    "pytorch_half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2 if wanted > 1 else 0 * i,
    "align_corners": lambda i, size, wanted, scale: i * (size - 1) / (wanted - 1) if wanted > 1 else 0 * i,
    "asymmetric": lambda i, size, wanted, scale: i / scale,
}
ROUNDED: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: ceil(place - HALF),
    "round_prefer_ceil": lambda place: floor(place + HALF),
    "floor": floor,
    "ceil": ceil,
}
# Of the entries around a place that is so far beyond one of them, the weights: as many before it as after.
Weights = Callable[[Fraction], list[Fraction]]


def places(
    size: int, wanted: int, scale: Fraction, mode: str, number: Callable[[Any], Any] = Fraction
) -> list[Fraction]:
    """Where each of the wanted entries lies among the given ones, worked out in some kind of numbers."""
    if mode not in PLACES:
        raise Unsupported(f"the coordinate transformation {mode}")
    if scale <= 0 or wanted < 1:
        raise Unsupported(f"{size} entries resized to {wanted}")
    found = (PLACES[mode](number(i), size, wanted, number(scale)) for i in range(wanted))
    return [place if isinstance(place, Fraction) else Fraction(float(place)) for place in found]


def nearest(b: Builder, x: Value, axis: int, where: Sequence[Fraction], rounding: str) -> Value:
    """Along an axis, the entry nearest to each place."""
    if rounding not in ROUNDED:
        raise Unsupported(f"the nearest mode {rounding}")
    size = x.shape[x.axis(axis)]
    return b.take(x, axis, [min(max(ROUNDED[rounding](place), 0), size - 1) for place in where])


def interpolated(b: Builder, x: Value, axis: int, where: Sequence[Fraction], weights: Weights) -> Value:
    """Along an axis, at each place the weighted sum of the entries around it; the last ones go on beyond the ends.

    Weights that float64 rounds are noted as rounded.
    """
    size = x.shape[x.axis(axis)]
    shares = [weights(place - floor(place)) for place in where]
    taps = len(shares[0])
    sources = [[min(max(floor(place) + 1 - taps // 2 + t, 0), size - 1) for place in where] for t in range(taps)]
    rounded = any(Fraction(float(share)) != share for row in shares for share in row)
    weight = torch.tensor([[float(row[t]) for row in shares] for t in range(taps)], dtype=torch.float64)
    return b.resample(x, axis, sources, weight, roundings=int(rounded))


def linear(share: Fraction) -> list[Fraction]:
    return [1 - share, share]


def cubic(share: Fraction, bend: Fraction = Fraction(-3, 4)) -> list[Fraction]:
    """Keys' convolution: R. G. Keys, Cubic Convolution Interpolation for Digital Image Processing. IEEE 1981."""

    def near(t: Fraction) -> Fraction:
        return (bend + 2) * t**3 - (bend + 3) * t**2 + 1

    def far(t: Fraction) -> Fraction:
        return bend * (t**3 - 5 * t**2 + 8 * t - 4)

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


# -- normalisations ---------------------------------------------------------------------------------------------------


def batch_norm(call: Call) -> Value:
    if call.attributes.get("training_mode") or call.outputs > 1:  # before opset 14, more outputs meant training
        raise Unsupported("training mode")
    if not call.attributes.get("spatial", 1):
        raise Unsupported("a mean and variance for each pixel")
    weight, bias, mean, variance = (tensor(call.constant(i)) for i in range(1, 5))
    epsilon = call.attributes.get("epsilon", single(1e-5))
    return compose.batch_norm(call.builder, call.value(), weight, bias, mean, variance, epsilon)


def layer_norm(call: Call) -> Value:
    x = call.value()
    _check_stash(call)
    axes = range(x.axis(call.attributes.get("axis", -1)), len(x.shape))
    bias = call.optional(2)
    return compose.layer_norm(
        call.builder,
        x,
        axes,
        call.attributes.get("epsilon", single(1e-5)),
        tensor(call.constant(1)),
        0.0 if bias is None else tensor(bias),
    )


def group_norm(call: Call) -> Value:
    """Before opset 21, weight and bias were by group."""
    _check_stash(call)
    x, groups = call.value(), call.attributes["num_groups"]
    weight, bias = (tensor(call.constant(i)) for i in (1, 2))
    if call.opset < 21:
        weight, bias = (constant.repeat_interleave(x.shape[1] // groups) for constant in (weight, bias))
    return compose.group_norm(call.builder, x, groups, call.attributes.get("epsilon", single(1e-5)), weight, bias)


def instance_norm(call: Call) -> Value:
    x = call.value()
    weight, bias = (tensor(call.constant(i)) for i in (1, 2))
    epsilon = call.attributes.get("epsilon", single(1e-5))
    return compose.group_norm(call.builder, x, x.shape[1], epsilon, weight, bias)


def lp_norm(call: Call) -> Value:
    axis, order = call.attributes.get("axis", -1), call.attributes.get("p", 2)
    return compose.divided_by_norm(call.builder, call.value(), axis, float(order))


def _check_stash(call: Call) -> None:
    if call.attributes.get("stash_type", onnx.TensorProto.FLOAT) not in FLOATS:
        raise Unsupported("mean and variance in 16 bits, which rounds them")


# -- moves of entries -------------------------------------------------------------------------------------------------


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
    """Slice: with Python's rules for starts and ends beyond an axis or counted from its end.

    Backwards from before the first entry, Python takes nothing, and runtimes the first entry.
    """
    x = call.value()
    starts, ends = call.integers("starts", 1), call.integers("ends", 2)
    if starts is None or ends is None:
        raise Unsupported("without starts or ends")
    axes = call.integers("axes", 3) or range(len(starts))
    steps = call.integers("steps", 4) or [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        chosen = range(x.shape[x.axis(axis)])[start:end:step]
        if step < 0 and not chosen:
            raise Unsupported(NOTHING_BACKWARDS)
        x = call.builder.take(x, axis, chosen)
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
        sources[axis] = compose.pad_sources(x.shape[axis], pads[place], pads[place + len(chosen)], mode)
    return call.builder.pad(x, sources, call.number("value", 2, 0.0))


def depth_to_space(call: Call) -> Value:
    mode = call.attributes.get("mode", b"DCR").decode()
    if mode not in ("DCR", "CRD"):
        raise Unsupported(f"mode {mode}")
    return compose.depth_to_space(call.builder, call.value(), call.attributes["blocksize"], mode == "DCR")


def space_to_depth(call: Call) -> Value:
    return compose.space_to_depth(call.builder, call.value(), call.attributes["blocksize"], blocks_first=True)


def tile(call: Call) -> Value:
    return compose.tile(call.builder, call.value(), [int(count) for count in call.constant(1).reshape(-1)])


def gather_elements(call: Call) -> Value:
    x = call.value()
    axis = x.axis(call.attributes.get("axis", 0))
    flat = call.builder.reshape(x, (prod(x.shape),))
    return compose.gather(call.builder, flat, 0, compose.along(x.shape, axis, _indices(call)))


def gather_nd(call: Call) -> Value:
    if call.attributes.get("batch_dims", 0):
        raise Unsupported("batch_dims")
    x, indices = call.value(), _indices(call)
    return compose.picked(call.builder, x, 0, indices.unbind(-1))


def scatter_elements(call: Call) -> Value:
    _check_reduction(call)
    x = call.operand(0)
    axis = call.attributes.get("axis", 0) % len(x.shape)
    return compose.replaced(call.builder, x, compose.along(x.shape, axis, _indices(call)), call.operand(2))


def scatter_nd(call: Call) -> Value:
    _check_reduction(call)
    x, indices = call.operand(0), _indices(call)
    places = compose.numbered(x.shape)[tuple(indices.unbind(-1))]
    return compose.replaced(call.builder, x, places, call.operand(2))


def _check_reduction(call: Call) -> None:
    if call.attributes.get("reduction", b"none") != b"none":
        raise Unsupported("a reduction")


def _indices(call: Call) -> torch.Tensor:
    return torch.from_numpy(call.constant(1).astype(np.int64))
