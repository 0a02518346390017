"""Strengths drawn at random where nothing was decided: a test that says how much it says, and a loss that counts."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from models import model
from onnx import helper

import shakeproof as sp
from shakeproof import demo
from shakeproof.analysis import joined_windows, window_of
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.proof import sampling
from shakeproof.proof.result import Tested, clopper_pearson

PICTURES = [str(path) for path, _ in demo.images()]
SAFE, UNSAFE = "sharpen:size=3", "motion-blur:size=9,angle=90"


@pytest.fixture(scope="module")
def lost_picture(demo_network):
    return next(own for own in PICTURES if sp.profile(demo_network, own, UNSAFE).status == "unsafe")


@pytest.fixture
def all_the_time(monkeypatch):
    """Methods have no time, the test has what it needs."""
    monkeypatch.setattr(sampling, "TEST_SHARE", 1e12)
    monkeypatch.setattr(sp.Settings, "untested", property(lambda settings: settings))


LATE = {"timeout": 1e-9}


def test_the_bound_is_the_one_of_clopper_and_pearson():
    """So few losses would be seen with a chance of 0.1 % if the share was the bound."""
    assert clopper_pearson(512, 0) == pytest.approx(1 - 0.001 ** (1 / 512), abs=2e-6)
    assert clopper_pearson(512, 512) == clopper_pearson(1, 1) == 1
    for tried, lost in ((512, 3), (100, 50), (7, 6)):
        share = clopper_pearson(tried, lost)
        chances = np.cumsum([0.0, *(np.log(tried - k) - np.log(k + 1) for k in range(lost))])
        seen = np.exp(chances + np.arange(lost + 1) * np.log(share) + (tried - np.arange(lost + 1)) * np.log1p(-share))
        assert seen.sum() == pytest.approx(0.001, rel=1e-2)
        assert seen.sum() <= 0.001


@pytest.mark.parametrize("options", [{}, {"method": "bounds"}, {"pixels": "8bit"}])
def test_an_undecided_answer_says_what_was_tested(demo_network, all_the_time, options):
    result = sp.profile(demo_network, PICTURES[0], SAFE, **LATE, **options)
    assert (result.status, result.reason) == ("undecided", "timeout")
    assert result.tested == Tested(512, 0, 0.013402)
    assert "tested, not proved: none of 512 strengths drawn at random loses" in result.sentence
    assert result.to_json()["tested"] == {"strengths": 512, "lost": 0, "share_at_most": 0.013402}
    assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
    assert result.certified_strength < 1


@pytest.mark.parametrize("options", [{}, {"pixels": "8bit"}])
def test_a_loss_is_a_counterexample(demo_network, all_the_time, lost_picture, options):
    result = sp.profile(demo_network, lost_picture, UNSAFE, **LATE, **options)
    whole = sp.profile(demo_network, lost_picture, UNSAFE, **options)
    assert (result.status, result.reason) == ("unsafe", None)
    (lost,) = result.counterexample.strengths
    assert whole.critical_strength[0] <= lost < whole.critical_strength[0] + 0.1
    assert result.critical_strength == (result.certified_strength, lost)
    assert 0 < result.tested.lost < result.tested.strengths == 512
    shown = result.counterexample
    assert shown.replayed
    assert demo_network.reference(shown.input[None]).argmax() == shown.winner != result.label
    assert result.record.status_at(lost / 2) == "undecided"


def test_the_strengths_are_those_of_the_question(demo_network, all_the_time, lost_picture):
    ones, others = ([sp.profile(demo_network, own, UNSAFE, **LATE).tested for own in PICTURES] for _ in range(2))
    assert ones == others
    (query,) = sp.perturbed(demo_network, [lost_picture], UNSAFE, strength=0.3)
    first, second = (sampling.drawn(query, seed * 16) for seed in "12")
    assert first.shape == (512, 1)
    assert (first != second).any()
    assert 0 <= first.min() < 0.01 < 0.29 < first.max() <= 0.3
    assert np.array_equal(first, sampling.drawn(query, "1" * 16))


def test_several_strengths_are_drawn_from_their_box(demo_network, all_the_time):
    result = sp.profile(demo_network, PICTURES[0], "box-blur:size=3+brightness:max=0.01", max_strength=(0.1, 1), **LATE)
    assert (result.status, result.tested) == ("undecided", Tested(512, 0, 0.013402))
    at = sampling.drawn(result.query, "1" * 16)
    assert at.shape == (512, 2)
    assert (at.max(0) <= [0.1, 1]).all()
    assert (at.max(0) > [0.095, 0.95]).all()


def test_what_is_decided_is_not_tested(demo_network, lost_picture):
    assert sp.profile(demo_network, PICTURES[0], SAFE).tested is None
    assert sp.profile(demo_network, lost_picture, UNSAFE).tested is None
    assert sp.profile(demo_network, PICTURES[0], SAFE).to_json()["tested"] is None


def test_the_time_limit_is_for_the_test_too(demo_network):
    result = sp.profile(demo_network, PICTURES[0], SAFE, **LATE)
    assert result.tested is None  # there was no time for any


def test_pictures_in_windows_are_tested_as_well(demo_network, all_the_time):
    (query,) = sp.perturbed(demo_network, PICTURES[:1], SAFE)
    settings = sp.Settings(pixels="8bit")
    late = window_of(demo_network, query, replace(settings, timeout=1e-9), 0.0, 1.0)
    result = joined_windows(demo_network, query, replace(settings, timeout=600.0), [late])
    assert (result.status, result.tested) == ("undecided", Tested(512, 0, 0.013402))


def test_a_loss_that_is_not_replayed_decides_nothing(demo_network, all_the_time, lost_picture, monkeypatch):
    def other(*args):
        shown = replayed_at(*args)
        return replace(shown, replayed=False)

    replayed_at = sampling.replayed_at
    monkeypatch.setattr(sampling, "replayed_at", other)
    result = sp.profile(demo_network, lost_picture, UNSAFE, **LATE)
    assert (result.status, result.counterexample) == ("undecided", None)
    assert f"{result.tested.lost} of 512 strengths drawn at random lose" in result.sentence


def test_a_loss_behind_the_pictures_that_were_run_has_no_certificate(demo_network, all_the_time, lost_picture):
    """The certificate of an enumeration says what all pictures before the loss are."""
    result = sp.profile(demo_network, lost_picture, UNSAFE, **LATE, pixels="8bit")
    assert result.status == "unsafe"
    for profile in (True, False):
        with pytest.raises(NoCertificateError, match="loses at a picture beyond those that were run"):
            certificate(demo_network, result, profile)
    result = sp.profile(demo_network, lost_picture, UNSAFE, **LATE)
    assert b'"claim": "unsafe"' in certificate(demo_network, result, profile=True)


def test_what_pictures_would_take_is_said_where_the_time_is_up(demo_network):
    result = sp.profile(demo_network, PICTURES[0], SAFE, **LATE)
    whole = sp.profile(demo_network, PICTURES[0], SAFE, pixels="8bit")
    assert result.as_pictures.pictures == whole.pieces
    assert result.as_pictures.counted
    assert f"--pixels 8bit would decide it: {whole.pieces:,} pictures, about" in result.sentence
    two = sp.profile(demo_network, PICTURES[0], "box-blur:size=3+brightness:max=0.1", **LATE)
    assert two.as_pictures is None


def test_scores_that_are_no_numbers_stay_undecided(tmp_path):
    """Half of the strengths have scores that are infinite: a test that counts them decides nothing."""
    weights = {"w": np.float32([[-1, 0], *[[0, 0]] * 8]), "big": np.float32([1e38, 1])}
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["g"]),
        helper.make_node("Mul", ["g", "big"], ["m"]),
        helper.make_node("Mul", ["m", "big"], ["y"]),
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(model(nodes, (1, 1, 3, 3), weights).SerializeToString())
    image = np.full((1, 3, 3), 0.2)
    result = sp.profile(sp.load_deployed(path), image, "brightness:max=0.2", label=1, pixels="8bit")
    assert (result.status, result.reason) == ("undecided", "not-finite")
