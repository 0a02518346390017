"""A sweep shared with other processes: into which jobs it is cut, and how one of them is done.

Cuts are counted, not timed, and it does not matter who does a job: the same queries give the same pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.crew import MOST_JOBS
from shakeproof.exact.sweep import Lines, Piece, count_breaks, sweep
from shakeproof.model import Graph, bending_values
from shakeproof.rounding import Chords

Floats = NDArray[np.float64]
# Work is counted in entries that a sweep is predicted to compute. What a job costs beside is that of so many entries
# for each node. Work is shared if it is so many times that; several jobs for each core if it is so many times that for
# each; and as many as it takes if each would take long. Before a deadline, some tenths of a second are long: what there
# is time for should be from the left.
ENTRIES_A_NODE, WORTH_SHARING, SEVERAL, MOST_WORK, MOST_BEFORE_A_DEADLINE = 3e5, 2.0, 10.0, 1e9, 1e8
JOBS_A_CORE = 6
# The first of several jobs for each core are larger, the last ones smaller by such a share: so all end at about the
# same time, whatever was predicted; and none is larger than such a share of what a core has to do. Of one for each, the
# last is smaller: whoever asks has the runtime to ask as well, which takes as long as sweeping so many rows of each
# line does. But it is no smaller than such a share of the others.
SMALLER, LARGEST, ROWS_ASKED, SMALLEST = 0.75, 0.8, 30, 0.2
# Breaks are counted on so many parts of all lines, or on so many lines; and not at all where the usual number of them
# for each value that may make a neuron bend would be little work.
PARTS, MOST_COUNTED, USUAL_BREAKS = 8, 24, 0.1
TINY = 1e-300
# Lines that are swept together share what a job costs beside: it should have so many, or be so many times that.
LINES_A_JOB, LONG_JOB = 4, 4
# A cut is moved to the end of a line that is closer than such a share of a job.
CLOSE = 0.15


class Bench(Protocol):
    """What jobs are about, for whoever does them."""

    @property
    def graph(self) -> Graph: ...
    @property
    def lines(self) -> Lines: ...
    @property
    def labels(self) -> NDArray[np.int64]: ...
    @property
    def chords(self) -> Chords | None: ...


class Laid(NamedTuple):
    """A bench."""

    graph: Graph
    lines: Lines
    labels: NDArray[np.int64]
    chords: Chords | None


class Helpers(Protocol):
    """Other processes with the same bench: so many `cores` in all, for so much `work`."""

    @property
    def cores(self) -> int: ...

    @property
    def work(self) -> Work: ...

    def results(
        self,
        jobs: Sequence[Any],
        own: Callable[[Any, Budget], Any] | None = None,
        meanwhile: Callable[[], object] = bool,
    ) -> Iterator[Any]:
        """What becomes of each job, in their order. Here they are done by `own`, or as anywhere; and something else is
        done `meanwhile`, when others have begun.
        """

    def compare(self) -> object:
        """What nobody else can do, and should be done while others sweep."""


@dataclass(frozen=True, eq=False)
class SweepJob:
    """Stretches of a bench's lines, to be swept."""

    start: Tensor
    end: Tensor
    path: Tensor

    def do(self, bench: Bench, budget: Budget, is_open: Callable[[], Tensor] | None = None) -> list[Piece]:
        lines = Lines(bench.lines.paths, self.start, self.end, self.path)
        # as they are: that neighbours share a row is checked where curves are made of them
        return list(sweep(bench.graph, lines, budget, is_open, bench.chords))


def sweep_by(
    helpers: Helpers,
    bench: Bench,
    windows: Lines,
    groups: Sequence[slice],
    budget: Budget,
    is_open: Callable[[], Tensor],
) -> Iterator[Piece]:
    """What `sweep` gives of some lines, in the same order; groups of them are jobs, but for those that are closed."""
    opened = is_open()
    numbers = [own for group in groups if len(own := opened[group].nonzero().squeeze(1) + group.start)]
    jobs = {SweepJob(windows.start[own], windows.end[own], windows.path[own]): own for own in numbers}

    def here(job: SweepJob, share: Budget) -> list[Piece]:
        return job.do(bench, share, lambda: is_open()[jobs[job]])

    for own, pieces in zip(numbers, helpers.results(list(jobs), here, helpers.compare), strict=True):
        for piece in pieces:
            yield piece._replace(line=own[piece.line])
        if not budget.is_late() and not bool(is_open().any()):  # if it is late, others come to an end by themselves
            return


class Work(NamedTuple):
    """How much there is to do on lines: so many entries, (lines, parts), on parts of each from its start to its end."""

    start: Floats
    end: Floats
    entries: Floats

    @property
    def total(self) -> float:
        return float(self.entries.sum())

    def without(self, closed: Sequence[int]) -> Work:
        """The same, with nothing to do on some lines."""
        entries = self.entries.copy()
        entries[list(closed)] = 0.0
        return self._replace(entries=entries)

    def on(self, path: int, low: float, high: float) -> list[float]:
        """On parts of a stretch of a line, each of the same length."""
        parts = self.entries.shape[1]
        edges = np.linspace(self.start[path], self.end[path], parts + 1)
        done = np.concatenate([[0.0], self.entries[path].cumsum()])
        found: list[float] = np.diff(np.interp(np.linspace(low, high, parts + 1), edges, done)).tolist()
        return found


def job_cost(graph: Graph) -> float:
    return ENTRIES_A_NODE * len(graph.nodes)


def counted(graph: Graph, lines: Lines, most: int) -> Work:
    """How much work lines are, by how often neurons bend on parts of them; so many rows are evaluated at once.

    Nothing, if it is little work for sure. Of many lines, some are counted, and speak for those that follow; and one
    break more than is seen is taken for granted on each part.
    """
    device, values = lines.start.device, graph.entries
    start, end = (ends.cpu().numpy() for ends in (lines.start, lines.end))
    length = end - start
    if USUAL_BREAKS * bending_values(graph) * values * length.sum() < WORTH_SHARING * job_cost(graph):
        return Work(start, end, np.zeros((len(lines), 1)))
    parts, together = max(1, PARTS // len(lines)), -(-len(lines) // MOST_COUNTED)
    some, run = torch.arange(0, len(lines), together, device=device), parts + 1
    line, share = some.repeat_interleave(run), torch.linspace(0, 1, run, dtype=torch.float64, device=device)
    z = lines.start[line] + share.repeat(len(some)) * (lines.end - lines.start)[line]
    step = run * max(1, most // run)
    rows = (lines.at(*ends) for ends in zip(line.split(step), z.split(step), strict=True))
    found = torch.cat([count_breaks(graph, some_rows, run)[1] for some_rows in rows])
    breaks = found.view(len(some), parts).double().cpu().numpy() + 1
    if together > 1:
        density = breaks[:, 0] / np.maximum(length[::together], TINY)
        breaks = (density.repeat(together)[: len(lines)] * length)[:, None]
    return Work(start, end, breaks * values)


def lines_by_work(graph: Graph, work: Work, cores: int) -> list[range]:
    """Jobs of about the same work, of whole lines: their numbers."""
    each = work.entries.sum(1, keepdims=True)
    most = max(len(each) // LINES_A_JOB, min(len(each), int(work.total / (LONG_JOB * job_cost(graph)))))
    cuts = _cuts(each, _jobs(graph, work.total, len(each), cores, max(cores, most)))
    return [range(low, high) for low, high in pairwise(sorted({0, len(each), *map(round, cuts)}))]


def cut_by_work(
    graph: Graph, work: Work, lines: Lines, cores: int, is_timed: bool
) -> list[list[tuple[int, float, float]]]:
    """Jobs of about the same work, from the first line to the last and from left to right: for each line, which is part
    of one that was counted, its stretches, as the number of the job, start and end.
    """
    stretches = list(zip(lines.path.tolist(), lines.start.tolist(), lines.end.tolist(), strict=True))
    each = np.array([work.on(*stretch) for stretch in stretches])
    total, cost = float(each.sum()), job_cost(graph)
    longest = max(MOST_BEFORE_A_DEADLINE, SEVERAL * cost) if is_timed else MOST_WORK
    asked = len(set(lines.path.tolist()))
    is_cut = total >= WORTH_SHARING * cost
    cuts = _cuts(each, _jobs(graph, total, asked, cores, MOST_JOBS, longest)) if is_cut else []
    found, parts = [], work.entries.shape[1]
    for number, (_, low, high) in enumerate(stretches):
        before = sum(cut <= number * parts for cut in cuts)
        inside = [cut / parts - number for cut in cuts if number * parts < cut < (number + 1) * parts]
        edges = [low, *(low + (high - low) * share for share in inside), high]
        if inside and not all(a < b for a, b in pairwise(edges)):  # too short to be cut
            edges = [low, high]
        found.append([(before + step, *stretch) for step, stretch in enumerate(pairwise(edges))])
    return found


def _jobs(graph: Graph, total: float, lines: int, cores: int, most: int, longest: float = math.inf) -> Floats:
    """Into how many jobs so much work on some lines should be cut, none of them longer than that; their sizes."""
    several = min(max(round(total / (SEVERAL * job_cost(graph))), 1), JOBS_A_CORE)
    count = min(cores * max(several, math.ceil(total / longest / cores)), most)
    if count > cores:
        taper = min(SMALLER, LARGEST * count / cores - 1) if count <= JOBS_A_CORE * cores else 0.0
        return np.linspace(1 + taper, 1 - taper, count)
    asking = ROWS_ASKED * lines * graph.entries
    sizes = np.full(count, (total + asking) / count)
    sizes[-1] = max(sizes[-1] - asking, SMALLEST * sizes[-1])
    return sizes


def _cuts(work: Floats, jobs: Floats) -> list[float]:
    """Where to cut lines with so much work on their parts, (lines, parts), into jobs of such sizes: in parts from the
    first one's start. At the end of a line, if one is close.
    """
    done, sizes, count = np.concatenate([[0.0], work.cumsum()]), jobs.cumsum(), len(jobs)
    wanted = done[-1] * sizes[:-1] / sizes[-1]
    cuts = np.interp(wanted, done, np.arange(len(done)))
    ends = np.arange(0, len(done), work.shape[1])
    near = ends[np.abs(done[ends][None, :] - wanted[:, None]).argmin(1)]
    is_close = np.abs(done[near] - wanted) <= CLOSE * done[-1] / count
    chosen = {float(cut) for cut in np.where(is_close, near, cuts)}
    return sorted(cut for cut in chosen if 0 < cut < len(done) - 1)
