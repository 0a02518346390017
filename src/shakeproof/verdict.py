"""Which verdict a curve supports. No verdict is what is left over: each is built from its own evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.exact import Curve
from shakeproof.result import Counterexample, Reason, Status
from shakeproof.rounding import OF_SCORES

# How many pieces of a curve are compared with direct evaluation before it proves anything.
SPOT_CHECKS = 3


def margins(scores: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    """The lead of each row's label over its best rival; scores (rows, classes), labels (rows)."""
    rows = np.arange(len(scores))
    rivals = scores.copy()
    rivals[rows, labels] = -np.inf
    lead: NDArray[np.float64] = scores[rows, labels] - rivals.max(1)
    return lead


def above_rounding(curve: Curve, label: int) -> bool:
    """Whether the margin exceeds, at every row, the rounding of the scores it separates."""
    margin, own = curve.margin(label), curve.scores[:, label]
    return bool((margin > OF_SCORES * np.maximum(np.abs(own), np.abs(own - margin))).all())


def spots(curve: Curve, label: int) -> NDArray[np.float64]:
    """Where to compare a curve with direct evaluation: at its smallest margin, and in the middle of a few pieces."""
    if not len(curve.z):
        return curve.z
    chosen = np.unique(np.linspace(0, curve.pieces - 1, SPOT_CHECKS).astype(int)) if curve.pieces else np.empty(0, int)
    pieces = np.flatnonzero(~curve.bridged)[chosen]
    middles = (curve.z[pieces] + curve.z[pieces + 1]) / 2
    return np.concatenate([curve.z[[curve.margin(label).argmin()]], middles])


def judge(
    curve: Curve, label: int, strength: float, witness: Counterexample | None, assured: bool, wins_at_zero: bool
) -> tuple[Status, Reason | None]:
    """The verdict that the evidence supports, and if it is none, why."""
    if not wins_at_zero:
        return Status.MISCLASSIFIED, None
    if witness is not None:
        return (Status.UNSAFE, None) if witness.replayed else (Status.UNDECIDED, Reason.NOT_REPLAYED)
    if not curve.covers(0.0, strength):
        return Status.UNDECIDED, Reason.TIMEOUT
    if assured and curve.margin(label).min() > 0:
        return Status.SAFE, None
    return Status.UNDECIDED, Reason.ROUNDING
