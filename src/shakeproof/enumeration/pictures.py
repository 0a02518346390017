"""The 8-bit pictures round(255 clip(x(z))) of a path x(z), every one of them, in order of z. Nothing is rounded here.

A pixel is (b + a z) / w grey levels, with whole numbers b, a and w. It leaves a level at the strength where it is half
way to the next, which is a fraction, and on a straight path it never comes back: so the pictures are as many as the
strengths at which some pixel changes, and one more. Exactly half way, a rule decides; so a pixel changes either at
its strength or right behind it, and where pixels do both at one strength, that strength has a picture of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shakeproof.path import ClipRange
from shakeproof.perturbation import ExactPath

Array = NDArray[Any]
HalfRule = Literal["half-even", "half-up"]
WHITE = 255
# Quotients of numbers below this are different in float64 if they are different at all: by 2^-52 at least, of 1.
SMALL = 2**26


@dataclass(frozen=True, eq=False)
class EightBitPictures:
    """Picture 0 is `first` (*shape); change k makes picture k + 1 of picture k.

    It happens at the strength numerators[k] / denominators[k], or right `behind` it, and moves the pixels (numbered in
    C order) pixels[starts[k] : starts[k + 1]] by one level, `steps` (modulo 256).
    """

    first: NDArray[np.uint8]
    end: float
    rule: HalfRule
    numerators: Array
    denominators: Array
    behind: NDArray[np.bool_]
    starts: NDArray[np.int64]
    pixels: NDArray[np.int64]
    steps: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.behind) + 1

    def begins(self, number: int) -> Fraction:
        """The strength at which a picture begins, exactly; what would follow the last one begins at the end."""
        if number in (0, len(self)):
            return Fraction(self.end if number else 0)
        return Fraction(int(self.numerators[number - 1]), int(self.denominators[number - 1]))

    def has_start(self, number: int) -> bool:
        """Whether a picture is to be seen at the strength where it begins, or only behind it."""
        return number < len(self) and not (number and bool(self.behind[number - 1]))

    def last_before(self, number: int) -> float:
        """The largest float64 strength that is before a picture; 0 for those that begin there."""
        begins = self.begins(number)
        nearest = float(begins)
        reached = nearest < begins or (nearest == begins and not self.has_start(number))
        return nearest if reached else max(math.nextafter(nearest, -1), 0.0)

    def strength_inside(self, number: int) -> float:
        """A strength at which a picture is to be seen: half way to the next, as far as float64 can tell."""
        return float((self.begins(number) + self.begins(number + 1)) / 2)

    def picture(self, number: int) -> NDArray[np.uint8]:
        """One of the pictures (*shape)."""
        (made,) = next(self.batches(1, [number]))
        return np.asarray(made)

    @property
    def strengths(self) -> NDArray[np.float64]:
        """Where each picture begins, as the nearest float64."""
        return np.append(0.0, (self.numerators / self.denominators).astype(np.float64))

    def batches(self, size: int, numbers: Sequence[int] | None = None) -> Iterator[NDArray[np.uint8]]:
        """The pictures in order, or those with some ascending numbers, (size, *shape) at a time, fewer in the end."""
        wanted = np.arange(len(self)) if numbers is None else np.asarray(numbers)
        picture, reached = self.first.ravel(), 0
        for start in range(0, len(wanted), size):
            ends = self.starts[wanted[start : start + size]]
            row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=reached))
            changed = slice(reached, reached := ends[-1])
            made = np.zeros((len(ends), picture.size), np.uint8)
            # a pixel may change more than once from a picture to the next that is wanted
            np.add.at(made.reshape(-1), row * picture.size + self.pixels[changed], self.steps[changed])
            for after in made:
                after += picture
                picture = after
            picture = picture.copy()  # what is handed out is no longer ours
            yield made.reshape(-1, *self.first.shape)


def eight_bit_pictures(
    path: ExactPath, end: float, clip: ClipRange | None = None, rule: HalfRule = "half-even"
) -> EightBitPictures:
    """All pictures of a path with one strength, from 0 to `end`; clipped to a range first, and to 0..255 always."""
    (slope,), shared = path.slopes, math.gcd(WHITE, path.unit)
    b, a = (number.ravel() * (WHITE // shared) for number in (path.base, slope))
    w, last = path.unit // shared, Fraction(end)
    # rounding keeps the order, so whether one rounds or clips first does not matter
    lowest, highest = (Fraction(bound) * WHITE for bound in clip or (0, 1))
    lowest, highest = (_rounded(bound.numerator, bound.denominator, rule) for bound in (lowest, highest))
    at_end = _rounded(b * last.denominator + a * last.numerator, w * last.denominator, rule)
    first, final = (
        np.clip(np.clip(levels, lowest, highest), 0, WHITE).astype(np.int64)
        for levels in (_rounded(b, w, rule), at_end)
    )
    count = np.abs(final - first)
    pixel = np.repeat(np.arange(len(first)), count)
    sign = np.sign(final - first)[pixel]
    level = first[pixel] + sign * (np.arange(len(pixel)) - np.repeat(np.cumsum(count) - count, count))
    behind = level % 2 == 0 if rule == "half-even" else sign < 0
    if (2 * WHITE * w + 2 * abs(b).max() < SMALL) and 2 * abs(a).max() < SMALL:
        b, a = b.astype(np.int64), a.astype(np.int64)
    else:
        level, sign = level.astype(object), sign.astype(object)
    # half way to the next level: 2 (b + a z) = (2 level + sign) w
    numerators, denominators = sign * ((2 * level + sign) * w - 2 * b[pixel]), 2 * abs(a)[pixel]
    order, heads = _in_order(numerators, denominators, behind)
    return EightBitPictures(
        first=first.astype(np.uint8).reshape(path.base.shape),
        end=end,
        rule=rule,
        numerators=numerators[order[heads]],
        denominators=denominators[order[heads]],
        behind=behind[order[heads]],
        starts=np.append(heads, len(order)),
        pixels=pixel[order],
        steps=sign[order].astype(np.int64).astype(np.uint8),
    )


def _rounded(numerators: Any, denominator: int, rule: HalfRule) -> Any:
    """The whole numbers nearest to fractions."""
    doubled = 2 * numerators + denominator
    up = doubled // (2 * denominator)
    return up if rule == "half-up" else up - ((doubled == 2 * denominator * up) & (up % 2 == 1))


def _in_order(numerators: Array, denominators: Array, behind: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The order of changes, at their strength or right behind it; and where in it another moment begins."""
    if numerators.dtype == object:
        # fractions that are not the same differ by 1 / (their denominators) at least: so far they are written out
        places = 2 * int(max(denominators, default=1)).bit_length() + 1
        moments = 2 * ((numerators << places) // denominators) + behind
    else:
        moments = 2 * np.unique(numerators / denominators, return_inverse=True)[1] + behind
    order = np.argsort(moments, kind="stable")
    return order, np.flatnonzero(np.append(True, moments[order][1:] != moments[order][:-1]))[: len(order)]
