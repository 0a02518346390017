"""How much of a line is left: estimated from its beginning, compared with what there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.budget import UNLIMITED
from shakeproof.exact import Curve, Lines, pieces_left
from shakeproof.question import Path

STOP = str(demo.images()[0][0])


@pytest.mark.parametrize("text", ["motion-blur:size=9,angle=45", "sharpen:size=4,clip=0..1", "haze:colour=0.2"])
@pytest.mark.parametrize("reached", [0.1, 0.5, 0.9])
def test_pieces_are_expected_where_they_are(demo_network, text, reached):
    (query,) = sp.perturbed(demo_network, [STOP], text)
    (whole,) = sp.analyse(demo_network, [query], sp.Settings(whole_curve=True))
    begun = whole.curve.up_to(reached)
    assert query.path is not None
    zero = torch.zeros(1, dtype=torch.float64)
    lines = Lines(Path.stacked([query.path.path]), zero, zero + 1, torch.zeros(1, dtype=torch.int64))
    graph = query.path.within(demo_network.graph)
    with torch.inference_mode():
        expected = pieces_left(graph, lines, 0, begun, UNLIMITED)
    assert 1 / 3 < expected / (whole.pieces - begun.pieces) < 3


def test_without_breaks_pieces_are_as_far_apart_as_before(demo_network):
    (query,) = sp.perturbed(demo_network, [STOP], "identity")
    zero = torch.zeros(1, dtype=torch.float64)
    assert query.path is not None
    lines = Lines(Path.stacked([query.path.path]), zero, zero + 1, torch.zeros(1, dtype=torch.int64))
    begun = Curve(np.array([0.0, 0.25]), np.zeros((2, 2)), np.zeros(1))
    assert pieces_left(demo_network.graph, lines, 0, begun, UNLIMITED) == 3
