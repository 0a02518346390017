"""Real networks and images: the profile is what onnxruntime says, everywhere but at the flips."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import HANGING

import shakeproof as sp
from shakeproof.exact import Curve
from shakeproof.question import read_image

CIFAR, MNIST, GTSRB = "data/cifar10_test_first2000.npz", "data/mnist_test.npz", "data/gtsrb_test_first1000.npz"
RESNET = "benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx"
# network, images, largest strength (deep networks have tens of thousands of pieces up to 1)
QUICK = [
    ("networks/Convnet_avgpool.onnx", [f"{MNIST}@{i}" for i in range(3)], 1.0),
    ("networks/Convnet_maxpool.onnx", [f"{MNIST}@{i}" for i in range(3)], 1.0),
    ("networks/gtsrb_cnn.onnx", [f"{GTSRB}@{i}" for i in range(3)], 1.0),
    (RESNET, [f"benchmarks/sri_resnet_b/vnnlib/cifar10_spec_idx_{i}_eps_0.00350.vnnlib.gz" for i in (33, 304)], 1.0),
    ("networks/cifar10_resnet20.onnx", [f"{CIFAR}@{i}" for i in range(2)], 0.03),
    ("networks/cifar10_resnet18.onnx", [f"{CIFAR}@{i}" for i in range(2)], 0.1),
]
WHOLE = [(name, images, 1.0) for name, images, limit in QUICK if limit < 1]
PERTURBATIONS = ("motion-blur:size=5,angle=45", "box-blur:size=9", "sharpen:size=3")


def check_against_onnxruntime(result: sp.Result, network: sp.Network, samples: int) -> None:
    """The class at random strengths, away from flips; and no flip that dense evaluation finds is missing."""
    (strength,) = result.query.strengths
    z = np.random.default_rng(0).uniform(0, strength, samples)
    path = result.query.perturbation.apply(result.query.image.pixels)
    strengths = torch.from_numpy(z).view(-1, 1, 1, 1)
    inputs = network.picture().to_input(path.base + strengths * path.slopes[0])
    theirs = network.reference(inputs.float().numpy()).argmax(1)
    ends = np.array([interval.end for interval in result.profile])
    ours = np.array([interval.winner for interval in result.profile])[np.searchsorted(ends, z).clip(max=len(ends) - 1)]
    flips = ends[:-1]
    distance = np.abs(z[:, None] - flips).min(1) if len(flips) else np.full(len(z), np.inf)
    assert (ours == theirs)[distance > 1e-4].all()


@pytest.mark.parametrize(
    ("model", "images", "strength"), QUICK, ids=lambda v: Path(v).stem if isinstance(v, str) else ""
)
def test_profiles_agree_with_onnxruntime(shared, model, images, strength):
    check_network(shared, model, images, strength)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "images", "strength"), WHOLE, ids=lambda v: Path(v).stem if isinstance(v, str) else ""
)
def test_whole_profiles_agree_with_onnxruntime(shared, model, images, strength):
    check_network(shared, model, images, strength)


def check_network(shared, model: str, images: list[str], strength: float) -> None:
    network = sp.load(shared(model))
    for image in images:
        file, at, index = image.partition("@")
        picture = read_image(f"{shared(file)}{at}{index}").fitted(network.picture())
        for text in PERTURBATIONS:
            result = sp.profile(network, picture, text, max_strength=strength)
            assert result.curve.covers(0.0, strength)
            check_against_onnxruntime(result, network, 2000)


def test_a_missing_flip_is_noticed(shared):
    network = sp.load(shared("networks/gtsrb_cnn.onnx"))
    picture = read_image(f"{shared(GTSRB)}@0").fitted(network.picture())
    for text in ("box-blur:size=15", "motion-blur:size=15,angle=0", "sharpen:size=15"):
        result = sp.profile(network, picture, text)
        if len(result.profile) > 1:
            break
    check_against_onnxruntime(result, network, 2000)
    assert len(result.profile) > 1
    evidence, curve = result.evidence, result.curve
    proof = dataclasses.replace(
        evidence.proofs[0], curve=Curve(curve.z[[0, -1]], curve.scores[[0, 0]]), lower=np.ones(1)
    )
    broken = dataclasses.replace(result, evidence=dataclasses.replace(evidence, proofs=(proof,)))
    assert broken.profile == (sp.Interval(0.0, 1.0, result.profile[0].winner),)
    with pytest.raises(AssertionError):
        check_against_onnxruntime(broken, network, 2000)


def test_measured_camera_shake(shared, tmp_path):
    kernels = np.load(shared("data/camera_shake_levin09.npz"))
    np.save(tmp_path / "shake.npy", kernels["k5"])
    shake = sp.custom(tmp_path / "shake.npy", normalise=True)
    network = sp.load(shared("networks/gtsrb_cnn.onnx"))
    picture = read_image(f"{shared(GTSRB)}@1").fitted(network.picture())
    result = sp.profile(network, picture, shake)
    check_against_onnxruntime(result, network, 2000)


def test_the_papers_table_for_mnist(shared):
    """One kernel size of the paper's mnist_fc table, through the script that prints it all."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "paper_tables.py"
    words = [sys.executable, script, "mnist_fc", "--data", shared("benchmarks"), "--sizes", "5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGING, check=True)
    assert done.stdout.splitlines()[-1] == "30 of 30 cells equal"


def test_the_papers_table_says_where_its_benchmarks_come_from(tmp_path):
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "paper_tables.py"
    done = subprocess.run([sys.executable, script, "--data", tmp_path], capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 1
    assert "the benchmark mnist_fc is not in" in done.stderr
    assert "ChristopherBrix/vnncomp2022_benchmarks" in done.stderr


def test_any_benchmark_folder_of_that_form(shared, tmp_path):
    """A folder with one instance; and a paper that says otherwise is noticed."""
    source = shared("benchmarks/mnist_fc")
    folder = tmp_path / "mine"
    folder.mkdir()
    with (source / "instances.csv").open() as file:
        first = next(csv.reader(file))
    for name, suffix in ((first[0], ""), (first[1], ".gz")):
        target = folder / (name + suffix)
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(source / (name + suffix))
    (folder / "instances.csv").write_text(",".join(first) + "\n")
    (tmp_path / "paper.csv").write_text(
        "benchmark,perturbation,size,strength,verified,unsafe,timeout,seconds\nmine,box-blur,3,0.2,0,0,1,9\n"
    )
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "paper_tables.py"
    words = [sys.executable, script, "mine", "--data", tmp_path, "--paper", tmp_path / "paper.csv", "--sizes", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 of 1 cells equal"
