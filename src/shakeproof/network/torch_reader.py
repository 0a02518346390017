"""Reads a torch.export program (a user's nn.Module) into a graph: one small function per aten operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.network.build import Builder, Pooling, Unsupported, Value
from shakeproof.network.graph import Graph


@dataclass(frozen=True)
class Reading:
    """The program's graph, a final softmax that it leaves out, and the type of number that the program takes."""

    graph: Graph
    dropped: str | None
    dtype: torch.dtype


def read(program: ExportedProgram, name: str) -> Reading:
    """The program's graph; an error that lists every operator that cannot be analysed."""
    signature = program.graph_signature
    weights = {**program.state_dict, **program.constants}
    held = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    images = [node for node in placeholders if node.name not in held]
    if len(images) != 1:
        raise InputError(
            f"{name}: the module has {len(images)} inputs; shakeproof needs one image in, class scores out"
        )
    builder = Builder([int(size) for size in images[0].meta["val"].shape])
    known: dict[str, Any] = {images[0].name: builder.input}
    for node in placeholders:
        if node.name in held:
            weight = weights[held[node.name]].detach()
            known[node.name] = weight.double() if weight.is_floating_point() else weight
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    outputs = program.graph.output_node().args[0]
    if len(outputs) != 1 or not isinstance(outputs[0], torch.fx.Node):
        raise InputError(f"{name}: the module has {len(outputs)} outputs; shakeproof needs one, the class scores")
    output = outputs[0].name
    problems, dropped = [], None
    for node in calls:
        word = str(node.target).removeprefix("aten.").partition(".")[0]
        if any(argument.name not in known for argument in node.all_input_nodes):  # behind a node that already failed
            if word not in OPERATORS:
                problems.append(f"{word} ({node.name})")
            continue
        arguments = torch.fx.map_arg(node.args, lambda n: known[n.name])
        options = torch.fx.map_arg(node.kwargs, lambda n: known[n.name])
        try:
            if word in ("softmax", "log_softmax", "_softmax", "_log_softmax") and node.name == output:
                if max(arguments[0].shape) != prod(arguments[0].shape):
                    raise Unsupported("a softmax over part of the output")
                known[output] = arguments[0]
                dropped = "LogSoftmax" if "log" in word else "Softmax"
                continue
            if not any(isinstance(leaf, Value) for leaf in tree_leaves((arguments, options))):
                known[node.name] = node.target(*arguments, **options)
                continue
            if word not in OPERATORS:
                raise Unsupported("not supported")
            known[node.name] = OPERATORS[word](builder, *arguments, **options)
        except (
            Unsupported,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as problem:
            problems.append(f"{word} ({node.name}): {problem}")
    if problems:
        raise UnsupportedNetworkError(f"{name}: {len(problems)} operators cannot be analysed: {'; '.join(problems)}")
    try:
        return Reading(builder.finish(known[output]), dropped, images[0].meta["val"].dtype)
    except Unsupported as problem:
        raise UnsupportedNetworkError(f"{name}: {problem}") from None


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
    *_: Any,
) -> Value:
    if training:
        raise Unsupported("training mode")
    factor = (1.0 if weight is None else weight) / torch.sqrt(variance + epsilon)
    along = (-1,) + (1,) * (len(x.shape) - 2)
    offset = (0.0 if bias is None else bias) - mean * factor
    return b.scale(x, factor.reshape(along), offset.reshape(along))


def _add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    if isinstance(x, Value) and isinstance(y, Value):
        if alpha not in (1, -1):
            raise Unsupported(f"an addition with weight {alpha}")
        return b.combine(x, y, int(alpha))
    value, constant = (x, y) if isinstance(x, Value) else (y, x)
    if value is x:
        return b.scale(value, 1.0, alpha * constant)
    return b.scale(value, alpha, constant)


def _sub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Value:
    return _add(b, x, y, -alpha)


def _rsub(b: Builder, x: Value, y: Any, alpha: float = 1) -> Value:
    return _add(b, y, x, -alpha)


def _mul(b: Builder, x: Any, y: Any) -> Value:
    if isinstance(x, Value) and isinstance(y, Value):
        raise Unsupported("a product of two computed values")
    return b.scale(x, y, 0.0) if isinstance(x, Value) else b.scale(y, x, 0.0)


def _div(b: Builder, x: Any, y: Any) -> Value:
    if not isinstance(x, Value) or isinstance(y, Value):
        raise Unsupported("a division by a computed value")
    return b.scale(x, 1.0 / torch.as_tensor(y, dtype=torch.float64), 0.0)


def _clamp(b: Builder, x: Value, low: float | None = None, high: float | None = None) -> Value:
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


def _mean(b: Builder, x: Value, axes: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Value:
    return b.mean(x, axes or range(len(x.shape)), keepdim)


def _view(b: Builder, x: Value, shape: Sequence[int]) -> Value:
    known = prod(size for size in shape if size != -1)
    return b.reshape(x, [prod(x.shape) // known if size == -1 else size for size in shape])


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


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "_native_batch_norm_legit_no_training": lambda b, x, w, bias, mean, var, momentum, eps: _batch_norm(
        b, x, w, bias, mean, var, False, momentum, eps
    ),
    "abs": lambda b, x: b.abs(x),
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "add": _add,
    "add_": _add,
    "avg_pool2d": _avg_pool2d,
    "batch_norm": _batch_norm,
    "cat": lambda b, values, axis=0: b.concat(values, axis),
    "clamp": _clamp,
    "clone": lambda b, x, **_: x,
    "contiguous": lambda b, x, **_: x,
    "conv2d": _conv2d,
    "detach": lambda b, x: x,
    "div": _div,
    "dropout": lambda b, x, *_: x,
    "dropout_": lambda b, x, *_: x,
    "feature_dropout": lambda b, x, *_: x,
    "flatten": _flatten,
    "hardtanh": lambda b, x, low=-1.0, high=1.0: b.clip(x, low, high),
    "hardtanh_": lambda b, x, low=-1.0, high=1.0: b.clip(x, low, high),
    "leaky_relu": lambda b, x, slope=0.01: b.leaky_relu(x, slope),
    "leaky_relu_": lambda b, x, slope=0.01: b.leaky_relu(x, slope),
    "linear": _linear,
    "max_pool2d": _max_pool2d,
    "mean": _mean,
    "mul": _mul,
    "neg": lambda b, x: b.scale(x, -1.0, 0.0),
    "pad": _pad,
    "permute": lambda b, x, order: b.transpose(x, [axis % len(x.shape) for axis in order]),
    "prelu": _prelu,
    "relu": lambda b, x: b.relu(x),
    "relu6": lambda b, x: b.clip(x, 0.0, 6.0),
    "relu_": lambda b, x: b.relu(x),
    "reshape": _view,
    "rsub": _rsub,
    "squeeze": _squeeze,
    "sub": _sub,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "view": _view,
}
