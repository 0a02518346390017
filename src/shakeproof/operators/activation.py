"""Elementwise piecewise-linear functions: each bends where its input passes a threshold."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Breaks, PiecewiseLinear, Range, Relaxation
from shakeproof.operators.elementwise import Between, Elementwise

# Of masks with fewer entries, it is not worth it to look at several at once.
MANY = 2**15


class Bending(Elementwise, PiecewiseLinear):
    """An elementwise function that is straight between thresholds, the same ones for every neuron."""

    @property
    @abstractmethod
    def thresholds(self) -> tuple[float, ...]:
        """The inputs at which the slope changes."""

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        rows = x.reshape(len(x), -1)
        found = [_crossings(rows, threshold, joined) for threshold in self.thresholds]
        segment, fraction, height, neuron = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
        return Breaks(segment, fraction, 2 * self.steepest * height, neuron)

    def workspace(self, *inputs: torch.Size) -> int:
        return 3 * inputs[0].numel()  # masks, a byte a neuron

    def strays(self, slopes: Tensor, within: Range) -> Range:
        # Straight in between, it is farthest from any line at an end or at a threshold.
        heights = [self.apply(x) - slopes * x for x in self._corners(within)]
        return Range(torch.stack(heights).amin(0), torch.stack(heights).amax(0))

    def image(self, within: Range) -> Range:
        heights = torch.stack([self.apply(x) for x in self._corners(within)])
        return Range(heights.amin(0), heights.amax(0))

    def split_at(self, within: Range) -> Tensor:
        place = torch.full_like(within.low, torch.nan)
        for threshold in self.thresholds:
            place = torch.where((within.low < threshold) & (within.high > threshold), threshold, place)
        return place

    def _corners(self, within: Range) -> list[Tensor]:
        inner = [torch.full_like(within.low, t).clamp(within.low, within.high) for t in self.thresholds]
        return [within.low, within.high, *inner]


def _crossings(x: Tensor, threshold: float, joined: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where a neuron passes the threshold between rows of `x` (rows, neurons), how far it goes, and which it is."""
    above = x > threshold
    place = _places((above[1:] ^ above[:-1]).view(-1))
    if not place.shape[0]:
        return place, x.new_empty(0), x.new_empty(0), place
    segment, neuron = place // x.shape[1], place % x.shape[1]
    start, end = x.take(place), x.take(place + x.shape[1])
    if threshold:
        start, end = start - threshold, end - threshold
    strict = torch.logical_and(start, end).logical_and_(joined[segment])
    if not bool(strict.all()):
        segment, neuron, start, end = (column[strict] for column in (segment, neuron, start, end))
    way = start - end
    return segment, start / way, way.abs(), neuron


def _places(mask: Tensor) -> Tensor:
    """Where a mask (n) is set, in order. Few are: so eight at a time are looked at first."""
    if mask.shape[0] % 8 or mask.shape[0] < MANY:
        return mask.nonzero().squeeze(1)
    eights = mask.view(torch.int64).nonzero().squeeze(1)
    which, place = mask.view(-1, 8).index_select(0, eights).nonzero().unbind(1)
    return eights[which] * 8 + place


@dataclass(frozen=True, eq=False)
class Relu(Bending):
    """max(x, 0)."""

    rounds_as_ieee = True

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(min=0)

    def overwrite(self, x: Tensor) -> Tensor:
        return x.clamp_(min=0)

    def relaxed(self, *ranges: Range) -> Relaxation:
        """The general rule's answer in fewer steps: above, the chord; below, 0 or x, the higher in the middle."""
        (within,) = ranges
        top, bottom = within.high.clamp(min=0), within.low.clamp(max=0)
        # The chord's slope: 0 where the neuron is off, 1 where it is on, exactly.
        slope = top / (top - bottom).clamp_(min=torch.finfo(top.dtype).tiny)
        gap = (slope * bottom).neg_()
        below = (top > -bottom).to(top.dtype)
        half = gap / 2
        return Between(slope, half, half, (below, None), (slope, gap), self)

    def image(self, within: Range) -> Range:
        return Range(within.low.clamp(min=0), within.high.clamp(min=0))

    @property
    def tilts(self) -> tuple[Tensor, Tensor] | None:
        return torch.tensor(0.0), torch.tensor(1.0)


@dataclass(frozen=True, eq=False)
class LeakyRelu(Bending):
    """x where positive, slope * x elsewhere; `slope` is a number or broadcasts against the value (PRelu)."""

    rounds_as_ieee = True

    slope: Tensor

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.where(x > 0, x, x * self.slope)

    @property
    def steepest(self) -> float:
        return max(1.0, float(self.slope.abs().max()))

    @property
    def tilts(self) -> tuple[Tensor, Tensor] | None:
        return (self.slope, torch.tensor(1.0)) if bool((self.slope <= 1).all()) else None


@dataclass(frozen=True, eq=False)
class Clip(Bending):
    """x limited to [low, high]; either may be infinite."""

    rounds_as_ieee = True

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
class Abs(Bending):
    """|x|."""

    rounds_as_ieee = True

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].abs()

    @property
    def tilts(self) -> tuple[Tensor, Tensor] | None:
        return torch.tensor(-1.0), torch.tensor(1.0)
