"""The search for the nearest place at which a claim is proved: nothing is taken for proved that was not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shakeproof.proof.brackets import nearest

SHAPE = (4, 6)
NUMBERS = arrays(np.float64, SHAPE, elements=st.floats(-2, 2) | st.sampled_from([np.nan, np.inf, -np.inf]))
SURE = arrays(np.bool_, SHAPE, elements=st.sampled_from([False, False, False, True]))


@given(NUMBERS, NUMBERS, SURE, st.floats(0, 2))
def test_what_is_found_is_sure_or_has_a_positive_bound(margins, bounds, sure, guess):
    asked = set()

    def bound(rows, places):
        assert not asked & {*zip(rows, places, strict=True)}  # none is tried twice
        asked.update(zip(rows, places, strict=True))
        return bounds[rows, places]

    for row, place in enumerate(nearest(margins, sure, bound, guess)):
        if place < SHAPE[1]:
            assert sure[row, place] or ((row, place) in asked and bounds[row, place] > 0)
        else:
            assert not sure[row].any()
            assert all(not bounds[row, tried] > 0 for number, tried in asked if number == row)


@given(
    arrays(np.float64, SHAPE, elements=st.floats(-1, 1)),
    arrays(np.float64, (SHAPE[0], 1), elements=st.floats(0, 1)),
    st.floats(0, 1),
)
def test_where_bounds_fall_short_by_the_same_everywhere_two_trials_find_the_first(margins, short, guess):
    margins, trials = np.sort(margins, 1), np.zeros(SHAPE[0], int)
    bounds = margins - short

    def bound(rows, places):
        trials[rows] += 1
        return bounds[rows, places]

    found = nearest(margins, np.zeros(SHAPE, bool), bound, guess)
    proved = (margins > 0) & (bounds > 0)
    rounding = 1e-15
    for row, place in enumerate(found):
        first = proved[row].argmax() if proved[row].any() else SHAPE[1]
        assert place == first or abs(bounds[row, first:place]).max() <= rounding
    assert trials.max(initial=0) <= 2 or abs(bounds[(margins > 0)]).min() <= rounding


def test_a_bound_that_says_nothing_does_not_end_the_search():
    bounds = np.array([[-np.inf, np.nan, -np.inf, 0.5]])
    margins, sure = np.ones_like(bounds), np.zeros(bounds.shape, bool)
    assert nearest(margins, sure, lambda rows, places: bounds[rows, places]).tolist() == [3]
    assert nearest(margins, sure, lambda rows, places: np.full(len(rows), np.nan)).tolist() == [4]


def test_a_good_guess_spares_a_trial_and_a_bad_one_costs_no_place():
    margins, sure = np.array([[1e-3, 1e-2, 0.1, 1.0, 10.0]]), np.zeros((1, 5), bool)
    for short, guess, expected in ((0.05, 0.05, [2]), (0.05, 0.5, [3, 2]), (0.05, 1e-3, [1, 2]), (0.05, 99.0, [0, 2])):
        tried = []

        def bound(rows, places, short=short, tried=tried):
            tried.extend(places.tolist())
            return margins[rows, places] - short

        assert nearest(margins, sure, bound, guess).tolist() == [2]
        assert tried == expected


def test_a_guess_is_given_up_where_the_bound_says_nothing():
    margins, bounds = np.array([[0.1, 1.0, 10.0]]), np.array([[0.05, -np.inf, 1.0]])
    assert nearest(margins, np.zeros((1, 3), bool), lambda rows, places: bounds[rows, places], 0.5).tolist() == [0]
