"""The method for boxes of inputs and any property of the outputs: an attack, then bounds and splitting.

Few inputs that vary are split themselves; of many, the neurons are. SAFE needs a complete proof about every box, UNSAFE
an input that the reference runtime confirms; everything else is UNDECIDED, with a reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.attack import meets
from shakeproof.bounds import Path
from shakeproof.errors import InputError
from shakeproof.network import Graph, Network
from shakeproof.network.claims import with_claims, without_max_pools
from shakeproof.operators import Softmax
from shakeproof.result import BoxQuery, BoxResult, Reason, Status, Witness
from shakeproof.search import BoxOutcome, BoxProblem, Limits, Problem, covers, split_activations, split_inputs
from shakeproof.search.descent import float32_box
from shakeproof.settings import GIB, Settings
from shakeproof.vnnlib import Case

# Up to so many inputs that vary, splitting them is quicker than splitting neurons.
FEW_INPUTS = 8


def answer_box(network: Network, query: BoxQuery, settings: Settings) -> BoxResult:
    """Answer one query."""
    return _Answer(network, query, settings).result()


@dataclass(frozen=True, eq=False)
class _Box:
    """Cases that share a box (*input_shape)."""

    low: Tensor
    high: Tensor
    cases: Sequence[Case]


class _Answer:
    """One query on its way to a result."""

    def __init__(self, network: Network, query: BoxQuery, settings: Settings) -> None:
        self.network, self.query, self.settings = network, query, settings
        self.device = torch.device(settings.device)
        self.graph = _network_of(network, query).to(self.device)
        self.started = time.perf_counter()
        self.deadline = math.inf if settings.timeout is None else self.started + settings.timeout

    def result(self) -> BoxResult:
        boxes = self.boxes()
        middle = (boxes[0].low + boxes[0].high) / 2 if self.query.perturbation is None else self.image()
        scores = self.graph.run(middle.unsqueeze(0))[0]
        if not bool(scores.isfinite().all()):
            raise InputError(f"{self.network.name}: the scores of {self.query.name} are not finite; check its weights")
        self.predicted = int(scores.argmax())
        if self.query.perturbation is not None and self.is_lost(scores):
            return self.made(Status.MISCLASSIFIED, None, None, None, 0)
        outcomes: list[BoxOutcome] = []
        for number, box in enumerate(boxes):
            outcome = self.searched(box, number, len(boxes))
            outcomes.append(outcome)
            if outcome.witness is not None or outcome.timed_out:
                break
        return self.judged(boxes, outcomes)

    def boxes(self) -> list[_Box]:
        """The query's cases by their boxes, in the network's input shape."""
        by_box: dict[tuple[bytes, bytes], list[Case]] = {}
        for case in self.query.specification.cases:
            by_box.setdefault((case.low.tobytes(), case.high.tobytes()), []).append(case)
        return [_Box(self.shaped(cases[0].low), self.shaped(cases[0].high), cases) for cases in by_box.values()]

    def shaped(self, flat: NDArray[np.float64]) -> Tensor:
        return torch.tensor(flat, device=self.device).view(self.graph.input_shape)

    def image(self) -> Tensor:
        assert self.query.image is not None
        return self.network.picture().to_input(self.query.image.pixels).to(self.device)

    # -- one box ------------------------------------------------------------------------------------------------------

    def searched(self, box: _Box, number: int, boxes: int) -> BoxOutcome:
        limits = Limits(
            deadline=self.deadline,
            memory=self.settings.memory * GIB,
            any_failure=True,
            progress=lambda share: self.settings.progress((number + share) / boxes),
        )
        if any(not len(case.constants) for case in box.cases):  # no row to meet: any input will do
            middle = float32_box(box.low, box.high).low
            return BoxOutcome(False, -math.inf, middle, None, False, 0)
        graph = with_claims(self.graph, *self.claims(box.cases))
        varying = (box.high > box.low).flatten()
        if int(varying.sum()) <= FEW_INPUTS:
            return self.by_inputs(graph, box, varying, limits)
        problem = BoxProblem(without_max_pools(graph), box.low, box.high, lambda x: meets(self.network, x, box.cases))
        return split_activations(problem, limits)

    def claims(self, cases: Sequence[Case]) -> tuple[Tensor, Tensor]:
        """Coefficients (cases, rows, classes) and constants (cases, rows): a case is not met if some row is positive.

        Cases with fewer rows than others repeat their first one.
        """
        rows = max(len(case.constants) for case in cases)
        chosen = [np.resize(np.arange(len(case.constants)), rows) for case in cases]
        coefficients = np.stack([-case.coefficients[which] for case, which in zip(cases, chosen, strict=True)])
        constants = np.stack([-case.constants[which] for case, which in zip(cases, chosen, strict=True)])
        return torch.from_numpy(coefficients).to(self.device), torch.from_numpy(constants).to(self.device)

    def by_inputs(self, graph: Graph, box: _Box, varying: Tensor, limits: Limits) -> BoxOutcome:
        """Split the few inputs that vary: they are the parameters of a path."""
        place = varying.nonzero().squeeze(1)
        if not len(place):
            place = place.new_zeros(1)  # a box that is one point is a path of no length
        flat = box.low.flatten()
        slopes = flat.new_zeros(len(place), len(flat)).scatter_(1, place.unsqueeze(1), 1.0)
        path = Path(slopes.view(-1, *box.low.shape), flat.scatter(0, place, 0.0).view(box.low.shape))
        inside = float32_box(box.low, box.high)

        def given(z: Tensor) -> Tensor:
            return torch.clamp(path.at(z).float(), *inside)

        low, high = flat[place], box.high.flatten()[place]
        claims = torch.eye(graph.classes, dtype=low.dtype, device=self.device)
        problem = Problem(graph, path, claims, low, high, lambda z: meets(self.network, given(z), box.cases))
        found = split_inputs(problem, limits)
        bound = found.safe.bound
        corners = (corner.cpu().numpy() for corner in (low, high, found.safe.low, found.safe.high))
        closed = not len(found.open) and not len(found.violated)
        proved = closed and bool((bound > 0).all() & bound.isfinite().all()) and covers(*corners)
        failing = found.points[(found.scores < 0).any(1)]
        return BoxOutcome(
            proved and not len(failing),
            float(bound.min()) if proved else math.inf,
            given(found.replayed)[0] if len(found.replayed) else None,
            given(failing)[0] if len(failing) else None,
            found.timed_out,
            found.cells,
        )

    # -- the verdict --------------------------------------------------------------------------------------------------

    def judged(self, boxes: Sequence[_Box], outcomes: Sequence[BoxOutcome]) -> BoxResult:
        """The verdict that the evidence supports, and what is missing."""
        parts = sum(outcome.parts for outcome in outcomes)
        box, last = boxes[len(outcomes) - 1], outcomes[-1]
        if last.witness is not None:
            witness = self.witness(last.witness, box.cases)
            if witness.replayed:
                return self.made(Status.UNSAFE, None, witness, witness.margin, parts)
        unconfirmed = [(o.unconfirmed, b) for o, b in zip(outcomes, boxes, strict=False) if o.unconfirmed is not None]
        if unconfirmed:
            x, box = unconfirmed[0]
            return self.made(Status.UNDECIDED, Reason.NOT_REPLAYED, self.witness(x, box.cases), None, parts)
        if len(outcomes) == len(boxes) and all(outcome.proved for outcome in outcomes):
            least = min(outcome.bound for outcome in outcomes)
            if all(map(self.runtime_agrees, boxes)):
                return self.made(Status.SAFE, None, None, least, parts)
            return self.made(Status.UNDECIDED, Reason.RUNTIME_DISAGREES, None, None, parts)
        late = any(outcome.timed_out for outcome in outcomes)
        return self.made(Status.UNDECIDED, Reason.TIMEOUT if late else Reason.BOUNDS, None, None, parts)

    def made(
        self, status: Status, reason: Reason | None, witness: Witness | None, margin: float | None, parts: int
    ) -> BoxResult:
        self.settings.progress(1.0)
        seconds = time.perf_counter() - self.started
        return BoxResult(self.network.name, self.query, self.predicted, status, witness, margin, parts, reason, seconds)

    def witness(self, x: Tensor, cases: Sequence[Case]) -> Witness:
        """The input with what runtime and graph say about it."""
        given = x.unsqueeze(0).cpu().float()
        outputs = self.network.reference(given.numpy())[0]
        scores = self.graph.run(given.double().to(self.device))[0].cpu().numpy()
        nearest = max(float((case.coefficients @ scores + case.constants).min(initial=np.inf)) for case in cases)
        replayed = bool(meets(self.network, given, cases)[0])
        margin = -nearest if math.isfinite(nearest) else 0.0
        layout = self.network.layout
        picture = None if layout is None else layout.from_input(given[0])
        return Witness(given[0].numpy(), outputs, margin, replayed, self.query.strength, picture)

    def is_lost(self, scores: Tensor) -> bool:
        """Whether the image itself is a counterexample, its scores given."""
        return any(bool(case.met_by(scores.unsqueeze(0).cpu().numpy())[0]) for case in self.query.specification.cases)

    def runtime_agrees(self, box: _Box) -> bool:
        """Whether the runtime finds no counterexample in a box's middle and two of its corners."""
        low, high = float32_box(box.low, box.high)
        places = torch.stack([low, high, torch.clamp((low + high) / 2, low, high)])
        outputs: NDArray[np.float32] = self.network.reference(places.cpu().numpy())
        return bool(np.isfinite(outputs).all()) and not meets(self.network, places, box.cases).any()


def _network_of(network: Network, query: BoxQuery) -> Graph:
    """The graph that the property is about: with the final softmax, unless only the order of outputs matters."""
    rows = np.concatenate([case.coefficients for case in query.specification.cases])
    constants = np.concatenate([case.constants for case in query.specification.cases])
    compares = (np.count_nonzero(rows, axis=1) == 2) & (rows.sum(1) == 0) & (constants == 0)
    if network.dropped is None or compares.all():
        return network.graph
    if network.dropped != "Softmax":
        raise InputError(f"{query.name}: is about outputs of a {network.dropped}, which can only be compared here")
    return network.graph.then(Softmax(0))
