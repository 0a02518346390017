"""What is proved of curves: how far labels are ahead between their rows, and in cells of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.bounds import Boxes, cells_within, enclose, lowest_leads, usual_shortfall
from shakeproof.budget import Budget, OutOfTimeError
from shakeproof.evidence import SLACK
from shakeproof.exact import Curve, Least, Precise, RationalNetwork
from shakeproof.methods.edges import TIED
from shakeproof.methods.evaluation import Evaluation
from shakeproof.model import Network
from shakeproof.question import Query
from shakeproof.settings import Settings

# A curve and direct evaluation may be so far apart, as a share of the scores, where rounding was not looked at.
NOMINAL = 1e-9
# In the middle of how many pieces, beside the lowest and the widest, a curve is compared with direct evaluation.
SPOTS = 3
# So many terms of sums are added up without rounding for a query, at most: some seconds.
EXACT_TERMS = 2 * 10**6
# Planes for so many rivals are pulled back for a piece at once.
CLOSE_ROWS = 8
LARGEST = Fraction(10**300)


class Proving(Evaluation):
    """Queries about whose lines something is to be proved."""

    def __init__(self, network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> None:
        super().__init__(network, queries, settings, budget)
        # Where labels turned out to lose on lines without rounding.
        self.sunk: list[tuple[int, Least]] = []
        self.exact_terms = np.full(len(queries), EXACT_TERMS)

    def proved(self, curves: Sequence[Curve], losses: Sequence[float | None]) -> list[NDArray[np.float64]]:
        """For each curve, lower bounds of the label's margin between its rows, as far as the label wins.

        Where the sweep's own errors are too large, and what is deployed is float32, each piece is bounded on its own.
        """
        found = [self.by_chords(curve, int(label)) for curve, label in zip(curves, self.labels, strict=True)]
        if self.settings.rounding == "nominal":
            return found
        weak: list[tuple[int, int]] = []
        for number, (curve, lower, loss) in enumerate(zip(curves, found, losses, strict=True)):
            ends = np.inf if loss is None else loss
            last = len(curve.z) - 1
            unproved = np.flatnonzero(~(lower > 0)).tolist()
            weak += [(number, segment) for segment in unproved if curve.z[min(segment + 1, last)] < ends]
        if weak:
            cells = [self.cell(curves[number], number, segment) for number, segment in weak]
            bounds = self.leads(np.array([number for number, _ in weak]), cells)
            for (number, segment), bound in zip(weak, bounds.tolist(), strict=True):
                found[number][segment] = bound
        return found

    def by_chords(self, curve: Curve, label: int) -> NDArray[np.float64]:
        """Chords, less what the sweep says that they may be off by; nothing is known where scores left its curve."""
        if curve.lead is not None:
            return curve.lead[:, label].copy()
        margin = curve.margin(label)
        least = np.minimum(margin[:-1], margin[1:]) if len(margin) > 1 else margin
        if len(margin) > 1 and margin.min() > 0:  # on a bridge, it is known to be above the smallest of all
            least = np.where(curve.bridged, margin.min(), least)
        if self.settings.rounding == "nominal":
            return least
        if len(margin) < 2 or self.settings.arithmetic != "real":
            return np.full(len(least), -np.inf)
        lower: NDArray[np.float64] = least - curve.off
        return lower

    def cell(self, curve: Curve, number: int, segment: int) -> tuple[float, float]:
        """The strengths between two rows, and a little around them: rows may be a little beside their strengths."""
        low, high = curve.z[segment], curve.z[min(segment + 1, len(curve.z) - 1)]
        return float(low * (1 - SLACK)), float(min(high * (1 + SLACK), self.path(number).end[0]))

    def leads(
        self,
        numbers: NDArray[Any],
        cells: Sequence[tuple[float, float]],
        rivals: NDArray[Any] | None = None,
        exact: bool = True,
    ) -> NDArray[np.float64]:
        """Lower bounds of the label's margin on cells of some lines; or of how far a rival is ahead of it (none: -1).

        Where float64 does not suffice, without rounding, if that is possible and `exact` allows for the time.
        """
        device = self.lines.start.device
        ends = torch.tensor(cells, dtype=torch.float64, device=device).view(-1, 2)
        line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
        label, rival = self.labels[numbers], np.full(len(cells), -1) if rivals is None else rivals
        leader, led = (torch.as_tensor(who, device=device) for who in _leader_and_led(label, rival))
        found = np.full(len(cells), -np.inf)
        step = max(1, cells_within(self.graph, self.budget, 1) // CLOSE_ROWS)
        for part in self.budget.slices(len(cells), step):
            boxes = Boxes(ends[part, :1], ends[part, 1:])
            inputs = torch.stack([self.lines.at(line[part], z[:, 0]) for z in boxes.points])
            error = self.lines.paths.error[self.lines.path[line[part]]]
            try:
                enclosed = enclose(self.meant, inputs, boxes, error, self.budget)
                least = lowest_leads(self.meant, enclosed, leader[part], led[part], self.budget)
            except OutOfTimeError:
                break
            found[part] = least.cpu().numpy()
        if exact and self.computes_exactly:
            for i in np.flatnonzero(~(found > 0)).tolist():
                exactly, is_label = self.least(int(numbers[i]), cells[i], int(leader[i]), int(led[i])), rival[i] < 0
                if exactly is not None and is_label and exactly.lead <= 0:
                    self.sunk.append((int(numbers[i]), exactly))
                if exactly is not None:
                    found[i] = as_float(exactly.lead) if is_label or exactly.lead else TIED
        return found

    @property
    def usual_shortfall(self) -> float:
        """By how much such bounds are too low, about."""
        cells_within(self.graph, self.budget, 1)  # or an error
        return usual_shortfall(self.meant)

    def least(self, number: int, cell: tuple[float, float], leader: int, rival: int) -> Least | None:
        """The leader's least lead over a rival, or over any (-1), without any rounding."""
        if self.budget.is_late():
            return None
        rivals = [c for c in range(self.graph.classes) if c != leader] if rival < 0 else [rival]

        def spend(terms: int) -> bool:
            self.exact_terms[number] -= terms
            return self.exact_terms[number] > 0 and not self.budget.is_late()

        return self.rational.least_lead(self.exactly(number), cell, leader, rivals, spend)

    @property
    def computes_exactly(self) -> bool:
        return self.settings.arithmetic == "real" and self.rational.is_possible

    @cached_property
    def rational(self) -> RationalNetwork:
        return RationalNetwork(self.graph)

    def contradicted(self, curves: Mapping[int, Curve]) -> set[int]:
        """The lines on which direct evaluation, in the middle of some pieces, is farther from the curve than both may
        be off: a bug, on which nothing may rest.
        """
        spots = [(number, piece) for number, curve in curves.items() for piece in self.spots(number, curve)]
        if not spots:
            return set()
        owner, piece = np.array(spots).T
        z = np.array([(curves[number].z[place] + curves[number].z[place + 1]) / 2 for number, place in spots])
        direct, found = self.spot_scores(owner, z), set()
        for number in dict.fromkeys(owner.tolist()):
            curve, mine = curves[number], owner == number
            error = curve.error[piece[mine]]
            off = 2 * np.where(np.isnan(error), 0.0, error) + NOMINAL * np.abs(curve.scores).max()
            apart = np.abs(direct[mine] - curve.at(z[mine])).max(1)
            if not (apart <= off).all() and isinstance(self.chords, Precise):  # float64 may be what is off
                apart = np.abs(self.evaluated(owner[mine], z[mine])[0] - curve.at(z[mine])).max(1)
            if not (apart <= off).all():
                found.add(number)
        return found

    def spot_scores(self, numbers: NDArray[np.int64], z: NDArray[np.float64]) -> NDArray[np.float64]:
        """What direct evaluation gives at spots."""
        return self.scores(numbers, z)

    def spots(self, number: int, curve: Curve) -> list[int]:
        """The pieces in which a curve is compared: the one with the smallest margin, the widest, and some more; only
        the first of them if it is late.
        """
        pieces = np.flatnonzero(~curve.bridged & ~curve.jumps)
        if not len(pieces):
            return []
        lowest = int(curve.margin(int(self.labels[number]))[pieces].argmin())
        if self.budget.is_late():
            return [int(pieces[lowest])]
        widest = int(np.diff(curve.z)[pieces].argmax())
        spread = ((len(pieces) - 1) * part // (SPOTS - 1) for part in range(SPOTS))
        return sorted({int(pieces[place]) for place in (lowest, widest, *spread)})


def _leader_and_led(label: NDArray[Any], rival: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whose lead over whom is meant: the label's over all (-1), or a rival's over the label."""
    return np.where(rival < 0, label, rival), np.where(rival < 0, -1, label)


def as_float(lead: Fraction) -> float:
    """The nearest number that is not too large for one, of the same sign."""
    return float(min(max(lead, -LARGEST), LARGEST)) or float(lead > 0) * TIED
