"""A sweep that goes on where another ended proves what one sweep does, and nothing if a part is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_jumping import binarised, loaded

import shakeproof as sp
from shakeproof import demo
from shakeproof.analysis import answers
from shakeproof.errors import InputError, ProofError
from shakeproof.exact import CertifiedCell, Curve, join
from shakeproof.proof import SweptWindow, begun_by, exact_method, sweep_window
from shakeproof.proof.evidence import by_class

STOP = str(demo.images()[0][0])
SETTINGS = sp.Settings()


def started(network, query, end: float, settings=SETTINGS) -> SweptWindow:
    with torch.inference_mode():
        return sweep_window(network, query, settings, 0.0, end)


def gone_on(network, query, begun: SweptWindow | None, settings=SETTINGS) -> sp.Result:
    (result,) = answers(network, [query], settings, begun=lambda asked: begun)
    return result


def without_middle(curve: Curve, low: float, high: float) -> Curve:
    """The curve as if there were nothing but a chord from one strength to another."""
    keep = (curve.z <= low) | (curve.z >= high)
    kept = keep[:-1] & (keep[1:] | (np.arange(len(curve.z) - 1) == keep.argmin() - 1))
    return Curve(curve.z[keep], curve.scores[keep], curve.error[kept], curve.bridged[kept])


@pytest.mark.parametrize("text", ["motion-blur:size=9,angle=45", "sharpen:size=4,clip=0..1", "haze:colour=0.2"])
@pytest.mark.parametrize("settings", [SETTINGS, sp.Settings(whole_curve=True), sp.Settings(stop_early=True)])
def test_it_answers_what_one_sweep_does(demo_network, text, settings):
    (query,) = sp.perturbed(demo_network, [STOP], text)
    (plain,) = sp.analyse(demo_network, [query], settings)
    for reached in (0.01, 0.3, 1.0):
        result = gone_on(demo_network, query, started(demo_network, query, reached), settings)
        assert (result.status, result.reason) == (plain.status, plain.reason)
        assert [part.winner for part in by_class(result.profile)] == [
            part.winner for part in by_class(plain.profile)
        ] or settings.stop_early
        assert result.certified_strength >= plain.certified_strength - 1e-9
        if settings.whole_curve:
            assert not result.curve.bridged.any()
            assert result.pieces == pytest.approx(plain.pieces, rel=0.02)  # neurons that bend together may part
            assert np.abs(result.curve.at(plain.curve.z) - plain.curve.scores).max() < 1e-9


def test_networks_that_jump_go_on_as_well():
    decided = 0
    for seed in range(12):
        module, picture = binarised(seed)
        network = loaded(module)
        (query,) = sp.perturbed(network, [picture], "box-blur:size=3")
        (plain,) = sp.analyse(network, [query])
        begun = started(network, query, 0.37)
        assert begun.curve.lead is not None
        result = gone_on(network, query, SweptWindow.unpacked(begun.packed("q"), "q", "a part"))
        assert (result.status, result.reason) == (plain.status, plain.reason)
        assert [part.winner for part in by_class(result.profile)] == [part.winner for part in by_class(plain.profile)]
        assert result.curve.lead is not None
        decided += result.status in ("safe", "unsafe")
    assert decided > 6


def test_who_wants_every_piece_goes_on_before_the_first_that_was_spared(demo_network):
    (query,) = sp.perturbed(demo_network, [STOP], "sharpen:size=3")
    begun = started(demo_network, query, 0.4, sp.Settings(whole_curve=True))
    middle = np.arange(len(begun.curve.z) - 1) == len(begun.curve.z) // 2
    spared = replace(begun, curve=replace(begun.curve, bridged=middle, error=np.where(middle, 0.0, begun.curve.error)))
    assert gone_on(demo_network, query, spared).curve.bridged.any()
    result = gone_on(demo_network, query, spared, sp.Settings(whole_curve=True))
    assert not result.curve.bridged.any()
    assert result.status == "safe"


def test_nothing_is_swept_twice(demo_network, monkeypatch):
    (query,) = sp.perturbed(demo_network, [STOP], "motion-blur:size=9,angle=45")
    begun, starts = started(demo_network, query, 0.3), []

    def spied(graph, lines, *others):
        starts.extend(lines.start.tolist())
        return sweep(graph, lines, *others)

    sweep: Callable = exact_method.swept_curves
    monkeypatch.setattr(exact_method, "swept_curves", spied)
    result = gone_on(demo_network, query, begun)
    assert starts == [0.3]
    assert result.seconds > begun.seconds


def test_what_the_time_was_too_short_for_can_be_begun_with(demo_network):
    (query,) = sp.perturbed(demo_network, [STOP], "sharpen:size=3")
    late = gone_on(demo_network, query, replace(started(demo_network, query, 0.3)), sp.Settings(timeout=1e-9))
    assert (late.status, late.reason) == ("undecided", "timeout")
    assert late.certified_strength == pytest.approx(0.3)  # of which nothing was lost
    begun = begun_by(late)
    assert begun is not None
    result = gone_on(demo_network, query, begun)
    assert (result.status, begun_by(result)) == ("safe", None)


def test_a_missing_part_proves_nothing(demo_network, monkeypatch):
    (query,) = sp.perturbed(demo_network, [STOP], "sharpen:size=3")
    begun = started(demo_network, query, 0.4, sp.Settings(whole_curve=True))
    assert gone_on(demo_network, query, begun).status == "safe"
    gap = without_middle(begun.curve, 0.1, 0.3)
    assert gap.covers(0.0, 0.4)
    assert len(gap.z) < len(begun.curve.z)
    assert gone_on(demo_network, query, replace(begun, curve=gap)).status == "undecided"
    for wrong in (replace(begun, end=0.5), replace(begun, curve=begun.curve.up_to(0.3))):
        with pytest.raises(ProofError, match="not the beginning"):
            gone_on(demo_network, query, wrong)
    (shorter,) = sp.perturbed(demo_network, [STOP], "sharpen:size=3", None, 0.2)
    with pytest.raises(ProofError, match="not the beginning"):
        gone_on(demo_network, shorter, begun)

    def later(graph, lines, *others):
        return sweep(graph, replace(lines, start=lines.start + 0.1), *others)

    sweep: Callable = exact_method.swept_curves
    monkeypatch.setattr(exact_method, "swept_curves", later)
    result = gone_on(demo_network, query, begun)
    assert result.status == "undecided"
    assert result.curve.z[-1] == 0.4


def test_what_is_kept_is_the_same_or_refused(demo_network):
    (query,) = sp.perturbed(demo_network, [STOP], "motion-blur:size=9,angle=45")
    begun = started(demo_network, query, 0.02)
    data = begun.packed("a question")
    again = SweptWindow.unpacked(data, "a question", "a part")
    for name in ("z", "scores", "error", "bridged"):
        assert np.array_equal(getattr(again.curve, name), getattr(begun.curve, name))
    assert (again.start, again.end, again.seconds, again.curve.lead) == (0.0, 0.02, begun.seconds, None)
    wrong = [b"", data[:31], data[:-1], data + b"\0", *(_flipped(data, at) for at in range(0, len(data), 97))]
    for other, question in (*((own, "a question") for own in wrong), (data, "another question")):
        with pytest.raises(InputError, match="a part: is not a saved part of this query; remove it"):
            SweptWindow.unpacked(other, question, "a part")


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_chord_from_another_row_is_off_by_what_the_rows_are_apart():
    """Two parts share a row, and each has its own idea of it, which both are right about within their errors."""
    before = Curve(np.array([0.0, 0.5]), np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([0.125]))
    after = Curve(np.array([0.5, 0.75, 1.0]), np.array([[2.25, 0.5], [3.0, 0.0], [4.0, 0.0]]), np.array([0.25, 0.125]))
    joined = join([(0.0, 0.5, before), (0.5, 1.0, after)], classes=2)
    assert joined.scores[1].tolist() == [2.0, 0.0]
    apart = joined.error - [0.125, 0.25, 0.125]
    assert apart[[0, 2]].tolist() == [0.0, 0.0]
    assert np.hypot(0.25, 0.5) <= apart[1] < 0.76
    bridge = CertifiedCell(0.5, 1.0, 0, np.array([[2.25, 0.5], [4.0, 0.0]]))
    assert join([(0.0, 0.5, before), (0.5, 1.0, bridge)], classes=2).error.tolist() == [0.125, 0.0]
