"""Queries that share a sweep, as lines of one network: what is asked of all of them, and scores along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget, OutOfTimeError
from shakeproof.exact import Lines, RationalNetwork, longest_window
from shakeproof.model import Graph, Network
from shakeproof.question import InputPath, Obligation, Path, Perturbation, Query, as_whole
from shakeproof.rounding import RunningError, work_out_norms
from shakeproof.settings import Settings

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SweepContext:
    """Queries about paths of one strength, with the same clipping: one line each, and a label for each.

    `graph` is the network behind the clipping, `meant` what proofs are about: in float32 arithmetic, another one.
    """

    network: Network
    queries: Sequence[Query]
    settings: Settings
    budget: Budget
    graph: Graph
    meant: Graph
    lines: Lines
    labels: Numbers

    @staticmethod
    def of(network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> SweepContext:
        device = torch.device(settings.device)
        paths = [path_of(query) for query in queries]
        graph = paths[0].within(network.graph).to(device)
        return SweepContext(
            network=network,
            queries=queries,
            settings=settings,
            budget=budget,
            graph=graph,
            meant=graph.in_float32() if settings.arithmetic == "float32" else graph,
            lines=Lines(
                paths=Path.stacked([path.path for path in paths]).to(device),
                start=torch.zeros(len(paths), dtype=torch.float64, device=device),
                end=torch.tensor([path.end[0] for path in paths], dtype=torch.float64, device=device),
                path=torch.arange(len(paths), device=device),
            ),
            labels=np.array([query.label for query in queries], dtype=np.int64),
        )

    def obligation(self, number: int) -> Obligation:
        return self.queries[number].obligations[0]

    def end(self, number: int) -> float:
        return path_of(self.queries[number]).end[0]

    def inputs(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> Tensor:
        """What the graph takes on given lines at given strengths, (n, *input_shape)."""
        device = self.lines.start.device
        line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
        return self.lines.at(line, torch.as_tensor(z, dtype=torch.float64, device=device))

    def scores(self, numbers: NDArray[Any], z: NDArray[Any], budget: Budget = UNLIMITED) -> Floats:
        """Class scores on given lines at given strengths, evaluated directly; an error if there is no time for all."""
        parts = budget.all_slices(len(z), longest_window(self.graph, self.budget))
        found = [self.graph.run(self.inputs(numbers[some], z[some])).cpu().numpy() for some in parts]
        return np.concatenate([np.empty((0, self.graph.classes)), *found])

    def with_running_error(self) -> tuple[SweepContext, RunningError | None]:
        """What rounding may do along a sweep. None if there is no time to work out the norms that say so: without them
        no proof will come, and no time is left.
        """
        try:
            work_out_norms(self.graph, self.budget)
        except OutOfTimeError:
            return replace(self, budget=self.budget.ended()), None
        return self, RunningError(self.graph)

    @cached_property
    def rational(self) -> RationalNetwork | None:
        """The network without rounding, where that is possible and of use."""
        rational = RationalNetwork(self.graph)
        return rational if self.settings.arithmetic == "real" and rational.is_possible else None


def path_of(query: Query) -> InputPath:
    assert query.path is not None
    return query.path


@lru_cache(maxsize=2)
def exact_line(query: Query) -> tuple[list[Fraction], list[Fraction]]:
    """A line's slope and base, in the network's order of inputs, before any rounding."""
    assert isinstance(query.perturbation, Perturbation)
    assert query.image is not None
    layout, path = path_of(query).layout, query.perturbation.exactly(*as_whole(query.image.pixels))
    order = layout.to_input(torch.arange(path.base.size).view(layout.image_shape)).flatten().numpy()
    slope, base = ([Fraction(n, path.unit) for n in w.ravel()[order]] for w in (path.slopes[0], path.base))
    return slope, base
