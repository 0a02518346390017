"""Counterexamples: perturbed images on which the reference runtime itself gives another class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network import Network


def replay(network: Network, inputs: Tensor, labels: Sequence[int]) -> NDArray[np.bool_]:
    """Whether the label loses (or ties) in the reference runtime, for float32 copies of inputs (n, *input_shape)."""
    if not len(labels):
        return np.empty(0, dtype=bool)
    scores = network.reference(inputs.to("cpu").float().numpy())
    rows = np.arange(len(labels))
    of_label = scores[rows, labels].copy()
    scores = scores.copy()
    scores[rows, labels] = -np.inf
    lost: NDArray[np.bool_] = (scores.max(1) >= of_label) & np.isfinite(of_label)
    return lost
