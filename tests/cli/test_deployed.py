"""8-bit pictures through the command: networks that are analysed, that only run, and that take bytes."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from models import model
from onnx import TensorProto, helper
from warm import complaint, run

import shakeproof as sp

WEIGHTS = {
    "w": np.random.default_rng(0).normal(size=(1, 36, 3)).astype(np.float32)[0] * 3,
    "shape": np.array([1, 36], np.int64),
}


def network(path, *middle, **changes):
    """x - flattened - middle - three scores."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        *middle,
        helper.make_node("MatMul", [middle[-1].output[0] if middle else "flat", "w"], ["y"]),
    ]
    made = model(nodes, (1, 1, 6, 6), WEIGHTS | changes, (1, 3))
    onnx.save(made, path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    levels = np.random.default_rng(1).integers(0, 256, (1, 6, 6)).astype(np.uint8)
    np.save(tmp_path / "x.npy", levels)
    sine = network(tmp_path / "sine.onnx", helper.make_node("Sin", ["flat"], ["s"]))
    return str(tmp_path / "x.npy"), sine, network(tmp_path / "plain.onnx")


def test_a_network_that_only_runs(files):
    image, sine, _ = files
    refused = run("profile", sine, image, "-p", "box-blur:size=3")
    assert "--pixels 8bit" in complaint(refused)
    said = json.loads(run("supports", sine, "--json").stdout)
    assert (said["supported"], said["pixels"]) == (False, ["8bit"])
    assert "--pixels 8bit" in run("supports", sine).stdout
    done = run("profile", sine, image, "-p", "box-blur:size=3", "--pixels", "8bit", "--json")
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["method"], row["arithmetic"]) == ("enumeration", "deployed")
    assert row["status"] in ("safe", "unsafe")
    assert row["pieces"] > 100
    assert row["deployment"]["runtime"].startswith("onnxruntime ")
    assert sp.Record.from_json(row).to_json() == row


def test_what_to_expect_is_said_before(files):
    image, sine, plain = files
    for name in (sine, plain):
        words = ("profile", name, image, "-p", "box-blur:size=3", "--pixels", "8bit", "--json")
        done = run(*words)
        row = json.loads(done.stdout)
        assert f"box-blur:size=3: {row['pieces']:,} pictures, about " in done.stderr
        assert done.stderr.count("\n") == 1
        assert run(*words, "--quiet").stderr == ""
        said = json.loads(run("supports", name, image, "--json").stdout)["enumeration"]
        assert said["pictures"] == row["pieces"]
        assert said["seconds"] > 0
        assert f"{row['pieces']:,} pictures" in run("supports", name, image).stdout
        assert json.loads(run("supports", name, "--json", "--trial", "0").stdout)["enumeration"] is None


def test_what_is_proved_in_time_is_reported(files):
    image, _, plain = files
    words = ("profile", plain, image, "-p", "box-blur:size=3", "--pixels", "8bit", "--json")
    whole, late = (json.loads(run(*words, *more).stdout) for more in ((), ("--timeout", "1e-9")))
    assert (late["status"], late["reason"]) == ("undecided", "timeout")
    assert 0 < late["pieces"] < whole["pieces"]
    assert 0 < late["certified_strength"] <= whole["certified_strength"]


def test_bytes_as_input(tmp_path, files):
    """A network that takes bytes and divides by 255 itself gives the same as one that is given fractions."""
    image, _, plain = files
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["c", "white"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["y"]),
    ]
    made = model(nodes, (1, 1, 6, 6), WEIGHTS | {"white": np.float32(255)}, (1, 3))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(made, tmp_path / "bytes.onnx")
    rows = [
        json.loads(run("profile", name, image, "-p", "sharpen:size=3", "--pixels", "8bit", "--json").stdout)
        for name in (str(tmp_path / "bytes.onnx"), plain)
    ]
    assert rows[0]["profile"] == rows[1]["profile"]
    assert rows[0]["pieces"] == rows[1]["pieces"] > 100
    assert abs(rows[0]["min_margin"] - rows[1]["min_margin"]) < 1e-4


def test_halves_may_be_rounded_up(files):
    image, _, plain = files
    counts = [
        json.loads(run("profile", plain, image, "-p", "box-blur:size=3", "--pixels", rule, "--json").stdout)["pieces"]
        for rule in ("8bit", "8bit,rounding=half-up")
    ]
    assert min(counts) > 100


def test_what_cannot_be_enumerated(files):
    image, _, plain = files
    several = run("profile", plain, image, "-p", "box-blur:size=3+brightness:max=0.1", "--pixels", "8bit")
    assert "one strength" in complaint(several)
