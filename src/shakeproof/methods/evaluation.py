"""Queries as lines of one network, and scores at given strengths."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget, OutOfTimeError
from shakeproof.exact import Lines, longest_window
from shakeproof.inputs import InputPath
from shakeproof.network import Network
from shakeproof.path import Path
from shakeproof.perturbation import Perturbation, as_whole
from shakeproof.query import Query
from shakeproof.rounding import Chords, work_out_norms
from shakeproof.settings import Settings


class Evaluation:
    """Queries about paths of one strength, with the same clipping: one line each."""

    def __init__(self, network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> None:
        self.network, self.queries, self.settings, self.budget = network, queries, settings, budget
        device = torch.device(settings.device)
        paths = [self.path(number) for number in range(len(queries))]
        self.graph = paths[0].within(network.graph).to(device)
        # the network that proofs are about
        self.meant = self.graph.in_float32() if settings.arithmetic == "float32" else self.graph
        self.lines = Lines(
            paths=Path.stacked([path.path for path in paths]).to(device),
            start=torch.zeros(len(paths), dtype=torch.float64, device=device),
            end=torch.tensor([path.end[0] for path in paths], dtype=torch.float64, device=device),
            path=torch.arange(len(paths), device=device),
        )
        self.labels = np.array([query.label for query in queries], dtype=np.int64)
        # Lines without rounding, as far as they were needed.
        self.known_exactly: dict[int, tuple[list[Fraction], list[Fraction]]] = {}

    def path(self, number: int) -> InputPath:
        path = self.queries[number].path
        assert path is not None
        return path

    @cached_property
    def chords(self) -> Chords | None:
        """What rounding may do; None if there is no time to work out the norms that say so, without which no proof
        will come.
        """
        try:
            work_out_norms(self.graph, self.budget)
        except OutOfTimeError:
            self.budget = self.budget.ended()
            return None
        return Chords(self.graph)

    def exactly(self, number: int) -> tuple[list[Fraction], list[Fraction]]:
        """A line's slope and base, in the network's order of inputs, before any rounding."""
        if number not in self.known_exactly:
            query, layout = self.queries[number], self.path(number).layout
            assert isinstance(query.perturbation, Perturbation)
            assert query.image is not None
            path = query.perturbation.exactly(*as_whole(query.image.pixels))
            order = layout.to_input(torch.arange(path.base.size).view(layout.image_shape)).flatten().numpy()
            slope, base = ([Fraction(n, path.unit) for n in w.ravel()[order]] for w in (path.slopes[0], path.base))
            self.known_exactly[number] = slope, base
        return self.known_exactly[number]

    def inputs(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> Tensor:
        """What the graph takes on given lines at given strengths, (n, *input_shape)."""
        device = self.lines.start.device
        line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
        return self.lines.at(line, torch.as_tensor(z, dtype=torch.float64, device=device))

    @cached_property
    def at_once(self) -> int:
        return longest_window(self.graph, self.budget)

    def scores(self, numbers: NDArray[Any], z: NDArray[Any], budget: Budget = UNLIMITED) -> NDArray[np.float64]:
        """Class scores on given lines at given strengths, evaluated directly; an error if there is no time for all."""
        found = [np.empty((0, self.graph.classes))]
        for some in budget.all_slices(len(z), self.at_once):
            rows = self.inputs(numbers[some], z[some])
            found.append(self.graph.run(rows).cpu().numpy())
        return np.concatenate(found)
