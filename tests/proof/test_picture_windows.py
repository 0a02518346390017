"""8-bit pictures that are run in parts: on several cores, in windows, or after an interrupt. Not one bit changes."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from processes import HANGING, interruptible, processor_seconds, until

import shakeproof as sp
from shakeproof import demo
from shakeproof.analysis import answers, joined_windows, window_of
from shakeproof.errors import InputError, ProofError
from shakeproof.proof import EnumeratedWindow, Interrupted, begun_by

PICTURES = [str(path) for path, _ in demo.images()]
BLUR = "motion-blur:size=9,angle=90"
SETTINGS = sp.Settings(pixels="8bit")
END = 0.1


@pytest.fixture(scope="module")
def network():
    return sp.load_deployed(demo.MODEL)


@pytest.fixture(scope="module")
def query(network):
    (query,) = sp.perturbed(network, PICTURES[:1], BLUR, strength=END)
    return query


def assert_same(one: sp.Result, other: sp.Result) -> None:
    mine, theirs = (replace(own.record, seconds=0.0, remaining=None) for own in (one, other))
    assert mine == theirs
    assert one.proof.margins.tobytes() == other.proof.margins.tobytes()
    assert one.proof.winners.tobytes() == other.proof.winners.tobytes()
    assert one.proof.exact_profile() == other.proof.exact_profile()


@pytest.fixture(scope="module")
def plain(network, query):
    return sp.analyse(network, [query], SETTINGS)[0]


def test_cores_change_no_bit(network, query, plain):
    before = torch.get_num_threads()
    try:
        for cores in (1, 2, 3):
            torch.set_num_threads(cores)
            assert_same(sp.analyse(network, [query], SETTINGS)[0], plain)
    finally:
        torch.set_num_threads(before)


def windows_of(network, query, cuts, settings=SETTINGS):
    (end,) = query.strengths
    ends = [0.0, *(end * cut for cut in cuts), end]
    return [window_of(network, query, settings, *ends[k : k + 2]) for k in range(len(ends) - 1)]


@pytest.mark.parametrize("cuts", [(0.5,), (0.1, 0.2, 0.3), (1 / 3, 2 / 3), (0.5, 0.5), (1e-12, 0.999999999)])
@pytest.mark.parametrize("text", [BLUR, "gaussian-blur:size=5,sigma=1", "brightness:max=0.5"])
def test_windows_are_joined_to_the_whole(network, text, cuts):
    (query,) = sp.perturbed(network, PICTURES[1:2], text, strength=END)
    (whole,) = sp.analyse(network, [query], SETTINGS)
    assert_same(joined_windows(network, query, SETTINGS, windows_of(network, query, cuts)[::-1]), whole)


def test_a_picture_at_a_cut_is_run_in_one_window(network):
    """Pixels change at fractions with small denominators, many at once; cuts are at some of them."""
    (query,) = sp.perturbed(network, PICTURES[:1], "box-blur:size=3", strength=1.0)
    (whole,) = sp.analyse(network, [query], SETTINGS)
    cuts = [float(z) for z in (whole.proof.pictures.begins(k) for k in (40, 300, 301, 5000)) if float(z) == z]
    for cut in (*cuts, 0.5, 0.25, 0.75):
        assert_same(joined_windows(network, query, SETTINGS, windows_of(network, query, (cut,))), whole)


def test_a_missing_window_proves_nothing(network, query, plain):
    assert plain.status == "safe"
    windows = windows_of(network, query, (0.25, 0.5, 0.75))
    for missing in (0, 1, 2):
        with pytest.raises(ProofError, match="do not follow one another"):
            joined_windows(network, query, SETTINGS, windows[:missing] + windows[missing + 1 :])
    with pytest.raises(ProofError, match="do not follow one another"):
        joined_windows(network, query, SETTINGS, [*windows, windows[2]])
    assert joined_windows(network, query, SETTINGS, windows[:3]).status == "undecided"
    for number in range(4):
        less = replace(windows[number], margins=windows[number].margins[:-1], winners=windows[number].winners[:-1])
        result = joined_windows(network, query, SETTINGS, [*windows[:number], less, *windows[number + 1 :]])
        assert result.status == "undecided"
        assert result.certified_strength <= windows[number].end
    more = replace(windows[1], margins=np.append(windows[1].margins, 1), winners=np.append(windows[1].winners, 1))
    with pytest.raises(ProofError, match="do not follow one another"):
        joined_windows(network, query, SETTINGS, [windows[0], more, *windows[2:]])
    other = replace(windows[1], deployment=replace(windows[1].deployment, processor="another"))
    with pytest.raises(InputError, match="others by"):
        joined_windows(network, query, SETTINGS, [windows[0], other, *windows[2:]])


def test_a_loss_behind_a_late_window_is_a_counterexample(network):
    settings = sp.Settings(pixels="8bit", timeout=1e-9)
    for picture in PICTURES:
        (query,) = sp.perturbed(network, [picture], BLUR)
        (whole,) = sp.analyse(network, [query], SETTINGS)
        if whole.status == "unsafe":
            break
    windows = windows_of(network, query, (0.1,))
    first = windows_of(network, query, (0.1,), settings)[0]
    assert first.late
    result = joined_windows(network, query, SETTINGS, [first, windows[1]])
    (lost,) = whole.counterexample.strengths
    assert (result.status, result.critical_strength) == ("unsafe", (result.certified_strength, lost))
    assert result.counterexample.replayed
    assert result.counterexample.strengths == whole.counterexample.strengths
    assert result.certified_strength < 0.1


def gone_on(network, query, begun, settings=SETTINGS):
    (result,) = answers(network, [query], settings, begun=lambda asked: begun)
    return result


def test_what_was_begun_goes_on(network, query, plain):
    late = sp.analyse(network, [query], replace(SETTINGS, timeout=1e-9))[0]
    assert (late.reason, 0 < late.pieces < plain.pieces) == ("timeout", True)
    begun = begun_by(late)
    again = EnumeratedWindow.unpacked(begun.packed("a question"), "a question", "a part")
    assert_same(gone_on(network, query, again), plain)
    for count in (1, 2, 257, plain.pieces - 1, plain.pieces):
        some = replace(again, margins=plain.proof.margins[:count], winners=plain.proof.winners[:count])
        assert_same(gone_on(network, query, some), plain)
    assert begun_by(plain) is None


def test_only_the_beginning_by_the_same_runtime_goes_on(network, query):
    begun = begun_by(sp.analyse(network, [query], replace(SETTINGS, timeout=1e-9))[0])
    with pytest.raises(InputError, match="start over"):
        gone_on(network, query, replace(begun, deployment=replace(begun.deployment, batch=7)))
    for wrong in (replace(begun, end=0.05), replace(begun, start=0.01)):
        with pytest.raises(ProofError, match="not the beginning"):
            gone_on(network, query, wrong)
    data = begun.packed("a question")
    for other, question in ((data[:-1], "a question"), (data, "another"), (b"", "a question")):
        with pytest.raises(InputError, match="a part: is not a saved part"):
            EnumeratedWindow.unpacked(other, question, "a part")


def test_what_is_certified_is_told_and_an_interrupt_keeps_it(network, monkeypatch):
    monkeypatch.setattr("shakeproof.proof.enumeration_method.TELL_SECONDS", 0.0)
    (query,) = sp.perturbed(network, PICTURES[:1], BLUR, strength=END)
    heard: list[float] = []

    def tell(query, expected, certified):
        heard.append(certified)
        if len(heard) == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="pictures were run, certified up to strength 0") as stop:
        list(answers(network, [query], SETTINGS, expect=tell))
    assert heard == sorted(heard)
    assert 0 == heard[0] < heard[1]
    result = stop.value.result
    assert (result.status, result.certified_strength) == ("undecided", heard[-1])
    (plain,) = sp.analyse(network, [query], SETTINGS)
    assert_same(gone_on(network, query, begun_by(result)), plain)


def test_the_command_goes_on_after_ctrl_c(tmp_path):
    """A run that takes some seconds is interrupted, and the same command ends it."""
    long = "box-blur:size=25"
    words = [sys.executable, "-m", "shakeproof", "profile", demo.MODEL, PICTURES[0], "-p", long, "--pixels", "8bit"]
    words += ["--output", tmp_path / "r.jsonl", "--resume", "--json", "--threads", "1"]
    process = interruptible(words)
    assert "pictures, about" in process.stderr.readline()
    begun = processor_seconds(process.pid)
    until(lambda: processor_seconds(process.pid) > begun + 0.5)  # all of it takes some seconds
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=HANGING)
    assert process.returncode == 130
    assert not printed
    wrote, line = sorted(errors.splitlines(), key=lambda text: text.startswith("shakeproof"))
    assert wrote == f"wrote {tmp_path / 'r.jsonl'}"
    assert "0 of 1 answered; next: " in line
    assert "pictures were run, certified up to strength 0." in line
    assert "--resume goes on from there" in line
    (part,) = (tmp_path / "r.jsonl.parts").iterdir()
    again = interruptible(words)
    printed, _ = again.communicate(timeout=HANGING)
    whole = sp.profile(demo.MODEL, PICTURES[0], long, pixels="8bit")
    said = json.loads(printed)
    assert (said["status"], said["pieces"]) == (whole.status, whole.pieces)
    assert said["profile"] == whole.to_json()["profile"]
    until(lambda: not part.exists())
