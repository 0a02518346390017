"""Products of two computed values: attention, gates.

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
