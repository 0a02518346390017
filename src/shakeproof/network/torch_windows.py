"""Aten operators that walk over a picture with a window, or change its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from inspect import signature
from math import floor
from typing import Any

import numpy as np
from torch import Tensor

from shakeproof.network import resample
from shakeproof.network.build import Builder, Pooling, Unsupported, Value


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return values[0], values[-1]


def _pooling(
    kernel: Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    ceil: bool = False,
) -> Pooling:
    down, across = _pair(padding)
    return Pooling(_pair(kernel), _pair(stride or kernel), _pair(dilation), (down, across, down, across), ceil)


def conv2d(
    b: Builder,
    x: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Any = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Value:
    height, width = weight.shape[2:]
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(_pair(dilation), (height, width), strict=True)]
        before = [r // 2 if padding == "same" else 0 for r in reach]
        after = [r - r // 2 if padding == "same" else 0 for r in reach]
        pooling = Pooling((height, width), _pair(stride), _pair(dilation), (*before, *after))  # type: ignore[arg-type]
    else:
        pooling = _pooling((height, width), stride, padding, dilation)
    return b.conv(x, weight, bias, pooling, groups)


def max_pool2d(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Value:
    return b.max_pool(x, _pooling(kernel, stride, padding, dilation, ceil))


def avg_pool2d(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    if divisor_override:
        raise Unsupported("divisor_override")
    return b.average_pool(x, _pooling(kernel, stride, padding, 1, ceil_mode), count_include_pad)


def adaptive_avg_pool2d(b: Builder, x: Value, wanted: int | Sequence[int]) -> Value:
    size, (height, width) = _wanted(x, wanted), x.shape[2:]
    if height % size[0] or width % size[1]:
        return resample.adaptive_average_pool(b, x, size)
    kernel = (height // size[0], width // size[1])
    return b.average_pool(x, Pooling(kernel, kernel), True)


def adaptive_max_pool2d(b: Builder, x: Value, wanted: int | Sequence[int]) -> tuple[Value]:
    return (resample.adaptive_max_pool(b, x, _wanted(x, wanted)),)


def _wanted(x: Value, wanted: int | Sequence[int]) -> tuple[int, int]:
    """A size for pictures, in which None leaves one side as it is."""
    down, across = (side if size is None else size for size, side in zip(_pair(wanted), x.shape[2:], strict=True))
    return down, across


def one_dimensional(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for pictures, of signals: pictures of height 1, along which nothing is padded."""

    def applied(b: Builder, x: Value, *arguments: Any, **options: Any) -> Any:
        given = signature(rule).bind(b, b.reshape(x, (*x.shape[:2], 1, x.shape[2])), *arguments, **options).arguments
        for name, argument in given.items():
            if isinstance(argument, (list, tuple)) and argument:
                given[name] = [0 if name == "padding" else 1, *argument]
            elif isinstance(argument, Tensor) and argument.dim() == 3:
                given[name] = argument.unsqueeze(2)
        found = rule(**given)
        pictures = found if isinstance(found, tuple) else (found,)
        signals = tuple(b.reshape(each, (*each.shape[:2], each.shape[3])) for each in pictures)
        return signals if isinstance(found, tuple) else signals[0]

    return applied


def upsample_nearest(shift: float) -> Callable[..., Value]:
    """The entry that an output's start, or its middle, falls on; worked out in float32 as torch does."""

    def rule(b: Builder, x: Value, size: Sequence[int] | None, *scales: Any) -> Value:
        for axis, wanted, scale in _resized_axes(x, size, scales):
            step = np.float32(1 / scale)
            where = [Fraction(float((np.float32(i) + np.float32(shift)) * step)) for i in range(wanted)]
            x = resample.nearest(b, x, axis, where, "floor")
        return x

    return rule


def upsample(weights: resample.Weights) -> Callable[..., Value]:
    def rule(b: Builder, x: Value, size: Sequence[int] | None, align_corners: bool, *scales: Any) -> Value:
        mode = "align_corners" if align_corners else "half_pixel"
        for axis, wanted, scale in _resized_axes(x, size, scales):
            where = resample.places(x.shape[axis], wanted, scale, mode)
            x = resample.interpolated(b, x, axis, where, weights)
        return x

    return rule


def _resized_axes(x: Value, sizes: Sequence[int] | None, scales: Sequence[Any]) -> Iterator[tuple[int, int, Fraction]]:
    """Each axis behind the channels, its new size, and the scale: as was said, in a list or one by one, or by sizes."""
    given = scales[0] if len(scales) == 1 else scales
    for place, size in enumerate(x.shape[2:]):
        said = Fraction(given[place]) if given and given[place] is not None else None
        wanted = floor(size * (said or 1)) if sizes is None else sizes[place]
        yield place + 2, wanted, said or Fraction(wanted, size)
