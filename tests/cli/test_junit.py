"""`--junit`: read back by an XML parser, whatever happens and whatever files are called."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from xml.etree import ElementTree

import pytest
from processes import HANGING, interruptible
from warm import complaint, run

from shakeproof import demo

MODEL = str(demo.MODEL)
IMAGES = {path.stem: str(path) for path, _ in demo.images()}
STOP, WARNING = IMAGES["stop.1"], IMAGES["warning.1"]


def read(path):
    """The cases by name: kind and type of what was found, or None; counts are checked."""
    suite = ElementTree.parse(path).getroot()
    cases = {case.get("name"): next((c for c in case if c.tag != "system-out"), None) for case in suite}
    kinds = [None if found is None else found.tag for found in cases.values()]
    counted = [kinds.count(kind) for kind in ("failure", "error", "skipped")]
    assert [int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")] == [len(kinds), *counted]
    return suite, {name: None if c is None else (c.tag, c.get("type"), c.get("message")) for name, c in cases.items()}


def test_a_case_for_each_query(tmp_path):
    words = ("-p", "box-blur:size=3", "-p", "motion-blur:size=9,angle=90", "--junit", "j.xml", "--json")
    done = run("profile", MODEL, WARNING, "gone.png", *words, cwd=tmp_path)
    assert done.returncode == 2
    suite, cases = read(tmp_path / "j.xml")
    assert cases[f"{WARNING} box-blur:size=3"] is None
    kind, of, message = cases[f"{WARNING} motion-blur:size=9,angle=90"]
    assert (kind, of) == ("failure", "unsafe")
    assert message.startswith("warning loses, critical strength 0.681937")
    assert [cases[f"gone.png {text}"][:2] for text in words[1:4:2]] == [("error", "refused")] * 2
    said = [json.loads(found.text) for found in suite.iter("system-out")]
    assert said == [json.loads(line) for line in done.stdout.splitlines()]
    assert suite[0].get("classname") == MODEL


def test_what_is_not_proved_does_not_pass(tmp_path):
    words = ("-p", "box-blur:size=9", "--junit", "j.xml", "--quiet")
    run("profile", MODEL, WARNING, *words, "--timeout", "0.000001", cwd=tmp_path)
    (case,) = read(tmp_path / "j.xml")[1].values()
    assert case[:2] == ("error", "undecided")
    run("verify", MODEL, WARNING, *words, "--strength", "0.1", "--label", "0", cwd=tmp_path)
    (case,) = read(tmp_path / "j.xml")[1].values()
    assert case[:2] == ("failure", "misclassified")


def test_answers_of_before_count(tmp_path):
    words = ("profile", MODEL, WARNING, "-p", "box-blur:size=3", "-p", "haze:colour=0.8", "--output", "o.jsonl")
    run(*words[:5], *words[-2:], cwd=tmp_path)
    run(*words, "--resume", "--junit", "j.xml", cwd=tmp_path)
    known, new = read(tmp_path / "j.xml")[1].values()
    assert (known, new[:2]) == (None, ("failure", "unsafe"))
    run(*words, "--resume", "--junit", "j.xml", cwd=tmp_path)
    assert [found and found[1:] for found in read(tmp_path / "j.xml")[1].values()] == [
        None, ("unsafe", "unsafe (answered in an earlier run)")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["<&\"'>]]>.png", "line\nfeed\t\r.png", "bell\x07\x1b\x7f.png", "\udcff\udc80.png", "ä☂🚦.png"]
)
def test_any_file_name_is_valid_xml(tmp_path, name):
    try:
        shutil.copy(WARNING, os.path.join(tmp_path, name))
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    done = run("verify", MODEL, name, "-p", "box-blur:size=3", "--strength", "0.1", "--junit", "j.xml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (case,) = read(tmp_path / "j.xml")[1]
    odd = dict(zip("\x07\x1b\udcff\udc80", (r"\x07", r"\x1b", r"\xff", r"\x80"), strict=True))
    assert case == "".join(odd.get(c, c) for c in name) + " box-blur:size=3"


def test_an_interrupted_run_says_what_is_missing(tmp_path):
    perturbations = ("identity", "box-blur:size=3", "box-blur:size=9+brightness:max=0.2")
    words = [word for text in perturbations for word in ("-p", text)]
    words += ["--tolerance", "1e-9", "--threads", "1", "--junit", "j.xml", "--json"]  # the last takes minutes
    process = interruptible([sys.executable, "-m", "shakeproof", "profile", MODEL, STOP, *words], cwd=tmp_path)
    for _ in range(2):  # with the second answer, the first is recorded
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANGING)
    assert process.returncode == 130
    first, _, last = read(tmp_path / "j.xml")[1].values()
    assert (first, last[:2]) == (None, ("skipped", "unanswered"))


def test_a_file_that_cannot_be_written_is_found_out_before_the_work(tmp_path):
    words = ("profile", MODEL, STOP, "-p", "identity", "--junit")
    assert "cannot be written" in complaint(*words, tmp_path / "no" / "j.xml")
    query = ("verify", "q.vnnlib", "--network", f"N={MODEL}", "--junit", "j.xml")
    (tmp_path / "q.vnnlib").write_text(
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(assert (<= Y_0 0))"
    )
    assert "no --junit" in complaint(*query, cwd=tmp_path)
