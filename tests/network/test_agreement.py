"""The comparison with the runtime: float32's own error is told from a misreading, also where it is large."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from models import model, network_of
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import NetworkMismatchError
from shakeproof.network import OPERATORS, agreement, onnx_reader
from shakeproof.network.onnx_call import Attributes
from shakeproof.network.twins import Twin, evaluator, in_float64

random = np.random.default_rng(0)
LOSES = "float32 loses digits of this network"
# What the scores are multiplied by before 1 is added and taken away again: float32 keeps 24 - 18 bits of them.
SMALL = 2.0**-18


def wide(*shape):
    return random.normal(size=shape).astype(np.float32)


def cancelling(through, opset=13):
    """A network of dense layers, with an average over one axis, whose scores go by 1 + s y, and what `through` adds."""
    weights = {
        "w1": wide(16, 8),
        "b1": wide(8),
        "square": np.array([1, 2, 4]),
        "w2": wide(4, 3),
        "b2": wide(3),
        "s": np.float32(SMALL),
        "big": np.float32(1 / SMALL),
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
        *through,
        helper.make_node("Sub", ["back", "one"], ["smaller"]),
        helper.make_node("Mul", ["smaller", "big"], ["y"]),
    ]
    return model(nodes, (1, 1, 4, 4), weights, opset=opset)


# What lies between keeps our graph from putting the additions together, or does not.
THROUGH = {
    "a bend": [helper.make_node("Relu", ["near one"], ["back"])],
    "nothing": [helper.make_node("Identity", ["near one"], ["back"])],
}


def saved(tmp_path, proto):
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("through", THROUGH)
def test_a_network_that_cancels_loads_with_a_note(tmp_path, through):
    network = sp.load(saved(tmp_path, cancelling(THROUGH[through])))
    assert any(LOSES in note for note in network.notes)
    x = random.random((9, 1, 1, 4, 4), np.float32)
    ours, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    assert (network.disagreement(ours, theirs) > 1).any()
    assert (network.disagreement(ours, theirs, x) <= 1).all()


def misread_slope(call):
    return call.builder.leaky_relu(call.value(), 0.301)


def misread_axis(call):
    x = call.value()
    return call.builder.reshape(call.builder.mean(call.builder.reshape(x, (1, 4, 2)), [2], keep=False), (1, 4))


def without_bias(call):
    bare = replace(call, inputs=call.inputs[:2], attributes=Attributes({}))
    return OPERATORS["Gemm"](bare)


MISREADINGS = {"LeakyRelu": misread_slope, "ReduceMean": misread_axis, "Gemm": without_bias}


@pytest.mark.parametrize("kind", MISREADINGS)
@pytest.mark.parametrize("through", THROUGH)
def test_a_misreading_is_caught_where_float32_loses_digits(tmp_path, monkeypatch, kind, through):
    read = MISREADINGS[kind]

    def wrong(call):
        for name in call.attributes:
            call.attributes[name]  # they are looked at, if wrongly
        return read(call)

    monkeypatch.setattr(onnx_reader, "OPERATORS", {**OPERATORS, kind: wrong})
    with pytest.raises(NetworkMismatchError, match="differs from the reference runtime"):
        sp.load(saved(tmp_path, cancelling(THROUGH[through])))


def test_a_runtime_that_computes_something_else_is_caught_where_float32_loses_digits(tmp_path):
    network = sp.load(saved(tmp_path, cancelling(THROUGH["a bend"])))
    x = random.random((9, 1, 1, 4, 4), np.float32)
    ours, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    spread = float(np.ptp(theirs))
    assert (network.disagreement(ours, theirs + np.float32(2 * spread), x) > 1).all()
    blind = replace(network, twin=None)
    assert (blind.disagreement(ours, theirs, x) == network.disagreement(ours, theirs)).all()


def test_what_float32_may_take_anywhere_explains_nothing(tmp_path):
    network = sp.load(saved(tmp_path, cancelling(THROUGH["a bend"])))
    x = random.random((9, 1, 1, 4, 4), np.float32)
    ours, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    twin = Twin(network.twin.exact, lambda given: np.full((len(given), 3), np.inf))  # it divides by nothing, say
    assert not (replace(network, twin=twin).disagreement(3 * ours, theirs, x) <= 1).any()


def test_a_network_of_powers_is_compared_by_what_pictures_give(tmp_path):
    """Pixels in 0..255 give outputs of 10^16, of which 1 is next to nothing."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Pow", ["f", "power"], ["p"])]
    nodes += [helper.make_node("Gemm", ["p", "w"], ["g"]), helper.make_node("Add", ["g", "f"], ["y"])]
    weights = {"w": 0.1 * wide(4, 4), "power": np.float32(7)}
    network = sp.load(saved(tmp_path, model(nodes, (1, 1, 2, 2), weights)))
    x = random.random((1, 1, 1, 2, 2)).astype(np.float32)
    ours, theirs = network.scores(torch.from_numpy(x).double()), network.reference(x)
    assert network.disagreement(ours, theirs, x) <= 1
    assert not network.disagreement(3 * ours, theirs, x) <= 1


def test_the_querys_own_pictures_are_judged_alike(tmp_path):
    network = sp.load(saved(tmp_path, cancelling(THROUGH["a bend"])))
    result = sp.profile(network, random.random((1, 4, 4)), "box-blur:size=3")
    assert result.evidence.comparison is None or result.evidence.comparison.outputs_agree
    assert result.reason is not sp.Reason.RUNTIME_DISAGREES


def test_a_module_that_cancels():
    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 3)

        def forward(self, x):
            return (torch.relu(self.last(torch.relu(self.first(x.flatten(1)))) * SMALL + 1) - 1) / SMALL

    network = network_of(Cancelling().eval(), 1, 4, 4)
    assert any(LOSES in note for note in network.notes)


def test_ordinary_networks_get_no_note_and_ask_no_twin(monkeypatch):
    def asked(*_):
        raise AssertionError

    monkeypatch.setattr("shakeproof.network.network.float32_noise", asked)
    network = sp.load(demo.MODEL)
    assert not any(LOSES in note for note in network.notes)


def test_the_noise_of_an_ordinary_network_is_small():
    network = sp.load(demo.MODEL)
    x = torch.from_numpy(random.random((4, 1, 3, 32, 32)))
    noise = agreement.float32_noise(network.graph, x)
    size = float(network.scores(x).abs().max())
    assert 0 < float(noise.max()) < 1e-4 * size
    rounded = network.reference(x.float().numpy()).astype(np.float64)
    off = np.abs(rounded - network.scores(x.float().double()).numpy())
    assert (off <= agreement.TIMES * noise.amax(1, keepdim=True).numpy()).all()


def test_the_twin_is_the_model_in_float64(tmp_path):
    network = sp.load(demo.MODEL)
    x = random.random((3, 1, 3, 32, 32), np.float32).astype(np.float64)
    ours = network.scores(torch.from_numpy(x)).numpy()
    assert network.twin.exact(x) == pytest.approx(ours, rel=1e-12, abs=1e-12)
    path = saved(tmp_path, cancelling(THROUGH["nothing"]))
    network = sp.load(path)
    x = random.random((3, 1, 1, 4, 4), np.float32).astype(np.float64)
    assert network.twin.exact(x) == pytest.approx(network.scores(torch.from_numpy(x)).numpy(), rel=1e-8, abs=1e-8)
    assert np.isnan(replace(network.twin, exact=sp.load(demo.MODEL).twin.exact).exact(x)).all()  # of another shape


def test_constants_of_every_kind_are_widened():
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=0.1),
        helper.make_node("Constant", [], ["b"], value_floats=[0.1, 0.2]),
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32([0.3, 0.4]))),
        helper.make_node("ConstantOfShape", ["two"], ["d"]),
        helper.make_node("Cast", ["x"], ["e"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Sum", ["a", "b", "c", "d", "e"], ["y"]),
    ]
    proto = in_float64(model(nodes, (1, 2), {"two": np.array([2])}))
    found = evaluator(proto)(np.array([[[1e-9, 0.0]]]))
    exact = [float(np.float32(v)) for v in (0.1, 0.1, 0.2, 0.3, 0.4)]
    assert found == pytest.approx(
        np.array([[exact[0] + exact[1] + exact[3] + 1e-9, exact[0] + exact[2] + exact[4]]]), rel=1e-13
    )


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


def test_the_twin_of_a_hard_swish_has_exact_sixths():
    """The reference implementation has them in float32, which is too far off where a network is ill-conditioned."""
    node = helper.make_node("HardSwish", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 5]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    scores = evaluator(in_float64(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
    x = np.array([[[-4.0, -1.0, 0.3, 1.0, 5.0]]])
    assert scores(x) == pytest.approx(x[0] * np.clip(x[0] + 3, 0, 6) / 6, rel=1e-15)
