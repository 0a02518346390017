"""The comparison with the runtime: float32's own noise is told from a misreading, and it can always fail."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from models import model
from onnx import TensorProto, helper

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import NetworkMismatchError
from shakeproof.model import SHARE, Comparison, comparison, onnx_reader, telling
from shakeproof.model.builder import Attributes
from shakeproof.model.onnx_reader import OPERATORS
from shakeproof.model.runtimes import evaluator

random = np.random.default_rng(0)
NOTE = "the runtime would agree with another network as well"


def wide(*shape):
    return random.normal(size=shape).astype(np.float32)


def saved(tmp_path, proto):
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


# What lies between keeps our graph from putting the additions together, or does not.
THROUGH = {"a bend": "Relu", "nothing": "Identity"}


def cancelling(bits, through):
    """A network of dense layers, with an average over one axis, whose scores y become 1 + y / 2^bits and y again.

    Of their digits, float32 keeps 24 - bits.
    """
    weights = {
        "w1": wide(16, 8),
        "b1": wide(8),
        "square": np.array([1, 2, 4]),
        "w2": wide(4, 3),
        "b2": wide(3),
        "s": np.float32(2.0**-bits),
        "big": np.float32(2.0**bits),
        "one": np.float32(1),
    }
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w1", "b1"], ["g"]),
        helper.make_node("LeakyRelu", ["g"], ["l"], alpha=0.3),
        helper.make_node("Reshape", ["l", "square"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["m"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["m", "w2", "b2"], ["z"]),
        helper.make_node("Mul", ["z", "s"], ["small"]),
        helper.make_node("Add", ["small", "one"], ["near one"]),
        helper.make_node(THROUGH[through], ["near one"], ["back"]),
        helper.make_node("Sub", ["back", "one"], ["smaller"]),
        helper.make_node("Mul", ["smaller", "big"], ["y"]),
    ]
    return model(nodes, (1, 1, 4, 4), weights)


def apart(network, x, by=0.0):
    """How far runtime and network are apart, if the runtime's outputs are off by something."""
    theirs = network.reference(x) + np.float32(by)
    return network.beside(network.scores(torch.from_numpy(x).double()), theirs, x)[0]


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("bits", [10, 18, 23])
def test_a_network_that_cancels_was_read_rightly(tmp_path, through, bits):
    network = sp.load(saved(tmp_path, cancelling(bits, through)))
    x = random.random((9, 1, 1, 4, 4), np.float32)
    assert (apart(network, x) <= 1).all()
    _, within = network.beside(network.scores(torch.from_numpy(x).double()), network.reference(x), x)
    assert (apart(network, x, by=1.01 * within + 1e-3) > 1).all()


@pytest.mark.parametrize("through", THROUGH)
def test_nothing_is_safe_where_noise_is_as_large_as_the_margin(tmp_path, through):
    network = sp.load(saved(tmp_path, cancelling(23, through)))
    assert any(NOTE in note for note in network.notes)
    reasons = set()
    for seed in range(8):
        result = sp.profile(network, np.random.default_rng(seed).random((1, 4, 4)), "box-blur:size=3")
        reasons.add(result.reason)
        assert result.status is not sp.Status.SAFE
        assert result.certified_strength == 0.0
        assert result.critical_strength in (None, (0.0, 0.0))
    assert sp.Reason.COMPARISON in reasons


def test_the_reason_shows_both_values(tmp_path):
    network = sp.load(saved(tmp_path, cancelling(23, "a bend")))
    results = (
        sp.profile(network, np.random.default_rng(seed).random((1, 4, 4)), "box-blur:size=3") for seed in range(20)
    )
    result = next(result for result in results if result.reason is sp.Reason.COMPARISON)
    said = result.to_json()["comparison"]
    assert said["noise"] > SHARE * said["margin"] > 0
    both = f"(noise {said['noise']:.2g}, margin {said['margin']:.2g})"
    assert both in result.sentence
    assert both == f"({result.noise})"  # the remark in tables
    assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
    assert "comparison" not in sp.profile(demo.MODEL, np.full((3, 32, 32), 0.5), "box-blur:size=3").to_json()


def misread_slope(call):
    return call.value().leaky_relu(0.301)


def misread_axis(call):
    return call.value().reshape((1, 4, 2)).mean([2], keep=False).reshape((1, 4))


def without_bias(call):
    bare = replace(call, inputs=call.inputs[:2], attributes=Attributes({}))
    return OPERATORS["Gemm"](bare)


MISREADINGS = {"LeakyRelu": misread_slope, "ReduceMean": misread_axis, "Gemm": without_bias}


@pytest.mark.parametrize("kind", MISREADINGS)
@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize("bits", [4, 10, 23])
def test_a_misreading_is_refused_or_nothing_rests_on_it(tmp_path, monkeypatch, kind, through, bits):
    """Where float32 keeps enough digits to show it, it is refused; where it does not, the answer is undecided."""
    read = MISREADINGS[kind]

    def wrong(call):
        for name in call.attributes:
            call.attributes[name]  # they are looked at, if wrongly
        return read(call)

    path = saved(tmp_path, cancelling(bits, through))
    monkeypatch.setattr(onnx_reader, "OPERATORS", {**OPERATORS, kind: wrong})
    if bits < 23:
        with pytest.raises(NetworkMismatchError, match="differs from the reference runtime"):
            sp.load(path)
        return
    try:
        network = sp.load(path)
    except NetworkMismatchError:
        return
    result = sp.profile(network, random.random((1, 4, 4)), "box-blur:size=3")
    assert result.status is not sp.Status.SAFE
    assert result.certified_strength == 0.0


def computed_weight(rivals=()):
    """The first class scores 2^20 (w x - a x) - b, and the second 0; the file computes w = (a + 2^30) - 2^30.

    In real numbers w is a, and the first class loses by b; in float64 it is a little more, and wins by as much; in
    float32 it is 0. There may be other classes, with constant scores.
    """
    size, large = np.float32(2.0**20), 2.0**30
    a = next(a for a in (-random.random(100)).astype(np.float32) if (float(a) + large) - large > float(a))
    b = size * ((float(a) + large) - large - float(a)) / 2
    scores = np.zeros((2 + len(rivals), 2), np.float32)
    scores[0] = size, -size * a
    weights = {"a": np.array([a]), "c": np.float32([large]), "at": np.array([4]), "behind": np.array([5])}
    weights |= {"axis": np.array([1]), "w2": scores, "b2": np.float32([-b, 0, *rivals])}
    nodes = [
        helper.make_node("Add", ["a", "c"], ["more"]),
        helper.make_node("Sub", ["more", "c"], ["w"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Slice", ["f", "at", "behind", "axis"], ["p"]),
        helper.make_node("Mul", ["p", "w"], ["wp"]),
        helper.make_node("Concat", ["wp", "p"], ["both"], axis=1),
        helper.make_node("Gemm", ["both", "w2", "b2"], ["y"], transB=1),
    ]
    return model(nodes, (1, 1, 3, 3), weights)


@pytest.mark.parametrize("rivals", [(), (-1e9,), (-1e14,), (-1e30,)])
@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_a_weight_that_the_file_computes_makes_nothing_safe(tmp_path, rivals, method):
    """Nor does a class that is far below all others, and makes scores far apart."""
    try:
        network = sp.load(saved(tmp_path, computed_weight(rivals)))
    except sp.ShakeproofError:
        return
    result = sp.verify(network, np.ones((1, 3, 3)), "box-blur:size=3", 1.0, label=0, method=method)
    assert result.status is not sp.Status.SAFE
    assert result.certified_strength == 0.0


def test_a_claim_rests_on_a_margin_that_noise_leaves_alone():
    margin, noise = np.array([1.0, 0.1, -1.0, 0.0, np.nan]), np.full(5, 0.1 * SHARE)
    assert telling(margin, noise).tolist() == [True, True, True, True, False]
    assert telling(margin, 2 * noise).tolist() == [True, False, True, True, False]
    assert telling(margin, np.full(5, np.nan)).tolist() == [False, False, True, True, False]
    # the place with the least margin answers for the smallest one between places
    assert telling(margin[:4], noise[:4], 0.01).tolist() == [True, False, True, True]
    zero, no, where = np.zeros(4), np.zeros(4, bool), np.array([0.0, 0.4, 0.6, 0.8])
    made = Comparison(margin[:4], no, zero, noise[:4], np.array([True, True, False, True]), where)
    assert made.winners_told_up_to == 0.4
    assert made.tells()
    assert made.told_up_to() == np.inf
    assert made.told_up_to(0.01) == 0.0
    early = replace(made, strength=np.array([0.3, 0.4, 0.1, 0.8]))
    assert early.told_up_to(0.01) == 0.3
    assert replace(made, disagreement=np.full(4, 2.0)).told_up_to() == 0.0
    assert made.worst() == (0.1 * SHARE, 0.1)
    assert not made.tells(0.01)
    assert made.worst(0.01) == (0.1 * SHARE, 0.01)


def test_a_softmax_that_is_sure_hides_no_misreading(tmp_path):
    """Outputs of 1 and 1e-20 say as little of the scores as outputs of 1 and 1e-15; their logarithms say all."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=1),
    ]
    weights = {"w": 0.01 * wide(16, 3), "b": np.float32([40.0, 0.0, -10.0])}
    network = sp.load(saved(tmp_path, model(nodes, (1, 1, 4, 4), weights)))
    assert network.dropped == "Softmax"
    x = random.random((4, 1, 1, 4, 4), np.float32)
    assert (apart(network, x) <= 1).all()
    scores, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    assert (network.beside(0.9 * scores, theirs, x)[0] > 1).all()
    assert np.abs(torch.softmax(0.9 * scores, 1).numpy() - theirs).max() < 1e-15


def test_powers_of_pixels_are_compared_by_what_each_picture_gives(tmp_path):
    """Pixels in 0..255 give outputs of 10^16, of which 1 is next to nothing."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Pow", ["f", "power"], ["p"])]
    nodes += [helper.make_node("Gemm", ["p", "w"], ["g"]), helper.make_node("Add", ["g", "f"], ["y"])]
    weights = {"w": 0.1 * wide(4, 4), "power": np.float32(7)}
    network = sp.load(saved(tmp_path, model(nodes, (1, 1, 2, 2), weights)))
    x = random.random((1, 1, 1, 2, 2)).astype(np.float32)
    ours, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    assert network.beside(ours, theirs, x)[0] <= 1
    assert not network.beside(1.001 * ours, theirs, x)[0] <= 1


def test_ordinary_networks_get_no_note_and_need_no_samples(monkeypatch):
    def asked(*_):
        raise AssertionError

    network = sp.load(demo.MODEL)
    assert not any(NOTE in note for note in network.notes)
    monkeypatch.setattr("shakeproof.model.network.float32_noise", asked)
    assert (apart(network, random.random((20, 1, 3, 32, 32), np.float32)) <= 1).all()


def test_the_noise_of_an_ordinary_network_is_small():
    network = sp.load(demo.MODEL)
    x = torch.from_numpy(random.random((4, 1, 3, 32, 32)))
    noise = comparison.float32_noise(network.graph, x, lambda scores: scores)
    assert 0 < noise.max() < 1e-4 * float(network.scores(x).abs().max())
    rounded = network.reference(x.float().numpy()).astype(np.float64)
    assert (np.abs(rounded - network.scores(x.float().double()).numpy()) <= noise).all()


def test_a_float64_network_that_onnxruntime_does_not_run(tmp_path):
    proto = model(
        [helper.make_node("Conv", ["x", "k"], ["c"]), helper.make_node("Relu", ["c"], ["r"]),
         helper.make_node("Flatten", ["r"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"])],
        (1, 1, 4, 4), {"k": random.normal(size=(2, 1, 3, 3)), "w": random.normal(size=(8, 3))},
    )  # fmt: skip
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    network = sp.load(saved(tmp_path, proto))
    assert any("compared with ONNX's reference implementation" in note for note in network.notes)
    result = sp.profile(network, random.random((1, 4, 4)), "box-blur:size=3")
    assert result.status in (sp.Status.SAFE, sp.Status.UNSAFE)


def test_a_hard_swish_has_exact_sixths():
    """The reference implementation has them in float32, which is too far off for float64 networks."""
    node = helper.make_node("HardSwish", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 5]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    scores = evaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    x = np.array([[[-4.0, -1.0, 0.3, 1.0, 5.0]]])
    assert scores(x) == pytest.approx(x[0] * np.clip(x[0] + 3, 0, 6) / 6, rel=1e-15)
