"""When the deployed runtime, in float32, agrees with the graph, in float64: one rule, for loading and for replays.

Most networks keep most of float32's digits, and what is allowed is a small share of their outputs. Where these are
farther apart than that, two things must hold: the model in float64, computed by others, gives what the graph gives, so
that it was read rightly; and the runtime is off by no more than float32's rounding does to the graph, by some samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network.graph import Graph
from shakeproof.network.twins import Twin
from shakeproof.operators import Affine

# What float32 may be off by: shares of how far the outputs are apart, of an output's size, and of the largest output.
# (Real networks of up to 56 layers are off by a millionth of how far their outputs are apart.)
TOLERANCE_OF_SPREAD, TOLERANCE_OF_SIZE, TOLERANCE_OF_REST = 1e-4, 1e-5, 3e-6
# Outputs for pixels in 0..255 count as so many times those for pixels in [0, 1] at most: powers of pixels grow faster.
LARGEST_GROWTH = 256.0
# Two implementations of one network in float64 are off by less than this share of its largest output, and by rounding.
TOLERANCE_OF_TWINS = 1e-9
# Float32's own error is sampled so many times, and may be so many times as large; float64's is a share of it.
SAMPLES, TIMES, UNIT_FLOAT32, SHARE_OF_FLOAT64 = 4, 16.0, 2.0**-24, 2.0**-29


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
    size, largest = (float(np.abs(some[np.isfinite(some)]).max(initial=0.0)) for some in (natural, all_of_them))
    return Usual(float(np.ptp(natural)), min(largest, LARGEST_GROWTH * size))


def allowed(theirs: NDArray[np.float64], usually: Usual, least: float) -> NDArray[np.float64]:
    """What each of the outputs (n, classes) may be off by; `least` is the size that the largest has at least."""
    size = np.abs(theirs)
    with np.errstate(invalid="ignore"):  # infinite ones
        spread = np.maximum(np.ptp(theirs, axis=1, keepdims=True), usually.spread)
    largest = np.maximum(size.max(1, keepdims=True), max(usually.size, least))
    found: NDArray[np.float64] = TOLERANCE_OF_SPREAD * spread + TOLERANCE_OF_SIZE * size + TOLERANCE_OF_REST * largest
    return found


def disagreement(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], within: NDArray[np.float64]
) -> NDArray[np.float64]:
    """For each row, the largest |difference| as a share of what is allowed: above 1, or NaN, they disagree."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = np.abs(ours - theirs)
        shares: NDArray[np.float64] = np.where(difference == 0, 0.0, difference / within).max(1)
    return shares


def float32_noise(graph: Graph, inputs: Tensor) -> Tensor:
    """How far float32 may well take the scores (n, classes) of inputs (n, *input_shape), in any order of summation.

    The graph is run in float64, and each result changed by a unit of float32 of the numbers that it is the sum of, up
    or down at random: the largest change of the scores that this ever made. Where a jump follows, what happens behind
    it does not grow with what happens before: there, results are changed by all that is allowed, and each way once.
    """
    plain, times = graph.run(inputs), TIMES if graph.jumping_operators else 1.0
    ways = [(seed, way) for seed in range(SAMPLES) for way in ((times, -times) if times > 1 else (times,))]
    found = [_shaken(graph, inputs, torch.Generator().manual_seed(seed), way * UNIT_FLOAT32) for seed, way in ways]
    return torch.stack([(scores - plain).abs() for scores in found]).amax(0) / times


def twin_noise(twin: Twin, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    """How far float32 takes the outputs of inputs (n, *input_shape) and their neighbours, in another order: (n).

    The graph may have put together what the model computes step by step.
    """
    if twin.rounded is None:
        return np.zeros(len(inputs))
    random, found = np.random.default_rng(0), [np.zeros(len(inputs))]
    for _ in range(SAMPLES):
        near = (inputs * (1 + UNIT_FLOAT32 * random.uniform(-2, 2, inputs.shape))).astype(np.float32)
        found.append(np.abs(twin.rounded(near) - twin.exact(near.astype(np.float64))).max(1))
    worst: NDArray[np.float64] = np.nanmax(found, axis=0)
    return worst


def _shaken(graph: Graph, inputs: Tensor, random: torch.Generator, size: float) -> Tensor:
    values = {0: inputs}
    for index, node in enumerate(graph.nodes):
        given = [values[i] for i in node.inputs]
        found = node.operator.apply(*given)
        if not node.operator.only_moves:
            sizes = [value.abs() for value in given]
            terms = found.abs()
            if isinstance(node.operator, Affine):
                terms = node.operator.itself([v.shape[1:] for v in given]).spread(*sizes) + graph.constants[index]
            elif len(given) > 1:  # a product, of which the parts may cancel
                terms = node.operator.apply(*sizes)
            sign = torch.randint(0, 2, found.shape, generator=random).double() * 2 - 1
            found = found + size * terms * sign
        values[index + 1] = found
        for dead in graph.last_uses[index]:
            del values[dead]
    return values[len(graph.nodes)]
