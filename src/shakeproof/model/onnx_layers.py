"""ONNX operators on pictures and axes: windows, other sizes, normalisations, moves of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil, floor, prod
from typing import Any

import numpy as np
import onnx
import torch

from shakeproof.model.builder import Call, Value, concat
from shakeproof.model.onnx_constants import NOTHING_BACKWARDS
from shakeproof.model.onnx_model import FLOATS, LARGEST_VALUE, Array, Unsupported
from shakeproof.operators import CONSTANT_ROUNDINGS, SlidingWindow

LARGEST_PAD = 10_000

# -- windows ----------------------------------------------------------------------------------------------------------


def conv(call: Call) -> Value:
    weight, bias = call.tensor(1), call.tensor(2) if call.has(2) else None
    kernel = list(weight.shape[2:])
    if list(call.attributes.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"a kernel_shape other than the weights' {kernel}")
    if _padding(call).startswith("SAME") and max(call.attributes.get("dilations", (1,))) > 1:
        raise Unsupported("auto_pad with dilations, which onnxruntime does not run")
    weight, groups = weight if weight.dim() == 4 else weight.unsqueeze(2), call.attributes.get("group", 1)
    return on_picture(call, kernel, lambda picture, window: picture.conv(weight, bias, window, groups))


def conv_transpose(call: Call) -> Value:
    """The transpose of a convolution: each entry adds its kernel to the output, one stride further on for each entry.

    It is computed as a convolution without strides: each of its positions makes a block of the output, as large as the
    strides. The blocks are then laid side by side, and cropped.
    """
    x, weight = call.value(), call.tensor(1)
    kernel, axes = list(weight.shape[2:]), weight.dim() - 2
    if axes not in (1, 2) or len(x.shape) != axes + 2:
        raise Unsupported(f"a kernel of {axes} dimensions on a value of shape {list(x.shape)}")
    if list(call.attributes.get("kernel_shape", kernel)) != kernel:
        raise Unsupported(f"a kernel_shape other than the weights' {kernel}")
    strides, dilations = (list(call.attributes.get(name, ())) or [1] * axes for name in ("strides", "dilations"))
    cropped = _transposed_sides(call, kernel, strides, dilations)
    if axes == 1:
        x, weight = x.reshape((*x.shape[:2], 1, x.shape[2])), weight.unsqueeze(2)
        strides, dilations, cropped = [1, *strides], [1, *dilations], [range(1), *cropped]
    steps, spread = (strides[0], strides[1]), (dilations[0], dilations[1])
    bias, groups = call.tensor(2) if call.has(2) else None, call.attributes.get("group", 1)
    picture = x.conv_transpose(weight, bias, groups, steps, spread, cropped)
    return picture if axes == 2 else picture.reshape((*picture.shape[:2], picture.shape[3]))


def _transposed_sides(call: Call, kernel: list[int], strides: list[int], dilations: list[int]) -> list[range]:
    """Along each axis, which part of the whole result is the output.

    Where `auto_pad` or `output_shape` leaves an odd number of entries to crop, only SAME_UPPER crops more at the end.
    """
    sides, auto = call.value().shape[2:], _padding(call)
    extra = list(call.attributes.get("output_padding", ())) or [0] * len(kernel)
    pads = list(call.attributes.get("pads", ())) or [0] * 2 * len(kernel)
    wanted = list(call.attributes.get("output_shape", ()))[-len(kernel) :]
    if any(not 0 <= more < stride for more, stride in zip(extra, strides, strict=True)) or min(pads) < 0:
        raise Unsupported(f"output_padding={extra} and pads={pads} with strides {strides}")
    reach = zip(sides, strides, dilations, kernel, extra, strict=True)
    whole = [(side - 1) * stride + dilation * (k - 1) + 1 + more for side, stride, dilation, k, more in reach]
    if auto.startswith("SAME") and not wanted:
        wanted = [side * stride for side, stride in zip(sides, strides, strict=True)]
    first = pads[: len(kernel)]
    if wanted:
        crops = [most - size for size, most in zip(wanted, whole, strict=True)]
        if min(crops) < 0:
            raise Unsupported(
                f"an output of {wanted} where the kernels reach {whole}, which onnxruntime does its own way"
            )
        first = [crop // 2 if auto == "SAME_UPPER" else crop - crop // 2 for crop in crops]
    else:
        wanted = [most - before - after for most, before, after in zip(whole, first, pads[len(kernel) :], strict=True)]
    if min(wanted) < 1:
        raise Unsupported(f"pads={pads} that leave nothing")
    return [range(start, start + size) for start, size in zip(first, wanted, strict=True)]


def max_pool(call: Call) -> Value:
    def pooled(picture: Value, window: SlidingWindow) -> Value:
        return picture.max_pool(_with_last_windows(call, window, picture))

    _check_same_padding(call)
    return on_picture(call, call.attributes["kernel_shape"], pooled)


def average_pool(call: Call) -> Value:
    count_padding = float(bool(call.attributes.get("count_include_pad", 0)))

    def pooled(picture: Value, stated: SlidingWindow) -> Value:
        window = _with_last_windows(call, stated, picture)
        counted = stated.padded(torch.ones(1, *picture.shape[2:], 1, dtype=torch.float64), count_padding)
        bottom, right = window.pads[2] - stated.pads[2], window.pads[3] - stated.pads[3]
        counted = replace(window, pads=(0, 0, bottom, right)).padded(counted, 0.0)
        divisor = torch.stack(window.shifted(counted)).sum(0)[0]
        return picture.average_pool(window, divisor)

    _check_same_padding(call)
    return on_picture(call, call.attributes["kernel_shape"], pooled)


def on_picture(call: Call, kernel: Sequence[int], operation: Callable[[Value, SlidingWindow], Value]) -> Value:
    """A windowed operation in two dimensions; one-dimensional signals are pictures of height 1."""
    x = call.value()
    if len(kernel) not in (1, 2) or len(x.shape) != len(kernel) + 2:
        raise Unsupported(f"a window of {len(kernel)} dimensions on a value of shape {list(x.shape)}")
    if len(kernel) == 2:
        return operation(x, _window(call, kernel, x.shape[2:]))
    flat = operation(x.reshape((*x.shape[:2], 1, x.shape[2])), _window(call, kernel, x.shape[2:]))
    return flat.reshape((*flat.shape[:2], flat.shape[3]))


def _window(call: Call, kernel: Sequence[int], size: Sequence[int]) -> SlidingWindow:
    """As the node states it, with a first axis of length 1 where it has one axis only."""
    strides, dilations = (list(call.attributes.get(name, ())) or [1] * len(kernel) for name in ("strides", "dilations"))
    pads, auto = list(call.attributes.get("pads", (0,) * (2 * len(kernel)))), _padding(call)
    before, after = pads[: len(kernel)], pads[len(kernel) :]
    if auto.startswith("SAME"):
        totals = [
            max(0, (-(-side // stride) - 1) * stride + dilation * (k - 1) + 1 - side)
            for side, stride, dilation, k in zip(size, strides, dilations, kernel, strict=True)
        ]
        before, after = [t // 2 for t in totals], [t - t // 2 for t in totals]
        if auto == "SAME_LOWER":
            before, after = after, before
    if min(*before, *after) < 0:
        raise Unsupported("negative padding of a window")
    first, none = [1] * (2 - len(kernel)), [0] * (2 - len(kernel))
    (top, left), (bottom, right) = none + before, none + after
    shape, steps, spread = ((int(a), int(b)) for a, b in (first + list(kernel), first + strides, first + dilations))
    return SlidingWindow(shape, steps, spread, (top, left, bottom, right))


def _with_last_windows(call: Call, window: SlidingWindow, picture: Value) -> SlidingWindow:
    """With padding at the bottom and right for partial windows, where these count (ceil_mode)."""
    if not call.attributes.get("ceil_mode", 0):
        return window
    pads = list(window.pads)
    for axis, stride in enumerate(window.strides):
        content = picture.shape[2 + axis] + pads[axis]
        padded, reach = content + pads[2 + axis], window.dilations[axis] * (window.kernel[axis] - 1) + 1
        steps = -(-(padded - reach) // stride)
        if steps * stride >= content:  # a window must not start beyond the picture
            steps -= 1
        pads[2 + axis] += max(0, steps * stride + reach - padded)
    return replace(window, pads=(pads[0], pads[1], pads[2], pads[3]))


def _padding(call: Call) -> str:
    """How windows are padded: by `pads` (NOTSET), so that the size is kept (SAME_*), or not at all (VALID)."""
    auto = call.text("auto_pad", "NOTSET")
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


# -- other sizes ------------------------------------------------------------------------------------------------------


def resize(call: Call) -> Value:
    """Along one axis after another; before opset 11 (and when it was called Upsample) it knew one kind of coordinates.

    Which entry is nearest, and the weights of those around a place, runtimes work out in float32.
    """
    x, old = call.value(), call.opset < 11
    mode = call.text("mode", "nearest")
    coordinates = "asymmetric" if old else call.text("coordinate_transformation_mode", "half_pixel")
    rounding = "floor" if old else call.text("nearest_mode", "round_prefer_floor")
    bend = Fraction(call.attributes.get("cubic_coeff_a", -0.75))
    weights: dict[str, Weights] = {"linear": lambda share: [1 - share, share], "cubic": partial(cubic, bend=bend)}
    if mode not in ("nearest", *weights):
        raise Unsupported(f"mode {mode}")
    stretches = call.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    if call.attributes.get("antialias") or call.attributes.get("exclude_outside") or not stretches:
        raise Unsupported("antialias, exclude_outside or keep_aspect_ratio_policy")
    for axis, wanted, scale in _resized_axes(call):
        call.builder.note_computed()
        size = x.shape[axis]
        where = _places(size, wanted, scale, coordinates, np.float32 if mode == "nearest" else Fraction)
        if mode != "nearest":
            x = _interpolated(x, axis, where, weights[mode])
        elif rounding in ROUNDINGS:
            x = x.take(axis, [min(max(ROUNDINGS[rounding](place), 0), size - 1) for place in where])
        else:
            raise Unsupported(f"the nearest mode {rounding}")
    return x


def _resized_axes(call: Call) -> Iterator[tuple[int, int, Fraction]]:
    """Each axis that gets another size, that size, and the scale between the two: as was said, or by the sizes."""
    x = call.value()
    scales, sizes = (call.optional(1), None) if call.opset < 11 else (call.optional(2), call.optional(3))
    if "scales" in call.attributes:
        scales = np.asarray(call.attributes["scales"])
    stated = sizes if sizes is not None and sizes.size else scales
    axes = call.attributes.get("axes", range(len(x.shape)))
    if stated is None or stated.size != len(axes):
        raise Unsupported("without a size or a scale for each axis")
    for axis, number in zip(map(x.axis, axes), stated.reshape(-1).tolist(), strict=True):
        size = x.shape[axis]
        scale = Fraction(number) if stated is scales else Fraction(int(number), size)
        if scale != 1:
            yield axis, floor(size * scale), scale


HALF = Fraction(1, 2)
# By coordinate mode, where output i of an axis lies among its inputs, given both sizes and the scale between them; in
# steps that are as exact as the kind of number.
PLACES: dict[str, Callable[[Any, int, int, Any], Any]] = {
    "half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2,
    "pytorch_half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2 if wanted > 1 else 0 * i,
    "align_corners": lambda i, size, wanted, scale: i * (size - 1) / (wanted - 1) if wanted > 1 else 0 * i,
    "asymmetric": lambda i, size, wanted, scale: i / scale,
}
ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: ceil(place - HALF),
    "round_prefer_ceil": lambda place: floor(place + HALF),
    "floor": floor,
    "ceil": ceil,
}
# Of the entries around a place that is so far beyond one of them, the weights: as many before it as after.
Weights = Callable[[Fraction], list[Fraction]]


def _places(size: int, wanted: int, scale: Fraction, mode: str, number: Callable[[Any], Any]) -> list[Fraction]:
    """The position of each wanted entry among the given ones, in a chosen kind of number."""
    if mode not in PLACES:
        raise Unsupported(f"the coordinate transformation {mode}")
    if scale <= 0 or wanted < 1:
        raise Unsupported(f"{size} entries resized to {wanted}")
    places = (PLACES[mode](number(i), size, wanted, number(scale)) for i in range(wanted))
    return [place if isinstance(place, Fraction) else Fraction(float(place)) for place in places]


def _interpolated(x: Value, axis: int, where: Sequence[Fraction], weights: Weights) -> Value:
    """Along an axis, at each place the weighted sum of the entries around it; the last ones go on beyond the ends.

    Weights that float64 rounds are noted as rounded.
    """
    size = x.shape[axis]
    shares = [weights(place - floor(place)) for place in where]
    taps = len(shares[0])
    sources = [[min(max(floor(place) + 1 - taps // 2 + t, 0), size - 1) for place in where] for t in range(taps)]
    rounded = any(Fraction(float(share)) != share for row in shares for share in row)
    weight = torch.tensor([[float(row[t]) for row in shares] for t in range(taps)], dtype=torch.float64)
    return x.resample(axis, sources, weight, roundings=int(rounded))


def cubic(share: Fraction, bend: Fraction) -> list[Fraction]:
    """Keys' convolution: R. G. Keys, Cubic Convolution Interpolation for Digital Image Processing. IEEE 1981."""

    def near(t: Fraction) -> Fraction:
        return (bend + 2) * t**3 - (bend + 3) * t**2 + 1

    def far(t: Fraction) -> Fraction:
        return bend * (t**3 - 5 * t**2 + 8 * t - 4)

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


# -- normalisations ---------------------------------------------------------------------------------------------------


def batch_norm(call: Call) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, by channel."""
    if call.attributes.get("training_mode") or call.outputs > 1:  # before opset 14, more outputs meant training
        raise Unsupported("training mode")
    if not call.attributes.get("spatial", 1):
        raise Unsupported("a mean and variance for each pixel")
    call.builder.note_computed()
    x, (weight, bias, mean, variance) = call.value(), (call.tensor(i) for i in range(1, 5))
    factor = weight / torch.sqrt(variance + call.single("epsilon", 1e-5))
    moved = mean * factor
    constants = (factor, bias - moved, bias.abs() + moved.abs())
    factor, offset, terms = (_by_channel(constant, x) for constant in constants)
    return x.scale(factor, offset, CONSTANT_ROUNDINGS, terms)


def layer_norm(call: Call) -> Value:
    """(x - mean) / sqrt(variance + epsilon), scaled and shifted; mean and variance are over the last axes."""
    _check_stash(call)
    x = call.value()
    axes = range(x.axis(call.attributes.get("axis", -1)), len(x.shape))
    even = x.normalise(axes, call.single("epsilon", 1e-5))
    return even.scale(call.tensor(1), call.tensor(2) if call.has(2) else 0.0)


def group_norm(call: Call) -> Value:
    """Before opset 21, weight and bias were by group."""
    _check_stash(call)
    x, groups = call.value(), call.attributes["num_groups"]
    weight, bias = call.tensor(1), call.tensor(2)
    if call.opset < 21:
        weight, bias = (constant.repeat_interleave(x.shape[1] // groups) for constant in (weight, bias))
    return normalised_groups(call, groups, weight, bias)


def normalised_groups(call: Call, groups: int, weight: torch.Tensor, bias: torch.Tensor) -> Value:
    """Channels (axis 1) in so many groups, each normalised on its own; weight and bias are by channel."""
    x = call.value()
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        raise Unsupported(f"{channels} channels in {groups} groups")
    grouped = x.reshape((x.shape[0], groups, channels // groups, *x.shape[2:]))
    normalised = grouped.normalise(range(2, len(grouped.shape)), call.single("epsilon", 1e-5))
    factor, offset = (_by_channel(constant.expand(channels), x) for constant in (weight, bias))
    return normalised.reshape(x.shape).scale(factor, offset)


def _by_channel(constant: torch.Tensor, x: Value) -> torch.Tensor:
    return constant.reshape((-1,) + (1,) * (len(x.shape) - 2))


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
    return x.reshape((prod(x.shape[:axis]), prod(x.shape[axis:])))


def reshape(call: Call) -> Value:
    x = call.value()
    target = call.integers("shape", 1) or []
    if not call.attributes.get("allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        target[target.index(-1)] = prod(x.shape) // max(rest, 1)
    return x.reshape(target)


def squeeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1)
    drop = {a % len(x.shape) for a in axes} if axes is not None else {a for a, s in enumerate(x.shape) if s == 1}
    return x.reshape([s for a, s in enumerate(x.shape) if a not in drop])


def unsqueeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1) or []
    rank = len(x.shape) + len(axes)
    added = {a % rank for a in axes}
    sizes = iter(x.shape)
    return x.reshape([1 if a in added else next(sizes) for a in range(rank)])


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
        x = x.take(axis, chosen)
    return x


def split(call: Call) -> tuple[Value, ...]:
    """Parts one after another along an axis, of sizes that are stated or as even as the last one allows."""
    x, axis = call.value(), call.attributes.get("axis", 0)
    sizes, length = call.integers("split", 1), x.shape[x.axis(axis)]
    if call.attributes.get("num_outputs", call.outputs) != call.outputs:
        raise Unsupported("num_outputs other than the number of outputs")
    if sizes is None:
        size = -(-length // call.outputs)
        sizes = [min(size, length - start) for start in range(0, length, size)]
    if len(sizes) != call.outputs:
        raise Unsupported(f"{call.outputs} outputs for {len(sizes)} parts")
    if sum(sizes) != length or min(sizes, default=0) < 1:
        raise Unsupported(f"parts of sizes {sizes} of an axis of length {length}")
    ends = np.cumsum(sizes).tolist()
    return tuple(x.take(axis, range(end - size, end)) for size, end in zip(sizes, ends, strict=True))


def pad(call: Call) -> Value:
    x = call.value()
    rank = len(x.shape)
    pads, mode, axes = call.integers("pads", 1), call.text("mode", "constant"), call.optional(3)
    if pads is None:
        raise Unsupported("without pads")
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes.reshape(-1)]
    sources = [list(range(size)) for size in x.shape]
    for place, axis in enumerate(chosen):
        sources[axis] = _pad_sources(x.shape[axis], pads[place], pads[place + len(chosen)], mode)
    return x.pad(sources, call.number("value", 2, 0.0))


def _pad_sources(size: int, before: int, after: int, mode: str) -> list[int]:
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


def depth_to_space(call: Call) -> Value:
    """Channels to pixels: a pixel becomes a block; channels are numbered block by block (DCR), or by channel first."""
    x, block, mode = call.value(), call.attributes["blocksize"], call.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise Unsupported(f"mode {mode}")
    n, channels, height, width = _picture(x)
    if block < 1 or channels % block**2:
        raise Unsupported(f"{channels} channels as blocks of {block} x {block} pixels")
    depth = channels // block**2
    if mode == "DCR":
        blocks = x.reshape((n, block, block, depth, height, width)).permute((0, 3, 4, 1, 5, 2))
    else:
        blocks = x.reshape((n, depth, block, block, height, width)).permute((0, 1, 4, 2, 5, 3))
    return blocks.reshape((n, depth, height * block, width * block))


def space_to_depth(call: Call) -> Value:
    """Pixels to channels, the other way round; channels are numbered block by block."""
    x, block = call.value(), call.attributes["blocksize"]
    n, channels, height, width = _picture(x)
    if block < 1 or height % block or width % block:
        raise Unsupported(f"a picture of {height} x {width} in blocks of {block} x {block} pixels")
    blocks = x.reshape((n, channels, height // block, block, width // block, block)).permute((0, 3, 5, 1, 2, 4))
    return blocks.reshape((n, channels * block**2, height // block, width // block))


def _picture(x: Value) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise Unsupported(f"a value of shape {list(x.shape)}, which is no picture")
    return x.shape[0], x.shape[1], x.shape[2], x.shape[3]


def tile(call: Call) -> Value:
    """The value one after another, so many times along each axis; further axes are new ones in front."""
    x, repeats = call.value(), [int(count) for count in call.constant(1).reshape(-1)]
    x = x.reshape((1,) * (len(repeats) - len(x.shape)) + x.shape)
    if len(repeats) != len(x.shape) or prod(x.shape) * prod(repeats) > LARGEST_VALUE:
        raise Unsupported(f"repeating a value of shape {list(x.shape)} by {repeats}")
    for axis, (size, count) in enumerate(zip(x.shape, repeats, strict=True)):
        x = x.take(axis, [*range(size)] * count)
    return x


# -- entries by tables of indices -------------------------------------------------------------------------------------


def gather_elements(call: Call) -> Value:
    x = call.value()
    places = _along(x.shape, x.axis(call.attributes.get("axis", 0)), call.indices())
    return x.reshape((prod(x.shape),)).gather(0, places)


def gather_nd(call: Call) -> Value:
    """Entries by a table of indices for each of the first axes."""
    if call.attributes.get("batch_dims", 0):
        raise Unsupported("batch_dims")
    x, tables = call.value(), call.indices().unbind(-1)
    sizes, rest = x.shape[: len(tables)], x.shape[len(tables) :]
    if any(bool(((t < -size) | (t >= size)).any()) for t, size in zip(tables, sizes, strict=True)):
        raise Unsupported(f"indices beyond axes of lengths {list(sizes)}")
    return x.reshape((prod(sizes), *rest)).gather(0, _numbered(sizes)[tables])


def scatter_elements(call: Call) -> Value:
    x = call.operand(0)
    return _replaced(call, x, _along(x.shape, call.attributes.get("axis", 0) % len(x.shape), call.indices()))


def scatter_nd(call: Call) -> Value:
    x = call.operand(0)
    return _replaced(call, x, _numbered(x.shape)[call.indices().unbind(-1)])


def _replaced(call: Call, x: Value | torch.Tensor, places: torch.Tensor) -> Value:
    """The third input's entries put in the place of others, which are numbered as in a flat value."""
    if call.attributes.get("reduction", b"none") != b"none":
        raise Unsupported("a reduction")
    updates = call.operand(2)
    if places.unique().numel() < places.numel() or places.shape != updates.shape:
        raise Unsupported("several entries for one place, or a place for several")
    count = prod(x.shape)
    flat = torch.arange(count)
    flat[places.reshape(-1)] = count + torch.arange(places.numel())
    both = concat([part.reshape((prod(part.shape),)) for part in (x, updates)], 0)
    return both.take(0, flat.tolist()).reshape(x.shape)


def _numbered(shape: Sequence[int]) -> torch.Tensor:
    """The places of a value's entries as in a flat one."""
    return torch.from_numpy(np.arange(prod(shape)).reshape(shape))


def _along(shape: Sequence[int], axis: int, indices: torch.Tensor) -> torch.Tensor:
    """The places, as in a flat value, of the entries that indices along one axis mean."""
    if not bool(((indices >= -shape[axis]) & (indices < shape[axis])).all()):
        raise Unsupported(f"indices beyond an axis of length {shape[axis]}")
    return _numbered(shape).gather(axis, indices % shape[axis])
