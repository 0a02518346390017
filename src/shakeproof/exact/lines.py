"""One curve for each of many lines that share a sweep: bridges where bounds settle who leads, every piece elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget
from shakeproof.exact.bridges import find_bridges
from shakeproof.exact.curve import Bridge, Curve, assemble, join
from shakeproof.exact.jumps import jumping_curves
from shakeproof.exact.side_by_side import cores_for, grouped, groups_for, sweep_side_by_side
from shakeproof.exact.sweep import Lines, Piece
from shakeproof.model import Graph
from shakeproof.rounding import Chords

# The share of a timeout that may go into bridges; most is the sweep's.
BRIDGE_SHARE = 0.25
Stretch = tuple[float, float, Bridge | None]
"""Part of a line: its ends, and who leads on it if bounds have settled that."""


def swept_curves(
    graph: Graph,
    lines: Lines,
    labels: NDArray[np.int64],
    budget: Budget,
    closed: Sequence[int] = (),
    whole: bool = False,
    chords: Chords | None = None,
    look: Callable[[Piece], Iterable[int]] | None = None,
) -> list[Curve]:
    """A curve for each line, from its start as far as the clock let it come.

    Nothing is done on lines that are `closed`. `look` is shown each finished piece, with its lines, and says on which
    of them no more is wanted. With `whole`, every piece is enumerated; without `chords`, errors are not looked at. Both
    go without saying for a network that jumps.
    """
    if graph.jumping_operators:
        return jumping_curves(graph, lines, budget, closed, look)
    wanted = [n for n in range(len(lines)) if n not in set(closed) and float(lines.end[n]) > float(lines.start[n])]
    bridges: list[list[Bridge]] = [[]] * len(lines)
    if not whole:
        bridges = find_bridges(graph, lines, labels, wanted, budget.shortened(BRIDGE_SHARE))
    stretches = [_stretches(lines, number, found) for number, found in enumerate(bridges)]
    windows, cores = _between(lines, stretches), cores_for(graph, lines, budget)
    if (groups := groups_for(graph, windows, cores)) > 1:
        longest = float((windows.end - windows.start).sum()) / groups
        stretches = [_cut(line, longest) for line in stretches]
        windows = _between(lines, stretches)

    def sweeping(is_open: Callable[[], Tensor]) -> Iterator[Piece]:
        return sweep_side_by_side(graph, windows, grouped(windows, groups), cores, budget, is_open, chords)

    return _joined(graph, stretches, windows, _pieces(windows, sweeping, budget, closed, look))


def _joined(
    graph: Graph, stretches: Sequence[Sequence[Stretch]], windows: Lines, pieces: Iterable[Piece]
) -> list[Curve]:
    """The curves of lines from what was swept between their bridges."""
    swept = iter(assemble(pieces, len(windows), graph.classes))
    return [
        join([(start, end, bridge or next(swept)) for start, end, bridge in line], graph.classes) for line in stretches
    ]


def _stretches(lines: Lines, number: int, bridges: Sequence[Bridge]) -> list[Stretch]:
    """A line cut into bridges and what lies between them."""
    found: list[Stretch] = []
    place, end = float(lines.start[number]), float(lines.end[number])
    for bridge in bridges:
        if bridge.start > place:
            found.append((place, bridge.start, None))
        found.append((bridge.start, bridge.end, bridge))
        place = bridge.end
    return found if found and place == end else [*found, (place, end, None)]


def _between(lines: Lines, stretches: Sequence[Sequence[Stretch]]) -> Lines:
    """What lies between the bridges of each line, as lines of their own."""
    between = [(n, start, end) for n, line in enumerate(stretches) for start, end, bridge in line if not bridge]
    owner, start, end = zip(*between, strict=True) if between else ((), (), ())
    device = lines.start.device
    return replace(
        lines,
        start=torch.tensor(start, dtype=torch.float64, device=device),
        end=torch.tensor(end, dtype=torch.float64, device=device),
        path=torch.tensor(owner, dtype=torch.int64, device=device),
    )


def _cut(stretches: Sequence[Stretch], longest: float) -> list[Stretch]:
    """The same, with what lies between bridges in parts that are not longer than this."""
    found: list[Stretch] = []
    for start, end, bridge in stretches:
        count = 1 if bridge else max(1, round((end - start) / longest))
        edges = [start, *(start + (end - start) * part / count for part in range(1, count)), end]
        found += [(low, high, bridge) for low, high in pairwise(edges)]
    return found


def _pieces(
    windows: Lines,
    sweeping: Callable[[Callable[[], Tensor]], Iterable[Piece]],
    budget: Budget,
    closed: Sequence[int],
    look: Callable[[Piece], Iterable[int]] | None,
) -> Iterable[Piece]:
    """The sweep's pieces on parts of lines, as far as the clock and the wish to stop early let it go."""
    length = windows.end - windows.start
    total, settled = float(length.sum()) or 1.0, 0.0
    is_open = torch.ones(len(windows), dtype=torch.bool, device=length.device)

    def close(numbers: Iterable[int]) -> None:
        for number in numbers:
            is_open[windows.path == number] = False

    def still_open() -> Tensor:
        if budget.is_late():
            is_open.fill_(False)
        return is_open

    close(closed)
    for piece in sweeping(still_open):
        yield piece
        joined = piece.line[1:] == piece.line[:-1]
        settled += float((piece.z[1:] - piece.z[:-1])[joined].sum())
        if look is not None:
            close(look(piece._replace(line=windows.path[piece.line])))
        budget.progress(min(1.0, (settled + float((~is_open * length).sum())) / total))
    budget.progress(1.0)
