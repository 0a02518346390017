"""What the reference runtime itself says about a query's inputs: judge of every counterexample and every reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.graph import Graph
from shakeproof.model import SHARE, Comparison, Floats, Network, telling
from shakeproof.proof.evidence import Counterexample
from shakeproof.question import InputPath, Obligation, Property, margins

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
    owner = np.repeat(np.arange(len(places)), [len(at) for _, at in places])
    number = np.concatenate([np.arange(len(at)) for _, at in places])
    found: list[list[Comparison]] = [[] for _ in places]
    for rows in budget.slices(len(owner), max(1, COMPARED_AT_ONCE // network.graph.input_shape.numel())):
        owners = np.unique(owner[rows]).tolist()
        numbers = [torch.from_numpy(number[rows][owner[rows] == own]) for own in owners]
        asked = [(places[own][0], places[own][1][some]) for own, some in zip(owners, numbers, strict=True)]
        for own, comparison in zip(owners, _compared_at_once(network, asked), strict=True):
            found[own].append(comparison)
    return [Comparison.joined(parts) if parts else Comparison.of_nothing() for parts in found]


def _compared_at_once(network: Network, places: Sequence[tuple[Obligation, Tensor]]) -> list[Comparison]:
    inputs = np.concatenate([obligation.inputs.runtime_inputs(at) for obligation, at in places])
    theirs, scores = network.reference(inputs), network.scores(torch.from_numpy(inputs).double())
    ends = [0, *np.cumsum([len(at) for _, at in places]).tolist()]
    parts = [slice(start, end) for start, end in pairwise(ends)]
    claims = [(own.property, scores[part]) for (own, _), part in zip(places, parts, strict=True)]
    margin = np.concatenate([about.margin(_outputs(network, about, own)) for about, own in claims])

    def noise(within: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        found = [_noise(network, *claim, within[part]) for claim, part in zip(claims, parts, strict=True)]
        return np.concatenate([own for own, _ in found]), np.concatenate([known for _, known in found])

    def tells(within: Floats) -> NDArray[np.bool_]:
        taken, knows_winner = noise(within)
        return telling(margin, taken) & knows_winner

    disagreement, within = network.beside(scores, theirs, inputs, tells)
    taken, knows_winner = noise(within)
    return [
        Comparison(
            margin=margin[part],
            fails=own.property.fails(theirs[part]),
            disagreement=disagreement[part],
            noise=taken[part],
            knows_winner=knows_winner[part],
            strength=at[:, 0].numpy()
            if isinstance(own.inputs, InputPath) and at.shape[1] == 1
            else np.full(len(at), np.nan),
        )
        for (own, at), part in zip(places, parts, strict=True)
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
    if not isinstance(inputs, InputPath):
        return torch.cat([torch.stack(inputs.float32), inputs.samples(IN_BOX, seed=0)])
    end = torch.tensor(inputs.end, dtype=torch.float64)
    along = torch.linspace(0, 1, along_path, dtype=torch.float64).unsqueeze(1) * end
    if len(end) == 1:
        return along
    corners = torch.cartesian_prod(*torch.stack([torch.zeros_like(end), end], 1))
    return torch.cat([along, corners[:: max(1, len(corners) // MOST_CORNERS)]])


def replayed_at(network: Network, graph: Graph, obligation: Obligation, at: Tensor) -> Counterexample:
    """What runtime and graph say at a strength (m) or an input (*input_shape) that may be a counterexample.

    `graph` is the network that the property is about, on inputs after clipping.
    """
    inputs, about = obligation.inputs, obligation.property
    given = inputs.runtime_inputs(at.unsqueeze(0))
    outputs = network.reference(given)
    exact, strengths = torch.from_numpy(given).double(), None
    if isinstance(inputs, InputPath):
        exact, strengths = inputs.path.clipped(inputs.path.at(at.unsqueeze(0))), tuple(at.tolist())
    scores = graph.run(exact).numpy()
    replayed = bool(about.fails(outputs)[0])
    rivals = np.array(outputs[0] if replayed else scores[0], dtype=np.float64)
    if about.label is not None:
        rivals[about.label] = -np.inf
    margin = float(about.margin(scores)[0])
    return Counterexample(
        strengths=strengths,
        input=given[0],
        outputs=outputs[0],
        winner=int(rivals.argmax()),
        margin=margin if np.isfinite(margin) else 0.0,  # nothing to be met: any input will do
        replayed=replayed,
    )
