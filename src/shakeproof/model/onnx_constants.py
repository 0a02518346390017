"""What an ONNX file computes from constants alone: exactly, or not at all.

A proof is about the network as a function of real numbers, so its constants must be the numbers that the file states.

- Entries that are moved, chosen or compared, and whole numbers, are exact in their own type. Overflow is refused.
- A cast rounds a number of the file as its type says. Of a computed number it changes nothing, as of computed values.
- A sum, product, quotient or root of floats must be a float64 number. That is checked without rounding.
- A product, quotient or root that is not one keeps a count of its roundings. It may then only be a factor or a divisor.
- Everything else is refused.

The checker has the same rule, but keeps no rounded constants (checker/constants.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from shakeproof.model.onnx_model import FLOATS, LARGEST_VALUE, SIXTEEN_BITS, Array, Unsupported, first_line

# Reasons that hold this say that somebody else has to compute constants.
ROUNDED = "float64 would have to round a constant that the file computes"
# Constants with so few entries may be the sizes of others.
FEW_ENTRIES = 64
# Products and quotients of numbers between these neither overflow nor lose digits by underflow.
NORMAL = 2.0**-500, 2.0**500
NOTHING_BACKWARDS = "a slice of nothing, backwards"
# Entries stay what they are, but for their sign.
MOVES = frozenset(
    (
        *("Abs", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather"),
        *("GatherElements", "GatherND", "Identity", "Neg", "NonZero", "OneHot", "Pad", "Reshape", "ScatterElements"),
        *("ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu"),
        *("Unsqueeze", "Where"),
    )
)
# The result depends on which number is larger, or on a number's whole part.
CHOICES = frozenset(
    (
        *("And", "Ceil", "Clip", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less"),
        *("LessOrEqual", "Max", "Min", "Not", "Or", "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "Xor"),
    )
)


@dataclass(frozen=True, eq=False)
class Constant:
    """A constant of the file, or one that the file computes; floats in float64.

    `roundings` counts how often a float was rounded on its way from the file, or is None if it is one of the file's.
    `is_half`: it is stated in 16 bits.
    """

    array: Array
    roundings: int | None = None
    is_half: bool = False


def folded(node: onnx.NodeProto, inputs: Sequence[Constant | None], opset: int) -> list[Constant]:
    """What a node gives that reads constants only.

    Weights of 16 bits may be moved and widened, all of which is exact. Whatever is computed from them rounds.
    """
    constants = [constant for constant in inputs if constant is not None]
    is_half = node.op_type != "Cast" and any(constant.is_half for constant in constants)
    if is_half and node.op_type not in MOVES:
        raise Unsupported("computed in 16 bits, which rounds; export the network in float32")
    if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
        raise Unsupported("a graph within the graph")
    if node.op_type == "Constant" and len(node.attribute) != 1:
        raise Unsupported(f"{len(node.attribute)} values")
    arrays = [None if constant is None else constant.array for constant in inputs]
    _check_size(node, arrays, opset)
    results, roundings = _evaluated(node, arrays, [constant.roundings for constant in constants], opset)
    return [
        Constant(widened(array), roundings, is_half or array.dtype.name in ("float16", "bfloat16")) for array in results
    ]


def _evaluated(
    node: onnx.NodeProto, inputs: Sequence[Array | None], roundings: Sequence[int | None], opset: int
) -> tuple[list[Array], int | None]:
    """What a node makes of constants, and the `roundings` of that."""
    kind, arrays = node.op_type, [array for array in inputs if array is not None]
    computed = max((count for count in roundings if count is not None), default=None)
    if kind == "Cast":
        return _cast(arrays[0], _attribute(node, "to", TensorProto.UNDEFINED), computed)
    is_whole = bool(arrays) and all(array.dtype.kind in "iu" for array in arrays)
    if is_whole and kind in WHOLE:
        return [_in_own_type(WHOLE[kind](node, *(x.astype(object) for x in arrays)), arrays[0].dtype)], None
    if is_whole and kind in ("ReduceProd", "ReduceSum"):
        return _reduced(node, inputs, opset), None
    if is_computed(node, arrays):
        with np.errstate(all="ignore"):
            result, is_exact = ARITHMETIC[kind](node, inputs, opset)
        return [result], _counted(kind, result, is_exact, [count or 0 for count in roundings], arrays)
    if kind == "Range" and is_whole:
        return reference(node, inputs, opset), None
    if kind not in MOVES | CHOICES or _attribute(node, "reduction", b"none") != b"none":
        raise Unsupported(ROUNDED)
    if computed and kind in CHOICES:
        raise Unsupported(f"reads a rounded constant: {ROUNDED}")
    moved = RULES.get(kind, reference)(node, inputs, opset)
    return moved, computed if any(array.dtype.kind == "f" for array in moved) else None


def is_computed(node: onnx.NodeProto, arrays: Sequence[Array]) -> bool:
    """Whether runtimes calculate with floats here, each in its own precision."""
    return node.op_type in ARITHMETIC and any(array.dtype.kind == "f" for array in arrays)


def _counted(kind: str, result: Array, is_exact: Array, roundings: Sequence[int], arrays: Sequence[Array]) -> int:
    """How often the result was rounded; an error where a relative count says nothing."""
    if bool(np.isnan(result).any()):
        raise Unsupported("makes a constant that is NaN")
    if not any(roundings) and bool(is_exact.all()):
        return 0
    sizes = [np.abs(array[array != 0]) for array in (result, *arrays) if array.dtype.kind == "f"]
    if kind not in RELATIVE or not all(bool(((x > NORMAL[0]) & (x < NORMAL[1])).all()) for x in sizes):
        raise Unsupported(ROUNDED)
    return sum(roundings) + 1


# -- floats: the result, and where it is exact ------------------------------------------------------------------------


Exactly = tuple[Array, Array]


def added(x: Array, y: Array) -> Exactly:
    """Knuth's TwoSum gives the error of a sum without rounding; beside an infinite number, the sum is infinite."""
    total = x + y
    part = total - x
    error = (x - (total - part)) + (y - part)
    return total, (error == 0) | ~(np.isfinite(x) & np.isfinite(y))


def summed(x: Array, axes: Sequence[int]) -> Exactly:
    """A sum over some axes, entry by entry."""
    rows = np.moveaxis(x, axes, range(len(axes)))
    rows = rows.reshape(-1, *rows.shape[len(axes) :])
    total, is_exact = np.zeros(rows.shape[1:]), np.ones(rows.shape[1:], bool)
    for row in rows:
        total, exact = added(total, row)
        is_exact = is_exact & exact
    return total, is_exact


def multiplied(x: Array, y: Array) -> Exactly:
    """A product is exact if those of the operands' odd parts fits into 53 bits, and its exponent is in range."""
    product = np.asarray(x * y)
    fits = _odd(x) * _odd(y) < 2.0**53
    in_range = (np.abs(product) >= 2.0**-1022) & np.isfinite(product)
    return product, (fits & in_range) | (x == 0) | (y == 0) | ~(np.isfinite(x) & np.isfinite(y))


def divided(x: Array, y: Array) -> Exactly:
    """A quotient is exact if its product with the divisor is exact, and is the dividend."""
    if not (bool(np.isfinite(x).all()) and bool((np.isfinite(y) & (y != 0)).all())):
        raise Unsupported("a division by zero, or of infinite numbers")
    quotient = np.asarray(x / y)
    back, is_exact = multiplied(quotient, y)
    return quotient, is_exact & (back == x) & np.isfinite(quotient)


def root(x: Array) -> Exactly:
    result = np.sqrt(x)
    back, is_exact = multiplied(result, result)
    return result, is_exact & (back == x)


def power(x: Array, exponents: Array) -> Exactly:
    """By the exponents that are one operation."""
    x = np.broadcast_to(x, np.broadcast_shapes(x.shape, exponents.shape))
    match [float(exponent) for exponent in np.unique(exponents)]:
        case [-1.0]:
            return divided(np.ones_like(x), x)
        case [0.5]:
            return root(x)
        case [1.0]:
            return np.array(x), np.ones(x.shape, bool)
        case [2.0]:
            return multiplied(x, x)
    raise Unsupported(ROUNDED)


def _odd(x: Array) -> Array:
    """The absolute value less its factors of two: an odd number, or 0."""
    whole = np.abs(np.frexp(np.where(np.isfinite(x), x, 0.0))[0] * 2.0**53).astype(np.int64)
    return np.asarray(whole // np.maximum(whole & -whole, 1), np.float64)


def _sum(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Exactly:
    total, is_exact = np.zeros(()), np.ones((), bool)
    for array in inputs:
        total, exact = added(total, _float(array))
        is_exact = is_exact & exact
    return np.asarray(total), is_exact


def _range(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Exactly:
    start, _, step = (_float(array).reshape(()) for array in inputs)
    count = len(reference(node, inputs, opset)[0])
    steps, is_exact = multiplied(np.arange(count, dtype=np.float64), step)
    values, also = added(start, steps)
    return values, is_exact & also


def _dequantised(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Exactly:
    """(x - zero point) * scale, of which the reference makes the two factors as wide as the result."""
    x, scale = inputs[0], _float(inputs[1])
    assert x is not None
    if bool((np.abs(x.astype(np.float64)) > 2.0**24).any()):
        raise Unsupported("whole numbers that float32 would round")
    (levels,) = reference(node, (x, np.ones_like(scale), *inputs[2:]), opset)
    (factors,) = reference(node, (np.ones_like(x), scale), opset)
    return multiplied(levels, factors)


def _float(array: Array | None) -> Array:
    if array is None or array.dtype.kind != "f":
        raise Unsupported("operands of different types, or none")
    return array


def _of(operation: Callable[..., Exactly], count: int) -> Callable[..., Exactly]:
    """A rule for a node with so many operands."""

    def rule(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Exactly:
        if len(inputs) != count:
            raise Unsupported(f"{len(inputs)} operands")
        return operation(*map(_float, inputs))

    return rule


ARITHMETIC: Mapping[str, Callable[[onnx.NodeProto, Sequence[Array | None], int], Exactly]] = {
    "Add": _of(added, 2),
    "DequantizeLinear": _dequantised,
    "Div": _of(divided, 2),
    "Mul": _of(multiplied, 2),
    "Pow": lambda node, inputs, opset: power(_float(inputs[0]), np.asarray(inputs[1], np.float64)),
    "Range": _range,
    "Reciprocal": _of(lambda x: divided(np.ones_like(x), x), 1),
    "Sqrt": _of(root, 1),
    "Sub": _of(lambda x, y: added(x, -y), 2),
    "Sum": _sum,
}
# By (1 + delta_1) ... (1 + delta_n)^-1 ..., each |delta| at most the unit: Higham, lemma 3.1. A root makes it no worse.
RELATIVE = frozenset(("Div", "Mul", "Reciprocal", "Sqrt"))


# -- whole numbers ----------------------------------------------------------------------------------------------------


def _quotient(node: onnx.NodeProto, x: Array, y: Array) -> Array:
    """Rounded towards zero, as ONNX says of whole numbers."""
    if bool((y == 0).any()):
        raise Unsupported("a division by zero")
    size = abs(x) // abs(y)
    return np.where((x < 0) != (y < 0), -size, size)


def _remainder(node: onnx.NodeProto, x: Array, y: Array) -> Array:
    if bool((y == 0).any()) or _attribute(node, "fmod", 0):
        raise Unsupported("a division by zero, or fmod")
    return np.asarray(x % y)


# Of Python's whole numbers, which do not overflow.
WHOLE: Mapping[str, Callable[..., Array]] = {
    "Abs": lambda node, x: abs(x),
    "Add": lambda node, x, y: x + y,
    "Div": _quotient,
    "Mod": _remainder,
    "Mul": lambda node, x, y: x * y,
    "Neg": lambda node, x: -x,
    "Sub": lambda node, x, y: x - y,
}
# All that may be done with constants; other operators are named as not supported.
KNOWN_OF_CONSTANTS = MOVES | CHOICES | ARITHMETIC.keys() | WHOLE.keys() | {"Cast", "ReduceProd", "ReduceSum"}


def _in_own_type(exact: Array, dtype: np.dtype[np.generic]) -> Array:
    """Whole numbers of any size, in a type that holds them."""
    exact, limits = np.asarray(exact, dtype=object), np.iinfo(dtype)  # type: ignore[type-var]
    if exact.size and not limits.min <= exact.min() <= exact.max() <= limits.max:
        raise Unsupported(f"a whole number beyond {dtype}")
    return exact.astype(dtype)


def _reduced(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """A sum or product over axes: nothing overflows in any order if that of the absolute values does not."""
    x = inputs[0]
    assert x is not None
    (size,) = reference(node, (np.abs(x.astype(np.float64)), *inputs[1:]), opset)
    if bool((size > min(2.0**52, float(np.iinfo(x.dtype).max))).any()):
        raise Unsupported(f"a whole number beyond {x.dtype}")
    return [array.astype(x.dtype) for array in reference(node, inputs, opset)]


def _cast(x: Array, to: int, computed: int | None) -> tuple[list[Array], int | None]:
    """To a type of numbers; whole numbers must be within its range, and floats must not be rounded to 16 bits."""
    if computed is not None and x.dtype.kind == "f":
        if to in FLOATS:
            return [x], computed
        if computed or to in SIXTEEN_BITS:
            raise Unsupported(f"a cast of a computed constant: {ROUNDED}")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if x.dtype.kind not in "fiub" or (to not in FLOATS and to not in SIXTEEN_BITS and dtype.kind not in "iub"):
        raise Unsupported("a cast to or from something other than numbers of 16 bits or more")
    if dtype.kind in "iu":
        if not bool(np.isfinite(x).all()):
            raise Unsupported("a cast of infinite numbers to whole ones")
        return [
            _in_own_type(np.array([int(i) for i in x.ravel().tolist()], dtype=object).reshape(x.shape), dtype)
        ], None
    with np.errstate(over="ignore"):
        result = x.astype(dtype)
    if to in SIXTEEN_BITS and not np.array_equal(widened(result), x, equal_nan=x.dtype.kind == "f"):
        raise Unsupported("a cast to 16 bits that rounds; export the network in float32")
    return [result], None


# -- the rest by ONNX's own reference ---------------------------------------------------------------------------------


def reference(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """A node that calculates nothing, by ONNX's own reference implementation."""
    from onnx.reference import ReferenceEvaluator  # most networks have no such node

    arrays = {name: array for name, array in zip(node.input, inputs, strict=False) if array is not None}
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    del alone.input[len(inputs) :]
    infos = {n: onnx.helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in (*arrays, *node.output)}
    graph = onnx.helper.make_graph([alone], "constant", [infos[n] for n in arrays], [infos[n] for n in node.output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(model).run(None, arrays)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        raise Unsupported(f"cannot be computed ({first_line(error)})") from error
    return [np.asarray(array) for array in results]


def _one_hot(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """One of two values in each place. The reference adds their difference to the first, which rounds."""
    indices, depth, values = inputs
    assert values is not None
    (is_hot,) = reference(node, (indices, depth, np.array([0, 1])), opset)
    return [np.where(is_hot == 1, values[1], values[0])]


def _shape(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """The reference counts an end before the first axis from the last one."""
    x = inputs[0]
    assert x is not None
    return [np.array(x.shape[_attribute(node, "start", 0) : _attribute(node, "end", None)], dtype=np.int64)]


def _slice(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """Backwards from before the first entry, the reference takes nothing, and runtimes the first entry."""
    (result,) = reference(node, inputs, opset)
    steps = inputs[4] if len(inputs) > 4 else None
    if not result.size and steps is not None and bool((steps < 0).any()):
        raise Unsupported(NOTHING_BACKWARDS)
    return [result]


# What is not left to the reference, which does it otherwise than ONNX says.
RULES: Mapping[str, Callable[[onnx.NodeProto, Sequence[Array | None], int], list[Array]]] = {
    "OneHot": _one_hot,
    "Shape": _shape,
    "Slice": _slice,
}


def _check_size(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> None:
    """Refuse what a few numbers in a file would make larger than any network needs, before it is made."""
    make_info, arrays = onnx.helper.make_tensor_value_info, dict(zip(node.input, inputs, strict=True))
    infos, sizes = [], []
    for name, array in arrays.items():
        if array is not None:
            infos.append(make_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
            sizes += [numpy_helper.from_array(array, name)] if array.size <= FEW_ENTRIES else []
    outputs = [make_info(name, TensorProto.UNDEFINED, None) for name in node.output]
    graph = onnx.helper.make_graph([node], "sizes", infos, outputs, sizes)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        sized = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise Unsupported(f"malformed ({first_line(error)})") from error
    for output in sized.graph.output:
        entries = prod(dim.dim_value for dim in output.type.tensor_type.shape.dim if dim.HasField("dim_value"))
        if entries > LARGEST_VALUE:
            raise Unsupported(f"a constant of {entries} entries")


def widened(array: Array) -> Array:
    """Floats in float64, whole numbers as they are."""
    return array.astype(np.float64) if array.dtype.kind == "f" or array.dtype.name == "bfloat16" else array


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def stated(tensor: TensorProto) -> Constant:
    """A weight of the file."""
    try:
        array = numpy_helper.to_array(tensor)
        if array.dtype.name.startswith(("float8", "float4")):
            raise ValueError(f"it has numbers of {array.dtype.name}; export the network in float32")
        return Constant(widened(array), is_half=tensor.data_type in SIXTEEN_BITS)
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        why = f"{tensor.data_type} is no type of ONNX's" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"the weight {tensor.name!r} cannot be read: {why}") from error
