"""Networks as people have them, through the command: open sizes, several outputs, files that are something else."""

from __future__ import annotations

import json
import os

import numpy as np
import onnx
from models import model
from onnx import TensorProto, helper
from warm import complaint, run

BLUR = ("-p", "box-blur:size=3")
random = np.random.default_rng(0)


def pooled(*outputs: str) -> onnx.ModelProto:
    """A network for pictures of any size, with scores `y`, and `z` which is their negative."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    weights = {"k": random.normal(size=(4, 1, 3, 3)), "w": random.normal(size=(4, 3))}
    proto = model(nodes, ("N", 1, "H", "W"), {name: array.astype(np.float32) for name, array in weights.items()})
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_tensor_value_info(name, 1, ("N", 3)) for name in outputs)
    return proto


def test_an_open_size_is_the_pictures_own(tmp_path):
    (tmp_path / "m.onnx").write_bytes(pooled("y").SerializeToString())
    np.save(tmp_path / "x.npy", random.random((1, 6, 7)))
    done = run("profile", "m.onnx", "x.npy", *BLUR, cwd=tmp_path)
    assert done.returncode in (0, 1)
    shown = " ".join(done.stdout.split())
    assert "[N, 1, H, W] leaves its size open: it is analysed for pictures of 1 x 6 x 7" in shown
    assert "6 x 6" in complaint("profile", "m.onnx", "x.npy", *BLUR, "--image-shape", "1,6,6", cwd=tmp_path)


def test_the_output_that_is_asked_for(tmp_path):
    (tmp_path / "m.onnx").write_bytes(pooled("y", "z").SerializeToString())
    np.save(tmp_path / "x.npy", random.random((1, 6, 6)))
    message = complaint("profile", "m.onnx", "x.npy", *BLUR, cwd=tmp_path)
    assert "has 2 outputs, y [3], z [3]; require something of its outputs" in message
    assert "of a classifier, name the output with the class scores (--output-name NAME)" in message
    predicted = {}
    for name in "yz":
        done = run("profile", "m.onnx", "x.npy", *BLUR, "--json", "--output-name", name, cwd=tmp_path)
        predicted[name] = json.loads(done.stdout)["predicted"]
    assert predicted["y"] != predicted["z"]
    words = ("export", "m.onnx", "x.npy", *BLUR, "--strength", "0.5", "-o", "d", "--output-name", "z", "--json")
    assert json.loads(run(*words, cwd=tmp_path).stdout)["label"] == predicted["z"]
    written = onnx.load(tmp_path / "d" / "augmented.onnx")
    assert [output.name for output in written.graph.output] == ["z"]
    words = ("verify", "m.onnx", "x.npy", *BLUR, "--strength", "0.01", "--output-name", "z", "--certificate", "c.cert")
    done = run(*words, cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "c.cert").exists()  # the checker knows a file's first output only


def test_a_pipe_as_model_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    np.save(tmp_path / "x.npy", random.random((1, 6, 6)))
    assert "is a named pipe" in complaint("profile", "pipe.onnx", "x.npy", *BLUR, cwd=tmp_path)


def test_detectors_and_segmenters_are_told_what_is_supported(tmp_path):
    """One output of a map of scores, or several that are no list of scores."""
    np.save(tmp_path / "x.npy", random.random((1, 4, 4)))
    weight = {"w": np.ones((3, 1, 1, 1), np.float32)}
    segmenter = model([helper.make_node("Conv", ["x", "w"], ["y"])], (1, 1, 4, 4), weight)
    (tmp_path / "segmenter.onnx").write_bytes(segmenter.SerializeToString())
    detector = model([helper.make_node("Conv", ["x", "w"], ["y"])], (1, 1, 4, 4), weight)
    detector.graph.node.append(helper.make_node("Relu", ["y"], ["boxes"]))
    detector.graph.output.append(helper.make_tensor_value_info("boxes", TensorProto.FLOAT, (1, 3, 4, 4)))
    (tmp_path / "detector.onnx").write_bytes(detector.SerializeToString())
    for name, what in (
        ("segmenter.onnx", "its output is y [3, 4, 4]; of a segmenter, require that pixels keep their class"),
        ("detector.onnx", "has 2 outputs, y [3, 4, 4], boxes [3, 4, 4]; require something of its outputs"),
    ):
        message = complaint("profile", name, "x.npy", *BLUR, cwd=tmp_path)
        assert what in message
        assert "--require" in message or "output:index=0" in message
