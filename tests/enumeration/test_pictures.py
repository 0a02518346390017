"""Every 8-bit picture of a path, against plain fractions."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

import shakeproof as sp
from shakeproof.budget import Budget
from shakeproof.enumeration import EightBitPictures, PixelChanges, eight_bit_pictures
from shakeproof.errors import MemoryBudgetError
from shakeproof.question import ExactPath

RANDOM = np.random.default_rng(5)


def rounded(value: Fraction, rule: str) -> int:
    """To the nearest whole number, step by step."""
    below = value.numerator // value.denominator
    part = value - below
    if part == Fraction(1, 2):
        return below + 1 if rule == "half-up" or below % 2 else below
    return below + (part > Fraction(1, 2))


def plainly(path: ExactPath, end: float, clip: tuple[float, float], rule: str) -> list[list[int]]:
    """All pictures of a path that is given in whole numbers."""
    base = [Fraction(int(n), path.unit) for n in path.base.ravel()]
    slope = [Fraction(int(n), path.unit) for n in path.slopes[0].ravel()]
    return in_order(base, slope, end, clip, rule)


def in_order(
    base: list[Fraction], slope: list[Fraction], end: float, clip: tuple[float, float], rule: str
) -> list[list[int]]:
    """All pictures in order: at every strength where a pixel may change, and in the middle between neighbours."""
    low, high = (Fraction(bound) for bound in clip)
    moments = {Fraction(0), Fraction(end)}
    for b, a in zip(base, slope, strict=True):
        if a:
            moments.update(z for k in range(255) if 0 <= (z := (Fraction(2 * k + 1, 510) - b) / a) <= Fraction(end))
            moments.update(z for bound in (low, high) if 0 <= (z := (bound - b) / a) <= Fraction(end))
    ordered = sorted(moments)
    places = sorted({*ordered, *((one + other) / 2 for one, other in pairwise(ordered))})
    found: list[list[int]] = []
    for z in places:
        clipped = (min(max(b + a * z, low), high) for b, a in zip(base, slope, strict=True))
        exact = (min(max(value, Fraction(0)), Fraction(1)) for value in clipped)
        picture = [rounded(255 * value, rule) for value in exact]
        if not found or picture != found[-1]:
            found.append(picture)
    return found


def pictures_of(path: ExactPath, end: float, clip: tuple[float, float] | None, rule: str, size: int = 7):
    found = eight_bit_pictures(path, end, clip, rule)
    made = np.concatenate(list(found.batches(size)))
    assert len(made) == len(found)
    return found, made.reshape(len(made), -1).tolist()


@pytest.mark.parametrize("rule", ["half-even", "half-up"])
@pytest.mark.parametrize(
    ("text", "end", "shape"),
    [
        ("box-blur:size=3", 1.0, (1, 4, 4)),
        ("box-blur:size=4", 0.7, (1, 4, 5)),
        ("sharpen:size=3", 1.0, (1, 4, 4)),
        ("sharpen:size=3,clip=0.1..0.9", 0.9, (1, 4, 4)),
        ("sharpen:size=3,clip=-2..-1", 1.0, (1, 4, 4)),
        ("sharpen:size=3,clip=0.5..2", 1.0, (1, 4, 4)),
        ("motion-blur:size=3,angle=45,padding=zeros", 1.0, (3, 2, 3)),
        ("motion-blur:size=3,angle=30", 0.3, (1, 4, 4)),
        ("brightness:max=0.5", 1.0, (1, 3, 3)),
        ("contrast:max=0.7", 1.0, (1, 3, 3)),
        ("identity", 1.0, (1, 3, 3)),
        ("box-blur:size=3", 0.0, (1, 4, 4)),
    ],
)
def test_same_pictures_in_the_same_order_as_plain_fractions(text, end, shape, rule):
    perturbation = sp.parse(text)
    for _ in range(2):
        pixels = RANDOM.integers(0, 256, shape).astype(object)
        path = perturbation.exactly(pixels, 255)
        found, made = pictures_of(path, end, perturbation.clip, rule)
        assert made == plainly(path, end, perturbation.clip or (0.0, 1.0), rule)
        begins = [found.begins(number) for number in range(len(found))]
        assert begins == sorted(begins)
        assert all(0 <= z <= Fraction(end) for z in begins)
        assert found.strengths(len(found)).tolist() == [*map(float, begins), end]


def test_pixels_that_are_no_bytes():
    pixels = RANDOM.uniform(size=(1, 4, 4))
    whole = np.vectorize(lambda x: int(x * 2**53), otypes=[object])(pixels)
    path = sp.box_blur(size=3).exactly(whole, 2**53)
    assert pictures_of(path, 1.0, None, "half-even")[1] == plainly(path, 1.0, (0.0, 1.0), "half-even")


@pytest.mark.parametrize("rule", ["half-even", "half-up"])
def test_a_strength_of_two_minds_has_a_picture_of_its_own(rule):
    """Two pixels are half way at 1/2: going up from 10 and from 11, or one up and one down."""
    path = ExactPath(np.array([[1, 1, -1]], object), np.array([10, 11, 20], object), 255)
    found, made = pictures_of(path, 1.0, None, rule)
    at = {"half-even": [10, 12, 20], "half-up": [11, 12, 20]}[rule]
    assert made == [[10, 11, 20], at, [11, 12, 19]]
    assert [found.begins(k) for k in range(3)] == [0, Fraction(1, 2), Fraction(1, 2)]
    assert [found.has_start(k) for k in range(1, 3)] == [True, False]


def test_halves_at_both_ends():
    path = ExactPath(np.array([[2, 4]], object), np.array([21, 22], object), 2 * 255)
    found, made = pictures_of(path, 1.0, None, "half-even")
    assert made == plainly(path, 1.0, (0.0, 1.0), "half-even")
    assert made == [[10, 11], [11, 11], [11, 12], [11, 13], [12, 13]]
    assert found.strengths(5).tolist() == [0.0, 0.0, 0.25, 0.75, 1.0, 1.0]
    assert [found.has_start(k) for k in range(1, 5)] == [False, True, False, True]


def test_strengths_that_float64_cannot_tell_apart():
    unit = 2**80
    path = ExactPath(np.array([[unit, unit]], object), np.array([10 * unit - 1, 10 * unit], object), 255 * unit)
    found, made = pictures_of(path, 1.0, None, "half-even")
    assert made == [[10, 10], [10, 11], [11, 11]]
    assert [found.begins(k) for k in (1, 2)] == [Fraction(1, 2), Fraction(1, 2) + Fraction(1, unit)]


def test_batches_of_any_size_are_the_same():
    path = sp.motion_blur(size=5, angle=45).exactly(RANDOM.integers(0, 256, (3, 8, 8)).astype(object), 255)
    found = eight_bit_pictures(path, 1.0)
    whole = next(iter(found.batches(10**6)))
    for size in (1, 2, 64, len(found) - 1):
        assert np.array_equal(np.concatenate(list(found.batches(size))), whole)
    for number in range(len(found)):
        assert np.array_equal(found.picture(number), whole[number])


def picture_of(levels: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Random pixels of so many grey levels."""
    return np.linspace(0, 255, levels).astype(int)[RANDOM.integers(0, levels, shape)].astype(object)


def smallest_windows(path: ExactPath, end: float = 1.0, rule: str = "half-even") -> EightBitPictures:
    """The same pictures, with no more changes in a window than there are pixels."""
    return EightBitPictures(PixelChanges.along(path, end, None, rule), path.base.shape, end, most=1)


@pytest.mark.parametrize("rule", ["half-even", "half-up"])
@pytest.mark.parametrize(
    ("text", "levels", "end"),
    [
        ("box-blur:size=3", 256, 1.0),
        ("box-blur:size=3", 3, 1.0),
        ("motion-blur:size=5,angle=30", 256, 0.7),
        ("gaussian-blur:size=3,sigma=1", 4, 1.0),
        ("brightness:max=0.5", 1, 1.0),  # all pixels change at once
        ("contrast:max=0.7", 4, 0.9),
    ],
)
def test_windows_change_nothing(text, levels, end, rule):
    path = sp.parse(text).exactly(picture_of(levels, (1, 6, 6)), 255)
    whole, cut = eight_bit_pictures(path, end, None, rule), smallest_windows(path, end, rule)
    made = np.concatenate(list(whole.batches(100)))
    for _ in range(2):
        assert np.array_equal(np.concatenate(list(cut.batches(7))), made)
    assert len(cut) == len(whole) == len(made)
    for number in range(len(whole) + 1):
        assert cut.begins(number) == whole.begins(number)
        assert cut.has_start(number) == whole.has_start(number)
        assert cut.last_before(number) == whole.last_before(number)
    for number in range(len(whole)):
        assert np.array_equal(cut.picture(number), made[number])
    assert np.array_equal(cut.strengths(len(cut)), whole.strengths(len(whole)))


def test_no_more_windows_are_made_than_needed():
    path = sp.box_blur(size=3).exactly(RANDOM.integers(0, 256, (3, 8, 8)).astype(object), 255)
    pictures = smallest_windows(path)
    assert pictures.has(1)
    assert not pictures.is_counted
    about = pictures.about
    next(pictures.batches(4))
    assert not pictures.is_counted
    assert abs(about - len(pictures)) < len(pictures) / 2
    assert pictures.is_counted
    assert pictures.about == len(pictures)
    assert pictures.has(len(pictures) - 1)
    assert not pictures.has(len(pictures))


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 20_000])
@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("box-blur:size=3", 256),
        ("brightness:max=0.5", 1),
        ("motion-blur:size=5,angle=30", 256),
        ("gaussian-blur:size=5,sigma=1", 256),
        ("gaussian-blur:size=5,sigma=1", 2),
    ],
)
def test_a_window_takes_no_more_memory_than_is_said(text, levels, most):
    """Of windows, one is there at a time, with the few bytes that stay of each picture."""
    path = sp.parse(text).exactly(picture_of(levels, (3, 24, 24)), 255)
    changes, size = PixelChanges.along(path, 1.0), path.base.size
    tracemalloc.start()
    try:
        pictures = EightBitPictures(changes, path.base.shape, 1.0, most)
        count = len(pictures)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pictures.total > 10 * size
    assert peak <= changes.bytes_each * (pictures.most + size) + 8 * count
    assert held <= 16 * (pictures.most + size) + 8 * count + 1000 * (pictures.total // size)


def test_what_is_left_of_a_budget_bounds_the_windows():
    path = sp.gaussian_blur(size=3, sigma=1).exactly(RANDOM.integers(0, 256, (3, 20, 20)).astype(object), 255)
    each = PixelChanges.along(path, 1.0).bytes_each
    for pixels in (2.5, 10):
        pictures = eight_bit_pictures(path, 1.0, budget=Budget(memory=pixels * 1200 * each))
        assert 1200 <= pictures.most <= (pixels - 1) * 1200
        assert pictures.total > 10 * 1200
    with pytest.raises(MemoryBudgetError, match="GiB of working memory"):
        eight_bit_pictures(path, 1.0, budget=Budget(memory=1.5 * 1200 * each))
