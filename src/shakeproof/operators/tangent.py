"""Functions of many numbers at once, enclosed by their tangents: products of two computed values (attention, gates),
softmax, and normalisation by mean and variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt

import torch
from torch import Tensor

from shakeproof.linalg import ABOVE, UNIT
from shakeproof.operators.base import Cells, Operator, Range, Relaxation, summed_to

# What a sum of n terms is rounded by, at most so many times in a tangent, and again where corners are extrapolated.
OF_TANGENTS, EXTRA_TERMS = 128, 16
# Masks are lower than -1e30, and far below what is no larger than this.
USUAL = 2.0**64


# -- products of two values: what is left beside the tangent at the centre is of second order --------------------------


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
        product, rest = self.product(x, y)[cell], self._rest()[cell]
        constant = -(coefficients * product + coefficients.abs() * rest).flatten(1).sum(1)
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


# -- softmax and normalisation -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tangent(Relaxation):
    """value + J (x - centre) with a symmetric J, give or take `remainder`; a constant where that is no farther off.

    `limits` is what the output lies between; sums are over `axes`, counted from the end.
    """

    centre: Tensor
    value: Tensor
    remainder: Tensor
    limits: Range
    axes: tuple[int, ...]

    def derivative(self, step: Tensor, cell: Cells = slice(None)) -> Tensor:
        """J step, on the cells of its rows."""
        raise NotImplementedError

    def derivative_of_sizes(self, radii: Tensor) -> Tensor:
        """The absolute values of J's entries, times radii."""
        raise NotImplementedError

    @cached_property
    def follows(self) -> Tensor:
        """1 where the tangent is closer than the constant in the middle, 0 elsewhere."""
        return (self.remainder < self.limits.radius).to(self.value.dtype)

    @cached_property
    def offset(self) -> Tensor:
        return torch.where(self.follows > 0, self.value, self.limits.centre)

    @cached_property
    def rest(self) -> Tensor:
        return torch.where(self.follows > 0, self.remainder, self.limits.radius)

    def points(self, *values: Tensor) -> Tensor:
        return self.offset + self.follows * self.derivative(values[0] - self.centre)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.follows * self.derivative_of_sizes(radii[0]) + self.rest

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        pulled = self.derivative(coefficients * self.follows[cell], cell)
        constant = coefficients * self.offset[cell] - coefficients.abs() * self.rest[cell] - pulled * self.centre[cell]
        return (pulled,), constant.flatten(1).sum(1)

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.points(values[0].unsqueeze(0))[0] - coefficients.sign() * self.rest

    def image(self, *ranges: Range) -> Range | None:
        return self.limits


@dataclass(frozen=True, eq=False)
class Softmax(Operator):
    """exp(x) over its sum along one axis (counted without the row axis).

    `seen` (*shape) is 1, or 0 for entries that take no part, whatever they are, and give 0: those that a mask makes
    minus infinity, or so low that none of usual size is comparable.
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
        within = self._usual(within)
        extremes, radius = self._extremes(within), self._hiding(within.radius, 0.0)
        remainder = extremes.high * (radius + radius.amax(axis, keepdim=True)) ** 2 / 2
        share = self.apply(within.centre)
        return SharesTangent(within.centre, share, remainder, extremes, (axis - within.low.dim(),))

    def _extremes(self, within: Range) -> Range:
        """A share is largest with its own input at the top and all others at the bottom, and smallest the other way."""
        axis = self.axis + 1
        within = Range(*(self._hiding(end, -torch.inf) for end in within))
        top = within.high.amax(axis, keepdim=True)
        low, high = (within.low - top).exp(), (within.high - top).exp()
        shares = low / (low + _others(high, axis)), high / (high + _others(low, axis))
        return Range(*(self._hiding(share, 0.0) for share in shares))

    def _usual(self, within: Range) -> Range:
        """Nothing is known beside what is hidden, if it is not of a usual size."""
        if self.seen is None:
            return within
        unusual = torch.maximum(within.low.abs(), within.high.abs()) > USUAL
        return Range(*(end.masked_fill(unusual, torch.nan) for end in within))

    def _hiding(self, x: Tensor, value: float) -> Tensor:
        """A row is `value` where it takes no part."""
        return x if self.seen is None else x.masked_fill(self.seen == 0, value)


def _others(x: Tensor, axis: int) -> Tensor:
    """Along an axis, the sum of all entries but each one; added up, since subtracting would cancel small ones."""
    none = torch.zeros_like(x.narrow(axis, 0, 1))
    before = torch.cat([none, x.narrow(axis, 0, x.shape[axis] - 1)], axis).cumsum(axis)
    after = torch.cat([x.narrow(axis, 1, x.shape[axis] - 1), none], axis).flip(axis).cumsum(axis).flip(axis)
    return before + after


class SharesTangent(Tangent):
    """A softmax, enclosed: J = diag(s) - s s^T."""

    def derivative(self, step: Tensor, cell: Cells = slice(None)) -> Tensor:
        weighted = self.value[cell] * step
        return weighted - self.value[cell] * weighted.sum(self.axes, keepdim=True)

    def derivative_of_sizes(self, radii: Tensor) -> Tensor:
        mean = (self.value * radii).sum(self.axes, keepdim=True)
        return self.value * (radii * (1 - 2 * self.value) + mean)


@dataclass(frozen=True, eq=False)
class Normalise(Operator):
    """(x - mean) / sqrt(variance + epsilon), both over some axes (counted without the row axis)."""

    axes: tuple[int, ...]
    epsilon: float

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        axes = [axis + 1 for axis in self.axes]
        centred = x - x.mean(axes, keepdim=True)
        return centred * (centred.square().mean(axes, keepdim=True) + self.epsilon).rsqrt()

    def relaxed(self, *ranges: Range) -> Relaxation:
        """The tangent at the centre, y + J d with J = (I - 1 1^T / n - y y^T / n) / s.

        Along a direction d, with e = d - mean(d) and s the root that is divided by, s' = mean(y e) and the second
        derivative is (-2 e s' + y (3 s'^2 - mean(e^2))) / s^2. As mean(y^2) < 1, s'^2 is at most mean(e^2), and that at
        most mean(d^2): it is no larger than 2 (|e| m + |y| m^2) / s^2, where m^2 is the mean of the squared radii. The
        deviation is at least that at the centre, less m.
        """
        (within,) = ranges
        axes = tuple(axis + 1 - within.low.dim() for axis in self.axes)
        count = prod(within.low.shape[axis] for axis in axes)

        def mean(x: Tensor) -> Tensor:
            return x.mean(axes, keepdim=True)

        size = torch.maximum(within.low.abs(), within.high.abs())
        size, radius = size + mean(size), within.radius * ABOVE
        centred = within.centre - mean(within.centre)
        rounding = (count + EXTRA_TERMS) * UNIT
        lost = 4 * rounding * size.amax(axes, keepdim=True)  # where the mean is much larger than what is left
        moved, far = mean(radius.square()).sqrt() * ABOVE + lost, radius + mean(radius) + lost
        deviation = mean(centred.square()).sqrt()
        root = (deviation.square() + self.epsilon).sqrt()
        least = ((deviation / ABOVE - moved).clamp(min=0).square() + self.epsilon).sqrt() / ABOVE
        most = ((deviation * ABOVE + moved).square() + self.epsilon).sqrt() * ABOVE
        limits = _quotients(Range(centred - far, centred + far), Range(least, most), sqrt(count))
        value, steps = centred / root, moved / least
        remainder = ABOVE * steps * (far / least + steps * torch.maximum(limits.low.abs(), limits.high.abs()))
        wrong = OF_TANGENTS * rounding * (size + value.abs() * mean(size.square()).sqrt()) / root
        told = lost < 2.0**-10 * root  # else rounding is not of first order
        return NormalTangent(within.centre, value, torch.where(told, remainder + wrong, torch.inf), limits, axes, root)


def _quotients(above: Range, below: Range, largest: float) -> Range:
    """What a quotient of two ranges lies between, the second one positive; no more than `largest` in any case."""
    low = torch.where(above.low < 0, above.low / below.low, above.low / below.high)
    high = torch.where(above.high > 0, above.high / below.low, above.high / below.high)
    return Range(low.clamp(min=-largest), high.clamp(max=largest))


@dataclass(frozen=True, eq=False)
class NormalTangent(Tangent):
    """A normalisation, enclosed; `root` is what is divided by at the centre."""

    root: Tensor

    def derivative(self, step: Tensor, cell: Cells = slice(None)) -> Tensor:
        value, centred = self.value[cell], step - step.mean(self.axes, keepdim=True)
        return (centred - value * (value * step).mean(self.axes, keepdim=True)) / self.root[cell]

    def derivative_of_sizes(self, radii: Tensor) -> Tensor:
        """On the diagonal as it is; beside it by Cauchy and Schwarz: sum |1 + y_i y_j| r_j, squared, is no more than
        sum r_j times sum (1 + y_i y_j)^2 r_j.
        """
        value, count = self.value, prod(self.value.shape[axis] for axis in self.axes)
        total, first, second = (
            (weight * radii).mean(self.axes, keepdim=True) for weight in (1.0, value, value.square())
        )
        square = total * (total + value * (2 * first + value * second)).clamp(min=0)
        diagonal = (1 - (1 + value.square()) / count).abs() * radii
        return ABOVE * (diagonal + square.sqrt()) / self.root
