"""What the reference runtime itself says about a query's inputs: judge of every counterexample and every reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.comparison import Comparison, Floats, telling
from shakeproof.evidence import Witness
from shakeproof.inputs import InputPath
from shakeproof.network import SHARE, Graph, Network
from shakeproof.property import Property, margins
from shakeproof.query import Obligation
from shakeproof.search import starts

# In how many places of a path, or of a box beside its corners and middle, the network is compared with the runtime.
ALONG_PATH, IN_BOX, MOST_CORNERS = 9, 8, 16
# So many numbers of inputs are handed to the runtime at once.
COMPARED_AT_ONCE = 2**22


def fails(network: Network, obligation: Obligation, at: Tensor) -> NDArray[np.bool_]:
    """Whether the runtime gives outputs without the property, at strengths (n, m) or inputs (n, *input_shape)."""
    if not len(at):
        return np.empty(0, bool)
    return obligation.property.fails(network.reference(obligation.inputs.given(at)))


def compared(
    network: Network,
    places: Sequence[tuple[Obligation, Tensor]],
    budget: Budget,
    evaluate: Callable[[Tensor], Tensor] | None = None,
) -> list[Comparison]:
    """The network as it was read and its runtime, side by side, on the very arrays that the runtime is given.

    Many obligations at once, each with its own strengths (n, m) or inputs (n, *input_shape); as many as there is time
    for. The network's scores are evaluated as `network.scores` does it, if nothing else is said.
    """
    owner = np.repeat(np.arange(len(places)), [len(at) for _, at in places])
    number = np.concatenate([np.arange(len(at)) for _, at in places])
    found: list[list[Comparison]] = [[] for _ in places]
    for rows in budget.slices(len(owner), max(1, COMPARED_AT_ONCE // network.graph.input_shape.numel())):
        numbers = {own: torch.from_numpy(number[rows][owner[rows] == own]) for own in np.unique(owner[rows]).tolist()}
        asked = [(places[own][0], places[own][1][some]) for own, some in numbers.items()]
        for own, comparison in zip(numbers, _beside(network, asked, evaluate or network.scores), strict=True):
            found[own].append(comparison)
    return [Comparison.joined(parts) if parts else Comparison.of_nothing() for parts in found]


def _beside(
    network: Network, places: Sequence[tuple[Obligation, Tensor]], evaluate: Callable[[Tensor], Tensor]
) -> list[Comparison]:
    """The same, all at once."""
    inputs = np.concatenate([obligation.inputs.given(at) for obligation, at in places])
    ends = np.cumsum([len(at) for _, at in places])[:-1]
    theirs, scores = network.reference(inputs), evaluate(torch.from_numpy(inputs).double())
    abouts = [obligation.property for obligation, _ in places]
    parts = torch.tensor_split(scores, torch.from_numpy(ends))
    claims = [_Claim(network, about, own) for about, own in zip(abouts, parts, strict=True)]
    margin = np.concatenate([claim.margin for claim in claims])

    def noise(within: Floats) -> Floats:
        split = np.split(within, ends)
        return np.concatenate([claim.noise(own) for claim, own in zip(claims, split, strict=True)])

    def knows_winner(within: Floats) -> NDArray[np.bool_]:
        split = np.split(within, ends)
        return np.concatenate([claim.knows_winner(own) for claim, own in zip(claims, split, strict=True)])

    disagreement, within = network.beside(
        scores, theirs, inputs, lambda within: telling(margin, noise(within)) & knows_winner(within)
    )
    fails = [about.fails(own) for about, own in zip(abouts, np.split(theirs, ends), strict=True)]
    columns = margin, disagreement, noise(within), knows_winner(within)
    leads, shares, noises, known = (np.split(column, ends) for column in columns)
    strengths = [
        at[:, 0].numpy() if isinstance(own.inputs, InputPath) and at.shape[1] == 1 else np.full(len(at), np.nan)
        for own, at in places
    ]
    return [Comparison(*own) for own in zip(leads, fails, shares, noises, known, strengths, strict=True)]


class _Claim:
    """What a property says of a network's scores (n, classes): its margins, and what noise may take from them."""

    def __init__(self, network: Network, about: Property, scores: Tensor) -> None:
        self.network, self.about, self.scores = network, about, scores
        self.meant = (scores if about.compares_only else network.with_softmax(scores)).numpy()
        self.margin = about.margin(self.meant)

    def noise(self, within: Floats) -> Floats:
        if not self.about.compares_only:
            within = self.network.in_outputs(within, self.scores)
        with np.errstate(invalid="ignore"):  # margins that are infinite, or no numbers
            return self.margin - self.about.margin(self.meant, within)

    def knows_winner(self, within: Floats) -> NDArray[np.bool_]:
        """Whether noise takes only a small share of the lead of the class that wins."""
        scores = self.scores.numpy()
        winner = scores.argmax(1)
        off = np.where(np.arange(scores.shape[1]) == winner[:, None], -within, within)
        with np.errstate(invalid="ignore"):
            lead = margins(scores, winner)
            return np.asarray(lead - margins(scores + off, winner) <= SHARE * lead)


def places(obligation: Obligation, along_path: int = ALONG_PATH) -> Tensor:
    """Where to compare: spread over the strengths, from 0 to the last, or over the box."""
    inputs = obligation.inputs
    if not isinstance(inputs, InputPath):
        box = inputs.float32
        return torch.cat([torch.stack([box.low, box.high]), starts(box, IN_BOX, seed=0)])
    end = torch.tensor(inputs.end, dtype=torch.float64)
    along = torch.linspace(0, 1, along_path, dtype=torch.float64).unsqueeze(1) * end
    if len(end) == 1:
        return along
    corners = torch.cartesian_prod(*torch.stack([torch.zeros_like(end), end], 1))
    return torch.cat([along, corners[:: max(1, len(corners) // MOST_CORNERS)]])


def witnessed(network: Network, graph: Graph, obligation: Obligation, at: Tensor) -> Witness:
    """What runtime and graph say at a strength (m) or an input (*input_shape) that may be a counterexample.

    `graph` is the network that the property is about, on inputs after clipping.
    """
    inputs, about = obligation.inputs, obligation.property
    given = inputs.given(at.unsqueeze(0))
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
    return Witness(
        strengths=strengths,
        input=given[0],
        outputs=outputs[0],
        winner=int(rivals.argmax()),
        margin=margin if np.isfinite(margin) else 0.0,  # nothing to be met: any input will do
        replayed=replayed,
    )
