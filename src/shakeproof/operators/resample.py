"""Weighted sums of a few entries along an axis: interpolation, and means under windows of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shakeproof.operators.base import Affine, Operator


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
