"""How near to a place something can be proved, with few trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def nearest(margins: Floats, sure: NDArray[np.bool_], bound: Callable[[Numbers, Numbers], NDArray[Any]]) -> Numbers:
    """For each claim (rows), the number of the first place (columns) at which it is proved; of no place if at none.

    `margins` (claims, places) say by how much a claim holds there as far as one knows, and where it is `sure` it needs
    no proof. `bound` gives proved lower bounds of margins, for some claims at a place each: above 0, a claim holds.

    A bound falls short of the margin by what rounding may do, and hardly by more in one place than in the next. So one
    that fails says which place to try next: the first whose margin is larger than that.
    """
    claims, places = margins.shape
    place = np.arange(places)
    tried = np.zeros(claims, dtype=np.int64)
    proved: Numbers = np.where(sure.any(1), sure.argmax(1), places)
    short = np.zeros((claims, 1))
    while True:
        hopeful = (margins > short) & (place >= tried[:, None]) & (place < proved[:, None])
        rows = np.flatnonzero(hopeful.any(1))
        if not len(rows):
            return proved
        columns = hopeful[rows].argmax(1)
        found = bound(rows, columns)
        holds = found > 0
        proved[rows[holds]] = columns[holds]
        tried[rows] = columns + 1
        with np.errstate(invalid="ignore"):  # infinite ones say nothing
            missing = margins[rows, columns] - found
        short[rows, 0] = np.where(np.isfinite(missing), missing, short[rows, 0])
