"""Answers about 8-bit pictures are replayed by a program that shares nothing with the one that gave them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import HANGING
from warm import run

from shakeproof import demo

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "replayed.py"
NORMALISED = ("0.4", "0.3")


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The bundled signs, by the command, with a normalisation and kernels of every kind that the replayer knows."""
    import PIL.Image

    folder = tmp_path_factory.mktemp("replayed")
    signs = [np.asarray(PIL.Image.open(path).convert("RGB")) for path, _ in demo.images()[:2]]
    np.savez(folder / "signs.npz", x=np.stack(signs))
    kernels = [
        word
        for text in ("box-blur:size=3", "sharpen:size=5", *(f"motion-blur:size=5,angle={a}" for a in (0, 45, 90, 135)))
        for word in ("-p", text)
    ]
    mean, std = NORMALISED
    done = run(
        *("profile", str(demo.MODEL), f"{folder / 'signs.npz'}@0:2", *kernels, "--max-strength", "0.1"),
        *("--mean", mean, "--std", std, "--pixels", "8bit", "--json"),
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def replayed(answers, folder):
    file = folder / "answers.jsonl"
    file.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    mean, std = NORMALISED
    words = [sys.executable, SCRIPT, file, "--count", "60", "--mean", mean, "--std", std]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGING, check=False)
    assert not done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_answers_are_true_of_an_independent_path(answers, tmp_path):
    code, rows = replayed(answers, tmp_path)
    assert (code, len(rows)) == (0, 12)
    assert all(row["replays"] == 60 and not row["contradicted"] for row in rows)


def test_a_wrong_class_is_noticed(answers, tmp_path):
    """From half way on, another class."""
    answer = answers[3]
    (only,) = answer["profile"]
    wrong = [only | {"to": 0.05}, {"from": 0.05, "to": 0.1, "class": only["class"] + 1}]
    code, (row,) = replayed([answer | {"profile": wrong}], tmp_path)
    assert code == 1
    assert row["contradicted"]
    assert min(row["contradicted"]) >= 0.05
