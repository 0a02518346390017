"""Stretches of 8-bit pictures that need not be run: bounds keep the label in any float32 evaluation of all of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.bounds import Boxes, cells_within, enclose, lowest_leads
from shakeproof.budget import Budget, now
from shakeproof.enumeration import EightBitPictures
from shakeproof.network import Network
from shakeproof.operators import Clip
from shakeproof.path import Path
from shakeproof.query import Query

Floats = NDArray[np.float64]
# A picture is at most half a grey level from the path, and its pixels are float32 numbers.
HALF_LEVEL = 0.5 / 255 + 2.0**-24
# Bounds are tried on so many stretches of a path, of so many pictures at least: on some first, and on the others only
# if that was quicker than running what it settled.
STRETCHES, FEWEST, TRIED = 128, 32, 4


def proved_leads(
    network: Network, query: Query, pictures: EightBitPictures, budget: Budget, seconds_each: float
) -> NDArray[np.float32]:
    """For each picture, by how much its label leads at least, however float32 sums are added up; -inf if not known.

    `seconds_each` is what running a picture takes. Nothing is known where float32 is on either side of a jump, or
    rounds as libraries please; where a final softmax may round different scores to one number; and where pixels are
    clipped to other ends than 0 and 1, beyond which they may be rounded.
    """
    path, label, count = query.path, query.label, min(STRETCHES, len(pictures) // FEWEST)
    known = not network.graph.unpredictable_operators and network.dropped is None and count
    if path is None or label is None or path.path.clip not in (None, (0.0, 1.0)) or not known:
        return np.full(len(pictures), -np.inf, np.float32)
    ends = np.linspace(0, len(pictures), count + 1).astype(int)
    strengths = np.append(pictures.strengths, pictures.end)
    low, high = np.nextafter(strengths[ends[:-1]], -1).clip(0), np.nextafter(strengths[ends[1:]], 2)
    found, tried = np.full(count, -np.inf), np.unique(np.linspace(0, count - 1, TRIED).astype(int))
    started = now()
    found[tried] = _leads(network, label, path.path, low[tried], high[tried], budget)
    spared = seconds_each * np.diff(ends)[tried][found[tried] > 0].sum()
    if spared > now() - started:
        others = np.setdiff1d(np.arange(count), tried)
        found[others] = _leads(network, label, path.path, low[others], high[others], budget)
    return np.repeat(found, np.diff(ends)).astype(np.float32)


def _leads(network: Network, label: int, path: Path, low: Floats, high: Floats, budget: Budget) -> Floats:
    """Lower bounds of the label's lead on stretches of strengths, half a level around the path."""
    graph = network.graph.after(Clip(0.0, 1.0)).in_float32()
    found = np.full(len(low), -np.inf)
    for rows in budget.slices(len(low), cells_within(graph, budget, 1)):
        boxes = Boxes(*(torch.from_numpy(side[rows]).unsqueeze(1) for side in (low, high)))
        inputs = torch.stack([path.at(z) for z in boxes.points])
        enclosed = enclose(graph, inputs, boxes, (path.error + HALF_LEVEL).expand_as(inputs[0]))
        found[rows] = lowest_leads(graph, enclosed, torch.full((len(boxes),), label, dtype=torch.int64)).numpy()
    return found
