"""Affine operators that are not convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from shakeproof.operators.active import active
from shakeproof.operators.base import Affine, Entries, Operator, summed_to
from shakeproof.products import multiply, with_bias

# A matrix of fewer entries is read as fast as one finds out which inputs are 0. Of one with more, no copy is kept; and
# with fewer outputs, taking inputs out costs as much as multiplying them does.
SMALL_MATRIX, LARGE_MATRIX, LEAST_OUTPUTS = 2**15, 2**20, 64
# If more than such a share of the inputs is not 0, all are multiplied.
MOST_ACTIVE = 0.75


@dataclass(frozen=True, eq=False)
class Matrix(Affine):
    """A product with weight (outputs, inputs) and bias (outputs)."""

    weight: Tensor
    bias: Tensor

    def product(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias; x (rows, inputs)."""
        on = active(x, MOST_ACTIVE) if self._is_taken_apart else None
        if on is None:
            return with_bias(x, self.weight.t(), self.bias)
        return with_bias(x.index_select(1, on), self._by_input.index_select(0, on), self.bias)

    def workspace(self, *inputs: torch.Size) -> int:
        return int(MOST_ACTIVE * 8 * inputs[0].numel()) if self._is_taken_apart else 0

    def terms(self, *inputs: torch.Size) -> int:
        return self.weight.shape[1] + 1

    def columns(self, given: Entries) -> Entries | None:
        """What it makes of single entries."""
        if given.at is None or given.at.shape[1] != 1:
            return None
        at = given.at[:, 0]
        is_kept = self.weight.numel() <= LARGE_MATRIX
        found = self._by_input.index_select(0, at) if is_kept else self.weight.index_select(1, at).t()
        return Entries(None, found * given.value)

    @cached_property
    def _is_taken_apart(self) -> bool:
        """Whether it pays to look for inputs that are 0; and no weight makes something of them."""
        is_worth_it = SMALL_MATRIX <= self.weight.numel() <= LARGE_MATRIX and len(self.weight) >= LEAST_OUTPUTS
        return is_worth_it and bool(self.weight.isfinite().all())

    @cached_property
    def _by_input(self) -> Tensor:
        return self.weight.t().contiguous()


@dataclass(frozen=True, eq=False)
class Linear(Matrix):
    """x @ weight.T + bias along the last axis."""

    rounds_as_ieee = True

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], len(self.weight))

    def magnitude(self) -> Operator:
        return Linear(self.weight.abs(), torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        pulled = multiply(coefficients.flatten(0, -2), self.weight)
        return (pulled.view(*coefficients.shape[:-1], self.weight.shape[1]),)

    def of_entries(self, given: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        return self.columns(given) if shapes[0].numel() == self.weight.shape[1] else None


@dataclass(frozen=True, eq=False)
class Scale(Affine):
    """factor * x + offset, both broadcasting against the value: constants added or multiplied, batch norm."""

    rounds_as_ieee = True
    passes_ranges = True

    factor: Tensor
    offset: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        return torch.addcmul(self.offset, inputs[0], self.factor)

    def magnitude(self) -> Operator:
        return Scale(self.factor.abs(), torch.zeros_like(self.offset))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return (coefficients * self.factor,)


@dataclass(frozen=True, eq=False)
class Combine(Affine):
    """first + sign * second, two branches of equal rank: a residual addition or a difference."""

    rounds_as_ieee = True

    sign: int

    def apply(self, *inputs: Tensor) -> Tensor:
        return torch.add(inputs[0], inputs[1], alpha=self.sign)

    def magnitude(self) -> Operator:
        return Combine(1)

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        second = summed_to(coefficients, shapes[1])
        return summed_to(coefficients, shapes[0]), second if self.sign > 0 else -second

    def of_entries(self, given: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        if shapes[0] != shapes[1]:
            return None
        return given._replace(value=-given.value) if place and self.sign < 0 else given


@dataclass(frozen=True, eq=False)
class Mean(Affine):
    """The mean over some axes (counted without the row axis), which stay with length 1."""

    rounds_as_ieee = True
    passes_ranges = True

    axes: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].mean(dim=[axis + 1 for axis in self.axes], keepdim=True)

    def terms(self, *inputs: torch.Size) -> int:
        return prod(inputs[0][axis] for axis in self.axes) + 1

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        (shape,) = shapes
        return ((coefficients / prod(shape[axis] for axis in self.axes)).expand(-1, *shape),)
