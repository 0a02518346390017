"""What each ONNX operator means that works entry by entry, on several operands, or over axes: one function each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

import shakeproof.operators as ops
from shakeproof.model.builder import Call, Value, concat
from shakeproof.model.onnx_constants import ROUNDED, summed
from shakeproof.model.onnx_model import FLOATS, Array, Unsupported

# Computed by the network, or a constant.
Operand = Value | Tensor
# Differences of whole numbers up to this are not rounded.
WHOLE = 2.0**50
# A product with a stack of matrices is one linear layer for each.
LARGEST_STACK = 64
NEITHER_COMPUTED = Unsupported("neither operand is computed by the network")

# -- entry by entry ---------------------------------------------------------------------------------------------------


def dropout(call: Call) -> Value:
    training = call.optional(2)
    if training is not None and bool(training.any()):
        raise Unsupported("training mode")
    return call.value()


def cast(call: Call) -> Value:
    if call.attributes["to"] not in FLOATS:
        raise Unsupported("a cast of computed values to integers or 16 bits, which rounds them")
    return call.value()


def gelu(call: Call) -> Value:
    approximate = call.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"approximate={approximate}")
    return call.value().elementwise(ops.GeluTanh() if approximate == "tanh" else ops.Gelu())


def pow_(call: Call) -> Value:
    exponents, x = call.constant(1), call.value()
    different = np.unique(exponents)
    if different.size != 1:
        raise Unsupported(f"{different.size} different exponents")
    return power(x.broadcast(exponents.shape), float(different[0]))


def elu(call: Call, default: float = 1.0) -> Value:
    alpha = call.single("alpha", default)
    return call.value().elementwise(ops.Elu(alpha) if alpha else ops.Relu())


def celu(call: Call) -> Value:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)."""
    alpha = call.single("alpha", 1.0)
    if not alpha > 0:
        raise Unsupported(f"alpha={alpha:g}")
    return call.value().scale(1 / alpha, roundings=1).elementwise(ops.Elu(1.0)).scale(alpha)


# -- several operands, of which one at least is computed ---------------------------------------------------------------


def add(first: Operand, second: Operand, sign: int = 1) -> Value:
    """first + sign * second."""
    match first, second:
        case Value() as x, Value() as y:
            return x.combine(y, sign)
        case Value() as x, Tensor() as constant:
            return x.scale(1.0, sign * constant)
        case Tensor() as constant, Value() as x:
            return x.scale(float(sign), constant)
    raise NEITHER_COMPUTED


def multiply(first: Operand, second: Operand, roundings: int = 0) -> Value:
    """first * second; a constant among them was rounded so many times."""
    match first, second:
        case Value() as x, Value() as y:
            return x.multiply(y)
        case (Value() as x, Tensor() as constant) | (Tensor() as constant, Value() as x):
            return x.scale(constant, 0.0, roundings)
    raise NEITHER_COMPUTED


def divide(first: Operand, second: Operand, roundings: int = 0) -> Value:
    """first / second; a constant among them was rounded so many times."""
    if isinstance(second, Value):
        return multiply(first, power(second, -1.0), roundings)
    return multiply(first, 1.0 / second, roundings + 1)


def power(x: Value, exponent: float) -> Value:
    if exponent == 0:
        return x.scale(0.0, 1.0)
    return x if exponent == 1 else x.elementwise(ops.Power(exponent))


def maximum(first: Operand, second: Operand) -> Value:
    """The larger of two, as relu(first - second) + second: what they have in common stays known to bounds."""
    x, other, limit = _compared(first, second)
    if limit is not None:
        return x.clip(limit, inf)
    return add(add(x, other, -1).elementwise(ops.Relu()), other)


def minimum(first: Operand, second: Operand) -> Value:
    """The smaller of two, as second - relu(second - first)."""
    x, other, limit = _compared(first, second)
    if limit is not None:
        return x.clip(-inf, limit)
    return add(other, add(other, x, -1).elementwise(ops.Relu()), -1)


def _compared(first: Operand, second: Operand) -> tuple[Value, Operand, float | None]:
    """Two that are compared, the first of them computed; and the second as a number, if it is the same throughout."""
    if isinstance(first, Tensor):
        first, second = second, first
    if isinstance(first, Tensor):
        raise NEITHER_COMPUTED
    if isinstance(second, Value) or not bool((second == second.flatten()[0]).all()):
        return first, second, None
    return first.broadcast(second.shape), second, float(second.flatten()[0])


def larger(first: Operand, second: Operand, or_equal: bool = False) -> Value:
    """1 where the first is larger than the second (or equal to it), 0 elsewhere."""
    return add(first, second, -1).elementwise(ops.Positive(or_equal))


def matmul(first: Operand, second: Operand) -> Value:
    """first @ second as numpy means it."""
    if len(first.shape) == 1:
        product = matmul(first.reshape((1, *first.shape)), second)
        return product.reshape((*product.shape[:-2], product.shape[-1]))
    if len(second.shape) == 1:
        product = matmul(first, second.reshape((*second.shape, 1)))
        return product.reshape(product.shape[:-1])
    match first, second:
        case Value() as x, Value() as y:
            return x.matmul(y)
        case Value() as x, Tensor() as constant:
            return _times_constant(x, constant)
        case Tensor() as constant, Value() as x:
            return _times_constant(x.mT, constant.mT).mT
    raise NEITHER_COMPUTED


def _times_constant(x: Value, matrices: Tensor) -> Value:
    """x @ matrices, where the constant's leading axes are a batch."""
    if matrices.dim() == 2:
        return x.linear(matrices)
    if prod(matrices.shape[:-2]) > LARGEST_STACK:
        raise Unsupported(f"a product with {prod(matrices.shape[:-2])} constant matrices")
    x = x.broadcast((*matrices.shape[:-2], 1, 1))
    if len(matrices) == 1:
        return _times_constant(x, matrices[0])
    axis = len(x.shape) - matrices.dim()
    return concat([_times_constant(x.take(axis, [i]), matrix) for i, matrix in enumerate(matrices)], axis)


def variadic(operation: Callable[[Operand, Operand], Value], call: Call) -> Value:
    """An operation of two on all inputs, the computed ones first."""
    result, *others = call.computed_first()
    for other in others:
        result = operation(result, other)
    assert isinstance(result, Value)
    return result


def gemm(call: Call) -> Value:
    beta = call.single("beta", 1.0)
    first, second = (
        call.operand(i).mT if call.attributes.get(name) else call.operand(i)
        for i, name in enumerate(("transA", "transB"))
    )
    product = matmul(first, second).scale(call.single("alpha", 1.0))
    if not call.has(2):
        return product
    bias = call.operand(2)
    if isinstance(bias, Value):
        return add(product, bias.scale(beta))
    return product.scale(1.0, beta * bias, roundings=int(beta != 1))


def equal(call: Call) -> Array:
    """Only where a value is minus infinity, by constants alone, can be told beforehand."""
    x, other = call.computed_first()
    if isinstance(x, Tensor) or isinstance(other, Value) or not bool((other == -inf).all()):
        raise Unsupported("a comparison of computed values")
    return np.asarray(x.no_numbers == other)


def where(call: Call) -> Value:
    """The first where a condition holds, the second elsewhere: both constant, or the condition is."""
    condition, first, second = call.operands()
    if isinstance(condition, Value):
        return _chosen(condition, first, second)
    condition = condition.bool()
    match first, second:
        case Value() as x, Tensor() as constant:
            return x.where(condition, constant)
        case Tensor() as constant, Value() as x:
            return x.where(~condition, constant)
        case Value() as x, Value() as y:
            zero = torch.zeros((), dtype=torch.float64)
            return x.where(condition, zero).combine(y.where(~condition, zero))
    raise NEITHER_COMPUTED


def _chosen(condition: Value, first: Operand, second: Operand) -> Value:
    """One of two constants where a computed condition is 1, the other where it is 0."""
    if isinstance(first, Value) or isinstance(second, Value):
        raise Unsupported("a computed choice between computed values")
    if not bool((first.isfinite() & second.isfinite()).all()):
        raise Unsupported("a computed choice of infinite values")
    whole = all(bool(((c == c.round()) & (c.abs() < WHOLE)).all()) for c in (first, second))
    terms = None if whole else first.abs() + second.abs()
    return condition.scale(first - second, second, int(not whole), terms)


# -- over axes --------------------------------------------------------------------------------------------------------


def total(x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The sum over some axes."""
    return x.mean(axes, keep).scale(float(prod(x.shape[axis] for axis in axes)))


def largest(x: Value, axes: Sequence[int], keep: bool) -> Value:
    """The maximum over some axes: max pooling of a picture that has them as its height, and all others as channels."""
    reduced = [x.axis(axis) for axis in axes]
    others = [axis for axis in range(len(x.shape)) if axis not in reduced]
    height, channels = prod(x.shape[axis] for axis in reduced), prod(x.shape[axis] for axis in others)
    picture = x.permute((*reduced, *others)).reshape((1, height, 1, channels)).permute((0, 3, 1, 2))
    kept = [1 if axis in reduced else size for axis, size in enumerate(x.shape)]
    pooled = picture.max_pool(ops.SlidingWindow((height, 1)))
    return pooled.reshape(kept if keep else [x.shape[axis] for axis in others])


def smallest(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return largest(x.scale(-1.0), axes, keep).scale(-1.0)


def norm1(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return total(x.elementwise(ops.Abs()), axes, keep)


def norm2(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return power(total(power(x, 2.0), axes, keep), 0.5)


def log_sum(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return total(x, axes, keep).elementwise(ops.Log())


def log_sum_exp(x: Value, axes: Sequence[int], keep: bool) -> Value:
    return log_sum(x.elementwise(ops.Exp()), axes, keep)


def reduce(operation: Callable[[Value, Sequence[int], bool], Value], call: Call) -> Value:
    x = call.value()
    axes, keep = call.integers("axes", 1), bool(call.attributes.get("keepdims", 1))
    if call.attributes.get("noop_with_empty_axes") and not axes:
        x, axes, keep = x.reshape((*x.shape, 1)), [-1], False  # of each entry on its own
    return operation(x, axes or range(len(x.shape)), keep)


def lp_norm(call: Call) -> Value:
    """x divided by its norm along an axis."""
    x, order = call.value(), call.attributes.get("p", 2)
    if order not in (1, 2):
        raise Unsupported(f"a norm of order {order}")
    norm = (norm1 if order == 1 else norm2)(x, [call.attributes.get("axis", -1)], True)
    return x.multiply(power(norm, -1.0))


def softmax_axes(call: Call) -> range:
    """The axes that a softmax is over: one, or before opset 13 all from one on."""
    x = call.value()
    if call.opset >= 13:
        axis = x.axis(call.attributes.get("axis", -1))
        return range(axis, axis + 1)
    return range(x.axis(call.attributes.get("axis", 1)), len(x.shape))


def softmax(call: Call) -> Value:
    x, axes = call.value(), softmax_axes(call)
    if len(axes) == 1:
        return x.softmax(axes[0])
    flat = x.reshape((*x.shape[: axes[0]], prod(x.shape[axes[0] :])))
    return flat.softmax(-1).reshape(x.shape)


def log_softmax(call: Call) -> Value:
    x = call.value()
    return add(x, log_sum_exp(x, softmax_axes(call), keep=True), -1)


# -- Einstein sums ----------------------------------------------------------------------------------------------------

# Names for the axes that an equation leaves to "...": no letter that it may use itself.
REST = "0123456789"


def einsum(call: Call) -> Value:
    """The equation as numpy.einsum takes it, for operands none of which has an axis twice."""
    equation, operands = call.attributes["equation"].decode(), call.operands()
    inputs, output = _axes(equation, [len(x.shape) for x in operands])
    if len(operands) > 2 or any(len(set(axes)) < len(axes) for axes in (*inputs, output)):
        raise Unsupported(f"the equation {equation}")
    for number, axes in enumerate(inputs):  # sum over the axes that nothing else has
        used = {*output, *(axis for other, axes in enumerate(inputs) if other != number for axis in axes)}
        operands[number] = _summed(call, operands[number], [i for i, axis in enumerate(axes) if axis not in used])
        inputs[number] = "".join(axis for axis in axes if axis in used)
    if len(operands) == 2:
        return _product(operands[0], operands[1], inputs[0], inputs[1], output)
    (x,), (axes,) = operands, inputs
    assert isinstance(x, Value)
    return x.permute([axes.index(axis) for axis in output])


def _summed(call: Call, x: Operand, axes: Sequence[int]) -> Operand:
    """The sum over some axes; of a constant, exactly."""
    if not axes:
        return x
    if isinstance(x, Value):
        return total(x, axes, keep=False)
    call.builder.note_computed()
    sums, is_exact = summed(x.numpy(), axes)
    if not bool(is_exact.all()):
        raise Unsupported(ROUNDED)
    return torch.from_numpy(np.asarray(sums))


def _product(x: Operand, y: Operand, left: str, right: str, output: str) -> Value:
    """A matrix product for each entry of the axes that both have and keep; a plain one where nothing is summed."""
    sizes: dict[str, int] = {}
    for operand, axes in ((x, left), (y, right)):
        for size, axis in zip(operand.shape, axes, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise Unsupported(f"axis {axis} of length {size} and {sizes[axis]}")

    def arranged(operand: Operand, axes: str, *groups: Sequence[str]) -> Operand:
        """With its axes in an order, each group of them as one; of length 1 where it has none of them."""
        moved = operand.permute([axes.index(axis) for group in groups for axis in group if axis in axes])
        return moved.reshape([prod(sizes[axis] for axis in group if axis in axes) for group in groups])

    both = [axis for axis in left if axis in right]
    batch, inner = [axis for axis in both if axis in output], [axis for axis in both if axis not in output]
    rows, columns = [axis for axis in left if axis not in both], [axis for axis in right if axis not in both]
    if not inner:
        return multiply(arranged(x, left, *output), arranged(y, right, *output))
    if prod(sizes[axis] for axis in batch) == 1:
        product = matmul(arranged(x, left, [*batch, *rows], inner), arranged(y, right, [*batch, *inner], columns))
    else:
        product = matmul(arranged(x, left, batch, rows, inner), arranged(y, right, batch, inner, columns))
    order = [*batch, *rows, *columns]
    return product.reshape([sizes[axis] for axis in order]).permute([order.index(axis) for axis in output])


def _axes(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The axes of each operand and of the output, a letter or digit each."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != len(ranks):
        raise Unsupported(f"the equation {equation} for {len(ranks)} operands")
    rests = [rank - len(word.replace("...", "")) for word, rank in zip(words, ranks, strict=True)]
    widest = max((rest for word, rest in zip(words, rests, strict=True) if "..." in word), default=0)
    if widest > len(REST) or any(rest != 0 and "..." not in word for word, rest in zip(words, rests, strict=True)):
        raise Unsupported(f"the equation {equation} for operands of {list(ranks)} axes")
    inputs = [word.replace("...", REST[widest - rest : widest]) for word, rest in zip(words, rests, strict=True)]
    if not arrow:  # what appears once, in the order of the alphabet
        once = sorted(axis for axis in set("".join(inputs)) - set(REST) if "".join(inputs).count(axis) == 1)
        return inputs, REST[:widest] + "".join(once)
    return inputs, output.replace("...", REST[:widest])
