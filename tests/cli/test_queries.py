"""Queries in files and boxes of images, as users of the command meet them; and as the competition calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from processes import HANGING
from test_exporting import dense, save
from warm import complaint, run

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.question import robustness, written

MODEL, SIGN = str(demo.MODEL), str(demo.images()[0][0])
MNIST = "benchmarks/mnist_fc/onnx/mnist-net_256x2.onnx"
SCRIPTS = Path(__file__).resolve().parents[2] / "vnncomp"

VERSION2 = """(vnnlib-version <2.0>)
(declare-network N (declare-input X float32 [1,12]) (declare-output Y float32 [1,3]))
{bounds}
(assert (or {rivals}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(dense((1, 12)), tmp_path)


def query_file(path: Path, network: sp.Network, radius: float) -> Path:
    """Is the prediction at 0 safe within a radius?"""
    size, classes = network.graph.input_shape.numel(), network.graph.classes
    label = int(network.scores(torch.zeros(1, *network.graph.input_shape).double()).argmax())
    path.write_text(written(robustness(np.full(size, -radius), np.full(size, radius), label, classes), ()))
    return path


def version2_file(path: Path, label: int, radius: float) -> Path:
    bounds = "\n".join(f"(assert (and (>= X[0,{i}] -{radius}) (<= X[0,{i}] {radius})))" for i in range(12))
    rivals = " ".join(f"(>= Y[0,{j}] Y[0,{label}])" for j in range(3) if j != label)
    path.write_text(VERSION2.format(bounds=bounds, rivals=rivals))
    return path


def scores_of(model: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    wanted = session.get_inputs()[0]
    return session.run(None, {wanted.name: x.astype(np.float32).reshape(wanted.shape)})[0].flatten()


def test_queries_as_they_stand(tmp_path, model):
    network = sp.load(model)
    small, large = (query_file(tmp_path / f"{r}.vnnlib", network, r) for r in (1e-4, 10.0))
    done = run("verify", model, small)
    assert done.returncode == 0
    assert "safe" in done.stdout
    done = run("verify", model, small, large, "--json", "--counterexample", tmp_path / "c.npy")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["safe", "unsafe"]
    assert rows[0]["min_margin"] > 0
    assert rows[0]["perturbation"] is rows[0]["strength"] is None
    assert rows[1]["counterexample"]["replayed"] is True
    x = np.load(tmp_path / "c-2.npy")  # of the second query
    assert np.abs(x).max() <= 10
    scores = scores_of(model, x)
    assert scores.argmax() == rows[1]["counterexample"]["class"] != rows[1]["label"]
    keys = set(json.loads(run("verify", MODEL, SIGN, "-p", "identity", "--strength", "0", "--json").stdout))
    assert set(rows[0]) == set(rows[1]) == keys


def test_results_for_the_competition(tmp_path, model):
    network = sp.load(model)
    for radius, verdict in ((1e-4, "unsat"), (10.0, "sat")):
        query = query_file(tmp_path / "q.vnnlib", network, radius)
        done = run("verify", model, query, "--results", tmp_path / "r.txt", "--quiet")
        assert done.stdout == ""
        first, *rest = (tmp_path / "r.txt").read_text().splitlines()
        assert first == verdict
        pairs = re.findall(r"\((\w_\d+) ([^()\s]+)\)", " ".join(rest))
        if verdict == "sat":
            assert [name for name, _ in pairs] == [f"X_{i}" for i in range(12)] + [f"Y_{i}" for i in range(3)]
            values = np.array([float(value) for _, value in pairs])
            specification = sp.read_specification(query)
            assert specification.is_counterexample(values[:12], scores_of(model, values[:12]).astype(float))
            assert np.allclose(values[12:], scores_of(model, values[:12]), atol=1e-5)
        else:
            assert rest == []


def test_the_command_line_of_version_2(tmp_path, model):
    pytest.importorskip("vnnlib")
    label = int(scores_of(model, np.zeros(12)).argmax())
    done = run(
        "verify", version2_file(tmp_path / "q.vnnlib", label, 1e-4), "--network", f"N={model}", "--timeout", "20"
    )
    assert (done.returncode, done.stdout) == (0, "unsat\n")
    done = run(
        "verify", version2_file(tmp_path / "q.vnnlib", label, 10.0), "--network", f"N={model}", "--timeout", "20"
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert (lines[0], lines[1], lines[14]) == ("sat", "X float32 [1,12]", "Y float32 [1,3]")
    x, y = (np.array([float(value) for value in part]) for part in (lines[2:14], lines[15:]))
    assert np.allclose(scores_of(model, x), y, atol=1e-5)
    assert y.argmax() != label
    (tmp_path / "r.vnnlib").write_text((tmp_path / "q.vnnlib").read_text().replace("float32", "real"))
    assert run("verify", tmp_path / "r.vnnlib", "--network", f"N={model}").stdout.startswith("sat\nX real [1,12]\n")
    assert "'N', not 'M'" in complaint("verify", tmp_path / "q.vnnlib", "--network", f"M={model}")


@pytest.mark.parametrize("version", [1, 2])
def test_the_counterexample_of_a_named_network_is_written(tmp_path, version):
    """`verify QUERY --network NAME=FILE` writes what `verify FILE QUERY` does, and only if there is something."""
    if version == 2:
        pytest.importorskip("vnnlib")
    model = save(dense((1, 12)), tmp_path)
    label = int(scores_of(model, np.zeros(12)).argmax())

    def query(radius: float) -> Path:
        if version == 2:
            return version2_file(tmp_path / "q.vnnlib", label, radius)
        return query_file(tmp_path / "q.vnnlib", sp.load(model), radius)

    words = ("--network", f"N={model}", "--image-shape", "1,3,4", "--timeout", "20", "--counterexample")
    for name in ("none.npy", "none.png"):
        assert run("verify", query(1e-4), *words, tmp_path / name).returncode == 0
        assert not (tmp_path / name).exists()
    done = run("verify", query(10.0), *words, tmp_path / "c.npy")
    assert (done.returncode, done.stderr) == (1, f"wrote {tmp_path / 'c.npy'}\n")
    lines = done.stdout.splitlines()
    x = np.load(tmp_path / "c.npy")
    assert (x.shape, x.dtype) == ((1, 12), np.float32)
    assert x.flatten().tolist() == [float(number) for number in lines[2:14]]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: x})[0].flatten()
    assert outputs.tolist() == [float(number) for number in lines[15:]]
    assert outputs.argmax() != label
    done = run("verify", query(10.0), *words, tmp_path / "c.png")
    assert (done.returncode, done.stderr) == (1, f"wrote {tmp_path / 'c.png'}\n")
    assert np.asarray(Image.open(tmp_path / "c.png").convert("L")).std() > 10
    assert "c.pdf: write it as" in complaint("verify", query(10.0), *words, tmp_path / "c.pdf")
    assert "nowhere" in complaint("verify", query(10.0), *words, tmp_path / "nowhere" / "c.png")


def test_results_are_about_the_file_itself(tmp_path, model):
    """A file that carries a perturbation says something else to other tools: no satisfiability of it is written."""
    words = ("--strength", "0.01", "-o", tmp_path, "--format", "perturbed", "--image-shape", "1,3,4")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).uniform(size=(1, 3, 4)))
    run("export", model, tmp_path / "x.npy", "-p", "box-blur:size=3", *words)
    file = tmp_path / "perturbed.vnnlib"
    for perturbation in ("box-blur:size=3", "any-kernel:size=3"):
        file.write_text(file.read_text().replace("box-blur:size=3", perturbation))
        assert run("verify", model, file).returncode in (0, 1)
        assert "carries a perturbation" in complaint("verify", model, file, "--results", tmp_path / "r.txt")
        assert "carries a perturbation" in complaint("verify", file, "--network", f"N={model}")
        assert not (tmp_path / "r.txt").exists()


def test_strict_bounds_of_inputs(tmp_path, model):
    """A counterexample on an end that does not belong to the box is none."""
    network = sp.load(model)
    text = query_file(tmp_path / "q.vnnlib", network, 10.0).read_text()
    strict = text.replace("(assert (>=", "(assert (>").replace("(assert (<=", "(assert (<")
    (tmp_path / "strict.vnnlib").write_text(strict)
    run("verify", model, tmp_path / "strict.vnnlib", "--counterexample", tmp_path / "c.npy")
    assert np.abs(np.load(tmp_path / "c.npy")).max() < 10
    empty = strict.replace("(> X_0 -10.0)", "(> X_0 0.5)").replace("(< X_0 10.0)", "(< X_0 0.5)")
    (tmp_path / "empty.vnnlib").write_text(empty)
    assert "contradict" in complaint("verify", model, tmp_path / "empty.vnnlib")


def test_late_answers(tmp_path, shared):
    """A query that takes minutes: undecided, exit code 3, in each form."""
    hard = shared("benchmarks/mnist_fc/vnnlib/prop_9_0.05.vnnlib.gz")
    network = shared("benchmarks/mnist_fc/onnx/mnist-net_256x6.onnx")
    done = run("verify", network, hard, "--timeout", "1", "--json", "--results", tmp_path / "r.txt")
    assert done.returncode == 3
    row = json.loads(done.stdout)
    assert (row["status"], row["reason"]) == ("undecided", "timeout")
    assert row["seconds"] < 60  # it would go on for hours; machines are noisy
    assert (tmp_path / "r.txt").read_text() == "timeout\n"
    done = run("verify", hard, "--network", f"N={network}", "--timeout", "1")
    assert (done.returncode, done.stdout) == (3, "timed-out\n")


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "motion-blur:size=5,angle=30", "--strength", "0.4"),
        ("-p", "sharpen:size=3+brightness:max=0.1,clip=0..1", "--strength", "0.2,0.3"),
        ("-p", "box-blur:size=9", "--strength", "1", "--mean", "0.4,0.5,0.6", "--std", "0.2,0.3,0.4"),
    ],
)
def test_a_perturbed_query_is_the_query_it_was_made_from(tmp_path, words):
    run("export", MODEL, SIGN, *words, "-o", tmp_path, "--format", "perturbed")
    direct = run("verify", MODEL, SIGN, *words, "--json")
    carried = run("verify", MODEL, tmp_path / "perturbed.vnnlib", "--json")
    assert direct.returncode == carried.returncode
    one, other = (json.loads(done.stdout) for done in (direct, carried))
    for key in ("label", "predicted", "perturbation", "strength", "status", "critical_strength", "method"):
        assert one[key] == other[key], key


def test_a_perturbed_query_is_normalised_once(tmp_path):
    words = ("-p", "box-blur:size=3", "--strength", "1")
    norm = ("--mean", "0.4", "--std", "0.25")
    run("export", MODEL, SIGN, *words, *norm, "-o", tmp_path, "--format", "perturbed")
    file = tmp_path / "perturbed.vnnlib"
    assert "omit --mean" in complaint("verify", MODEL, file, *norm)
    assert "give the network mean 0.4 and std 0.25 (--mean and --std)" in complaint("verify", MODEL, file, *words)
    one, other = (
        json.loads(run("verify", MODEL, *given, "--json").stdout) for given in ((file, *words, *norm), (file,))
    )
    assert (one["status"], one["min_margin"]) == (other["status"], other["min_margin"])


def test_a_perturbed_query_gives_its_image_to_another_perturbation(tmp_path):
    run("export", MODEL, SIGN, "-p", "identity", "--strength", "1", "-o", tmp_path, "--format", "perturbed")
    words = ("-p", "box-blur:size=9", "--strength", "1", "--json")
    one, other = (
        json.loads(run("verify", MODEL, image, *words).stdout) for image in (SIGN, tmp_path / "perturbed.vnnlib")
    )
    assert one["status"] == other["status"]
    assert one["min_margin"] == other["min_margin"]


# -- any kernel -------------------------------------------------------------------------------------------------------


@given(size=st.sampled_from([1, 3, 5, 9]), strength=st.floats(0, 1), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_any_kernel_is_each_neighbourhoods_range(size, strength, seed):
    image = torch.from_numpy(np.random.default_rng(seed).uniform(size=(2, 6, 5)))
    low, high = sp.any_kernel(size).box(image, strength)
    for c, i, j in np.ndindex(*image.shape):
        reach = size // 2
        near = image[c, max(0, i - reach) : i + reach + 1, max(0, j - reach) : j + reach + 1]
        assert float(low[c, i, j]) == pytest.approx(float(image[c, i, j] * (1 - strength) + near.min() * strength))
        assert float(high[c, i, j]) == pytest.approx(float(image[c, i, j] * (1 - strength) + near.max() * strength))
    wider = sp.any_kernel(size + 2).box(image, 1.0)
    inner = sp.any_kernel(size).box(image, 1.0)
    assert bool((wider[0] <= inner[0]).all() & (wider[1] >= inner[1]).all())


def test_any_kernel_holds_every_kernel_with_entries_from_0_to_1():
    image = torch.from_numpy(np.random.default_rng(0).uniform(size=(3, 9, 9)))
    for text in ("box-blur:size=5", "motion-blur:size=5,angle=20"):
        path = sp.parse(text + ",padding=replicate").apply(image)
        for z in (0.3, 1.0):
            low, high = sp.any_kernel(5).box(image, z)
            assert bool((path.image(z) >= low - 1e-12).all() & (path.image(z) <= high + 1e-12).all())


def test_any_kernel_as_text():
    assert str(sp.parse("any-kernel:size=3")) == "any-kernel:size=3"
    assert str(sp.parse("any-kernel:size=5,clip=0..1")) == "any-kernel:size=5,clip=0..1"
    for text, problem in (
        ("any-kernel:size=4", "must be odd"),
        ("any-kernel:size=-1", "must be odd"),
        ("any-kernel:size=99999", "at most 999"),
        ("any-kernel", "size missing"),
        ("any-kernel:size=3,padding=zeros", "padding means nothing"),
        ("any-kernel:size=3,clip=1..0", "LOW below HIGH"),
        ("any-kernel:size=3+brightness:max=0.1", "nothing can be added"),
    ):
        with pytest.raises(InputError, match=re.escape(problem)):
            sp.parse(text)


def test_any_kernel_of_the_bundled_signs(tmp_path):
    words = ("-p", "any-kernel:size=3", "--json", "--counterexample", tmp_path / "c.png")
    done = run("verify", MODEL, SIGN, *words, "--strength", "1")
    row = json.loads(done.stdout)
    assert (done.returncode, row["status"], row["perturbation"]) == (1, "unsafe", "any-kernel:size=3")
    assert row["counterexample"] | {"class": 0, "margin": 0} == {
        "strength": 1.0,
        "class": 0,
        "margin": 0,
        "replayed": True,
    }
    assert (tmp_path / "c.png").stat().st_size > 10_000
    safe = json.loads(run("verify", MODEL, SIGN, *words, "--strength", "0.001").stdout)
    assert safe["status"] == "safe"
    assert run("verify", MODEL, SIGN, *words, "--strength", "1", "--label", "5").returncode == 1
    wrong = json.loads(run("verify", MODEL, SIGN, *words, "--strength", "1", "--label", "5").stdout)
    assert wrong["status"] == "misclassified"
    assert (
        "the image has no label" in run("verify", MODEL, SIGN, "-p", "any-kernel:size=3", "--strength", "0.001").stdout
    )


def test_any_kernel_and_clip_and_layouts(tmp_path):
    """A network with channels last gets the same box, in its own order."""
    random = np.random.default_rng(0)
    image = random.uniform(size=(3, 8, 6))
    source = save(dense((1, 8, 6, 3)), tmp_path)
    network = sp.load(source)
    result = sp.verify(network, image, "any-kernel:size=3,clip=0.4..0.6", 1.0, timeout=HANGING)
    low, high = sp.parse("any-kernel:size=3,clip=0.4..0.6").box(torch.from_numpy(image), 1.0)
    assert float(low.min()) >= 0.4
    assert float(high.max()) <= 0.6
    box = result.query.obligations[0].inputs
    assert tuple(box.low.shape) == tuple(box.high.shape) == (1, 8, 6, 3)
    assert np.array_equal(box.low.numpy()[0].transpose(2, 0, 1), low.numpy())
    assert np.array_equal(box.high.numpy()[0].transpose(2, 0, 1), high.numpy())


# -- the scripts of the competition -----------------------------------------------------------------------------------


def script(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / name), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)


def test_scripts_of_the_competition(tmp_path, model):
    if not (SCRIPTS.parent / ".venv" / "bin" / "shakeproof").exists():
        pytest.skip("needs the .venv that `make setup` makes")
    network, results = sp.load(model), tmp_path / "results.txt"
    query = query_file(tmp_path / "q.vnnlib", network, 10.0)
    assert script("prepare_instance.sh", "v1", "test", model, query).returncode == 0
    assert script("prepare_instance.sh", "v1", "test", query, query).returncode != 0
    assert script("prepare_instance.sh", "v2", "test", model, query).returncode != 0
    script("run_instance.sh", "v1", "test", model, query, results, "20")
    assert results.read_text().startswith("sat\n((X_0 ")
    script("run_instance.sh", "v1", "test", tmp_path / "gone.onnx", query, results, "20")
    assert results.read_text() == "error\n"
    assert script("install_tool.sh", "v2").returncode != 0
    assert all(
        os.access(SCRIPTS / name, os.X_OK) for name in ("install_tool.sh", "prepare_instance.sh", "run_instance.sh")
    )
