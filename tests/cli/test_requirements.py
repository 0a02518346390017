"""`--require`: a requirement as text, from the command line to the answer."""

from __future__ import annotations

import csv
import json

import pytest
from warm import complaint, run

from shakeproof import demo

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}
WARNING, BLUR = IMAGES["warning.1"], "motion-blur:size=9,angle=90"


def answer(*words: object, code: int) -> dict:
    done = run(*words, "--json", "--quiet")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_what_is_required_is_answered_and_named():
    label = answer("profile", MODEL, WARNING, "-p", BLUR, code=1)
    top = answer("profile", MODEL, WARNING, "-p", BLUR, "--require", "top:k=4", code=0)
    lead = answer("profile", MODEL, WARNING, "-p", BLUR, "--require", "label:lead=2.0", code=1)
    assert [each["requirement"] for each in (label, top, lead)] == ["label", "top:k=4", "label:lead=2"]
    assert lead["critical_strength"][1] < label["critical_strength"][0]
    assert top["critical_strength"] is None
    assert (top["profile"], lead["counterexample"]["replayed"]) == ([], True)
    several = "label:lead=2 and top:k=3"
    assert answer("profile", MODEL, WARNING, "-p", BLUR, "--require", several, code=1)["requirement"] == several


def test_never_is_the_same_by_every_method():
    words = ("-p", "box-blur:size=5", "--strength", "0.3", "--require", "never:classes=1,2")
    for more in ((), ("--method", "bounds"), ("--pixels", "8bit")):
        assert answer("verify", MODEL, IMAGES["stop.1"], *words, *more, code=0)["status"] == "safe"


def test_the_requirement_is_in_files_and_in_words(tmp_path):
    words = ("profile", MODEL, WARNING, "-p", BLUR, "--require", "label:lead=2")
    done = run(*words, "--output", "a.csv", "--plot", "a.png", "--counterexample", "b.png", cwd=tmp_path)
    assert done.returncode == 1
    assert "label:lead=2" in done.stdout
    (row,) = csv.DictReader((tmp_path / "a.csv").read_text().splitlines())
    assert row["requirement"] == "label:lead=2"
    assert (tmp_path / "a.png").stat().st_size > 5000
    again = run(*words, "--output", "a.csv", "--resume", cwd=tmp_path)
    assert "1 already in the output file" in again.stdout
    other = run(*words[:-1], "label", "--output", "a.csv", "--resume", cwd=tmp_path)
    assert "1 already" not in other.stdout


def test_a_requirement_that_fails_without_blur_is_not_blamed_on_a_label():
    words = ("-p", "box-blur:size=3", "--output-name", "*", "--require", "detection:box=1,score=0.5,drift=4")
    done = run("profile", demo.ROAD / "detector.onnx", demo.ROAD / "crossing.png", *words)
    assert done.returncode == 1
    assert "misclassified: the requirement already fails at strength 0" in done.stdout
    assert "predicted" not in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("win", "unknown requirement 'win'"),
        ("top:k=0", "k must be 1 or more"),
        ("never:classes=99", "numbered from 0"),
        ("never:classes=no such sign", "'no such sign'"),
    ],
)
def test_a_requirement_that_means_nothing_is_one_line(text, words):
    assert words in complaint("profile", MODEL, WARNING, "-p", BLUR, "--require", text)


def test_options_that_do_not_go_together_are_refused(tmp_path):
    asked = ("profile", MODEL, WARNING, "-p", BLUR, "--require", "never:classes=1")
    assert "says nothing about a label" in complaint(*asked, "--label", "1")
    assert "of 8-bit pictures" in run(*asked, "--pixels", "8bit", "--certificate", tmp_path / "a.cert").stderr
    assert "--require is for perturbed images" in complaint("verify", MODEL, "q.vnnlib", "--require", "top:k=2")


def test_a_certificate_of_a_requirement_is_checked(tmp_path):
    words = ("profile", MODEL, IMAGES["stop.1"], "-p", "box-blur:size=3", "--require", "never:classes=1,2")
    assert run(*words, "--certificate", "a.cert", cwd=tmp_path).returncode == 0
    done = run("check", "a.cert", "--model", MODEL, cwd=tmp_path)
    assert done.returncode == 0
    assert "never:classes=1,2" in done.stdout
