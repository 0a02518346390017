"""Broken files of every kind, through the command; more of them in benchmarks, and the fuzzer's own promises."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from fuzzing import KINDS, LIMITS, broken, promised, small_model, words
from warm import run

import shakeproof as sp

# How many of each kind, and seeds that once found something.
COUNT = 8
FOUND = {"onnx": (163, 223, 242, 312)}
CASES = [(kind, seed) for kind in KINDS for seed in (*range(COUNT), *FOUND.get(kind, ()))]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    (folder / "m.onnx").write_bytes(small_model(np.random.default_rng(0)))
    np.save(folder / "x.npy", np.random.default_rng(0).random((1, 4, 4)))
    np.save(folder / "wide.npy", np.random.default_rng(0).random((1, 8, 8)))
    return folder


def tried(kind, seed, good, folder):
    case = broken(kind, seed)
    (folder / case.name).write_bytes(case.data)
    picture = good / ("wide.npy" if kind == "pt2" else "x.npy")
    return case, run(*words(kind, folder / case.name, good / "m.onnx", picture, seed), limits=LIMITS)


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_broken_files_are_told_in_one_line(tmp_path, good, kind, seed):
    case, done = tried(kind, seed, good, tmp_path)
    assert not promised(done), case.how


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_file(kind):
    assert broken(kind, 3) == broken(kind, 3)
    assert len({broken(kind, seed).data for seed in range(20)}) > 15


def test_what_is_broken_was_good(good):
    network = sp.load(good / "m.onnx")
    assert network.graph.classes == 3
    for kind in KINDS:
        ending, make, _ = KINDS[kind]
        (good / f"whole.{ending}").write_bytes(make(np.random.default_rng(0)))
        picture = good / ("wide.npy" if kind == "pt2" else "x.npy")
        done = run(*words(kind, good / f"whole.{ending}", good / "m.onnx", picture, 0))
        assert done.returncode in (0, 1, 3), done.stderr


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (-11, "", ""),
        (-14, "", ""),
        (1, "Traceback (most recent call last):", ""),
        (2, "", "shakeproof: internal error, please report it: KeyError"),
        (2, "", "a warning\nshakeproof: no"),
        (2, "", "no"),
        (2, "", ""),
        (2, "half an answer", "shakeproof: no"),
        (0, "{}", "a warning"),
    ],
)
def test_promises_that_are_broken_are_noticed(code, out, err):
    assert promised(subprocess.CompletedProcess([], code, out, err))
    assert not promised(subprocess.CompletedProcess([], 2, "", "shakeproof: no"))
    assert not promised(subprocess.CompletedProcess([], 0, "{}", ""))
