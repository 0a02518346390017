"""The exact sweep: class scores at every breakpoint of a piecewise-linear network along many lines at once.

A line is a path of inputs x(z) with one strength over an interval of z. Along it every value of the network is
piecewise linear in z, so a value is known from its rows: what it is at a sorted list of z, with chords in between.
Affine operators act on all rows at once. At an operator that bends, the crossings are computed from the chords and
inserted as rows, after which its output is chords again (`PiecewiseLinear.breaks`). The last operator's rows are the
answer; it is complete, since every bend of every neuron has become a row.

Rows are processed in windows, depth first and from left to right. At each bending operator the planned rows of a
window are cut into windows no longer than the memory budget allows; neighbours share one row, so that no segment is
lost. A window's rows are only computed when its turn comes, so memory holds at most one window for each such operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.network import Graph, once_for_each
from shakeproof.operators import BLOCK_BYTES, Breaks, Jumping, PiecewiseLinear
from shakeproof.path import Path
from shakeproof.rounding import Chords, norm

FLOAT_BYTES = 8
FIXED_BYTES = 4 * BLOCK_BYTES  # of a convolution
BREAK_BYTES = 64  # for finding and sorting a break; a segment may have one for each neuron
SHORTEST_WINDOW = 4
FEW_ROWS = 12
# Longer windows than this gain nothing from larger products; but each repeats a row of its neighbour.
WINDOW_BYTES = 128 * 2**20
WINDOW_ROWS = 16


@dataclass(frozen=True, eq=False)
class Lines:
    """Stretches [start, end] (lines) of a stack of paths with one strength; line i is on path[i]."""

    paths: Path
    start: Tensor
    end: Tensor
    path: Tensor

    def __len__(self) -> int:
        return len(self.start)

    def at(self, line: Tensor, z: Tensor) -> Tensor:
        """The inputs (rows, *input_shape) on given lines at given z."""
        return self.paths.rows(self.path[line], z)


class Piece(NamedTuple):
    """A stretch of finished rows, sorted by line and z: scores (rows, classes) at z (rows) on line (rows).

    `error` (rows) bounds the norm of what is between the scores and the chord from a row to the next.
    """

    line: Tensor
    z: Tensor
    scores: Tensor
    error: Tensor


class Plan(NamedTuple):
    """Rows to be made from the rows of a window: row k lies on segment source[k], at `fraction` of it, at z.

    `gap` is what a bend that falls together with a row may add to the error of the segments on either side.
    """

    line: Tensor
    z: Tensor
    source: Tensor
    fraction: Tensor
    gap: Tensor

    def part(self, start: int, end: int) -> Plan:
        return Plan(*(column[start:end] for column in self))

    @property
    def cut(self) -> Tensor:
        """Which rows are at the start or the end of a part of a segment that new rows cut: each one's own part."""
        new = self.fraction > 0
        new[:-1] |= new[1:].clone()
        return new

    def of_lines(self, open_lines: Tensor) -> Plan:
        """Only the rows on lines that are still open (lines,)."""
        keep = open_lines[self.line]
        return self if bool(keep.all()) else Plan(*(column[keep] for column in self))


class Window(NamedTuple):
    """Rows planned from `values` (by value number); node number `node` bends at none but these rows. -1: the input.

    If that is asked, `sizes` are those of the values, and `error` is how far scores may be from their chords, by what
    was done so far.
    """

    node: int
    plan: Plan
    values: Mapping[int, Tensor]
    sizes: Mapping[int, Tensor]
    error: Tensor


class OtherArithmetic(ABC):
    """Chords that are not of float64 numbers, and swept in a way of their own."""

    @abstractmethod
    def sweep(self, lines: Lines, budget: Budget, is_open: Callable[[], Tensor] | None) -> Iterator[Piece]:
        """What `sweep` gives."""


def sweep(
    graph: Graph,
    lines: Lines,
    budget: Budget,
    is_open: Callable[[], Tensor] | None = None,
    chords: Chords | None = None,
) -> Iterator[Piece]:
    """Scores at every breakpoint of every line, in order of line and z; neighbouring pieces share a row.

    The budget bounds the working set, and ends the sweep where its time is up. `is_open` is asked before each window
    for a mask of the lines that still matter; what is left of the others is dropped. Without `chords`, errors are not
    looked at, and NaN.
    """
    if isinstance(chords, OtherArithmetic):
        yield from chords.sweep(lines, budget, is_open)
        return
    longest = longest_window(graph, budget)
    line = torch.arange(2 * len(lines), device=lines.start.device) // 2
    z = torch.stack([lines.start, lines.end], 1).flatten()
    ends = Plan(line, z, torch.arange(len(z), device=z.device), torch.zeros_like(z), torch.zeros_like(z))
    rows = lines.at(line, z)
    sizes, error = {}, torch.full_like(z, torch.nan)
    if chords is not None:
        sizes[0], error = chords.start(rows, norm(lines.paths.error)[lines.path][line])
    stack = list(cut_into_windows(Window(-1, ends, {0: rows}, sizes, error), longest))
    del rows
    while stack:
        window = stack.pop()
        if is_open is not None:
            wanted = is_open()
            if not bool(wanted.any()):
                return
            window = window._replace(plan=window.plan.of_lines(wanted))
        if len(window.plan.z):
            step = advance(graph, window, chords, budget)
            if step is None:
                return
            if isinstance(step, Piece):
                yield step
            else:
                stack.extend(cut_into_windows(step, longest))


def count_breaks(graph: Graph, rows: Tensor, run: int = 2) -> tuple[Tensor, Tensor]:
    """Scores at the ends of some segments, and how often a neuron bends between the two: (2 n, classes) and (n).

    Rows (2 n, *input_shape) are the ends in turn; or so many rows in a `run` follow one another on each of n lines, and
    segments are between them. Neurons that bend and bend back are not seen, nor are those that bend because others did:
    there are at least so many breaks.
    """
    joined = torch.ones(len(rows) - 1, dtype=torch.bool, device=rows.device)
    joined[run - 1 :: run] = False
    counts = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    values = {0: rows}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.operator, PiecewiseLinear):
            segment = node.operator.breaks(values[node.inputs[0]], joined).segment
            counts += torch.bincount(segment, minlength=len(counts))
        values[index + 1] = node.operator.apply(*(values[i] for i in node.inputs))
        for dead in graph.last_uses[index]:
            del values[dead]
    return values[len(graph.nodes)], counts.view(-1, run)[:, :-1].flatten()


def advance(graph: Graph, window: Window, chords: Chords | None, budget: Budget) -> Piece | Window | None:
    """Run a window's rows to the end, or to the next operator that bends between them: rows to insert before it.

    None if the time is up before that: of a deep network, one window may take long.
    """
    plan = window.plan
    values = {number: make_rows(plan, rows) for number, rows in window.values.items()}
    sizes = {number: size[plan.source] for number, size in window.sizes.items()}
    error = window.error[plan.source]
    if chords is not None:
        error = torch.where(plan.cut, error + chords.between(sizes), error)
    joined = plan.line[1:] == plan.line[:-1]
    for index in range(max(window.node, 0), len(graph.nodes)):
        if budget.is_late():
            return None
        node = graph.nodes[index]
        if isinstance(node.operator, PiecewiseLinear) and index != window.node:
            breaks = node.operator.breaks(values[node.inputs[0]], joined)
            if len(breaks.segment):
                return Window(index, insert(plan, breaks), values, sizes, error)
        inputs, given = [values[i] for i in node.inputs], [sizes[i] for i in node.inputs if i in sizes]
        for dead in graph.last_uses[index]:
            del values[dead]
            sizes.pop(dead, None)
        if isinstance(node.operator, PiecewiseLinear) and index in graph.overwriting:
            values[index + 1] = node.operator.overwrite(inputs[0])
        else:
            values[index + 1] = node.operator.apply(*inputs)
        del inputs
        if chords is not None:
            gaps = plan.gap if index == window.node else None
            sizes[index + 1], made = chords.after(index, given, values[index + 1], gaps)
            error = error + made
    return Piece(plan.line, plan.z, values[len(graph.nodes)], error)


def insert(plan: Plan, breaks: Breaks) -> Plan:
    """The rows of a window together with its breaks, in order.

    A break that falls on an end of its segment, or on another break, adds nothing: no segment of length zero. By what
    fraction it is missed says how much the output bends between rows, a gap.
    """
    z, (segment, fraction, height) = plan.z, breaks
    at = z[segment] + fraction * (z[segment + 1] - z[segment])
    at = torch.minimum(torch.maximum(at, z[segment]), z[segment + 1])
    order = at.argsort()
    order = order[segment[order].argsort(stable=True)]
    at, segment, fraction, height = at[order], segment[order], fraction[order], height[order]
    inside = (at > z[segment]) & (at < z[segment + 1])
    fresh = inside.clone()
    fresh[1:] &= (at[1:] != at[:-1]) | (segment[1:] != segment[:-1])

    rows, kept = torch.arange(len(z), device=z.device), segment[fresh]
    before = torch.bincount(kept, minlength=len(z)).cumsum(0).roll(1)
    before[0] = 0
    old, new = rows + before, kept + 1 + torch.arange(len(kept), device=z.device)

    def merged(of_old: Tensor, of_new: Tensor) -> Tensor:
        column = of_old.new_empty(len(of_old) + len(of_new))
        column[old] = of_old
        column[new] = of_new
        return column

    made = Plan(
        merged(plan.line, plan.line[kept]),
        merged(z, at[fresh]),
        merged(rows, kept),
        merged(torch.zeros_like(z), fraction[fresh]),
        z.new_zeros(len(z) + len(kept)),
    )
    missed = ~fresh
    if bool(missed.any()):
        at_end = at == z[segment + 1]
        number = fresh.cumsum(0) - 1  # of the break that an equal one was merged with
        row = (
            torch.where(inside, new[number], old[segment + at_end.long()]) if len(new) else old[segment + at_end.long()]
        )
        there = torch.where(inside, made.fraction[row], at_end.to(z.dtype))
        gap = ((fraction - there).abs() * height)[missed]
        for side in (row[missed], (row[missed] - 1).clamp(min=0)):
            made.gap.index_add_(0, side, gap)
    return made


def make_rows(plan: Plan, rows: Tensor) -> Tensor:
    """The planned rows of one value: copies of its rows, and points on the chords between them."""
    flat = rows.reshape(len(rows), -1)
    first, last = int(plan.source[0]), min(int(plan.source[-1]) + 1, len(rows) - 1)
    new = plan.fraction.nonzero().squeeze(1)
    if last - first < FEW_ROWS and len(new):
        # Many points on few segments: a product with two weights a row writes each entry once.
        weights = rows.new_zeros(len(plan.z), last - first + 1)
        weights.scatter_(1, (plan.source - first).unsqueeze(1), (1 - plan.fraction).unsqueeze(1))
        weights[new, plan.source[new] + 1 - first] = plan.fraction[new]
        made = weights @ flat[first : last + 1]
    else:
        made = flat.index_select(0, plan.source)
        if len(new):
            start, end = (flat.index_select(0, plan.source[new] + step) for step in (0, 1))
            made.index_copy_(0, new, end.sub_(start).mul_(plan.fraction[new].unsqueeze(1)).add_(start))
    return made.view(-1, *rows.shape[1:])


def cut_into_windows(window: Window, longest: int) -> Iterator[Window]:
    """Windows of at most `longest` rows, from right to left (so that the leftmost ends on top of the stack).

    A window begins with the last row of the one before it, unless that row is the end of its line.
    """
    plan = window.plan
    end = len(plan.z)
    count = max(1, -(-(end - 1) // (longest - 1)))
    starts = [end * k // count for k in range(count)]
    for start in reversed(starts):
        shares = start > 0 and bool(plan.line[start - 1] == plan.line[start])
        yield window._replace(plan=plan.part(start - shares, end))
        end = start


def longest_window(graph: Graph, budget: Budget) -> int:
    """How many rows a window may have so that all windows waiting at once, and one at work, fit the budget."""
    waiting, at_work, fixed = _bytes(graph)
    rows = budget.fitting(waiting + at_work, "the network", fixed=fixed, least=SHORTEST_WINDOW)
    return min(rows, max(WINDOW_ROWS, WINDOW_BYTES // at_work))


@once_for_each
def _bytes(graph: Graph) -> tuple[int, int, int]:
    """What a row takes in the windows that wait, and in the one at work; and what is needed however many there are."""
    waiting, at_work = 0, 0
    for node, size in zip(graph.nodes, graph.live_sizes, strict=True):
        live = FLOAT_BYTES * size
        output = FLOAT_BYTES * node.shape.numel()
        at_work = max(at_work, live + output + node.operator.workspace(*(graph.shape(i) for i in node.inputs)))
        if isinstance(node.operator, (PiecewiseLinear, Jumping)):
            waiting += live
    bending = [node.shape.numel() for node in graph.nodes if isinstance(node.operator, (PiecewiseLinear, Jumping))]
    return waiting, at_work, FIXED_BYTES + BREAK_BYTES * max(bending, default=0)
