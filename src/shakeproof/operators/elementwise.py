"""Functions of one number, applied to each neuron, and how any of them is enclosed between two straight lines.

All a function has to say is how far it strays, between two numbers, from a line of a given slope. The slopes are chords
of the function, so that each enclosure is as tight as two lines can be where the function is nearly straight.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from shakeproof.operators.base import Cells, Operator, Range, Relaxation

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
        """What f(x) lies between for x in `within`."""

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
