"""Which numbers float64 has computed without any rounding.

Next to a jump it matters: a neuron that sees nothing but black is 0, not nearly 0, and the sign of that is 0 as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shakeproof.bounds import Enclosure
from shakeproof.model import Graph
from shakeproof.operators import Abs, Affine, Clip, Combine, Conv, Linear, MaxPool, Relu, Scale, Unrolled

# A product is computed exactly if it is a multiple of this.
SMALLEST = -1000
BITS = 53


def known(graph: Graph, index: int, given: Sequence[Enclosure]) -> Tensor:
    """Which entries of a node's output (cells, *shape) were computed exactly, at both ends and so in between."""
    operator = graph.nodes[index].operator
    wrong = [(value.radius != 0).to(value.radius) for value in given]  # NaN as well
    exact = torch.zeros(len(wrong[0]), *graph.nodes[index].shape, dtype=torch.bool, device=wrong[0].device)
    if all(bool(part.all()) for part in wrong):
        return exact
    if isinstance(operator, Affine):
        absolute = operator.magnitude()
        sure = (absolute.apply(*wrong) == 0) & (graph.offs[index] == 0)
        if operator.only_moves or not bool(sure.any()):
            return sure
        constant, sizes = graph.constants[index], [value.points.abs().amax(0) for value in given]
        lone = absolute.apply(*((size != 0).to(size) for size in sizes)) == 0  # nothing but the constant
        if operator.roundings:
            lone = lone & (constant == 0)
        return sure & (lone | _fits(operator, absolute.apply(*sizes) + constant, given))
    if isinstance(operator, (Abs, Clip, MaxPool, Relu)):
        points = given[0].points
        changes = torch.maximum(wrong[0], (points[0] != points[1]).to(points))
        return (operator.apply(changes) if isinstance(operator, MaxPool) else changes) == 0
    return exact


def _fits(operator: Affine, sums: Tensor, given: Sequence[Enclosure]) -> Tensor | bool:
    """Whether sums of products are whole multiples of one power of two, and none too large: no step is rounded."""
    if operator.roundings or operator.off is not None:
        return False
    if isinstance(operator, (Linear, Conv, Unrolled)):
        weights, constant = _grain(operator.weight), operator.bias
    elif isinstance(operator, Scale):
        weights, constant = _grain(operator.factor), operator.offset
    elif isinstance(operator, Combine):
        weights, constant = 0, torch.zeros(1)
    else:
        return False
    exact = [torch.where(value.radius != 0, 0.0, value.points) for value in given]
    grain = min(weights + min(map(_grain, exact)), _grain(constant))
    return (sums < 2.0 ** (grain + BITS - 1)) if grain > SMALLEST else False


def _grain(x: Tensor) -> int:
    """The exponent of a power of two that all numbers are multiples of, the largest unless they are whole."""
    if bool((x == x.round()).all()):
        return 0
    mantissa, exponent = torch.frexp(x[x != 0].double())
    whole = (mantissa * 2.0**BITS).long()
    lowest = torch.frexp((whole & -whole).double())[1] - 1
    return int((exponent - BITS + lowest).min())
