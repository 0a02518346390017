"""Curved elementwise functions: each says what its second derivative is, or where it has which slope."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.operators.base import Range
from shakeproof.operators.elementwise import Elementwise

# A function is looked at in so many places of an interval; its curvature bounds what it may do in between.
PARTS = 8


class Smooth(Elementwise):
    """A function with a continuous second derivative."""

    turns: ClassVar[tuple[float, ...]] = ()
    """Where the second derivative has its extremes."""

    level: ClassVar[tuple[float, ...]] = ()
    """Where the function has its own."""

    @abstractmethod
    def curvature(self, x: Tensor) -> Tensor:
        """The second derivative."""

    def defined(self, within: Range) -> Tensor:
        """Whether the function is smooth between the two ends."""
        return within.low <= within.high

    def strays(self, slopes: Tensor, within: Range) -> Range:
        """At the knots exactly; between two knots h apart, f is within curvature * h^2 / 8 of its chord."""
        low, high = within
        parts = [k / PARTS for k in range(PARTS + 1)]
        knots = [low * (1 - part) + high * part for part in parts]
        heights = torch.stack([self.apply(x) - slopes * x for x in knots])
        curvature = torch.stack([self.curvature(x) for x in places(within, self.turns)])
        reach = ((high - low) / PARTS) ** 2 / 8
        sag, rise = curvature.amax(0).clamp(min=0) * reach, -curvature.amin(0).clamp(max=0) * reach
        return self._where_defined(Range(heights.amin(0) - sag, heights.amax(0) + rise), within)

    def image(self, within: Range) -> Range:
        heights = torch.stack([self.apply(x) for x in places(within, self.level)])
        return self._where_defined(Range(heights.amin(0), heights.amax(0)), within)

    def _where_defined(self, interval: Range, within: Range) -> Range:
        defined = self.defined(within)
        return Range(torch.where(defined, interval.low, -torch.inf), torch.where(defined, interval.high, torch.inf))


def places(within: Range, inner: tuple[float, ...]) -> list[Tensor]:
    """The ends of a range, and some inner numbers, moved into it."""
    return [within.low, within.high, *(torch.full_like(within.low, x).clamp(within.low, within.high) for x in inner)]


@dataclass(frozen=True, eq=False)
class Sigmoid(Smooth):
    """1 / (1 + exp(-x))."""

    turns = (-1.3169578969248167, 1.3169578969248167)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].sigmoid()

    def curvature(self, x: Tensor) -> Tensor:
        s = x.sigmoid()
        return s * (1 - s) * (1 - 2 * s)


@dataclass(frozen=True, eq=False)
class Tanh(Smooth):
    """The hyperbolic tangent."""

    turns = (-0.6584789484624084, 0.6584789484624084)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].tanh()

    def curvature(self, x: Tensor) -> Tensor:
        t = x.tanh()
        return -2 * t * (1 - t * t)


@dataclass(frozen=True, eq=False)
class Erf(Smooth):
    """The error function, of which exporters make GELU."""

    turns = (-math.sqrt(0.5), math.sqrt(0.5))

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].erf()

    def curvature(self, x: Tensor) -> Tensor:
        return -4 / math.sqrt(math.pi) * x * torch.exp(-x * x)


@dataclass(frozen=True, eq=False)
class Softplus(Smooth):
    """log(1 + exp(x))."""

    turns = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return torch.logaddexp(inputs[0], torch.zeros((), dtype=inputs[0].dtype, device=inputs[0].device))

    def curvature(self, x: Tensor) -> Tensor:
        s = x.sigmoid()
        return s * (1 - s)


@dataclass(frozen=True, eq=False)
class Gelu(Smooth):
    """x times the normal distribution function of x."""

    turns = (-2.0, 0.0, 2.0)
    level = (-0.7517915246935645,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return functional.gelu(inputs[0])

    def curvature(self, x: Tensor) -> Tensor:
        return (2 - x * x) * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@dataclass(frozen=True, eq=False)
class GeluTanh(Smooth):
    """GELU as approximated with a hyperbolic tangent: x (1 + tanh(q)) / 2 with q = sqrt(2 / pi) (x + 0.044715 x^3)."""

    turns = (-2.0134807246242579, 0.0, 2.0134807246242579)
    level = (-0.7524614220710163,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return functional.gelu(inputs[0], approximate="tanh")

    def curvature(self, x: Tensor) -> Tensor:
        root = math.sqrt(2 / math.pi)
        t = torch.tanh(root * (x + 0.044715 * x**3))
        first, second = root * (1 + 0.134145 * x * x), root * 0.26829 * x
        return (1 - t * t) * (first + x * second / 2 - x * t * first * first)


@dataclass(frozen=True, eq=False)
class Silu(Smooth):
    """x times its sigmoid."""

    turns = (-3.4358409935351107, 0.0, 3.4358409935351107)
    level = (-1.2784645427610738,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return functional.silu(inputs[0])

    def curvature(self, x: Tensor) -> Tensor:
        s = x.sigmoid()
        return s * (1 - s) * (2 + x * (1 - 2 * s))


@dataclass(frozen=True, eq=False)
class Exp(Smooth):
    """The exponential function."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].exp()

    def curvature(self, x: Tensor) -> Tensor:
        return x.exp()


@dataclass(frozen=True, eq=False)
class Power(Smooth):
    """x to a constant power: squares, square roots, reciprocals.

    A whole power above 0 is defined everywhere, below 0 on either side of 0; any other for positive numbers.
    """

    exponent: float

    turns = (0.0,)
    level = (0.0,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0] ** self.exponent

    def curvature(self, x: Tensor) -> Tensor:
        return self.exponent * (self.exponent - 1) * x ** (self.exponent - 2)

    def defined(self, within: Range) -> Tensor:
        if not self.exponent.is_integer():
            return within.low >= 0 if self.exponent > 0 else within.low > 0
        return within.low <= within.high if self.exponent >= 0 else (within.low > 0) | (within.high < 0)


@dataclass(frozen=True, eq=False)
class Log(Smooth):
    """The natural logarithm, of positive numbers."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].log()

    def curvature(self, x: Tensor) -> Tensor:
        return -1 / (x * x)

    def defined(self, within: Range) -> Tensor:
        return within.low > 0


@dataclass(frozen=True, eq=False)
class Mish(Smooth):
    """x times the hyperbolic tangent of its softplus."""

    turns = (-3.2673378465204046, -0.0879344313149142, 2.1148425630208771)
    level = (-1.1924312145154952,)

    def apply(self, *inputs: Tensor) -> Tensor:
        return functional.mish(inputs[0])

    def curvature(self, x: Tensor) -> Tensor:
        s, t = x.sigmoid(), functional.softplus(x).tanh()
        return (1 - t * t) * s * (2 + x * (1 - s - 2 * s * t))


# -- curved here, straight there, with a bend in between ---------------------------------------------------------------


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
