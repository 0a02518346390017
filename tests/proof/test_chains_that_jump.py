"""Chains through networks that jump, beside the runtime at many strengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import network_of
from test_jumping import binarised

import shakeproof as sp

TEXTS = ("motion-length:angle=90,upto=5", "motion-angle:size=3,from=0,to=180,strength=0.7")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(12))
def test_what_is_proved_is_what_the_runtime_gives(seed, text):
    """A little beside each change of class, where float32 decides."""
    module, picture = binarised(seed, side=6)
    network = network_of(module, 1, 6, 6)
    result = sp.profile(network, picture, text)
    z = np.random.default_rng(seed).uniform(0, 1, 600)
    inputs = result.query.path.runtime_inputs(torch.from_numpy(z)[:, None])
    winners = network.reference(inputs).argmax(1)
    wrong = compared = 0
    for part in result.profile:
        inside = (z > part.start + 1e-4) & (z < part.end - 1e-4) & part.proved
        wrong += int((winners[inside] != part.winner).sum())
        compared += int(inside.sum())
    assert wrong == 0
    assert compared > 0 or result.status == "misclassified"
