"""CROWN: a linear combination of a value's entries, pulled back through the network to a plane over its inputs.

H. Zhang, T.-W. Weng, P.-Y. Chen, C.-J. Hsieh, L. Daniel: Efficient Neural Network Robustness Certification with General
Activation Functions. NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.bounds.forward import Enclosed
from shakeproof.budget import UNLIMITED, Budget
from shakeproof.model import Graph
from shakeproof.operators import Cells, Range, Relaxation


@dataclass(frozen=True, eq=False)
class Planes:
    """Affine functions offset + gradient . z of the parameters: offset (rows), gradient (rows, m)."""

    offset: Tensor
    gradient: Tensor

    def lowest(self, low: Tensor, high: Tensor) -> Tensor:
        """Each one's least value (rows) on its box, low and high (rows, m). NaN where it is not finite."""
        ends = torch.minimum(self.gradient * low, self.gradient * high)
        return self.offset + ends.sum(1)


def pulled_back(
    graph: Graph,
    relaxations: Sequence[Relaxation],
    top: int,
    coefficients: Tensor,
    cell: Cells,
    noise: Tensor | None = None,
    given: dict[int, Tensor] | None = None,
    budget: Budget = UNLIMITED,
) -> tuple[Tensor, Tensor]:
    """Coefficients of the network's input (rows, *input_shape), and a constant (rows), below those of value `top`.

    With the `noise` of the inputs and each node, (nodes + 1, cells), the constant is lower by what rounding may have
    done. The coefficients that each node was `given` for its output are noted there, by its index. An error if the time
    is up before that.
    """
    pulled = {top: coefficients}
    offset = coefficients.new_zeros(len(coefficients))
    places: list[int] = []
    weights: list[Tensor] = []
    for index in range(top - 1, -1, -1):
        own = pulled.pop(index + 1, None)
        if own is None:
            continue
        budget.check()
        if given is not None:
            given[index] = own
        if noise is not None and not graph.nodes[index].operator.only_moves:
            places.append(index + 1)
            weights.append(_weight(own))
        parts, constant = relaxations[index].pull(own, cell)
        offset = offset + constant
        for value, part in zip(graph.nodes[index].inputs, parts, strict=True):
            pulled[value] = pulled[value] + part if value in pulled else part
    # a value that does not depend on the input has no coefficients there
    found = pulled.get(0, coefficients.new_zeros(len(coefficients), *graph.input_shape))
    if noise is not None:
        weights.append(_weight(found))
        met = noise.index_select(0, torch.tensor([*places, 0], device=noise.device))[:, cell]
        offset = offset - (torch.stack(weights) * met).sum(0)
    return found, offset


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


def gradients_at(graph: Graph, x: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (rows, classes) at inputs (rows, *input_shape), and the gradients of sum(coefficients * scores) there.

    They are planes on cells next to nothing. Where a function bends within one, a line of its bounds is its derivative.
    """
    values = [x, *graph.values(x)]
    relaxations = [node.operator.relaxed(*(_next_to(values[i]) for i in node.inputs)) for node in graph.nodes]
    return values[-1], pulled_back(graph, relaxations, len(graph.nodes), coefficients, slice(None))[0]


def _next_to(value: Tensor) -> Range:
    reach = 1e-4 * (1 + value.abs())
    return Range(value - reach, value + reach)
