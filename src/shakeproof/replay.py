"""What the reference runtime itself says about a query's inputs: judge of every counterexample and every reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.evidence import Comparison, Witness
from shakeproof.inputs import InputPath
from shakeproof.network import Graph, Network
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
    evaluate = network.scores if evaluate is None else evaluate
    owner = np.repeat(np.arange(len(places)), [len(at) for _, at in places])
    number = np.concatenate([np.arange(len(at)) for _, at in places])
    theirs, ours, disagreement = [], [], []
    for rows in budget.slices(len(owner), max(1, COMPARED_AT_ONCE // network.graph.input_shape.numel())):
        given = [
            places[own][0].inputs.given(places[own][1][torch.from_numpy(number[rows][owner[rows] == own])])
            for own in dict.fromkeys(owner[rows].tolist())
        ]
        inputs = np.concatenate(given)
        theirs.append(network.reference(inputs))
        scores = evaluate(torch.from_numpy(inputs).double())
        ours.append(scores)
        disagreement.append(network.disagreement(scores, theirs[-1], inputs))
    if not theirs:
        return [Comparison(np.empty(0), np.empty(0, bool), np.empty(0))] * len(places)
    outputs, scores, shares = np.concatenate(theirs), torch.cat(ours), np.concatenate(disagreement)
    found = []
    for own, (obligation, _) in enumerate(places):
        about, mine = obligation.property, owner[: len(outputs)] == own
        meant = scores if about.compares_only else network.with_softmax(scores)
        found.append(Comparison(about.margin(meant.numpy()[mine]), about.fails(outputs[mine]), shares[mine]))
    return found


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
