"""What each aten operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from shakeproof.network import compose
from shakeproof.network.build import Builder, Pooling, Unsupported, Value
from shakeproof.network.compose import Operand
from shakeproof.operators import (
    Abs,
    Ceil,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    Operator,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Silu,
    Softplus,
    Tanh,
)

# Types that values may be turned into: others round them.
FLOATS = (torch.float32, torch.float64)
# Above this, torch's softplus is the identity: by then the two differ by less than float32 can tell.
SOFTPLUS_THRESHOLD = 20


def _check_type(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise Unsupported(f"a result of type {dtype}, which rounds it")


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


def _conv2d(
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


def _linear(b: Builder, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    return b.linear(x, weight.T, bias)


def _batch_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn_enabled: bool = False,
) -> Value:
    if training:
        raise Unsupported("training mode")
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return compose.batch_norm(b, x, weight, bias, mean, variance, epsilon)


def _operand(x: Any) -> Operand:
    return x if isinstance(x, Value) else torch.as_tensor(x, dtype=torch.float64)


def _add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    second, weight = _operand(y), abs(alpha)
    b.is_exact &= alpha in (1, -1)
    weighted = b.scale(second, weight, 0.0) if isinstance(second, Value) else second * weight
    return compose.add(b, _operand(x), weighted, 1 if alpha > 0 else -1)


def _sub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    return _add(b, x, y, -alpha)


def _mul(b: Builder, x: Any, y: Any) -> Value:
    return compose.multiply(b, _operand(x), _operand(y))


def _div(b: Builder, x: Any, y: Any) -> Value:
    return compose.divide(b, _operand(x), _operand(y))


def _matmul(b: Builder, x: Any, y: Any) -> Value:
    return compose.matmul(b, _operand(x), _operand(y))


def _pow(b: Builder, x: Any, exponent: Any) -> Value:
    if not isinstance(x, Value) or isinstance(exponent, Value):
        raise Unsupported("a computed exponent")
    if isinstance(exponent, Tensor) and exponent.dim():
        raise Unsupported("several exponents")
    return compose.power(b, x, float(exponent))


def _clamp(b: Builder, x: Value, low: float | None = None, high: float | None = None) -> Value:
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        raise Unsupported("clamping to bounds that are tensors")
    return b.clip(x, -inf if low is None else low, inf if high is None else high)


def _prelu(b: Builder, x: Value, slope: Tensor) -> Value:
    return b.leaky_relu(x, slope.reshape(-1, *(1,) * (len(x.shape) - 2)))


def _max_pool2d(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> Value:
    return b.max_pool(x, _pooling(kernel, stride, padding, dilation, ceil))


def _avg_pool2d(
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


def _adaptive_avg_pool2d(b: Builder, x: Value, size: Sequence[int]) -> Value:
    sides = x.shape[2:]
    if any(side % out for side, out in zip(sides, size, strict=True)):
        raise Unsupported(f"adaptive pooling from {list(sides)} to {list(size)}")
    kernel = (sides[0] // size[0], sides[1] // size[1])
    return b.average_pool(x, Pooling(kernel, kernel), True)


def _axes(x: Value, axes: int | Sequence[int] | None) -> Sequence[int]:
    return [axes] if isinstance(axes, int) else axes or range(len(x.shape))


def _mean(b: Builder, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    _check_type(dtype)
    return b.mean(x, _axes(x, axes), keepdim)


def _sum(b: Builder, x: Value, axes: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    _check_type(dtype)
    return compose.total(b, x, _axes(x, axes), keepdim)


def _view(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    return b.reshape(x, _known(shape, prod(x.shape)))


def _known(shape: Sequence[int], entries: int) -> list[int]:
    """A shape for so many entries, in which one length may be left open with -1."""
    rest = prod(size for size in shape if size != -1)
    return [entries // rest if size == -1 else size for size in shape]


def _unflatten(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> Value:
    axis = x.axis(axis)
    return b.reshape(x, (*x.shape[:axis], *_known(sizes, x.shape[axis]), *x.shape[axis + 1 :]))


def _flatten(b: Builder, x: Value, start: int = 0, end: int = -1) -> Value:
    start, end = start % len(x.shape), end % len(x.shape)
    return b.reshape(x, (*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _squeeze(b: Builder, x: Value, axes: int | Sequence[int] | None = None) -> Value:
    chosen = range(len(x.shape)) if axes is None else [axes] if isinstance(axes, int) else axes
    drop = {axis % len(x.shape) for axis in chosen}
    return b.reshape(x, [s for axis, s in enumerate(x.shape) if s > 1 or axis not in drop])


def _unsqueeze(b: Builder, x: Value, axis: int) -> Value:
    place = axis % (len(x.shape) + 1)
    return b.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def _transpose(b: Builder, x: Value, first: int, second: int) -> Value:
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return b.transpose(x, order)


def _pad(b: Builder, x: Value, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Value:
    if mode != "constant":
        raise Unsupported(f"padding mode {mode}")
    sources = [list(range(size)) for size in x.shape]
    for place, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = len(x.shape) - 1 - place
        if min(before, after) < 0:
            raise Unsupported("negative padding")
        sources[axis] = [-1] * before + sources[axis] + [-1] * after
    return b.pad(x, sources, value or 0.0)


def _expand(b: Builder, x: Value, sizes: Sequence[int], *, implicit: bool = False) -> Value:
    new = len(sizes) - len(x.shape)
    return b.expand(x, [x.shape[axis - new] if size == -1 else size for axis, size in enumerate(sizes)])


def _slice(
    b: Builder, x: Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    return b.take(x, axis, range(x.shape[x.axis(axis)])[start:end:step])


def _index(b: Builder, x: Value, indices: Sequence[Any]) -> Value:
    given = [axis for axis, index in enumerate(indices) if index is not None]
    chosen = indices[given[0]] if len(given) == 1 else None
    if not isinstance(chosen, Tensor) or chosen.dtype in (torch.bool, torch.uint8):  # both are masks
        raise Unsupported("indexing other than by one constant list of indices")
    return compose.gather(b, x, given[0], chosen)


def _index_select(b: Builder, x: Value, axis: int, indices: Any) -> Value:
    if not isinstance(indices, Tensor):
        raise Unsupported("computed indices")
    return compose.gather(b, x, axis, indices.reshape(-1))


def _split(b: Builder, x: Value, size: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    sizes = compose.sections(x.shape[x.axis(axis)], size) if isinstance(size, int) else size
    return compose.split(b, x, axis, sizes)


def _chunk(b: Builder, x: Value, count: int, axis: int = 0) -> tuple[Value, ...]:
    return _split(b, x, -(-x.shape[x.axis(axis)] // count), axis)


def _unbind(b: Builder, x: Value, axis: int = 0) -> tuple[Value, ...]:
    return tuple(compose.gather(b, x, axis, torch.tensor(i)) for i in range(x.shape[x.axis(axis)]))


def _cat(b: Builder, parts: Sequence[Any], axis: int = 0) -> Value:
    return compose.concat(b, [_operand(part) for part in parts], axis)


def _stack(b: Builder, parts: Sequence[Any], axis: int = 0) -> Value:
    widened = [_unsqueeze(b, part, axis) if isinstance(part, Value) else part.unsqueeze(axis) for part in parts]
    return _cat(b, widened, axis)


def _function(operator: Operator) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b.elementwise(operator, x)


def _power(exponent: float) -> Callable[[Builder, Value], Value]:
    return lambda b, x: compose.power(b, x, exponent)


def _gelu(b: Builder, x: Value, approximate: str = "none") -> Value:
    return b.elementwise(GeluTanh() if approximate == "tanh" else Gelu(), x)


def _glu(b: Builder, x: Value, axis: int = -1) -> Value:
    value, gate = _chunk(b, x, 2, axis)
    return b.multiply(value, b.elementwise(Sigmoid(), gate))


def _softplus(b: Builder, x: Value, beta: float = 1.0, threshold: float = SOFTPLUS_THRESHOLD) -> Value:
    if threshold < SOFTPLUS_THRESHOLD:
        raise Unsupported(f"a softplus that is the identity above {threshold}")
    return b.scale(b.elementwise(Softplus(), b.scale(x, beta, 0.0)), 1.0 / beta, 0.0, roundings=1)


def softmax_axis(x: Value, axis: int, dtype: torch.dtype | bool | None = None) -> int:
    """The axis of a softmax, whose result must not be rounded. (Some forms say instead if they widen 16 bits.)"""
    if dtype is True:
        raise Unsupported("a softmax of 16 bits")
    _check_type(dtype or None)
    return x.axis(axis)


def _softmax(b: Builder, x: Value, axis: int, dtype: Any = None) -> Value:
    return b.softmax(x, softmax_axis(x, axis, dtype))


def _log_softmax(b: Builder, x: Value, *_: Any) -> Value:
    raise Unsupported("only as the last operator, over all class scores")


def _layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    cudnn_enable: bool = False,
) -> Value:
    axes = range(len(x.shape) - len(shape), len(x.shape))
    return compose.layer_norm(b, x, axes, epsilon, 1.0 if weight is None else weight, 0.0 if bias is None else bias)


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
    """softmax(query key^T scale) value."""
    if mask is not None or dropout or is_causal or enable_gqa:
        raise Unsupported("attention with a mask, dropout or grouped queries")
    query, key, value = (_operand(x) for x in (query, key, value))
    scores = compose.matmul(b, query, compose.transposed(b, key))
    factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
    return compose.matmul(b, b.softmax(b.scale(scores, factor, 0.0), -1), value)


def _same(b: Builder, x: Value, *, memory_format: Any = None) -> Value:
    return x


def _dropout(b: Builder, x: Value, probability: float, training: bool) -> Value:
    if training and probability:
        raise Unsupported("training mode")
    return x


def _clip(b: Builder, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return b.clip(x, low, high)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_no_training": lambda b, x, w, bias, mean, var, momentum, eps: (
        _batch_norm(b, x, w, bias, mean, var, False, momentum, eps),
    ),
    "_unsafe_view": _view,
    "_log_softmax": _log_softmax,
    "_softmax": _softmax,
    "abs": _function(Abs()),
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "add": _add,
    "avg_pool2d": _avg_pool2d,
    "batch_norm": _batch_norm,
    "bmm": _matmul,
    "cat": _cat,
    "ceil": _function(Ceil()),
    "chunk": _chunk,
    "clamp": _clamp,
    "clone": _same,
    "contiguous": _same,
    "conv2d": _conv2d,
    "detach": _same,
    "div": _div,
    "dropout": _dropout,
    "erf": _function(Erf()),
    "exp": _function(Exp()),
    "expand": _expand,
    "feature_dropout": _dropout,
    "flatten": _flatten,
    "floor": _function(Floor()),
    "gelu": _gelu,
    "getitem": lambda b, values, index: values[index],
    "glu": _glu,
    "hardsigmoid": lambda b, x: b.clip(b.scale(x, 1 / 6, 0.5, roundings=1), 0.0, 1.0),
    "hardswish": _function(HardSwish()),
    "hardtanh": _clip,
    "index": _index,
    "index_select": _index_select,
    "layer_norm": _layer_norm,
    "leaky_relu": lambda b, x, slope=0.01: b.leaky_relu(x, slope),
    "linear": _linear,
    "log_softmax": _log_softmax,
    "mT": compose.swapped,
    "matmul": _matmul,
    "max_pool2d": _max_pool2d,
    "mean": _mean,
    "mm": _matmul,
    "mul": _mul,
    "neg": lambda b, x: b.scale(x, -1.0, 0.0),
    "pad": _pad,
    "permute": lambda b, x, order: b.transpose(x, [x.axis(axis) for axis in order]),
    "pow": _pow,
    "prelu": _prelu,
    "reciprocal": _power(-1.0),
    "relu": _function(Relu()),
    "relu6": lambda b, x: b.clip(x, 0.0, 6.0),
    "reshape": _view,
    "round": _function(Round()),
    "rsqrt": _power(-0.5),
    "rsub": lambda b, x, y, alpha=1: _sub(b, y, x, alpha),
    "scaled_dot_product_attention": _attention,
    "select": lambda b, x, axis, index: compose.gather(b, x, axis, torch.tensor(index)),
    "sigmoid": _function(Sigmoid()),
    "sign": _function(Sign()),
    "silu": _function(Silu()),
    "slice": _slice,
    "softmax": _softmax,
    "softplus": _softplus,
    "split": _split,
    "split_with_sizes": _split,
    "sqrt": _power(0.5),
    "square": _power(2.0),
    "squeeze": _squeeze,
    "stack": _stack,
    "sub": _sub,
    "sum": _sum,
    "t": lambda b, x: x if len(x.shape) < 2 else compose.swapped(b, x),
    "tanh": _function(Tanh()),
    "transpose": _transpose,
    "unbind": _unbind,
    "unflatten": _unflatten,
    "unsqueeze": _unsqueeze,
    "view": _view,
}
