"""Two networks side by side: at which strengths of a perturbation they give different classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from shakeproof.analysis import Model, as_network, profile
from shakeproof.errors import InputError
from shakeproof.evidence import Enumerated
from shakeproof.perturbation import Perturbation
from shakeproof.query import Picture, Strength
from shakeproof.result import Result
from shakeproof.settings import Options, Settings


@dataclass(frozen=True)
class Disagreement:
    """Strengths at which the first network gives one class, and the second another."""

    start: float
    end: float
    first: int
    second: int


@dataclass(frozen=True, eq=False)
class Compared:
    """What two networks make of an image under a perturbation, each in full."""

    first: Result
    second: Result

    @property
    def is_complete(self) -> bool:
        """Whether both were followed to the last strength."""
        (end,) = self.first.query.strengths
        return all(result.profile and result.profile[-1].end == end for result in (self.first, self.second))

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """Where their classes differ, in order: stretches of strengths, or of 8-bit pictures."""
        one, other = self.first.proof, self.second.proof
        if isinstance(one, Enumerated) and isinstance(other, Enumerated):
            return tuple(_between_pictures(one, other))
        return tuple(_between_lines(self.first, self.second))


def compare(
    first: Model,
    second: Model,
    image: Picture,
    perturbation: Perturbation | str,
    max_strength: Strength = 1.0,
    **options: Unpack[Options],
) -> Compared:
    """All strengths in [0, max_strength] at which two networks give an image different classes.

    By the exact method, or by running every picture (`pixels="8bit"`), for which any two networks will do.
    """
    one, other = (as_network(model, Settings(**options)) for model in (first, second))
    if one.classes != other.classes:
        counts = f"{one.name} has {one.classes} classes, {other.name} {other.classes}"
        raise InputError(f"{counts}; only networks with the same ones can be compared")
    results = [profile(network, image, perturbation, None, max_strength, **options) for network in (one, other)]
    for result in results:
        if result.method == "bounds":
            raise InputError(
                f"{result.model}: bounds do not say which class wins where; compare 8-bit pictures", option="pixels"
            )
    return Compared(*results)


def _between_pictures(one: Enumerated, other: Enumerated) -> Iterator[Disagreement]:
    """Both have run the same pictures, one after another."""
    count = min(len(one.winners), len(other.winners))
    pairs = np.stack([one.winners[:count], other.winners[:count]], 1)
    ends = np.append(one.pictures.strengths, one.pictures.end)
    starts = np.flatnonzero(np.append(True, (pairs[1:] != pairs[:-1]).any(1)))[:count]
    for start, stop in zip(starts, np.append(starts[1:], count), strict=True):
        mine, theirs = pairs[start].tolist()
        if mine != theirs:
            yield Disagreement(float(ends[start]), float(ends[stop]), mine, theirs)


def _between_lines(one: Result, other: Result) -> Iterator[Disagreement]:
    """Where intervals of different classes overlap."""
    mine, theirs = list(one.profile), list(other.profile)
    while mine and theirs:
        start, end = max(mine[0].start, theirs[0].start), min(mine[0].end, theirs[0].end)
        if start < end and mine[0].winner != theirs[0].winner:
            yield Disagreement(start, end, mine[0].winner, theirs[0].winner)
        (mine if mine[0].end <= theirs[0].end else theirs).pop(0)
