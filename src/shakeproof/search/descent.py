"""Looking for a counterexample: projected gradient descent from many places of a box at once, in float32."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from shakeproof.bounds import gradients_at
from shakeproof.network.graph import Graph
from shakeproof.operators import Range

# Steps are shares of the box's sides, from the first to the last.
FIRST_STEP, LAST_STEP = 0.25, 0.01


def float32_box(low: Tensor, high: Tensor) -> Range:
    """The float32 numbers from low to high; the nearest one to their middle where there is none in between."""
    inner_low, inner_high = low.float(), high.float()
    inner_low = torch.where(
        inner_low.double() < low, torch.nextafter(inner_low, torch.full_like(inner_low, torch.inf)), inner_low
    )
    inner_high = torch.where(
        inner_high.double() > high, torch.nextafter(inner_high, torch.full_like(inner_high, -torch.inf)), inner_high
    )
    empty = inner_low > inner_high
    nearest = ((low + high) / 2).float()
    return Range(torch.where(empty, nearest, inner_low), torch.where(empty, nearest, inner_high))


def starts(box: Range, count: int, seed: int) -> Tensor:
    """Places (count, *input_shape) of a box: its centre, random corners, and random points."""
    random = torch.Generator().manual_seed(seed)
    shape = (count, *box.low.shape)
    shares = torch.rand(shape, generator=random)
    corners = torch.rand(count, generator=random) < 0.5
    shares = torch.where(corners.view(-1, *(1,) * box.low.dim()), shares.round(), shares)
    shares[:1] = 0.5
    return between(box, shares.to(box.low.device))


def between(box: Range, shares: Tensor) -> Tensor:
    return torch.clamp(box.low + shares * (box.high - box.low), box.low, box.high)


def descend(graph: Graph, box: Range, x: Tensor, claim: Tensor, steps: int, deadline: float) -> Iterator[Tensor]:
    """Points (n, *input_shape) at which a claim fails, as they are found on the way down from x (rows, *input_shape).

    Each row minimises its own claim (rows), one of the network's outputs. Graph and box are float32.
    """
    coefficients = torch.nn.functional.one_hot(claim, graph.classes).to(x.dtype)
    side = box.high - box.low
    for step in range(steps + 1):
        scores, gradient = gradients_at(graph, x, coefficients)
        failing = (scores <= 0).any(1)
        if bool(failing.any()):
            yield x[failing]
        if step == steps or time.perf_counter() > deadline:
            return
        size = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, steps - 1))
        x = torch.clamp(x - size * side * gradient.sign(), box.low, box.high)
