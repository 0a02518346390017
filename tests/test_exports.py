"""The table of exports in benchmarks/ notices an answer that the runtime contradicts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import shakeproof as sp
from shakeproof import demo

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from export_suite.asking import SAMPLES, agreement
from export_suite.making import interesting
from export_suite.runtime import PERTURBATION, blurred, runtime


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A file as the benchmark makes them, with a picture whose class changes, and the answer about it."""
    path = tmp_path_factory.mktemp("exports") / "signs@nobody.onnx"
    shutil.copy(demo.MODEL, path)
    picture, changes = interesting(runtime(path), seed=0)
    assert changes
    np.save(path.with_suffix(".npy"), picture)
    return path, sp.profile(sp.load(path), picture, PERTURBATION).to_json()


def test_a_right_answer_agrees(answered):
    agree, sampled = agreement(*answered)
    assert agree == sampled > SAMPLES * 0.9


def test_a_wrong_answer_is_noticed(answered):
    path, answer = answered
    agree, sampled = agreement(path, answer | {"profile": [], "certified_strength": 1.0, "status": "safe"})
    assert agree < sampled


def test_its_own_blur_is_ours():
    picture = np.random.default_rng(0).random((3, 6, 7))
    ours = sp.parse(PERTURBATION).kernel.at(0.5)
    assert np.allclose(ours, np.eye(9)[4].reshape(3, 3) / 2 + np.full((3, 3), 1 / 18))
    middle = blurred(picture, 0.5)[:, 1:-1, 1:-1]
    around = sum(picture[:, i : i + 4, j : j + 5] for i in range(3) for j in range(3))
    assert np.allclose(middle, picture[:, 1:-1, 1:-1] / 2 + around / 18, atol=1e-6)
