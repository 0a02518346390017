"""A second checker of certificates, for fully connected networks, in which nothing is ever rounded but upwards.

    accepted, smallest_margin = check_exactly(certificate, "network.onnx")

Weights, pixels and ends of leaves are floating-point numbers: whole numbers times powers of two. Kernels are fractions.
So a network's values at the ends of all leaves are whole numbers times one fraction, and are worked out exactly.
Between the ends of a leaf, a value stays within a radius of its chord: 0 at first, |W| r behind a linear layer, and at
most |a| b / (|a| + b) more behind a ReLU of a neuron that is a < 0 at one end and b > 0 at the other, since that is the
largest distance of such a ReLU from its chord. Radii are whole multiples of 2^-200, rounded upwards.

With python-flint, large products are faster; without it, they are Python's own.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

try:
    from flint import fmpz_mat
except ImportError:
    fmpz_mat = None

MAGIC = b"shakeproof certificate 1\n"
RADIUS_UNIT = Fraction(1, 2**200)
LEAVES_AT_ONCE = 64
Integers = np.ndarray  # of Python's own, dtype object
KEYS = [
    "tool", "model", "model_sha256", "image", "image_sha256", "file_sha256", "channels_last", "perturbation", "kernels",
    "mean", "std", "label", "strength", "arithmetic", "claim", "arrays",
]  # fmt: skip


class RefusedError(ValueError):
    """The certificate is not well-formed, or not about this model, or of a kind that is not checked here."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RefusedError(otherwise)


# -- the file ---------------------------------------------------------------------------------------------------------


def pack(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a certificate; the header's `arrays` are filled in."""
    described = {n: [a.dtype.str, *a.shape] for n, a in arrays.items()}
    ordered = {key: described if key == "arrays" else header[key] for key in KEYS}
    body = MAGIC + json.dumps(ordered).encode() + b"\n" + b"".join(a.tobytes() for a in arrays.values())
    return body + hashlib.sha256(body).digest()


def unpack(certificate: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a certificate."""
    body, digest = certificate[:-32], certificate[-32:]
    require(body.startswith(MAGIC), "not a shakeproof certificate of version 1")
    require(hashlib.sha256(body).digest() == digest, "the file's bytes do not match its checksum")
    line, newline, rest = body[len(MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line, parse_constant=lambda word: require(False, f"{word} in the header"))
    except ValueError as error:
        raise RefusedError(f"the header is not JSON: {error}") from error
    require(bool(newline) and isinstance(header, dict) and list(header) == KEYS, f"the header's keys are not {KEYS}")
    arrays = {}
    for name, (kind, *shape) in header["arrays"].items():
        require(kind in ("<f4", "<f8", "<i2", "|u1"), f"{name}: unknown type {kind}")
        dtype, count = np.dtype(kind), math.prod(shape)
        size = count * dtype.itemsize
        require(len(rest) >= size and min(shape) >= 0, f"{name}: bytes are missing")
        arrays[name] = np.frombuffer(rest[:size], dtype).reshape(shape)
        rest = rest[size:]
    require(not rest, "there are bytes after the arrays")
    require(all(np.isfinite(a).all() for a in arrays.values()), "an array holds NaN or infinity")
    return header, arrays


# -- the path ---------------------------------------------------------------------------------------------------------


def options_of(header: dict[str, Any]) -> dict[str, str]:
    """What the perturbation's text says, of one strength."""
    require(len(header["kernels"]) == len(header["strength"]) == 1, "only one strength is checked here")
    family, _, rest = header["perturbation"].partition(":")
    return {"family": family, **dict(option.split("=") for option in rest.split(",") if option)}


def exact_path(header: dict[str, Any], pixels: np.ndarray) -> tuple[list[Fraction], list[Fraction]]:
    """(base, slope) of the pictures x(z) = base + z slope, in the order of the model's flat input, before clipping."""
    options, kernel = options_of(header), [[Fraction(v) for v in row] for row in header["kernels"][0]]
    image = [[[Fraction(float(v)) for v in row] for row in channel] for channel in pixels]
    sides = [[Fraction(i in ((n - 1) // 2, n // 2), 2 - n % 2) for i in range(n)] for n in np.shape(kernel)]
    same = [[a * b for b in sides[1]] for a in sides[0]]
    start, end = (
        [convolved(channel, matrix, options.get("padding", "reflect")) for channel in image]
        for matrix in (same, kernel)
    )
    offset = Fraction(options["max"]) if options["family"] == "brightness" else Fraction(0)
    change = [
        [[b - a + offset for a, b in zip(*rows, strict=True)] for rows in zip(*both, strict=True)]
        for both in zip(start, end, strict=True)
    ]
    base, slope = (np.array(x, object).reshape(pixels.shape) for x in (start, change))
    if header["channels_last"]:
        base, slope = (x.transpose(1, 2, 0) for x in (base, slope))
    return base.ravel().tolist(), slope.ravel().tolist()


def convolved(channel: list[list[Fraction]], kernel: list[list[Fraction]], padding: str) -> list[list[Fraction]]:
    """Cross-correlation to the same size; an even side reaches one further at its end."""
    height, width = len(channel), len(channel[0])
    above, left = (len(kernel) - 1) // 2, (len(kernel[0]) - 1) // 2
    taps = [(i - above, j - left, w) for i, row in enumerate(kernel) for j, w in enumerate(row) if w]

    def pixel(i: int, j: int) -> Fraction:
        row, column = inside(i, height, padding), inside(j, width, padding)
        return Fraction(0) if row is None or column is None else channel[row][column]

    return [
        [sum((w * pixel(i + a, j + b) for a, b, w in taps), Fraction(0)) for j in range(width)] for i in range(height)
    ]


def inside(place: int, count: int, padding: str) -> int | None:
    if 0 <= place < count or padding == "zeros":
        return place if 0 <= place < count else None
    require(padding in ("reflect", "replicate", "circular"), f"unknown padding {padding}")
    if padding == "reflect":
        mirrored = -place if place < 0 else 2 * (count - 1) - place
        require(0 <= mirrored < count, "the kernel is too large for this image")
        return mirrored
    return place % count if padding == "circular" else min(max(place, 0), count - 1)


# -- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Affine:
    """(weight x) weight_unit + bias; the weight (outputs, inputs), or (inputs) for each entry by itself."""

    weight: Integers
    weight_unit: Fraction
    bias: list[Fraction]

    @cached_property
    def factors(self) -> tuple[Any, Any]:
        """The weight and its absolute values, as matrices that are quick to multiply by."""
        return factor(self.weight), factor(abs(self.weight))


Layer = Affine | str  # "Relu"


def integers(numbers: Sequence[Fraction]) -> tuple[list[int], Fraction]:
    """Fractions as whole multiples of one."""
    below = math.lcm(*(number.denominator for number in numbers))
    return [number.numerator * (below // number.denominator) for number in numbers], Fraction(1, below)


def matrix(array: np.ndarray) -> tuple[Integers, Fraction]:
    """Floating-point numbers as whole multiples of a power of two."""
    require(bool(np.isfinite(array).all()), "a weight is NaN or infinite")
    mantissa, exponent = np.frexp(array.astype(np.float64).ravel())
    lowest = int(exponent.min()) - 53
    whole = np.ldexp(mantissa, 53).astype(np.int64).tolist()
    shifted = [m << (e - 53 - lowest) for m, e in zip(whole, exponent.tolist(), strict=True)]
    common = math.gcd(*shifted) or 1
    return np.array([m // common for m in shifted], object).reshape(array.shape), common * Fraction(2) ** lowest


def fractions(array: np.ndarray, count: int) -> list[Fraction]:
    return [Fraction(float(v)) for v in np.broadcast_to(array.ravel(), (count,))]


def each(factors: Sequence[Fraction], offsets: Sequence[Fraction]) -> Affine:
    """Every entry times a factor plus an offset."""
    whole, unit = integers(factors)
    return Affine(np.array(whole, object), unit, list(offsets))


def read_layers(model: onnx.ModelProto, inputs: int) -> list[Layer]:
    """A chain of Gemm, MatMul, Add, Sub, Mul, Div by constants, Relu, and changes of shape."""
    given = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            given[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    current, size, layers = next(i.name for i in model.graph.input if i.name not in given), inputs, list[Layer]()
    for node in model.graph.node:
        if node.op_type == "Constant":
            continue
        require(current in node.input, f"{node.op_type} {node.name}: the network is not a chain")
        constants = [given[name] for name in node.input if name in given]
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        require(len(constants) == len(node.input) - 1, f"{node.op_type} {node.name}: reads more than one value")
        first = node.input[0] == current
        added = read_node(node.op_type, constants, settings, size, first)
        layers += added
        size = len(added[-1].bias) if added and isinstance(added[-1], Affine) else size
        (current,) = node.output
    require(current == model.graph.output[0].name, "the last node is not the output")
    return layers


@lru_cache(maxsize=4)
def layers_of(content: bytes, inputs: int) -> list[Layer]:
    """The layers of a model's bytes; certificates about one model share them."""
    return read_layers(onnx.load_from_string(content), inputs)


def read_node(kind: str, constants: list[np.ndarray], settings: dict[str, Any], size: int, first: bool) -> list[Layer]:
    zero, one = Fraction(0), Fraction(1)
    if kind in ("Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze"):
        return []
    if kind == "Relu":
        return ["Relu"]
    if kind in ("Gemm", "MatMul"):
        weight = constants[0]
        require(settings.get("alpha", 1.0) == settings.get("beta", 1.0) == 1.0, "Gemm with alpha or beta")
        require(not settings.get("transA") and weight.ndim == 2, f"{kind}: not a plain matrix")
        weight = weight if settings.get("transB") or not first else weight.T
        require(weight.shape[1] == size, f"{kind}: {weight.shape[1]} inputs, but there are {size}")
        bias = fractions(constants[1], len(weight)) if len(constants) > 1 else [zero] * len(weight)
        return [Affine(*matrix(weight), bias)]
    require(kind in ("Add", "Sub", "Mul", "Div"), f"{kind} is not checked here: only fully connected ReLU networks are")
    (constant,) = constants
    require(constant.size in (1, size), f"{kind}: a constant of {constant.size} numbers for {size}")
    numbers = fractions(constant, size)
    if kind in ("Mul", "Div"):
        require(first or kind == "Mul", "division by a value is not checked here")
        require(kind == "Mul" or all(numbers), "division by zero")
        return [each([n if kind == "Mul" else 1 / n for n in numbers], [zero] * size)]
    sign = -one if kind == "Sub" and not first else one
    return [each([sign] * size, [-n if kind == "Sub" and first else n for n in numbers])]


# -- leaves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A value at the ends of leaves, whole (size, ends) times unit; and how far from its chords it is in between.

    Radii (size, leaves) are whole multiples of RADIUS_UNIT; leaf i is between ends i and i + 1.
    """

    whole: Integers
    unit: Fraction
    radius: Integers

    def affine(self, layer: Affine) -> Rows:
        size = self.radius.shape[1]
        if layer.weight.ndim == 1:
            whole, spread = self.whole * layer.weight[:, None], self.radius * abs(layer.weight)[:, None]
        else:
            whole, spread = product(layer.factors[0], self.whole), product(layer.factors[1], self.radius)
        unit = self.unit * layer.weight_unit
        bias, bias_unit = integers(layer.bias)
        common = Fraction(math.gcd(unit.numerator * bias_unit.denominator, bias_unit.numerator * unit.denominator),
                          unit.denominator * bias_unit.denominator)  # fmt: skip
        moved = whole * int(unit / common) + np.array(bias, object)[:, None] * int(bias_unit / common)
        radius = -(-spread * layer.weight_unit.numerator // layer.weight_unit.denominator)
        return Rows(moved, common, radius.reshape(-1, size))

    def relu(self) -> Rows:
        """See the top of the file. A neuron that is at most -r at both ends is off between them as well."""
        left, right = self.whole[:, :-1], self.whole[:, 1:]
        radius = self.radius.copy()
        above = np.where(left > right, left, right)
        # r <= -max(left, right), both as whole numbers of one unit
        off = (radius * self.unit.denominator * RADIUS_UNIT.numerator
               <= -above * self.unit.numerator * RADIUS_UNIT.denominator).astype(bool)  # fmt: skip
        radius[off] = 0
        crossing = ((left < 0) & (right > 0) | (left > 0) & (right < 0)).astype(bool)
        scale = self.unit / RADIUS_UNIT
        for place in map(tuple, np.argwhere(crossing)):
            a, b = abs(left[place]), abs(right[place])
            radius[place] += -(-a * b * scale.numerator // ((a + b) * scale.denominator))
        return Rows(np.where(self.whole > 0, self.whole, 0), self.unit, radius)

    def clip(self, low: Fraction, high: Fraction) -> Rows:
        """low + relu(x - low), and high - relu(high - x) of that."""
        size, one = len(self.whole), Fraction(1)
        lifted = self.affine(each([one] * size, [-low] * size)).relu()
        return lifted.affine(each([-one] * size, [high - low] * size)).relu().affine(each([-one] * size, [high] * size))


def factor(weight: Integers) -> Any:
    return weight if fmpz_mat is None else fmpz_mat(*weight.shape, weight.ravel().tolist())


def product(weight: Any, x: Integers) -> Integers:
    if isinstance(weight, np.ndarray):
        return weight @ x
    if not x.any():
        return np.zeros((weight.nrows(), x.shape[1]), object)
    found = (weight * fmpz_mat(*x.shape, x.ravel().tolist())).entries()
    return np.array([int(v) for v in found], object).reshape(weight.nrows(), x.shape[1])


class Network:
    """A model behind a picture's path, and the leads of one class over all others."""

    def __init__(self, header: dict[str, Any], pixels: np.ndarray, layers: Sequence[Layer]) -> None:
        self.base, self.slope = exact_path(header, pixels)
        clip = options_of(header).get("clip")
        self.clip = None if clip is None else [Fraction(end) for end in clip.split("..")]
        self.normalise = normalisation(header, pixels.shape)
        self.layers = layers
        require(isinstance(layers[-1], Affine) and layers[-1].weight.ndim == 2, "the last layer is not a matrix")

    def leads(self, ends: Sequence[Fraction], winner: int, rivals: Sequence[int]) -> Rows:
        """Score of `winner` minus that of each rival, at the ends of leaves and around their chords."""
        *before, last = self.layers
        assert isinstance(last, Affine)
        rows = Rows(*self._pictures(ends), np.zeros((len(self.base), len(ends) - 1), object))
        if self.clip is not None:
            rows = rows.clip(*self.clip)
        for layer in (*self.normalise, *before):
            rows = rows.relu() if isinstance(layer, str) else rows.affine(layer)
        weight = last.weight[[winner]] - last.weight[list(rivals)]
        return rows.affine(Affine(weight, last.weight_unit, [last.bias[winner] - last.bias[j] for j in rivals]))

    def _pictures(self, ends: Sequence[Fraction]) -> tuple[Integers, Fraction]:
        pixels, unit = integers([*self.base, *self.slope])
        base, slope = np.array(pixels, object).reshape(2, -1, 1)
        places, place_unit = integers(ends)
        return base * place_unit.denominator + slope * np.array(places, object), unit / place_unit.denominator


def normalisation(header: dict[str, Any], shape: Sequence[int]) -> list[Affine]:
    """(x - mean) / std for each channel."""
    if not header["mean"] and not header["std"]:
        return []
    mean, std = (np.broadcast_to(np.array(header[key], float), (shape[0],)) for key in ("mean", "std"))
    order = np.arange(shape[0])[:, None, None] * np.ones(shape, int)
    channel = (order.transpose(1, 2, 0) if header["channels_last"] else order).ravel().tolist()
    require(bool(std.all()), "a std is 0")
    offsets = [-Fraction(float(mean[c])) for c in channel]
    factors = [1 / Fraction(float(std[c])) for c in channel]
    return [each([Fraction(1)] * len(channel), offsets), each(factors, [Fraction(0)] * len(channel))]


# -- the claim --------------------------------------------------------------------------------------------------------


def check_exactly(
    certificate: bytes, model_path: str | Path, progress: Callable[[int, int], None] = lambda done, count: None
) -> tuple[bool, Fraction]:
    """Whether a certificate proves what it claims of a model, and the smallest margin that was proved (or was not).

    For "unsafe" that is the margin at the witness, negative if it is one. Raises RefusedError where nothing is claimed.
    """
    header, arrays = unpack(certificate)
    content = Path(model_path).read_bytes()
    require(hashlib.sha256(content).hexdigest() == header["model_sha256"], "the certificate is about another model")
    pixels = arrays["pixels"].astype(np.float64)
    digest = hashlib.sha256(pixels.astype("<f8").tobytes()).hexdigest()
    require(digest == header["image_sha256"], "the pixels are not those that the header names")
    require(header["arithmetic"] == "real", "only claims about real arithmetic are checked here")
    layers = layers_of(gzip.decompress(content) if str(model_path).endswith(".gz") else content, pixels.size)
    network = Network(header, pixels, layers)
    last = layers[-1]
    assert isinstance(last, Affine)
    classes = len(last.bias)
    if header["claim"] == "unsafe":
        return check_witness(network, header, arrays, classes)
    least = None
    for number, (winner, ends) in enumerate(claimed(header, arrays, classes)):
        rivals = [j for j in range(classes) if j != winner]
        for first in range(0, len(ends) - 1, LEAVES_AT_ONCE):
            progress(number, first)
            leads = network.leads(ends[first : first + LEAVES_AT_ONCE + 1], winner, rivals)
            margin = smallest(leads)
            least = margin if least is None else min(least, margin)
    require(least is not None, "the certificate has no leaves")
    assert least is not None
    return least > 0, least


def smallest(leads: Rows) -> Fraction:
    """The lowest that any lead can be on any leaf: an end of its chord minus its radius."""
    lower = np.where(leads.whole[:, :-1] < leads.whole[:, 1:], leads.whole[:, :-1], leads.whole[:, 1:])
    scaled = lower * leads.unit.numerator * RADIUS_UNIT.denominator - leads.radius * leads.unit.denominator
    return Fraction(min(scaled.ravel().tolist()), leads.unit.denominator * RADIUS_UNIT.denominator)


def claimed(header: dict[str, Any], arrays: dict[str, np.ndarray], classes: int) -> list[tuple[int, list[Fraction]]]:
    """The class and the ends of neighbouring leaves of one class; that they cover all is checked here, exactly."""
    require(header["claim"] in ("safe", "profile"), f"unknown claim {header['claim']}")
    require("cuts" in arrays and arrays["cuts"].dtype == np.float64, "there are no cuts")
    require(("winners" in arrays) == (header["claim"] == "profile"), "winners are for profiles, only and always")
    ends = [0.0, *arrays["cuts"].tolist(), *header["strength"]]
    require(ends == [0.0, 0.0] or all(a < b for a, b in pairwise(ends)), "the cuts do not increase up to the strength")
    winners = arrays["winners"].tolist() if "winners" in arrays else [header["label"]] * (len(ends) - 1)
    require(len(winners) == len(ends) - 1, "there is not one winner for each leaf")
    require(all(-1 <= winner < classes for winner in winners), "a winner is not a class")
    found: list[tuple[int, list[Fraction]]] = []
    for before, winner, pair in zip([None, *winners], winners, pairwise(map(Fraction, ends)), strict=False):
        if winner == before and winner >= 0:
            found[-1][1].append(pair[1])
        elif winner >= 0:
            found.append((winner, list(pair)))
    return found


def check_witness(
    network: Network, header: dict[str, Any], arrays: dict[str, np.ndarray], classes: int
) -> tuple[bool, Fraction]:
    (strength,) = header["strength"]
    require("witness" in arrays and arrays["witness"].shape == (1,), "there is no witness of one strength")
    z, winner = Fraction(float(arrays["witness"][0])), int(arrays["winners"][0])
    require(0 <= z <= Fraction(float(strength)), "the witness is outside the domain")
    require(0 <= winner < classes and winner != header["label"], "the witness names no other class")
    leads = network.leads([z, z], header["label"], [winner])
    margin = int(leads.whole[0, 0]) * leads.unit
    return margin < 0, margin
