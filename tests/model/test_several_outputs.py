"""Models with several outputs, and outputs of any shape: one vector, with named parts."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import model
from onnx import TensorProto, helper
from torch import nn

import shakeproof as sp
from shakeproof.errors import InputError, UnsupportedNetworkError
from shakeproof.model import load_deployed
from shakeproof.question import OutputPart, one_place, places

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "down": RANDOM.normal(size=(4, 1, 3, 3)).astype(np.float32),
    "box": RANDOM.normal(size=(4, 4, 1, 1)).astype(np.float32),
    "kind": RANDOM.normal(size=(3, 4, 1, 1)).astype(np.float32),
    "shape": np.array([0, 4, -1]),
}


def detector(*outputs: str, batch: int | str = "N") -> onnx.ModelProto:
    """A head of boxes (positions, 4), a map of scores (3, height, width), one number, and the number of a class."""
    nodes = [
        helper.make_node("Conv", ["x", "down"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["f"]),
        helper.make_node("Conv", ["f", "box"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["f", "kind"], ["kinds"]),
        helper.make_node("ReduceMean", ["f"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("ArgMax", ["kinds"], ["best"], axis=1),
        helper.make_node("Sin", ["f"], ["waves"]),
    ]
    proto = model(nodes, (batch, 1, 6, 6), WEIGHTS)
    del proto.graph.output[:]
    for name in outputs:
        kind = TensorProto.INT64 if name == "best" else TensorProto.FLOAT
        proto.graph.output.append(helper.make_tensor_value_info(name, kind, None))
    return proto


@pytest.fixture
def saved(tmp_path):
    def save(*outputs: str, **options: object) -> str:
        path = tmp_path / "net.onnx"
        path.write_bytes(detector(*outputs, **options).SerializeToString())
        return str(path)

    return save


@pytest.mark.parametrize("batch", ["N", 1])
def test_outputs_are_one_vector_with_named_parts(saved, batch):
    path = saved("kinds", "boxes", "mean", batch=batch)
    network = sp.load(path)
    assert network.parts == (OutputPart("kinds", (3, 3, 3)), OutputPart("boxes", (9, 4)), OutputPart("mean", (1,)))
    assert network.classes == 64
    assert "the outputs kinds, boxes, mean are analysed together" in network.notes
    x = RANDOM.random((5, 1, 1, 6, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    by_name = [dict(zip(("kinds", "boxes", "mean"), session.run(None, {"x": one}), strict=True)) for one in x]
    ours, theirs = network.scores(torch.from_numpy(x).double()).numpy(), network.reference(x)
    for picture, outputs in enumerate(by_name):
        for vector in (ours[picture], theirs[picture]):
            assert vector[places(network.parts, "kinds")] == pytest.approx(outputs["kinds"][0], abs=1e-5)
            assert vector[one_place(network.parts, "boxes[7,2]")] == pytest.approx(outputs["boxes"][0, 7, 2], abs=1e-5)
            assert vector[one_place(network.parts, "mean")] == pytest.approx(float(outputs["mean"].ravel()[0]))


def test_some_outputs_in_the_order_that_is_asked_for(saved):
    path = saved("kinds", "boxes", "mean", "waves")
    some = sp.load(path, output_name="mean,kinds")
    assert [part.name for part in some.parts] == ["mean", "kinds"]
    one = sp.load(path, output_name="mean")
    assert one.parts == (OutputPart("mean", (1,)),)
    assert len({some.identity, one.identity, sp.load(path, output_name="kinds").identity}) == 3
    with pytest.raises(UnsupportedNetworkError, match=r"Sin \(waves\): not supported; choose other outputs"):
        sp.load(path, output_name="*")
    with pytest.raises(InputError, match="has no output 'colour'"):
        sp.load(path, output_name="mean,colour")
    with pytest.raises(InputError, match="has no output 'mean'"):
        sp.load(path, output_name="mean,mean")


def test_labels_are_for_one_output_with_scores(saved):
    path, picture = saved("kinds", "boxes"), np.zeros((1, 6, 6))
    message = r"has 2 outputs, kinds \[3, 3, 3\], boxes \[9, 4\]; require something of its outputs, .* of a classifier"
    with pytest.raises(InputError, match=message):
        sp.profile(path, picture, "box-blur:size=3")
    for outputs, message in {
        "kinds": r"kinds \[3, 3, 3\]; of a segmenter, .* pixels:share=",
        "boxes": r"boxes \[9, 4\]; of a detector, .* non-maximum suppression .* detection:box=",
        "mean": r"mean \[1\]; require something of its outputs, e.g. output:index=0",
    }.items():
        with pytest.raises(
            InputError, match="not a classifier, which has one score per class; its output is " + message
        ):
            sp.profile(
                sp.load(path if outputs != "mean" else saved("mean"), output_name=outputs), picture, "box-blur:size=3"
            )


def test_outputs_without_floats_are_named(saved):
    with pytest.raises(InputError, match="the output best holds no floats; choose other outputs"):
        sp.load(saved("boxes", "best"))
    assert [part.name for part in sp.load(saved("boxes", "best", "kinds")).parts] == ["boxes", "kinds"]
    assert [part.name for part in sp.load(saved("best", "boxes"), output_name="boxes").parts] == ["boxes"]


def test_what_is_only_run_has_parts_too(saved):
    network = load_deployed(saved("waves", "boxes"))
    assert network.parts == (OutputPart("waves", (4, 3, 3)), OutputPart("boxes", (9, 4)))
    assert network.reference(np.zeros((2, 1, 1, 6, 6), np.float32)).shape == (2, 72)
    assert not network.classifies


def test_queries_about_all_outputs(saved, tmp_path):
    """Outputs are numbered as they lie in the vector: Y_30 is boxes[0,3]."""
    network = sp.load(saved("kinds", "boxes"))
    place = one_place(network.parts, "boxes[0,3]")
    x = np.full((1, 1, 1, 6, 6), 0.5, np.float32)
    value = float(network.reference(x)[0, place])
    lines = [*(f"(declare-const X_{i} Real)" for i in range(36)), *(f"(declare-const Y_{i} Real)" for i in range(63))]
    lines += [f"(assert ({sign} X_{i} 0.5))" for i in range(36) for sign in ("<=", ">=")]
    for limit, status in ((value + 0.01, "safe"), (value - 0.01, "unsafe")):
        query = tmp_path / "query.vnnlib"
        query.write_text("\n".join([*lines, f"(assert (>= Y_{place} {limit}))"]))
        assert sp.verify_specification(network, query).status == status


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.boxes, self.kinds = nn.Conv2d(1, 3, 3, 2), nn.Conv2d(3, 4, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x):
        features = torch.relu(self.features(x))
        return {"boxes": self.boxes(features), "kinds": {"raw": self.kinds(features)}}


def test_modules_with_several_outputs():
    module = Head().eval()
    network = sp.load(module, torch.zeros(1, 1, 5, 5))
    assert network.parts == (OutputPart("boxes", (4, 2, 2)), OutputPart("kinds.raw", (2, 2, 2)))
    x = torch.rand(1, 1, 5, 5)
    made = module(x)
    expected = torch.cat([made["boxes"].flatten(), made["kinds"]["raw"].flatten()]).detach().numpy()
    assert network.scores(x[None].double())[0].numpy() == pytest.approx(expected, abs=1e-5)
    assert sp.load(module, torch.zeros(1, 1, 5, 5), output_name="kinds.raw").classes == 8
