"""What is sure of a bracket's ends without a proof of its own: margins beyond all that rounding may have done."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from shakeproof.exact import Curve
from shakeproof.methods.edges import Edges

ERROR = 0.01
OFF = float(Curve(np.array([0.0, 1.0]), np.zeros((2, 2)), np.array([ERROR])).off[0])


def edges(margins: list[float], proved: list[float]) -> Edges:
    """Of one curve whose label, 0, leads by so much at its rows; each piece is off by the same."""
    curve = Curve(
        np.linspace(0, 1, len(margins)),
        np.array([[margin, 0.0] for margin in margins]),
        np.full(len(margins) - 1, ERROR),
    )
    settings = SimpleNamespace(rounding="rigorous", arithmetic="real")
    batch = SimpleNamespace(settings=settings, labels=np.zeros(1, dtype=np.int64), budget=SimpleNamespace(is_late=bool))
    return Edges(batch, [curve], [None], [np.array(proved)])


NOTHING = np.zeros(1)


@pytest.mark.parametrize(("times", "sure"), [(1.1, False), (2.9, False), (3.1, True)])
def test_a_label_surely_wins_if_row_and_evaluation_are_three_errors_above_nothing(times, sure):
    """Both may be off, and so may what lies between them: the chord is two from the evaluation, the truth one more."""
    at_row, evaluated = (edges([margin, 0.0], [-1.0]) for margin in (times * OFF, 1.0))
    assert at_row.before(0, np.array([0.5]), np.array([1.0]), NOTHING).sure.tolist() == [sure]
    assert evaluated.before(0, np.array([0.5]), np.array([times * OFF]), NOTHING).sure.tolist() == [sure]


def test_nothing_is_sure_behind_a_piece_that_is_not_proved():
    behind = edges([1.0, 1.0, 1.0], [-1.0, 1.0]).before(0, np.array([0.25, 0.75]), np.array([1.0, 1.0]), NOTHING)
    assert behind.sure.tolist() == [True, False]


@pytest.mark.parametrize(("margin", "sure"), [(-0.9 * OFF, False), (-1.1 * OFF, True), (0.0, False)])
def test_a_label_surely_loses_if_it_is_an_error_behind(margin, sure):
    after = edges([1.0, -1.0], [-1.0]).after(0, np.array([0.9]), np.array([margin]), NOTHING, np.array([1]))
    assert after.sure.tolist() == [sure]


def test_a_curve_that_is_known_better_than_direct_evaluation_makes_nothing_sure():
    """One that was swept with more digits than there are now: what counts is what is evaluated now."""
    own = np.array([1.0])
    before = edges([1.0, 1.0], [-1.0]).before(0, np.array([0.5]), np.array([0.9]), own)
    after = edges([1.0, -1.0], [-1.0]).after(0, np.array([0.9]), np.array([-0.9]), own, np.array([1]))
    assert before.sure.tolist() == after.sure.tolist() == [False]
