"""One profile in windows of strength: joined, it is the profile of all; with a window missing, it is nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import ProofError
from shakeproof.proof import SweptWindow, answer_by_windows, sweep_window
from shakeproof.proof.evidence import by_class

SETTINGS = sp.Settings()
PICTURES = [str(path) for path, _ in demo.images()[:2]]


@pytest.fixture(scope="module")
def query(demo_network):
    (query,) = sp.perturbed(demo_network, [PICTURES[0]], "motion-blur:size=9,angle=45")
    return query


def windows_of(network, query, count: int, settings=SETTINGS) -> list[SweptWindow]:
    with torch.inference_mode():
        return [sweep_window(network, query, settings, k / count, (k + 1) / count) for k in range(count)]


def distance(points, others):
    """From the point that is farthest from all others."""
    return np.abs(points[:, None] - others).min(1).max()


@pytest.mark.parametrize("text", ["motion-blur:size=9,angle=45", "sharpen:size=4,clip=0..1", "haze:colour=0.2"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_joined_profile_is_the_whole_one(demo_network, text, whole):
    settings = sp.Settings(whole_curve=whole)
    for query in sp.perturbed(demo_network, PICTURES, text):
        (plain,) = sp.analyse(demo_network, [query], settings)
        windows = windows_of(demo_network, query, 8, settings)
        with torch.inference_mode():
            joined = answer_by_windows(demo_network, query, settings, windows[::-1])
        assert joined.status == plain.status
        assert [part.winner for part in by_class(joined.profile)] == [part.winner for part in by_class(plain.profile)]
        assert np.allclose(
            [part.start for part in by_class(joined.profile)],
            [part.start for part in by_class(plain.profile)],
            atol=1e-9,
        )
        if whole:
            # breakpoints that coincide may be one or several, up to rounding; nothing else begins where a window does
            z = np.union1d(joined.curve.z, plain.curve.z)
            assert distance(plain.curve.z, joined.curve.z) < 1e-12
            assert distance(joined.curve.z, np.append(plain.curve.z, np.arange(1, 8) / 8)) < 1e-12
            assert np.abs(joined.curve.at(z) - plain.curve.at(z)).max() < 1e-9


def test_a_missing_window_proves_nothing(demo_network, query):
    windows = windows_of(demo_network, query, 4)
    with torch.inference_mode():
        for missing in (1, 2):
            with pytest.raises(ProofError, match="a stretch of a line is missing"):
                answer_by_windows(demo_network, query, SETTINGS, windows[:missing] + windows[missing + 1 :])
        with pytest.raises(ProofError):  # one that overlaps is no better
            answer_by_windows(demo_network, query, SETTINGS, [*windows, windows[2]])
    (safe,) = sp.perturbed(demo_network, [PICTURES[0]], "sharpen:size=3")
    windows = windows_of(demo_network, safe, 4)
    with torch.inference_mode():
        assert answer_by_windows(demo_network, safe, SETTINGS, windows).status == "safe"
        for some in (windows[1:], windows[:3]):
            result = answer_by_windows(demo_network, safe, SETTINGS, some)
            assert result.status == "undecided"


def test_a_window_that_was_late_leaves_the_rest_open(demo_network, query):
    windows = windows_of(demo_network, query, 4)
    late = windows_of(demo_network, query, 4, sp.Settings(timeout=1e-9))[1]
    assert late.late
    with torch.inference_mode():
        result = answer_by_windows(demo_network, query, SETTINGS, [windows[0], late, *windows[2:]])
    assert (result.status, result.reason) == ("undecided", "timeout")
    assert result.certified_strength == pytest.approx(0.25)
    assert result.remaining is not None
    assert result.remaining.pieces_per_second == pytest.approx(result.pieces / result.seconds)
    expected, left = (
        result.remaining.seconds * result.remaining.pieces_per_second,
        sum(own.curve.pieces for own in windows[1:]),
    )
    assert left / 3 < expected < 3 * left
    assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
    assert f"{result.remaining}" in result.sentence


def test_a_curve_of_something_else_is_noticed(demo_network, query):
    """Direct evaluation in the middle of some pieces contradicts it."""
    (other,) = sp.perturbed(demo_network, [PICTURES[1]], "sharpen:size=3", label=query.label)
    windows = windows_of(demo_network, other, 2)
    with torch.inference_mode():
        result = answer_by_windows(demo_network, query, SETTINGS, [replace(own) for own in windows])
    assert result.status != "safe"
