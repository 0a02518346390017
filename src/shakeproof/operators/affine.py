"""Affine operators that are not convolutions. Axes are counted without the row axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from shakeproof.linalg import Check, always, multiply, norm_of_matrix, norm_of_positive, places_of, with_bias
from shakeproof.operators.base import Affine, Entries, Operator, summed_to

# Inputs that are 0 in all rows, as those of neurons that are off, are not multiplied, unless more than such a share are
# not. Of a smaller matrix, in fewer rows, or for fewer outputs, they are multiplied as fast as they are found; of a
# larger matrix, no copy in another memory order is kept.
MOST_ACTIVE, SMALL_MATRIX, LARGE_MATRIX, FEW_OUTPUTS, FEW_ROWS, FIRST_ROWS = 0.5, 2**15, 2**20, 64, 16, 32


@dataclass(frozen=True, eq=False)
class Matrix(Affine):
    """A product with weight (outputs, inputs) and bias (outputs)."""

    weight: Tensor
    bias: Tensor

    def terms(self, *inputs: torch.Size) -> int:
        return self.weight.shape[1] + 1

    def norm(self, shape: torch.Size, check: Check) -> float:
        return norm_of_matrix(self.weight, check)

    def columns(self, entries: Entries) -> Entries | None:
        """What it makes of single entries."""
        if entries.at is None or entries.at.shape[1] != 1:
            return None
        columns = self.weight.index_select(1, entries.at[:, 0]).t().contiguous()
        return Entries(None, columns * entries.value)


@dataclass(frozen=True, eq=False)
class Linear(Matrix):
    """x @ weight.T + bias along the last axis."""

    rounds_as_ieee = True

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        rows = x.reshape(-1, x.shape[-1])
        weight = self._by_input if self._is_worth_a_look else self.weight.t()
        active = _active(rows) if self._is_worth_a_look and len(rows) >= FEW_ROWS else None
        if active is not None:
            rows, weight = rows.index_select(1, active), weight.index_select(0, active)
        return with_bias(rows, weight, self.bias).view(*x.shape[:-1], len(self.weight))

    @cached_property
    def _is_worth_a_look(self) -> bool:
        """Whether leaving out inputs that are 0 pays, and no weight makes something of them."""
        is_medium = SMALL_MATRIX <= self.weight.numel() <= LARGE_MATRIX and len(self.weight) >= FEW_OUTPUTS
        return is_medium and bool(self.weight.isfinite().all())

    @cached_property
    def _by_input(self) -> Tensor:
        return self.weight.t().contiguous()

    def workspace(self, *inputs: torch.Size) -> int:
        return int(8 * MOST_ACTIVE * inputs[0].numel()) if self._is_worth_a_look else 0

    def magnitude(self) -> Operator:
        return Linear(self.weight.abs(), torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        pulled = multiply(coefficients.flatten(0, -2), self.weight)
        return (pulled.view(*coefficients.shape[:-1], self.weight.shape[1]),)

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        return self.columns(entries) if shapes[0].numel() == self.weight.shape[1] else None


def _active(x: Tensor) -> Tensor | None:
    """The numbers of the columns of `x` in which some entry is not 0; None if most of them have one."""
    for rows in (x[:FIRST_ROWS], x) if len(x) > FIRST_ROWS else (x,):  # a few rows may tell
        active = places_of(rows.any(0))
        if len(active) > MOST_ACTIVE * x.shape[1]:
            return None
    return active


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

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        if shapes[0] != shapes[1]:
            return None
        return entries._replace(value=-entries.value) if place and self.sign < 0 else entries


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


@dataclass(frozen=True, eq=False)
class Resample(Affine):
    """On one axis, output i is the sum over taps t of weight[t, i] times input sources[t][i].

    The axis is counted without the row axis; weight (taps, outputs).
    """

    passes_ranges = True

    axis: int
    sources: tuple[tuple[int, ...], ...]
    weight: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        parts = (
            x.index_select(self.axis + 1, torch.tensor(source, device=x.device)).mul_(self._along(weight, x))
            for source, weight in zip(self.sources, self.weight, strict=True)
        )
        total = next(parts)
        for part in parts:
            total.add_(part)
        return total

    def terms(self, *inputs: torch.Size) -> int:
        return len(self.sources) + 1

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs())

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        pulled = coefficients.new_zeros(len(coefficients), *shapes[0])
        for source, weight in zip(self.sources, self.weight, strict=True):
            origin = torch.tensor(source, device=coefficients.device)
            pulled.index_add_(self.axis + 1, origin, coefficients * self._along(weight, coefficients))
        return (pulled,)

    def _along(self, weight: Tensor, x: Tensor) -> Tensor:
        return weight.view(-1, *(1,) * (x.dim() - self.axis - 2))


# -- operators that only move entries, or add constant ones ------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """The same entries in another shape."""

    rounds_as_ieee = True
    only_moves = True
    passes_ranges = True

    shape: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].reshape(-1, *self.shape)

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return (coefficients.reshape(-1, *shapes[0]),)

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        return entries


@dataclass(frozen=True, eq=False)
class Transpose(Affine):
    """The axes in another order: axis i of the output is axis order[i] of the input."""

    rounds_as_ieee = True
    only_moves = True
    passes_ranges = True

    order: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].permute(0, *(axis + 1 for axis in self.order)).contiguous()

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return (coefficients.permute(0, *(axis + 1 for axis in inverse)),)

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        (shape,) = shapes
        if entries.at is None:
            return Entries(None, self.apply(entries.value.view(-1, *shape)).flatten(1))
        index = torch.zeros_like(entries.at)
        for axis in self.order:
            index = index * shape[axis] + entries.at // shape[axis + 1 :].numel() % shape[axis]
        return Entries(index, entries.value)


@dataclass(frozen=True, eq=False)
class Concat(Affine):
    """Branches, one after another along an axis."""

    rounds_as_ieee = True
    only_moves = True
    passes_ranges = True

    axis: int

    def apply(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=self.axis + 1)

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return torch.split(coefficients, [shape[self.axis] for shape in shapes], dim=self.axis + 1)


@dataclass(frozen=True, eq=False)
class Pad(Affine):
    """Entries added, dropped or moved: on axis a, output i copies input sources[a][i], or is `value` if that is -1."""

    rounds_as_ieee = True
    only_moves = True
    passes_ranges = True

    sources: tuple[tuple[int, ...], ...]
    value: float

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        for axis, source in enumerate(self.sources, start=1):
            if source == tuple(range(x.shape[axis])):
                continue
            index = torch.tensor(source, device=x.device)
            x = x.index_select(axis, index.clamp(min=0))
            if min(source) < 0:
                x.index_fill_(axis, (index < 0).nonzero().squeeze(1), self.value)
        return x

    def magnitude(self) -> Operator:
        return replace(self, value=0.0)

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        for axis, source in reversed(list(enumerate(self.sources, start=1))):
            size = shapes[0][axis - 1]
            if source == tuple(range(size)):
                continue
            copied = torch.tensor([i for i, index in enumerate(source) if index >= 0], device=coefficients.device)
            origin = torch.tensor([index for index in source if index >= 0], device=coefficients.device)
            summed = coefficients.new_zeros(*coefficients.shape[:axis], size, *coefficients.shape[axis + 1 :])
            coefficients = summed.index_add(axis, origin.long(), coefficients.index_select(axis, copied.long()))
        return (coefficients,)


# -- norms -------------------------------------------------------------------------------------------------------------

# Coefficients are squared: none may be so small that this is lost.
SMALLEST = 2.0**-300


def operator_norms(
    operator: Affine, shapes: Sequence[torch.Size], check: Check = always
) -> tuple[tuple[float, float], ...]:
    """For each input: no less than |operator(x) - operator(0)| / |x|, the other inputs being 0, and the same with all
    coefficients positive.

    Worked out once for an operator, and kept, if `check` leaves time for it.
    """
    norms = operator.known_norms
    if tuple(shapes) not in norms:
        norms[tuple(shapes)] = tuple(_norms(operator, shapes, place, check) for place in range(len(shapes)))
    return norms[tuple(shapes)]


def _norms(operator: Affine, shapes: Sequence[torch.Size], place: int, check: Check) -> tuple[float, float]:
    coefficients = [getattr(operator, name) for name in ("weight", "factor", "divisor") if hasattr(operator, name)]
    largest = max((float(t.abs().max()) for t in coefficients if t.numel()), default=1.0)
    if largest and not SMALLEST <= largest <= 1 / SMALLEST:  # squares would be lost; NaN as well
        return torch.inf, torch.inf
    absolute = operator.magnitude()
    assert isinstance(absolute, Affine)
    like = next((t for t in vars(operator).values() if isinstance(t, Tensor)), torch.empty(0, dtype=torch.float64))
    others = [like.new_zeros(1, *shape) for shape in shapes]

    def twice(x: Tensor) -> Tensor:
        y = absolute.apply(*(x if number == place else other for number, other in enumerate(others)))
        return absolute.adjoint(y, shapes)[place]

    of_absolute = norm_of_positive(twice, like.new_ones(1, *shapes[place]), check)
    return min(operator.norm(shapes[place], check), of_absolute), of_absolute
