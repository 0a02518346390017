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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.exact.curve import Piece
from shakeproof.exact.rows import Plan, affine_runs, carry, defer_rows, insert, make_rows
from shakeproof.graph import Graph, bending_values, cached_per_graph
from shakeproof.operators import BLOCK_BYTES, BentOutput, Jumping, PiecewiseLinear
from shakeproof.question import Path
from shakeproof.rounding import RunningError, norm

FLOAT_BYTES = 8
FIXED_BYTES = 4 * BLOCK_BYTES  # of a convolution
BREAK_BYTES = 64  # for finding and sorting a break; a segment may have one for each neuron
SHORTEST_WINDOW = 4
# Longer windows than this gain nothing from larger products; but each repeats a row of its neighbour.
WINDOW_BYTES = 128 * 2**20
WINDOW_ROWS = 16
# Before anything is known of a line: breaks for each value that may make a neuron bend.
BREAKS_A_VALUE = 0.1


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


class Window(NamedTuple):
    """Rows planned from `values` (by value number); node number `node` bends at none but these rows. -1: the input.

    If the node's output is known at the rows of `values` and between them (`bent`), its rows are among the values.
    If that is asked, `sizes` are those of the values, and `error` is how far scores may be from their chords, by what
    was done so far.
    """

    node: int
    plan: Plan
    values: Mapping[int, Tensor]
    sizes: Mapping[int, Tensor]
    error: Tensor
    bent: BentOutput | None = None


def sweep(
    graph: Graph,
    lines: Lines,
    budget: Budget,
    is_open: Callable[[], Tensor] | None = None,
    running_error: RunningError | None = None,
) -> Iterator[Piece]:
    """Scores at every breakpoint of every line, in order of line and z; neighbouring pieces share a row.

    The budget bounds the working set, and ends the sweep where its time is up. `is_open` is asked before each window
    for a mask of the lines that still matter; what is left of the others is dropped. Without `running_error`, errors
    are not looked at, and NaN.
    """
    longest = longest_window(graph, budget)
    line = torch.arange(2 * len(lines), device=lines.start.device) // 2
    z = torch.stack([lines.start, lines.end], 1).flatten()
    ends = Plan.of(line, z)
    rows = lines.at(line, z)
    sizes, error = {}, torch.full_like(z, torch.nan)
    if running_error is not None:
        sizes[0], error = running_error.start(rows, norm(lines.paths.error)[lines.path][line])
    stack = list(cut_into_windows(Window(-1, ends, {0: rows}, sizes, error), longest))
    del rows
    while stack:
        window = stack.pop()
        if is_open is not None:
            wanted = is_open()
            if not bool(wanted.all()):
                if not bool(wanted.any()):
                    return
                window = window._replace(plan=window.plan.of_lines(wanted))
        if len(window.plan.z):
            step = advance(graph, window, running_error, budget)
            if step is None:
                return
            if isinstance(step, Piece):
                yield step
            else:
                stack.extend(cut_into_windows(step, longest))


def usual_breaks(graph: Graph) -> float:
    """How many breaks a line has, before anything is known of it."""
    return BREAKS_A_VALUE * bending_values(graph)


def count_breaks(graph: Graph, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scores at the ends of some segments, and how often a neuron bends between the two: (2 n, classes) and (n).

    Rows (2 n, *input_shape) are the ends in turn. Neurons that bend and bend back are not seen, nor are those that bend
    because others did: there are at least so many breaks.
    """
    joined = torch.ones(len(rows) - 1, dtype=torch.bool, device=rows.device)
    joined[1::2] = False
    counts = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    values = {0: rows}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.operator, PiecewiseLinear):
            segment = node.operator.breaks(values[node.inputs[0]], joined).segment
            counts += torch.bincount(segment, minlength=len(counts))
        values[index + 1] = node.operator.apply(*(values[i] for i in node.inputs))
        for dead in graph.last_uses[index]:
            del values[dead]
    return values[len(graph.nodes)], counts[::2]


def advance(graph: Graph, window: Window, running_error: RunningError | None, budget: Budget) -> Piece | Window | None:
    """Run a window's rows to the end, or to the next operator that bends between them: rows to insert before it.

    None if the time is up before that: of a deep network, one window may take long.
    """
    plan = window.plan
    deferred = defer_rows(graph, window.node, plan)
    rows = plan if deferred is None else deferred.early
    values = make_rows(rows, window.values)
    if window.bent is not None:
        window.bent.put_between(values[window.node + 1], rows.source, rows.fraction)
    sizes = {number: size.index_select(0, rows.source) for number, size in window.sizes.items()}
    error = window.error.index_select(0, rows.source)
    if running_error is not None and window.node >= 0:
        error = torch.where(rows.cut, error + running_error.between(sizes), error)
    entries = {} if deferred is None else {window.node + 1: deferred.entries}
    joined = plan.line[1:] == plan.line[:-1]
    for index in range(max(window.node, 0), len(graph.nodes) + 1):
        if deferred is not None and index == affine_runs(graph)[window.node].end:
            values = deferred.completed(values, entries)
            if window.node + 1 in values:  # of a ReLU: where that is off, chords and kinks add up to about nothing
                values[window.node + 1].clamp_(min=0)
            sizes, error = deferred.sized(sizes, error, entries, running_error)
            deferred = None
        if index == len(graph.nodes):
            break
        if budget.is_late():
            return None
        node = graph.nodes[index]
        if isinstance(node.operator, PiecewiseLinear) and index != window.node:
            breaks = node.operator.breaks(values[node.inputs[0]], joined)
            if len(breaks.segment):
                if breaks.output is not None:
                    later = {number: rows for number, rows in values.items() if number not in graph.last_uses[index]}
                    values = {**later, index + 1: breaks.output.rows}
                return Window(index, insert(plan, breaks), values, sizes, error, breaks.output)
        read_sizes = [sizes[i] for i in node.inputs if i in sizes]
        if index + 1 not in values:
            values[index + 1] = node.operator.apply(*(values[i] for i in node.inputs))
        for dead in graph.last_uses[index]:
            values.pop(dead, None)
            sizes.pop(dead, None)
        if deferred is not None and index != window.node:
            carry(graph, index, entries)
        if running_error is not None:
            gaps = rows.gap if index == window.node else None
            sizes[index + 1] = running_error.after(index, read_sizes, values[index + 1], error, gaps)
    return Piece(plan.line, plan.z, values[len(graph.nodes)], error)


def cut_into_windows(window: Window, longest: int) -> Iterator[Window]:
    """Windows of at most `longest` rows, from right to left (so that the leftmost ends on top of the stack).

    A window begins with the last row of the one before it, unless that row is the end of its line.
    """
    plan = window.plan
    end = len(plan.z)
    count = max(1, -(-(end - 1) // (longest - 1)))
    if count == 1:
        yield window
        return
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


@cached_per_graph
def _bytes(graph: Graph) -> tuple[int, int, int]:
    """What a row takes in the windows that wait, and in the one at work; and what is needed however many there are."""
    waiting, at_work = 0, 0
    for node, size in zip(graph.nodes, graph.live_sizes, strict=True):
        live = FLOAT_BYTES * size
        output = FLOAT_BYTES * node.shape.numel()
        at_work = max(at_work, live + output + node.operator.workspace(*(graph.shape(i) for i in node.inputs)))
        if isinstance(node.operator, (PiecewiseLinear, Jumping)):
            waiting += live
            at_work = max(at_work, 2 * live)  # deferred rows beside early ones
    bending = [node.shape.numel() for node in graph.nodes if isinstance(node.operator, (PiecewiseLinear, Jumping))]
    return waiting, at_work, FIXED_BYTES + BREAK_BYTES * max(bending, default=0)
