"""What each ONNX operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network.build import Builder, Pooling, Unsupported, Value

Array = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One ONNX node: its inputs (values, constants, or None where left out) and attributes."""

    builder: Builder
    opset: int
    inputs: tuple[Value | Array | None, ...]
    attributes: Mapping[str, Any]
    outputs_used: int

    def value(self, index: int = 0) -> Value:
        given = self.inputs[index]
        if not isinstance(given, Value):
            raise Unsupported(f"input {index} is a constant")
        return given

    def constant(self, index: int) -> Array:
        given = self.inputs[index]
        if not isinstance(given, np.ndarray):
            raise Unsupported(f"input {index} is computed by the network; only a constant is supported there")
        return given

    def optional(self, index: int) -> Array | None:
        return self.constant(index) if len(self.inputs) > index and self.inputs[index] is not None else None

    def integers(self, name: str, index: int) -> list[int] | None:
        """A list of integers that older opsets give as an attribute and newer ones as an input."""
        if name in self.attributes:
            return [int(i) for i in np.atleast_1d(self.attributes[name])]
        given = self.optional(index)
        return None if given is None else [int(i) for i in given.reshape(-1)]

    def number(self, name: str, index: int, default: float) -> float:
        """A number that older opsets give as an attribute and newer ones as an input."""
        given = self.attributes.get(name) if name in self.attributes else self.optional(index)
        return default if given is None else float(np.asarray(given).reshape(()))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))


def _same(call: Call) -> Value:
    return call.value()


def _dropout(call: Call) -> Value:
    training = call.optional(2)
    if training is not None and bool(training.any()):
        raise Unsupported("training mode")
    return call.value()


def _cast(call: Call) -> Value:
    if call.attributes["to"] not in FLOATS:
        raise Unsupported("a cast of computed values to integers or 16 bits, which rounds them")
    return call.value()


def _shape(call: Call) -> Any:
    shape = call.value().shape
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    return np.array(shape[start:end], dtype=np.int64)


def _gemm(call: Call) -> Value:
    alpha, beta = call.attributes.get("alpha", 1.0), call.attributes.get("beta", 1.0)
    x, weight = call.value(), _tensor(call.constant(1))
    if call.attributes.get("transA"):
        x = call.builder.transpose(x, (1, 0))
    product = call.builder.linear(x, alpha * (weight.T if call.attributes.get("transB") else weight), None)
    bias = call.optional(2)
    return product if bias is None else call.builder.scale(product, 1.0, beta * _tensor(bias))


def _matmul(call: Call) -> Value:
    first, second = call.inputs[0], call.inputs[1]
    if isinstance(first, Value) and isinstance(second, np.ndarray) and second.ndim == 2:
        return call.builder.linear(first, _tensor(second), None)
    if isinstance(first, np.ndarray) and isinstance(second, Value) and first.ndim == 2 and len(second.shape) >= 2:
        swap = (*range(len(second.shape) - 2), len(second.shape) - 1, len(second.shape) - 2)
        product = call.builder.linear(call.builder.transpose(second, swap), _tensor(first).T, None)
        return call.builder.transpose(product, swap)
    raise Unsupported("a product of two computed values, or with a constant that is not a matrix")


def _add(call: Call) -> Value:
    first, second = call.inputs[0], call.inputs[1]
    if isinstance(first, Value) and isinstance(second, Value):
        return call.builder.combine(first, second)
    value, constant = (0, 1) if isinstance(first, Value) else (1, 0)
    return call.builder.scale(call.value(value), 1.0, _tensor(call.constant(constant)))


def _sub(call: Call) -> Value:
    first, second = call.inputs[0], call.inputs[1]
    if isinstance(first, Value) and isinstance(second, Value):
        return call.builder.combine(first, second, -1)
    if isinstance(first, Value):
        return call.builder.scale(first, 1.0, -_tensor(call.constant(1)))
    return call.builder.scale(call.value(1), -1.0, _tensor(call.constant(0)))


def _mul(call: Call) -> Value:
    value, constant = (0, 1) if isinstance(call.inputs[0], Value) else (1, 0)
    return call.builder.scale(call.value(value), _tensor(call.constant(constant)), 0.0)


def _div(call: Call) -> Value:
    return call.builder.scale(call.value(0), 1.0 / _tensor(call.constant(1)), 0.0)


def _neg(call: Call) -> Value:
    return call.builder.scale(call.value(), -1.0, 0.0)


def _sum(call: Call) -> Value:
    total = call.value(0)
    for index in range(1, len(call.inputs)):
        total = call.builder.combine(total, call.value(index))
    return total


def _batch_norm(call: Call) -> Value:
    if call.attributes.get("training_mode"):
        raise Unsupported("training mode")
    x = call.value()
    scale, offset, mean, variance = (_tensor(call.constant(i)) for i in range(1, 5))
    factor = scale / torch.sqrt(variance + call.attributes.get("epsilon", 1e-5))
    along = (-1,) + (1,) * (len(x.shape) - 2)
    return call.builder.scale(x, factor.reshape(along), (offset - mean * factor).reshape(along))


def _concat(call: Call) -> Value:
    return call.builder.concat([call.value(i) for i in range(len(call.inputs))], call.attributes["axis"])


def _relu(call: Call) -> Value:
    return call.builder.relu(call.value())


def _leaky_relu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), call.attributes.get("alpha", 0.01))


def _prelu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), _tensor(call.constant(1)))


def _clip(call: Call) -> Value:
    low, high = call.number("min", 1, -np.inf), call.number("max", 2, np.inf)
    return call.builder.clip(call.value(), low, high)


def _hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.attributes.get("alpha", 0.2), call.attributes.get("beta", 0.5)
    return call.builder.clip(call.builder.scale(call.value(), alpha, beta), 0.0, 1.0)


def _abs(call: Call) -> Value:
    return call.builder.abs(call.value())


def _conv(call: Call) -> Value:
    x, weight = call.value(), _tensor(call.constant(1))
    bias = call.optional(2)
    return _on_picture(
        call,
        x,
        list(weight.shape[2:]),
        lambda picture, pooling: call.builder.conv(
            picture,
            weight if weight.dim() == 4 else weight.unsqueeze(2),
            None if bias is None else _tensor(bias),
            pooling,
            call.attributes.get("group", 1),
        ),
    )


def _max_pool(call: Call) -> Value:
    if call.outputs_used > 1:
        raise Unsupported("the indices of max pooling are used")
    return _on_picture(call, call.value(), call.attributes["kernel_shape"], call.builder.max_pool)


def _average_pool(call: Call) -> Value:
    count_padding = bool(call.attributes.get("count_include_pad", 0))
    return _on_picture(
        call,
        call.value(),
        call.attributes["kernel_shape"],
        lambda picture, pooling: call.builder.average_pool(picture, pooling, count_padding),
    )


def _global_average_pool(call: Call) -> Value:
    x = call.value()
    return call.builder.mean(x, range(2, len(x.shape)), keep=True)


def _global_max_pool(call: Call) -> Value:
    x = call.value()
    whole = list(x.shape[2:])
    return _on_picture(call, x, whole, call.builder.max_pool)


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
    auto = call.attributes.get("auto_pad", b"NOTSET").decode()
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


def _reduce_mean(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1)
    if not axes and call.attributes.get("noop_with_empty_axes"):
        return x
    return call.builder.mean(x, axes or range(len(x.shape)), bool(call.attributes.get("keepdims", 1)))


def _pad(call: Call) -> Value:
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
    numpy_modes = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    if mode not in numpy_modes:
        raise Unsupported(f"mode {mode}")
    return np.asarray(np.pad(inner, widths, mode=numpy_modes[mode]))  # type: ignore[call-overload]


def _flatten(call: Call) -> Value:
    x, axis = call.value(), call.attributes.get("axis", 1)
    axis = axis % len(x.shape) if axis < 0 else axis
    return call.builder.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


def _reshape(call: Call) -> Value:
    x = call.value()
    target = call.integers("shape", 1) or []
    if not call.attributes.get("allowzero", 0):
        target = [x.shape[i] if size == 0 else size for i, size in enumerate(target)]
    if -1 in target:
        rest = prod(size for size in target if size != -1)
        target[target.index(-1)] = prod(x.shape) // max(rest, 1)
    return call.builder.reshape(x, target)


def _transpose(call: Call) -> Value:
    x = call.value()
    return call.builder.transpose(x, call.attributes.get("perm", range(len(x.shape))[::-1]))


def _squeeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1)
    drop = {a % len(x.shape) for a in axes} if axes is not None else {a for a, s in enumerate(x.shape) if s == 1}
    return call.builder.reshape(x, [s for a, s in enumerate(x.shape) if a not in drop])


def _unsqueeze(call: Call) -> Value:
    x = call.value()
    axes = call.integers("axes", 1) or []
    rank = len(x.shape) + len(axes)
    added = {a % rank for a in axes}
    sizes = iter(x.shape)
    return call.builder.reshape(x, [1 if a in added else next(sizes) for a in range(rank)])


FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}

LARGEST_PAD = 10_000

OPERATORS: Mapping[str, Callable[[Call], Value]] = {
    "Abs": _abs,
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _div,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "HardSigmoid": _hard_sigmoid,
    "Identity": _same,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Neg": _neg,
    "PRelu": _prelu,
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": _relu,
    "Reshape": _reshape,
    "Shape": _shape,
    "Squeeze": _squeeze,
    "Sub": _sub,
    "Sum": _sum,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
# What exporters compute from constants and shapes, besides the above: fine as long as no pixel flows into it.
CONSTANT_OPERATORS = frozenset(
    ("Constant", "ConstantOfShape", "Gather", "Slice", "Range", "Floor", "Ceil", "Expand", "Equal", "Where", "Sqrt")
)
