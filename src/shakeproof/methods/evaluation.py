"""Queries as lines of one network: scores at given strengths, and the arithmetic that is precise enough for them."""

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
from shakeproof.exact import Inputs, Lines, Normal, Precise, longest_window
from shakeproof.model import Network
from shakeproof.operators import Scale
from shakeproof.question import InputPath, Path, Perturbation, Query, as_whole, margins
from shakeproof.rounding import Chords, norm, work_out_norms
from shakeproof.settings import Settings

# Errors that grow by less leave something proved in float64. Digits are added until what they leave out is such
# a share of the label's lead.
GREAT_EFFECT, SMALL_SHARE = 1e10, 2.0**-6


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
        """What rounding may do, if that is asked: in float64, or with more digits where these alone prove anything."""
        if self.settings.rounding == "nominal":
            return None
        try:
            work_out_norms(self.graph, self.budget)
        except OutOfTimeError:  # without norms, no proof will come
            self.budget = self.budget.ended()
            return None
        chords = Chords(self.graph)
        try:
            return self.precise(chords) or chords
        except OutOfTimeError:
            return chords

    def precise(self, chords: Chords) -> Precise | None:
        """Arithmetic with more digits, if the label's lead at the start is more than it leaves out, and less than what
        float64 does.
        """
        known = [isinstance(query.perturbation, Perturbation) and query.image is not None for query in self.queries]
        is_usual = self.settings.arithmetic == "real" and self.lines.start.device.type == "cpu" and all(known)
        if not self.graph.is_exact:  # constants that were computed are rounded, and nobody has noted by how much
            return None
        if not is_usual or self.graph.jumping_operators or max(chords.effects) < GREAT_EFFECT:
            return None
        everyone = np.arange(len(self.queries))
        lead = margins(self.scores(everyone, np.zeros(len(everyone))), self.labels)
        wins = np.flatnonzero(lead > 0)
        if not len(wins):
            return None
        off = chords.evaluated(self.inputs(wins, np.zeros(len(wins))), norm(self.lines.paths.error[wins])).numpy()
        lost = wins[2**0.5 * off >= lead[wins]]
        if not len(lost):
            return None
        paths = []
        for number in range(len(self.queries)):
            self.budget.check()
            paths.append(self.exactly(number))
        tolerance = SMALL_SHARE * float(lead[lost].min())
        inputs = Inputs.of(paths, self.graph.input_shape)
        precise = Precise.of(self.graph, inputs, tolerance, self.normal, self.budget)
        zero = torch.zeros(1, dtype=torch.float64)
        starts = [precise.evaluated_at(int(number), zero, self.budget)[1] for number in lost]
        return precise if bool((2**0.5 * torch.cat(starts).numpy() < lead[lost]).any()) else None

    @property
    def normal(self) -> Normal | None:
        """The node that normalises, behind one that clips, if there is one; with the numbers that were given for it."""
        if self.network.normalisation is None:
            return None
        node = 0 if self.path(0).path.clip is None else 1
        assert isinstance(self.graph.nodes[node].operator, Scale)
        return Normal(node, *self.network.normalisation.as_inputs(self.network.picture()))

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

    def evaluated(
        self, numbers: NDArray[Any], z: NDArray[Any], budget: Budget = UNLIMITED
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same, as precisely as can be; and how far each may be off, in norm, if that may be more than a curve is:
        one that was swept before, or elsewhere, may have more digits.
        """
        if isinstance(self.chords, Precise):
            strengths = torch.as_tensor(z, dtype=torch.float64).unsqueeze(1)
            rows = [self.chords.evaluated_at(int(n), own, budget) for n, own in zip(numbers, strengths, strict=True)]
            scores, error = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
            return scores, error
        if self.chords is None or self.graph.jumping_operators or max(self.chords.effects) < GREAT_EFFECT:
            return self.scores(numbers, z, budget), np.zeros(len(z))
        off = norm(self.lines.paths.error)
        parts = budget.all_slices(len(z), self.at_once)
        errors = [self.chords.evaluated(self.inputs(numbers[some], z[some]), off[numbers[some]]) for some in parts]
        return self.scores(numbers, z, budget), torch.cat(errors).cpu().numpy()
