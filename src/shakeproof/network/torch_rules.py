"""What each aten operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from shakeproof.network import arrange, compose, resample, torch_norms, torch_shapes, torch_windows
from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.einsum import einsum
from shakeproof.network.torch_call import check_type, operand
from shakeproof.operators import (
    Abs,
    Ceil,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    Log,
    Mish,
    Operator,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Silu,
    Softplus,
    Tanh,
)

# Above this, torch's softplus is the identity: by then the two differ by less than float32 can tell.
SOFTPLUS_THRESHOLD = 20


def _linear(b: Builder, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    return b.linear(x, weight.T, bias)


def _add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    second, weight = operand(y), abs(alpha)
    b.is_exact &= alpha in (1, -1)
    weighted = b.scale(second, weight, 0.0) if isinstance(second, Value) else second * weight
    return compose.add(b, operand(x), weighted, 1 if alpha > 0 else -1)


def _sub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    return _add(b, x, y, -alpha)


def _mul(b: Builder, x: Any, y: Any) -> Value:
    return compose.multiply(b, operand(x), operand(y))


def _div(b: Builder, x: Any, y: Any) -> Value:
    return compose.divide(b, operand(x), operand(y))


def _matmul(b: Builder, x: Any, y: Any) -> Value:
    return compose.matmul(b, operand(x), operand(y))


def _pow(b: Builder, x: Any, exponent: Any) -> Value:
    if not isinstance(x, Value) or isinstance(exponent, Value):
        raise Unsupported("a computed exponent")
    if isinstance(exponent, Tensor) and exponent.dim():
        raise Unsupported("several exponents")
    return compose.power(b, x, float(exponent))


def _clamp(b: Builder, x: Value, low: Any = None, high: Any = None) -> Value:
    if not any(isinstance(limit, (Tensor, Value)) for limit in (low, high)):
        return b.clip(x, -inf if low is None else low, inf if high is None else high)
    x = x if low is None else compose.maximum(b, x, operand(low))
    return x if high is None else compose.minimum(b, x, operand(high))


def _prelu(b: Builder, x: Value, slope: Tensor) -> Value:
    return b.leaky_relu(x, slope.reshape(-1, *(1,) * (len(x.shape) - 2)))


def _axes(x: Value, axes: int | Sequence[int] | None) -> Sequence[int]:
    return [axes] if isinstance(axes, int) else axes or range(len(x.shape))


def _mean(b: Builder, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    check_type(dtype)
    return b.mean(x, _axes(x, axes), keepdim)


def _sum(b: Builder, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    check_type(dtype)
    return compose.total(b, x, _axes(x, axes), keepdim)


def _reduction(operation: Callable[..., Value]) -> Callable[..., Value]:
    return lambda b, x, axes=None, keepdim=False: operation(b, x, _axes(x, axes), keepdim)


def _extreme(of_two: Callable[..., Value], of_axes: Callable[..., Value]) -> Callable[..., Any]:
    """torch's max and min: of two values, along an axis (and where, which is refused), or of all entries."""

    def rule(b: Builder, x: Any, other: Any = None, keepdim: bool = False) -> Any:
        if isinstance(other, int):
            return (of_axes(b, x, [other], keepdim),)
        return of_axes(b, x, range(len(x.shape)), False) if other is None else of_two(b, operand(x), operand(other))

    return rule


def _vector_norm(
    b: Builder, x: Value, order: Any = 2, axes: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    check_type(dtype)
    return compose.norm(b, x, _axes(x, axes), keepdim, 2.0 if order is None else float(order))


def _where(b: Builder, condition: Any, x: Any, y: Any) -> Value:
    return compose.where(b, operand(condition), operand(x), operand(y))


def _comparison(operation: Callable[..., Value], or_equal: bool = False) -> Callable[..., Value]:
    return lambda b, x, y: operation(b, operand(x), operand(y), or_equal)


def _masked_fill(b: Builder, x: Any, mask: Any, value: Any) -> Value:
    return _where(b, mask, value, x)


def _equal(b: Builder, x: Value, other: Any) -> Tensor:
    """Only where a value is minus infinity, by constants alone, can be told beforehand."""
    if other != -inf:
        raise Unsupported("a comparison of computed values")
    return b.no_numbers(x).isneginf()


def _like(number: int) -> Callable[..., Tensor]:
    return lambda b, x, *, dtype=None, **options: torch.full(x.shape, number, dtype=dtype or torch.float64)


def _elu(b: Builder, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    if input_scale != 1:  # of negative numbers alone
        raise Unsupported(f"input_scale={input_scale:g}")
    return b.scale(compose.elu(b, x, alpha), scale, 0.0)


def _converted(b: Builder, x: Value, *arguments: Any, **options: Any) -> Value:
    for given in (*arguments, *options.values()):
        check_type(given if isinstance(given, torch.dtype) else None)
    return x


def _output(b: Builder, values: Sequence[Any], index: int) -> Any:
    if index >= len(values):
        raise Unsupported("an output other than the first is used")
    return values[index]


def _function(operator: Operator) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.elementwise(operator, x)


def _power(exponent: float) -> Callable[[Builder, Value], Value]:
    return lambda b, x: compose.power(b, x, exponent)


def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return b.elementwise(GeluTanh() if approximate == "tanh" else Gelu(), x)


def _glu(b: Builder, x: Value, axis: int = -1) -> Value:
    value, gate = torch_shapes.chunk(b, x, 2, axis)
    return b.multiply(value, b.elementwise(Sigmoid(), gate))


def _softplus(b: Builder, x: Value, beta: float = 1.0, threshold: float = SOFTPLUS_THRESHOLD) -> Value:
    if threshold < SOFTPLUS_THRESHOLD:
        raise Unsupported(f"a softplus that is the identity above {threshold}")
    return b.scale(b.elementwise(Softplus(), b.scale(x, beta, 0.0)), 1.0 / beta, 0.0, roundings=1)


def softmax_axis(x: Value, axis: int, dtype: torch.dtype | bool | None = None) -> int:
    """The axis of a softmax, whose result must not be rounded. (Some forms say instead if they widen 16 bits.)"""
    if dtype is True:
        raise Unsupported("a softmax of 16 bits")
    check_type(dtype or None)
    return x.axis(axis)


def _softmax(b: Builder, x: Value, axis: int, dtype: Any = None) -> Value:
    return b.softmax(x, softmax_axis(x, axis, dtype))


def _log_softmax(b: Builder, x: Value, axis: int, dtype: Any = None) -> Value:
    return compose.log_softmax(b, x, [softmax_axis(x, axis, dtype)])


def _attention(
    b: Builder,
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """A mask is added, or says what takes part."""
    if dropout or enable_gqa:
        raise Unsupported("attention with dropout or grouped queries")
    query, key, value = (operand(x) for x in (query, key, value))
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -inf)
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    return compose.attention(b, query, key, value, factor, mask)


def _same(b: Builder, x: Value, *, memory_format: Any = None) -> Value:
    return x


def _dropout(b: Builder, x: Value, probability: float, training: bool) -> Value:
    if training and probability:
        raise Unsupported("training mode")
    return x


def _clip(b: Builder, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return b.clip(x, low, high)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "abs": _function(Abs()),
    "adaptive_avg_pool1d": torch_windows.one_dimensional(torch_windows.adaptive_avg_pool2d),
    "adaptive_avg_pool2d": torch_windows.adaptive_avg_pool2d,
    "adaptive_max_pool1d": torch_windows.one_dimensional(torch_windows.adaptive_max_pool2d),
    "adaptive_max_pool2d": torch_windows.adaptive_max_pool2d,
    "add": _add,
    "alias": _same,
    "alpha_dropout": _dropout,
    "amax": _reduction(compose.largest),
    "amin": _reduction(compose.smallest),
    "avg_pool1d": torch_windows.one_dimensional(torch_windows.avg_pool2d),
    "avg_pool2d": torch_windows.avg_pool2d,
    "batch_norm": torch_norms.batch_norm,
    "bmm": _matmul,
    "cat": torch_shapes.cat,
    "ceil": _function(Ceil()),
    "celu": lambda b, x, alpha=1.0: compose.celu(b, x, alpha),
    "channel_shuffle": torch_shapes.channel_shuffle,
    "chunk": torch_shapes.chunk,
    "clamp": _clamp,
    "clamp_max": lambda b, x, high: _clamp(b, x, None, high),
    "clamp_min": _clamp,
    "clone": _same,
    "contiguous": _same,
    "conv1d": torch_windows.one_dimensional(torch_windows.conv2d),
    "conv2d": torch_windows.conv2d,
    "copy": torch_shapes.copied,
    "detach": _same,
    "div": _div,
    "dropout": _dropout,
    "einsum": lambda b, equation, operands, *, path=None: einsum(b, equation, [operand(x) for x in operands]),
    "elu": _elu,
    "eq": _equal,
    "erf": _function(Erf()),
    "exp": _function(Exp()),
    "expand": torch_shapes.expand,
    "expand_as": lambda b, x, other: b.expand(x, other.shape),
    "feature_alpha_dropout": _dropout,
    "feature_dropout": _dropout,
    "fill": lambda b, x, number: torch.full(x.shape, float(number), dtype=torch.float64),
    "flatten": torch_shapes.flatten,
    "flip": torch_shapes.flip,
    "floor": _function(Floor()),
    "full_like": lambda b, x, number, **options: _like(number)(b, x, **options),
    "gather": torch_shapes.gather,
    "ge": _comparison(compose.larger, or_equal=True),
    "gelu": _gelu,
    "getitem": _output,
    "glu": _glu,
    "group_norm": torch_norms.group_norm,
    "gt": _comparison(compose.larger),
    "hardsigmoid": lambda b, x: b.clip(b.scale(x, 1 / 6, 0.5, roundings=1), 0.0, 1.0),
    "hardswish": _function(HardSwish()),
    "hardtanh": _clip,
    "index": torch_shapes.index,
    "index_put": torch_shapes.index_put,
    "index_select": torch_shapes.index_select,
    "instance_norm": torch_norms.instance_norm,
    "isnan": lambda b, x: b.no_numbers(x).isnan(),
    "layer_norm": torch_norms.layer_norm,
    "le": _comparison(compose.smaller, or_equal=True),
    "leaky_relu": lambda b, x, slope=0.01: b.leaky_relu(x, slope),
    "linalg_vector_norm": _vector_norm,
    "linear": _linear,
    "log": _function(Log()),
    "log_sigmoid": lambda b, x: compose.negative(b, b.elementwise(Softplus(), compose.negative(b, x))),
    "_log_softmax": _log_softmax,
    "log_softmax": _log_softmax,
    "logsumexp": _reduction(compose.log_sum_exp),
    "lt": _comparison(compose.smaller),
    "mT": compose.swapped,
    "masked_fill": _masked_fill,
    "matmul": _matmul,
    "max": _extreme(compose.maximum, compose.largest),
    "max_pool1d": torch_windows.one_dimensional(torch_windows.max_pool2d),
    "max_pool2d": torch_windows.max_pool2d,
    "max_pool2d_with_indices": lambda b, *arguments: (torch_windows.max_pool2d(b, *arguments),),
    "maximum": lambda b, x, y: compose.maximum(b, operand(x), operand(y)),
    "mean": _mean,
    "min": _extreme(compose.minimum, compose.smallest),
    "minimum": lambda b, x, y: compose.minimum(b, operand(x), operand(y)),
    "mish": _function(Mish()),
    "mm": _matmul,
    "movedim": torch_shapes.movedim,
    "mul": _mul,
    "narrow": lambda b, x, axis, start, length: torch_shapes.cut(b, x, axis, start, start + length),
    "_native_batch_norm_legit_no_training": lambda b, x, w, bias, mean, var, momentum, eps: (
        torch_norms.batch_norm(b, x, w, bias, mean, var, False, momentum, eps),
    ),
    "native_group_norm": lambda b, x, weight, bias, n, channels, entries, groups, epsilon: (
        torch_norms.group_norm(b, x, groups, weight, bias, epsilon),
    ),
    "native_layer_norm": lambda b, *arguments: (torch_norms.layer_norm(b, *arguments),),
    "neg": lambda b, x: b.scale(x, -1.0, 0.0),
    "norm": _vector_norm,
    "ones_like": _like(1),
    "pad": torch_shapes.pad,
    "permute": lambda b, x, order: b.transpose(x, [x.axis(axis) for axis in order]),
    "pixel_shuffle": lambda b, x, block: arrange.depth_to_space(b, x, block, blocks_first=False),
    "pixel_unshuffle": lambda b, x, block: arrange.space_to_depth(b, x, block, blocks_first=False),
    "pow": _pow,
    "prelu": _prelu,
    "reciprocal": _power(-1.0),
    "relu": _function(Relu()),
    "relu6": lambda b, x: b.clip(x, 0.0, 6.0),
    "repeat": torch_shapes.tile,
    "repeat_interleave": torch_shapes.repeat_interleave,
    "reshape": torch_shapes.view,
    "rms_norm": torch_norms.rms_norm,
    "roll": torch_shapes.roll,
    "round": _function(Round()),
    "rsqrt": _power(-0.5),
    "rsub": lambda b, x, y, alpha=1: _sub(b, y, x, alpha),
    "_safe_softmax": lambda b, x, axis, dtype=None: compose.safe_softmax(b, x, softmax_axis(x, axis, dtype)),
    "scaled_dot_product_attention": _attention,
    "scatter": torch_shapes.scatter,
    "select": lambda b, x, axis, index: compose.gather(b, x, axis, torch.tensor(index)),
    "select_scatter": torch_shapes.select_scatter,
    "selu": lambda b, x: _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
    "sgn": _function(Sign()),
    "sigmoid": _function(Sigmoid()),
    "sign": _function(Sign()),
    "silu": _function(Silu()),
    "slice": torch_shapes.cut,
    "slice_scatter": torch_shapes.slice_scatter,
    "_softmax": _softmax,
    "softmax": _softmax,
    "softplus": _softplus,
    "split": torch_shapes.split,
    "split_with_sizes": torch_shapes.split,
    "sqrt": _power(0.5),
    "square": _power(2.0),
    "squeeze": torch_shapes.squeeze,
    "stack": torch_shapes.stack,
    "sub": _sub,
    "sum": _sum,
    "t": lambda b, x: x if len(x.shape) < 2 else compose.swapped(b, x),
    "tanh": _function(Tanh()),
    "tile": torch_shapes.tile,
    "to": _converted,
    "_to_copy": _converted,
    "transpose": torch_shapes.transpose,
    "type_as": lambda b, x, other: _converted(b, x, getattr(other, "dtype", None)),
    "unbind": torch_shapes.unbind,
    "unflatten": torch_shapes.unflatten,
    "_unsafe_view": torch_shapes.view,
    "unsqueeze": torch_shapes.unsqueeze,
    "upsample_bicubic2d": torch_windows.upsample(resample.cubic),
    "upsample_bilinear2d": torch_windows.upsample(resample.linear),
    "upsample_linear1d": torch_windows.upsample(resample.linear),
    "upsample_nearest1d": torch_windows.upsample_nearest(0.0),
    "upsample_nearest2d": torch_windows.upsample_nearest(0.0),
    "_upsample_nearest_exact1d": torch_windows.upsample_nearest(0.5),
    "_upsample_nearest_exact2d": torch_windows.upsample_nearest(0.5),
    "view": torch_shapes.view,
    "view_as": lambda b, x, other: b.reshape(x, other.shape),
    "where": _where,
    "zeros_like": _like(0),
}
