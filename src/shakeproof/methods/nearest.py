"""How near to a place something can be proved, with few trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
# How many strengths are tried at once, and down to which share of a stretch.
TRIALS, FINEST = 16, 1e-8


def nearest(
    margins: Floats,
    sure: NDArray[np.bool_],
    bound: Callable[[Numbers, Numbers], NDArray[Any]],
    guess: Floats | float = 0.0,
) -> Numbers:
    """For each claim (rows), the number of the first place (columns) at which it is proved; of no place if at none.

    `margins` (claims, places) say by how much a claim holds there as far as one knows, and where it is `sure` it needs
    no proof. `bound` gives proved lower bounds of margins, for some claims at a place each: above 0, a claim holds.

    A bound falls short of the margin by what rounding may do, and hardly by more in one place than in the next. So each
    says which place to try next: the first whose margin is larger than that. Before there is any, a `guess` does, for
    each claim; where it leaves no place, or the bound there says nothing, places are tried from the first on.
    """
    claims, places = margins.shape
    place = np.arange(places)
    proved: Numbers = np.where(sure.any(1), sure.argmax(1), places)
    left = place < proved[:, None]
    short = np.broadcast_to(guess, claims)[:, None].copy()
    short[~((margins > short) & left).any(1)] = 0.0
    is_guess = short[:, 0] > 0
    while True:
        hopeful = (margins > short) & left
        rows = np.flatnonzero(hopeful.any(1))
        if not len(rows):
            return proved
        columns = hopeful[rows].argmax(1)
        found = bound(rows, columns)
        with np.errstate(invalid="ignore"):  # infinite ones say nothing
            missing = margins[rows, columns] - found
        known, holds, here = np.isfinite(missing), found > 0, columns[:, None]
        misled = is_guess[rows] & ~known & ~holds
        proved[rows[holds]] = columns[holds]
        farther = np.where(misled[:, None], place != here, place > here)
        left[rows] &= np.where(holds[:, None], place < here, farther)
        short[rows, 0] = np.where(known, missing, np.where(is_guess[rows], 0.0, short[rows, 0]))
        is_guess[rows] = False


def first_proved(fails: Callable[[Floats], NDArray[np.bool_]], start: float, known: float, more: Floats) -> float:
    """The smallest strength proved to fail, behind one where failing begins, and up to one that is `known` to fail.

    Failing need not go on once it has begun. So `more` strengths are tried beside those that come closer and closer to
    the start; then those between the first that fails and the last one before it that does not.
    """
    shares = np.geomspace(FINEST, 1.0, TRIALS, endpoint=False)
    tried = np.unique(np.concatenate([start + shares * (known - start), more[(more > start) & (more < known)]]))
    for _ in range(2):
        failing = np.append(fails(tried), True)
        first = int(failing.argmax())
        known = float(tried[first]) if first < len(tried) else known
        tried = np.linspace(float(tried[first - 1]) if first else start, known, TRIALS + 2)[1:-1]
    return known
