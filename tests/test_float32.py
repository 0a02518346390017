"""What is proved of float32 holds in every float32 evaluation: the runtime's, and sums added up in other orders."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model, network_of
from onnx import helper
from torch import nn

import shakeproof as sp
from shakeproof.bounds import Boxes, enclose
from shakeproof.checker import enclosure
from shakeproof.graph import LARGEST_FLOAT32, Graph
from shakeproof.model import rewriting
from shakeproof.operators import Linear, Operator, Relu


def shuffled(graph: Graph, x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The scores of a fully connected network in float32, each sum in an order of its own."""
    x = x.astype(np.float32).reshape(-1)
    for node in graph.nodes:
        operator = node.operator
        if isinstance(operator, Linear):
            weight, bias = (part.numpy().astype(np.float32) for part in (operator.weight, operator.bias))
            made = np.empty(len(bias), np.float32)
            for row in range(len(bias)):
                total = np.float32(0)
                for term in random.permutation(np.append(weight[row] * x, bias[row])):
                    total = np.float32(total + term)
                made[row] = total
            x = made
        elif isinstance(operator, Relu):
            x = np.maximum(x, 0)
    return x


class Dense(nn.Module):
    def __init__(self, seed: int, layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = [9, *[12] * layers, 3]
        parts: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            parts += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.parts = nn.Sequential(*parts[:-1])

    def forward(self, x):
        return self.parts(x)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_enclosures_hold_every_order_of_summation(seed):
    network = network_of(Dense(seed), 1, 3, 3)
    graph, random = network.graph.in_float32(), np.random.default_rng(seed)
    path = sp.box_blur(3).apply(torch.from_numpy(random.uniform(0, 1, (1, 3, 3))))
    ends = torch.tensor([[0.3, 0.3 + 1e-3]], dtype=torch.float64)
    cell = Boxes(ends[:, :1], ends[:, 1:])
    inputs = path.at(cell.points).view(2, 1, *graph.input_shape)
    scores = enclose(graph, inputs, cell, path.error.view(1, *graph.input_shape)).scores
    low, high = (end[0].numpy() for end in scores.range)
    seen = []
    for z in random.uniform(0.3, 0.3 + 1e-3, 8):
        x = path.image(float(z)).numpy()
        seen += [shuffled(graph, x, random), network.reference(x.astype(np.float32).reshape(1, *graph.input_shape))[0]]
    assert (low <= np.min(seen, 0)).all()
    assert (high >= np.max(seen, 0)).all()


def test_real_numbers_would_not_be_enough():
    """A negative control: enclosures about real numbers do not hold what float32 makes of them."""
    outside = 0
    for seed in range(10):
        network = network_of(Dense(seed), 1, 3, 3)
        random = np.random.default_rng(seed)
        x = torch.from_numpy(random.uniform(0, 1, (1, *network.graph.input_shape)))
        point = Boxes(*(torch.zeros(1, 1, dtype=torch.float64) for _ in range(2)))
        scores = enclose(network.graph, torch.stack([x, x]), point, torch.zeros_like(x)).scores
        theirs = shuffled(network.graph, x.numpy(), random)
        outside += bool((np.abs(theirs - scores.points[0, 0].numpy()) > scores.radius[0].numpy()).any())
    assert outside > 5


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_a_verdict_about_float32_is_harder_to_come_by(method):
    """With a margin that real numbers make out and float32 does not: safe in the one, undecided in the other."""
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())]
    module = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 2))
    with torch.no_grad():
        for layer in (*layers[::2], module[-1]):
            layer.weight.uniform_(0.9 / 64, 1.1 / 64)
            layer.bias.zero_()
        module[-1].weight[1] = module[-1].weight[0]
        module[-1].bias[0] = 1e-5
    network = network_of(module, 1, 8, 8)
    image = np.full((1, 8, 8), 0.5, np.float32)
    real = sp.profile(network, image, "box-blur:size=3", label=0, method=method)
    single = sp.profile(network, image, "box-blur:size=3", label=0, method=method, arithmetic="float32")
    assert (real.status, real.arithmetic) == (sp.Status.SAFE, "real")
    assert (single.status, single.reason) == (sp.Status.UNDECIDED, sp.Reason.FLOAT32)
    assert single.to_json()["arithmetic"] == "float32"
    with torch.no_grad():
        module[-1].bias[0] = 1e-3
    clear = network_of(module, 1, 8, 8)
    found = sp.profile(clear, image, "box-blur:size=3", label=0, method=method, arithmetic="float32")
    assert found.status is sp.Status.SAFE


def test_curves_are_refused():
    network = network_of(nn.Sequential(nn.Flatten(), nn.Linear(9, 2), nn.Sigmoid()), 1, 3, 3)
    with pytest.raises(sp.ShakeproofError, match="float32 is not certified"):
        sp.profile(network, np.zeros((1, 3, 3)), "box-blur:size=3", label=0, arithmetic="float32")


# -- networks that a hostile reader built -----------------------------------------------------------------------------


def asked(tmp_path, nodes, weights, shape, **options):
    """What is said of all pixels getting brighter, or blurred, in float32."""
    made = model(nodes, [1, *shape], {name: np.asarray(w, np.float32) for name, w in weights.items()})
    onnx.save(made, tmp_path / "m.onnx")
    network = sp.load(tmp_path / "m.onnx")
    image = np.full(shape, options.pop("pixel", 0.5), np.float32)
    return network, sp.verify(network, image, options.pop("by", "brightness:max=0.5"), 1.0, label=0, **options)


def test_a_sum_may_begin_with_a_constant_that_cancels(tmp_path):
    """16 + 1024 small terms - 16: whoever adds the 16 first loses the others."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["s"]),
        helper.make_node("Add", ["s", "c"], ["y"]),
    ]
    weight = np.zeros((1024, 3))
    weight[:, 0] = 5e-7
    weights = {"w": weight, "b": [16, 0, 0], "c": [-16, 2.5e-4, -100]}
    options = {"pixel": 1.0, "by": "box-blur:size=3"}
    _, result = asked(tmp_path, nodes, weights, (1, 32, 32), arithmetic="float32", **options)
    assert result.status is sp.Status.UNDECIDED
    _, result = asked(tmp_path, nodes, weights, (1, 32, 32), **options)
    assert result.status is sp.Status.SAFE


SPIKE = 0.5 + 1.5 / 64
HAT = {"first": [[1, 1, 1, 0], *[[0] * 4] * 3], "at": [-SPIKE + 1 / 256, -SPIKE, -SPIKE - 1 / 256, 1]}


def hat():
    """A hat over one pixel, between the strengths that are compared with the runtime; and a 1."""
    return [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "first", "at"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
    ]


def test_every_constant_that_is_added_is_a_rounding(tmp_path):
    nodes = [*hat(), helper.make_node("MatMul", ["r", "second"], ["s0"])]
    weights = {**HAT, "second": [[0.1, 0.1], [-0.2, -0.2], [0.1, 0.1], [0.9998, 0.9998]]}
    for number in range(800):
        weights[f"c{number}"] = [2.0**-23 * 0.49, 2.0**-23 * 20 if number == 0 else 0]
        nodes.append(helper.make_node("Add", [f"s{number}", f"c{number}"], [f"s{number + 1}"]))
    nodes[-1].output[0] = "y"
    network, result = asked(tmp_path, nodes, weights, (1, 2, 2), arithmetic="float32")
    (theirs,) = network.reference(np.full((1, *network.graph.input_shape), SPIKE, np.float32))
    assert theirs[0] < theirs[1]  # the runtime itself loses there
    assert result.status is not sp.Status.SAFE


def test_what_overflows_on_its_way(tmp_path):
    big = 2.0**70
    nodes = [
        *hat(),
        helper.make_node("MatMul", ["r", "up"], ["a"]),
        helper.make_node("MatMul", ["a", "further"], ["b"]),
        helper.make_node("MatMul", ["b", "down"], ["c"]),
        helper.make_node("Gemm", ["c", "last", "lead"], ["y"]),
    ]
    up = [[big], [-2 * big], [big], [0]]
    weights = {**HAT, "up": up, "further": [[big]], "down": [[1 / big]], "last": [[0, 1 / big]], "lead": [1, 0]}
    network, result = asked(tmp_path, nodes, weights, (1, 2, 2), arithmetic="float32")
    assert not np.isfinite(network.reference(np.full((1, *network.graph.input_shape), SPIKE, np.float32))).all()
    assert result.status is not sp.Status.SAFE


def one_after_another():
    """A factor of 1 in all. Four parts of it make 2^-160, which is 0 in float32."""
    nodes = [helper.make_node("Relu", ["h"], ["c0"])]
    nodes += [helper.make_node("Mul", [f"c{i}", "down" if i < 4 else "up"], [f"c{i + 1}"]) for i in range(8)]
    return nodes, {"down": [2.0**-40], "up": [2.0**40]}, "c8"


def folded_into_a_convolution():
    """2^79, a convolution by 2^-75, 2^-75 and 2^71: onnxruntime makes one weight of the middle two, which is 0."""
    nodes = [
        helper.make_node("MatMul", ["h", "first up"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Unsqueeze", ["b", "axes"], ["picture"]),
        helper.make_node("Conv", ["picture", "kernel"], ["d"]),
        helper.make_node("Mul", ["d", "down"], ["c2"]),
        helper.make_node("Squeeze", ["c2", "axes"], ["e"]),
        helper.make_node("Relu", ["e"], ["g"]),
        helper.make_node("MatMul", ["g", "then up"], ["copy"]),
    ]
    ups = {"first up": [[2.0**79]], "then up": [[2.0**71]]}
    return nodes, {**ups, "kernel": [[[[2.0**-75]]]], "down": [[[2.0**-75]]]}, "copy"


VANISHING = {"one after another": one_after_another, "folded into a convolution": folded_into_a_convolution}


def vanishing(folder, name):
    """0.5 - 1000 (h - copy): a hat between the strengths that are compared, and a copy that vanishes in float32."""
    between, weights, copy = VANISHING[name]()
    nodes = [
        *hat(),
        helper.make_node("MatMul", ["r", "second"], ["h"]),
        *between,
        helper.make_node("Concat", [copy, "h"], ["both"], axis=1),
        helper.make_node("Gemm", ["both", "last", "lead"], ["y"]),
    ]
    weights |= {**HAT, "second": [[1], [-2], [1], [0]], "last": [[1000, 0], [-1000, 0]], "lead": [0.5, 0]}
    arrays = {key: np.asarray(value, np.float32) for key, value in weights.items()} | {"axes": np.array([2, 3])}
    onnx.save(model(nodes, [1, 1, 2, 2], arrays), folder / "m.onnx")
    return sp.load(folder / "m.onnx")


@pytest.mark.parametrize("name", VANISHING)
def test_factors_that_make_nothing_of_a_value_are_refused_by_name(tmp_path, name):
    network = vanishing(tmp_path, name)
    (theirs,) = network.reference(np.full((1, *network.graph.input_shape), SPIKE, np.float32))
    assert theirs[0] < theirs[1]  # the runtime itself loses there
    image = np.full((1, 2, 2), 0.5, np.float32)
    assert sp.verify(network, image, "brightness:max=0.5", 1.0, label=0).status is sp.Status.SAFE
    with pytest.raises(sp.ShakeproofError, match=r"float32 is not certified .*: Mul \(c2\)"):
        sp.verify(network, image, "brightness:max=0.5", 1.0, label=0, arithmetic="float32")


def test_a_factor_that_makes_up_for_a_weight_that_vanished(tmp_path):
    """We fold them together, and what is lost of the weight alone would not be seen."""
    nodes = [
        *hat(),
        helper.make_node("MatMul", ["r", "second"], ["s"]),
        helper.make_node("Mul", ["s", "large"], ["u"], name="large"),
        helper.make_node("Mul", ["u", "large"], ["y"], name="larger"),
    ]
    weights = {**HAT, "second": np.full((4, 2), 2.0**-60) * [1, 0], "large": [2.0**30]}
    with pytest.raises(sp.ShakeproofError, match=r"float32 is not certified .*: Mul \(large\), Mul \(larger\)"):
        asked(tmp_path, nodes, weights, (1, 2, 2), arithmetic="float32")
    assert asked(tmp_path, nodes, weights, (1, 2, 2))[1].status is sp.Status.SAFE


def test_a_final_softmax_is_refused(tmp_path):
    """It may make two different scores one share."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Softmax", ["f"], ["y"], axis=1)]
    with pytest.raises(sp.ShakeproofError, match="Softmax"):
        asked(tmp_path, nodes, {}, (1, 2, 2), arithmetic="float32")


# What IEEE 754 fixes in float32. Whoever adds a class here shows why every runtime rounds it so.
FIXED = {
    *(
        "Abs",
        "AveragePool",
        "Clip",
        "Combine",
        "Concat",
        "Conv",
        "LeakyRelu",
        "Linear",
        "MaxPool",
        "Mean",
        "Pad",
        "Pairs",
        "Ranked",
        "Relu",
    ),
    *("Reshape", "Scale", "Transpose", "Unrolled"),
}


def every(kind: type[Operator]) -> set[type[Operator]]:
    return {kind}.union(*(every(part) for part in kind.__subclasses__()))


def test_only_listed_operators_are_covered():
    """And each class says so itself: a new kind of operator, or a new kind of convolution, is not covered."""
    ours = {kind for kind in every(Operator) if kind.__module__.startswith("shakeproof.")}
    assert {kind.__name__ for kind in ours if kind.rounds_as_ieee} == FIXED
    assert all("rounds_as_ieee" in vars(kind) for kind in ours if kind.rounds_as_ieee)


def resized(mode: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Resize", ["x", "", "scales"], ["r"], name="up", mode=mode),
        helper.make_node("Flatten", ["r"], ["y"]),
    ]


def batch_norm() -> list[onnx.NodeProto]:
    names = ["x", *("weight", "bias", "mean", "variance")]
    return [
        helper.make_node("BatchNormalization", names, ["n"], name="up"),
        helper.make_node("Flatten", ["n"], ["y"]),
    ]


def computed() -> list[onnx.NodeProto]:
    """A weight (A + c) - c, which float64 knows, and float32 does not."""
    return [
        helper.make_node("Add", ["bias", "mean"], ["sum"], name="up"),
        helper.make_node("Sub", ["sum", "mean"], ["w"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Mul", ["f", "w"], ["y"]),
    ]


NOT_FIXED = {
    "interpolation by quarters": (resized("linear"), r"Resize \(up\)"),
    "interpolation by sixteenths": (resized("linear"), r"Resize \(up\)"),
    "nearest": (resized("nearest"), r"Resize \(up\)"),
    "batch norm": (batch_norm(), r"BatchNormalization \(up\)"),
    "computed weights": (computed(), r"Add \(up\), Sub \(w\)"),
    "curve": ([helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Sigmoid", ["f"], ["y"])], r"Sigmoid \(y\)"),
}


@pytest.mark.parametrize("name", NOT_FIXED)
def test_what_runtimes_round_in_their_own_ways_is_refused_by_name(tmp_path, name):
    nodes, named = NOT_FIXED[name]
    factor = 1.0625 if "sixteenths" in name else 2.0
    weights = {
        "scales": [1, 1, factor, factor],
        "weight": [1.5],
        "bias": [0.3],
        "mean": [1.5],
        "variance": [2.0],
    }
    assert asked(tmp_path, nodes, weights, (1, 16, 16))[1].arithmetic == "real"
    with pytest.raises(sp.ShakeproofError, match=rf"float32 is not certified .*: {named}; ask about real") as refused:
        asked(tmp_path, nodes, weights, (1, 16, 16), arithmetic="float32")
    assert "\n" not in str(refused.value)


def test_the_checker_limits_float32_as_the_prover_does():
    """Written apart: what the one calls safe, the other must not refuse, nor accept more."""
    assert enclosure.SHRUNK == rewriting.SHRUNK
    assert enclosure.LARGEST_FLOAT32 == LARGEST_FLOAT32
