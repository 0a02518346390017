"""What the reference runtime itself says about a query's inputs: judge of every counterexample and every reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.model import SHARE, Comparison, Floats, Network, Stated, telling
from shakeproof.proof.evidence import Counterexample
from shakeproof.question import InputBox, InputKernels, InputPath, Obligation, Property, margins

# In how many places of a path, or of a box beside its corners and middle, the network is compared with the runtime.
ALONG_PATH, IN_BOX, MOST_CORNERS = 9, 8, 16
# So many numbers of inputs are handed to the runtime at once.
COMPARED_AT_ONCE = 2**22


def fails(network: Network, obligation: Obligation, at: Tensor) -> NDArray[np.bool_]:
    """Whether the runtime gives outputs without the property, at strengths (n, m) or inputs (n, *input_shape)."""
    if not len(at):
        return np.empty(0, bool)
    return obligation.property.fails(network.reference(obligation.inputs.runtime_inputs(at)))


def compared(network: Network, places: Sequence[tuple[Obligation, Tensor]], budget: Budget) -> list[Comparison]:
    """The network as it was read and its runtime, side by side, on the very arrays that the runtime is given.

    Many obligations at once, each with its own strengths (n, m) or inputs (n, *input_shape); as many as there is time
    for.
    """
    bounds = np.cumsum([0, *(len(at) for _, at in places)]).tolist()
    comparisons: list[list[Comparison]] = [[] for _ in places]
    for rows in budget.slices(bounds[-1], max(1, COMPARED_AT_ONCE // network.graph.input_shape.numel())):
        parts = [slice(max(rows.start - start, 0), rows.stop - start) for start in bounds[:-1]]
        numbers = [n for n, part in enumerate(parts) if part.start < min(part.stop, len(places[n][1]))]
        some_places = [(places[n][0], places[n][1][parts[n]]) for n in numbers]
        for number, comparison in zip(numbers, _compared_at_once(network, some_places), strict=True):
            comparisons[number].append(comparison)
    return [Comparison.joined(parts) if parts else Comparison.of_nothing() for parts in comparisons]


def _compared_at_once(network: Network, places: Sequence[tuple[Obligation, Tensor]]) -> list[Comparison]:
    inputs = np.concatenate([obligation.inputs.runtime_inputs(at) for obligation, at in places])
    outputs, scores = network.reference(inputs), network.scores(torch.from_numpy(inputs).double())
    ends = [0, *np.cumsum([len(at) for _, at in places]).tolist()]
    parts = [slice(start, end) for start, end in pairwise(ends)]
    claims = [(obligation.property, scores[part]) for (obligation, _), part in zip(places, parts, strict=True)]
    margin = np.concatenate([about.margin(_outputs(network, about, ours)) for about, ours in claims])

    def noise(within: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        noises = [_noise(network, *claim, within[part]) for claim, part in zip(claims, parts, strict=True)]
        return np.concatenate([taken for taken, _ in noises]), np.concatenate([known for _, known in noises])

    def tells(within: Floats) -> NDArray[np.bool_]:
        taken, knows_winner = noise(within)
        return telling(margin, taken) & knows_winner

    disagreement, within = network.beside(scores, outputs, inputs, tells)
    taken, knows_winner = noise(within)
    return [
        Comparison(
            margin=margin[part],
            fails=obligation.property.fails(outputs[part]),
            disagreement=disagreement[part],
            noise=taken[part],
            knows_winner=knows_winner[part],
            strength=at[:, 0].numpy()
            if isinstance(obligation.inputs, InputPath) and at.shape[1] == 1
            else np.full(len(at), np.nan),
        )
        for (obligation, at), part in zip(places, parts, strict=True)
    ]


def _outputs(network: Network, about: Property, scores: Tensor) -> Floats:
    """The outputs (n, classes) that a property is about: the scores themselves, if only their order matters."""
    outputs: Floats = (scores if about.compares_only else network.with_softmax(scores)).numpy()
    return outputs


def _noise(network: Network, about: Property, scores: Tensor, within: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """What it takes from a property's margins if scores (n, classes) are off by so much; and whether it takes only a
    small share of the lead of whoever wins.
    """
    ours, outputs = scores.numpy(), _outputs(network, about, scores)
    winner = ours.argmax(1)
    away = np.where(np.arange(ours.shape[1]) == winner[:, None], -within, within)
    lead = margins(ours, winner)
    with np.errstate(invalid="ignore"):  # margins that are infinite, or no numbers
        knows_winner = lead - margins(ours + away, winner) <= SHARE * lead
        if not about.compares_only:
            within = network.in_outputs(within, scores)
        return about.margin(outputs) - about.margin(outputs, within), knows_winner


def places(obligation: Obligation, along_path: int = ALONG_PATH) -> Tensor:
    """Where to compare: spread over the strengths, from 0 to the last, or over the box."""
    inputs = obligation.inputs
    if isinstance(inputs, InputKernels):
        return torch.cat([inputs.corners, inputs.corners.mean(0, keepdim=True)])
    if not isinstance(inputs, InputPath):
        return torch.cat([torch.stack(inputs.float32), inputs.samples(IN_BOX, seed=0)])
    end = torch.tensor(inputs.end, dtype=torch.float64)
    along = torch.linspace(0, 1, along_path, dtype=torch.float64).unsqueeze(1) * end
    if len(end) == 1:
        return along
    corners = torch.cartesian_prod(*torch.stack([torch.zeros_like(end), end], 1))
    return torch.cat([along, corners[:: max(1, len(corners) // MOST_CORNERS)]])


def replayed_at(network: Network, meant: Stated, obligation: Obligation, at: Tensor) -> Counterexample:
    """What runtime and graph say at a strength (m) or an input (*input_shape) that may be a counterexample.

    `meant` is the graph, on inputs after clipping, and the property of its scores that is the obligation's.
    """
    inputs, about = obligation.inputs, obligation.property
    array = inputs.runtime_inputs(at.unsqueeze(0))
    outputs = network.reference(array)
    exact, strengths, shares = torch.from_numpy(array).double(), None, None
    if not isinstance(inputs, InputBox):
        if isinstance(inputs, InputPath):
            exact = inputs.at(at.unsqueeze(0))
        else:
            exact = inputs.path.clipped(inputs.path.at(at.unsqueeze(0)))
        strengths, shares = (tuple(at.tolist()), None) if isinstance(inputs, InputPath) else (None, tuple(at.tolist()))
    scores = meant.graph.run(exact).numpy()
    replayed = bool(about.fails(outputs)[0])
    rivals = np.array(outputs[0] if replayed else scores[0], dtype=np.float64)
    if about.label is not None:
        rivals[about.label] = -np.inf
    margin = float(meant.about.margin(scores)[0])
    return Counterexample(
        strengths=strengths,
        input=array[0],
        outputs=outputs[0],
        winner=int(rivals.argmax()),
        margin=margin if np.isfinite(margin) else 0.0,  # nothing to be met: any input will do
        replayed=replayed,
        shares=shares,
    )
