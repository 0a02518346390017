"""Elementwise piecewise-linear functions: each bends where its input passes a threshold."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Breaks, PiecewiseLinear


class Elementwise(PiecewiseLinear):
    """An elementwise function with the same thresholds for every neuron."""

    @property
    @abstractmethod
    def thresholds(self) -> tuple[float, ...]:
        """The inputs at which the slope changes."""

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        rows = x.reshape(len(x), -1)
        found = [_crossings(rows, threshold, joined) for threshold in self.thresholds]
        return Breaks(torch.cat([b.segment for b in found]), torch.cat([b.fraction for b in found]))

    def workspace(self, *inputs: torch.Size) -> int:
        return 3 * inputs[0].numel()  # masks, a byte a neuron


def _crossings(x: Tensor, threshold: float, joined: Tensor) -> Breaks:
    """Where a neuron passes the threshold between two rows; `x` is (rows, neurons)."""
    above = x > threshold
    changed = above[1:] ^ above[:-1]
    segment, neuron = changed.nonzero(as_tuple=True)
    start, end = x[segment, neuron] - threshold, x[segment + 1, neuron] - threshold
    strict = (start != 0) & (end != 0) & joined[segment]
    start, end = start[strict], end[strict]
    return Breaks(segment[strict], start / (start - end))


@dataclass(frozen=True, eq=False)
class Relu(Elementwise):
    """max(x, 0)."""

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(min=0)

    def overwrite(self, x: Tensor) -> Tensor:
        return x.clamp_(min=0)


@dataclass(frozen=True, eq=False)
class LeakyRelu(Elementwise):
    """x where positive, slope * x elsewhere; `slope` is a number or broadcasts against the value (PRelu)."""

    slope: Tensor

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.where(x > 0, x, x * self.slope)


@dataclass(frozen=True, eq=False)
class Clip(Elementwise):
    """x limited to [low, high]; either may be infinite."""

    low: float
    high: float

    @property
    def thresholds(self) -> tuple[float, ...]:
        return tuple(t for t in (self.low, self.high) if abs(t) != float("inf"))

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(self.low, self.high)

    def overwrite(self, x: Tensor) -> Tensor:
        return x.clamp_(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Abs(Elementwise):
    """|x|."""

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].abs()
