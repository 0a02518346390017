"""ONNX's operators: what each makes of enclosed values, and a model that is run on them.

A rule is a Python function whose signature is the operator's: inputs by place, attributes by name, and by either what
older versions of ONNX give as attributes and newer ones as inputs. So Python itself notices an input or an attribute
that no rule reads. Of constants, entries are moved and whole numbers calculated with, both of which is exact; floats
are calculated with in constants.py. Before anything is made, `spend` is told how large it will be.
"""
# ruff: noqa: N802, N803 - operators and attributes have ONNX's names

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import shakeproof.checker.constants as constants
import shakeproof.checker.enclosure as enclosure
from shakeproof.checker.budget import CALL, ELEMENTWISE, Array, Unknown, require, spend
from shakeproof.checker.enclosure import Norms, Tube, affine, placed, rectified, scaled
from shakeproof.checker.spectral import convolution_norms
from shakeproof.checker.wire import FLOATS, TYPES, Model, exact

MOST_AXES = 1000  # in a list of axes, or of the sizes of parts
COLUMNS = 2**18  # entries of the patches that a convolution multiplies at once
LEAK, SLOPE, EPSILON = (float(np.float32(x)) for x in (0.01, 0.2, 1e-5))  # ONNX's defaults are float32 numbers, too
# Attributes that no rule reads, since they do not change the result, or as long as they are these.
IGNORED = {"momentum", "ratio", "saturate", "seed", "storage_order"}
USUAL = {"noop_with_empty_axes": 0, "spatial": 1, "training_mode": 0, "transA": 0}
FLAGS = {"allowzero", "ceil_mode", "count_include_pad", "keepdims", "transB"}  # 0 or 1: of others, runtimes differ
Numbers = Sequence[int] | Array


# -- entries that move: numpy's own functions, on constants or on the numbers of a value's entries ---------------------


def Slice(x: Array, /, starts: Numbers, ends: Numbers, axes: Numbers = (), steps: Numbers = ()) -> Array:
    cuts, starts = [slice(None)] * x.ndim, _listed(starts)
    axes, steps = _listed(axes) or range(len(starts)), _listed(steps) or [1] * len(starts)
    for axis, *cut in zip(axes, starts, _listed(ends), steps, strict=True):
        cuts[axis] = slice(*cut)
    part = x[tuple(cuts)]  # ONNX counts beyond the ends as Python does, but for what is nothing backwards
    require(part.size or min(steps) > 0, "Slice of nothing, backwards", Unknown)
    return part


def Split(x: Array, /, split: Numbers = (), *, num_outputs: int, axis: int = 0) -> list[Array]:
    sizes = _listed(split) or [x.shape[axis] // num_outputs] * num_outputs
    require(min(sizes) >= 0 and sum(sizes) == x.shape[axis], "Split into unequal parts, or others than all", Unknown)
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def Pad(x: Array, /, pads: Numbers, value: Any = 0, *, mode: str = "constant") -> Array:
    fits = mode == "constant" and not value and len(pads) == 2 * x.ndim and 0 <= min(pads) <= max(pads) <= 1000
    require(fits, "Pad with anything but zeros, or that crops, or with axes, or very wide", Unknown)
    widths = [(int(first), int(last)) for first, last in zip(pads[: x.ndim], pads[x.ndim :], strict=True)]
    _room(n + first + last for n, (first, last) in zip(x.shape, widths, strict=True))
    return np.pad(x, widths)


def Expand(x: Array, shape: Array, /) -> Array:
    wide = np.broadcast_shapes(x.shape, tuple(_listed(shape)))
    _room(wide)
    return np.broadcast_to(x, wide)


def Gather(x: Array, indices: Array, /, *, axis: int = 0) -> Array:
    _room([*np.delete(x.shape, axis).tolist(), indices.size])
    return np.take(x, indices, axis)


def Reshape(x: Array, shape: Array, /, *, allowzero: int = 0) -> Array:
    """A size of 0 is x's own, or means 0 itself if that is said."""
    sizes = [size or (0 if allowzero else x.shape[i]) for i, size in enumerate(_listed(shape))]
    require(min(sizes, default=0) >= -1, f"Reshape to {sizes}", Unknown)
    return x.reshape(sizes)


def _room(sizes: Iterable[int]) -> None:
    entries = math.prod(sizes)
    spend(ELEMENTWISE * entries, entries)


def _listed(numbers: Numbers) -> list[int]:
    """Axes or sizes, of which there are few."""
    require(len(numbers) <= MOST_AXES, f"a list of {len(numbers)} axes or sizes", Unknown)
    return [int(number) for number in numbers]


MOVES: Mapping[str, Callable[..., Any]] = {
    "Dropout": lambda x, /: x,
    "Expand": Expand,
    "Flatten": lambda x, /, *, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Gather": Gather,
    "Identity": lambda x, /: x,
    "Pad": Pad,
    "Reshape": Reshape,
    "Slice": Slice,
    "Split": Split,
    "Squeeze": lambda x, /, axes: np.squeeze(x, tuple(_listed(axes))),
    "Transpose": lambda x, /, *, perm=None: x.transpose(perm),
    "Unsqueeze": lambda x, /, axes: np.expand_dims(x, tuple(_listed(axes))),
}


def _moved(move: Callable[..., Any], x: Tube | Array, *operands: Any, **options: Any) -> Any:
    """A value's entries are numbered from 1: padding puts a 0."""
    if not isinstance(x, Tube):
        return move(x, *operands, **options)
    result = move(np.arange(1, math.prod(x.shape) + 1).reshape(x.shape), *operands, **options)
    return [placed(x, places - 1) for places in result] if isinstance(result, list) else placed(x, result - 1)


# -- entry by entry ----------------------------------------------------------------------------------------------------


def _whole(rule: Callable[..., Any], *operands: Any) -> Array:
    """Arithmetic on whole numbers of one width, whose result has that width too."""
    _room(np.broadcast_shapes(*(array.shape for array in operands)))
    (kind, *others), wide = {array.dtype for array in operands}, [array.astype(np.int64) for array in operands]
    small = kind.kind == "i" and not others and all(((array > -(2**31)) & (array < 2**31)).all() for array in wide)
    require(small, "calculations with constants that are not whole numbers, and might have to be rounded", Unknown)
    result = np.asarray(rule(*wide))
    require((result == result.astype(kind)).all(), f"whole numbers that do not fit into {kind}", Unknown)
    return result.astype(kind)


def _sum(x: Any, y: Any, sign: int) -> Any:
    if isinstance(x, Tube) and isinstance(y, Tube):
        return enclosure.added(x, enclosure.negated(y) if sign < 0 else y)
    if isinstance(y, Tube):
        return scaled(y, np.array(sign), 1, x)
    if isinstance(x, Tube):
        return scaled(x, np.ones(()), 1, sign * y)
    return _whole(np.add if sign > 0 else np.subtract, x, y)


def Mul(x: Any, y: Any, /) -> Any:
    value, factor = (x, y) if isinstance(x, Tube) else (y, x)
    require(not isinstance(factor, Tube), "Mul of two values", Unknown)
    return scaled(value, factor, 2) if isinstance(value, Tube) else _whole(np.multiply, x, y)


def Div(x: Any, divisor: Array, /) -> Any:
    """By products with reciprocals: rounded once more, for which `unit` has room. Of whole numbers, rounded down."""
    if not isinstance(x, Tube):
        require((x >= 0).all() and (divisor > 0).all(), "Div of constants that are not positive whole numbers", Unknown)
        return _whole(np.floor_divide, x, divisor)
    normal = np.abs(np.log2(np.abs(divisor))) < 1000
    require(normal.all(), "Div by 0, or by numbers whose inverse is not a normal float", Unknown)
    return scaled(x, np.asarray(1 / divisor), 2)


def BatchNormalization(x: Tube, /, *parameters: Array, epsilon: float = EPSILON) -> Tube:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset. The factor is made by three roundings."""
    scale, offset, mean, variance = (array.reshape(-1, *(1,) * (len(x.shape) - 2)) for array in parameters)
    require((variance + epsilon > 0).all(), "BatchNormalization with a variance of 0", Unknown)
    factor = scale / np.sqrt(variance + epsilon)
    return scaled(x, factor, 12, offset - mean * factor, np.abs(offset) + np.abs(mean * factor))


def Cast(x: Any, /, *, to: int) -> Any:
    if isinstance(x, Tube):
        require(to in FLOATS, "Cast of values to integers or 16 bits, which rounds them", Unknown)
        return scaled(x, np.ones(()), 1)
    result = x.astype(TYPES[to][0])
    require((result == x).all() and (result.astype(x.dtype) == x).all(), "a Cast that rounds a constant", Unknown)
    return exact(result)


def Concat(*parts: Any, axis: int) -> Any:
    values = [isinstance(part, Tube) for part in parts]
    require(all(values) or not any(values), "Concat of values and constants", Unknown)
    _room([sum(math.prod(part.shape) for part in parts)])
    return enclosure.joined(parts, axis) if all(values) else np.concatenate(parts, axis)


def Constant(**attributes: Any) -> Array:
    ((name, value),) = attributes.items()
    kinds = {"value": None, "value_float": np.float64, "value_int": np.int64, "value_ints": np.int64}
    return np.asarray(value, kinds[name])


def ConstantOfShape(shape: Array, /, *, value: Any = 0.0) -> Array:
    _room(_listed(shape))
    return np.broadcast_to(np.reshape(value, ()), _listed(shape))


def Clip(x: Tube, /, min: Any = None, max: Any = None) -> Tube:
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    require(low <= high, f"Clip to [{low}, {high}]", Unknown)
    return enclosure.clipped(x, low, high)


def HardSigmoid(x: Tube, /, *, alpha: float = SLOPE, beta: float = 0.5) -> Tube:
    return enclosure.clipped(scaled(x, np.array(alpha), 2, beta), 0.0, 1.0)


def Softmax(x: Tube, /, *, axis: int = -1) -> Tube:
    """Over all scores it keeps their order, strictly; so does its logarithm. It is left out."""
    fits = len(x.shape) == 2 and x.shape[0] == 1 and axis in (-1, 1)
    require(fits, "Softmax that is not over all scores in one row", Unknown)
    return x


# -- sums over entries -------------------------------------------------------------------------------------------------


def Gemm(x: Tube, weight: Array, bias: Any = 0.0, /, *, norms: Any, transB: int = 0, **factors: float) -> Tube:
    """x @ weight + bias. Its norm is that of a convolution of pictures without sides."""
    matrix = weight.T if transB else weight
    fits = matrix.ndim == 2 and x.shape[-1:] == matrix.shape[:1] and factors.items() <= {"alpha": 1, "beta": 1}.items()
    require(fits, "a product with anything but a matrix of x's size, or with factors", Unknown)

    def linear(array: Array, absolute: bool) -> Array:
        spend(array.size * matrix.shape[1], array.size // len(matrix) * matrix.shape[1])
        rows = array.reshape(-1, len(matrix)) @ (np.abs(matrix) if absolute else matrix)
        return rows.reshape(*array.shape[:-1], -1)

    return affine(x, linear, len(matrix), norms(matrix.T[None], [], [], []), bias)


def _sums(x: Tube, sums: Callable[[Array], Array], count: Any, share: Any, overlap: int) -> Tube:
    """share * the sum of `count` entries, of which each takes part in at most `overlap` sums.

    ||W||_2^2 <= ||W||_inf ||W||_1, the largest sum of a row times that of a column.
    """
    sigma = math.sqrt(float(np.max(count * share)) * overlap * float(np.max(share))) * (1 + 2.0**-45)
    return affine(x, lambda array, absolute: sums(array) * share, int(np.max(count)) + 2, (sigma, sigma))


def _reduced(x: Tube, axes: Numbers | range, mean: bool, keepdims: int = 1) -> Tube:
    """Over axes, over all if none is named."""
    rank = len(x.shape)
    chosen = tuple({axis % rank - rank for axis in _listed(axes) or range(rank)})
    count = math.prod(x.shape[axis] for axis in chosen)
    return _sums(x, lambda array: array.sum(chosen, keepdims=bool(keepdims)), count, 1 / count if mean else 1.0, 1)


def _windows(
    array: Array, kernel: Numbers, fill: float = 0.0, /, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, **sizes: Any
) -> Array:
    """What the windows of a kernel on pictures (.., *sides) hold: (.., *count, *kernel)."""
    axes = len(kernel)
    usual = {"pads": [0] * 2 * axes, "strides": [1] * axes, "dilations": [1] * axes}
    pads, strides, dilations = (usual | sizes).values()
    plain = auto_pad == "NOTSET" or (auto_pad == "VALID" and not any(pads))
    fits = min(*kernel, *strides, *dilations) > 0 <= min(pads) and max(*kernel, *pads) <= 1000
    require(plain and fits, f"windows of size {kernel} with {auto_pad} padding, {sizes}", Unknown)
    widths, starts, reaches = [(0, 0)] * (array.ndim - axes), list[slice](), list[int]()
    sides = zip(array.shape[-axes:], kernel, strides, dilations, pads[:axes], pads[axes:], strict=True)
    for n, k, s, d, first, last in sides:  # where sizes are rounded up, the last window may be partial,
        widths.append((first, last + (s - 1 if ceil_mode else 0)))
        starts.append(slice(None, n + first if ceil_mode else None, s))  # but not start beyond the picture
        reaches.append(d * (k - 1) + 1)
    _room(n + first + last for n, (first, last) in zip(array.shape, widths, strict=True))
    padded = np.pad(array, widths, constant_values=fill)
    cut: Any = (..., *starts, *(slice(None, None, d) for d in dilations))
    windows = np.asarray(sliding_window_view(padded, reaches, tuple(range(-axes, 0)))[cut])
    spend(ELEMENTWISE // 4 * windows.size, windows.size)  # so far it is a view
    return windows


def Conv(x: Tube, weight: Array, bias: Any = 0.0, /, *, norms: Any, group: int = 1, **options: Any) -> Tube:
    outputs, depth, *kernel = weight.shape
    axes, terms = len(kernel), depth * math.prod(kernel)
    fits = outputs % group == 0 and x.shape[1] == group * depth and options.pop("kernel_shape", kernel) == kernel
    require(fits, "Conv with groups, channels or a kernel_shape other than its weights'", Unknown)
    weights = weight.reshape(group, -1, depth, *kernel)
    inner = ([*range(1, axes + 2)], [1, *range(axes + 2, 2 * axes + 2)])  # channels and kernel, of weights and windows
    step = max(1, COLUMNS // (terms * group * math.prod(x.shape[2:])))  # pictures at once

    def linear(array: Array, absolute: bool) -> Array:
        pictures, matrices, results = array.reshape(-1, *x.shape[1:]), np.abs(weights) if absolute else weights, []
        for first in range(0, len(pictures), step):
            every = _windows(pictures[first : first + step], kernel, **options)
            spend(every.size // group * outputs, every.size // (terms * group) * outputs)
            windows = np.split(every, group, axis=1)
            parts = [np.tensordot(matrix, part, inner) for matrix, part in zip(matrices, windows, strict=True)]
            results.append(np.concatenate(parts).swapaxes(0, 1))  # (pictures, out, *count)
        return np.concatenate(results).reshape(*array.shape[: array.ndim - axes - 1], *results[0].shape[1:])

    strides, dilations = (options.get(name, [1] * axes) for name in ("strides", "dilations"))
    sigma, offset = norms(weights, strides, dilations, x.shape[2:]), np.reshape(bias, (-1, *(1,) * axes))
    return affine(x, linear, terms, sigma, offset)


def ConvTranspose(x: Tube, weight: Array, bias: Any = 0.0, /, *, norms: Any, group: int = 1, **stated: Any) -> Tube:
    """Each pixel adds its kernel to the output: the transpose of the convolution with these weights, so of its norm."""
    (inputs, outputs, *kernel), sides, axes = weight.shape, x.shape[2:], weight.ndim - 2
    ones, zeros, usual = [1] * axes, [0] * axes, {"auto_pad": "NOTSET", "kernel_shape": kernel}
    options = {"strides": ones, "dilations": ones, "output_padding": zeros, "pads": 2 * zeros} | usual | stated
    strides, dilations, more, pads, *others = options.values()
    fits = others == [*usual.values()] and (x.shape[1], len(sides)) == (inputs, axes) and inputs % group == 0
    small = min(*strides, *dilations) > 0 and min(*more, *pads) >= 0 and max(*kernel, *strides) <= 1000
    require(fits and small and max(*dilations, *more, *pads) <= 1000, "ConvTranspose with other options", Unknown)
    reach = [s * (n - 1) + 1 for s, n in zip(strides, sides, strict=True)]
    whole = [r + d * (k - 1) + m for r, d, k, m in zip(reach, dilations, kernel, more, strict=True)]
    cut: Any = (..., *(slice(p, n - q) for p, q, n in zip(pads[:axes], pads[axes:], whole, strict=True)))
    require(all(c.stop - c.start > 0 for c in cut[1:]), "ConvTranspose of which nothing is left", Unknown)
    weights = weight.reshape(group, -1, outputs, *kernel)

    def linear(array: Array, absolute: bool) -> Array:
        parts, matrices = array.reshape(-1, group, inputs // group, *sides), np.abs(weights) if absolute else weights
        spend(array.size * weight[0].size, len(parts) * group * outputs * math.prod(whole))
        total = np.zeros((len(parts), group, outputs, *whole))
        for tap in np.ndindex(*kernel):
            places = (slice(d * t, d * t + r, s) for d, t, r, s in zip(dilations, tap, reach, strides, strict=True))
            at: Any = (..., *places)
            total[at] += np.einsum("gio,ngi...->ngo...", matrices[(..., *tap)], parts)
        cropped: Array = total[cut]
        return cropped.reshape(*array.shape[: -axes - 1], group * outputs, *cropped.shape[3:])

    sigma, offset = norms(weights, strides, dilations, whole), np.reshape(bias, (-1, *(1,) * axes))
    return affine(x, linear, inputs // group * math.prod(kernel), sigma, offset)


def _held(x: Tube, kernel: Numbers, options: Any) -> tuple[Array, int]:
    """How many pixels each window holds, and in how many windows a pixel is at most."""
    numbers = np.arange(1, math.prod(x.shape[2:]) + 1).reshape(x.shape[2:])
    places = _windows(numbers, kernel, **options)
    return (places > 0).sum(tuple(range(-len(kernel), 0))), int(np.bincount(places.ravel())[1:].max())


def MaxPool(x: Tube, /, *, kernel_shape: Numbers, **options: Any) -> Tube:
    def flat(array: Array, fill: float) -> Array:
        windows = _windows(array, kernel_shape, fill, **options)
        spend(ELEMENTWISE * windows.size)
        return windows.reshape(*windows.shape[: -len(kernel_shape)], math.prod(kernel_shape))

    _, overlap = _held(x, kernel_shape, options)
    return enclosure.highest(x, flat(x.lines[0], -math.inf), flat(x.lines[1:], 0.0), flat(x.radius, 0.0), overlap)


def AveragePool(x: Tube, /, *, kernel_shape: Numbers, count_include_pad: int = 0, **options: Any) -> Tube:
    axes, (inside, overlap) = tuple(range(-len(kernel_shape), 0)), _held(x, kernel_shape, options)
    counted = np.full_like(inside, math.prod(kernel_shape)) if count_include_pad else inside
    fits = inside.min() > 0 and ((inside == counted).all() or not options.get("ceil_mode"))
    require(fits, "AveragePool that counts padding, with partial windows: runtimes differ", Unknown)
    return _sums(x, lambda array: _windows(array, kernel_shape, **options).sum(axes), inside, 1 / counted, overlap)


# fmt: off
RULES: Mapping[str, Callable[..., Any]] = {
    **{kind: partial(_moved, move) for kind, move in MOVES.items()},
    **{rule.__name__: rule for rule in (
        AveragePool, BatchNormalization, Cast, Clip, Concat, Constant, ConstantOfShape, Conv, ConvTranspose, Div, Gemm,
        HardSigmoid, MaxPool, Mul, Softmax)},
    "Abs": lambda x, /: rectified(x, -1.0),
    "Add": lambda x, y, /: _sum(x, y, 1),
    "GlobalAveragePool": lambda x, /: _reduced(x, range(2, len(x.shape)), mean=True),
    "GlobalMaxPool": lambda x, /: MaxPool(x, kernel_shape=x.shape[2:]),
    "LeakyRelu": lambda x, /, *, alpha=LEAK: rectified(x, alpha),
    "LogSoftmax": Softmax,
    "MatMul": lambda x, weight, /, *, norms: Gemm(x, weight, norms=norms),
    "Neg": lambda x, /: enclosure.negated(x) if isinstance(x, Tube) else _whole(np.negative, x),
    "PRelu": lambda x, slope, /: rectified(x, np.broadcast_to(slope, x.shape)),
    "ReduceMean": lambda x, /, axes=(), *, keepdims=1: _reduced(x, axes, True, keepdims),
    "ReduceSum": lambda x, /, axes=(), *, keepdims=1: _reduced(x, axes, False, keepdims),
    "Relu": lambda x, /: rectified(x, 0.0),
    "Shape": lambda x, /, *, start=0, end=None: np.array(x.shape[start:end], dtype=np.int64),
    "Sub": lambda x, y, /: _sum(x, y, -1),
    "Sum": lambda x, y, /: _sum(x, y, 1),
}
# fmt: on
ANYWHERE = {"Add", "Concat", "Mul", "Sub", "Sum"}  # where values may be any of the inputs; elsewhere, the first only
WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
# Made of sums, products and comparisons, with weights that the file states: IEEE 754 fixes how float32 rounds these. A
# batch norm's factors are made by the runtime, and a softmax by its own exponential.
IN_FLOAT32 = {
    *MOVES, "Abs", "Add", "AveragePool", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv",
    "ConvTranspose", "Div", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "LeakyRelu", "MatMul",
    "MaxPool", "Mul", "Neg", "PRelu", "ReduceMean", "ReduceSum", "Relu", "Shape", "Sub", "Sum",
}  # fmt: skip
HALVES = {*MOVES, "Cast", "Concat"}  # what may be done with constants of 16 bits: anything else rounds


class Program:
    """A model, to be run on enclosed inputs."""

    def __init__(self, model: Model) -> None:
        kinds = [operation.kind for operation in model.operations]
        unknown = ({*kinds} - RULES.keys()) | ({*kinds[:-1]} & {"Softmax", "LogSoftmax"})
        require(not unknown, f"the network uses {', '.join(sorted(unknown))}, for which there is no rule", Unknown)
        names = [*model.constants, model.input, *(name for operation in model.operations for name in operation.outputs)]
        require("" not in names and len({*names}) == len(names), "a name that stands for two values, or none", Unknown)
        self.model, self.norms, self.largest = model, dict[tuple[int, ...], Norms](), 1
        self._stated = defaultdict[str, list[Any]](list)
        for name, shape in model.stated:
            self._stated[name].append(shape)
        for name, constant in model.constants.items():
            self._compare(name, constant)

    def run(self, x: Tube) -> Tube:
        """The class scores."""
        known: dict[str, Any] = {**self.model.constants, self.model.input: x, "": None}
        reads = Counter(["", self.model.output, *(name for each in self.model.operations for name in each.inputs)])
        held = Counter[str]()  # entries of what was made and is still needed
        for place, operation in enumerate(self.model.operations):
            spend(CALL, held.total())
            results = self._made(place, [known[name] for name in operation.inputs], x.float32)
            fits = len(results) == len(operation.outputs) or operation.kind == "Dropout"
            require(fits, f"{operation.kind} with {len(operation.outputs)} outputs", Unknown)
            self.largest = max(self.largest, *(math.prod(value.shape) for value in results))
            for name, value in zip(operation.outputs, results, strict=False):
                self._compare(name, value)
                known[name], held[name] = (
                    value,
                    value.lines.size + value.radius.size if isinstance(value, Tube) else value.size,
                )
            reads.subtract(operation.inputs)
            for name in [name for name in (*operation.inputs, *operation.outputs) if not reads[name]]:
                known.pop(name, None)  # its memory is free
                held.pop(name, None)
        scores: Tube = known[self.model.output]
        require(isinstance(scores, Tube), "scores that do not depend on the image", Unknown)
        return scores

    def _compare(self, name: str, value: Any) -> None:
        """A runtime may believe the shapes that a file states: they must be right."""
        for shape in self._stated[name]:
            right = len(shape) == len(value.shape) and all(
                a in (None, b) for a, b in zip(shape, value.shape, strict=True)
            )
            require(right, f"the model states the shape {shape} of {name!r}, which is {value.shape}")

    def _made(self, place: int, inputs: list[Any], float32: bool) -> list[Any]:
        """What an operator's rule makes of its inputs, for a claim about real numbers or about float32 too."""
        kind, _, outputs, attributes = self.model.operations[place]
        values = [isinstance(value, Tube) for value in inputs]
        require(kind in ANYWHERE or not any(values[1:]), f"{kind} of a value where a constant must be", Unknown)
        types = {value.dtype.name for value in inputs if isinstance(value, np.ndarray)}
        require("float16" not in types or kind in HALVES, f"{kind} of constants of 16 bits, which rounds", Unknown)
        calculated = types == {"float64"} and kind in constants.RULES and not any(values)
        fixed = kind in IN_FLOAT32 and (kind == "Neg" or not calculated)
        require(fixed or not float32, f"{kind} in float32: no standard says how runtimes round it", Unknown)
        if calculated:
            _room(np.broadcast_shapes(*(value.shape for value in inputs)))
            return [constants.RULES[kind](*inputs)]
        read = {name: value for name, value in attributes.items() if name not in IGNORED}
        read = {name: value for name, value in read.items() if name not in USUAL or USUAL[name] != value}
        read = {"num_outputs": len(outputs)} | read if kind == "Split" else read
        require(
            read.get("num_outputs", len(outputs)) == len(outputs), "Split into other parts than its outputs", Unknown
        )
        require(all(read[name] in (0, 1) for name in FLAGS & read.keys()), f"{kind} with a flag that is none", Unknown)
        read = {"norms": partial(self._norms, place)} | read if kind in WEIGHTED else read
        try:
            result = RULES[kind](*inputs, **read)
        except (TypeError, AttributeError) as error:
            raise Unknown(f"{kind} with inputs or attributes that no rule reads ({error})") from error
        results = result if isinstance(result, list) else [result if isinstance(result, Tube) else np.asarray(result)]
        full = all(math.prod(value.shape) for value in results if isinstance(value, Tube))
        require(full, f"{kind} that makes a value without entries", Unknown)
        return results

    def _norms(self, place: int, *layer: Any) -> Norms:
        """Worked out once for each operator: of a large network they take seconds."""
        key = place, *layer[-1]  # of a model that takes pictures of any size, they depend on it
        if key not in self.norms:
            self.norms[key] = convolution_norms(*layer)
        return self.norms[key]
