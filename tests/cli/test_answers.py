"""Answers as they come: what is printed when, what happens to bad images among good ones, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from warm import complaint, run

from shakeproof import demo

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}
STOP, WARNING = IMAGES["stop.1"], IMAGES["warning.1"]
COMMAND = [sys.executable, "-m", "shakeproof.cli"]
# Some seconds a query, by splitting: one a sweep.
SLOW = "box-blur:size=9+brightness:max=0.2"


def test_a_bad_image_among_good_ones_is_reported_and_the_rest_go_on(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    words = ("profile", MODEL, STOP, "gone.png", WARNING, "broken.png", "-p", "box-blur:size=3", "-p", "sharpen:size=3")
    done = run(*words, "--json", cwd=tmp_path)
    assert done.returncode == 2
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["image"] for row in rows] == [STOP, STOP, WARNING, WARNING]
    first, second = done.stderr.splitlines()
    assert first.startswith("shakeproof: gone.png: cannot read the image")
    assert second.startswith("shakeproof: broken.png: cannot read the image")
    assert "gone.png" in complaint(*words, "--strict", cwd=tmp_path)
    assert done.stdout.count("\n") == 4


def test_a_bad_query_among_good_ones_is_reported_too(tmp_path):
    words = ("-p", "box-blur:size=3", "--strength", "0.1", "-o", tmp_path, "--format", "perturbed")
    assert run("export", MODEL, STOP, *words).returncode == 0
    good = tmp_path / "perturbed.vnnlib"
    (tmp_path / "bad.vnnlib").write_text(good.read_text()[:-30])
    done = run("verify", MODEL, tmp_path / "bad.vnnlib", good, "--json")
    assert done.returncode == 2
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["safe"]
    assert done.stderr.startswith(f"shakeproof: {tmp_path}/bad.vnnlib: ")
    assert done.stderr.count("\n") == 1


def test_a_kernel_that_fits_no_picture_is_one_mistake():
    assert "too large" in complaint("profile", MODEL, STOP, WARNING, "-p", "box-blur:size=65")


def test_files_are_numbered_by_query(tmp_path):
    words = ("profile", MODEL, "gone.png", STOP, WARNING, "-p", "box-blur:size=9", "-p", "identity")
    run(*words, "--counterexample", "c.png", "--quiet", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["c-5.png"]  # of the third image, the first perturbation


@pytest.fixture
def slow_run():
    """A run whose second query takes long; stopped if the test has not."""
    words = ["profile", MODEL, STOP, "-p", "box-blur:size=9", "-p", SLOW, "-p", "sharpen:size=3", "--json"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--threads", "1", "--tolerance", "1e-9", "--timeout", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
    )
    yield process
    process.kill()
    process.wait()


def test_answers_come_one_by_one_and_an_interrupt_says_what_is_missing(slow_run):
    first = json.loads(slow_run.stdout.readline())
    assert (first["perturbation"], first["status"]) == ("box-blur:size=9", "safe")
    assert slow_run.poll() is None
    slow_run.send_signal(signal.SIGINT)
    rest, errors = slow_run.communicate(timeout=60)
    assert slow_run.returncode == 130
    assert rest == ""
    assert errors == (f"shakeproof: interrupted; 2 of 3 queries are not answered, the first is {STOP} {SLOW}\n")
