"""The exact sweep of networks that jump: signs, and numbers that are rounded to whole ones.

A neuron that is nearer to its threshold than rounding lets us know may be on either side of it, and what comes after it
is another network then. So a line is not rows with chords in between, but *cells*: closed stretches with every value of
the network within a radius of a chord, entry by entry, and rounding is in that radius. Cells are cut where an operator
bends, and on either side of where a neuron jumps, as close as its radius allows. On the sliver in between, the neuron
may have one value or the other (or, just at the jump, a third): the cell is taken once for each, a *case*. Beside the
slivers it is certain, a whole number, and its radius is nothing: errors do not grow from layer to layer.

Nothing is left out: all cells of a line cover it, each with all of its cases, whose shares add up to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Domain, Enclosure, step
from shakeproof.budget import Budget, OutOfTimeError
from shakeproof.errors import ProofError
from shakeproof.exact.curve import Curve, Floats, Piece
from shakeproof.exact.sweep import Lines, longest_window
from shakeproof.graph import Graph
from shakeproof.operators import (
    ABOVE,
    UNIT,
    Abs,
    Affine,
    Clip,
    Combine,
    Conv,
    Jumping,
    Linear,
    MaxPool,
    PiecewiseLinear,
    Range,
    Relu,
    Scale,
    Unrolled,
)
from shakeproof.rounding import LOST, OF_CHORDS, norm, work_out_norms

# A cell is taken in no more cases than this, and cells together in so many each; where several neurons are undecided at
# once, and have more, they are enclosed between their least and their greatest values.
MOST_CASES, CASES_A_CELL = 81, 4
# Cells are cut so many units, and so much more than a radius, beside a jump.
UNITS_BESIDE, RADII_BESIDE = 32, 1.5
# So many cells are worked on at once, at most; one takes as much room as so many rows of a sweep.
MOST_CELLS, ROWS_A_CELL = 4096, 6
# A neuron that jumps more often than this on a cell is not looked at more closely.
MOST_JUMPS = 10**4
# Shares of cases, thirds for example, add up to one but for this.
EVERY = 1e-9


@dataclass(frozen=True, eq=False)
class Ends(Domain):
    """Stretches from low to high, both (cells, 1); affine functions are known from their values at both ends."""

    low: Tensor
    high: Tensor

    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        reach = 0.0 if radius is None else radius
        return Range(values.amin(0) - reach, values.amax(0) + reach)


@dataclass(frozen=True, eq=False)
class LineCells:
    """Cells [low, high] (n) of lines (n), sorted by both, before node `index`, with all values that are still read.

    `share` (n) is which part a cell is of all cases of its stretch; `sure` (n), whether no neuron was merely enclosed.
    `is_cut`: node `index` neither bends nor jumps within them, as far as rounding lets us know.
    """

    index: int
    line: Tensor
    low: Tensor
    high: Tensor
    share: Tensor
    sure: Tensor
    values: dict[int, Enclosure]
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.low)

    def taken(self, source: Tensor) -> LineCells:
        """Some of them, as often as they are named."""
        columns = {name: getattr(self, name)[source] for name in ("line", "low", "high", "share", "sure")}
        values = {number: _taken(value, source) for number, value in self.values.items()}
        return replace(self, values=values, **columns)

    def cut(self, cell: Tensor, fraction: Tensor) -> Stretches:
        """Parts of the cells, cut at fractions of some of them: at the nearest strengths that are numbers."""
        low, high = self.low[cell], self.high[cell]
        at = low + fraction * (high - low)
        inside = (at > low) & (at < high)
        places = torch.stack([cell[inside].double(), at[inside]], 1).unique(dim=0)
        cell, at = places[:, 0].long(), places[:, 1]
        parts = torch.bincount(cell, minlength=len(self)) + 1
        source = torch.repeat_interleave(parts)
        later, earlier = (torch.ones_like(source, dtype=torch.bool) for _ in range(2))
        last = parts.cumsum(0) - 1
        later[last - parts + 1] = False  # a cell's first part starts where the cell does
        earlier[last] = False
        low, high = self.low[source], self.high[source]
        low[later], high[earlier] = at, at
        return Stretches(replace(self, is_cut=True), source, low, high)


class Stretches(NamedTuple):
    """Parts [low, high] (n) of some cells, number `source` (n), whose values are only computed when they are needed."""

    cells: LineCells
    source: Tensor
    low: Tensor
    high: Tensor

    @staticmethod
    def whole(cells: LineCells) -> Stretches:
        return Stretches(cells, torch.arange(len(cells), device=cells.low.device), cells.low, cells.high)

    def split(self, most: int) -> Iterator[Stretches]:
        """No more than so many each, from right to left (so that the leftmost ends on top of the stack)."""
        for start in reversed(range(0, len(self.low), most)):
            yield Stretches(self.cells, *(column[start : start + most] for column in self[1:]))

    def only(self, keep: Tensor) -> Stretches:
        return Stretches(self.cells, *(column[keep] for column in self[1:]))

    def made(self) -> LineCells:
        taken = self.cells.taken(self.source)
        values = {number: self._between(value, taken) for number, value in taken.values.items()}
        return replace(taken, low=self.low, high=self.high, values=values)

    def _between(self, value: Enclosure, taken: LineCells) -> Enclosure:
        """A value on parts of its cells: on the chord, but for the rounding of that; what does not change stays."""
        moved = (self.low != taken.low) | (self.high != taken.high)
        if not bool(moved.any()):
            return value
        way = value.points[1] - value.points[0]
        shape = (-1, *(1,) * (way.dim() - 1))
        rows = []
        for at in (self.low, self.high):
            fraction = ((at - taken.low) / (taken.high - taken.low)).view(shape)
            there = torch.where(fraction == 0, value.points[0], value.points[0] + fraction * way)  # not at 0 / 0 either
            rows.append(torch.where((at == taken.high).view(shape), value.points[1], there))
        off = OF_CHORDS * UNIT * value.points.abs().sum(0) * (moved.view(shape) & (way != 0))
        return _enclosure(torch.stack(rows), value.radius + off, None if value.norm is None else value.norm + norm(off))


def _enclosure(points: Tensor, radius: Tensor, length: Tensor | None) -> Enclosure:
    cells = points.new_zeros(points.shape[1], 1)  # where they are is not asked
    return Enclosure(Ends(cells, cells), points, radius, norm=length)


def _taken(value: Enclosure, source: Tensor) -> Enclosure:
    length = None if value.norm is None else value.norm[source]
    return _enclosure(value.points[:, source], value.radius[source], length)


class Finished(NamedTuple):
    """Cells behind the last node: scores (n, 2, classes) at both ends, give or take `radius` (n, classes)."""

    line: NDArray[np.int64]
    low: Floats
    high: Floats
    share: Floats
    sure: NDArray[np.bool_]
    scores: Floats
    radius: Floats


def jumping_curves(
    graph: Graph,
    lines: Lines,
    budget: Budget,
    closed: Iterable[int] = (),
    look: Callable[[Piece], Iterable[int]] | None = None,
) -> list[Curve]:
    """A curve for each line of a network that jumps, from its start as far as the clock let it come.

    Nothing is done on lines that are `closed`; `look` says on which others no more is wanted.
    """
    shut, finished = set(closed), list[Finished]()
    reached = lines.end.cpu().numpy().copy()  # everything before is finished
    total, settled = float((lines.end - lines.start).sum()) or 1.0, 0.0
    most = min(MOST_CELLS, max(1, longest_window(graph, budget) // ROWS_A_CELL))
    waiting = list(Stretches.whole(_start(graph, lines)).split(most))
    while waiting:
        parts = waiting.pop()
        line, late = parts.cells.line[parts.source], budget.is_late()
        wanted = torch.tensor([not late and number not in shut for number in line.tolist()], device=line.device)
        for number, low in zip(line[~wanted].tolist(), parts.low[~wanted].tolist(), strict=True):
            reached[number] = min(reached[number], low)
        if not bool(wanted.any()):
            continue
        try:
            further = _advanced(graph, parts.only(wanted).made(), most, budget)
        except OutOfTimeError:
            budget = budget.ended()
            waiting.append(parts)
            continue
        if isinstance(further, Stretches):
            too_many = len(further.low) == int(wanted.sum())
            waiting.extend(further.split(len(further.low) // 2 if too_many else most))
            continue
        done = _finished(further)
        finished.append(done)
        if look is not None:
            shut.update(look(_piece(done)))
        settled += float(((done.high - done.low) * done.share).sum())
        budget.progress(min(1.0, settled / total))
    budget.progress(1.0)
    if not finished:
        return [Curve(np.empty(0), np.empty((0, graph.classes)))] * len(lines)
    every = Finished(*(np.concatenate(column) for column in zip(*finished, strict=True)))

    def evaluated(number: int, z: Floats) -> Floats:
        """NaN where there is no time for it."""
        scores = np.full((len(z), graph.classes), np.nan)
        for part in budget.closing.slices(len(z), most):
            strengths = torch.from_numpy(z[part]).to(lines.start.device)
            rows = lines.at(torch.full_like(strengths, number, dtype=torch.long), strengths)
            scores[part] = graph.run(rows).cpu().numpy()
        return scores

    return [_curve(every, number, float(end), partial(evaluated, number)) for number, end in enumerate(reached)]


def _start(graph: Graph, lines: Lines) -> LineCells:
    line = torch.arange(len(lines), device=lines.start.device)
    points = torch.stack([lines.at(line, lines.start), lines.at(line, lines.end)])
    error = lines.paths.error[lines.path]
    radius = torch.where((error == 0) & (points == 0).all(0), 0.0, error + graph.tiny)
    value = _enclosure(points, radius, norm(radius) if graph.is_deep else None)
    return LineCells(
        0,
        line,
        lines.start,
        lines.end,
        torch.ones_like(lines.start),
        torch.ones_like(line, dtype=torch.bool),
        {0: value},
    )


def _advanced(graph: Graph, cells: LineCells, most: int, budget: Budget) -> LineCells | Stretches:
    """To the end, or to an operator before which they are cut; or the same cells, if they have too many cases there.

    An error if the time is up before that.
    """
    if graph.is_deep:
        work_out_norms(graph, budget)
    while cells.index < len(graph.nodes):
        budget.check()
        node = graph.nodes[cells.index]
        if isinstance(node.operator, (PiecewiseLinear, Jumping)) and not cells.is_cut:
            parts = cells.cut(*_bends(node.operator, cells.values[node.inputs[0]]))
            if len(parts.low) > len(cells):
                return parts
            cells = parts.cells
        if isinstance(node.operator, Jumping):
            cases = _cases(node.operator, cells, node.inputs[0], CASES_A_CELL * most)
            if cases is None:
                return Stretches.whole(cells)
            cells, output = cases
            cells = _after(graph, cells, output.tightened(norm(output.radius)) if graph.is_deep else output)
        else:
            inputs = [cells.values[i] for i in node.inputs]
            output = step(graph, cells.index, inputs, cells.low.new_zeros(len(cells)))[0]
            radius = torch.where(known(graph, cells.index, inputs), 0.0, output.radius)
            cells = _after(graph, cells, _enclosure(output.points, radius, output.norm))
    return cells


def _after(graph: Graph, cells: LineCells, output: Enclosure) -> LineCells:
    """Behind a node, which has made this."""
    dead = graph.last_uses[cells.index]
    values = {number: value for number, value in cells.values.items() if number not in dead}
    return replace(cells, index=cells.index + 1, values={**values, cells.index + 1: output}, is_cut=False)


def _bends(operator: PiecewiseLinear | Jumping, value: Enclosure) -> tuple[Tensor, Tensor]:
    """Cells, and fractions of them, at which to cut."""
    if isinstance(operator, PiecewiseLinear):
        rows = value.points.transpose(0, 1).flatten(0, 1)
        joined = torch.ones(len(rows) - 1, dtype=torch.bool, device=rows.device)
        joined[1::2] = False
        breaks = operator.breaks(rows, joined)
        return breaks.segment // 2, breaks.fraction
    start, end = value.points.flatten(2)
    first, last = (side.flatten(1) for side in operator.values(_outward(value)))
    cell, entry = ((last > first) & (last - first < MOST_JUMPS) & (start != end)).nonzero(as_tuple=True)
    jumps = (last - first)[cell, entry].long()
    number = torch.arange(int(jumps.sum()), device=cell.device) - (jumps.cumsum(0) - jumps).repeat_interleave(jumps)
    cell, entry = cell.repeat_interleave(jumps), entry.repeat_interleave(jumps)
    place = operator.leaves(first[cell, entry] + number)
    start, end, radius = start[cell, entry], end[cell, entry], value.radius.flatten(1)[cell, entry]
    beside = RADII_BESIDE * radius + UNITS_BESIDE * UNIT * (start.abs() + end.abs() + place.abs())
    fractions = [(place + side * beside - start) / (end - start) for side in (-1, 1)]
    return torch.cat([cell, cell]), torch.cat(fractions)


def _outward(value: Enclosure) -> Range:
    """What a value lies between: exactly itself where it is known, and else a number further out on either side."""
    low, high = value.points.amin(0), value.points.amax(0)
    infinity = torch.full_like(low, torch.inf)
    sure = value.radius == 0
    return Range(
        torch.where(sure, low, torch.nextafter(low - value.radius, -infinity)),
        torch.where(sure, high, torch.nextafter(high + value.radius, infinity)),
    )


def _cases(operator: Jumping, cells: LineCells, number: int, most: int) -> tuple[LineCells, Enclosure] | None:
    """Each cell once for every combination of the values that its neurons may have, and what they are.

    Nothing if several cells have more than so many together.
    """
    shape = cells.values[number].radius.shape[1:]
    first, last = (side.flatten(1) for side in operator.values(_outward(cells.values[number])))
    count = last - first + 1
    total = count.prod(1)
    enclosed = ~(total <= MOST_CASES)  # NaN as well
    times = torch.where(enclosed, 1.0, total).long()
    if len(cells) > 1 and int(times.sum()) > most:
        return None
    source = torch.repeat_interleave(times)
    code = torch.arange(len(source), device=source.device) - (times.cumsum(0) - times)[source]
    value, radius = first[source], torch.zeros_like(first)[source]
    wide = enclosed[source]
    value[wide], radius[wide] = ((first + last) / 2)[source][wide], ((last - first) / 2)[source][wide]
    cell, entry = ((count > 1) & ~enclosed.unsqueeze(1)).nonzero(as_tuple=True)
    rank = torch.arange(len(cell), device=cell.device) - torch.searchsorted(cell, cell)
    stride = torch.ones_like(times)
    for place in range(int(rank.max()) + 1 if len(rank) else 0):
        cells_here, entries_here = cell[rank == place], entry[rank == place]
        which = torch.full_like(times, -1)
        which[cells_here] = torch.arange(len(cells_here), device=cells_here.device)
        rows = (which[source] >= 0).nonzero().squeeze(1)
        of = which[source[rows]]
        choices = count[cells_here, entries_here].long()
        value[rows, entries_here[of]] += (code[rows] // stride[cells_here[of]]) % choices[of]
        stride[cells_here] *= choices
    taken = cells.taken(source)
    taken = replace(taken, share=taken.share / times[source], sure=taken.sure & ~wide)
    points = value.view(-1, *shape)
    return taken, _enclosure(torch.stack([points, points]), radius.view(-1, *shape), None)


def _finished(cells: LineCells) -> Finished:
    scores = cells.values[cells.index]
    known = (cells.line, cells.low, cells.high, cells.share, cells.sure)
    columns = (*known, scores.points.flatten(2).transpose(0, 1), scores.radius.flatten(1))
    return Finished(*(column.cpu().numpy() for column in columns))


def _piece(done: Finished) -> Piece:
    """The ends of cells as rows, for the search for counterexamples."""
    z = np.stack([done.low, done.high], 1).ravel()
    columns = (done.line.repeat(2), z, done.scores.reshape(len(z), -1), np.full(len(z), np.nan))
    return Piece(*(torch.from_numpy(column) for column in columns))


def _leads(done: Finished) -> Floats:
    """What each class provably leads all others by on each cell, (n, classes)."""
    slack = done.radius + 4 * UNIT * (np.abs(done.scores).max(1) + done.radius)
    least = np.full(slack.shape, np.inf)
    for at in np.moveaxis(done.scores, 1, 0):
        above = at + slack
        second, first = np.sort(above, 1)[:, -2:].T
        rival = np.where(np.arange(above.shape[1]) == above.argmax(1)[:, None], second[:, None], first[:, None])
        least = np.minimum(least, (at - slack) - rival)
    least -= 4 * UNIT * (np.abs(least) + slack.max(1, keepdims=True))
    return np.where(np.isnan(least), -np.inf, least)


def _curve(every: Finished, number: int, reached: float, evaluated: Callable[[Floats], Floats]) -> Curve:
    """The curve of one line, as far as all cases were finished.

    Between two rows there is one case, and the chord says what the scores are; or there are several, around a jump.
    Rows with no chord on either side are evaluated.
    """
    finished = Finished(*(column[every.line == number] for column in every))
    classes = finished.radius.shape[1]
    z = np.unique(np.concatenate([finished.low, finished.high]))
    if len(z) < 2:
        rows = evaluated(z)
        known_rows = np.isfinite(rows).all(1)
        return Curve(z[known_rows], rows[known_rows])
    first, last = np.searchsorted(z, finished.low), np.searchsorted(z, finished.high)
    spans = last - first
    cell = np.repeat(np.arange(len(first)), spans)
    segment = first[cell] + np.arange(len(cell)) - np.repeat(spans.cumsum() - spans, spans)
    lead = np.full((len(z) - 1, classes), np.inf)
    np.minimum.at(lead, segment, _leads(finished)[cell])
    shares = np.bincount(segment, finished.share[cell], minlength=len(z) - 1)
    alone = (np.bincount(segment, minlength=len(z) - 1)[first] == 1) & (spans == 1) & finished.sure
    rows = np.full((len(z), classes), np.nan)
    rows[first[alone]], rows[last[alone]] = finished.scores[alone, 0], finished.scores[alone, 1]
    count = int(np.searchsorted(z, reached, side="right"))
    between = np.flatnonzero(np.isnan(rows[:count]).all(1))
    rows[between] = evaluated(z[between])
    apart = [np.linalg.norm(rows[at] - finished.scores[:, end], axis=1) for end, at in enumerate((first, last))]
    error = np.full(len(z) - 1, np.inf)
    error[first[alone]] = ((np.linalg.norm(finished.radius, axis=1) + np.maximum(*apart)) * ABOVE + LOST)[alone]
    if not (np.abs(shares[: max(count - 1, 0)] - 1) < EVERY).all():
        raise ProofError("a case of a line is missing")
    broken = np.flatnonzero(~np.isfinite(rows[:count]).all(1))
    count = int(broken[0]) if len(broken) else count
    segments = max(count - 1, 0)
    return Curve(z[:count], rows[:count], error[:segments], lead=lead[:segments])


# -- which numbers float64 has computed without any rounding ----------------------------------------------------------
#
# Next to a jump it matters: a neuron that sees nothing but black is 0, not nearly 0, and the sign of that is 0 as well.

# A product is computed exactly if it is a multiple of this.
SMALLEST = -1000
BITS = 53


def known(graph: Graph, index: int, inputs: Sequence[Enclosure]) -> Tensor:
    """Which entries of a node's output (cells, *shape) were computed exactly, at both ends and so in between."""
    operator = graph.nodes[index].operator
    wrong = [(value.radius != 0).to(value.radius) for value in inputs]  # NaN as well
    exact = torch.zeros(len(wrong[0]), *graph.nodes[index].shape, dtype=torch.bool, device=wrong[0].device)
    if all(bool(part.all()) for part in wrong):
        return exact
    if isinstance(operator, Affine):
        absolute = operator.magnitude()
        sure = (absolute.apply(*wrong) == 0) & (graph.offs[index] == 0)
        if operator.only_moves or not bool(sure.any()):
            return sure
        constant, sizes = graph.constants[index], [value.points.abs().amax(0) for value in inputs]
        lone = absolute.apply(*((size != 0).to(size) for size in sizes)) == 0  # nothing but the constant
        if operator.roundings:
            lone = lone & (constant == 0)
        return sure & (lone | _fits(operator, absolute.apply(*sizes) + constant, inputs))
    if isinstance(operator, (Abs, Clip, MaxPool, Relu)):
        points = inputs[0].points
        changes = torch.maximum(wrong[0], (points[0] != points[1]).to(points))
        return (operator.apply(changes) if isinstance(operator, MaxPool) else changes) == 0
    return exact


def _fits(operator: Affine, sums: Tensor, inputs: Sequence[Enclosure]) -> Tensor | bool:
    """Whether sums of products are whole multiples of one power of two, and none too large: no step is rounded."""
    if operator.roundings or operator.off is not None:
        return False
    if isinstance(operator, (Linear, Conv, Unrolled)):
        weights, constant = _grain(operator.weight), operator.bias
    elif isinstance(operator, Scale):
        weights, constant = _grain(operator.factor), operator.offset
    elif isinstance(operator, Combine):
        weights, constant = 0, torch.zeros(1)
    else:
        return False
    exact = [torch.where(value.radius != 0, 0.0, value.points) for value in inputs]
    grain = min(weights + min(map(_grain, exact)), _grain(constant))
    return (sums < 2.0 ** (grain + BITS - 1)) if grain > SMALLEST else False


def _grain(x: Tensor) -> int:
    """The exponent of a power of two that all numbers are multiples of, the largest unless they are whole."""
    if bool((x == x.round()).all()):
        return 0
    mantissa, exponent = torch.frexp(x[x != 0].double())
    whole = (mantissa * 2.0**BITS).long()
    lowest = torch.frexp((whole & -whole).double())[1] - 1
    return int((exponent - BITS + lowest).min())
