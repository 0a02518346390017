"""Queries as lines of one network: scores along them, and lower bounds of how far labels lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.bounds import Boxes, cells_within, enclose, lowest_leads
from shakeproof.budget import UNLIMITED, Budget, OutOfTimeError
from shakeproof.errors import ProofError
from shakeproof.exact import Curve, Least, Lines, RationalNetwork, longest_window
from shakeproof.graph import Graph
from shakeproof.model import Network, Stated, stated
from shakeproof.proof.evidence import SLACK
from shakeproof.question import ExactPath, Obligation, Path, Perturbation, Query, as_whole, margins
from shakeproof.settings import Settings

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Cell = tuple[float, float]
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


@dataclass(frozen=True, eq=False)
class SweepContext:
    """Queries about paths of one strength, with the same clipping: one line each, and a label for each.

    `asked` has for each a graph of outputs and the property of them; `graph` is that of its cases, behind the clipping,
    in which a label wins where the property holds; `meant` is what proofs are about: in float32, another graph.
    `exact_terms` counts what was added up without rounding for each query: a budget that is spent, as time is.
    """

    network: Network
    queries: Sequence[Query]
    settings: Settings
    budget: Budget
    asked: Sequence[Stated]
    graph: Graph
    meant: Graph
    lines: Lines
    labels: Numbers
    exact_terms: Counter[int] = field(default_factory=Counter)

    @staticmethod
    def of(network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> SweepContext:
        device, paths = torch.device(settings.device), [query.path for query in queries if query.path is not None]
        asked = [stated(network, query.obligations[0].property) for query in queries]
        (of_cases,) = {each.graph_of_cases for each in asked}
        graph = paths[0].within(of_cases).to(device)
        return SweepContext(
            network=network,
            queries=queries,
            settings=settings,
            budget=budget,
            asked=asked,
            graph=graph,
            meant=graph.in_float32() if settings.arithmetic == "float32" else graph,
            lines=Lines(
                paths=Path.stacked([path.path for path in paths]).to(device),
                start=torch.zeros(len(paths), dtype=torch.float64, device=device),
                end=torch.tensor([path.end[0] for path in paths], dtype=torch.float64, device=device),
                path=torch.arange(len(paths), device=device),
            ),
            labels=np.array([each.label for each in asked], dtype=np.int64),
        )

    def obligation(self, number: int) -> Obligation:
        return self.queries[number].obligations[0]

    def end(self, number: int) -> float:
        return self.queries[number].strengths[0]

    def scores(self, numbers: NDArray[Any], z: NDArray[Any], budget: Budget = UNLIMITED) -> Floats:
        """Class scores on given lines at given strengths, evaluated directly; an error if there is no time for all."""
        line, strength = (torch.as_tensor(column, device=self.lines.start.device) for column in (numbers, z))
        parts = budget.all_slices(len(z), longest_window(self.graph, self.budget))
        scores = [self.graph.run(self.lines.at(line[part], strength[part])).cpu().numpy() for part in parts]
        return np.concatenate([np.empty((0, self.graph.classes)), *scores])

    def outputs(self, number: int, z: Floats) -> Floats:
        """What a property is about, (rows, outputs), on a line at strengths (rows)."""
        at, graph = torch.from_numpy(z).to(self.lines.start), self.asked[number].graph
        which, paths = torch.full_like(at, number, dtype=torch.int64), self.lines.paths
        parts = UNLIMITED.all_slices(len(z), longest_window(self.graph, self.budget))
        inputs = (paths.clipped(self.lines.at(which[part], at[part])) for part in parts)
        rows = [graph.to(points.device).run(points).cpu().numpy() for points in inputs]
        return np.concatenate([np.empty((0, graph.classes)), *rows])

    def has_margins(self, number: int, z: Floats, margin: Floats) -> bool:
        """Whether the property itself says of the outputs what the graph of its cases does: another way to the same."""
        meant = self.asked[number]
        if meant.about.is_label:
            return True
        outputs = self.outputs(number, z)
        size = 1 + np.abs(outputs).max(initial=0.0) + np.abs(margin).max(initial=0.0)
        return bool((np.abs(meant.about.margin(outputs) - margin) <= DIRECTLY_OFF * size).all())

    @cached_property
    def start_scores(self) -> Floats:
        """Class scores at strength 0 (lines, classes)."""
        return self.scores(np.arange(len(self.labels)), np.zeros(len(self.labels)))

    @cached_property
    def rational(self) -> RationalNetwork | None:
        """The network without rounding, where that is possible and of use."""
        rational = RationalNetwork(self.graph)
        return rational if self.settings.arithmetic == "real" and rational.is_possible else None


class SweptLine(NamedTuple):
    """A line that was swept: where its label first loses on its curve, and lower bounds of the margin between rows."""

    number: int
    label: int
    curve: Curve
    loss: float | None
    lower: Floats

    @property
    def unproved(self) -> int:
        """The first piece that is not proved."""
        return int(np.flatnonzero(~(self.lower > 0))[0])

    @property
    def turn(self) -> float:
        """Where the margin comes down to nothing, or to what rounding might explain: in the first piece not proved."""
        curve, piece = self.curve, self.unproved
        after = min(piece + 1, len(curve.z) - 1)
        start, end = curve.z[piece], curve.z[after]
        if self.loss is not None and start <= self.loss <= end:
            return self.loss
        margin = curve.margin(self.label)
        return float(end if margin[piece] > margin[after] else start)

    def off(self, piece: NDArray[Any]) -> Floats:
        """What a margin, on a piece or evaluated there, is off by at most, in real numbers."""
        if not len(self.curve.error):
            return np.full(len(piece), np.inf)
        inside = np.clip(piece, 0, len(self.curve.error) - 1)
        return np.where((inside == piece) & ~self.curve.bridged[inside], self.curve.off[inside], np.inf)


class Leads(NamedTuple):
    """Lower bounds of leads (-inf: none), and where labels lose in exact arithmetic."""

    bounds: Floats
    exact_losses: list[tuple[int, Least]]


def lower_bounds(context: SweepContext, curves: Sequence[Curve]) -> tuple[list[SweptLine], list[tuple[int, Least]]]:
    """Each curve with lower bounds of the label's margin between its rows, as far as the label wins.

    Where the sweep's own errors are too large, each piece is bounded on its own.
    """
    lines: list[SweptLine] = []
    weak: list[tuple[int, int]] = []
    cells: list[Cell] = []
    for number, (curve, label) in enumerate(zip(curves, context.labels.tolist(), strict=True)):
        line = SweptLine(number, label, curve, curve.first_loss(label), by_chords(context, curve, label))
        segments = np.flatnonzero(~(line.lower > 0))
        low, high = curve.z[segments], curve.z[np.minimum(segments + 1, len(curve.z) - 1)]
        chosen = np.full(len(segments), True) if line.loss is None else high < line.loss
        weak += [(number, segment) for segment in segments[chosen].tolist()]
        # and a little around them: rows may be beside their strengths
        ends = low[chosen] * (1 - SLACK), np.minimum(high[chosen] * (1 + SLACK), context.end(number))
        cells += zip(*(side.tolist() for side in ends), strict=True)
        lines.append(line)
    if not weak:
        return lines, []
    bounded = leads(context, np.array([number for number, _ in weak]), cells, exactly=True)
    for (number, segment), bound in zip(weak, bounded.bounds.tolist(), strict=True):
        lines[number].lower[segment] = bound
    return lines, bounded.exact_losses


def by_chords(context: SweepContext, curve: Curve, label: int) -> Floats:
    """Chords, less what the sweep says that they may be off by; nothing is known where scores left its curve."""
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


def leads(
    context: SweepContext,
    numbers: NDArray[Any],
    cells: Sequence[Cell],
    rivals: NDArray[Any] | None = None,
    exactly: bool = False,
) -> Leads:
    """Lower bounds of the label's margin on cells of some lines; or of how far a rival is ahead of it (none: -1).

    `exactly`: where float64 does not suffice, without rounding, if that is possible.
    """
    owner, straight = on_segments(context.lines.paths, cells)
    if len(straight) == len(cells):
        return _straight_leads(context, numbers, cells, rivals, exactly)
    parts = _straight_leads(context, numbers[owner], straight, None if rivals is None else rivals[owner], exactly)
    firsts = np.flatnonzero(np.append(True, np.diff(owner) > 0))
    return Leads(np.minimum.reduceat(parts.bounds, firsts), parts.exact_losses)


def on_segments(paths: Path, cells: Sequence[Cell]) -> tuple[Numbers, list[Cell]]:
    """Cells cut where segments of the paths meet, and which one each part is of: inputs are affine on each part."""
    cuts = [paths.within(*cell) for cell in cells]
    owner = np.array([number for number, ends in enumerate(cuts) for _ in ends[1:]], dtype=np.int64)
    return owner, [part for ends in cuts for part in pairwise(ends)]


def _straight_leads(
    context: SweepContext,
    numbers: NDArray[Any],
    cells: Sequence[Cell],
    rivals: NDArray[Any] | None,
    exactly: bool,
) -> Leads:
    """The same of cells on which inputs are affine."""
    device = context.lines.start.device
    ends = torch.tensor(cells, dtype=torch.float64, device=device).view(-1, 2)
    line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
    context.lines.paths.check_straight(*ends.t())
    label, rival = context.labels[numbers], np.full(len(cells), -1) if rivals is None else rivals
    leader, led = np.where(rival < 0, label, rival), np.where(rival < 0, -1, label)
    whose = tuple(torch.as_tensor(who, device=device) for who in (leader, led))
    bounds = np.full(len(cells), -np.inf)
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
        bounds[part] = least.cpu().numpy()
    exact_losses: list[tuple[int, Least]] = []
    for i in np.flatnonzero(~(bounds > 0)).tolist() if exactly and context.rational is not None else ():
        number, is_label = int(numbers[i]), rival[i] < 0
        exact = least_lead(context, number, cells[i], int(leader[i]), int(led[i]))
        if exact is not None:
            bounds[i] = as_float(exact.lead) if is_label or exact.lead else TIED
            if is_label and exact.lead <= 0:
                exact_losses.append((number, exact))
    return Leads(bounds, exact_losses)


def least_lead(context: SweepContext, number: int, cell: Cell, leader: int, rival: int) -> Least | None:
    """The leader's least lead over a rival, or over any (-1), without any rounding; None if it takes too long."""
    query = context.queries[number]
    if context.rational is None or context.budget.is_late() or query.photograph is not None or query.follows_curve:
        return None
    rivals = [c for c in range(context.graph.classes) if c != leader] if rival < 0 else [rival]

    def spend(terms: int) -> bool:
        context.exact_terms[number] += terms
        return context.exact_terms[number] < EXACT_TERMS and not context.budget.is_late()

    scale = exact_path(query).scale
    segment = scale.place(cell[0])[0]
    if not cell[1] <= scale.nodes[segment + 1]:
        raise ProofError("a cell reaches over the end of its segment")
    return context.rational.least_lead(exact_line(query, segment), cell, leader, rivals, spend)


@lru_cache(maxsize=2)
def exact_path(query: Query) -> ExactPath:
    """A query's pictures before any rounding."""
    assert isinstance(query.perturbation, Perturbation)
    assert query.image is not None
    if query.photograph is not None:
        raise ProofError("the exact path of a photograph is not that of the network's picture")
    return query.perturbation.exactly(*as_whole(query.image.pixels))


@lru_cache(maxsize=2)
def exact_line(query: Query, segment: int = 0) -> tuple[list[Fraction], list[Fraction]]:
    """The slope and the base of a line, or of a segment of it, in the network's order of inputs, before any rounding:
    what the segment's picture at strength 0 would be, and what the full strength would add.
    """
    assert query.path is not None
    layout, path = query.path.layout, exact_path(query)
    order = layout.to_input(torch.arange(path.base.size).view(layout.image_shape)).flatten().numpy()
    start, end = map(Fraction, path.scale.nodes[segment : segment + 2])
    change = [Fraction(n, path.unit) / (end - start) for n in path.slopes[segment].ravel()[order]]
    begins = [Fraction(n, path.unit) for n in (path.base + path.slopes[:segment].sum(0)).ravel()[order]]
    return change, [at - start * slope for at, slope in zip(begins, change, strict=True)]


def as_float(lead: Fraction) -> float:
    """The nearest number that is not too large for one, of the same sign."""
    return float(min(max(lead, -LARGEST), LARGEST)) or float(lead > 0) * TIED


def provably_loses(context: SweepContext, number: int, z: Sequence[float] | Floats) -> NDArray[np.bool_]:
    """Whether the label provably loses in real numbers at some strengths."""
    numbers, strengths = np.full(len(z), number), np.asarray(z, dtype=np.float64)
    scores = context.scores(numbers, strengths, context.budget if len(z) > 1 else UNLIMITED)
    scores[:, context.labels[number]] = -np.inf
    points = [(place, place) for place in strengths.tolist()]
    return leads(context, numbers, points, scores.argmax(1)).bounds > 0


def contradicted(context: SweepContext, lines: Sequence[SweptLine]) -> set[int]:
    """The lines whose curve differs from direct evaluation by more than both errors: a bug, so nothing is claimed.

    They are compared in the middle of some pieces: the one with the smallest margin, the widest, and some more; only
    the first of them if it is late.
    """
    spots: list[tuple[int, int]] = []
    for line in lines:
        pieces = np.flatnonzero(~line.curve.bridged & ~line.curve.jumps)
        if len(pieces):
            chosen = [int(line.curve.margin(line.label)[pieces].argmin())]
            if not context.budget.is_late():
                chosen.append(int(np.diff(line.curve.z)[pieces].argmax()))
                chosen += [(len(pieces) - 1) * part // (SPOTS - 1) for part in range(SPOTS)]
            spots += [(line.number, piece) for piece in np.unique(pieces[chosen]).tolist()]
    if not spots:
        return set()
    owner, piece = np.array(spots).T
    z = np.array([lines[number].curve.z[place : place + 2].sum() / 2 for number, place in spots])
    direct, wrong = context.scores(owner, z), set()
    for number in dict.fromkeys(owner.tolist()):
        curve, here = lines[number].curve, owner == number
        if not context.has_margins(number, z[here], margins(direct[here], np.full(here.sum(), lines[number].label))):
            wrong.add(number)
        error = curve.error[piece[here]]
        off = 2 * np.where(np.isnan(error), 0.0, error) + DIRECTLY_OFF * np.abs(curve.scores).max()
        if not (np.abs(direct[here] - curve.at(z[here])).max(1) <= off).all():
            wrong.add(number)
    return wrong
