"""Random networks of many operators: no sample of a box, in float64 or by onnxruntime, is outside its enclosure."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from certificates import bounds, question
from models import model
from onnx import helper
from onnx.reference import ReferenceEvaluator
from test_checked_operators import path

from shakeproof.checker import enclosure, operators
from shakeproof.checker import question as asking


class Grown:
    """A network that grows by random operators; every value is a picture (1, channels, side, side)."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.values = [("x", 1, 6)]
        for _ in range(int(self.random.integers(4, 12))):
            self.grow(str(self.random.choice(list(KINDS))))
        name, channels, side = self.values[-1]
        weight = self.constant(4, channels * side * side)
        self.nodes.append(helper.make_node("Flatten", [name], ["flat"]))
        self.nodes.append(helper.make_node("Gemm", ["flat", weight], ["y"], transB=1))

    def constant(self, *shape: int, positive: bool = False) -> str:
        name = f"c{len(self.weights)}"
        fan = max(1, int(np.prod(shape[1:])))
        made = self.random.normal(size=shape) / np.sqrt(fan) if len(shape) > 1 else self.random.normal(size=shape)
        self.weights[name] = (np.abs(made) + 0.5 if positive else made).astype(np.float32)
        return name

    def whole(self, *values: int) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.array(values, dtype=np.int64)
        return name

    def node(self, kind: str, inputs: list[str], channels: int, side: int, **attributes: Any) -> None:
        name = f"v{len(self.values)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.values.append((name, channels, side))

    def grow(self, kind: str) -> None:
        name, channels, side = self.values[-1]
        KINDS[kind](self, name, channels, side)

    def conv(self, name: str, channels: int, side: int) -> None:
        stride = int(self.random.choice([1, 1, 2])) if side > 2 else 1
        group = 2 if channels % 2 == 0 and self.random.random() < 0.3 else 1
        outputs = int(self.random.choice([2, 4, 6]))
        inputs = [name, self.constant(outputs, channels // group, 3, 3), self.constant(outputs)]
        after = (side - 1) // stride + 1
        self.node("Conv", inputs, outputs, after, pads=[1] * 4, strides=[stride] * 2, group=group)

    def transposed(self, name: str, channels: int, side: int) -> None:
        """Twice as large, by kernels that overlap or leave gaps, or as large by kernels that overlap."""
        outputs, (kernel, stride, crop) = 2, ((4, 2, 1), (2, 2, 0), (1, 2, 0), (3, 1, 1))[self.random.integers(4)]
        inputs, extra = [name, self.constant(channels, outputs, kernel, kernel)], int(kernel < stride)
        options = {"strides": [stride] * 2, "pads": [crop] * 4, "output_padding": [extra] * 2}
        self.node("ConvTranspose", inputs, outputs, side * stride, **options)

    def norm(self, name: str, channels: int, side: int) -> None:
        given = [self.constant(channels) for _ in range(3)] + [self.constant(channels, positive=True)]
        self.node("BatchNormalization", [name, *given], channels, side)

    def pool(self, name: str, channels: int, side: int) -> None:
        kind = str(self.random.choice(["MaxPool", "AveragePool"]))
        if side >= 3:
            more = {"count_include_pad": 1} if kind == "AveragePool" else {}
            after = (side - 1) // 2 + 1
            self.node(kind, [name], channels, after, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, **more)

    def bend(self, name: str, channels: int, side: int) -> None:
        kind = str(self.random.choice(["Relu", "Relu", "Abs", "LeakyRelu", "Clip", "PRelu"]))
        more: list[str] = []
        if kind == "Clip":
            low, high = np.sort(self.random.normal(size=2)).astype(np.float32)
            self.weights |= {f"l{name}": low, f"h{name}": high}
            more = [f"l{name}", f"h{name}"]
        elif kind == "PRelu":
            more = [self.constant(channels, 1, 1)]
        self.node(kind, [name, *more], channels, side, **({"alpha": 0.2} if kind == "LeakyRelu" else {}))

    def join(self, name: str, channels: int, side: int) -> None:
        fitting = [value for value in self.values[:-1] if value[2] == side]
        if not fitting:
            return
        other, width, _ = fitting[int(self.random.integers(len(fitting)))]
        if width in (channels, 1):
            self.node(str(self.random.choice(["Add", "Sub"])), [name, other], channels, side)
        else:
            self.node("Concat", [name, other], channels + width, side, axis=1)

    def scale(self, name: str, channels: int, side: int) -> None:
        kind = str(self.random.choice(["Mul", "Add", "Div"]))
        self.node(kind, [name, self.constant(channels, 1, 1, positive=kind == "Div")], channels, side)

    def move(self, name: str, channels: int, side: int) -> None:
        if self.random.random() < 0.5:
            self.node("Transpose", [name], channels, side, perm=[0, 1, 3, 2])
        else:
            index = self.whole(*self.random.integers(0, channels, channels))
            self.node("Gather", [name, index], channels, side, axis=1)


KINDS = {
    "conv": Grown.conv,
    "conv again": Grown.conv,
    "transposed": Grown.transposed,
    "bend": Grown.bend,
    "bend again": Grown.bend,
    "norm": Grown.norm,
    "pool": Grown.pool,
    "join": Grown.join,
    "scale": Grown.scale,
    "move": Grown.move,
}


def outside(seed: int) -> list[str]:
    """What is not enclosed, of samples in boxes of several sizes."""
    grown, random = Grown(seed), np.random.default_rng(seed)
    narrow = model(grown.nodes, (1, 1, 6, 6), grown.weights, opset=15)
    wide = {n: w.astype(float) if w.dtype == np.float32 else w for n, w in grown.weights.items()}
    truth = ReferenceEvaluator(model(grown.nodes, (1, 1, 6, 6), wide, opset=15))
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = [levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL][seed % 2]
    runtime = onnxruntime.InferenceSession(narrow.SerializeToString(), options, providers=["CPUExecutionProvider"])
    pixels = random.normal(size=(1, 6, 6))
    real = question(narrow, pixels, "box-blur:size=3")
    has_norm = any(node.op_type == "BatchNormalization" for node in grown.nodes)  # not covered in float32
    single = None if has_norm else question(narrow, pixels, "box-blur:size=3", arithmetic="float32")
    found = []
    for width in (0.0, 1e-6, 0.01, 0.3):
        low = random.uniform(0, 1 - width)
        below, above = bounds(real, [low], [low + width])
        under, over = bounds(single, [low], [low + width]) if single else (-np.inf, np.inf)
        for z in (low, low + width, *random.uniform(low, low + width, 4)):
            x = path(pixels, z)[None]
            exact = truth.run(None, {"x": x})[0].ravel()
            slack = 1e-12 * (1 + np.abs(exact).max())  # the samples' own rounding
            theirs = runtime.run(None, {"x": x.astype(np.float32)})[0].ravel()
            if not ((below - slack <= exact) & (exact <= above + slack)).all():
                found.append(f"float64 at {z} of a box of {width}")
            if not ((under <= theirs) & (theirs <= over)).all():
                found.append(f"float32 at {z} of a box of {width}")
    return found


@pytest.mark.parametrize("useless", [enclosure.USELESS, -1.0], ids=["radii and norms", "norms alone"])
def test_nothing_is_outside(useless, monkeypatch):
    monkeypatch.setattr(enclosure, "USELESS", useless)
    assert {seed: found for seed in range(40) if (found := outside(seed))} == {}


def test_leaves_do_not_mix(monkeypatch):
    """Many leaves at once, in batches and chunks of any size, are what they are one by one, up to rounding."""
    for seed in range(25):
        grown, random = Grown(seed), np.random.default_rng(seed)
        data = model(grown.nodes, (1, 1, 6, 6), grown.weights, opset=15)
        asked = question(data, random.normal(size=(1, 6, 6)), "box-blur:size=3+brightness:max=0.3")
        low = random.uniform(0, 0.5, (7, 2))
        high, winners = low + random.choice([0.0, 1e-6, 0.1, 0.5], (7, 2)), random.integers(0, 4, 7)
        alone = [asked.margins(a[None], b[None], int(c))[0] for a, b, c in zip(low, high, winners, strict=True)]
        for columns, memory in ((operators.COLUMNS, asking.MEMORY), (1, asking.MEMORY), (1000, 1)):
            monkeypatch.setattr(operators, "COLUMNS", columns)
            monkeypatch.setattr(asking, "MEMORY", memory)
            together = asked.margins(low, high, winners)
            assert np.allclose(together, alone, rtol=1e-9, atol=1e-9)
        monkeypatch.undo()
