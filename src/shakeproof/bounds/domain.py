"""Cells of the parameter space, and the extremes of affine functions over them.

An affine function of m parameters is known from its values at m + 1 points of a cell: its centre, and a step from there
along each axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from shakeproof.operators import Range


class Domain(ABC):
    """Many cells, each with a bounding box: low and high (cells, m)."""

    low: Tensor
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    @cached_property
    def centre(self) -> Tensor:
        return (self.low + self.high) / 2

    @cached_property
    def half(self) -> Tensor:
        """Half the sides; the rounded centre's larger distance to an end, so that nothing of the cell sticks out."""
        return torch.maximum(self.high - self.centre, self.centre - self.low)

    @cached_property
    def points(self) -> Tensor:
        """The centre and a step of `half` along each axis: (m + 1, cells, m)."""
        steps = torch.eye(self.low.shape[1], dtype=self.low.dtype, device=self.low.device).unsqueeze(1) * self.half
        return torch.cat([self.centre.unsqueeze(0), self.centre + steps])

    @abstractmethod
    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        """The least and greatest of affine functions over each cell, from their values at the points.

        Values (m + 1, cells, *shape); what is known only up to `radius` (cells, *shape) may be so much farther out.
        """


@dataclass(frozen=True, eq=False)
class Boxes(Domain):
    """Boxes from low to high, both (cells, m)."""

    low: Tensor
    high: Tensor

    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        reach = torch.zeros_like(values[0]) if radius is None else radius.clone()
        for value in values[1:]:
            reach += (value - values[0]).abs_()
        return Range(values[0] - reach, values[0] + reach)


@dataclass(frozen=True, eq=False)
class Hulls(Domain):
    """Polytopes, simplices for example, given by their vertices (cells, vertices, m)."""

    vertices: Tensor

    @cached_property
    def low(self) -> Tensor:  # type: ignore[override]
        return self.vertices.amin(1)

    @cached_property
    def high(self) -> Tensor:  # type: ignore[override]
        return self.vertices.amax(1)

    def extremes(self, values: Tensor, radius: Tensor | None = None) -> Range:
        """Affine functions have their extremes at vertices."""
        steps = values[1:] - values[0]
        flat = self.half == 0
        shares = (self.vertices - self.centre.unsqueeze(1)) / torch.where(flat, 1.0, self.half).unsqueeze(1)
        there = values[0] + torch.einsum("cvm,mc...->vc...", shares, steps)
        beyond = 0.0 if radius is None else radius
        return Range(there.amin(0) - beyond, there.amax(0) + beyond)
