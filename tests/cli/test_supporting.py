"""`supports` says what `profile` will do: in text, in JSON and by its exit code."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import model
from onnx import TensorProto, helper
from warm import complaint, run

from shakeproof import demo

IMAGE = str(demo.images()[0][0])
WEIGHT = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
BLUR = ("-p", "box-blur:size=3")


def saved(tmp_path, proto, name="m.onnx"):
    (tmp_path / name).write_bytes(proto.SerializeToString())
    return tmp_path / name


def said(*words):
    """The JSON object, and that the text is of one mind with it."""
    done, shown = run("supports", *words, "--json"), run("supports", *words)
    found = json.loads(done.stdout)
    assert done.returncode == shown.returncode == (0 if found["supported"] else 1)
    assert (": supported; method" if found["supported"] else "not supported") in shown.stdout
    assert done.stderr == shown.stderr == ""
    assert all(problem["reason"] for problem in found["problems"])
    assert (found["reason"] is None) == found["supported"]
    return found


def test_a_network_and_its_cost():
    found = said(str(demo.MODEL), IMAGE)
    assert found["method"] == "exact"
    assert found["queries"] == ["perturbation", "vnnlib"]
    assert found["operators"]["Relu"] == 3
    cost = found["estimate"]
    assert cost["measured"]
    assert cost["seconds"] > 0
    real = json.loads(run("profile", demo.MODEL, IMAGE, "-p", cost["perturbation"], "--json").stdout)
    assert real["pieces"] == cost["pieces"]
    assert json.loads(run("supports", demo.MODEL, "--trial", "0", "--json").stdout)["estimate"] is None


def test_preprocessing_is_taken_into_account(tmp_path):
    """The options that messages recommend are options here too, and the estimate is of the preprocessed picture."""
    large = np.random.default_rng(1).integers(0, 256, (48, 40, 3)).astype(np.uint8)
    np.save(tmp_path / "large.npy", large)
    assert "--resize H,W" in complaint("supports", demo.MODEL, tmp_path / "large.npy")
    steps = ("--resize", "40", "--crop", "32", "--mean", "half", "--color", "rgb")
    facts = json.loads(run("supports", demo.MODEL, tmp_path / "large.npy", *steps, "--json").stdout)
    real = json.loads(run("profile", demo.MODEL, tmp_path / "large.npy", *BLUR, *steps, "--json").stdout)
    assert facts["estimate"]["pieces"] == real["pieces"]
    assert facts["estimate"]["measured"]
    assert facts["enumeration"]["pictures"] > 0
    assert "(x - 0.5) / 0.5" in facts["notes"][-1]


def refused_networks(tmp_path):
    """Networks that are read and cannot be analysed, by what is said of them."""
    flat, last = helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w"], ["y"])
    two = model([flat, last], (1, 1, 4, 4), {"w": WEIGHT})
    two.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, (1,)))
    cast = [helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT), helper.make_node("Flatten", ["c"], ["f"])]
    whole = model([*cast, last], (1, 1, 4, 4), {"w": WEIGHT})
    whole.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    quantised = [
        flat,
        helper.make_node("QuantizeLinear", ["f", "s", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["d"]),
        helper.make_node("Gemm", ["d", "w"], ["y"]),
    ]
    constants = {"s": np.float32(0.1), "zero": np.uint8(128), "w": WEIGHT}
    wrong = {"q": (WEIGHT * 50 + 128).astype(np.uint8), "s": np.float32(0.1), "zero": np.uint8(128)}
    return {
        "has 2 inputs": saved(tmp_path, two),
        "not float32": saved(tmp_path, whole, "int.onnx"),
        "batch size is 2": saved(tmp_path, model([flat, last], (2, 1, 4, 4), {"w": WEIGHT}), "two.onnx"),
        "is quantised": saved(tmp_path, model(quantised, (1, 1, 4, 4), constants), "q.onnx"),
        # onnxruntime multiplies in integers: only the comparison shows that
        "differs from the reference runtime": saved(
            tmp_path,
            model(
                [flat, helper.make_node("DequantizeLinear", list(wrong), ["w"]), last], (1, 1, 4, 4), wrong, opset=21
            ),
            "wrong.onnx",
        ),
    }


def test_what_cannot_be_analysed_has_a_reason(tmp_path):
    np.save(tmp_path / "x.npy", np.full((1, 4, 4), 0.5))
    for reason, path in refused_networks(tmp_path).items():
        assert reason in said(path)["reason"]
        assert reason in complaint("profile", path, tmp_path / "x.npy", *BLUR)


def test_networks_without_pictures_are_for_other_queries(tmp_path):
    path = saved(tmp_path, model([helper.make_node("Gemm", ["x", "w"], ["y"])], (1, 16), {"w": WEIGHT[:, :1]}))
    found = said(path)
    assert found["queries"] == ["vnnlib"]
    assert found["estimate"] is None


@pytest.mark.parametrize(
    ("network", "example"),
    [("segmenter", "pixels:share="), ("detector", "detection:box="), ("steering", "output:index=0")],
)
def test_other_networks_are_told_what_to_require(network, example):
    """What to ask of a network that does not classify, and what it costs."""
    found = said(demo.ROAD / f"{network}.onnx", demo.ROAD / "road.png")
    assert found["queries"] == ["perturbation", "vnnlib"]
    assert example in found["notes"][-1]
    assert found["estimate"]["pieces"] > 10
    assert found["enumeration"]["pictures"] > 1000


def test_what_stands_in_front_of_suppression_can_be_analysed(tmp_path):
    limits = {"most": np.int64(5), "score": np.float32(0.5), "boxes": np.zeros((1, 3, 4), np.float32)}
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["scores"]),
             helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "score"], ["y"])]  # fmt: skip
    path = saved(tmp_path, model(nodes, (1, 1, 1, 3), limits | {"shape": np.array([1, 1, 3])}))
    assert "cut the file in front of it: onnx.utils.extract_model(" in said(path)["problems"][0]["reason"]


@pytest.mark.parametrize("words", [(), ("--image-shape", "1,5,5")])
def test_open_sizes_and_outputs_are_asked_for(tmp_path, words):
    proto = model([helper.make_node("GlobalAveragePool", ["x"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
                   helper.make_node("Gemm", ["f", "w"], ["y"])], (1, 1, "H", "W"), {"w": WEIGHT[:1]})  # fmt: skip
    path = saved(tmp_path, proto)
    if words:
        assert "pictures of 1 x 5 x 5" in said(path, *words)["notes"][0]
        np.save(tmp_path / "x.npy", np.full((1, 5, 5), 0.5))
        assert said(path, tmp_path / "x.npy")["supported"]
    else:
        assert "leaves its size open" in complaint("supports", path)
        assert "(--image-shape C,H,W)" in complaint("supports", path)
