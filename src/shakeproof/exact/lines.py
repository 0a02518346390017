"""One curve for each of many lines that share a sweep: bridges where bounds settle who leads, every piece elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import cells_within
from shakeproof.budget import Budget
from shakeproof.errors import MemoryBudgetError
from shakeproof.exact.bridges import find_bridges
from shakeproof.exact.curve import CertifiedCell, Curve, Piece, assemble, join
from shakeproof.exact.sweep import Lines, count_breaks, longest_window, sweep, usual_breaks
from shakeproof.graph import Graph
from shakeproof.linalg import on_threads, wants_one_thread
from shakeproof.rounding import RunningError

# The share of a timeout that may go into bridges; most is the sweep's.
BRIDGE_SHARE = 0.25
Part = tuple[float, float, CertifiedCell | None]
"""Part of a line: its ends, and the cell that spares sweeping it, if there is one."""


def swept_curves(
    graph: Graph,
    lines: Lines,
    labels: NDArray[np.int64],
    budget: Budget,
    closed: Sequence[int] = (),
    whole: bool = False,
    running_error: RunningError | None = None,
    look: Callable[[Piece], Iterable[int]] | None = None,
) -> list[Curve]:
    """A curve for each line, from its start as far as the clock let it come.

    Nothing is done on lines that are `closed`. `look` is shown each finished piece, with its lines, and says on which
    of them no more is wanted. With `whole`, every piece is enumerated; without `running_error`, errors are not looked
    at. Both go without saying for a network that jumps.
    """
    segments, owner = _segments(lines)
    segments.paths.check_straight(segments.start, segments.end)
    if graph.jumping_operators:
        return _jumping(graph, segments, owner, budget, closed, look)
    bridges: list[list[CertifiedCell]] = [[]] * len(segments)
    if not whole:
        is_wanted = (segments.end > segments.start).tolist()
        wanted = [number for number, line in enumerate(owner) if is_wanted[number] and line not in closed]
        bridges = find_bridges(graph, segments, labels[owner], wanted, budget.shortened(BRIDGE_SHARE))
    parts: list[list[Part]] = [[] for _ in range(len(lines))]
    for number, cells in enumerate(bridges):
        parts[owner[number]] += _parts(segments, number, cells)
    windows, cores = _between(lines, parts), cores_for(graph, budget)
    if (groups := groups_for(graph, windows, cores)) > 1:
        longest = float((windows.end - windows.start).sum()) / groups
        parts = [_cut(line, longest) for line in parts]
        windows = _between(lines, parts)
    pieces = _pieces(graph, windows, grouped(windows, groups), cores, budget, closed, running_error, look)
    swept = iter(assemble(pieces, len(windows), graph.classes))
    return [join([(start, end, cell or next(swept)) for start, end, cell in line], graph.classes) for line in parts]


def _segments(lines: Lines) -> tuple[Lines, list[int]]:
    """The segments of all lines as lines of their own, in order, and which line each is of: a path is straight only
    from one node to the next.
    """
    if not lines.paths.is_chain:
        return lines, list(range(len(lines)))
    ends = [lines.paths.within(*line) for line in zip(lines.start.tolist(), lines.end.tolist(), strict=True)]
    owner = [number for number, cuts in enumerate(ends) for _ in cuts[1:]]
    start, end = zip(*(pair for cuts in ends for pair in pairwise(cuts)), strict=True)
    return Lines(
        lines.paths,
        start=torch.tensor(start, dtype=lines.start.dtype, device=lines.start.device),
        end=torch.tensor(end, dtype=lines.end.dtype, device=lines.end.device),
        path=lines.path[torch.tensor(owner, device=lines.path.device)],
    ), owner


def _jumping(
    graph: Graph,
    segments: Lines,
    owner: Sequence[int],
    budget: Budget,
    closed: Sequence[int],
    look: Callable[[Piece], Iterable[int]] | None,
) -> list[Curve]:
    """The same for a network that jumps."""
    from shakeproof.exact.jumps import jumping_curves  # few networks jump

    of_line = torch.tensor(owner, device=segments.path.device)
    parts: list[list[int]] = [[] for _ in range(1 + owner[-1])]
    for number, line in enumerate(owner):
        parts[line].append(number)

    def seen(piece: Piece) -> Iterator[int]:
        for line in () if look is None else look(piece._replace(line=of_line[piece.line])):
            yield from parts[line]

    shut = [number for line in closed for number in parts[line]]
    curves, ends = jumping_curves(graph, segments, budget, shut, seen), (segments.start.tolist(), segments.end.tolist())
    return [join([(ends[0][n], ends[1][n], curves[n]) for n in numbers], graph.classes) for numbers in parts]


def _parts(lines: Lines, number: int, bridges: Sequence[CertifiedCell]) -> list[Part]:
    """A line cut into bridges and the parts between them."""
    parts: list[Part] = []
    place, end = float(lines.start[number]), float(lines.end[number])
    for bridge in bridges:
        if bridge.start > place:
            parts.append((place, bridge.start, None))
        parts.append((bridge.start, bridge.end, bridge))
        place = bridge.end
    return parts if parts and place == end else [*parts, (place, end, None)]


def _between(lines: Lines, parts: Sequence[Sequence[Part]]) -> Lines:
    """The parts between the bridges of each line, as separate lines."""
    between = [(n, start, end) for n, line in enumerate(parts) for start, end, bridge in line if not bridge]
    path, start, end = zip(*between, strict=True) if between else ((), (), ())
    device = lines.start.device
    return replace(
        lines,
        start=torch.tensor(start, dtype=torch.float64, device=device),
        end=torch.tensor(end, dtype=torch.float64, device=device),
        path=torch.tensor(path, dtype=torch.int64, device=device),
    )


def _cut(parts: Sequence[Part], longest: float) -> list[Part]:
    """The same, with the parts between bridges cut to at most this length."""
    shorter: list[Part] = []
    for start, end, bridge in parts:
        count = 1 if bridge else max(1, round((end - start) / longest))
        edges = [start, *(start + (end - start) * part / count for part in range(1, count)), end]
        shorter += [(low, high, bridge) for low, high in pairwise(edges)]
    return shorter


def _pieces(
    graph: Graph,
    windows: Lines,
    groups: Sequence[slice],
    cores: int,
    budget: Budget,
    closed: Sequence[int],
    running_error: RunningError | None,
    look: Callable[[Piece], Iterable[int]] | None,
) -> Iterator[Piece]:
    """The sweep's pieces on parts of lines, as far as the clock and the wish to stop early let it go."""
    length = windows.end - windows.start
    total, settled = float(length.sum()) or 1.0, 0.0
    is_open = torch.ones(len(windows), dtype=torch.bool, device=length.device)

    def still_open() -> Tensor:
        if budget.is_late():
            is_open.fill_(False)
        return is_open

    for number in closed:
        is_open[windows.path == number] = False
    for piece in sweep_side_by_side(graph, windows, groups, cores, budget, still_open, running_error):
        yield piece
        joined = piece.line[1:] == piece.line[:-1]
        settled += float((piece.z[1:] - piece.z[:-1])[joined].sum())
        for number in () if look is None else look(piece._replace(line=windows.path[piece.line])):
            is_open[windows.path == number] = False
        budget.progress(min(1.0, (settled + float((~is_open * length).sum())) / total))
    budget.progress(1.0)


# -- on several cores -------------------------------------------------------------------------------------------------

# Work is counted in entries that a sweep is predicted to compute: with fewer than this, a group is not worth a thread;
# with many more, what there is time for would not be from the left. In between, so many groups for each core.
LEAST_WORK, MOST_WORK, GROUPS_A_CORE = 2e7, 1e9, 4
# Breaks are counted on so many of the lines, and not at all where the usual number would be little work.
COUNTED = 8
# Rows with fewer values than this are too small for torch's own threads: one is faster than two, the more so if one
# thread has a library that is faster than torch's.
SMALL_ROW, SMALL_BESIDE_FASTER = 10**5, 4 * 10**6


def threads_for(graph: Graph, cores: int) -> AbstractContextManager[None]:
    """As many threads for torch's products as they are worth: all cores for large networks, one for small ones."""
    small = SMALL_BESIDE_FASTER if wants_one_thread() else SMALL_ROW
    return on_threads(cores if graph.entries >= small else 1)


def cores_for(graph: Graph, budget: Budget) -> int:
    """How many groups of lines may be swept at once, and bounded, as far as memory goes."""
    cores = budget.cores if graph.device.type == "cpu" else 1
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
    if usual_breaks(graph) * graph.entries * length < 2 * LEAST_WORK:
        return 1
    sample = torch.arange(0, len(lines), -(-len(lines) // COUNTED), device=lines.start.device)
    ends = torch.stack([lines.start[sample], lines.end[sample]], 1).flatten()
    breaks = count_breaks(graph, lines.at(sample.repeat_interleave(2), ends))[1].sum()
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
    running_error: RunningError | None,
) -> Iterator[Piece]:
    """The result of `sweep`, in the same order; groups start from left to right."""
    if len(groups) < 2 or cores < 2:
        yield from sweep(graph, lines, budget, is_open, running_error)
        return
    if running_error is not None:
        assert running_error.effects  # worked out once, not by each
    stopped = False
    share = budget.shared(cores)
    finished: list[SimpleQueue[Piece | BaseException | None]] = [SimpleQueue() for _ in groups]

    @torch.inference_mode()
    def work(group: slice, pieces: SimpleQueue[Piece | BaseException | None]) -> None:
        torch.set_num_threads(1)
        part = Lines(lines.paths, lines.start[group], lines.end[group], lines.path[group])
        try:
            for piece in sweep(graph, part, share, lambda: is_open()[group] & (not stopped), running_error):
                pieces.put(piece._replace(line=piece.line + group.start))
            pieces.put(None)
        except BaseException as error:  # or somebody would wait for ever
            pieces.put(error)

    # what each thread sets for itself is undone when none of them is left
    with on_threads(torch.get_num_threads()), ThreadPoolExecutor(cores) as pool:
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


# -- what is left -----------------------------------------------------------------------------------------------------

# Breaks are counted in so many places before the end of a curve, and behind it.
PLACES = 4


def pieces_left(graph: Graph, lines: Lines, number: int, curve: Curve, budget: Budget) -> float | None:
    """How many pieces are to be expected between the end of a curve and that of its line; None if there is no time.

    As many as there were so far, but for how much closer together, or farther apart, breaks are: counted on stretches
    of the same width here and there, since a count misses neurons that bend and bend back.
    """
    start, reached, end = float(curve.z[0]), float(curve.z[-1]), float(lines.end[number])
    width = min(reached - start, end - reached) / PLACES
    counts = []
    for low, high in ((start, reached), (reached, end)):
        for place in range(PLACES):
            if budget.is_late():
                return None
            first = low + (high - width - low) * place / (PLACES - 1)
            z = torch.tensor([first, first + width], dtype=torch.float64, device=lines.start.device)
            rows = lines.at(torch.full_like(z, number, dtype=torch.int64), z)
            counts.append(int(count_breaks(graph, rows)[1]))
    before, behind = sum(counts[:PLACES]), sum(counts[PLACES:])
    return curve.pieces * (end - reached) / (reached - start) * (behind / before if before else 1.0)
