"""Broken inputs of every kind, through the command (more of them: benchmarks/fuzz.py); the fuzzer's own promises."""

from __future__ import annotations

import subprocess

import pytest
from fuzzing import KINDS, LIMITS, Case, broken, broken_promises, whole, wrongly_said, wrongly_written

# How many of each kind, and seeds that once found something.
COUNT = 5
FOUND = {
    "onnx": (163, 223, 242, 312),
    "vnnlib": (11,),
    "tif": (6, 276),
    "npy": (12,),
    "kernel png": (214,),
    "certificate": (99,),
}
CASES = [(kind, seed) for kind in KINDS for seed in (*range(COUNT), *FOUND.get(kind, ()))]


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_broken_inputs_are_told_in_one_line(tmp_path, kind, seed):
    case = broken(kind, seed)
    done = case.run(tmp_path)
    assert not broken_promises(case, done, tmp_path), case.how
    assert done.gib < LIMITS[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_is_a_case(kind):
    assert broken(kind, 3) == broken(kind, 3)
    assert len({repr(broken(kind, seed)) for seed in range(20)}) > 15


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_broken_was_good(tmp_path, kind):
    done = whole(kind, 0).run(tmp_path)
    assert done.returncode in (0, 1, 3), done.stderr


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (-11, "", ""),
        (-14, "", ""),
        (1, "Traceback (most recent call last):", ""),
        (2, "", "shakeproof: internal error, please report it: KeyError"),
        (2, "", "a warning\nshakeproof: no"),
        (2, "", "shakeproof: no\nshakeproof: no"),
        (2, "", "no"),
        (2, "", ""),
        (2, "half an answer", "shakeproof: no"),
        (0, "{}", "a warning"),
    ],
)
def test_promises_that_are_broken_are_noticed(code, out, err):
    assert wrongly_said(subprocess.CompletedProcess([], code, out, err))
    assert not wrongly_said(subprocess.CompletedProcess([], 2, "", "shakeproof: no"))
    assert not wrongly_said(subprocess.CompletedProcess([], 0, "{}", ""))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x", b"changed"),
        (".out.png.123", b"left"),
        ("out.jsonl", b'{"a": 1}\n{"b"'),
        ("out.csv", b"a,b\n1,2\n3"),
        ("out.png", b"\x89PNG"),
        ("out.xml", b"<a>"),
    ],
)
def test_files_that_are_not_whole_are_noticed(tmp_path, name, data):
    case = Case({"x": b"input"}, ())
    case.write(tmp_path)
    assert not wrongly_written(case, 0, tmp_path)
    (tmp_path / name).write_bytes(data)
    assert wrongly_written(case, 0, tmp_path)
