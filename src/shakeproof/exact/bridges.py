"""Bridges: parts of lines where bounds prove the leader, so that the sweep can skip them.

Nobody else need know how they are found: without them, curves say the same, with more rows. Whether bounds settle a
cell is only known after it was paid for. So each line bets: never more than a small share of what its sweep is
predicted to cost, plus what earlier cells have saved. Costs are in forward passes, and counted, not timed: the same
query always gives the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.bounds import Boxes, cells_within, enclose, leads_below
from shakeproof.budget import Budget, OutOfTimeError, now
from shakeproof.exact.curve import CertifiedCell
from shakeproof.exact.sweep import Lines, count_breaks, usual_breaks
from shakeproof.graph import Graph
from shakeproof.question import margins
from shakeproof.rounding import work_out_norms

# What a cell's bounds cost, and each piece of a sweep. A round of bets costs, before its first cell, what computing so
# many entries for each node would.
CELL_COST, PIECE_COST, ENTRIES_A_NODE = 12.0, 0.6, 6e4
# A cell may cost so much on a large network with other functions than ReLU, and has to be done before a deadline.
WORST_COST = 100.0
# Of what a line's sweep is predicted to cost, so much may be lost in vain.
STAKE = 0.05
# Cells are so wide that settling one saves about this many times its cost; a first bet is on two to four of them.
GAIN, SMALLEST_BET, FIRST_BET = 3, 2, 4
FEWEST_CELLS, MOST_CELLS = 16, 256


class Cell(NamedTuple):
    """A part of a line, from low to high."""

    line: int
    low: float
    high: float


class SkipPlanner:
    """One line's bets: which cells to try next, as long as it can afford them."""

    def __init__(self, line: int, start: float, end: float, breaks: int, round_cost: float) -> None:
        self.round_cost = round_cost
        predicted = PIECE_COST * breaks
        count = FEWEST_CELLS
        while count < min(MOST_CELLS, predicted / (GAIN * CELL_COST)):
            count *= 2
        self.allowance, self.saving = STAKE * predicted, predicted / count
        edges = [start * (1 - part / count) + end * (part / count) for part in range(count + 1)]
        self.cells = [Cell(line, edges[part], edges[part + 1]) for part in range(count)]
        digits = count.bit_length() - 1
        self.waiting = sorted(range(count), key=lambda part: f"{part:0{digits}b}"[::-1])  # far apart first
        self.leaders = [-1] * count

    def bet(self) -> list[int]:
        """The cells of the next round; none if the line is done, cannot afford any, or has lost most so far."""
        affordable = int((self.allowance - self.round_cost) / CELL_COST)
        tried, settled = len(self.cells) - len(self.waiting), sum(leader >= 0 for leader in self.leaders)
        trusted = 2 * settled if tried else FIRST_BET
        count = min(affordable, trusted) if 2 * settled >= tried else 0
        if self.saving <= CELL_COST or count < min(SMALLEST_BET, len(self.waiting)):
            return []
        chosen, self.waiting = self.waiting[:count], self.waiting[count:]
        self.allowance -= self.round_cost + CELL_COST * len(chosen)
        return chosen

    def settle(self, part: int, leader: int) -> None:
        self.leaders[part] = leader
        self.allowance += self.saving * (leader >= 0)

    def settled(self) -> Iterator[tuple[Cell, int]]:
        """Neighbouring cells with the same leader as one, and that leader."""
        for leader, group in groupby(range(len(self.cells)), key=self.leaders.__getitem__):
            if leader >= 0:
                cells = [self.cells[part] for part in group]
                yield Cell(cells[0].line, cells[0].low, cells[-1].high), leader


def find_bridges(
    graph: Graph,
    lines: Lines,
    labels: NDArray[np.int64],
    wanted: Sequence[int],
    budget: Budget,
) -> list[list[CertifiedCell]]:
    """Bridges of each line, in order; only `wanted` lines are looked at, and no cell that might not be done in time.

    On a bridge one class leads throughout, and the label's margin is larger than at an end of the line.
    """
    bridges: list[list[CertifiedCell]] = [[] for _ in range(len(lines))]
    round_cost = ENTRIES_A_NODE * len(graph.nodes) / graph.entries / max(len(wanted), 1)
    if not wanted or not _is_worth_a_bet(int(usual_breaks(graph)), round_cost):
        return bridges
    if graph.is_deep:
        try:
            work_out_norms(graph, budget)
        except OutOfTimeError:
            return bridges
    began = now()
    breaks, lowest = _ends(graph, lines, wanted, labels, budget)
    cell_seconds = WORST_COST * (now() - began) / (2 * len(wanted))
    planners = [
        SkipPlanner(number, float(lines.start[number]), float(lines.end[number]), count, round_cost)
        for number, count in zip(wanted, breaks, strict=True)
    ]
    while not budget.is_late(cell_seconds) and (
        bets := [(i, part) for i, planner in enumerate(planners) for part in planner.bet()]
    ):
        cells = [planners[i].cells[part] for i, part in bets]
        least = lowest[[i for i, _ in bets]]
        leaders = _leaders(graph, lines, cells, labels, least, budget)
        for (i, part), leader in zip(bets, leaders, strict=True):
            planners[i].settle(part, leader)
    settled = [cell for planner in planners for cell in planner.settled()]
    step, device = cells_within(graph, budget, 1), lines.start.device
    for start in range(0, len(settled), step):
        batch = settled[start : start + step]
        line = torch.tensor([cell.line for cell, _ in batch for _ in range(2)], device=device)
        z = torch.tensor([z for cell, _ in batch for z in (cell.low, cell.high)], dtype=torch.float64, device=device)
        scores = graph.run(lines.at(line, z)).cpu().numpy().reshape(-1, 2, graph.classes)
        for (cell, leader), at_ends in zip(batch, scores, strict=True):
            bridges[cell.line].append(CertifiedCell(cell.low, cell.high, leader, at_ends))
    return bridges


@lru_cache
def _is_worth_a_bet(breaks: int, round_cost: float) -> bool:
    """Whether bridges may pay off on a line with so many breaks."""
    return bool(SkipPlanner(0, 0.0, 1.0, breaks, round_cost).bet())


def _ends(
    graph: Graph, lines: Lines, wanted: Sequence[int], labels: NDArray[np.int64], budget: Budget
) -> tuple[list[int], Tensor]:
    """For each line, how often neurons bend between its ends, and the label's smaller margin at an end."""
    counts: list[int] = []
    lowest = []
    for numbers in torch.tensor(wanted, device=lines.start.device).split(cells_within(graph, budget, 1)):
        line = numbers.repeat_interleave(2)
        z = torch.stack([lines.start[numbers], lines.end[numbers]], 1).flatten()
        scores, breaks = count_breaks(graph, lines.at(line, z))
        counts += breaks.tolist()
        ends = margins(scores.cpu().numpy(), labels[line.cpu().numpy()]).reshape(-1, 2)
        lowest.append(torch.from_numpy(ends.min(1)))
    return counts, torch.cat(lowest)


def _leaders(
    graph: Graph, lines: Lines, cells: Sequence[Cell], labels: NDArray[np.int64], lowest: Tensor, budget: Budget
) -> list[int]:
    """Who provably leads on each cell, with the label's margin above `lowest`; -1 where that is not settled."""
    leaders = [-1] * len(cells)
    device = lines.start.device
    for part in budget.slices(len(cells), cells_within(graph, budget, 1)):
        line = torch.tensor([cell.line for cell in cells[part]], device=device)
        ends = torch.tensor([(cell.low, cell.high) for cell in cells[part]], dtype=torch.float64, device=device)
        boxes = Boxes(ends[:, :1], ends[:, 1:])
        inputs = torch.stack([lines.at(line, z[:, 0]) for z in boxes.points])
        try:
            enclosed = enclose(graph, inputs, boxes, lines.paths.error[lines.path[line]], budget)
        except OutOfTimeError:
            break
        leader = enclosed.scores.points[0].argmax(1)
        label = torch.from_numpy(labels)[line.cpu()].to(device)
        led, ahead = (leads_below(enclosed, who).amin(1) for who in (leader, label))
        settled = (led > 0) & (ahead > lowest[part].to(device))
        leaders[part] = torch.where(settled, leader, -1).tolist()
    return leaders
