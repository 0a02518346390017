"""ONNX's operators: what each makes of enclosed values, and a model as a list of such steps.

A rule is given a step whose inputs are constants, or values of which only the shape counts, and returns what is to be
done with the values whenever there are some. An attribute or an input that no rule asked for makes the model unknown.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from shakeproof.checker import enclosure
from shakeproof.checker.enclosure import Stretch, Tube, added, affine, bent, clipping, placing, scaled, up
from shakeproof.checker.spectral import convolution_norms
from shakeproof.checker.wire import FLOATS, Array, Model, Operation, Unknown, require

OPSETS = range(7, 29)  # before, broadcasting was another; after, nobody knows yet
COLUMNS = 2**18  # entries of the patches that a convolution multiplies at once
# Attributes that do not change the result (`allowzero`: of a value that has entries, no size can be 0).
IGNORED = {"allowzero", "momentum", "ratio", "round_mode", "saturate", "seed", "storage_order"}
WHOLE = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide}
Apply = Callable[..., Any]  # values in; a value, or a list of them, out


class Step:
    """An operation with its inputs, which remembers what was not asked for."""

    def __init__(self, operation: Operation, known: Mapping[str, Any], opset: int) -> None:
        self.kind, names, self.outputs, self.attributes = operation
        require(known.keys() >= set(names), f"{self.kind} of what no rule makes", Unknown)
        self.inputs, self.opset = [known[name] for name in names], opset
        self.values = [name for name in names if isinstance(known[name], Tube)]
        self.shape: tuple[int, ...] = known[self.values[0]].shape if self.values else ()
        places = {i for i, given in enumerate(self.inputs) if given is not None}
        places -= {names.index(name) for name in self.values[:1]}  # the value that a rule is about
        self.unread: set[Any] = places | (self.attributes.keys() - IGNORED)

    def attribute(self, name: str, default: Any = None) -> Any:
        self.unread.discard(name)
        return self.attributes.get(name, default)

    def constant(self, place: int, optional: bool = False) -> Any:
        self.unread.discard(place)
        given = self.inputs[place] if place < len(self.inputs) else None
        fits = isinstance(given, np.ndarray) or (given is None and optional)
        require(fits, f"{self.kind} with an input {place} that is missing, or depends on the image", Unknown)
        return given

    def either(self, name: str, place: int) -> Any:
        """What older versions of ONNX give as an attribute and newer ones as an input: a number or a list, or None."""
        older, given = self.attribute(name), self.constant(place, optional=True)
        return older if given is None else given.tolist()


# -- entries that move: numpy's own functions, on constants or on the numbers of a value's entries ---------------------


def _slice(step: Step, x: Array) -> Array:
    starts, ends, axes, steps = (step.either(n, i + 1) for i, n in enumerate(("starts", "ends", "axes", "steps")))
    cuts = [slice(None)] * x.ndim
    for axis, *cut in zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=True):
        cuts[axis] = slice(*cut)  # ONNX counts beyond the ends as Python does
    return x[tuple(cuts)]


def _split(step: Step, x: Array) -> list[Array]:
    axis, outputs = step.attribute("axis", 0), len(step.outputs)
    sizes = step.either("split", 1) or [x.shape[axis] // outputs] * outputs
    fits = len(sizes) == outputs == step.attribute("num_outputs", outputs) and sum(sizes) == x.shape[axis]
    require(fits and min(sizes) >= 0, "Split into other parts than it has outputs, or unequal ones", Unknown)
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _pad(step: Step, x: Array) -> Array:
    """Entries of -1 stand for the value that is put around."""
    pads, mode = step.either("pads", 1), step.attribute("mode", "constant")
    fits = mode == "constant" and len(pads) == 2 * x.ndim and 0 <= min(pads) <= max(pads) <= 1000
    require(fits, f"Pad with mode {mode}, or that crops, or with axes, or very wide", Unknown)
    return np.pad(x, list(zip(pads[: x.ndim], pads[x.ndim :], strict=True)), constant_values=-1)


MOVES: Mapping[str, Callable[[Step, Array], Any]] = {
    "Dropout": lambda step, x: x,
    "Expand": lambda step, x: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(step.constant(1)))),
    "Flatten": lambda step, x: x.reshape(math.prod(x.shape[: step.attribute("axis", 1)]), -1),
    "Gather": lambda step, x: np.take(x, step.constant(1), step.attribute("axis", 0)),
    "Identity": lambda step, x: x,
    "Pad": _pad,
    "Reshape": lambda step, x: x.reshape([size or x.shape[i] for i, size in enumerate(step.constant(1).tolist())]),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": lambda step, x: np.squeeze(x, tuple(step.either("axes", 1))),
    "Transpose": lambda step, x: x.transpose(step.attribute("perm")),
    "Unsqueeze": lambda step, x: np.expand_dims(x, tuple(step.either("axes", 1))),
}


def _moved(step: Step) -> Apply:
    made = MOVES[step.kind](step, np.arange(math.prod(step.shape)).reshape(step.shape))
    fill = (step.either("value", 2) or 0.0) if step.kind == "Pad" else 0.0
    require(math.isfinite(fill), "Pad with infinite values", Unknown)
    parts = [placing(places, step.shape, fill) for places in (made if isinstance(made, list) else [made])]
    return lambda x: [part(x) for part in parts]


def _widening(shape: tuple[int, ...], wide: tuple[int, ...]) -> Callable[[Tube], Tube]:
    """Repeats a value to a shape that it is broadcast to."""
    return placing(np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), wide), shape)


# -- constants: moved, or arithmetic of whole numbers, both exact ------------------------------------------------------


def _cast(step: Step) -> Any:
    given, kind = step.constant(0), {1: "f4", 11: "f8", 6: "i4", 7: "i8", 9: "?"}[step.attribute("to")]
    require((given.astype(kind) == given).all(), "a cast that rounds a constant", Unknown)
    return given.astype({"f": np.float64, "i": np.int64, "?": np.bool_}[kind[0]])


def _whole(step: Step) -> Any:
    """Arithmetic of shapes. Division, which ONNX rounds towards 0, is of numbers that are not negative."""
    first, second = step.constant(0), step.constant(1)
    small = all(a.dtype == np.int64 and (np.abs(a) < 2**31).all() for a in (first, second))
    exact = small and (step.kind != "Div" or ((first >= 0).all() and (second > 0).all()))
    require(exact, f"{step.kind} of constants that are not whole numbers, which might have to be rounded", Unknown)
    return WHOLE[step.kind](first, second)


def _shape(step: Step) -> Any:
    step.unread.discard(0)  # a constant, or a value
    return np.array(step.inputs[0].shape[step.attribute("start", 0) : step.attribute("end")], dtype=np.int64)


CONSTANTS: Mapping[str, Callable[[Step], Any]] = {
    **dict.fromkeys(WHOLE, _whole),
    **dict.fromkeys(MOVES.keys() - {"Pad"}, lambda step: MOVES[step.kind](step, step.constant(0))),
    "Cast": _cast,
    "Concat": lambda step: np.concatenate([step.constant(i) for i in range(len(step.inputs))], step.attribute("axis")),
    "Constant": lambda step: step.attribute(*step.attributes),
    "ConstantOfShape": lambda step: np.broadcast_to(step.attribute("value", np.zeros(1)), step.constant(0).tolist()),
    "Neg": lambda step: -step.constant(0),
    "Shape": _shape,
}


# -- entry by entry ----------------------------------------------------------------------------------------------------


def _concat(step: Step) -> Apply:
    axis = range(len(step.shape))[step.attribute("axis")]
    step.unread -= {i for i, given in enumerate(step.inputs) if isinstance(given, Tube)}

    def join(*tubes: Tube) -> Tube:
        bound = up(np.sqrt(sum(tube.norm**2 for tube in tubes)) + 2.0**-500, len(tubes))
        lines = np.concatenate([tube.lines for tube in tubes], axis + 2)
        radius = np.concatenate([tube.radius for tube in tubes], axis + 1)
        return Tube(lines, radius, bound, tubes[0].float32, max(tube.fused for tube in tubes))

    return join


def _sum(step: Step, *signs: int) -> Apply:
    """Sums and differences of values and constants."""
    shape = np.broadcast_shapes(*(given.shape for given in step.inputs))
    signed = list(zip(step.inputs, signs or (1,) * len(step.inputs), strict=True))
    moves = [(_widening(given.shape, shape), sign) for given, sign in signed if isinstance(given, Tube)]
    constants = [sign * given for given, sign in signed if not isinstance(given, Tube)]
    step.unread -= set(range(len(step.inputs)))

    def total(*tubes: Tube) -> Tube:
        wide = [(widen(x), sign) for x, (widen, sign) in zip(tubes, moves, strict=True)]
        made = reduce(added, (x if sign > 0 else replace(x, lines=-x.lines) for x, sign in wide))
        return reduce(lambda x, b: scaled(x, np.ones(()), 1, b, np.abs(b)), constants, made)

    return total


def _scaled(step: Step, factor: Array, terms: int, offset: Any = 0.0, offset_size: Any = 0.0) -> Apply:
    widen = _widening(step.shape, np.broadcast_shapes(step.shape, factor.shape))
    return lambda x: scaled(widen(x), factor, terms, offset, offset_size)


def _divided(step: Step) -> Apply:
    """By products with reciprocals: rounded once more, for which `unit` has room."""
    normal = np.abs(np.log2(np.abs(step.constant(1)))) < 1000
    require(normal.all(), "Div by 0, or by numbers whose inverse is not a normal float", Unknown)
    return _scaled(step, np.asarray(1 / step.constant(1)), 2)


def _batch_norm(step: Step, dimensions: int) -> list[Array]:
    """(x - mean) / sqrt(variance + epsilon) * scale + offset as factor and offset, and what the offset is made of.

    The factor is made by three roundings, so it is off by at most 4 u; that is left to the terms of what follows.
    """
    scale, offset, mean, variance = (step.constant(i).reshape(-1, *(1,) * dimensions) for i in range(1, 5))
    spread = variance + float(step.attribute("epsilon", np.float32(1e-5)))
    trained = not step.attribute("training_mode", 0) and step.attribute("spatial", 1) and len(step.outputs) == 1
    require(trained and (spread > 0).all(), "BatchNormalization as in training, or of a variance of 0", Unknown)
    factor = scale / np.sqrt(spread)
    return [factor, offset - mean * factor, np.abs(offset) + np.abs(mean * factor)]


def _normalised(step: Step) -> Apply:
    factor, offset, size = _batch_norm(step, len(step.shape) - 2)
    return _scaled(step, factor, 12, offset, size)


def _cast_value(step: Step) -> Apply:
    require(step.attribute("to") in FLOATS, "Cast of values to integers or 16 bits, which rounds them", Unknown)
    return _scaled(step, np.ones(()), 1)


def _rectified(below: Array | float) -> Apply:
    """`below` times x where x is negative, x itself elsewhere."""
    return lambda x: bent(x, [Stretch(-math.inf, 0.0, below), Stretch(0.0, math.inf, 1.0)])


def _clip(step: Step) -> Apply:
    low, high = step.either("min", 1), step.either("max", 2)
    pieces = clipping(-math.inf if low is None else low, math.inf if high is None else high)
    return lambda x: bent(x, pieces)


def _hard_sigmoid(step: Step) -> Apply:
    alpha, beta = (float(step.attribute(name, np.float32(usual))) for name, usual in (("alpha", 0.2), ("beta", 0.5)))
    return lambda x: bent(scaled(x, np.array(alpha), 2, beta, abs(beta)), clipping(0.0, 1.0))


# -- sums over entries -------------------------------------------------------------------------------------------------


def _reduced(step: Step, mean: bool, over: list[int] | None = None) -> Apply:
    axes = step.either("axes", 1) or range(len(step.shape)) if over is None else over
    require(not step.attribute("noop_with_empty_axes", 0), f"{step.kind} with noop_with_empty_axes", Unknown)
    chosen = sorted({range(len(step.shape))[axis] for axis in axes})
    keep, count = bool(step.attribute("keepdims", 1)), math.prod(step.shape[axis] for axis in chosen)
    sigma = (1 / math.sqrt(count) if mean else math.sqrt(count)) * (1 + 2.0**-45)  # one row of equal entries each

    def linear(array: Array, absolute: bool) -> Array:
        return np.asarray(array.sum(tuple(axis + 2 for axis in chosen), keepdims=keep) / (count if mean else 1))

    return lambda x: affine(x, linear, count + 1, (sigma, sigma))


def _product(step: Step, weight: Array, bias: Any = 0, extra: int = 0) -> Apply:
    """x @ weight^T + bias: a convolution of pictures without sides."""
    plain = weight.ndim == 2 <= len(step.shape)
    require(plain, f"{step.kind} of shapes {list(step.shape)} and {list(weight.shape)}", Unknown)
    return _convolution(step, weight[None], np.zeros(1, int), bias, np.abs(bias), extra)


def _matmul(step: Step) -> Apply:
    if isinstance(step.inputs[0], Tube):
        return _product(step, step.constant(1).T)
    apply = _product(step, step.constant(0))  # W x is (x^T W^T)^T
    return lambda x: apply(x.each(lambda a: a.swapaxes(-1, -2))).each(lambda a: a.swapaxes(-1, -2))


def _gemm(step: Step) -> Apply:
    weight = step.constant(1) if step.attribute("transB", 0) else step.constant(1).T
    alpha, beta, bias = step.attribute("alpha", 1.0), step.attribute("beta", 1.0), step.constant(2, optional=True)
    require(not step.attribute("transA", 0), "Gemm with transA", Unknown)
    return _product(step, alpha * weight, 0 if bias is None else beta * bias, extra=2)


def _windows(step: Step, kernel: list[int]) -> Array:
    """The numbers of the pixels in each window, -1 for padding: (*count, taps)."""
    sides, auto = step.shape[2:], step.attribute("auto_pad", "NOTSET")
    strides, dilations = (step.attribute(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    pads, ceil = step.attribute("pads", [0] * 2 * len(kernel)), step.attribute("ceil_mode", 0)
    plain = auto == "NOTSET" or (auto in ("VALID", "SAME_UPPER") and not any(pads) and max(dilations) == 1)
    require(plain, f"{step.kind} with auto_pad {auto}, or with that and pads or dilations", Unknown)
    widths, reaches, cuts, halves = [], [], [], (pads[: len(kernel)], pads[len(kernel) :])
    for n, k, s, d, first, last in zip(sides, kernel, strides, dilations, *halves, strict=True):
        fits = 0 < min(k, s, d, first + 1, last + 1) <= max(k, first, last) <= 1000 and (auto != "SAME_UPPER" or s <= k)
        require(fits, f"{step.kind} with windows of size {k}, stride {s}, dilation {d}, pads {first}, {last}", Unknown)
        if auto == "SAME_UPPER":
            short = max(0, (-(-n // s) - 1) * s + k - n)
            first, last = short // 2, short - short // 2
        reaches.append(d * (k - 1) + 1)
        widths.append((first, last + (s - 1 if ceil else 0)))  # so that the last window may be partial,
        cuts.append(slice(None, n + first if ceil else None, s))  # but not start beyond the picture
    padded = np.pad(np.arange(math.prod(sides)).reshape(sides), widths, constant_values=-1)
    windows = sliding_window_view(padded, reaches)[*cuts, *(slice(None, None, d) for d in dilations)]
    return windows.reshape(*windows.shape[: len(kernel)], -1)


def _patches(pictures: Array, places: Array) -> Array:
    """(pictures, channels, *sides) as (pictures, *places.shape, channels): the pixels at places, zeros for -1."""
    pixels = np.moveaxis(pictures, 1, -1).reshape(len(pictures), -1, pictures.shape[1])
    with_zeros = np.concatenate([pixels, np.zeros_like(pixels[:, :1])], axis=1)  # as the last pixel, which -1 is
    return np.take(with_zeros, places, axis=1)


def _max_pool(step: Step, kernel: list[int]) -> Apply:
    places = _windows(step, kernel)
    overlap = int(np.bincount(places[places >= 0]).max())

    def taps(array: Array) -> Array:
        patches = _patches(array.reshape(-1, *step.shape[1:]), places)
        return patches.reshape(*array.shape[: -len(kernel) - 1], *patches.shape[1:])

    def pool(x: Tube) -> Tube:
        lines = taps(x.lines)
        lines[0][..., places < 0, :] = -np.inf  # padding is nobody's rival
        made = enclosure.highest(x, lines, taps(x.radius), overlap)
        return made.each(lambda array: np.moveaxis(array, -1, -1 - len(kernel)))

    return pool


def _average_pool(step: Step) -> Apply:
    """A convolution of each channel with equal weights, corrected where windows hold padding that does not count."""
    kernel, counted = step.attribute("kernel_shape"), step.attribute("count_include_pad", 0)
    places = _windows(step, kernel)
    real, taps = (places >= 0).sum(-1), places.shape[-1]
    fits = real.min() == taps or (not step.attribute("ceil_mode", 0) if counted else real.min() > 0)
    require(fits, "AveragePool that counts padding, with partial windows: runtimes differ", Unknown)
    pool = _convolution(step, np.full((step.shape[1], 1, 1, *kernel), 1 / taps), places, extra=2)
    return pool if counted or real.min() == taps else lambda x: scaled(pool(x), taps / real, 2)


def _conv(step: Step, norm: Step | None = None) -> Apply:
    """With the batch norm behind it, if there is one: as runtimes do, so that one norm speaks for both."""
    weight, group, bias = step.constant(1), step.attribute("group", 1), step.constant(2, optional=True)
    outputs, depth, *kernel = weight.shape
    fits = outputs % group == 0 and step.attribute("kernel_shape", kernel) == kernel
    require(fits, "Conv with groups or a kernel_shape other than its weights'", Unknown)
    bias = np.zeros(1) if bias is None else bias.reshape(-1, *(1,) * len(kernel))
    offset, size = bias, np.abs(bias)
    if norm is not None:
        factor, offset, size = _batch_norm(norm, len(kernel))
        weight, offset, size = weight * factor[:, None], bias * factor + offset, np.abs(bias * factor) + size
    weight = weight.reshape(group, -1, depth, *kernel)
    return _convolution(step, weight, _windows(step, kernel), offset, size, 0 if norm is None else 12)


def _convolution(step: Step, weight: Array, places: Array, bias: Any = 0, bias_size: Any = 0, extra: int = 0) -> Apply:
    """Products of (groups, out, in, *kernel) with patches of (.., channels, *sides); without a kernel, x @ W^T."""
    groups, outputs, depth, *kernel = weight.shape
    sides, count, taps = step.shape[len(step.shape) - len(kernel) :], places.shape[:-1], places.shape[-1]
    strides, dilations = (step.attribute(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    norms = convolution_norms(weight, strides, dilations, sides)
    by_tap = weight.reshape(groups, outputs, depth, taps).transpose(0, 3, 2, 1)  # channels are last in memory
    matrix = np.ascontiguousarray(by_tap).reshape(groups, taps * depth, outputs)
    size, some = np.abs(matrix), max(1, COLUMNS // (places.size * groups * depth))  # pictures at once

    def linear(array: Array, absolute: bool) -> Array:
        fits = array.shape[-1 - len(kernel) :] == (groups * depth, *sides)
        require(fits, f"{step.kind} with weights for other sizes than there are", Unknown)
        pictures = array.reshape(-1, groups * depth, *sides)
        made = np.empty((len(pictures), math.prod(count), groups, outputs))
        for first in range(0, len(pictures), some):
            patches = _patches(pictures[first : first + some], places).reshape(-1, taps, groups, depth)
            columns = patches.transpose(2, 0, 1, 3).reshape(groups, len(patches), -1)
            product = (columns @ (size if absolute else matrix)).transpose(1, 0, 2)
            made[first : first + some] = product.reshape(-1, *made.shape[1:])
        return np.moveaxis(made.reshape(*array.shape[: -1 - len(kernel)], *count, -1), -1, -1 - len(kernel))

    return lambda x: affine(x, linear, taps * depth + extra, norms, bias, bias_size)


def _softmax(step: Step) -> Apply:
    """Over all scores it keeps their order, strictly; so does its logarithm. It is left out."""
    axis = step.attribute("axis", -1 if step.opset >= 13 else 1)
    over = step.shape[axis] if step.opset >= 13 else math.prod(step.shape[axis:])
    require(over == math.prod(step.shape), f"{step.kind} over less than all scores", Unknown)
    return lambda x: x


SOFTMAX = {"Softmax": _softmax, "LogSoftmax": _softmax}
# fmt: off
RULES: Mapping[str, Callable[[Step], Apply]] = {
    **dict.fromkeys(MOVES, _moved), "Add": _sum, "AveragePool": _average_pool, "BatchNormalization": _normalised,
    "Cast": _cast_value, "Clip": _clip, "Concat": _concat, "Conv": _conv, "Div": _divided, "Gemm": _gemm,
    "HardSigmoid": _hard_sigmoid, "MatMul": _matmul, "Sum": _sum,
    "Abs": lambda step: _rectified(-1.0),
    "GlobalAveragePool": lambda step: _reduced(step, mean=True, over=list(range(2, len(step.shape)))),
    "GlobalMaxPool": lambda step: _max_pool(step, list(step.shape[2:])),
    "LeakyRelu": lambda step: _rectified(float(step.attribute("alpha", np.float32(0.01)))),
    "MaxPool": lambda step: _max_pool(step, step.attribute("kernel_shape")),
    "Mul": lambda step: _scaled(step, step.constant(1 if isinstance(step.inputs[0], Tube) else 0), 2),
    "Neg": lambda step: _sum(step, -1),
    "PRelu": lambda step: _rectified(step.constant(1)),
    "ReduceMean": lambda step: _reduced(step, mean=True),
    "ReduceSum": lambda step: _reduced(step, mean=False),
    "Relu": lambda step: _rectified(0.0),
    "Sub": lambda step: _sum(step, 1, -1)}
# fmt: on


class Program:
    """A model, ready to be run on enclosed inputs: every rule was asked what is to be done, and all norms are known."""

    def __init__(self, model: Model) -> None:
        kinds = [operation.kind for operation in model.operations]
        self.model, self.softmax = model, not SOFTMAX.keys().isdisjoint(kinds[-1:])
        unknown = sorted(set(kinds[:-1] if self.softmax else kinds) - RULES.keys() - CONSTANTS.keys())
        unknown += [] if model.opset in OPSETS else [f"version {model.opset} of ONNX's operators"]
        require(not unknown, f"the network uses {', '.join(unknown)}, for which the checker has no rule", Unknown)
        names = [*model.constants, model.input, *(name for made in model.operations for name in made.outputs)]
        unique = "" not in names and len(set(names)) == len(names)
        require(unique, "a name that stands for two values, or for none", Unknown)
        zeros = np.zeros((1, 1, *model.input_shape))
        known: dict[str, Any] = {**model.constants, model.input: Tube(zeros, zeros[0], np.zeros(1), False), "": None}
        reads = Counter([model.output, *(name for operation in model.operations for name in operation.inputs)])
        self.steps: list[tuple[list[str], tuple[str, ...], Apply]] = []
        waiting = model.operations[::-1]
        while waiting:
            operation = waiting.pop()
            step, outputs = Step(operation, known, model.opset), operation.outputs
            if step.values and step.kind != "Shape":
                after = waiting[-1] if waiting else operation
                pair = (step.kind, after.kind) == ("Conv", "BatchNormalization") and after.inputs[:1] == outputs
                if pair and reads[outputs[0]] == 1:
                    norm = Step(waiting.pop(), {**known, outputs[0]: known[step.values[0]]}, model.opset)
                    apply, outputs = _conv(step, norm), norm.outputs
                    step.unread |= norm.unread
                else:
                    apply = {**RULES, **SOFTMAX}[step.kind](step)
                self.steps.append((step.values, outputs, apply))
                made = apply(*(known[name] for name in step.values))
            else:
                require(step.kind in CONSTANTS, f"{step.kind} of constants, which is not computed here", Unknown)
                made = CONSTANTS[step.kind](step)
                made = made if isinstance(made, list) else np.asarray(made)
            unread = ", ".join(sorted(map(str, step.unread)))
            require(not unread, f"{step.kind} with {unread}, which no rule reads", Unknown)
            known.update(_named(outputs, made))
        require(isinstance(known.get(model.output), Tube), "scores that do not depend on the image", Unknown)
        self.largest = max(math.prod(value.shape) for value in known.values() if isinstance(value, Tube))
        self.last = {name: place for place, (values, *_) in enumerate(self.steps) for name in values}

    def run(self, x: Tube) -> Tube:
        """The class scores."""
        known = {self.model.input: x}
        for place, (values, outputs, apply) in enumerate(self.steps):
            known.update(_named(outputs, apply(*(known[name] for name in values))))
            for name in {name for name in values if self.last[name] == place} - {self.model.output}:
                del known[name]  # so that memory is free again
        return known[self.model.output]


def _named(outputs: tuple[str, ...], made: Any) -> dict[str, Any]:
    return dict(zip(outputs, made if isinstance(made, list) else [made], strict=False))
