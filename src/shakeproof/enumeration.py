"""The 8-bit pictures round(255 clip(x(z))) of a path x(z), every one of them, in order of z. Nothing is rounded here.

A pixel is (b + a z) / w grey levels, with whole numbers b, a and w. It leaves a level at the strength where it is half
way to the next, which is a fraction, and on a straight path it never comes back: so the pictures are as many as the
strengths at which some pixel changes, and one more. Exactly half way, a rule decides; so a pixel changes either at
its strength or right behind it, and where pixels do both at one strength, that strength has a picture of its own.

A large picture has far more changes than fit into memory. They are sorted window by window: those at strengths from
one cut to the next, at most so many. What stays known of each picture is the change that begins it, in five bytes.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shakeproof.budget import Budget
from shakeproof.question import ClipRange, ExactPath

Array = NDArray[Any]
HalfRule = Literal["half-even", "half-up"]
WHITE = 255
# Quotients of numbers below this are different in float64 if they are different at all: by 2^-52 at least, of 1.
SMALL = 2**26
# A window has at most so many changes, or as many as there are pixels: it is sorted in about a second.
MOST_CHANGES = 2**20
# Whole numbers of any size are worked with for so many pixels at a time.
BLOCK = 2**14


@dataclass(frozen=True, eq=False)
class PixelChanges:
    """Pixel i (in C order) starts at the level first[i] and moves count[i] times, one level up or down by its sign[i].

    Its change k happens at the strength (start[i] + k step) / speed[i], or right behind it.
    """

    first: NDArray[np.uint8]
    sign: NDArray[np.int8]
    count: NDArray[np.uint8]
    start: Array
    speed: Array
    step: int
    rule: HalfRule

    @staticmethod
    def along(path: ExactPath, end: float, clip: ClipRange | None = None, rule: HalfRule = "half-even") -> PixelChanges:
        """Of a path with one strength, from 0 to `end`; clipped to a range first, and to 0..255 always."""
        (slope,), shared = path.slopes, math.gcd(WHITE, path.unit)
        times, w, last = WHITE // shared, path.unit // shared, Fraction(end)
        # rounding keeps the order, so whether one rounds or clips first does not matter
        lowest, highest = (Fraction(bound) * WHITE for bound in clip or (0, 1))
        lowest, highest = (_rounded(bound.numerator, bound.denominator, rule) for bound in (lowest, highest))
        largest = [times * max(numbers.max(), -numbers.min()) for numbers in (path.base, slope)]
        kind = np.int64 if 2 * WHITE * w + 2 * largest[0] < SMALL and 2 * largest[1] < SMALL else object

        def levels(numerators: Array, denominator: int) -> Array:
            rounded = np.clip(_rounded(numerators, denominator, rule), lowest, highest)
            return np.asarray(np.clip(rounded, 0, WHITE), np.int64)

        parts = []
        for block in range(0, path.base.size, BLOCK):
            b, a = (times * numbers.ravel()[block : block + BLOCK].astype(object) for numbers in (path.base, slope))
            first, final = levels(b, w), levels(b * last.denominator + a * last.numerator, w * last.denominator)
            sign = np.sign(final - first).astype(object)
            # half way to the next level: 2 (b + a z) = (2 level + sign) w
            start, speed = sign * ((2 * first + sign) * w - 2 * b), 2 * abs(a)
            parts.append((first, sign, abs(final - first), start, speed))
        first, sign, count, start, speed = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return PixelChanges(
            first=first.astype(np.uint8),
            sign=sign.astype(np.int8),
            count=count.astype(np.uint8),
            start=start.astype(kind),
            speed=speed.astype(kind),
            step=2 * w,
            rule=rule,
        )

    @property
    def bytes_each(self) -> int:
        """How much memory a change takes at most while it is sorted."""
        if self.start.dtype != object:
            return 96
        largest = self.step, self.start.max(), self.start.min(), self.speed.max()
        return 112 + 5 * max(map(sys.getsizeof, largest))

    def strengths(self, pixels: Array, numbers: Array) -> tuple[Array, Array]:
        """Numerators and denominators of the strengths of changes."""
        numbers = numbers.astype(self.start.dtype)
        return self.start[pixels] + self.step * numbers, self.speed[pixels]

    def behind(self, pixels: Array, numbers: Array) -> NDArray[np.bool_]:
        """Which changes happen right behind their strength: half way, the rule still keeps the old level."""
        if self.rule == "half-up":
            return np.asarray(self.sign[pixels] < 0)
        return np.asarray((self.first[pixels] + numbers) % 2 == 0)

    def before(self, strength: Fraction) -> NDArray[np.int64]:
        """How many changes each pixel has at smaller strengths."""
        above, unit = self._above(strength)
        return self._numbers(-(above // unit))

    def until(self, strength: Fraction, behind: bool) -> NDArray[np.int64]:
        """How many changes each pixel has up to a strength, with or without those right behind it."""
        above, unit = self._above(strength)
        numbers, earlier = self._numbers(-above // unit + 1), self._numbers(-(above // unit))
        there = np.flatnonzero((numbers > earlier) & (not behind))
        numbers[there] -= self.behind(there, earlier[there])
        return numbers

    def between(self, start: Fraction, end: Fraction | None) -> PixelChanges:
        """Those at a strength or behind it, and before another one, or all that follow; they begin with the picture
        just before the first of them.
        """
        before = self.before(start)
        after = self.count.astype(np.int64) if end is None else self.before(end)
        return replace(
            self,
            first=self.levels(before),
            count=(after - before).astype(np.uint8),
            start=self.start + self.step * before.astype(self.start.dtype),
        )

    def _above(self, strength: Fraction) -> tuple[Array, int]:
        """How far the first change of each pixel is above a strength, and how far its changes are apart, in the same
        unit. The products are int64 where numbers are SMALL, those of the strength as well.
        """
        p, q = strength.as_integer_ratio()
        kind = self.start.dtype if max(p, q) < SMALL else object
        return self.start.astype(kind, copy=False) * q - self.speed.astype(kind, copy=False) * p, self.step * q

    def _numbers(self, numbers: Array) -> NDArray[np.int64]:
        return np.clip(numbers, 0, self.count).astype(np.int64)

    def levels(self, numbers: Array) -> NDArray[np.uint8]:
        """The levels after so many changes of each pixel."""
        return (self.first + self.sign * numbers).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class PictureWindow:
    """Pictures that follow one another: to the picture `before` them, pixels[: ends[k]] have made `steps` (modulo 256)
    when picture k of them is reached.
    """

    before: NDArray[np.uint8]
    ends: NDArray[np.int64]
    pixels: NDArray[np.int32]
    steps: NDArray[np.uint8]

    def batches(self, size: int, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """The pictures (size, pixels) at a time, fewer in the end; from the `first` on."""
        reached = int(self.ends[first - 1]) if first else 0
        picture = self.before.copy()
        np.add.at(picture, self.pixels[:reached], self.steps[:reached])
        for start in range(first, len(self.ends), size):
            ends = self.ends[start : start + size]
            row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=reached))
            changed = slice(reached, reached := ends[-1])
            pictures = np.zeros((len(ends), picture.size), np.uint8)
            pictures[row, self.pixels[changed]] = self.steps[changed]  # a pixel changes once from a picture to the next
            for after in pictures:
                after += picture
                picture = after
            picture = picture.copy()  # what is handed out is no longer ours
            yield pictures


class EightBitPictures:
    """All pictures (*shape) of a path from strength 0 to `end`, in order.

    Windows are made when they are needed, and the last one is kept. `most` is how many changes one may have: it must
    not be less than the number of pixels, all of which may change at once.
    """

    def __init__(self, changes: PixelChanges, shape: tuple[int, ...], end: float, most: int = MOST_CHANGES) -> None:
        self.changes, self.shape, self.end = changes, shape, end
        self.total, self.most = int(changes.count.sum(dtype=np.int64)), max(most, len(changes.first))
        self._width = Fraction(1, 1 << (self.total // self.most).bit_length())
        self._cuts: list[Fraction | None] = [Fraction(0)]  # windows are between them; None is behind all changes
        self._heads: list[tuple[NDArray[np.int32], NDArray[np.uint8]]] = []  # what begins the pictures of each window
        self._known, self._sorted = [1], 0  # pictures before each cut; changes before the last
        self._made: tuple[int, PictureWindow | None, NDArray[np.int64]] = -1, None, self._before(0)

    @property
    def rule(self) -> HalfRule:
        return self.changes.rule

    # -- how many there are -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Exactly; all windows are made for it."""
        self.has(self.total + 1)
        return self._known[-1]

    def has(self, number: int) -> bool:
        """Whether there is a picture with this number; no more windows are made for it than necessary."""
        while number >= self._known[-1] and self._window(len(self._heads)) is not None:
            pass
        return number < self._known[-1]

    @property
    def is_counted(self) -> bool:
        """Whether all windows were made, so that the number of pictures is known exactly."""
        return self._cuts[-1] is None

    @property
    def about(self) -> int:
        """The number of pictures, or if not all windows were made, about how many there are."""
        self.has(1)
        known, left = self._known[-1], self.total - self._sorted
        return known + (round(left * known / self._sorted) if left else 0)

    # -- where they begin ---------------------------------------------------------------------------------------------

    def begins(self, number: int) -> Fraction:
        """The strength at which a picture begins, exactly; what would follow the last one begins at the end."""
        if not number or not self.has(number):
            return Fraction(self.end if number else 0)
        (numerator,), (denominator,) = self.changes.strengths(*self._head(number))
        return Fraction(int(numerator), int(denominator))

    def has_start(self, number: int) -> bool:
        """Whether a picture is to be seen at the strength where it begins, or only behind it."""
        return self.has(number) and not (number and bool(self.changes.behind(*self._head(number))[0]))

    def _head(self, number: int) -> tuple[Array, Array]:
        """The pixel of the first change that makes a picture, and that change's number."""
        window = bisect_right(self._known, number) - 1
        pixels, numbers = self._heads[window]
        at = slice(number - self._known[window], number - self._known[window] + 1)
        return pixels[at], numbers[at]

    def first_of(self, number: int) -> float:
        """The smallest float64 strength at which a picture is reached; it may be behind the next one."""
        begins = self.begins(number)
        nearest = float(begins)
        reached = nearest > begins or (nearest == begins and self.has_start(number))
        return nearest if reached else math.nextafter(nearest, 2)

    def last_before(self, number: int) -> float:
        """The largest float64 strength that is before a picture; 0 for those that begin there."""
        begins = self.begins(number)
        nearest = float(begins)
        reached = nearest < begins or (nearest == begins and not self.has_start(number))
        return nearest if reached else max(math.nextafter(nearest, -1), 0.0)

    def strength_inside(self, number: int) -> float:
        """A strength at which a picture is to be seen: half way to the next, as far as float64 can tell."""
        return float((self.begins(number) + self.begins(number + 1)) / 2)

    def before(self, strength: Fraction) -> int:
        """How many pictures begin before a strength that is above 0: the number of the first that does not."""
        self.has(self.total + 1)
        return bisect_left(range(len(self)), strength, key=self.begins)

    def between(self, start: float, end: float) -> EightBitPictures:
        """The pictures that begin from one strength up to another one, which is not part of them unless it is the end
        of the path; and the one just before them, which is the first of the path if they begin at 0.
        """
        last = None if end == self.end else Fraction(end)
        return EightBitPictures(self.changes.between(Fraction(start), last), self.shape, end, self.most)

    def strengths(self, count: int) -> NDArray[np.float64]:
        """Where each of the first `count` pictures begins, and where the last of them ends, as the nearest float64."""
        self.has(count)
        fractions = (self.changes.strengths(*heads) for heads in self._heads)
        parts = [(numerators / denominators).astype(np.float64) for numerators, denominators in fractions]
        return np.concatenate([[0.0], *parts, [self.end]])[: count + 1]

    # -- what they are ------------------------------------------------------------------------------------------------

    def picture(self, number: int) -> NDArray[np.uint8]:
        """One of the pictures (*shape)."""
        if not number:
            return self.changes.first.reshape(self.shape).copy()
        changed = self.changes.until(self.begins(number), not self.has_start(number))
        return self.changes.levels(changed).reshape(self.shape)

    def at(self, strength: Fraction) -> NDArray[np.uint8]:
        """The picture (*shape) that is to be seen at a strength."""
        return self.changes.levels(self.changes.until(strength, behind=False)).reshape(self.shape)

    def batches(self, size: int, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """The pictures in order from the `first` on, (size, *shape) at a time; fewer at the end of a window."""
        number = max(bisect_right(self._known, first) - 1, 0) if self.has(first) else len(self._heads)
        while (window := self._window(number)) is not None:
            passed = max(0, first - self._known[number]) if number else first
            for pictures in window.batches(size, passed):
                yield pictures.reshape(-1, *self.shape)
            number += 1

    # -- windows ------------------------------------------------------------------------------------------------------

    def _window(self, number: int) -> PictureWindow | None:
        """A window that was made before, or the next one; None if there is no other."""
        known_number, window, reached = self._made
        if known_number == number:
            return window
        if self._cuts[number] is None:
            return None
        self._made = -2, None, reached  # its memory is needed
        before = reached if known_number == number - 1 else self._before(number)
        is_next = number == len(self._heads)
        cut, reached = self._next_cut(before) if is_next else (None, self._before(number + 1))
        window, heads = self._sort(before, reached, number == 0)
        if is_next:
            self._cuts.append(cut)
            self._heads.append(heads)
            self._known.append(self._known[-1] + len(heads[0]))
            self._sorted += len(window.pixels)
        self._made = number, window, reached
        return window

    def _before(self, cut: int) -> NDArray[np.int64]:
        """How many changes each pixel has before a cut."""
        strength = self._cuts[cut]
        return self.changes.count.astype(np.int64) if strength is None else self.changes.before(strength)

    def _next_cut(self, before: NDArray[np.int64]) -> tuple[Fraction | None, NDArray[np.int64]]:
        """A cut so far from the last that few enough changes are between them; how many each pixel has before it.

        Changes of a pixel are apart: in a window that is narrow enough, no pixel has more than one.
        """
        last, done = self._cuts[-1], int(before.sum())
        assert last is not None
        cut, reached = None, self.changes.count.astype(np.int64)
        while (count := int(reached.sum()) - done) > self.most:
            self._width /= 1 if cut is None else 2
            cut = last + self._width
            reached = self.changes.before(cut)
        if count < self.most // 2:
            self._width *= 2
        return cut, reached

    def _sort(
        self, before: NDArray[np.int64], reached: NDArray[np.int64], is_first: bool
    ) -> tuple[PictureWindow, tuple[NDArray[np.int32], NDArray[np.uint8]]]:
        """The pictures that some changes of each pixel make, in order; and the first change of each."""
        each = reached - before
        pixels = np.repeat(np.arange(len(each), dtype=np.int32), each)
        numbers = (np.arange(len(pixels)) - np.repeat(np.cumsum(each) - each - before, each)).astype(np.uint8)
        order, heads = _in_order(*self.changes.strengths(pixels, numbers), self.changes.behind(pixels, numbers))
        pixels, numbers = pixels[order], numbers[order]
        ends = np.append(heads[1:], len(order))[: len(heads)]
        window = PictureWindow(
            before=self.changes.levels(before),
            ends=np.append(0, ends) if is_first else ends,  # the first picture itself
            pixels=pixels,
            steps=self.changes.sign[pixels].astype(np.uint8),
        )
        return window, (pixels[heads], numbers[heads])


def eight_bit_pictures(
    path: ExactPath,
    end: float,
    clip: ClipRange | None = None,
    rule: HalfRule = "half-even",
    budget: Budget | None = None,
) -> EightBitPictures:
    """All pictures of a path with one strength, from 0 to `end`; clipped to a range first, and to 0..255 always."""
    changes, size = PixelChanges.along(path, end, clip, rule), path.base.size
    each = changes.bytes_each  # of a pixel, too; and all pixels may change at once
    most = (budget or Budget()).fitting(each, "sorting 8-bit pictures", fixed=size * each, least=size)
    return EightBitPictures(changes, path.base.shape, end, min(most, MOST_CHANGES))


def _rounded(numerators: Any, denominator: int, rule: HalfRule) -> Any:
    """The whole numbers nearest to fractions."""
    doubled = 2 * numerators + denominator
    up = doubled // (2 * denominator)
    return up if rule == "half-up" else up - ((doubled == 2 * denominator * up) & (up % 2 == 1))


def _in_order(numerators: Array, denominators: Array, behind: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The order of changes, at their strength or right behind it; and where in it another moment begins."""
    strengths = (numerators / denominators).astype(np.float64)  # each is the nearest float64, so the order is kept
    keys = [behind, strengths]
    if numerators.dtype == object:
        keys.insert(1, _among_equal(strengths, numerators, denominators))
    order = np.lexsort(keys)
    other = np.ones(len(order), bool)
    other[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    return order, np.flatnonzero(other)


def _among_equal(strengths: NDArray[np.float64], numerators: Array, denominators: Array) -> NDArray[np.int64]:
    """The order of fractions among those whose nearest float64 is the same."""
    _, place, count = np.unique(strengths, return_inverse=True, return_counts=True)
    equal, order = np.flatnonzero(count[place] > 1), np.zeros(len(strengths), np.int64)
    if len(equal):
        # fractions that are not the same differ by 1 / (their denominators) at least: so far they are written out
        places = 2 * int(max(denominators[equal])).bit_length() + 1
        order[equal] = np.unique((numerators[equal] << places) // denominators[equal], return_inverse=True)[1]
    return order
