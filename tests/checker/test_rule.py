"""The rule, against rational arithmetic: small networks with weights of any size, boxes of one and two strengths."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest
from certificates import bounds, header, question
from models import model
from onnx import helper

from shakeproof import checker
from shakeproof.checker import enclosure, operators

Exact = list[Fraction]


class Stack:
    """A network as it grows, in ONNX's words and in fractions."""

    def __init__(self) -> None:
        self.nodes, self.weights, self.steps = [helper.make_node("Flatten", ["x"], ["v0"])], {}, list[tuple[Any, ...]]()

    def add(self, kind: str, given: Any = None, **constants: np.ndarray) -> None:
        number = len(self.steps)
        named = {f"{key}{number}": value for key, value in constants.items()}
        self.weights |= named
        inputs, output = [f"v{number}", *named], [f"v{number + 1}"]
        if kind == "MaxPool":  # of neighbours, and the last entry with padding
            between = [f"a{number}", f"b{number}"]
            self.nodes += [
                helper.make_node("Reshape", [f"v{number}", f"wide{number}"], between[:1]),
                helper.make_node("MaxPool", between[:1], between[1:], kernel_shape=[1, 2], pads=[0, 0, 0, 1]),
                helper.make_node("Reshape", [between[1], f"flat{number}"], output),
            ]
        else:
            options = {"LeakyRelu": {"alpha": given}, "Gemm": {"transB": 1}}.get(kind, {})
            self.nodes.append(helper.make_node(kind, inputs, output, **options))
        self.steps.append((kind, given, *constants.values()))

    def model(self) -> Any:
        last = helper.make_node("Identity", [f"v{len(self.steps)}"], ["y"])
        return model([*self.nodes, last], (1, 1, 2, 2), self.weights)

    def exact(self, x: Exact) -> Exact:
        for kind, given, *constants in self.steps:
            if kind == "Gemm":
                weight, bias = constants
                rows = zip(weight.tolist(), bias.tolist(), strict=True)
                x = [sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), Fraction(b)) for row, b in rows]
            elif kind == "MaxPool":
                x = [max(x[i : i + 2]) for i in range(len(x))]
            elif kind == "Clip":
                low, high = (Fraction(float(bound)) for bound in constants)
                x = [min(max(v, low), high) for v in x]
            elif kind == "LeakyRelu":
                x = [v if v > 0 else Fraction(float(np.float32(given))) * v for v in x]
            else:
                x = [{"Relu": max(v, Fraction(0)), "Abs": abs(v)}[kind] for v in x]
        return x


def random_stack(random: np.random.Generator) -> Stack:
    """Sums that cancel, weights from 1e-150 to 1e75, every kind of bend."""
    reach = float(random.choice([3, 30, 100, 150]))
    sizes, made = [4, *random.integers(2, 9, random.integers(1, 5)), 3], Stack()
    for inputs, outputs in pairwise(sizes):
        weight = random.normal(size=(outputs, inputs)) * 10.0 ** random.uniform(-reach, reach / 2, (outputs, inputs))
        if random.random() < 0.4:
            weight = weight[:1] * (1 + random.integers(-4, 5, (outputs, 1)) * 2.0**-50)
        weight[random.random(weight.shape) < 0.2] = 0.0
        scale = 10.0 ** random.uniform(-reach, reach / 2)
        made.add("Gemm", weight=weight, bias=random.normal(size=outputs) * scale * (random.random() < 0.7))
        if len(made.steps) < 2 * len(sizes) - 3:
            kind = str(random.choice(["Relu", "LeakyRelu", "Abs", "Clip", "MaxPool"]))
            constants = {}
            if kind == "Clip":
                constants = {"low": np.array(-scale), "high": np.array(scale * random.uniform(0, 2))}
            elif kind == "MaxPool":
                constants = {"wide": np.array([1, 1, 1, outputs]), "flat": np.array([1, -1])}
            made.add(kind, float(random.uniform(-2, 2)), **constants)
    return made


def contradictions(seed: int) -> int:
    """How many bounds rational arithmetic contradicts, at four points of a random box."""
    random = np.random.default_rng(seed)
    stack, pixels = random_stack(random), random.normal(size=(1, 2, 2)) * 10.0 ** random.uniform(-12, 12)
    count = int(random.integers(1, 3))
    asked = question(stack.model(), pixels, "+".join(["brightness:max=0.5", "contrast:max=0.7"][:count]))
    low = random.uniform(0, 0.5, count)
    high = low + random.choice([0.0, 1e-15, 1e-6, 0.1, 0.5], count)
    below, above = bounds(asked, low, high)
    margins = [asked.margins([low], [high], label)[0] for label in range(3)]
    wrong = 0
    for share in ((0.0, 0.0), (1.0, 1.0), *random.uniform(size=(2, 2))):
        ends = zip(low.tolist(), high.tolist(), share, strict=False)
        z = [Fraction(a) + Fraction(float(s)) * (Fraction(b) - Fraction(a)) for a, b, s in ends]
        gain = Fraction(7, 10) * z[1] if count > 1 else Fraction(0)
        scores = stack.exact([Fraction(p) * (1 + gain) + z[0] / 2 for p in pixels.ravel().tolist()])
        for label, score in enumerate(scores):
            lead = score - max(other for rival, other in enumerate(scores) if rival != label)
            claims = ((below[label], score), (-above[label], -score), (margins[label], lead))
            wrong += sum(bool(np.isfinite(bound)) and Fraction(float(bound)) > true for bound, true in claims)
    return wrong


def test_rational_arithmetic_contradicts_nothing():
    assert [seed for seed in range(200) if contradictions(seed)] == []


def test_norms_alone_are_not_contradicted_either(monkeypatch):
    """Radii are thrown away at every product: all that is left of the error is its 2-norm."""
    monkeypatch.setattr(enclosure, "USELESS", -1.0)
    assert [seed for seed in range(150) if contradictions(seed)] == []
    proved = operators.convolution_norms
    small = lambda *given: tuple(1e-3 * sigma for sigma in proved(*given))  # noqa: E731
    monkeypatch.setattr(operators, "convolution_norms", small)
    assert any(contradictions(seed) for seed in range(150))


BREAKS = {
    "no rounding of sums": ("gamma", lambda terms, unit: 0.0),
    "no rounding of bounds": ("U64", 0.0),
    "no gap where a function bends": (
        "_chord",
        lambda *given, chord=enclosure._chord: (*chord(*given)[:2], 0 * chord(*given)[2]),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_rule_is_contradicted(name, monkeypatch):
    monkeypatch.setattr(enclosure, *BREAKS[name])
    assert any(contradictions(seed) for seed in range(150))


def test_float32_on_a_real_network(shared):
    """onnxruntime with and without its optimisations, at random strengths: inside, with nothing allowed for."""
    import shakeproof as sp
    from shakeproof.question import read_image

    file = shared("networks/gtsrb_cnn.onnx")
    data, network = file.read_bytes(), sp.load(file)
    picture = read_image(f"{shared('data/gtsrb_test_first1000.npz')}@3").fitted(network.picture())
    pixels, text = picture.pixels.numpy(), "motion-blur:size=7,angle=45"
    asked = checker.Question(header(data, pixels, text, arithmetic="float32"), pixels, data)
    path = sp.parse(text).apply(picture.pixels)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        runtime = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for z in np.random.default_rng(0).uniform(size=5):
            x = (path.base + z * path.slopes[0]).numpy().astype(np.float32)
            scores = runtime.run(None, {runtime.get_inputs()[0].name: x[None]})[0].ravel()
            below, above = bounds(asked, [z], [z])
            assert (below <= scores).all()
            assert (scores <= above).all()
            assert (above - below).max() < 1.0
