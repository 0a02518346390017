"""What the reference runtime itself says about perturbed images, and about inputs in general."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network import Network
from shakeproof.vnnlib import Case


def loses(network: Network, inputs: Tensor, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether another class wins or ties, for float32 copies of inputs (n, *input_shape): a counterexample."""
    own, rivals = _scores(network, inputs, labels)
    lost: NDArray[np.bool_] = (rivals >= own) & np.isfinite(own)
    return lost


def wins(network: Network, inputs: Tensor, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the label wins, all scores being finite. Neither `loses` nor `wins` holds where they are not."""
    own, rivals = _scores(network, inputs, labels)
    won: NDArray[np.bool_] = (own > rivals) & np.isfinite(own)
    return won


def _scores(
    network: Network, inputs: Tensor, labels: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The label's score and its best rival's, for each input; NaN if any score is."""
    if not len(labels):
        return np.empty(0, np.float32), np.empty(0, np.float32)
    scores = network.reference(inputs.to("cpu").float().numpy()).copy()
    rows = np.arange(len(labels))
    own = scores[rows, labels]
    scores[rows, labels] = -np.inf
    return own, scores.max(1)


def meets(network: Network, inputs: Tensor, cases: Sequence[Case]) -> NDArray[np.bool_]:
    """Whether the outputs of float32 inputs (n, *input_shape) meet one of the cases, all outputs being finite."""
    if not len(inputs):
        return np.empty(0, bool)
    outputs = network.reference(inputs.to("cpu").float().numpy()).astype(np.float64)
    met: NDArray[np.bool_] = np.any([case.met_by(outputs) for case in cases], axis=0)
    return met & np.isfinite(outputs).all(1)
