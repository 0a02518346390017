"""`shakeproof compare`: exit codes, JSON, the table, plots, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from models import model
from onnx import helper
from warm import complaint, run

from shakeproof import demo

KEYS = (
    *("version", "models", "image", "perturbation", "strength", "status", "predicted", "disagreements", "open"),
    *("method", "pieces", "arithmetic", "reason", "seconds"),
)
BLUR = "box-blur:size=3"


def picture(number, side=6):
    return np.random.default_rng(number).integers(0, 256, (1, side, side)).astype(np.uint8)


def saved(path, *middle, classes=3, side=6, weights=None, names=None):
    """x - flattened - middle - scores, all of which are 0 on the first picture."""
    drawn, x = np.random.default_rng(0).normal(size=(side * side, classes)), picture(0, side).reshape(-1, 1) / 255
    drawn = (drawn - x * (x.T @ drawn) / (x.T @ x)).astype(np.float32)
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        *middle,
        helper.make_node("MatMul", [middle[-1].output[0] if middle else "flat", "w"], ["y"]),
    ]
    known = {"w": drawn, "shape": np.array([1, side * side], np.int64)} | (weights or {})
    made = model(nodes, (1, 1, side, side), known, (1, classes))
    if names is not None:
        helper.set_model_props(made, {"names": json.dumps(names)})
    onnx.save(made, path)
    return path.name


@pytest.fixture
def folder(tmp_path):
    """Pictures, and networks: one, what is left of it in 8 bits, one that is pruned, and one that only runs."""
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", picture(number))
    saved(tmp_path / "plain.onnx")
    coarse = {"scale": np.float32(0.25), "zero": np.uint8(0)}
    quantised = (
        helper.make_node("QuantizeLinear", ["flat", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
    )
    saved(tmp_path / "int8.onnx", *quantised, weights=coarse)
    pruned = np.where(np.arange(36) % 2, np.float32(1), np.float32(0))
    saved(tmp_path / "pruned.onnx", helper.make_node("Mul", ["flat", "kept"], ["m"]), weights={"kept": pruned})
    saved(tmp_path / "sine.onnx", helper.make_node("Sin", ["flat"], ["s"]))
    return tmp_path


def test_a_network_and_its_int8_twin(folder):
    done = run(
        "compare", "plain.onnx", "int8.onnx", "0.npy", "1.npy", "-p", BLUR, "--pixels", "8bit", "--json", cwd=folder
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [row["image"] for row in rows] == ["0.npy", "1.npy"]
    for row in rows:
        assert tuple(row) == (*KEYS, "deployments")
        assert (row["method"], row["arithmetic"], row["reason"]) == ("enumeration", "deployed", None)
        assert row["pieces"][0] == row["pieces"][1] > 100
        assert [own["runtime"].split()[0] for own in row["deployments"]] == ["onnxruntime"] * 2
        assert (row["status"] == "disagree") == bool(row["disagreements"])
    found = [part for row in rows for part in row["disagreements"]]
    assert found
    for part in found:
        assert part["replayed"]
        assert part["from"] <= part["strength"] <= part["to"]
        assert part["classes"][0] != part["classes"][1]


def test_real_numbers(folder):
    done = run(
        "compare",
        "plain.onnx",
        "pruned.onnx",
        "0.npy",
        "1.npy",
        "-p",
        BLUR,
        "-p",
        "sharpen:size=3",
        "--json",
        cwd=folder,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["arithmetic"] for row in rows} == {"real"}
    assert all(tuple(row) == KEYS for row in rows)
    assert [(row["image"], row["perturbation"]) for row in rows] == [
        (image, kernel) for image in ("0.npy", "1.npy") for kernel in (BLUR, "sharpen:size=3")
    ]
    assert done.returncode == 1
    # the scores of the first picture are all 0: beside such a tie, a comparison with the runtime tells nothing
    assert [(row["status"], row["reason"]) for row in rows[:2]] == [("undecided", "comparison")] * 2
    assert [row["status"] for row in rows[2:]] == ["disagree"] * 2
    assert all(end["to"] - end["from"] < 1e-6 for row in rows[2:] for end in row["open"])


def test_exit_codes(folder):
    same = run("compare", "plain.onnx", "plain.onnx", "0.npy", "-p", BLUR, cwd=folder)
    assert same.returncode == 0
    assert f"{BLUR}  agree" in same.stdout
    late = run(
        "compare", "plain.onnx", "plain.onnx", "0.npy", "-p", BLUR, "--pixels", "8bit", "--timeout", "1e-9", cwd=folder
    )
    assert late.returncode == 3
    assert "undecided" in late.stdout
    assert "to 1.000000 (timeout)" in late.stdout
    assert "timeout: the time limit was reached" in late.stdout


def test_a_bad_picture_among_good_ones(folder):
    words = ("compare", "plain.onnx", "plain.onnx", "gone.npy", "0.npy", "-p", BLUR, "--json")
    done = run(*words, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith("shakeproof: gone.npy: cannot read")
    assert done.stderr.count("\n") == 1
    assert [json.loads(line)["image"] for line in done.stdout.splitlines()] == ["0.npy"]
    assert "gone.npy" in complaint(*words, "--strict", cwd=folder)


def test_what_is_refused_in_one_line(folder):
    def refused(*words):
        return complaint("compare", *words, cwd=folder)

    assert "--pixels 8bit" in refused("plain.onnx", "int8.onnx", "0.npy", "-p", BLUR)
    assert "--pixels 8bit" in refused("plain.onnx", "sine.onnx", "0.npy", "-p", BLUR)
    saved(folder / "more.onnx", classes=4)
    saved(folder / "wide.onnx", side=8)
    assert "plain.onnx has 3 classes, more.onnx 4" in refused("plain.onnx", "more.onnx", "0.npy", "-p", BLUR)
    sizes = refused("plain.onnx", "wide.onnx", "0.npy", "-p", BLUR)
    assert "plain.onnx takes pictures of 1 x 6 x 6, wide.onnx of 1 x 8 x 8" in sizes
    saved(folder / "cats.onnx", names=["cat", "dog", "cow"])
    saved(folder / "dogs.onnx", names=["dog", "cat", "cow"])
    assert "class 0 cat, dogs.onnx dog" in refused("cats.onnx", "dogs.onnx", "0.npy", "-p", BLUR)
    assert "-p" in refused("plain.onnx", "int8.onnx", "0.npy")
    assert "one strength" in refused("plain.onnx", "plain.onnx", "0.npy", "-p", f"{BLUR}+brightness:max=0.1")
    assert ".png or .svg" in refused("plain.onnx", "plain.onnx", "0.npy", "-p", BLUR, "--plot", "a.jpg")
    assert "missing.onnx" in refused("plain.onnx", "missing.onnx", "0.npy", "-p", BLUR)


def test_plots_carry_numbers(folder):
    words = ("compare", "plain.onnx", "int8.onnx", "0.npy", "1.npy", "-p", BLUR, "--pixels", "8bit", "--quiet")
    done = run(*words, "--plot", "p.png", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert sorted(path.name for path in folder.glob("*.png")) == ["p-1.png", "p-2.png"]


def test_the_table_fits_80_columns_and_names_classes(folder):
    names = ["a class with a long name, as they have", "another of these", "cow"]
    (folder / "names.txt").write_text("\n".join(names))
    words = (
        "compare",
        "plain.onnx",
        "int8.onnx",
        "0.npy",
        "1.npy",
        "-p",
        BLUR,
        "--pixels",
        "8bit",
        "--classes",
        "names.txt",
    )
    done = subprocess.run(
        [sys.executable, "-m", "shakeproof", *words],
        env=os.environ | {"COLUMNS": "80"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "replayed at" in done.stdout
    assert "int8.onnx" in done.stdout
    assert "another of these" in done.stdout
    assert "2 answers: " in done.stdout


def test_pictures_are_preprocessed_for_both(tmp_path):
    """What pictures go through is asked once, and done for both networks."""
    path, _ = demo.images()[0]
    done = run("compare", str(demo.MODEL), str(demo.MODEL), str(path), "-p", BLUR, "--max-strength", "0.05",
               "--resize", "40", "--crop", "32", "--mean", "half", "--json")  # fmt: skip
    row = json.loads(done.stdout)
    assert (row["status"], row["strength"], done.returncode) == ("agree", 0.05, 0)
