"""Certificates that the prover hands out: accepted by the checker, by exact arithmetic, and for nothing else."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import onnx
import pytest
from exact_checker import check_exactly
from models import model
from onnx import helper
from processes import HANGING

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import LateCertificateError, NoCertificateError, certificate, pack

MNIST = "benchmarks/mnist_fc/onnx/mnist-net_256x{}.onnx"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small network that the test made itself, and an image."""
    random = np.random.default_rng(3)
    weights = {"first": (16, 12), "second": (12, 3)}
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]
    made = {name: random.normal(size=shape).astype(np.float32) for name, shape in weights.items()}
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(model(nodes, [1, 1, 4, 4], made), path)
    return sp.load(path), random.uniform(0, 1, (1, 4, 4)).astype(np.float32)


def accepted(network: sp.Network, made: bytes) -> checker.Outcome:
    with open(network.name, "rb") as file:
        return checker.check(made, file.read())


def refined(made: bytes, parts: int = 32) -> bytes:
    """The same certificate with every leaf cut into parts."""
    header, arrays = checker.unpack(made)
    ends = np.array([0.0, *arrays["cuts"], *header["strength"]])
    cuts = np.unique([np.linspace(low, high, parts + 1) for low, high in pairwise(ends)])[1:-1]
    return pack(header, arrays | {"cuts": cuts})


def test_wide_leaves_are_asked_about_first(small):
    """A leaf for each piece of the sweep would take the checker many times as long as the analysis."""
    network, image = small
    result = answer(network, image, "box-blur:size=3")
    end = 1.0 if result.status is sp.Status.SAFE else 0.9 * result.certified_strength
    result = sp.verify(network, image, "box-blur:size=3", end, label=result.label, whole_curve=True)
    made = certificate(network, result)
    assert accepted(network, made).accepted
    assert len(checker.unpack(made)[1]["cuts"]) + 1 < result.pieces


def test_a_certificate_of_a_float32_answer_takes_moments(shared):
    """Around a change of class, float32 proves nothing: what cannot be proved at a point is not cut for ever."""
    network = sp.load(shared("networks/Convnet_maxpool.onnx"))
    image = np.load(shared("data/mnist_test.npz"))["x"][0][None] / 255.0
    result = sp.profile(network, image, "box-blur:size=3", arithmetic="float32")
    assert result.status is sp.Status.UNSAFE
    made = certificate(network, result, profile=True, timeout=HANGING)
    outcome = accepted(network, made)
    assert outcome.accepted, outcome.sentence
    assert outcome.details["leaves"] < 500


def test_a_certificate_has_a_time_limit_of_its_own(small):
    network, image = small
    with pytest.raises(LateCertificateError, match="takes longer than 1e-09 s"):
        certificate(network, answer(network, image, "box-blur:size=3"), profile=True, timeout=1e-9)


def test_what_the_checker_refuses_is_not_handed_out(small, monkeypatch):
    network, image = small
    monkeypatch.setattr(checker, "check", lambda made, model: checker.Outcome(False, "no", {}))
    with pytest.raises(NoCertificateError, match="the checker refuses its certificate: no"):
        certificate(network, answer(network, image, "box-blur:size=3"))


def answer(network, image, perturbation, **options):
    return sp.profile(network, image, perturbation, whole_curve=True, **options)


@pytest.mark.parametrize(
    "perturbation",
    [
        "box-blur:size=3",
        "sharpen:size=3,padding=zeros",
        "brightness:max=0.2,clip=0..1",
        "haze:colour=0.8",
        "gaussian-blur:size=5,sigma=0.8",
        "unsharp:size=3,sigma=1",
        "defocus:radius=1.5",
    ],
)
def test_what_is_safe_has_a_certificate(small, perturbation):
    network, image = small
    whole = answer(network, image, perturbation)
    end = 1.0 if whole.status is sp.Status.SAFE else 0.9 * whole.certified_strength
    result = sp.verify(network, image, perturbation, end, label=whole.label, whole_curve=True)
    assert result.status is sp.Status.SAFE
    made = certificate(network, result)
    outcome = accepted(network, made)
    assert outcome.accepted, outcome.sentence
    header, arrays = checker.unpack(made)
    assert header["claim"] == "safe"
    assert len(arrays["cuts"]) <= 2 * result.pieces
    assert arrays["cuts"].dtype.itemsize <= 10


def test_a_profile_and_a_loss_have_certificates(small):
    network, image = small
    result = answer(network, image, "box-blur:size=3,padding=zeros")
    if result.status is sp.Status.SAFE:  # another label loses
        result = answer(network, image, "box-blur:size=3,padding=zeros", label=(result.label + 1) % 3)
    whole, loss = certificate(network, result, profile=True), certificate(network, result)
    for made, claim in ((whole, "profile"), (loss, "unsafe")):
        assert accepted(network, made).accepted
        assert checker.unpack(made)[0]["claim"] == claim


@pytest.mark.parametrize("arithmetic", ["real", "float32"])
def test_several_strengths(small, arithmetic):
    network, image = small
    perturbation = sp.parse("box-blur:size=3+brightness:max=0.05")
    result = sp.verify(network, image, perturbation, (0.05, 0.5), arithmetic=arithmetic)
    assert result.status is sp.Status.SAFE
    made = certificate(network, result)
    assert accepted(network, made).accepted
    header, arrays = checker.unpack(made)
    assert header["arithmetic"] == arithmetic
    assert len(arrays["axes"]) == 2 * len(arrays["cuts"]) + 1


def test_what_has_none_says_why(small, tmp_path):
    network, image = small
    result = answer(network, image, "box-blur:size=3")
    late = dataclasses.replace(result, evidence=dataclasses.replace(result.evidence, comparison=None))
    assert late.status is sp.Status.UNDECIDED or result.status is not sp.Status.SAFE
    if late.status is sp.Status.UNDECIDED:
        with pytest.raises(NoCertificateError, match="undecided"):
            certificate(network, late)
    with pytest.raises(NoCertificateError, match="ONNX"):
        certificate(dataclasses.replace(network, name="module"), result)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"another file")
    with pytest.raises(NoCertificateError, match="changed"):
        certificate(dataclasses.replace(network, name=str(other)), result)
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Tanh", ["s"], ["t"]),
        helper.make_node("Flatten", ["t"], ["y"]),
    ]
    onnx.save(model(nodes, [1, 1, 4, 4]), tmp_path / "smooth.onnx")
    smooth = sp.load(tmp_path / "smooth.onnx")
    image = np.linspace(0, 1, 16).reshape(1, 4, 4)
    result = sp.verify(smooth, image, "box-blur:size=3", 0.001)
    with pytest.raises(NoCertificateError, match=r"Sigmoid.*Tanh|Tanh.*Sigmoid"):
        certificate(smooth, result)


@pytest.mark.parametrize("layers", [2, 4, 6])
def test_mnist_is_certified_and_exact_arithmetic_agrees(shared, layers):
    network = sp.load(shared(MNIST.format(layers)))
    image = f"{shared('data/mnist_test.npz')}@{layers}"
    for perturbation in ("motion-blur:size=3,angle=45", "sharpen:size=3"):
        result = sp.verify(network, image, perturbation, 0.2, whole_curve=True)
        assert result.status is sp.Status.SAFE
        made = certificate(network, result)
        outcome = accepted(network, made)
        assert outcome.accepted, outcome.sentence
        # the exact checker's rule loses more on wide leaves: it proves the same margin on narrower ones
        truly, least = check_exactly(refined(made), network.name)
        assert truly
        assert float(least) >= outcome.details["least_margin"] > 0


def test_the_commands(small, tmp_path):
    network, image = small
    np.save(tmp_path / "image.npy", image)
    files = [network.name, str(tmp_path / "image.npy")]
    made = tmp_path / "answer.cert"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "shakeproof", *words], capture_output=True, text=True)

    done = run("verify", *files, "-p", "brightness:max=0.01", "--strength", "0.5", "--certificate", str(made))
    assert (done.returncode, done.stderr) == (0, "")
    done = run("check", str(made), "--model", files[0], "--image", files[1], "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["accepted"] is True
    assert "1 x 4 x 4 (channels x height x width)" in " ".join(json.loads(done.stdout)["remarks"])
    np.save(tmp_path / "image.npy", image / 2)
    done = run("check", str(made), "--model", files[0], "--image", files[1])
    assert done.returncode == 1
    assert "does not hold: the image has other pixels" in done.stdout
    done = run("check", str(tmp_path / "nothing"), "--model", files[0])
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    done = run("profile", *files, "-p", "box-blur:size=3", "--timeout", "1e-9", "--certificate", str(made))
    assert "no certificate" in done.stderr
