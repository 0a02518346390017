"""The method for all that cannot be enumerated: bounds and input splitting, and a verdict from what they settled.

SAFE needs boxes that cover the whole domain, each with a finite bound above rounding; UNSAFE needs a witness that the
reference runtime reproduces; everything else is UNDECIDED, with a reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.attack import loses, wins
from shakeproof.bounds import Path
from shakeproof.exact import Curve
from shakeproof.network import Graph, Network
from shakeproof.result import Counterexample, Query, Reason, Regions, Result, Status
from shakeproof.search import Limits, Outcome, Problem, covers, split_inputs
from shakeproof.settings import GIB, Settings

# A map of the square has so many boxes to a side; there is no picture of more dimensions.
MAP_SIDE = 128


def answer_by_bounds(network: Network, graph: Graph, queries: Sequence[Query], settings: Settings) -> list[Result]:
    """Answer queries one after another; `graph` is the network with what comes before it."""
    results: list[Result] = []

    def progress(fraction: float) -> None:
        settings.progress((len(results) + fraction) / len(queries))

    for query in queries:
        result = _Answer(network, graph, query, settings).result(progress)
        results.append(result)
    return results


class _Answer:
    """One query on its way to a result."""

    def __init__(self, network: Network, graph: Graph, query: Query, settings: Settings) -> None:
        self.network, self.graph, self.query, self.settings = network, graph, query, settings
        self.started = time.perf_counter()
        layout = network.picture()
        image = query.perturbation.apply(query.image.pixels)
        device = torch.device(settings.device)
        self.path = Path(layout.to_input(image.slopes).to(device), layout.to_input(image.base).to(device))
        self.high = torch.tensor(query.strengths, dtype=torch.float64, device=device)
        self.low = torch.zeros_like(self.high)
        first = self.graph.run(self.path.at(self.low.unsqueeze(0)))[0]
        self.predicted = int(first.argmax())
        self.label = self.predicted if query.label is None else query.label
        self.claims = label_leads(self.label, graph.classes, device)
        self.wins_at_zero = bool((self.claims @ first).min() > 0)

    def result(self, progress: Callable[[float], None]) -> Result:
        outcome = self.searched(progress)
        witness = self.witness(outcome)
        critical = self.critical(outcome)
        status, reason = self.judged(outcome, witness)
        proved = outcome.safe.bound.min().item() if status is Status.SAFE else None
        progress(1.0)
        return Result(
            model=self.network.name,
            query=self.query,
            label=self.label,
            predicted=self.predicted,
            status=status,
            critical_strength=critical,
            profile=(),
            counterexample=witness,
            min_margin=proved if witness is None else witness.margin,
            pieces=outcome.cells,
            reason=reason,
            seconds=time.perf_counter() - self.started,
            curve=_curve(outcome, self.graph.classes),
            method="bounds",
            regions=_regions(outcome),
        )

    def searched(self, progress: Callable[[float], None]) -> Outcome:
        settings = self.settings
        maps = self.query.perturbation.parameters == 2 and not settings.stop_early
        limits = Limits(
            deadline=math.inf if settings.timeout is None else self.started + settings.timeout,
            memory=settings.memory * GIB,
            tolerance=settings.tolerance,
            resolution=1 / MAP_SIDE if maps else None,
            progress=progress,
        )
        return split_inputs(Problem(self.graph, self.path, self.claims, self.low, self.high, self.replayed), limits)

    def replayed(self, z: Tensor) -> NDArray[np.bool_]:
        """Whether the label loses in the reference runtime at z (n, m)."""
        return loses(self.network, self.pictured(z), np.full(len(z), self.label))

    def pictured(self, z: Tensor) -> Tensor:
        """What the deployed network is given at z (n, m): clipped if the perturbation clips."""
        inputs, clip = self.path.at(z), self.query.perturbation.clip
        return inputs if clip is None else inputs.clamp(*clip)

    def witness(self, outcome: Outcome) -> Counterexample | None:
        """Where the label was seen to lose most clearly; in the reference runtime, if it ever did there."""
        points = outcome.replayed
        if not len(points):
            margin = (outcome.scores @ self.claims.t()).amin(1)
            points = outcome.points[margin < 0]
        if not len(points):
            return None
        scores = self.graph.run(self.path.at(points))
        margin = (scores @ self.claims.t()).amin(1)
        worst = int(margin.argmin())
        z = tuple(points[worst].tolist())
        rivals = scores[worst].clone()
        rivals[self.label] = -torch.inf
        return Counterexample(
            z[0] if len(z) == 1 else z, int(rivals.argmax()), float(margin[worst]), replayed=len(outcome.replayed) > 0
        )

    def critical(self, outcome: Outcome) -> tuple[float, float] | None:
        """Along one axis: proved safe up to the first, lost at the second."""
        if len(self.high) > 1:
            return None
        if not self.wins_at_zero:
            return 0.0, 0.0
        if not len(outcome.replayed):
            return None
        lost = float(outcome.replayed.min())
        unsafe = torch.cat([outcome.open.low, outcome.violated.low, outcome.replayed])
        safe = float(unsafe.min())
        return (safe if self.covered(outcome, torch.full_like(self.high, safe)) else 0.0), lost

    def covered(self, outcome: Outcome, end: Tensor) -> bool:
        """Whether the boxes proved safe cover everything from 0 to `end`."""
        corners = (self.low, end, outcome.safe.low, outcome.safe.high)
        return covers(*(corner.cpu().numpy() for corner in corners))

    def judged(self, outcome: Outcome, witness: Counterexample | None) -> tuple[Status, Reason | None]:
        """The verdict that the evidence supports, and what is missing."""
        late = Reason.TIMEOUT if outcome.timed_out else None
        if not self.wins_at_zero:
            return Status.MISCLASSIFIED, None
        if witness is not None and witness.replayed:
            return Status.UNSAFE, late
        if witness is not None:
            return Status.UNDECIDED, Reason.NOT_REPLAYED
        bound = outcome.safe.bound
        proved = not len(outcome.open) and bool((bound > 0).all() & bound.isfinite().all())
        if proved and self.covered(outcome, self.high):
            agrees = self.runtime_agrees(outcome)
            return (Status.SAFE, None) if agrees else (Status.UNDECIDED, Reason.RUNTIME_DISAGREES)
        return Status.UNDECIDED, late or Reason.ROUNDING

    def runtime_agrees(self, outcome: Outcome) -> bool:
        """Whether the label wins in the reference runtime too: in the box with the lowest bound, and at both ends."""
        worst = int(outcome.safe.bound.argmin())
        centre = (outcome.safe.low[worst] + outcome.safe.high[worst]) / 2
        places = torch.stack([centre, self.low, self.high])
        return bool(wins(self.network, self.pictured(places), np.full(len(places), self.label)).all())


def label_leads(label: int, classes: int, device: torch.device) -> Tensor:
    """The claims that the label's score exceeds each other's: (classes - 1, classes)."""
    unit = torch.eye(classes, dtype=torch.float64, device=device)
    return torch.cat([unit[label] - unit[:label], unit[label] - unit[label + 1 :]])


def _curve(outcome: Outcome, classes: int) -> Curve:
    """The evaluations along one axis, in order; nothing is claimed of what lies between them."""
    if outcome.points.shape[1] > 1:
        return Curve(np.empty(0), np.empty((0, classes)))
    z, first = np.unique(outcome.points[:, 0].cpu().numpy(), return_index=True)
    return Curve(z, outcome.scores.cpu().numpy()[first])


def _regions(outcome: Outcome) -> Regions:
    kinds = (outcome.safe, outcome.violated, outcome.open)
    return Regions(*(torch.stack([leaves.low, leaves.high], 1).cpu().numpy() for leaves in kinds))
