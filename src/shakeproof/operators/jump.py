"""Functions that are constant but for jumps: what binarised and quantised networks round their values with."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Range, Relaxation
from shakeproof.operators.elementwise import Between, Elementwise


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
