"""Operators that only move entries (or add constant ones). Axes are counted without the row axis."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Affine


@dataclass(frozen=True, eq=False)
class Reshape(Affine):
    """The same entries in another shape."""

    may_return_input = True

    shape: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class Transpose(Affine):
    """The axes in another order: axis i of the output is axis order[i] of the input."""

    may_return_input = True

    order: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].permute(0, *(axis + 1 for axis in self.order)).contiguous()


@dataclass(frozen=True, eq=False)
class Concat(Affine):
    """Branches, one after another along an axis."""

    axis: int

    def apply(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=self.axis + 1)


@dataclass(frozen=True, eq=False)
class Pad(Affine):
    """Entries added around: on axis a, output i copies input sources[a][i], or is `value` where that is -1."""

    may_return_input = True

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
