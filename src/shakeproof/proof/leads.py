"""Lower bounds of leads: of labels between the rows of curves, and of any class in cells of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.bounds import Boxes, cells_within, enclose, lowest_leads
from shakeproof.budget import UNLIMITED, OutOfTimeError
from shakeproof.exact import Curve, Least
from shakeproof.proof.context import Floats, SweepContext, exact_line
from shakeproof.proof.evidence import SLACK

# A curve and direct evaluation may be so far apart, as a share of the scores, whatever the curve's error is.
DIRECTLY_OFF = 1e-9
# In the middle of how many pieces, beside the lowest and the widest, a curve is compared with direct evaluation.
SPOTS = 3
# So many terms of sums are added up without rounding for a query, at most: some seconds.
EXACT_TERMS = 2 * 10**6
# Planes for so many rivals are pulled back for a piece at once.
CLOSE_ROWS = 8
LARGEST = Fraction(10**300)
# A lead of nothing is enough for a rival.
TIED = 2.0**-1074
Cell = tuple[float, float]


class Leads(NamedTuple):
    """Lower bounds of leads, -inf where there is none; and where labels turned out to lose without rounding."""

    bounds: Floats
    exact_losses: list[tuple[int, Least]]


@dataclass(frozen=True)
class ExactTerms:
    """How many terms were added up without rounding for each query so far."""

    spent: dict[int, int] = field(default_factory=dict)

    def spend(self, number: int, terms: int) -> bool:
        """Whether there may be so many more."""
        self.spent[number] = self.spent.get(number, 0) + terms
        return self.spent[number] < EXACT_TERMS


def lower_bounds(
    context: SweepContext, curves: Sequence[Curve], losses: Sequence[float | None], terms: ExactTerms
) -> tuple[list[Floats], list[tuple[int, Least]]]:
    """For each curve, lower bounds of the label's margin between its rows, as far as the label wins.

    Where the sweep's own errors are too large, each piece is bounded on its own.
    """
    labels = context.labels.tolist()
    found = [by_chords(context, curve, label) for curve, label in zip(curves, labels, strict=True)]
    weak: list[tuple[int, int]] = []
    for number, (curve, lower, loss) in enumerate(zip(curves, found, losses, strict=True)):
        ends, last = np.inf if loss is None else loss, len(curve.z) - 1
        unproved = np.flatnonzero(~(lower > 0)).tolist()
        weak += [(number, segment) for segment in unproved if curve.z[min(segment + 1, last)] < ends]
    if not weak:
        return found, []
    cells = [_around(context, curves[number], number, segment) for number, segment in weak]
    bounded = leads(context, np.array([number for number, _ in weak]), cells, terms=terms)
    for (number, segment), bound in zip(weak, bounded.bounds.tolist(), strict=True):
        found[number][segment] = bound
    return found, bounded.exact_losses


def by_chords(context: SweepContext, curve: Curve, label: int) -> Floats:
    """RunningError, less what the sweep says that they may be off by; nothing is known where scores left its curve."""
    if curve.lead is not None:
        return curve.lead[:, label].copy()
    margin = curve.margin(label)
    least = np.minimum(margin[:-1], margin[1:]) if len(margin) > 1 else margin
    if len(margin) > 1 and margin.min() > 0:  # on a bridge, it is known to be above the smallest of all
        least = np.where(curve.bridged, margin.min(), least)
    if len(margin) < 2 or context.settings.arithmetic != "real":
        return np.full(len(least), -np.inf)
    lower: Floats = least - curve.off
    return lower


def _around(context: SweepContext, curve: Curve, number: int, segment: int) -> Cell:
    """The strengths between two rows, and a little around them: rows may be a little beside their strengths."""
    low, high = curve.z[segment], curve.z[min(segment + 1, len(curve.z) - 1)]
    return float(low * (1 - SLACK)), float(min(high * (1 + SLACK), context.end(number)))


def leads(
    context: SweepContext,
    numbers: NDArray[Any],
    cells: Sequence[Cell],
    rivals: NDArray[Any] | None = None,
    terms: ExactTerms | None = None,
) -> Leads:
    """Lower bounds of the label's margin on cells of some lines; or of how far a rival is ahead of it (none: -1).

    With `terms`, where float64 does not suffice, without rounding, if that is possible.
    """
    device = context.lines.start.device
    ends = torch.tensor(cells, dtype=torch.float64, device=device).view(-1, 2)
    line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
    label, rival = context.labels[numbers], np.full(len(cells), -1) if rivals is None else rivals
    leader, led = np.where(rival < 0, label, rival), np.where(rival < 0, -1, label)
    whose = tuple(torch.as_tensor(who, device=device) for who in (leader, led))
    found = np.full(len(cells), -np.inf)
    step = max(1, cells_within(context.graph, context.budget, 1) // CLOSE_ROWS)
    for part in context.budget.slices(len(cells), step):
        boxes = Boxes(ends[part, :1], ends[part, 1:])
        inputs = torch.stack([context.lines.at(line[part], z[:, 0]) for z in boxes.points])
        error = context.lines.paths.error[context.lines.path[line[part]]]
        try:
            enclosed = enclose(context.meant, inputs, boxes, error, context.budget)
            least = lowest_leads(context.meant, enclosed, whose[0][part], whose[1][part], context.budget)
        except OutOfTimeError:
            break
        found[part] = least.cpu().numpy()
    losses: list[tuple[int, Least]] = []
    if terms is None or context.rational is None:
        return Leads(found, losses)
    for i in np.flatnonzero(~(found > 0)).tolist():
        number, is_label = int(numbers[i]), rival[i] < 0
        exactly = least_lead(context, number, cells[i], int(leader[i]), int(led[i]), terms)
        if exactly is not None and is_label and exactly.lead <= 0:
            losses.append((number, exactly))
        if exactly is not None:
            found[i] = as_float(exactly.lead) if is_label or exactly.lead else TIED
    return Leads(found, losses)


def least_lead(
    context: SweepContext, number: int, cell: Cell, leader: int, rival: int, terms: ExactTerms
) -> Least | None:
    """The leader's least lead over a rival, or over any (-1), without any rounding; None if it takes too long."""
    if context.rational is None or context.budget.is_late():
        return None
    rivals = [c for c in range(context.graph.classes) if c != leader] if rival < 0 else [rival]

    def spend(count: int) -> bool:
        return terms.spend(number, count) and not context.budget.is_late()

    return context.rational.least_lead(exact_line(context.queries[number]), cell, leader, rivals, spend)


def provably_loses(context: SweepContext, number: int, z: Sequence[float] | Floats) -> NDArray[np.bool_]:
    """Whether the label provably loses in real numbers at some strengths."""
    numbers, strengths = np.full(len(z), number), np.asarray(z, dtype=np.float64)
    scores = context.scores(numbers, strengths, context.budget if len(z) > 1 else UNLIMITED)
    scores[:, context.labels[number]] = -np.inf
    points = [(own, own) for own in strengths.tolist()]
    return leads(context, numbers, points, scores.argmax(1)).bounds > 0


def contradicted(context: SweepContext, curves: Sequence[Curve]) -> set[int]:
    """The curves from which direct evaluation, in the middle of some pieces, is farther than both may be off: a bug, on
    which nothing may rest.
    """
    spots = [(number, piece) for number, curve in enumerate(curves) for piece in _spots(context, number, curve)]
    if not spots:
        return set()
    owner, piece = np.array(spots).T
    z = np.array([(curves[number].z[place] + curves[number].z[place + 1]) / 2 for number, place in spots])
    direct, found = context.scores(owner, z), set()
    for number in dict.fromkeys(owner.tolist()):
        curve, mine = curves[number], owner == number
        error = curve.error[piece[mine]]
        off = 2 * np.where(np.isnan(error), 0.0, error) + DIRECTLY_OFF * np.abs(curve.scores).max()
        if not (np.abs(direct[mine] - curve.at(z[mine])).max(1) <= off).all():
            found.add(number)
    return found


def _spots(context: SweepContext, number: int, curve: Curve) -> list[int]:
    """The pieces in which a curve is compared: the one with the smallest margin, the widest, and some more; only the
    first of them if it is late.
    """
    pieces = np.flatnonzero(~curve.bridged & ~curve.jumps)
    if not len(pieces):
        return []
    lowest = int(curve.margin(int(context.labels[number]))[pieces].argmin())
    if context.budget.is_late():
        return [int(pieces[lowest])]
    widest = int(np.diff(curve.z)[pieces].argmax())
    spread = ((len(pieces) - 1) * part // (SPOTS - 1) for part in range(SPOTS))
    return sorted({int(pieces[place]) for place in (lowest, widest, *spread)})


def as_float(lead: Fraction) -> float:
    """The nearest number that is not too large for one, of the same sign."""
    return float(min(max(lead, -LARGEST), LARGEST)) or float(lead > 0) * TIED
