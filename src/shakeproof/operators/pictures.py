"""Operators on pictures with channels last, (rows, batch, height, width, channels): convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod

import torch
from torch import Tensor

from shakeproof.convolution import Convolution, SlidingWindow, norm_of_convolution
from shakeproof.linalg import Check, multiply, with_bias
from shakeproof.operators.affine import Matrix
from shakeproof.operators.base import (
    Affine,
    BentOutput,
    Breaks,
    Cells,
    Entries,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
    envelope_breaks,
)
from shakeproof.operators.elementwise import TwoLines

# A convolution is not written as a matrix with more entries than this.
LARGEST_UNROLLED = 2**24


@dataclass(frozen=True, eq=False)
class Conv(Affine):
    """Cross-correlation; weight (groups, channels out, kernel height * kernel width * channels in), bias (channels).

    `terms` holds for sums in any order.
    """

    rounds_as_ieee = True

    weight: Tensor
    bias: Tensor
    window: SlidingWindow

    @cached_property
    def _convolution(self) -> Convolution:
        return Convolution(self.weight, self.bias, self.window)

    def apply(self, *inputs: Tensor) -> Tensor:
        out = self._convolution.apply(inputs[0].flatten(0, 1))
        return out.view(*inputs[0].shape[:2], *out.shape[1:])

    def terms(self, *inputs: torch.Size) -> int:
        return self.weight.shape[2] + 1

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs(), bias=torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        pictures = self._convolution.adjoint(coefficients.flatten(0, 1), shapes[0][1:])
        return (pictures.view(len(coefficients), *shapes[0]),)

    def norm(self, shape: torch.Size, check: Check) -> float:
        return norm_of_convolution(self.weight, self.window, shape, check)

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        if entries.at is None or entries.at.shape[1] != 1 or self.window.dilations != (1, 1):
            return None
        (_, height, width, channels), (groups, outputs, _) = shapes[0], self.weight.shape
        down, across = self.window.output_size(height, width)
        pixel, channel = entries.at[:, 0] // channels, entries.at[:, 0] % channels
        line, down_entry, is_down = self.window.positions_over(pixel // width % height, 0, down)
        column, across_entry, is_across = self.window.positions_over(pixel % width, 1, across)
        line = line + (pixel // (width * height)).unsqueeze(1) * down
        position = (line.unsqueeze(2) * across + column.unsqueeze(1)).flatten(1)
        entry = (down_entry.unsqueeze(2) * self.window.kernel[1] + across_entry.unsqueeze(1)).flatten(1)
        seen = (is_down.unsqueeze(2) & is_across.unsqueeze(1)).flatten(1)
        weights = self._weights_of_entries[channel.unsqueeze(1), entry * seen] * (entries.value * seen).unsqueeze(2)
        group = (channel // (channels // groups)).view(-1, 1, 1)
        index = (position * seen).unsqueeze(2) * (groups * outputs) + group * outputs
        return Entries((index + torch.arange(outputs, device=index.device)).flatten(1), weights.flatten(1))

    @cached_property
    def _weights_of_entries(self) -> Tensor:
        """By channel and kernel entry, the weight in each output of its group: (channels, kernel entries, outputs)."""
        by_entry: Tensor = self.weight.unflatten(2, (prod(self.window.kernel), -1))
        return by_entry.permute(0, 3, 2, 1).flatten(0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class Unrolled(Matrix):
    """A convolution on a picture so small that most of its patches are border, as one matrix; its output's shape."""

    rounds_as_ieee = True

    shape: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        return with_bias(inputs[0].flatten(1), self.weight.t(), self.bias).view(-1, *self.shape)

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs(), bias=torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return (multiply(coefficients.flatten(1), self.weight).view(-1, *shapes[0]),)

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        return self.columns(entries)


def unrolled(conv: Conv, shape: torch.Size) -> Unrolled | None:
    """The convolution as a matrix, if that takes fewer multiplications; `shape` (batch, height, width, channels)."""
    down, across = conv.window.output_size(shape[1], shape[2])
    outputs = shape[0] * down * across * conv.bias.numel()
    if shape.numel() >= conv.weight.shape[2] or shape.numel() * outputs > LARGEST_UNROLLED:
        return None
    units = torch.eye(shape.numel(), dtype=conv.weight.dtype, device=conv.weight.device).view(-1, *shape)
    columns = replace(conv, bias=torch.zeros_like(conv.bias)).apply(units).reshape(-1, outputs)
    positions = outputs // conv.bias.numel()
    return Unrolled(
        columns.t().contiguous(),
        conv.bias.repeat(positions),
        (shape[0], down, across, conv.bias.numel()),
        roundings=conv.roundings,
        off=conv.off,
    )


@dataclass(frozen=True, eq=False)
class AveragePool(Affine):
    """The mean under a window; `divisor` (down, across, 1) is how many entries count at each position."""

    rounds_as_ieee = True

    window: SlidingWindow
    divisor: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        flat = x.flatten(0, 1)
        first, *others = self.window.shifted(self.window.padded(flat, 0.0))
        total = first.clone(memory_format=torch.contiguous_format)
        for view in others:
            total.add_(view)
        return total.div_(self.divisor).view(*x.shape[:2], *total.shape[1:])

    def terms(self, *inputs: torch.Size) -> int:
        return self.window.kernel[0] * self.window.kernel[1] + 1

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        batch, height, width, channels = shapes[0]
        share = coefficients.flatten(0, 1) / self.divisor
        picture = self.window.scattered([share] * (self.window.kernel[0] * self.window.kernel[1]), height, width)
        return (picture.reshape(len(coefficients), batch, height, width, channels),)

    def workspace(self, *inputs: torch.Size) -> int:
        return 8 * self.window.padded_entries(inputs[0])


# -- max pooling ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MaxPool(PiecewiseLinear):
    """The maximum under a window.

    `floor` is a constant that takes part in every maximum: 0 for max pooling of a ReLU's output (whose own breaks then
    need no rows), -inf otherwise. Padding never wins.
    """

    rounds_as_ieee = True

    window: SlidingWindow
    floor: float = -torch.inf

    def apply(self, *inputs: Tensor) -> Tensor:
        best = self.window.padded(inputs[0].flatten(0, 1), -torch.inf)
        for axis in self.window.axes:
            best = reduce(torch.maximum, axis.shifted(best))
        return best.clamp(min=self.floor).view(*inputs[0].shape[:2], *best.shape[1:])

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        """The winner of each window at each row; where it differs between neighbours, the envelope in between."""
        views = self._views(x)
        best, winners = (value.unflatten(0, x.shape[:2]) for value in self._best(x))
        changed = (winners[1:] != winners[:-1]) & joined.view(-1, 1, 1, 1, 1)
        segment, *place = changed.nonzero(as_tuple=True)
        by_row = [view.unflatten(0, x.shape[:2]) for view in views]
        left = torch.stack([view[segment, *place] for view in by_row], 1)
        right = torch.stack([view[segment + 1, *place] for view in by_row], 1)
        if self.floor > -torch.inf:
            floor = left.new_full((left.shape[0], 1), self.floor)
            left, right = torch.cat([left, floor], 1), torch.cat([right, floor], 1)
        # Padding has no chord: far below everything, at both ends.
        lowest = torch.finfo(left.dtype).min / 4
        left, right = left.clamp(min=lowest), right.clamp(min=lowest)
        breaks = envelope_breaks(left, right)
        entry = torch.zeros_like(segment)
        for axis, size in zip(place, best.shape[1:], strict=True):
            entry = entry * size + axis
        output = BentOutput(best, segment, entry, left, right)
        return breaks._replace(segment=segment[breaks.segment], output=output)

    def _best(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each window's maximum, and the number of its largest entry, the first of equals; the floor's is the last."""
        best, count = self.window.padded(x.flatten(0, 1), -torch.inf), prod(self.window.kernel)
        winner = torch.zeros_like(best, dtype=torch.uint8 if count < 255 else torch.int32)
        for axis, numbers_apart in zip(self.window.axes, (1, self.window.kernel[1]), strict=True):
            (best, *others), (winner, *other_winners) = axis.shifted(best), axis.shifted(winner)
            for place, (other, other_winner) in enumerate(zip(others, other_winners, strict=True), start=1):
                winner = torch.where(other > best, other_winner + place * numbers_apart, winner)
                best = torch.maximum(best, other)
        return best.clamp(min=self.floor), winner.masked_fill_(best <= self.floor, count)

    @property
    def lipschitz(self) -> float:
        """An entry may be the largest in every window that it is in."""
        return float((self.window.kernel[0] * self.window.kernel[1]) ** 0.5)

    def relaxed(self, *ranges: Range) -> Relaxation:
        """Each window's maximum as max(x, rest) of its entry x with the highest range, and the rest within its own."""
        (within,) = ranges
        lows, highs = (torch.stack(self._views(end)) for end in within)
        high, chosen = highs.max(0, keepdim=True)
        low = lows.gather(0, chosen).squeeze(0)
        rest = Range(
            lows.scatter(0, chosen, -torch.inf).amax(0).clamp(min=self.floor),
            highs.scatter(0, chosen, -torch.inf).amax(0).clamp(min=self.floor),
        )
        high, chosen = high.squeeze(0), chosen.squeeze(0)
        # Above: the chord of max(x, highest rest). Below: x, or the constant, whichever is higher in the middle.
        slope = ((high - rest.high) / (high - low)).clamp(0, 1)
        slope = torch.where(rest.high <= low, 1.0, torch.where(rest.high >= high, 0.0, slope))
        greatest = torch.maximum(torch.maximum(low, rest.high) - slope * low, high.maximum(rest.high) - slope * high)
        turn = rest.low.clamp(low, high)
        least = torch.maximum(turn, rest.low) - slope * turn
        constant = torch.maximum(low, rest.low)
        follows = (low + high) / 2 > constant
        below = (follows.to(low.dtype), torch.where(follows, 0.0, constant))
        gap = Range(least, greatest)
        parts = (slope, gap.centre, gap.radius, greatest, *below, constant, torch.maximum(high, rest.high), chosen)
        slope, offset, reach, greatest, follow, floor, bottom, top, chosen = (
            part.unflatten(0, within.low.shape[:2]) for part in parts
        )
        lines = TwoLines(slope, offset, reach, (follow, floor), (slope, greatest))
        return Chosen(self, lines, Range(bottom, top), chosen, within.low.shape[2], within.low.shape[3])

    def workspace(self, *inputs: torch.Size) -> int:
        # the padded picture, the maxima across it before and after one more entry, and the winners
        padded = self.window.padded_entries(inputs[0])
        return 8 * (padded + 3 * padded // self.window.strides[1])

    def chosen(self, x: Tensor, choice: Tensor) -> Tensor:
        """One entry of each window of `x` (rows, *shape); `choice` (rows, *output shape) numbers a window's entries."""
        flat = choice.flatten(0, 1)
        views = self._views(x)
        picked: Tensor = torch.where(flat == 0, views[0], 0.0)
        for number, view in enumerate(views[1:], start=1):
            picked = torch.where(flat == number, view, picked)
        return picked.view(*x.shape[:2], *picked.shape[1:])

    def _views(self, x: Tensor) -> list[Tensor]:
        return self.window.shifted(self.window.padded(x.flatten(0, 1), -torch.inf))


@dataclass(frozen=True, eq=False)
class Chosen(Relaxation):
    """Max pooling, enclosed by lines over one chosen entry of each window."""

    pool: MaxPool
    lines: TwoLines
    limits: Range
    choice: Tensor
    height: int
    width: int

    def points(self, *values: Tensor) -> Tensor:
        return self.lines.points(torch.stack([self.pool.chosen(value, self.choice) for value in values[0]]))

    def spread(self, *radii: Tensor) -> Tensor:
        return self.lines.spread(self.pool.chosen(radii[0], self.choice))

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        (pulled,), constant = self.lines.pull(coefficients, cell)
        flat, choice = pulled.flatten(0, 1), self.choice[cell].expand_as(pulled).flatten(0, 1)
        window = self.pool.window
        parts = (flat * (choice == number) for number in range(window.kernel[0] * window.kernel[1]))
        picture = window.scattered(parts, self.height, self.width)
        return (picture.unflatten(0, pulled.shape[:2]),), constant

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.lines.attained(coefficients, self.pool.chosen(values[0], self.choice))

    def image(self, *ranges: Range) -> Range | None:
        return self.limits
