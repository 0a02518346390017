"""Operators that only move entries (or add constant ones). Axes are counted without the row axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shakeproof.operators.base import Affine, Entries, Operator


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """The same entries in another shape."""

    rounds_as_ieee = True
    only_moves = True
    may_return_input = True
    passes_ranges = True

    shape: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].reshape(-1, *self.shape)

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return (coefficients.reshape(-1, *shapes[0]),)

    def of_entries(self, given: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        return given


@dataclass(frozen=True, eq=False)
class Transpose(Affine):
    """The axes in another order: axis i of the output is axis order[i] of the input."""

    rounds_as_ieee = True
    only_moves = True
    may_return_input = True
    passes_ranges = True

    order: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].permute(0, *(axis + 1 for axis in self.order)).contiguous()

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return (coefficients.permute(0, *(axis + 1 for axis in inverse)),)

    def of_entries(self, given: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        (shape,) = shapes
        if given.at is None:
            return Entries(None, self.apply(given.value.view(-1, *shape)).flatten(1))
        index = torch.zeros_like(given.at)
        for axis in self.order:
            index = index * shape[axis] + given.at // shape[axis + 1 :].numel() % shape[axis]
        return Entries(index, given.value)


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
    may_return_input = True
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
