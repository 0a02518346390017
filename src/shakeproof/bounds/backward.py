"""Backward: a linear combination of class scores, pulled through the network to a plane over the parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.bounds.forward import Enclosed
from shakeproof.network.graph import Graph


@dataclass(frozen=True, eq=False)
class Planes:
    """Affine functions offset + gradient . z of the parameters: offset (rows), gradient (rows, m)."""

    offset: Tensor
    gradient: Tensor

    def lowest(self, low: Tensor, high: Tensor) -> Tensor:
        """Each one's least value (rows) on its box, low and high (rows, m). NaN where it is not finite."""
        ends = torch.minimum(self.gradient * low, self.gradient * high)
        return self.offset + ends.sum(1)


def planes_below(graph: Graph, enclosed: Enclosed, coefficients: Tensor, cell: Tensor) -> Planes:
    """Planes below sum(coefficients * scores), each on its own cell; coefficients (rows, classes), cell (rows)."""
    pulled = {len(graph.nodes): coefficients}
    offset = coefficients.new_zeros(len(coefficients))
    for index in range(len(graph.nodes) - 1, -1, -1):
        given = pulled.pop(index + 1, None)
        if given is None:
            continue
        parts, constant = enclosed.relaxations[index].pull(given, cell)
        offset = offset + constant
        for value, part in zip(graph.nodes[index].inputs, parts, strict=True):
            pulled[value] = pulled[value] + part if value in pulled else part
    domain = enclosed.domain
    values = torch.einsum("rn,prn->pr", pulled[0].flatten(1), enclosed.inputs[:, cell].flatten(2))
    half = domain.half[cell]
    gradient = torch.where(half > 0, (values[1:] - values[0]).t() / half, 0.0)
    return Planes(offset + values[0] - (gradient * domain.centre[cell]).sum(1), gradient)
