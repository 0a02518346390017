"""Functions of one number, applied to each neuron: where they bend or jump, and how two lines enclose them.

All a function has to say is how far it strays, between two numbers, from a line of a given slope. The slopes are chords
of the function, so that each enclosure is as tight as two lines can be where the function is nearly straight. Smooth
functions are in `smooth`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from shakeproof.linalg import places_of
from shakeproof.operators.base import Breaks, Cells, Operator, PiecewiseLinear, Range, Relaxation

# Parts of the interval whose chords are tried as slopes: the whole; one half; the other; the middle, almost a tangent.
CHORDS = ((0.0, 1.0), (0.0, 0.5), (0.5, 1.0), (0.25, 0.75))
# A chord over a narrower interval than this share of its ends is made of rounding.
NARROW = 1e-9


class Elementwise(Operator):
    """A function of one number, the same for every neuron."""

    @abstractmethod
    def strays(self, slopes: Tensor, within: Range) -> Range:
        """The least and the greatest that f(x) - slope * x can be for x in `within`, for any slopes.

        Slopes (k, cells, *shape); what it returns has their shape. Infinite or NaN where f is not defined throughout.
        """

    @abstractmethod
    def image(self, within: Range) -> Range:
        """The range of f(x) for x in `within`."""

    def split_at(self, within: Range) -> Tensor:
        """Where to cut a range in two, so that the function is straighter on each part; NaN if it is straight on it."""
        wide = (within.high - within.low) > NARROW * torch.maximum(within.low.abs(), within.high.abs())
        return torch.where(wide, within.centre, torch.nan)

    @property
    def tilts(self) -> tuple[Tensor, Tensor] | None:
        """The least and the greatest slope of lines through the origin below f, if it has its only bend there."""
        return None

    def relaxed(self, *ranges: Range) -> Relaxation:
        (within,) = ranges
        low, high = within
        ends = torch.tensor(CHORDS, dtype=low.dtype, device=low.device)
        start, end = (low + part.view(-1, *(1,) * low.dim()) * (high - low) for part in ends.unbind(1))
        wide = (high - low) > NARROW * torch.maximum(low.abs(), high.abs())
        slopes = torch.where(wide, (self.apply(end) - self.apply(start)) / (end - start), 0.0)
        image = self.image(within)
        least, greatest = self.strays(slopes, within)
        # The constant function is a line too, and the only safe one where the function is steep at an end.
        slopes = torch.cat([slopes, torch.zeros_like(slopes[:1])])
        least, greatest = torch.cat([least, image.low.unsqueeze(0)]), torch.cat([greatest, image.high.unsqueeze(0)])
        least, greatest = _known(least, -torch.inf), _known(greatest, torch.inf)
        best = _taken((slopes, least, greatest), _first_least(greatest - least))
        middle = slopes * within.centre
        below = _taken((slopes, least), _first_least(-(middle + least)))
        above = _taken((slopes, greatest), _first_least(middle + greatest))
        gap = Range(best[1], best[2])
        return Between(best[0], gap.centre, gap.radius, (below[0], below[1]), (above[0], above[1]), self)


def _first_least(scores: Tensor) -> Tensor:
    return _known(scores, torch.inf).min(0, keepdim=True).indices  # argmin takes six times as long


def _known(x: Tensor, otherwise: float) -> Tensor:
    return torch.where(x.isnan(), otherwise, x)


def _taken(stacks: tuple[Tensor, ...], choice: Tensor) -> tuple[Tensor, ...]:
    return tuple(stack.gather(0, choice).squeeze(0) for stack in stacks)


@dataclass(frozen=True, eq=False)
class TwoLines(Relaxation):
    """slope * x + offset, give or take `reach`, for the way forward; two lines (slope, offset) for the way back.

    The line below has no offset where it goes through the origin.
    """

    slope: Tensor
    offset: Tensor
    reach: Tensor
    below: tuple[Tensor, Tensor | None]
    above: tuple[Tensor, Tensor]

    def of(self, cells: Cells) -> Self:
        """The lines of some cells."""
        below = self.below[0][cells], None if self.below[1] is None else self.below[1][cells]
        above = self.above[0][cells], self.above[1][cells]
        slope, offset, reach = self.slope[cells], self.offset[cells], self.reach[cells]
        return replace(self, slope=slope, offset=offset, reach=reach, below=below, above=above)

    def points(self, *values: Tensor) -> Tensor:
        return torch.addcmul(self.offset, self.slope, values[0])

    def spread(self, *radii: Tensor) -> Tensor:
        return torch.addcmul(self.reach, self.slope.abs(), radii[0])

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        lower, upper = coefficients.clamp(min=0), coefficients.clamp(max=0)
        constant = torch.linalg.vecdot(upper.flatten(1), self.above[1][cell].flatten(1))
        if self.below[1] is not None:
            constant = constant + torch.linalg.vecdot(lower.flatten(1), self.below[1][cell].flatten(1))
        return (upper.mul_(self.above[0][cell]).addcmul_(lower, self.below[0][cell]),), constant

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        slope = torch.where(coefficients > 0, self.below[0], self.above[0])
        offset = torch.where(coefficients > 0, 0.0 if self.below[1] is None else self.below[1], self.above[1])
        return torch.addcmul(offset, slope, values[0])


@dataclass(frozen=True, eq=False)
class Between(TwoLines):
    """An elementwise function, enclosed."""

    function: Elementwise

    def image(self, *ranges: Range) -> Range | None:
        return self.function.image(ranges[0])


# -- functions that bend -----------------------------------------------------------------------------------------------


class Bending(Elementwise, PiecewiseLinear):
    """An elementwise function that is straight between thresholds, the same ones for every neuron."""

    @property
    @abstractmethod
    def thresholds(self) -> tuple[float, ...]:
        """The inputs at which the slope changes."""

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        rows = x.reshape(len(x), -1)
        crossings = [_crossings(rows, threshold, joined) for threshold in self.thresholds]
        segment, fraction, height, neuron = (
            crossings[0] if len(crossings) == 1 else map(torch.cat, zip(*crossings, strict=True))
        )
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
    place = places_of((above[1:] ^ above[:-1]).view(-1))
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


@dataclass(frozen=True, eq=False)
class Relu(Bending):
    """max(x, 0)."""

    rounds_as_ieee = True

    thresholds = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(min=0)

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


# -- functions that jump, with which binarised and quantised networks round their values -------------------------------


class Jumping(Elementwise):
    """An elementwise function whose values are whole numbers: it never falls, and skips none on its way up."""

    @abstractmethod
    def leaves(self, value: Tensor) -> Tensor:
        """The input at which it passes from a value to the next whole number."""

    def values(self, within: Range) -> Range:
        """Its least and its greatest value, for inputs that are known to be `within` without any rounding.

        What is no number has none, whatever a comparison makes of it.
        """
        return Range(*(torch.where(end.isnan(), end, self.apply(end)) for end in within))

    def image(self, within: Range) -> Range:
        # A function that jumps must not be told that a number is on the wrong side: ends were rounded, if only once.
        slack = 16 * torch.finfo(within.low.dtype).eps * torch.maximum(within.low.abs(), within.high.abs())
        return self.values(Range(within.low - slack, within.high + slack))

    def strays(self, slopes: Tensor, within: Range) -> Range:
        image, ends = self.image(within), torch.stack([-slopes * within.low, -slopes * within.high])
        return Range(image.low + ends.amin(0), image.high + ends.amax(0))

    def split_at(self, within: Range) -> Tensor:
        low, high = self.values(within)
        place = self.leaves(((low + high - 1) / 2).floor())
        return torch.where((place > within.low) & (place < within.high), place, torch.nan)

    def relaxed(self, *ranges: Range) -> Relaxation:
        """Between its least value and its greatest: a line that is steep is none to compute with."""
        (within,) = ranges
        image, level = self.image(within), torch.zeros_like(within.low)
        return Between(level, image.centre, image.radius, (level, image.low), (level, image.high), self)


@dataclass(frozen=True, eq=False)
class Sign(Jumping):
    """-1, 0 or 1."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].sign()

    def leaves(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Round(Jumping):
    """The nearest whole number; of two, the even one."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].round()

    def leaves(self, value: Tensor) -> Tensor:
        return value + 0.5


@dataclass(frozen=True, eq=False)
class Floor(Jumping):
    """The largest whole number that is no larger."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].floor()

    def leaves(self, value: Tensor) -> Tensor:
        return value + 1


@dataclass(frozen=True, eq=False)
class Ceil(Jumping):
    """The smallest whole number that is no smaller."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].ceil()

    def leaves(self, value: Tensor) -> Tensor:
        return value.clone()


@dataclass(frozen=True, eq=False)
class Positive(Jumping):
    """1 where a number is positive (or, `or_zero`, not negative), 0 elsewhere."""

    or_zero: bool

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return (x >= 0 if self.or_zero else x > 0).to(x.dtype)

    def leaves(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)
