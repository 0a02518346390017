"""What each ONNX operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np
import onnx

from shakeproof.network import compose, onnx_shapes
from shakeproof.network.build import Builder, Pooling, Unsupported, Value
from shakeproof.network.onnx_call import Array, Call, tensor
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
    Softplus,
    Tanh,
)


def _single(default: float) -> float:
    """What an attribute is if it is not given: attributes are float32 numbers."""
    return float(np.float32(default))


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


def _function(function: Operator, call: Call) -> Value:
    return call.builder.elementwise(function, call.value())


def _gelu(call: Call) -> Value:
    approximate = call.attributes.get("approximate", b"none").decode()
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate={approximate}")
    return _function(GeluTanh() if approximate == "tanh" else Gelu(), call)


def _power(exponent: float, call: Call) -> Value:
    return compose.power(call.builder, call.value(), exponent)


def _pow(call: Call) -> Value:
    exponents, x = call.constant(1), call.value()
    different = np.unique(exponents)
    if different.size != 1:
        raise Unsupported(f"{different.size} different exponents")
    wide = call.builder.expand(x, np.broadcast_shapes(x.shape, exponents.shape))
    return compose.power(call.builder, wide, float(different[0]))


def _gemm(call: Call) -> Value:
    b = call.builder
    first, second = (
        compose.transposed(b, call.operand(i)) if call.attributes.get(name) else call.operand(i)
        for i, name in enumerate(("transA", "transB"))
    )
    product = b.scale(compose.matmul(b, first, second), call.attributes.get("alpha", 1.0), 0.0)
    beta = call.attributes.get("beta", 1.0)
    if len(call.inputs) < 3 or call.inputs[2] is None:
        return product
    bias = call.operand(2)
    if isinstance(bias, Value):
        return compose.add(b, product, b.scale(bias, beta, 0.0))
    return b.scale(product, 1.0, beta * bias, roundings=int(beta != 1))


def _binary(operation: Callable[..., Value], call: Call) -> Value:
    return operation(call.builder, call.operand(0), call.operand(1))


def _neg(call: Call) -> Value:
    return call.builder.scale(call.value(), -1.0, 0.0)


def _sum(call: Call) -> Value:
    computed = next(i for i, given in enumerate(call.inputs) if isinstance(given, Value))
    total = call.value(computed)
    for i in range(len(call.inputs)):
        total = total if i == computed else compose.add(call.builder, total, call.operand(i))
    return total


def _batch_norm(call: Call) -> Value:
    if call.attributes.get("training_mode") or call.outputs > 1:  # before opset 14, more outputs meant training
        raise Unsupported("training mode")
    if not call.attributes.get("spatial", 1):
        raise Unsupported("a mean and variance for each pixel")
    weight, bias, mean, variance = (tensor(call.constant(i)) for i in range(1, 5))
    epsilon = call.attributes.get("epsilon", _single(1e-5))
    return compose.batch_norm(call.builder, call.value(), weight, bias, mean, variance, epsilon)


def _layer_norm(call: Call) -> Value:
    x = call.value()
    if call.attributes.get("stash_type", onnx.TensorProto.FLOAT) not in FLOATS:
        raise Unsupported("mean and variance in 16 bits, which rounds them")
    axes = range(x.axis(call.attributes.get("axis", -1)), len(x.shape))
    bias = call.optional(2)
    return compose.layer_norm(
        call.builder,
        x,
        axes,
        call.attributes.get("epsilon", _single(1e-5)),
        tensor(call.constant(1)),
        0.0 if bias is None else tensor(bias),
    )


def softmax_axes(call: Call) -> range:
    """The axes that a softmax is over: one, or before opset 13 all from one on."""
    x = call.value()
    if call.opset >= 13:
        axis = x.axis(call.attributes.get("axis", -1))
        return range(axis, axis + 1)
    return range(x.axis(call.attributes.get("axis", 1)), len(x.shape))


def _softmax(call: Call) -> Value:
    x, axes = call.value(), softmax_axes(call)
    if len(axes) == 1:
        return call.builder.softmax(x, axes[0])
    flat = call.builder.reshape(x, (*x.shape[: axes[0]], prod(x.shape[axes[0] :])))
    return call.builder.reshape(call.builder.softmax(flat, -1), x.shape)


def _log_softmax(call: Call) -> Value:
    raise Unsupported("only as the last operator, over all class scores")


def _leaky_relu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), call.attributes.get("alpha", _single(0.01)))


def _prelu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), tensor(call.constant(1)))


def _clip(call: Call) -> Value:
    low, high = call.number("min", 1, -np.inf), call.number("max", 2, np.inf)
    return call.builder.clip(call.value(), low, high)


def _hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.attributes.get("alpha", _single(0.2)), call.attributes.get("beta", 0.5)
    return call.builder.clip(call.builder.scale(call.value(), alpha, beta), 0.0, 1.0)


def _conv(call: Call) -> Value:
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


def _max_pool(call: Call) -> Value:
    _check_same_padding(call)
    return _on_picture(call, call.value(), call.attributes["kernel_shape"], call.builder.max_pool)


def _average_pool(call: Call) -> Value:
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


def _global_average_pool(call: Call) -> Value:
    x = call.value()
    return call.builder.mean(x, range(2, len(x.shape)), keep=True)


def _global_max_pool(call: Call) -> Value:
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


def _reduce(operation: Callable[..., Value], call: Call) -> Value:
    x = call.value()
    axes, keep = call.integers("axes", 1), bool(call.attributes.get("keepdims", 1))
    if call.attributes.get("noop_with_empty_axes") and not axes:
        return x
    return operation(call.builder, x, axes or range(len(x.shape)), keep)


FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE}

# A rule gives a node's output, or a tuple of them; the Shape of a value is a constant.
OPERATORS: Mapping[str, Callable[[Call], Value | tuple[Value, ...] | Array]] = {
    "Abs": partial(_function, Abs()),
    "Add": partial(_binary, compose.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Ceil": partial(_function, Ceil()),
    "Clip": _clip,
    "Concat": onnx_shapes.concat,
    "Conv": _conv,
    "Div": partial(_binary, compose.divide),
    "Dropout": _dropout,
    "Erf": partial(_function, Erf()),
    "Exp": partial(_function, Exp()),
    "Expand": onnx_shapes.expand,
    "Flatten": onnx_shapes.flatten,
    "Floor": partial(_function, Floor()),
    "Gather": onnx_shapes.gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_function, HardSwish()),
    "Identity": _same,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "MatMul": partial(_binary, compose.matmul),
    "MaxPool": _max_pool,
    "Mul": partial(_binary, compose.multiply),
    "Neg": _neg,
    "PRelu": _prelu,
    "Pad": onnx_shapes.pad,
    "Pow": _pow,
    "Reciprocal": partial(_power, -1.0),
    "ReduceMean": partial(_reduce, Builder.mean),
    "ReduceSum": partial(_reduce, compose.total),
    "Relu": partial(_function, Relu()),
    "Reshape": onnx_shapes.reshape,
    "Round": partial(_function, Round()),
    "Shape": onnx_shapes.shape,
    "Sigmoid": partial(_function, Sigmoid()),
    "Sign": partial(_function, Sign()),
    "Slice": onnx_shapes.cut,
    "Softmax": _softmax,
    "Softplus": partial(_function, Softplus()),
    "Split": onnx_shapes.split,
    "Sqrt": partial(_power, 0.5),
    "Squeeze": onnx_shapes.squeeze,
    "Sub": partial(_binary, partial(compose.add, sign=-1)),
    "Sum": _sum,
    "Tanh": partial(_function, Tanh()),
    "Transpose": onnx_shapes.transpose,
    "Unsqueeze": onnx_shapes.unsqueeze,
}
# Attributes that change nothing here: about training, about outputs that are refused, about types that are refused.
IRRELEVANT: Mapping[str, frozenset[str]] = {
    "BatchNormalization": frozenset(("momentum",)),
    "Cast": frozenset(("saturate", "round_mode")),
    "Dropout": frozenset(("ratio", "seed")),
    "MaxPool": frozenset(("storage_order",)),
}
# What exporters compute from constants and shapes, besides the above: fine as long as no pixel flows into it.
CONSTANT_OPERATORS = frozenset(("Constant", "ConstantOfShape", "Range", "Equal", "Where"))
# Of these, what leaves numbers as they are, or makes whole ones of them.
MOVES = frozenset(
    (
        *("Ceil", "Floor", "Round", "Sign"),
        *("Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Neg", "Reshape"),
        *("Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"),
    )
)
