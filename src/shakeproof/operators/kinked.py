"""Functions that are curved here, straight there, and bend in between."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.operators.base import Range
from shakeproof.operators.elementwise import Elementwise
from shakeproof.operators.smooth import places


class Kinked(Elementwise):
    """A function whose only curved part has a slope that grows, or falls, from one end to the other."""

    kinks: ClassVar[tuple[float, ...]]
    """Where a straight part and the curved one meet."""

    level: ClassVar[tuple[float, ...]] = ()
    """Where the curved part has an extreme."""

    @abstractmethod
    def where_steep(self, slopes: Tensor) -> Tensor:
        """Where the curved part has the given slopes; anywhere, where it has none of them."""

    def strays(self, slopes: Tensor, within: Range) -> Range:
        """It is farthest from a line at an end, at a kink, or where the curved part has the line's slope."""
        ends = [x.expand_as(slopes) for x in places(within, self.kinks)]
        heights = [self.apply(x) - slopes * x for x in (*ends, self.where_steep(slopes).clamp(*within))]
        return Range(torch.stack(heights).amin(0), torch.stack(heights).amax(0))

    def image(self, within: Range) -> Range:
        heights = torch.stack([self.apply(x) for x in places(within, (*self.kinks, *self.level))])
        return Range(heights.amin(0), heights.amax(0))


@dataclass(frozen=True, eq=False)
class HardSwish(Kinked):
    """x times clip(x / 6 + 1 / 2, 0, 1): straight outside [-3, 3], a parabola inside."""

    kinks = (-3.0, 3.0)
    level = (-1.5,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return functional.hardswish(inputs[0])

    def where_steep(self, slopes: Tensor) -> Tensor:
        return (3 * slopes - 1.5).clamp(-3, 3)


@dataclass(frozen=True, eq=False)
class Elu(Kinked):
    """x where positive, alpha * (exp(x) - 1) elsewhere."""

    kinks = (0.0,)

    alpha: float

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.where(x > 0, x, self.alpha * x.clamp(max=0).expm1())

    def where_steep(self, slopes: Tensor) -> Tensor:
        return (slopes / self.alpha).clamp(torch.finfo(slopes.dtype).tiny, 1).log()
