"""The VNN-COMP benchmark under blur: what is written reads back with the truth that its table states."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnxruntime
import pytest

import shakeproof as sp
from shakeproof import checker, demo

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "vnncomp_blur.py"
sys.path.append(str(SCRIPT.parent))
import vnncomp_blur  # noqa: E402

STATUSES = {"unsat": "safe", "sat": "unsafe"}


def written(folder: Path, *options: str) -> list[dict[str, str]]:
    """The rows of truth.csv of a benchmark about the bundled network."""
    command = [sys.executable, SCRIPT, folder, "--only", "demo", *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (folder / "truth.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vnncomp") / "blur"
    return folder, written(folder, "--cases", "1", "--spikes", "1")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_instance_has_the_stated_truth(benchmark, version):
    if version == "2.0":
        pytest.importorskip("vnnlib")
    folder, rows = benchmark
    with (folder / version / "instances.csv").open(newline="") as file:
        listed = [(onnx, vnnlib) for onnx, vnnlib, _ in csv.reader(file)]
    assert listed == [(row["onnx"], row["vnnlib"]) for row in rows]
    answers = [sp.verify_specification(folder / version / onnx, folder / version / vnnlib) for onnx, vnnlib in listed]
    assert [answer.status.value for answer in answers] == [STATUSES[row["truth"]] for row in rows]


def test_strengths_are_on_either_side_of_the_critical_one(benchmark):
    _, rows = benchmark
    assert [row["truth"] for row in rows] == ["unsat", "sat"] * 2
    for row in rows:
        ratio = float(row["strength"]) / float(row["critical_low"])
        assert ratio == pytest.approx(0.9 if row["truth"] == "unsat" else 1.1, rel=1e-6)


def test_a_spike_is_a_short_loss(benchmark):
    folder, rows = benchmark
    row = rows[-1]
    start, end = float(row["critical_high"]), float(row["wins_again"])
    assert 0 < end - start < 0.01
    session = onnxruntime.InferenceSession(folder / "1.0" / row["onnx"], providers=["CPUExecutionProvider"])
    strengths = (0.0, (start + end) / 2, float(row["strength"]))
    scores = [session.run(None, {"z": np.array([[z]], np.float32)})[0] for z in strengths]
    assert [int(values.argmax()) == int(row["label"]) for values in scores] == [True, False, True]


def test_certificates_hold(benchmark):
    folder, rows = benchmark
    for row in rows:
        outcome = checker.check((folder / row["certificate"]).read_bytes(), (folder / row["network"]).read_bytes())
        assert outcome.accepted


def test_the_seed_chooses_the_instances(benchmark, tmp_path):
    _, rows = benchmark
    other = written(tmp_path / "other", "--cases", "1", "--spikes", "0", "--seed", "2")
    assert other[0]["strength"] != rows[0]["strength"]


def test_a_wrong_truth_is_not_written(tmp_path):
    network = sp.load(demo.MODEL)
    (picture, label), *_ = demo.images()
    result = sp.profile(network, picture, "box-blur:size=11", label=label)
    strength = result.certified_strength
    assert result.status is sp.Status.UNSAFE
    case = vnncomp_blur.Case("wrong", demo.MODEL, result.query, (strength / 3, strength / 3), None)
    for folder in ("networks", "certificates"):
        (tmp_path / folder).mkdir()
    with pytest.raises(click.ClickException, match="is sat, but reads back as safe"):
        list(vnncomp_blur.write_case(case, tmp_path, 60))
