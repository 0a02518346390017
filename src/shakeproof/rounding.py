"""How far float64 may have strayed: the one rule, for points, for cells and for planes.

A sum of n products is off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values, in whatever
order it is added up (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). So errors run through a
network as

    e' = |W| e + gamma (|W| |x| + |b|)

where |W| is an operator's `magnitude`. Other operators say by their own enclosure how far they carry an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shakeproof.network import Graph, Node
from shakeproof.operators import (
    Affine,
    Conv,
    Elementwise,
    Itself,
    Linear,
    MaxPool,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
)

UNIT = 2.0**-53
# What an input is off by, as a share of the numbers that it is made of: its kernel's entries, convolutions with kernels
# of up to a thousand entries, x(z) itself.
OF_INPUTS = 2.0**-42
# What underflow may do to a result, and much more.
TINY = 2.0**-1000
# Spectral norms come from so many steps of power iteration, which approaches them from below: hence the allowance.
NORM_STEPS, NORM_ALLOWANCE = 50, 1.01


def gamma(graph: Graph, node: Node) -> float:
    """The relative rounding of a node's sums, and of a line around what it reads.

    What piecewise-linear functions give back is rounded once, if at all.
    """
    if node.operator.only_moves:
        return 0.0
    if isinstance(node.operator, PiecewiseLinear):
        return UNIT
    count = node.operator.terms(*(graph.shape(value) for value in node.inputs)) + 6
    return count * UNIT / (1 - count * UNIT)


def planes_share(shape: torch.Size, nodes: int = 0) -> float:
    """The relative rounding of a plane pulled through a value: no sum there has more terms than it has entries, and its
    constant is added to as many times as there are nodes.
    """
    count = shape.numel() + nodes + 4
    return count * UNIT / (1 - count * UNIT)


def input_error(x: Tensor, scale: Tensor | None) -> Tensor:
    """What inputs (rows, *input_shape) are off by; `scale` (rows) is the size of the numbers they are made of."""
    size = x.flatten(1).abs().amax(1) if scale is None else scale
    return (OF_INPUTS * size).view(-1, *(1,) * (x.dim() - 1)).expand_as(x)


def carried(operator: Operator, share: float, errors: Sequence[Tensor], sizes: Sequence[Tensor]) -> list[Tensor]:
    """Errors of an operator's inputs together with those that its own rounding makes of them.

    |W| (e + 2 gamma |x|) + gamma |y| is no less than |W| e + gamma (|W| |x| + |b|), since |b| <= |W| |x| + |y|, and
    takes one product instead of two.
    """
    if isinstance(operator, PiecewiseLinear):
        return list(errors)
    return [torch.add(error, size, alpha=2 * share) for error, size in zip(errors, sizes, strict=True)]


def widened(
    image: Range, relaxation: Relaxation, share: float, sizes: Sequence[Tensor], constant: Tensor | float
) -> Range:
    """What an output lies between, computed from its inputs' ranges, with what rounding may have done to the ends."""
    slack = share * torch.maximum(image.low.abs(), image.high.abs()) + TINY
    if isinstance(relaxation, Itself):
        slack = slack + share * (relaxation.spread(*sizes) + constant)
    elif len(sizes) == 1 and sizes[0].shape == slack.shape:  # parts of a smooth function may cancel
        slack = slack + share * sizes[0]
    return Range(image.low - slack, image.high + slack)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Class scores (rows, classes) as float64 gives them, and what they are off by at most, each."""

    scores: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Rounding:
    """The running error of a network's evaluations."""

    graph: Graph

    def evaluated(self, x: Tensor, by_norms: bool = False, scale: Tensor | None = None) -> Evaluation:
        """Scores of inputs (rows, *input_shape), with their errors; `scale` (rows) is what the inputs are made of.

        Entry by entry, errors grow with the product of absolute values: beyond some ten layers that says little. With
        `by_norms`, the Euclidean norm of all of a value's errors is carried along too, by spectral norms; these are
        estimates.
        """
        graph = self.graph
        found = {0: _Value(x, input_error(x, scale), x.new_empty(0))}
        if by_norms:
            found[0] = found[0].normed(_norm(found[0].error))
        for index, node in enumerate(graph.nodes):
            given = [found[value] for value in node.inputs]
            made = self._step(node, given)
            if by_norms:
                made = made.normed(self._norm_after(index, node, given, made))
            found[index + 1] = made
            for dead in graph.last_uses[index]:
                del found[dead]
        last = found[len(graph.nodes)]
        return Evaluation(last.x, last.error)

    def _step(self, node: Node, given: Sequence[_Value]) -> _Value:
        operator, share = node.operator, gamma(self.graph, node)
        y = operator.apply(*(value.x for value in given))
        errors = carried(operator, share, [v.error for v in given], [v.x.abs() for v in given])
        if isinstance(operator, Affine):
            error = operator.itself([v.x.shape[1:] for v in given]).spread(*errors)
        else:
            # Inside its enclosure at both places, the operator's value moves by the slope times e, and twice the gap.
            lines = operator.relaxed(*(Range(v.x - e, v.x + e) for v, e in zip(given, errors, strict=True)))
            error = lines.spread(*errors) + lines.spread(*(torch.zeros_like(e) for e in errors))
        error = error + (share * y.abs() + TINY)
        if isinstance(operator, Elementwise) and not isinstance(operator, PiecewiseLinear):
            error = error + share * given[0].x.abs()  # parts of a smooth function may cancel
        return _Value(y, error, y.new_empty(0))

    def _norm_after(self, index: int, node: Node, given: Sequence[_Value], made: _Value) -> Tensor:
        """A bound on the Euclidean norm of the errors of a node's output."""
        operator, share = node.operator, gamma(self.graph, node)
        known = [value.norm for value in given]
        size = _norm(made.x)
        if isinstance(operator, Affine):
            local = operator.itself([v.x.shape[1:] for v in given]).spread(*(share * v.x.abs() for v in given))
            constant = operator.apply(*(torch.zeros_like(v.x[:1]) for v in given))
            grown = torch.stack([norm * gain for norm, gain in zip(known, self.gains[index], strict=True)]).sum(0)
            return grown + _norm(local) + share * _norm(constant)
        if isinstance(operator, MaxPool):  # an entry may win in every window that it is in
            area = operator.window.kernel[0] * operator.window.kernel[1]
            return known[0] * float(area**0.5) + share * size
        if isinstance(operator, PiecewiseLinear):
            return known[0] * operator.steepest + share * size
        return torch.full_like(size, torch.inf)

    @cached_property
    def gains(self) -> list[list[float]]:
        """For each affine node, how much it may stretch the norm of each of its inputs."""
        return [
            [_gain(node.operator, place, shapes) for place in range(len(shapes))]
            if isinstance(node.operator, Affine)
            else []
            for node in self.graph.nodes
            for shapes in ([self.graph.shape(value) for value in node.inputs],)
        ]


@dataclass(frozen=True, eq=False)
class _Value:
    """A value (rows, *shape), its errors, and the norm (rows) of all of them, where that is carried along."""

    x: Tensor
    error: Tensor
    norm: Tensor

    def normed(self, norm: Tensor) -> _Value:
        """Each says something of the other: no entry is off by more than all, nor all by more than each."""
        norm = norm + TINY * float(self.x[0].numel() ** 0.5)
        norm = torch.minimum(torch.where(norm.isnan(), torch.inf, norm), _norm(self.error))
        return _Value(self.x, torch.minimum(self.error, norm.view(-1, *(1,) * (self.x.dim() - 1))), norm)


def _norm(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    largest = flat.abs().amax(1).clamp(min=TINY)  # squares of what is tiny would underflow
    norm: Tensor = largest * torch.linalg.vector_norm(flat / largest.unsqueeze(1), dim=1)
    return norm


def _gain(operator: Affine, place: int, shapes: Sequence[torch.Size]) -> float:
    """How much the operator may stretch the norm of one of its inputs."""
    absolute = operator.magnitude()
    assert isinstance(absolute, Affine)
    like = next((t for t in vars(operator).values() if isinstance(t, Tensor)), torch.empty(0, dtype=torch.float64))

    def alone(x: Tensor) -> list[Tensor]:
        return [x if other == place else x.new_zeros(1, *shape) for other, shape in enumerate(shapes)]

    ones = like.new_ones(1, *shapes[place])
    rows = absolute.apply(*alone(ones))
    columns = absolute.adjoint(torch.ones_like(rows), shapes)[place]
    bound = float((rows.max() * columns.max()).sqrt())  # Schur's test
    if not isinstance(operator, (Linear, Conv)) or rows.numel() == 1:
        return bound
    zero = operator.apply(*alone(torch.zeros_like(ones)))
    random = torch.Generator().manual_seed(0)
    x = torch.randn(ones.shape, dtype=ones.dtype, generator=random).to(ones.device)
    stretched = 0.0
    for _ in range(NORM_STEPS):
        x = x / x.norm().clamp(min=torch.finfo(x.dtype).tiny)
        y = operator.apply(x) - zero
        stretched = max(stretched, float(y.norm()))
        (x,) = operator.adjoint(y, shapes)
    return min(bound, NORM_ALLOWANCE * stretched)
