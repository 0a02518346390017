"""The soundness suite's own truth, held against brute force and against hand-made cases; and some of its queries."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from soundness_suite.asking import Asked, Suite, Tally, command, in_process, judged, labelled, made
from soundness_suite.families import FAMILIES
from soundness_suite.networks import Builder, Scene
from soundness_suite.paths import Exact, ExactPath, kernel, path
from soundness_suite.truth import Curve

from shakeproof.question import parse_path

COUNT = len(FAMILIES)
JUMPS = {"Sign": lambda v: (v > 0) - (v < 0), "Floor": floor, "Ceil": ceil, "Round": round}


# -- brute force: one input at a time, in fractions, by rules of its own ---------------------------------------------


def exact(array: np.ndarray) -> np.ndarray:
    return np.vectorize(lambda v: Fraction(float(v)), otypes=[object])(array)


def evaluated(model: onnx.ModelProto, x: Exact, shape: tuple[int, ...]) -> list[Fraction]:
    """The scores at one input, node by node."""
    given = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    values = {"x": np.array(x, object).reshape(1, *shape)}
    for node in model.graph.node:
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        constants = [exact(given[n]) if n in given and given[n].dtype.kind == "f" else None for n in node.input]
        inputs = [values.get(n, c) for n, c in zip(node.input, constants, strict=True)]
        values[node.output[0]] = applied(node.op_type, inputs, settings, [given.get(n) for n in node.input])
    return values[model.graph.output[0].name].ravel().tolist()


def applied(kind: str, inputs: list, settings: dict, given: list) -> np.ndarray:
    x = inputs[0]
    if kind == "Gemm":
        found = x.dot(inputs[1].T)
        return found + inputs[2] if len(inputs) > 2 else found
    if kind in ("Add", "Sub", "Mul", "Div"):
        return {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[kind](x, inputs[1])
    if kind in ("Relu", "LeakyRelu", "Abs"):
        slope = {"Relu": 0, "Abs": -1}.get(kind, Fraction(settings.get("alpha", 0)))
        return np.vectorize(lambda v: v if v > 0 else slope * v, otypes=[object])(x)
    if kind in JUMPS:
        return np.vectorize(lambda v: Fraction(JUMPS[kind](v)), otypes=[object])(x)
    if kind == "Clip":
        return np.minimum(np.maximum(x, inputs[1]), inputs[2])
    if kind == "Flatten":
        return x.reshape(1, -1)
    if kind == "Reshape":
        return x.reshape(given[1])
    if kind == "Concat":
        return np.concatenate(inputs, settings["axis"])
    if kind == "BatchNormalization":
        scale, bias, mean, variance = (c[:, None, None] for c in inputs[1:])
        spread = np.sqrt((variance + Fraction(settings["epsilon"])).astype(float))  # a few bits: no rounding
        return (x - mean) * scale / np.vectorize(Fraction, otypes=[object])(spread) + bias
    return windowed(kind, inputs, settings)


def windowed(kind: str, inputs: list, settings: dict) -> np.ndarray:
    x, (height, width) = inputs[0][0], settings["kernel_shape"]
    top, left, bottom, right = settings.get("pads", [0] * 4)
    down, along = settings["strides"]
    outside = Fraction(0) if kind == "Conv" else None
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right)), constant_values=outside)
    rows = []
    for i in range(0, padded.shape[1] - height + 1, down):
        for j in range(0, padded.shape[2] - width + 1, along):
            window = padded[:, i : i + height, j : j + width]
            if kind == "Conv":
                rows.append([(w * window).sum() + b for w, b in zip(inputs[1], inputs[2], strict=True)])
            elif kind == "MaxPool":
                rows.append([max(v for v in channel.ravel() if v is not None) for channel in window])
            else:
                rows.append([channel.sum() / (height * width) for channel in window])
    size = (padded.shape[1] - height) // down + 1
    return np.array(rows, object).T.reshape(1, -1, size, len(rows) // size)


@pytest.mark.parametrize("number", range(COUNT), ids=list(FAMILIES))
def test_the_curve_is_what_the_network_computes(number):
    """On a grid of rationals and at the curve's own cuts, every score; and the least margin is at a cut."""
    _, case = made(7, number)
    labels, curves = labelled(case)
    for which in (0, len(curves) // 2, len(curves) - 1):
        along, curve = case.scene.paths[which], curves[which]
        grid = [along.end * Fraction(step, 12) for step in range(13)]
        cuts = curve.cuts[:: max(1, len(curve.cuts) // 12)]
        label = labels[which // len(case.scene.perturbations)]
        truth = curve.truth(label)
        for z in {*grid, *cuts, curve.cuts[-1]}:
            scores = evaluated(case.model, along.at(z), along.shape)
            assert curve.scores(z) == scores
            margin = scores[label] - max(s for j, s in enumerate(scores) if j != label)
            assert margin >= truth.margin
            assert (margin <= 0) <= (truth.critical is not None and z >= truth.critical)
        if truth.critical is not None:
            scores = evaluated(case.model, along.at(truth.critical), along.shape)
            assert scores[label] <= max(s for j, s in enumerate(scores) if j != label)


# -- hand-made --------------------------------------------------------------------------------------------------------


def valley(place: float, floor: float) -> onnx.ModelProto:
    """margin |x0 - place| + floor on a picture of 2 x 2."""
    builder = Builder((1, 2, 2))
    apart = builder.relu(builder.linear(builder.flat, [[1, 0, 0, 0], [-1, 0, 0, 0]], [-place, place]))
    return builder.model(builder.linear(apart, [[1, 1], [0, 0]], [floor, 0]))


def brighter(end: float = 1.0) -> ExactPath:
    return path(np.zeros((1, 2, 2)), "brightness:max=1", end)


@pytest.mark.parametrize(("floor", "critical"), [(0.25, None), (0.0, Fraction(1, 2)), (-0.25, Fraction(1, 4))])
def test_a_valley(floor, critical):
    curve = Curve(valley(0.5, floor), brighter())
    truth = curve.truth(0)
    assert curve.cuts == [0, Fraction(1, 2), 1]
    assert (truth.margin, truth.critical, truth.safe) == (Fraction(floor), critical, floor > 0)
    assert truth.scale == Fraction(1, 2) + Fraction(floor)


@pytest.mark.parametrize("place", [0.0, 1.0])
def test_a_tie_at_an_end_is_a_loss(place):
    truth = Curve(valley(place, 0.0), brighter()).truth(0)
    assert truth.critical == place
    assert not truth.safe
    assert truth.wins_at_zero == (place == 1)
    assert Curve(valley(1.0, 0.0), brighter(0.5)).truth(0).safe


def test_what_float64_cannot_tell():
    """2^53 + 1 - 2^53, and a needle between two neighbouring float64 numbers."""
    builder = Builder((1, 2, 2))
    ones = builder.linear(builder.flat, np.zeros((3, 4)), [1, 1, 1])
    model = builder.model(builder.linear(ones, [[2.0**53, 1, -(2.0**53)], [0, 0, 0]], [-0.5, 0]))
    assert Curve(model, brighter()).truth(0).margin == Fraction(1, 2)
    needle = Fraction(2, 3)  # no float64
    curve = Curve(valley(0.5, 0.0), path(np.zeros((1, 2, 2)), "brightness:max=0.75", 1.0))
    assert curve.truth(0).critical == needle


def test_max_pooling_finds_every_bend():
    builder = Builder((1, 2, 2))
    lines = builder.linear(
        builder.flat, [[-1, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [3, 0, 0, 0]], [0.5, -0.5, 0.125, -2.25]
    )
    model = builder.model(builder.linear(builder.largest(lines, 4, 4), [[1], [0]]))
    curve = Curve(model, brighter())
    assert curve.cuts == [0, Fraction(3, 8), Fraction(5, 8), Fraction(7, 8), 1]
    assert curve.truth(0).margin == Fraction(1, 8)


# -- kernels: two definitions -----------------------------------------------------------------------------------------

TEXTS = [
    *(f"{family}:size={size}" for family in ("box-blur", "sharpen") for size in range(3, 8)),
    *(f"motion-blur:size={size},angle={angle}" for size in range(3, 8) for angle in (0, 45, 90, 135)),
]


@pytest.mark.parametrize("text", TEXTS)
def test_kernels_are_the_packages(text):
    family, _, options = text.partition(":")
    assert kernel(family, dict(o.split("=") for o in options.split(","))) == at_full_strength(text)


@pytest.mark.parametrize("angle", ["30", "22.5", "100", "171", "1"])
def test_other_angles_are_the_packages_as_far_as_its_sine_goes(angle):
    ours = kernel("motion-blur", {"size": "5", "angle": angle})
    assert sum(map(sum, ours)) == 1
    theirs = at_full_strength(f"motion-blur:size=5,angle={angle}")
    assert all(abs(a - b) < 1e-15 for row in zip(ours, theirs, strict=True) for a, b in zip(*row, strict=True))


def at_full_strength(text: str) -> list[list[Fraction]]:
    (part,) = parse_path(text).parts
    return [list(row) for row in part.effect.at(1)]


PATHS = [
    "box-blur:size=3",
    "sharpen:size=4,padding=zeros",
    "motion-blur:size=5,angle=45,padding=replicate",
    "box-blur:size=4,padding=circular",
    "contrast:max=-0.3,clip=0.25..0.75",
    "brightness:max=0.2,clip=0..1",
]


@pytest.mark.parametrize("text", PATHS)
def test_paths_are_the_packages(text):
    import torch

    image = np.random.default_rng(0).random((3, 4, 4))
    ours = path(image, text, 0.7).at(Fraction(0.7))
    theirs = parse_path(text).apply(torch.from_numpy(image)).image(0.7)
    assert np.abs(np.array(ours, float) - theirs.numpy().ravel()).max() < 1e-14


# -- judging ----------------------------------------------------------------------------------------------------------


def verdict(floor: float, **answer: object) -> Tally:
    curve = Curve(valley(0.5, floor), brighter())
    return judged(Asked(0, "brightness:max=1", 0, curve.truth(0)), curve, answer)


def test_wrong_answers_are_seen():
    assert verdict(0.25, status="safe", certified_strength=1.0).wrong == 0
    assert verdict(0.0, status="safe").wrong_safe == 1
    assert verdict(0.0, status="undecided").wrong == 0
    assert verdict(0.25, status="unsafe", counterexample={"replayed": False}).wrong_unsafe == 1
    assert verdict(0.25, status="unsafe", counterexample={"replayed": True}).only_in_float32 == 1
    assert verdict(0.25, status="misclassified").wrong_unsafe == 1
    assert verdict(-0.25, status="unsafe", critical_strength=[0.2, 0.3], certified_strength=0.2).wrong == 0
    assert verdict(-0.25, status="unsafe", critical_strength=[0.3, 0.4]).wrong_critical == 1
    assert verdict(-0.25, status="unsafe", certified_strength=0.25).wrong_certified == 1
    assert verdict(-0.25, status="unsafe", profile=[{"from": 0.0, "to": 1.0, "class": 0}]).wrong_profile == 1
    assert verdict(0.25, status="unsafe", profile=[{"from": 0.0, "to": 1.0, "class": 1}]).wrong_profile == 1


def test_queries_repeat_themselves():
    for number in range(COUNT):
        (_, first), (_, again), (_, other) = made(0, number), made(0, number), made(1, number)
        assert first.model == again.model
        assert first.scene.perturbations == again.scene.perturbations
        assert all(map(np.array_equal, first.scene.images, again.scene.images))
        assert first.model != other.model


# -- the package ------------------------------------------------------------------------------------------------------


def test_the_package_is_never_wrong_about_safe(tmp_path):
    """A network of each family, some hundreds of queries."""
    suite, total = Suite(in_process(), tmp_path, ["--threads", "1", "--timeout", "5"]), Tally()
    for number in range(COUNT):
        tally, _ = suite.run(*made(3, number), number)
        total += tally
    assert total.queries > 500
    assert total.wrong == 0
    assert total.safe > 250
    assert total.unsafe > 50


@pytest.mark.parametrize("number", [21, 185], ids=["narrow-towers", "cancellation"])
def test_what_cancels_where_nobody_looks(tmp_path, number):
    """Large values cancel on a short piece among many others; the smallest margin that float64 sees is elsewhere."""
    tally, _ = Suite(in_process(), tmp_path, ["--threads", "1", "--timeout", "5"]).run(*made(0, number), number)
    assert tally.wrong_safe == 0


@pytest.mark.parametrize("number", [117, 251, 446, 538], ids=["needles", "copies", "cancellation", "far-from-zero"])
def test_nothing_is_claimed_that_float64_alone_says(tmp_path, number):
    """The ends of proved intervals and of brackets, and that a label loses at strength 0."""
    tally, _ = Suite(in_process(), tmp_path, ["--threads", "1", "--timeout", "5"]).run(*made(777, number), number)
    assert tally.wrong == 0
    assert tally.safe + tally.unsafe > 0


@pytest.mark.parametrize("number", [407, 588], ids=["folded-constants", "merged-layers"])
def test_a_loss_in_the_runtime_alone_is_no_critical_strength(tmp_path, number):
    """The runtime computes something else at a strength drawn at random, where the network as it was read wins."""
    suite = Suite(in_process(), tmp_path, ["--threads", "1", "--timeout", "20"])
    tally, _ = suite.run(*made(20261119, number), number)
    assert tally.wrong == 0
    assert tally.unsafe > 0


def test_a_liar_is_caught(tmp_path):
    """A command that says safe to everything."""
    liar = tmp_path / "liar.py"
    liar.write_text(
        "import json, sys\n"
        "for _ in range(sum('@' in a for a in sys.argv) * sys.argv.count('-p')):\n"
        "    print(json.dumps({'status': 'safe', 'certified_strength': 1.0}))\n"
    )
    _, case = made(0, 1)
    tally, wrong = Suite(command(f"{sys.executable} {liar}"), tmp_path).run("needles", case, 1)
    assert tally.wrong_safe == tally.queries - tally.truly_safe > 0
    assert len(wrong) == tally.wrong_safe
    json.dumps(wrong)
    tally, _ = Suite(command(f"{sys.executable} -c pass"), tmp_path).run("needles", case, 1)
    assert tally.errors == tally.queries


def test_scenes_are_asked_images_first():
    scene = Scene([np.zeros((1, 2, 2)), np.ones((1, 2, 2))], ["brightness:max=1", "contrast:max=1"], 0.5)
    assert [p.at(p.end)[0] for p in scene.paths] == [0.5, 0, 1.5, 1.5]
