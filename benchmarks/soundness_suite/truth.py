"""The truth about a network along a path of images: every linear piece, in integers.

On each piece of z, a value of the network is a + b z. Here a and b are integers times one common unit, a fraction:
weights, pixels and kernels are fractions, so nothing is ever rounded. Before an operator that bends, the pieces are cut
where it does; a cut copies a and b, so numbers grow with the layers but not with the cuts. Before an operator that
jumps, every cut becomes a piece of its own, [c, c]: what holds there need not hold on either side. The ONNX file itself
is read, by rules of this module alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from .paths import ExactPath

Integers = np.ndarray  # of Python's own, dtype object
Thresholds = Callable[[int, int], list[Fraction]]  # those that may matter for values from one whole number to another


@dataclass(frozen=True)
class Pieces:
    """A value of the network on all pieces: (terms[0] + z terms[1]) unit, terms (2, pieces, *shape)."""

    terms: Integers
    unit: Fraction

    @property
    def shape(self) -> tuple[int, ...]:
        return self.terms.shape[2:]

    def reshaped(self, *shape: int) -> Pieces:
        return replace(self, terms=self.terms.reshape(*self.terms.shape[:2], *shape))

    def copied(self, which: np.ndarray) -> Pieces:
        return replace(self, terms=self.terms[:, which])

    def reduced(self) -> Pieces:
        """The same with the smallest integers."""
        common = math.gcd(*self.terms.ravel().tolist()) or 1
        return Pieces(self.terms // common, self.unit * common) if common > 1 else self


@dataclass(frozen=True)
class Constant:
    """A constant tensor of the file: integers times a unit; `given` is what the file holds."""

    integers: Integers
    unit: Fraction
    given: np.ndarray


def constant(array: np.ndarray) -> Constant:
    array = np.asarray(array)
    if array.dtype.kind in "iub":
        return Constant(array.astype(object), Fraction(1), array)
    if not np.isfinite(array).all():
        return Constant(np.zeros(array.shape, object), Fraction(1), array)  # a clip's end; nothing else may be infinite
    mantissa, exponent = np.frexp(array.astype(np.float64))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = int(exponent[whole != 0].min()) if whole.any() else 0
    shifts = np.where(whole != 0, exponent - lowest, 0)
    integers = np.array([int(m) << int(s) for m, s in zip(whole.ravel(), shifts.ravel(), strict=True)], object)
    found = Constant(integers.reshape(array.shape), Fraction(2) ** (lowest - 53), array)
    common = math.gcd(*found.integers.ravel().tolist()) or 1
    return Constant(found.integers // common, found.unit * common, array)


def common_unit(*units: Fraction) -> Fraction:
    """The largest fraction that all are whole multiples of."""
    below = math.lcm(*(unit.denominator for unit in units))
    return Fraction(math.gcd(*(int(unit * below) for unit in units)), below)


class Sweep:
    """A path through a network: pieces [cuts[i], cuts[i + 1]], and every live value on them."""

    def __init__(self, model: onnx.ModelProto, path: ExactPath) -> None:
        below = math.lcm(*(v.denominator for v in (*path.base, *path.slope)))
        terms = np.array([[[int(v * below) for v in part]] for part in (path.base, path.slope)], object)
        self.cuts = [Fraction(0), path.end] if path.end else [Fraction(0), Fraction(0)]
        name = model.graph.input[0].name
        self.values: dict[str, Pieces] = {name: Pieces(terms.reshape(2, 1, 1, *path.shape), Fraction(1, below))}
        self.constants = {w.name: constant(numpy_helper.to_array(w)) for w in model.graph.initializer}
        if path.clip is not None:
            self.values[name] = self.clipped(name, *path.clip)
        last_use = {name: number for number, node in enumerate(model.graph.node) for name in node.input}
        for number, node in enumerate(model.graph.node):
            settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            self.values[node.output[0]] = RULES[node.op_type](self, node.input, settings).reduced()
            self.values = {n: v for n, v in self.values.items() if last_use.get(n, -1) > number or n == node.output[0]}
        (self.scores,) = (self.values[output.name] for output in model.graph.output)
        self.scores = self.scores.reshaped(-1)

    def ends(self, terms: Integers) -> tuple[Integers, Integers]:
        """A value at both ends of every piece, times the positive denominators of these ends."""
        shape = (-1, *(1,) * (terms.ndim - 2))
        above = np.array([z.numerator for z in self.cuts], object).reshape(shape)
        below = np.array([z.denominator for z in self.cuts], object).reshape(shape)
        return terms[0] * below[:-1] + terms[1] * above[:-1], terms[0] * below[1:] + terms[1] * above[1:]

    def cut(self, found: Sequence[set[Fraction]]) -> None:
        """Cut each piece at the places found inside it."""
        if not any(found):
            return
        which = np.repeat(np.arange(len(found)), [len(places) + 1 for places in found])
        cuts = [self.cuts[0]]
        for places, end in zip(found, self.cuts[1:], strict=True):
            cuts += [*sorted(places), end]
        self.cuts = cuts
        self.values = {name: value.copied(which) for name, value in self.values.items()}

    def above(self, name: str, threshold: Fraction) -> tuple[np.ndarray, np.ndarray]:
        """Cut where a value passes a threshold; then, for each piece, where it is not below it, and not above it."""
        value = self.values[name]
        unit = common_unit(value.unit, threshold) if threshold else value.unit

        def lowered() -> Integers:
            terms = self.values[name].terms * int(value.unit / unit)
            return np.stack([terms[0] - int(threshold / unit), terms[1]])

        terms = lowered()
        left, right = self.ends(terms)
        crossing = ((left > 0) & (right < 0) | (left < 0) & (right > 0)).astype(bool)
        found: list[set[Fraction]] = [set() for _ in range(len(left))]
        for piece, *place in np.argwhere(crossing):
            at = (piece, *place)
            found[piece].add(Fraction(-terms[(0, *at)], terms[(1, *at)]))
        self.cut(found)
        left, right = self.ends(lowered())
        return ((left >= 0) & (right >= 0)).astype(bool), ((left <= 0) & (right <= 0)).astype(bool)

    def bent(self, name: str, below: Fraction) -> Pieces:
        """x where it is positive, below x elsewhere."""
        positive, _ = self.above(name, Fraction(0))
        value = self.values[name]
        unit = common_unit(Fraction(1), below) if below else Fraction(1)
        factors = np.where(positive, int(1 / unit), int(below / unit)).astype(object)
        return Pieces(value.terms * factors, value.unit * unit)

    def clipped(self, name: str, low: Fraction | None, high: Fraction | None) -> Pieces:
        for end, side in ((low, 1), (high, 0)):
            if end is not None:
                outside = self.above(name, end)[side]
                value = self.values[name]
                unit = common_unit(value.unit, end) if end else value.unit
                terms = value.terms * int(value.unit / unit)
                flat = np.zeros_like(terms)
                flat[0] = int(end / unit)
                self.values[name] = Pieces(np.where(outside, flat, terms), unit)
        return self.values[name]

    def stepped(self, name: str, thresholds: Thresholds, step: Callable[[Fraction], int]) -> Pieces:
        """A function that is constant between thresholds."""
        ends = [end * self.values[name].unit for end in self._extremes(name)]
        for threshold in thresholds(*map(math.floor, ends)):
            self.above(name, threshold)
        self._isolate()
        value, middles = self.values[name], [(start + end) / 2 for start, end in pairwise(self.cuts)]
        terms = np.zeros_like(value.terms)
        for piece, z in enumerate(middles):
            base, slope = value.terms[:, piece].reshape(2, -1)
            steps = [step((b + s * z) * value.unit) for b, s in zip(base, slope, strict=True)]
            terms[0, piece] = np.array(steps, object).reshape(value.shape)
        return Pieces(terms, Fraction(1))

    def _extremes(self, name: str) -> tuple[Fraction, Fraction]:
        """The least and the largest of a value's entries anywhere, in its unit."""
        terms = self.values[name].terms
        shape = (-1, *(1,) * (terms.ndim - 2))
        starts, ends = (np.array(cuts, object).reshape(shape) for cuts in (self.cuts[:-1], self.cuts[1:]))
        both = [terms[0] + terms[1] * z for z in (starts, ends)]
        return Fraction(min(x.min() for x in both)), Fraction(max(x.max() for x in both))

    def _isolate(self) -> None:
        """Make each cut a piece of its own. Nothing jumps at a cut that is none yet, so either neighbour's terms do."""
        cuts, which = [self.cuts[0]], list[int]()
        for piece, (start, end) in enumerate(pairwise(self.cuts)):
            if start < end and not (which and cuts[-2] == start):
                which.append(piece)
                cuts.append(start)
            which.append(piece)
            cuts.append(end)
        if cuts[-2] < cuts[-1]:
            which.append(which[-1])
            cuts.append(cuts[-1])
        self.cuts = cuts
        self.values = {name: value.copied(np.array(which)) for name, value in self.values.items()}

    def largest(self, name: str, windows: np.ndarray) -> Pieces:
        """The maximum over windows of a flat value's entries, windows (outputs, size) of their places."""
        terms = self.values[name].terms[:, :, windows]
        left, right = self.ends(terms)
        settled = self._winners(left, right).any(-1)
        found: list[set[Fraction]] = [set() for _ in range(len(left))]
        for piece, window in np.argwhere(~settled):
            found[piece] |= envelope(*terms[:, piece, window].tolist(), self.cuts[piece], self.cuts[piece + 1])
        self.cut(found)
        value = self.values[name]
        terms = value.terms[:, :, windows]
        winner = self._winners(*self.ends(terms))
        assert winner.any(-1).all()
        return Pieces(np.take_along_axis(terms, winner.argmax(-1)[None, ..., None], -1)[..., 0], value.unit)

    @staticmethod
    def _winners(left: Integers, right: Integers) -> np.ndarray:
        """Which entries of the last axis are largest at both ends, and so between them."""
        return ((left == left.max(-1, keepdims=True)) & (right == right.max(-1, keepdims=True))).astype(bool)

    def affine(self, value: Pieces, weight: Constant, bias: Constant | None) -> Pieces:
        """Rows (.., inputs) times weight (inputs, outputs), plus a bias that broadcasts."""
        product = Pieces(value.terms @ weight.integers, value.unit * weight.unit)
        return product if bias is None else plus(product, bias)


def plus(value: Pieces, offset: Constant, sign: int = 1) -> Pieces:
    if not offset.integers.any():
        return value
    unit = common_unit(value.unit, offset.unit)
    terms = value.terms * int(value.unit / unit)
    moved = terms[0] + sign * int(offset.unit / unit) * offset.integers
    return Pieces(np.stack([moved, np.broadcast_to(terms[1], moved.shape)]), unit)


def combined(first: Pieces, second: Pieces, sign: int) -> Pieces:
    unit = common_unit(first.unit, second.unit)
    terms = first.terms * int(first.unit / unit) + sign * int(second.unit / unit) * second.terms
    return Pieces(terms, unit)


def envelope(base: list[int], slope: list[int], start: Fraction, end: Fraction) -> set[Fraction]:
    """Where the maximum of lines base + z slope passes from one line to another, inside (start, end)."""
    found: set[Fraction] = set()
    z = start
    while True:
        winner = max(range(len(base)), key=lambda i: (base[i] + slope[i] * z, slope[i]))
        steeper = [i for i in range(len(base)) if slope[i] > slope[winner]]
        meetings = [Fraction(base[winner] - base[i], slope[i] - slope[winner]) for i in steeper]
        if not meetings or (z := min(meetings)) >= end:
            return found
        found.add(z)


# -- operators --------------------------------------------------------------------------------------------------------

Rule = Callable[[Sweep, Sequence[str], dict[str, Any]], Pieces]


def gemm(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    assert settings.get("alpha", 1.0) == settings.get("beta", 1.0) == 1.0
    assert not settings.get("transA")
    weight = sweep.constants[names[1]]
    if settings.get("transB"):
        weight = replace(weight, integers=weight.integers.T)
    return sweep.affine(sweep.values[names[0]], weight, sweep.constants[names[2]] if len(names) > 2 else None)


def binary(sign: int) -> Rule:
    def rule(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
        first, second = names
        if first in sweep.values and second in sweep.values:
            return combined(sweep.values[first], sweep.values[second], sign)
        if second in sweep.values:
            value = sweep.values[second]
            return plus(replace(value, terms=sign * value.terms), sweep.constants[first])
        return plus(sweep.values[first], sweep.constants[second], sign)

    return rule


def scaled(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    value, factor = sweep.values[names[0]], sweep.constants[names[1]]
    return Pieces(value.terms * factor.integers, value.unit * factor.unit)


def divided(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    value, divisor = sweep.values[names[0]], sweep.constants[names[1]]
    common = math.lcm(*divisor.integers.ravel().tolist())
    factors = np.vectorize(lambda d: common // d, otypes=[object])(divisor.integers)
    return Pieces(value.terms * factors, value.unit / divisor.unit / common)


def batch_norm(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    value = sweep.values[names[0]]
    scale, bias, mean, variance = (
        [Fraction(float(v)) for v in sweep.constants[name].given.ravel()] for name in names[1:5]
    )
    spread = [root(v + Fraction(float(np.float32(settings.get("epsilon", 1e-5))))) for v in variance]
    factors = [s / d for s, d in zip(scale, spread, strict=True)]
    offsets = [b - f * m for b, f, m in zip(bias, factors, mean, strict=True)]
    shape = (len(factors), *(1,) * (len(value.shape) - 2))
    unit, offset_unit = common_unit(*filter(None, factors)), common_unit(Fraction(1), *filter(None, offsets))
    whole = np.array([int(f / unit) for f in factors], object).reshape(shape)
    moved = np.array([int(o / offset_unit) for o in offsets], object).reshape(shape)
    return plus(Pieces(value.terms * whole, value.unit * unit), Constant(moved, offset_unit, moved))


def root(square: Fraction) -> Fraction:
    found = Fraction(math.isqrt(square.numerator), math.isqrt(square.denominator))
    assert found * found == square, "a variance must be the square of a fraction, or the network is not rational"
    return found


def windows(shape: Sequence[int], settings: dict[str, Any]) -> tuple[np.ndarray, tuple[int, int]]:
    """Which pixels of a channel each window holds (outputs, cells), -1 where it is padded; and the output's size."""
    assert all(d == 1 for d in settings.get("dilations", [1]))
    kernel, strides = settings["kernel_shape"], settings.get("strides", [1, 1])
    top, left, bottom, right = settings.get("pads", [0, 0, 0, 0])
    height, width = shape
    padded = np.full((height + top + bottom, width + left + right), -1)
    padded[top : top + height, left : left + width] = np.arange(height * width).reshape(height, width)
    size = tuple((p - k) // s + 1 for p, k, s in zip(padded.shape, kernel, strides, strict=True))
    cells = [
        padded[i * strides[0] : i * strides[0] + kernel[0], j * strides[1] : j * strides[1] + kernel[1]].ravel()
        for i in range(size[0])
        for j in range(size[1])
    ]
    return np.array(cells), (size[0], size[1])


def convolution(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    assert settings.get("group", 1) == 1
    value, weight = sweep.values[names[0]], sweep.constants[names[1]]
    channels, *size = value.shape[1:]
    outputs = weight.given.shape[0]
    places, out = windows(size, {"kernel_shape": weight.given.shape[2:], **settings})
    flat = value.reshaped(channels, math.prod(size)).terms
    patches = np.where(places >= 0, flat[..., places], 0)  # (2, pieces, channels, positions, cells)
    rows = np.moveaxis(patches, 2, 3).reshape(*flat.shape[:2], len(places), -1)
    matrix = replace(weight, integers=weight.integers.reshape(outputs, -1).T)
    found = sweep.affine(Pieces(rows, value.unit), matrix, sweep.constants[names[2]] if len(names) > 2 else None)
    return replace(found, terms=np.moveaxis(found.terms, 3, 2)).reshaped(1, outputs, *out)


def max_pool(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    channels, *size = sweep.values[names[0]].shape[1:]
    places, out = windows(size, settings)
    inside = np.where(places >= 0, places, places.max(-1, keepdims=True))  # what is padded never wins: repeat another
    everywhere = np.concatenate([inside + channel * math.prod(size) for channel in range(channels)])
    sweep.values["pooled"] = sweep.values[names[0]].reshaped(-1)
    return sweep.largest("pooled", everywhere).reshaped(1, channels, *out)


def average_pool(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    value = sweep.values[names[0]]
    channels, *size = value.shape[1:]
    places, out = windows(size, settings)
    assert (places >= 0).all()
    sums = value.reshaped(channels, math.prod(size)).terms[..., places].sum(-1)
    return Pieces(sums, value.unit / places.shape[1]).reshaped(1, channels, *out)


def clip(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    ends = [sweep.constants[name].given.item() if name else math.inf for name in (*names[1:], "", "")[:2]]
    low, high = (None if math.isinf(end) else Fraction(end) for end in ends)
    sweep.values["clipped"] = sweep.values[names[0]]
    return sweep.clipped("clipped", low, high)


def shaped(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    value = sweep.values[names[0]]
    if len(names) == 1:  # Flatten
        return value.reshaped(1, -1)
    return value.reshaped(*sweep.constants[names[1]].given.tolist())


def concatenated(sweep: Sweep, names: Sequence[str], settings: dict[str, Any]) -> Pieces:
    parts = [sweep.values[name] for name in names]
    unit = common_unit(*(part.unit for part in parts))
    return Pieces(np.concatenate([p.terms * int(p.unit / unit) for p in parts], settings["axis"] + 2), unit)


def at_zero(low: int, high: int) -> list[Fraction]:
    return [Fraction(0)]


def at_whole(low: int, high: int) -> list[Fraction]:
    return [Fraction(k) for k in range(low, high + 2)]


def at_halves(low: int, high: int) -> list[Fraction]:
    return [k + Fraction(1, 2) for k in range(low, high + 1)]


def stepping(thresholds: Thresholds, step: Callable[[Fraction], int]) -> Rule:
    return lambda sweep, names, settings: sweep.stepped(names[0], thresholds, step)


RULES: dict[str, Rule] = {
    "Sign": stepping(at_zero, lambda v: (v > 0) - (v < 0)),
    "Floor": stepping(at_whole, math.floor),
    "Ceil": stepping(at_whole, math.ceil),
    "Round": stepping(at_halves, round),  # to the even one of two
    "Gemm": gemm,
    "MatMul": gemm,
    "Conv": convolution,
    "Add": binary(1),
    "Sub": binary(-1),
    "Mul": scaled,
    "Div": divided,
    "BatchNormalization": batch_norm,
    "AveragePool": average_pool,
    "MaxPool": max_pool,
    "Relu": lambda sweep, names, settings: sweep.bent(names[0], Fraction(0)),
    "LeakyRelu": lambda sweep, names, settings: sweep.bent(names[0], Fraction(settings.get("alpha", 0.01))),
    "Abs": lambda sweep, names, settings: sweep.bent(names[0], Fraction(-1)),
    "Clip": clip,
    "Flatten": shaped,
    "Reshape": shaped,
    "Concat": concatenated,
}


# -- what follows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What is true of a query: the least lead of the label over any rival, where it first loses, the largest score."""

    margin: Fraction
    critical: Fraction | None
    scale: Fraction
    pieces: int
    wins_at_zero: bool

    @property
    def safe(self) -> bool:
        return self.margin > 0

    @property
    def relative(self) -> float:
        """The margin's size beside the scores'."""
        return float(abs(self.margin) / self.scale) if self.scale else 0.0


class Curve:
    """The scores of a network along a path, exactly: every piece."""

    def __init__(self, model: onnx.ModelProto, path: ExactPath) -> None:
        sweep = Sweep(model, path)
        self.cuts, self.unit = sweep.cuts, sweep.scores.unit
        self.terms = sweep.scores.terms  # (2, pieces, classes)

    def scores(self, z: Fraction) -> list[Fraction]:
        around = [i for i, (start, end) in enumerate(pairwise(self.cuts)) if start <= z <= end]
        return self._on(min(around, key=lambda i: self.cuts[i + 1] - self.cuts[i]), z)

    def _on(self, piece: int, z: Fraction) -> list[Fraction]:
        base, slope = self.terms[:, piece].tolist()
        return [(b + s * z) * self.unit for b, s in zip(base, slope, strict=True)]

    def between(self, start: Fraction, end: Fraction) -> tuple[list[list[Fraction]], list[list[Fraction]]]:
        """Scores that decide who wins on all of [start, end]: at strengths, and next to them on either side.

        A class wins on all of it if it leads at the former and nobody leads it at the latter.
        """
        places, limits = [self.scores(start), self.scores(end)], list[list[Fraction]]()
        for piece, (low, high) in enumerate(pairwise(self.cuts)):
            low, high = max(low, start), min(high, end)
            if low <= high:
                places.append(self._on(piece, (low + high) / 2))
                limits += [self._on(piece, low), self._on(piece, high)]
        return places, limits

    def truth(self, label: int) -> Truth:
        rivals = [j for j in range(self.terms.shape[2]) if j != label]
        leads = self.terms[:, :, [label]] - self.terms[:, :, rivals]
        margin, critical, scale = None, None, Fraction(0)
        for piece, (start, end) in enumerate(pairwise(self.cuts)):
            base, slope = leads[0, piece].tolist(), leads[1, piece].tolist()
            for z in (start, end):
                least = min(b + s * z for b, s in zip(base, slope, strict=True))
                margin = least if margin is None else min(margin, least)
                largest = max(abs(b + s * z) for b, s in zip(*self.terms[:, piece].tolist(), strict=True))
                scale = max(scale, largest)
            if critical is None and margin <= 0:
                critical = min(first_loss(b, s, start, end) for b, s in zip(base, slope, strict=True))
        start_margin = min(leads[0, 0].tolist())
        assert margin is not None
        return Truth(margin * self.unit, critical, scale * self.unit, len(self.cuts) - 1, start_margin > 0)


def first_loss(base: int, slope: int, start: Fraction, end: Fraction) -> Fraction | float:
    """The first place in [start, end] at which base + slope z is not positive."""
    if base + slope * start <= 0:
        return start
    return Fraction(-base, slope) if base + slope * end <= 0 else math.inf
