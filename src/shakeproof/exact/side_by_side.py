"""One sweep on several cores: its lines in groups, each swept by a thread of its own.

Products of a few rows are too small to be shared by cores, and what lies between them is not shared at all; groups are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue

import torch
from torch import Tensor

from shakeproof.bounds import cells_within
from shakeproof.budget import Budget
from shakeproof.errors import MemoryBudgetError
from shakeproof.exact.sweep import Lines, Piece, count_breaks, longest_window, sweep
from shakeproof.model import Graph, bending_values
from shakeproof.products import wants_one_thread
from shakeproof.rounding import Chords

# Work is counted in entries that a sweep is predicted to compute: with fewer than this, a group is not worth a thread;
# with many more, what there is time for would not be from the left. In between, so many groups for each core.
LEAST_WORK, MOST_WORK, GROUPS_A_CORE = 2e7, 1e9, 4
# Breaks are counted on so many of the lines, and not at all where the usual number for each value would be little work.
COUNTED, USUAL_BREAKS = 8, 0.1


# Rows with fewer values than this are too small for torch's own threads: one is faster than two, the more so if one
# thread has a library that is faster than torch's.
SMALL_ROW, SMALL_BESIDE_FASTER = 10**5, 4 * 10**6


@contextmanager
def threads_for(graph: Graph, cores: int) -> Iterator[None]:
    """As many threads for torch's products as they are worth: all cores for large networks, one for small ones."""
    before = torch.get_num_threads()
    small = SMALL_BESIDE_FASTER if wants_one_thread() else SMALL_ROW
    torch.set_num_threads(cores if graph.entries >= small else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cores_for(graph: Graph, lines: Lines, budget: Budget) -> int:
    """How many groups of lines may be swept at once, and bounded, as far as memory goes."""
    cores = budget.cores if lines.start.device.type == "cpu" else 1
    while cores > 1:
        try:
            longest_window(graph, budget.shared(cores))
            cells_within(graph, budget.shared(cores), 1)
        except MemoryBudgetError:
            cores -= 1
        else:
            break
    return cores


def groups_for(graph: Graph, lines: Lines, cores: int) -> int:
    """Into how many groups lines should be cut; counted on some of them, not timed."""
    if cores == 1:
        return 1
    length = float((lines.end - lines.start).sum())
    if USUAL_BREAKS * bending_values(graph) * graph.entries * length < 2 * LEAST_WORK:
        return 1
    some = torch.arange(0, len(lines), -(-len(lines) // COUNTED), device=lines.start.device)
    ends = torch.stack([lines.start[some], lines.end[some]], 1).flatten()
    breaks = count_breaks(graph, lines.at(some.repeat_interleave(2), ends))[1].sum()
    counted = float((ends[1::2] - ends[::2]).sum())
    work = float(breaks) * graph.entries * length / counted if counted else 0.0
    return max(1, int(min(work / LEAST_WORK, max(GROUPS_A_CORE * cores, work / MOST_WORK))))


def grouped(lines: Lines, count: int) -> list[slice]:
    """Neighbouring lines in at most so many groups of about the same length."""
    if count == 1 or not len(lines):
        return [slice(0, len(lines))] if len(lines) else []
    done = (lines.end - lines.start).cumsum(0)
    edges = torch.linspace(0, float(done[-1]), count + 1, dtype=done.dtype, device=done.device)[1:-1]
    cuts = sorted({0, len(lines), *(torch.searchsorted(done, edges * (1 - 1e-9)) + 1).clamp(max=len(lines)).tolist()})
    return [slice(start, end) for start, end in pairwise(cuts)]


def sweep_side_by_side(
    graph: Graph,
    lines: Lines,
    groups: Sequence[slice],
    cores: int,
    budget: Budget,
    is_open: Callable[[], Tensor],
    chords: Chords | None,
) -> Iterator[Piece]:
    """What `sweep` gives, in the same order; groups are begun from left to right."""
    if len(groups) < 2 or cores < 2:
        yield from sweep(graph, lines, budget, is_open, chords)
        return
    if chords is not None:
        assert chords.effects  # worked out once, not by each
    stopped = False
    share, threads = budget.shared(cores), torch.get_num_threads()
    finished: list[SimpleQueue[Piece | BaseException | None]] = [SimpleQueue() for _ in groups]

    @torch.inference_mode()
    def work(group: slice, pieces: SimpleQueue[Piece | BaseException | None]) -> None:
        torch.set_num_threads(1)
        own = Lines(lines.paths, lines.start[group], lines.end[group], lines.path[group])
        try:
            for piece in sweep(graph, own, share, lambda: is_open()[group] & (not stopped), chords):
                pieces.put(piece._replace(line=piece.line + group.start))
            pieces.put(None)
        except BaseException as error:  # or somebody would wait for ever
            pieces.put(error)

    try:
        with ThreadPoolExecutor(cores) as pool:
            try:
                for group, pieces in zip(groups, finished, strict=True):
                    pool.submit(work, group, pieces)
                for pieces in finished:
                    while (piece := pieces.get()) is not None:
                        if isinstance(piece, BaseException):
                            raise piece
                        yield piece
            finally:
                stopped = True  # whoever asked may have heard enough
    finally:  # when no thread is left that has set its own
        torch.set_num_threads(threads)
