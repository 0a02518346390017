"""Twofold numbers against fractions: what is exact, and what the rest leaves out at most."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shakeproof.exact.twofold import Twofold, added, divided, moved, two_product, two_sum
from shakeproof.question.inputs import UNIT

numbers = st.floats(-1e30, 1e30).filter(lambda x: x == 0 or abs(x) > 1e-30)
parts = st.tuples(numbers, st.floats(-0.5, 0.5))
SQUARE = Fraction(UNIT) ** 2


def tensor(x: float) -> torch.Tensor:
    return torch.tensor([x], dtype=torch.float64)


def twofold(part: tuple[float, float]) -> Twofold:
    high, share = part
    return Twofold(tensor(high), tensor(high * share * 2 * UNIT))


def value(x: Twofold) -> Fraction:
    return Fraction(float(x.high)) + Fraction(float(x.low))


@given(a=numbers, b=numbers)
def test_sums_and_products_of_two_numbers_are_exact(a, b):
    assert value(two_sum(tensor(a), tensor(b))) == Fraction(a) + Fraction(b)
    assert value(two_product(tensor(a), tensor(b))) == Fraction(a) * Fraction(b)


@given(a=parts, b=parts)
def test_what_a_sum_leaves_out(a, b):
    x, y = twofold(a), twofold(b)
    found = added(x, y)
    assert abs(value(found) - value(x) - value(y)) <= 4 * SQUARE * (abs(value(x)) + abs(value(y)))
    assert abs(Fraction(float(found.low))) <= 2 * Fraction(UNIT) * abs(Fraction(float(found.high)))


@given(a=parts, b=parts, share=st.tuples(st.floats(2.0**-60, 1.0), st.floats(-0.5, 0.5)))
@settings(max_examples=300)
def test_what_a_place_on_a_chord_leaves_out(a, b, share):
    start, way, t = twofold(a), twofold(b), twofold(share)
    true = value(start) + value(t) * value(way)
    off = 4 * abs(value(start)) + 13 * abs(value(t) * value(way))
    assert abs(value(moved(start, way, t)) - true) <= SQUARE * off


@given(a=parts, b=parts.filter(lambda part: part[0] != 0))
def test_what_a_quotient_leaves_out(a, b):
    x, y = twofold(a), twofold(b)
    true = value(x) / value(y)
    assert abs(value(divided(x, y)) - true) <= 16 * SQUARE * abs(true)


@pytest.mark.parametrize("work", [added, lambda x, y: moved(x, y, Twofold.of(tensor(1.0)))])
def test_numbers_without_their_low_part_would_be_noticed(work):
    x, y = twofold((1.0, 0.4)), twofold((0.7, -0.3))
    true, lost = value(x) + value(y), Twofold(x.high, torch.zeros(1, dtype=torch.float64))
    assert abs(value(work(x, y)) - true) <= 20 * SQUARE * 2 < abs(value(work(lost, y)) - true)
