"""What each ONNX operator means in the builder's words: one small function each, joined by the table at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor

import shakeproof.model.onnx_layers as onnx_layers
from shakeproof.model.builder import Array, Builder, Pooling, Unsupported, Value
from shakeproof.model.onnx_constants import ROUNDED, summed
from shakeproof.model.onnx_model import FLOATS
from shakeproof.model.operands import (
    NEITHER_COMPUTED,
    Call,
    Operand,
    add,
    divide,
    matmul,
    maximum,
    minimum,
    multiply,
    power,
    reshaped,
    transposed,
)
from shakeproof.operators import (
    Abs,
    Ceil,
    Elu,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    Log,
    Mish,
    Operator,
    Positive,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Softplus,
    Tanh,
)

# Differences of whole numbers up to this are not rounded.
WHOLE = 2.0**50

# -- entry by entry ---------------------------------------------------------------------------------------------------


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
    approximate = call.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate={approximate}")
    return _function(GeluTanh() if approximate == "tanh" else Gelu(), call)


def _power(exponent: float, call: Call) -> Value:
    return power(call.builder, call.value(), exponent)


def _pow(call: Call) -> Value:
    exponents, x = call.constant(1), call.value()
    different = np.unique(exponents)
    if different.size != 1:
        raise Unsupported(f"{different.size} different exponents")
    wide = call.builder.expand(x, np.broadcast_shapes(x.shape, exponents.shape))
    return power(call.builder, wide, float(different[0]))


def _leaky_relu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), call.single("alpha", 0.01))


def _prelu(call: Call) -> Value:
    return call.builder.leaky_relu(call.value(), call.tensor(1))


def _clip(call: Call) -> Value:
    low, high = call.number("min", 1, -np.inf), call.number("max", 2, np.inf)
    return call.builder.clip(call.value(), low, high)


def _elu(call: Call, default: float = 1.0) -> Value:
    alpha = call.single("alpha", default)
    return call.builder.elementwise(Elu(alpha) if alpha else Relu(), call.value())


def _selu(call: Call) -> Value:
    return call.builder.scale(_elu(call, 1.6732632423543772), call.single("gamma", 1.0507009873554805), 0.0)


def _celu(call: Call) -> Value:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    b, alpha = call.builder, call.single("alpha", 1.0)
    if not alpha > 0:
        raise Unsupported(f"alpha={alpha:g}")
    return b.scale(b.elementwise(Elu(1.0), b.scale(call.value(), 1 / alpha, 0.0, roundings=1)), alpha, 0.0)


def _hard_sigmoid(call: Call) -> Value:
    alpha, beta = call.single("alpha", 0.2), call.single("beta", 0.5)
    return call.builder.clip(call.builder.scale(call.value(), alpha, beta), 0.0, 1.0)


# -- several operands -------------------------------------------------------------------------------------------------


def _binary(operation: Callable[..., Value], call: Call) -> Value:
    return operation(call.builder, call.operand(0), call.operand(1))


def _factor(operation: Callable[..., Value], call: Call) -> Value:
    """A product or quotient; its constant may have been rounded."""
    return operation(call.builder, call.operand(0), call.operand(1), call.roundings)


def _folded(operation: Callable[..., Value], call: Call) -> Value:
    """An operation of two on all inputs, the computed ones first."""
    result, others = _computed_first(call)
    for other in others:
        result = operation(call.builder, result, other)
    return result


def _computed_first(call: Call) -> tuple[Value, list[Operand]]:
    first, *others = sorted(call.operands(), key=lambda x: not isinstance(x, Value))
    assert isinstance(first, Value)
    return first, others


def _gemm(call: Call) -> Value:
    b, beta = call.builder, call.single("beta", 1.0)
    first, second = (
        transposed(b, call.operand(i)) if call.attributes.get(name) else call.operand(i)
        for i, name in enumerate(("transA", "transB"))
    )
    product = b.scale(matmul(b, first, second), call.single("alpha", 1.0), 0.0)
    if not call.has(2):
        return product
    bias = call.operand(2)
    if isinstance(bias, Value):
        return add(b, product, b.scale(bias, beta, 0.0))
    return b.scale(product, 1.0, beta * bias, roundings=int(beta != 1))


def _larger(b: Builder, first: Operand, second: Operand, or_equal: bool = False) -> Value:
    """1 where the first is larger than the second (or equal to it), 0 elsewhere."""
    return b.elementwise(Positive(or_equal), add(b, first, second, -1))


def _smaller(b: Builder, first: Operand, second: Operand, or_equal: bool = False) -> Value:
    return _larger(b, second, first, or_equal)


def _where(call: Call) -> Value:
    """The first where a condition holds, the second elsewhere: both constant, or the condition is."""
    b, (condition, first, second) = call.builder, call.operands()
    if isinstance(condition, Value):
        return _chosen(b, condition, first, second)
    condition = condition.bool()
    match first, second:
        case Value() as x, Tensor() as constant:
            return b.where(x, condition, constant)
        case Tensor() as constant, Value() as x:
            return b.where(x, ~condition, constant)
        case Value() as x, Value() as y:
            zero = torch.zeros((), dtype=torch.float64)
            return b.combine(b.where(x, condition, zero), b.where(y, ~condition, zero))
    raise NEITHER_COMPUTED


def _chosen(b: Builder, condition: Value, first: Operand, second: Operand) -> Value:
    """One of two constants where a computed condition is 1, the other where it is 0."""
    if isinstance(first, Value) or isinstance(second, Value):
        raise Unsupported("a computed choice between computed values")
    if not bool((first.isfinite() & second.isfinite()).all()):
        raise Unsupported("a computed choice of infinite values")
    whole = all(bool(((c == c.round()) & (c.abs() < WHOLE)).all()) for c in (first, second))
    terms = None if whole else first.abs() + second.abs()
    return b.scale(condition, first - second, second, int(not whole), terms)


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


# -- over axes --------------------------------------------------------------------------------------------------------


def _negative(b: Builder, x: Value) -> Value:
    return b.scale(x, -1.0, 0.0)


def _total(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The sum over some axes."""
    return b.scale(b.mean(x, axes, keep), float(prod(x.shape[axis] for axis in axes)), 0.0)


def _largest(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The maximum over some axes: max pooling of a picture that has them as its height, and all others as channels."""
    reduced = [x.axis(axis) for axis in axes]
    others = [axis for axis in range(len(x.shape)) if axis not in reduced]
    height, channels = prod(x.shape[axis] for axis in reduced), prod(x.shape[axis] for axis in others)
    picture = b.transpose(b.reshape(b.transpose(x, (*reduced, *others)), (1, height, 1, channels)), (0, 3, 1, 2))
    pooled = b.max_pool(picture, Pooling((height, 1), (1, 1)))
    kept = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    return b.reshape(pooled, kept if keep else [x.shape[axis] for axis in others])


def _smallest(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _negative(b, _largest(b, _negative(b, x), axes, keep))


def _square_sum(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _total(b, power(b, x, 2.0), axes, keep)


def _norm1(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _total(b, b.elementwise(Abs(), x), axes, keep)


def _norm2(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return power(b, _square_sum(b, x, axes, keep), 0.5)


def _log_sum(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return b.elementwise(Log(), _total(b, x, axes, keep))


def _log_sum_exp(b: Builder, x: Value, axes: Sequence[int], keep: bool) -> Value:
    return _log_sum(b, b.elementwise(Exp(), x), axes, keep)


def _reduce(operation: Callable[..., Value], call: Call) -> Value:
    x = call.value()
    axes, keep = call.integers("axes", 1), bool(call.attributes.get("keepdims", 1))
    if call.attributes.get("noop_with_empty_axes") and not axes:
        x, axes, keep = call.builder.reshape(x, (*x.shape, 1)), [-1], False  # of each entry on its own
    return operation(call.builder, x, axes or range(len(x.shape)), keep)


def _lp_norm(call: Call) -> Value:
    """x divided by its norm along an axis."""
    b, x, order = call.builder, call.value(), call.attributes.get("p", 2)
    if order not in (1, 2):
        raise Unsupported(f"a norm of order {order}")
    norm = (_norm1 if order == 1 else _norm2)(b, x, [call.attributes.get("axis", -1)], True)
    return b.multiply(x, power(b, norm, -1.0))


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
    x = call.value()
    return add(call.builder, x, _log_sum_exp(call.builder, x, softmax_axes(call), keep=True), -1)


# -- Einstein sums ----------------------------------------------------------------------------------------------------

# Names for the axes that an equation leaves to "...": no letter that it may use itself.
REST = "0123456789"


def _einsum(call: Call) -> Value:
    """The equation as numpy.einsum takes it, for operands none of which has an axis twice."""
    b, equation, operands = call.builder, call.attributes["equation"].decode(), call.operands()
    inputs, output = _axes(equation, [len(x.shape) for x in operands])
    if len(operands) > 2 or any(len(set(axes)) < len(axes) for axes in (*inputs, output)):
        raise Unsupported(f"the equation {equation}")
    kept = [set(output).union(*(other for other in inputs if other is not axes)) for axes in inputs]
    summed = [_without(b, x, axes, keep) for x, axes, keep in zip(operands, inputs, kept, strict=True)]
    if len(summed) == 1:
        ((x, axes),) = summed
        assert isinstance(x, Value)
        return b.transpose(x, [axes.index(axis) for axis in output])
    return _product(b, summed[0], summed[1], output)


def _product(b: Builder, first: tuple[Operand, str], second: tuple[Operand, str], output: str) -> Value:
    """A matrix product for each entry of the axes that both have and keep; a plain one where nothing is summed."""
    (x, left), (y, right) = first, second
    both = [axis for axis in left if axis in right]
    batch, summed = [axis for axis in both if axis in output], [axis for axis in both if axis not in output]
    rows, columns = [axis for axis in left if axis not in both], [axis for axis in right if axis not in both]
    sizes = _sizes(first, second)
    if not summed:
        return multiply(b, _aligned(b, x, left, output), _aligned(b, y, right, output))
    x = _matrices(b, _arranged(b, x, left, [*batch, *rows, *summed]), sizes, (batch, rows, summed))
    y = _matrices(b, _arranged(b, y, right, [*batch, *summed, *columns]), sizes, (batch, summed, columns))
    axes = [*batch, *rows, *columns]
    product = b.reshape(matmul(b, x, y), [sizes[axis] for axis in axes])
    return b.transpose(product, [axes.index(axis) for axis in output])


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
        x = _constant_sum(b, x, alone) if isinstance(x, Tensor) else _total(b, x, alone, keep=False)
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


# -- the table ---------------------------------------------------------------------------------------------------------

# A rule gives a node's output, or a tuple of them; the Shape of a value is a constant.
OPERATORS: Mapping[str, Callable[[Call], Value | tuple[Value, ...] | Array]] = {
    "Abs": partial(_function, Abs()),
    "Add": partial(_binary, add),
    "AveragePool": onnx_layers.average_pool,
    "BatchNormalization": onnx_layers.batch_norm,
    "Cast": _cast,
    "Ceil": partial(_function, Ceil()),
    "Celu": _celu,
    "Clip": _clip,
    "Concat": onnx_layers.joined,
    "Conv": onnx_layers.conv,
    "DepthToSpace": onnx_layers.depth_to_space,
    "Div": partial(_factor, divide),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "Elu": _elu,
    "Equal": _equal,
    "Erf": partial(_function, Erf()),
    "Exp": partial(_function, Exp()),
    "Expand": onnx_layers.expand,
    "Flatten": onnx_layers.flatten,
    "Floor": partial(_function, Floor()),
    "Gather": onnx_layers.gathered,
    "GatherElements": onnx_layers.gather_elements,
    "GatherND": onnx_layers.gather_nd,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": onnx_layers.global_average_pool,
    "GlobalMaxPool": onnx_layers.global_max_pool,
    "Greater": partial(_binary, _larger),
    "GreaterOrEqual": partial(_binary, partial(_larger, or_equal=True)),
    "GroupNormalization": onnx_layers.group_norm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": partial(_function, HardSwish()),
    "Identity": _same,
    "InstanceNormalization": onnx_layers.instance_norm,
    "IsNaN": _is_nan,
    "LayerNormalization": onnx_layers.layer_norm,
    "LeakyRelu": _leaky_relu,
    "Less": partial(_binary, _smaller),
    "LessOrEqual": partial(_binary, partial(_smaller, or_equal=True)),
    "Log": partial(_function, Log()),
    "LogSoftmax": _log_softmax,
    "LpNormalization": _lp_norm,
    "MatMul": partial(_binary, matmul),
    "Max": partial(_folded, maximum),
    "MaxPool": onnx_layers.max_pool,
    "Min": partial(_folded, minimum),
    "Mish": partial(_function, Mish()),
    "Mul": partial(_factor, multiply),
    "Neg": lambda call: _negative(call.builder, call.value()),
    "Not": _not,
    "PRelu": _prelu,
    "Pad": onnx_layers.pad,
    "Pow": _pow,
    "Reciprocal": partial(_power, -1.0),
    "ReduceL1": partial(_reduce, _norm1),
    "ReduceL2": partial(_reduce, _norm2),
    "ReduceLogSum": partial(_reduce, _log_sum),
    "ReduceLogSumExp": partial(_reduce, _log_sum_exp),
    "ReduceMax": partial(_reduce, _largest),
    "ReduceMean": partial(_reduce, Builder.mean),
    "ReduceMin": partial(_reduce, _smallest),
    "ReduceSum": partial(_reduce, _total),
    "ReduceSumSquare": partial(_reduce, _square_sum),
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
    "Sub": partial(_binary, partial(add, sign=-1)),
    "Sum": partial(_folded, add),
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
