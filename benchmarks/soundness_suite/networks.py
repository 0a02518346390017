"""Small networks node by node, as ONNX, and the scenes that they are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .paths import ExactPath, dot, path

Random = np.random.Generator
Rows = Sequence[Sequence[float]] | np.ndarray


def single(number: float | Fraction) -> float:
    """The nearest float32."""
    return float(np.float32(float(number)))


class Builder:
    """An ONNX model as it grows. Methods take and return the names of values; weights must be exactly float32."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape, self.nodes, self.weights = shape, list[onnx.NodeProto](), dict[str, np.ndarray]()
        self.flat = self.add("Flatten", "x")

    def add(self, kind: str, *inputs: str, **settings: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **settings))
        return name

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        assert np.array_equal(self.weights[name].astype(float), np.asarray(value, float)), "not a float32"
        return name

    def linear(self, x: str, weight: Rows, bias: Sequence[float] | np.ndarray | None = None) -> str:
        """x times weight (outputs, inputs), plus bias."""
        given = [self.constant(weight)] + ([] if bias is None else [self.constant(bias)])
        return self.add("Gemm", x, *given, transB=1)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def clip(self, x: str, low: float, high: float) -> str:
        return self.add("Clip", x, self.constant(low), self.constant(high))

    def reshape(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def largest(self, x: str, count: int, size: int) -> str:
        """The largest of each `size` neighbours among `count` values."""
        pooled = self.add("MaxPool", self.reshape(x, 1, 1, 1, count), kernel_shape=[1, size], strides=[1, size])
        return self.reshape(pooled, 1, count // size)

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *self.shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@dataclass(frozen=True)
class Scene:
    """What a network is asked about: each image under each perturbation, up to one strength."""

    images: list[np.ndarray]
    perturbations: list[str]
    strength: float

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images[0].shape  # type: ignore[return-value]

    @cached_property
    def paths(self) -> list[ExactPath]:
        """Of all queries, images first."""
        return [path(image, text, self.strength) for image in self.images for text in self.perturbations]


def scene(random: Random, images: int = 4, perturbations: int = 5, plain: bool = False, dyadic: bool = False) -> Scene:
    """Small pictures, most of them alike so that one network is hard for all of them, and random perturbations.

    `plain` allows angles whose kernel is irrational (and known to 1e-30 only), and pictures with colours. `dyadic` has
    pixels and kernels of few bits, so that a float32 can hold a value along the path exactly.
    """
    channels = int(random.choice([1, 1, 3])) if plain else 1
    side = int(random.integers(4, 9) if plain else random.integers(3, 6))
    strength = float(random.choice([1.0, 0.5, 0.75] if dyadic else [1.0, 1.0, 0.7, 0.4, float(random.uniform(0.1, 1))]))
    texts: dict[str, None] = {}
    while len(texts) < perturbations:
        texts[perturbation(random, plain, dyadic)] = None
    found = [picture(random, (channels, side, side), dyadic)]
    while len(found) < images - 1:
        found.append(varied(random, found[0], dyadic))
    return Scene([*found, picture(random, found[0].shape, dyadic)], list(texts), strength)


def picture(random: Random, shape: tuple[int, ...], dyadic: bool) -> np.ndarray:
    kind = random.integers(0, 6)
    if dyadic or kind == 0:
        return random.integers(0, 17, shape) / 16
    if kind == 1:
        image = np.zeros(shape)
        image[:, shape[1] // 2, shape[2] // 2] = 1.0
        return image
    if kind == 2:
        return random.random(shape, np.float32).astype(np.float64)
    if kind == 3:
        return np.round(random.random(shape), 1)  # decimals: 0.3 is no float
    return random.random(shape)


def varied(random: Random, image: np.ndarray, dyadic: bool) -> np.ndarray:
    """A picture like another."""
    if dyadic:
        return np.clip(image + random.integers(-1, 2, image.shape) / 16, 0, 1)
    return image + random.normal(size=image.shape) * random.choice([1e-9, 1e-3, 0.02])


def perturbation(random: Random, plain: bool, dyadic: bool) -> str:
    family = random.choice(["box-blur", "sharpen", "motion-blur", "motion-blur", "brightness", "contrast"])
    if family in ("brightness", "contrast"):
        most = random.choice([0.25, 0.5, -0.25, 1.0, -0.5] if dyadic else [0.2, -0.3, 0.1, 1.0, 0.7, -0.6])
        text = f"{family}:max={most:g}"
    elif dyadic:
        text = f"{'box-blur' if family == 'sharpen' else family}:size=4"
    else:
        text = f"{family}:size={random.integers(3, 6)}"
    if family == "motion-blur":
        angles = [0, 45, 90, 135, *([30, 22.5, 100, 171] if plain else [])]
        text += f",angle={random.choice(angles):g}"
    if family not in ("brightness", "contrast"):
        text += random.choice(["", "", ",padding=zeros", ",padding=replicate", ",padding=circular"])
    return text + random.choice(["", "", ",clip=0..1", ",clip=0.25..0.75"])


class Line:
    """One number t of a picture, a weighted sum of its pixels, and where it goes on each path of a scene.

    It is scaled so that on one path, the `target`, it runs from about 0 to about 1.
    """

    def __init__(self, random: Random, scene: Scene, builder: Builder, exactly: bool = False) -> None:
        self.scene, self.random = scene, random
        size = int(np.prod(scene.shape))
        moving: list[ExactPath] = []
        while not moving:  # a path on which this sum changes, without clipping in its way
            weights = random.integers(-4, 5, size).astype(float) * (random.random(size) < 0.6)
            moving = [p for p in scene.paths if p.clip is None and dot(weights, p.slope)]
            if all(p.clip is not None or not any(p.slope) for p in scene.paths):
                moving = scene.paths[:1]
        self.target = moving[random.integers(len(moving))]
        start, change = dot(weights, self.target.base), dot(weights, self.target.slope) * self.target.end
        if exactly:
            self.weights, self.bias = weights, 0.0
        else:
            gain = float(1 / change) if change else 1.0
            self.weights, self.bias = np.float32(weights * gain).astype(float), single(-float(start) * gain)
        self.name = builder.linear(builder.flat, [self.weights], [self.bias])

        self.ranges = [sorted((float(self.at(p, Fraction(0))), float(self.at(p, p.end)))) for p in scene.paths]

    def at(self, path: ExactPath, z: Fraction) -> Fraction:
        return dot(self.weights, path.at(z)) + Fraction(self.bias)

    def ends(self) -> tuple[Fraction, Fraction]:
        """t at both ends of the target."""
        return self.at(self.target, Fraction(0)), self.at(self.target, self.target.end)

    def place(self) -> float:
        """A float32 on the target path, and on many others."""
        first, last = map(float, self.ends())
        tried = [single(first + (last - first) * share) for share in self.random.uniform(0.002, 0.998, 6)]
        return max(tried, key=lambda t: sum(low < t < high for low, high in self.ranges))

    def places(self, count: int) -> list[float]:
        """The first as above, the others on any path."""
        paths = self.random.integers(len(self.ranges), size=count - 1)
        return [self.place(), *(single(self.random.uniform(*self.ranges[path])) for path in paths)]


def scored(
    random: Random, builder: Builder, x: str, row: Sequence[float], bias: float, against: float = 0.0
) -> tuple[str, int]:
    """Scores of which the label leads its rival by row x + bias - against; in random order, some with a third class."""
    size = len(row)
    rows, biases = [list(row), [0.0] * size], [bias, against]
    if random.random() < 0.3:
        rows.append([0.0] * size)
        biases.append(single(against - 1e3))
    order = random.permutation(len(rows))
    return builder.linear(x, [rows[i] for i in order], [biases[i] for i in order]), int(np.flatnonzero(order == 0)[0])
