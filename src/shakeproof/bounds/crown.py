"""CROWN: a linear combination of a value's entries, pulled back through the network to a plane over its inputs.

H. Zhang, T.-W. Weng, P.-Y. Chen, C.-J. Hsieh, L. Daniel: Efficient Neural Network Robustness Certification with General
Activation Functions. NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from shakeproof.bounds.forward import Boxes, Enclosed, cells_within, enclose
from shakeproof.budget import UNLIMITED, Budget
from shakeproof.graph import Graph, cached_per_graph
from shakeproof.operators import Cells, Relaxation

# Networks have larger values for pictures than for uniform grey.
THAN_GREY = 4


@dataclass(frozen=True, eq=False)
class Planes:
    """Affine functions offset + gradient . z of the parameters: offset (rows), gradient (rows, m)."""

    offset: Tensor
    gradient: Tensor

    def lowest(self, low: Tensor, high: Tensor) -> Tensor:
        """Each one's least value (rows) on its box, low and high (rows, m). NaN where it is not finite."""
        return Boxes(low, high).lowest(self.offset, self.gradient)


def pulled_back(
    graph: Graph,
    relaxations: Sequence[Relaxation],
    top: int,
    coefficients: Tensor,
    cell: Cells,
    noise: Tensor | None = None,
    at_nodes: dict[int, Tensor] | None = None,
    budget: Budget = UNLIMITED,
) -> tuple[Tensor, Tensor]:
    """Coefficients of the network's input (rows, *input_shape), and a constant (rows), below those of value `top`.

    With the `noise` of the inputs and each node, (nodes + 1, cells), the constant is lower by what rounding may have
    done. `at_nodes` gets the coefficients of each node's output, by its index. An error if the time is up before that.
    """
    pulled = {top: coefficients}
    offset = coefficients.new_zeros(len(coefficients))
    places: list[int] = []
    weights: list[Tensor] = []
    for index in range(top - 1, -1, -1):
        at_output = pulled.pop(index + 1, None)
        if at_output is None:
            continue
        budget.check()
        if at_nodes is not None:
            at_nodes[index] = at_output
        if noise is not None and not graph.nodes[index].operator.only_moves:
            places.append(index + 1)
            weights.append(_weight(at_output))
        parts, constant = relaxations[index].pull(at_output, cell)
        offset = offset + constant
        for value, part in zip(graph.nodes[index].inputs, parts, strict=True):
            pulled[value] = pulled[value] + part if value in pulled else part
    # a value that does not depend on the input has no coefficients there
    at_input = pulled.get(0, coefficients.new_zeros(len(coefficients), *graph.input_shape))
    if noise is not None:
        weights.append(_weight(at_input))
        met = noise.index_select(0, torch.tensor([*places, 0], device=noise.device))[:, cell]
        offset = offset - (torch.stack(weights) * met).sum(0)
    return at_input, offset


def _weight(coefficients: Tensor) -> Tensor:
    return coefficients.flatten(1).abs().sum(1)


def planes_below(
    graph: Graph, enclosed: Enclosed, coefficients: Tensor, cell: Tensor, budget: Budget = UNLIMITED
) -> Planes:
    """Planes below sum(coefficients * scores), each on its own cell; coefficients (rows, classes), cell (rows)."""
    above = len(graph.nodes), coefficients, cell, enclosed.noise
    pulled, offset = pulled_back(graph, enclosed.relaxations, *above, budget=budget)
    domain = enclosed.domain
    values = torch.einsum("rn,prn->pr", pulled.flatten(1), enclosed.inputs[:, cell].flatten(2))
    half = domain.half[cell]
    gradient = torch.where(half > 0, (values[1:] - values[0]).t() / half, 0.0)
    return Planes(offset + values[0] - (gradient * domain.centre[cell]).sum(1), gradient)


def leads_below(enclosed: Enclosed, leader: Tensor) -> Tensor:
    """Lower bounds (cells, classes) of each cell's leader's lead over each class; infinite over itself.

    By the forward bounds alone. NaN where there is no bound.
    """
    points, radius = enclosed.scores.points, enclosed.scores.radius
    column = leader.unsqueeze(1)
    leads = points.gather(2, column.expand(len(points), -1, -1)) - points
    least = enclosed.domain.extremes(leads).low - radius.gather(1, column) - radius
    return least.scatter(1, column, torch.inf)


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
    lowest = least.amin(1)
    return torch.where(lowest.isnan(), -torch.inf, lowest)


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
    """A typical gap between a lead and its lower bound that is due to rounding alone; 0 if unknown.

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
