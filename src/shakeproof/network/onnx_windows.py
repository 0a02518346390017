"""ONNX operators that walk over a picture with a window, or change its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from math import floor

import numpy as np

from shakeproof.network import resample
from shakeproof.network.build import Pooling, Unsupported, Value
from shakeproof.network.onnx_call import Call, tensor


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
    weights: dict[str, resample.Weights] = {"linear": resample.linear, "cubic": partial(resample.cubic, bend=bend)}
    if mode not in ("nearest", *weights):
        raise Unsupported(f"mode {mode}")
    _check_resize(call)
    for axis, wanted, scale in _resized_axes(call):
        call.builder.note_computed()
        number = np.float32 if mode == "nearest" else Fraction
        where = resample.places(x.shape[axis], wanted, scale, coordinates.decode(), number)
        if mode == "nearest":
            x = resample.nearest(call.builder, x, axis, where, rounding.decode())
        else:
            x = resample.interpolated(call.builder, x, axis, where, weights[mode])
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
