"""Products of two computed values, and softmax: attention, normalisation by a computed size, gates.

They are enclosed by their tangent at the centre of their inputs' ranges; what is left is of second order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Cells, Operator, Range, Relaxation, summed_to


@dataclass(frozen=True, eq=False)
class Multiply(Operator):
    """first * second, two branches of equal rank."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0] * inputs[1]

    def relaxed(self, *ranges: Range) -> Relaxation:
        return Multiplied(*ranges)


@dataclass(frozen=True, eq=False)
class MatMul(Operator):
    """first @ second along the last two axes, two branches of equal rank."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0] @ inputs[1]

    def terms(self, *inputs: torch.Size) -> int:
        return inputs[0][-1]

    def relaxed(self, *ranges: Range) -> Relaxation:
        return MatrixMultiplied(*ranges)


@dataclass(frozen=True, eq=False)
class Bilinear(Relaxation):
    """x y = x0 y + x y0 - x0 y0 + (x - x0)(y - y0): the last term is no larger than the product of the radii."""

    first: Range
    second: Range

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def adjoints(self, coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of dx and dy in sum(coefficients * (x dy + dx y))."""
        raise NotImplementedError

    def points(self, *values: Tensor) -> Tensor:
        x, y = self.first.centre, self.second.centre
        return self.product(x, values[1] - y) + self.product(values[0], y)

    def spread(self, *radii: Tensor) -> Tensor:
        x, y = self.first.centre.abs(), self.second.centre.abs()
        return self.product(x, radii[1]) + self.product(radii[0], y) + self._rest()

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        x, y = self.first.centre, self.second.centre
        own, rest = self.product(x, y)[cell], self._rest()[cell]
        constant = -(coefficients * own + coefficients.abs() * rest).flatten(1).sum(1)
        return self.adjoints(coefficients, x[cell], y[cell]), constant

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.points(*(value.unsqueeze(0) for value in values))[0] - coefficients.sign() * self._rest()

    def _rest(self) -> Tensor:
        return self.product(self.first.radius, self.second.radius)


class Multiplied(Bilinear):
    """An elementwise product, enclosed."""

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def adjoints(self, coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return summed_to(coefficients * y, x.shape[1:]), summed_to(coefficients * x, y.shape[1:])

    def image(self, *ranges: Range) -> Range | None:
        corners = torch.stack([x * y for x in self.first for y in self.second])
        return Range(corners.amin(0), corners.amax(0))


class MatrixMultiplied(Bilinear):
    """A matrix product, enclosed."""

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def adjoints(self, coefficients: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (
            summed_to(coefficients @ y.transpose(-1, -2), x.shape[1:]),
            summed_to(x.transpose(-1, -2) @ coefficients, y.shape[1:]),
        )


@dataclass(frozen=True, eq=False)
class Softmax(Operator):
    """exp(x) over its sum along one axis (counted without the row axis).

    `seen` (*shape) is 1, or 0 for entries that take no part, whatever they are, and give 0: those that a mask makes
    minus infinity.
    """

    axis: int
    seen: Tensor | None = None

    def apply(self, *inputs: Tensor) -> Tensor:
        shares = self._hiding(inputs[0], -torch.inf).softmax(self.axis + 1)
        return self._hiding(shares, 0.0)

    def terms(self, *inputs: torch.Size) -> int:
        return inputs[0][self.axis] + 8

    def relaxed(self, *ranges: Range) -> Relaxation:
        """The tangent at the centre, s + J d with J = diag(s) - s s^T, or a constant where that is closer.

        Along any direction d the second derivative of s_i is s_i ((d_i - s.d)^2 - variance of d under s). Both terms
        are positive; with |d_j| <= r_j the first is at most (r_i + max r)^2 and the second at most (max r)^2.
        """
        (within,) = ranges
        axis = self.axis + 1
        share = self.apply(within.centre)
        lowest, highest = self._extremes(within)
        radius = self._hiding(within.radius, 0.0)
        remainder = highest * (radius + radius.amax(axis, keepdim=True)) ** 2 / 2
        constant = (highest - lowest) / 2
        follows = remainder < constant
        offset = torch.where(follows, share, (highest + lowest) / 2)
        rest = torch.where(follows, remainder, constant)
        return Tangent(share, follows.to(share.dtype), within.centre, offset, rest, Range(lowest, highest), axis)

    def _extremes(self, within: Range) -> Range:
        """A share is largest with its own input at the top and all others at the bottom, and smallest the other way."""
        axis = self.axis + 1
        within = Range(*(self._hiding(end, -torch.inf) for end in within))
        top = within.high.amax(axis, keepdim=True)
        low, high = (within.low - top).exp(), (within.high - top).exp()
        shares = low / (low + _others(high, axis)), high / (high + _others(low, axis))
        return Range(*(self._hiding(share, 0.0) for share in shares))

    def _hiding(self, x: Tensor, value: float) -> Tensor:
        """A row is `value` where it takes no part."""
        return x if self.seen is None else x.masked_fill(self.seen == 0, value)


def _others(x: Tensor, axis: int) -> Tensor:
    """Along an axis, the sum of all entries but each one; added up, since subtracting would cancel small ones."""
    none = torch.zeros_like(x.narrow(axis, 0, 1))
    before = torch.cat([none, x.narrow(axis, 0, x.shape[axis] - 1)], axis).cumsum(axis)
    after = torch.cat([x.narrow(axis, 1, x.shape[axis] - 1), none], axis).flip(axis).cumsum(axis).flip(axis)
    return before + after


@dataclass(frozen=True, eq=False)
class Tangent(Relaxation):
    """offset + follows * J (x - centre), give or take `rest`; `follows` is 0 where the output is taken as constant."""

    share: Tensor
    follows: Tensor
    centre: Tensor
    offset: Tensor
    rest: Tensor
    limits: Range
    axis: int

    def points(self, *values: Tensor) -> Tensor:
        step = values[0] - self.centre
        mean = (self.share * step).sum(self.axis + 1, keepdim=True)
        return self.offset + self.follows * self.share * (step - mean)

    def spread(self, *radii: Tensor) -> Tensor:
        mean = (self.share * radii[0]).sum(self.axis, keepdim=True)
        return self.follows * self.share * (radii[0] * (1 - 2 * self.share) + mean) + self.rest

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        share = self.share[cell]
        weighted = coefficients * self.follows[cell] * share
        pulled = weighted - share * weighted.sum(self.axis, keepdim=True)
        constant = coefficients * self.offset[cell] - coefficients.abs() * self.rest[cell] - pulled * self.centre[cell]
        return (pulled,), constant.flatten(1).sum(1)

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.points(values[0].unsqueeze(0))[0] - coefficients.sign() * self.rest

    def image(self, *ranges: Range) -> Range | None:
        return self.limits
