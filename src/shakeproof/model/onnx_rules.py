"""What each ONNX operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor

import shakeproof.model.compose as compose
import shakeproof.model.onnx_layers as onnx_layers
from shakeproof.model.build import Builder, Unsupported, Value
from shakeproof.model.compose import Operand, matmul, multiply, reshaped, total
from shakeproof.model.onnx_constants import FLOATS, Array, Call, single, summed, tensor
from shakeproof.model.reading import ROUNDED
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
    Softplus,
    Tanh,
)


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


def _factor(operation: Callable[..., Value], call: Call) -> Value:
    """A product or quotient; its constant may have been rounded."""
    return operation(call.builder, call.operand(0), call.operand(1), call.roundings)


def _neg(call: Call) -> Value:
    return compose.negative(call.builder, call.value())


def _folded(operation: Callable[..., Value], call: Call) -> Value:
    """An operation of two on all inputs, the computed ones first."""
    found, others = _computed_first(call)
    for other in others:
        found = operation(call.builder, found, other)
    return found


def _computed_first(call: Call) -> tuple[Value, list[Operand]]:
    first, *others = sorted(call.operands(), key=lambda x: not isinstance(x, Value))
    assert isinstance(first, Value)
    return first, others


def _where(call: Call) -> Value:
    return compose.where(call.builder, *call.operands())


def _not(call: Call) -> Value:
    return call.builder.scale(call.value(), -1.0, 1.0)


def _is_nan(call: Call) -> Array:
    """Real numbers are numbers: only what constants make of a value may be none."""
    return np.asarray(call.builder.no_numbers(call.value()).isnan())


def _equal(call: Call) -> Array:
    """Only where a value is minus infinity, by constants alone, can be told beforehand."""
    x, (other,) = _computed_first(call)
    if isinstance(other, Value) or not bool((other == -np.inf).all()):
        raise Unsupported("a comparison of computed values")
    return np.asarray(call.builder.no_numbers(x) == other)


def _einsum(call: Call) -> Value:
    return einsum(call.builder, call.attributes["equation"].decode(), call.operands())


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
    return compose.log_softmax(call.builder, call.value(), softmax_axes(call))


def _leaky_relu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), call.attributes.get("alpha", single(0.01)))


def _prelu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), tensor(call.constant(1)))


def _clip(call: Call) -> Value:
    low, high = call.number("min", 1, -np.inf), call.number("max", 2, np.inf)
    return call.builder.clip(call.value(), low, high)


def _elu(call: Call) -> Value:
    return compose.elu(call.builder, call.value(), call.attributes.get("alpha", 1.0))


def _selu(call: Call) -> Value:
    alpha = call.attributes.get("alpha", single(1.6732632423543772))
    gamma = call.attributes.get("gamma", single(1.0507009873554805))
    return call.builder.scale(compose.elu(call.builder, call.value(), alpha), gamma, 0.0)


def _celu(call: Call) -> Value:
    return compose.celu(call.builder, call.value(), call.attributes.get("alpha", 1.0))


def _hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.attributes.get("alpha", single(0.2)), call.attributes.get("beta", 0.5)
    return call.builder.clip(call.builder.scale(call.value(), alpha, beta), 0.0, 1.0)


def _reduce(operation: Callable[..., Value], call: Call) -> Value:
    x = call.value()
    axes, keep = call.integers("axes", 1), bool(call.attributes.get("keepdims", 1))
    if call.attributes.get("noop_with_empty_axes") and not axes:
        x, axes, keep = call.builder.reshape(x, (*x.shape, 1)), [-1], False  # of each entry on its own
    return operation(call.builder, x, axes or range(len(x.shape)), keep)


# A rule gives a node's output, or a tuple of them; the Shape of a value is a constant.
OPERATORS: Mapping[str, Callable[[Call], Value | tuple[Value, ...] | Array]] = {
    "Abs": partial(_function, Abs()),
    "Add": partial(_binary, compose.add),
    "AveragePool": onnx_layers.average_pool,
    "BatchNormalization": onnx_layers.batch_norm,
    "Cast": _cast,
    "Ceil": partial(_function, Ceil()),
    "Celu": _celu,
    "Clip": _clip,
    "Concat": onnx_layers.concat,
    "Conv": onnx_layers.conv,
    "DepthToSpace": onnx_layers.depth_to_space,
    "Div": partial(_factor, compose.divide),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": _elu,
    "Equal": _equal,
    "Erf": partial(_function, Erf()),
    "Exp": partial(_function, Exp()),
    "Expand": onnx_layers.expand,
    "Flatten": onnx_layers.flatten,
    "Floor": partial(_function, Floor()),
    "Gather": onnx_layers.gather,
    "GatherElements": onnx_layers.gather_elements,
    "GatherND": onnx_layers.gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": onnx_layers.global_average_pool,
    "GlobalMaxPool": onnx_layers.global_max_pool,
    "Greater": partial(_binary, compose.larger),
    "GreaterOrEqual": partial(_binary, partial(compose.larger, or_equal=True)),
    "GroupNormalization": onnx_layers.group_norm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_function, HardSwish()),
    "Identity": _same,
    "InstanceNormalization": onnx_layers.instance_norm,
    "IsNaN": _is_nan,
    "LayerNormalization": onnx_layers.layer_norm,
    "LeakyRelu": _leaky_relu,
    "Less": partial(_binary, compose.smaller),
    "LessOrEqual": partial(_binary, partial(compose.smaller, or_equal=True)),
    "Log": partial(_function, Log()),
    "LogSoftmax": _log_softmax,
    "LpNormalization": onnx_layers.lp_norm,
    "MatMul": partial(_binary, compose.matmul),
    "Max": partial(_folded, compose.maximum),
    "MaxPool": onnx_layers.max_pool,
    "Min": partial(_folded, compose.minimum),
    "Mish": partial(_function, Mish()),
    "Mul": partial(_factor, compose.multiply),
    "Neg": _neg,
    "Not": _not,
    "PRelu": _prelu,
    "Pad": onnx_layers.pad,
    "Pow": _pow,
    "Reciprocal": partial(_power, -1.0),
    "ReduceL1": partial(_reduce, partial(compose.norm, order=1.0)),
    "ReduceL2": partial(_reduce, compose.norm),
    "ReduceLogSum": partial(_reduce, compose.log_sum),
    "ReduceLogSumExp": partial(_reduce, compose.log_sum_exp),
    "ReduceMax": partial(_reduce, compose.largest),
    "ReduceMean": partial(_reduce, Builder.mean),
    "ReduceMin": partial(_reduce, compose.smallest),
    "ReduceSum": partial(_reduce, compose.total),
    "ReduceSumSquare": partial(_reduce, compose.square_sum),
    "Relu": partial(_function, Relu()),
    "Reshape": onnx_layers.reshape,
    "Resize": onnx_layers.resize,
    "Round": partial(_function, Round()),
    "ScatterElements": onnx_layers.scatter_elements,
    "ScatterND": onnx_layers.scatter_nd,
    "Selu": _selu,
    "Shape": onnx_layers.shape,
    "Sigmoid": partial(_function, Sigmoid()),
    "Sign": partial(_function, Sign()),
    "Slice": onnx_layers.cut,
    "Softmax": _softmax,
    "Softplus": partial(_function, Softplus()),
    "SpaceToDepth": onnx_layers.space_to_depth,
    "Split": onnx_layers.split,
    "Sqrt": partial(_power, 0.5),
    "Squeeze": onnx_layers.squeeze,
    "Sub": partial(_binary, partial(compose.add, sign=-1)),
    "Sum": partial(_folded, compose.add),
    "Tanh": partial(_function, Tanh()),
    "Tile": onnx_layers.tile,
    "Transpose": onnx_layers.transpose,
    "Unsqueeze": onnx_layers.unsqueeze,
    "Upsample": onnx_layers.resize,
    "Where": _where,
}
# Attributes that change nothing here: about training, about outputs that are refused, about types that are refused.
IRRELEVANT: Mapping[str, frozenset[str]] = {
    "BatchNormalization": frozenset(("momentum",)),
    "Cast": frozenset(("saturate", "round_mode")),
    "Dropout": frozenset(("ratio", "seed")),
    "MaxPool": frozenset(("storage_order",)),
    "Resize": frozenset(("extrapolation_value",)),  # of tf_crop_and_resize, which is refused
}
# What may read a constant that was rounded.
TAKES_ROUNDED = frozenset(("Div", "Mul"))


# -- Einstein sums ----------------------------------------------------------------------------------------------------

# Names for the axes that an equation leaves to "...": no letter that it may use itself.
REST = "0123456789"


def einsum(b: Builder, equation: str, operands: Sequence[Operand]) -> Value:
    """`equation` as numpy.einsum takes it, for operands none of which has an axis twice."""
    inputs, output = _axes(equation, [len(x.shape) for x in operands])
    if len(operands) > 2 or any(len(set(axes)) < len(axes) for axes in (*inputs, output)):
        raise Unsupported(f"the equation {equation}")
    kept = [set(output).union(*(other for other in inputs if other is not axes)) for axes in inputs]
    summed = [_without(b, x, axes, keep) for x, axes, keep in zip(operands, inputs, kept, strict=True)]
    if len(summed) == 1:
        ((x, axes),) = summed
        assert isinstance(x, Value)
        return b.transpose(x, [axes.index(axis) for axis in output])
    (first, own), (second, others) = summed
    return _product(b, first, own, second, others, output)


def _product(b: Builder, first: Operand, own: str, second: Operand, others: str, output: str) -> Value:
    """A matrix product for each entry of the axes that both have and keep; a plain one where nothing is summed."""
    both = [axis for axis in own if axis in others]
    batch, summed = [axis for axis in both if axis in output], [axis for axis in both if axis not in output]
    rows, columns = [axis for axis in own if axis not in both], [axis for axis in others if axis not in both]
    sizes = _sizes((first, own), (second, others))
    if not summed:
        return multiply(b, _aligned(b, first, own, output), _aligned(b, second, others, output))
    left = _matrices(b, _arranged(b, first, own, [*batch, *rows, *summed]), sizes, (batch, rows, summed))
    right = _matrices(b, _arranged(b, second, others, [*batch, *summed, *columns]), sizes, (batch, summed, columns))
    found = [*batch, *rows, *columns]
    made = b.reshape(matmul(b, left, right), [sizes[axis] for axis in found])
    return b.transpose(made, [found.index(axis) for axis in output])


def _axes(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The axes of each operand and of the output, a letter or digit each."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    words = given.split(",")
    if len(words) != len(ranks):
        raise Unsupported(f"the equation {equation} for {len(ranks)} operands")
    left = [rank - len(word.replace("...", "")) for word, rank in zip(words, ranks, strict=True)]
    widest = max((rank for word, rank in zip(words, left, strict=True) if "..." in word), default=0)
    if widest > len(REST) or any(rank != 0 and "..." not in word for word, rank in zip(words, left, strict=True)):
        raise Unsupported(f"the equation {equation} for operands of {list(ranks)} axes")
    inputs = [word.replace("...", REST[widest - rank : widest]) for word, rank in zip(words, left, strict=True)]
    if not arrow:  # what appears once, in the order of the alphabet
        once = sorted(axis for axis in set("".join(inputs)) - set(REST) if "".join(inputs).count(axis) == 1)
        return inputs, REST[:widest] + "".join(once)
    return inputs, output.replace("...", REST[:widest])


def _without(b: Builder, x: Operand, axes: str, kept: set[str]) -> tuple[Operand, str]:
    """An operand summed over the axes that nothing else has; of a constant, exactly."""
    alone = [place for place, axis in enumerate(axes) if axis not in kept]
    if alone:
        x = _constant_sum(b, x, alone) if isinstance(x, Tensor) else total(b, x, alone, keep=False)
    return x, "".join(axis for axis in axes if axis in kept)


def _constant_sum(b: Builder, x: Tensor, axes: Sequence[int]) -> Tensor:
    b.note_computed()
    sums, is_exact = summed(x.numpy(), axes)
    if not bool(is_exact.all()):
        raise Unsupported(ROUNDED)
    return torch.from_numpy(np.asarray(sums))


def _sizes(*operands: tuple[Operand, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for x, axes in operands:
        for size, axis in zip(x.shape, axes, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise Unsupported(f"axis {axis} of length {size} and {sizes[axis]}")
    return sizes


def _arranged(b: Builder, x: Operand, axes: str, order: Sequence[str]) -> Operand:
    places = [axes.index(axis) for axis in order]
    return x.permute(places) if isinstance(x, Tensor) else b.transpose(x, places)


def _aligned(b: Builder, x: Operand, axes: str, output: str) -> Operand:
    """With an axis of length 1 for each of the output's that it has not."""
    arranged = _arranged(b, x, axes, [axis for axis in output if axis in axes])
    sizes = iter(arranged.shape)
    return reshaped(b, arranged, tuple(next(sizes) if axis in axes else 1 for axis in output))


def _matrices(b: Builder, x: Operand, sizes: dict[str, int], groups: Sequence[Sequence[str]]) -> Operand:
    batch, *sides = (prod(sizes[axis] for axis in group) for group in groups)
    shape = tuple(sides) if batch == 1 else (batch, *sides)
    return reshaped(b, x, shape)
