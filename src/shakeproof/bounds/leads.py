"""By how much one class leads others, at the least, on each of some cells."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from shakeproof.bounds.crown import planes_below
from shakeproof.bounds.domain import Boxes
from shakeproof.bounds.forward import Enclosed, cells_within, enclose
from shakeproof.budget import UNLIMITED, Budget
from shakeproof.model import Graph, cached_per_graph

# Networks have larger values for pictures than for what is grey all over.
THAN_GREY = 4


def leads_below(enclosed: Enclosed, leader: Tensor) -> Tensor:
    """Lower bounds (cells, classes) of each cell's leader's lead over each class; infinite over itself.

    By the forward bounds alone. NaN where there is no bound.
    """
    points, radius = enclosed.scores.points, enclosed.scores.radius
    own = leader.unsqueeze(1)
    leads = points.gather(2, own.expand(len(points), -1, -1)) - points
    least = enclosed.domain.extremes(leads).low - radius.gather(1, own) - radius
    return least.scatter(1, own, torch.inf)


def lowest_leads(
    graph: Graph, enclosed: Enclosed, leader: Tensor, rival: Tensor | None = None, budget: Budget = UNLIMITED
) -> Tensor:
    """A lower bound (cells) of the leader's lead over its best rival, or a given one (-1: the best); -inf without any.

    Forward where that suffices, backward for the rivals that are left: all at once if they fit the memory, else the
    closest first, and no further on a cell where one is not beaten. An error if the time is up before that.
    """
    least = leads_below(enclosed, leader)
    if rival is not None:
        others = torch.arange(graph.classes, device=rival.device) != rival.unsqueeze(1)
        least = torch.where(others & (rival >= 0).unsqueeze(1), torch.inf, least)
    cells, others = (~(least > 0)).nonzero(as_tuple=True)
    most = len(cells) and cells_within(graph, budget, enclosed.domain.low.shape[1])
    if len(cells) > most:
        scores = enclosed.scores.points[0]
        order = (scores[cells, leader[cells]] - scores[cells, others]).argsort()
        cells, others = cells[order], others[order]
    beaten = torch.ones(len(least), dtype=torch.bool, device=least.device)
    for start in range(0, len(cells), max(most, 1)):
        cell, other = cells[start : start + most], others[start : start + most]
        cell, other = cell[beaten[cell]], other[beaten[cell]]
        if len(cell):
            least[cell, other] = torch.fmax(least[cell, other], _backward(graph, enclosed, leader, cell, other, budget))
            beaten[cell[~(least[cell, other] > 0)]] = False
    found = least.amin(1)
    return torch.where(found.isnan(), -torch.inf, found)


def _backward(graph: Graph, enclosed: Enclosed, leader: Tensor, cell: Tensor, other: Tensor, budget: Budget) -> Tensor:
    """Lower bounds (rows) of leads over some classes, each on its own cell."""
    coefficients = enclosed.scores.points.new_zeros(len(cell), graph.classes)
    row = torch.arange(len(cell), device=cell.device)
    coefficients[row, leader[cell]] = 1.0
    coefficients[row, other] = -1.0
    planes = planes_below(graph, enclosed, coefficients, cell, budget)
    return planes.lowest(enclosed.domain.low[cell], enclosed.domain.high[cell])


@cached_per_graph
def usual_shortfall(graph: Graph) -> float:
    """About how much a lower bound of a lead is below it by rounding alone; 0 if nobody knows.

    It is what it falls short by, of the winner's over the second, where all inputs are a half, times a little.
    """
    if graph.classes < 2:
        return 0.0
    grey = torch.full((2, 1, *graph.input_shape), 0.5, dtype=torch.float64, device=graph.device)
    here = grey.new_zeros(1, 1)
    enclosed = enclose(graph, grey, Boxes(here, here), torch.zeros_like(grey[0]))
    scores = enclosed.scores.points[0]
    winner, second = scores.argsort(1, descending=True)[0, :2]
    coefficients = torch.zeros_like(scores)
    coefficients[0, winner], coefficients[0, second] = 1.0, -1.0
    backward = planes_below(graph, enclosed, coefficients, winner.new_zeros(1)).lowest(here, here)
    forward = leads_below(enclosed, winner.view(1))[0, second]
    short = float(scores[0, winner] - scores[0, second] - torch.fmax(forward, backward))
    return THAN_GREY * short if isfinite(short) else 0.0
