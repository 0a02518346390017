"""When the deployed runtime, in float32, agrees with the graph, in float64: one rule, for loading and for replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# What float32 may be off by: shares of how far the outputs are apart, of an output's size, and of the largest output.
# (Real networks of up to 56 layers are off by a millionth of how far their outputs are apart.)
TOLERANCE_OF_SPREAD, TOLERANCE_OF_SIZE, TOLERANCE_OF_REST = 1e-4, 1e-5, 3e-6


@dataclass(frozen=True)
class Usual:
    """How far apart a network's outputs usually are, and how large they get.

    Where outputs happen to be close to each other or to 0 (at a tie; always, for a single output) they say nothing of
    the numbers that they are the difference of, and that float32 rounds.
    """

    spread: float = 0.0
    size: float = 0.0


def usual(natural: NDArray[np.float32], all_of_them: NDArray[np.float32]) -> Usual:
    """From the runtime's outputs (n, classes): for inputs of the size of numbers in [0, 1], and for others as well."""
    finite = all_of_them[np.isfinite(all_of_them)]
    return Usual(float(np.ptp(natural)), float(np.abs(finite).max(initial=0.0)))


def disagreement(
    ours: NDArray[np.float64], theirs: NDArray[np.float32], usually: Usual, least: float
) -> NDArray[np.float64]:
    """For each row, the largest |difference| as a share of what is allowed: above 1, or NaN, they disagree.

    `least` is the size that the largest output has at least.
    """
    given = theirs.astype(np.float64)
    size = np.abs(given)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spread = np.maximum(np.ptp(given, axis=1, keepdims=True), usually.spread)
        largest = np.maximum(size.max(1, keepdims=True), max(usually.size, least))
        allowed = TOLERANCE_OF_SPREAD * spread + TOLERANCE_OF_SIZE * size + TOLERANCE_OF_REST * largest
        difference = np.abs(ours - given)
        shares = np.where(difference == 0, 0.0, difference / allowed)
    worst: NDArray[np.float64] = shares.max(1)
    return worst
