"""Max pooling, and the upper envelope of chords that its breaks come from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.operators.base import Breaks, Cells, PiecewiseLinear, Range, Relaxation
from shakeproof.operators.elementwise import TwoLines
from shakeproof.operators.window import Pair, SlidingWindow


def envelope_breaks(left: Tensor, right: Tensor) -> Breaks:
    """Where the maximum of k chords passes from one chord to another.

    Each of the p groups has k chords on [0, 1], from `left` to `right`, both (p, k). Returns the group (as `segment`)
    and the fraction of every change strictly inside. Walks along the envelope: from the chord that leads, the next
    leader is the steeper one that meets it first. At most k - 1 steps, since slopes only grow. However small a change,
    it is a break: what later layers make of it is not known here.
    """
    slope = right - left
    # The leader just after 0: the highest start and, among equals, the steepest.
    leads = left == left.amax(1, keepdim=True)
    leader = torch.where(leads, slope, -torch.inf).argmax(1, keepdim=True)
    groups, fractions, heights = [], [], []
    group = torch.arange(left.shape[0], device=left.device)
    reached = torch.zeros_like(left[:, :1])
    while group.numel():
        behind = left.gather(1, leader) - left
        gain = slope - slope.gather(1, leader)
        ahead = gain - behind
        overtakes = (gain > 0) & (ahead > 0)
        meeting = torch.where(overtakes, behind / gain, torch.inf).maximum(reached)
        first = meeting.amin(1, keepdim=True)
        leader = torch.where(meeting == first, gain, -torch.inf).argmax(1, keepdim=True)
        height = gain.gather(1, leader)
        inside = (first < 1).squeeze(1)
        group, reached, leader = group[inside], first[inside], leader[inside]
        left, slope = left[inside], slope[inside]
        groups.append(group)
        fractions.append(reached.squeeze(1))
        heights.append(height[inside].squeeze(1))
    if not groups:
        return Breaks(group, left.new_empty(0), left.new_empty(0))
    found, fraction, height = torch.cat(groups), torch.cat(fractions), torch.cat(heights)
    strict = fraction > 0
    return Breaks(found[strict], fraction[strict], height[strict])


@dataclass(frozen=True, eq=False)
class MaxPool(PiecewiseLinear):
    """The maximum under a window, on pictures with channels last: (rows, batch, height, width, channels).

    `floor` is a constant that takes part in every maximum: 0 for max pooling of a ReLU's output (whose own breaks then
    need no rows), -inf otherwise. Padding never wins.
    """

    rounds_as_ieee = True

    window: SlidingWindow
    floor: float = -torch.inf

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        views = self._views(x)
        best = views[0].clamp(min=self.floor)
        for view in views[1:]:
            torch.maximum(best, view, out=best)
        return best.view(*x.shape[:2], *best.shape[1:])

    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        """The winner of each window at each row; where it differs between neighbours, the envelope in between."""
        views = self._views(x)
        best = torch.full_like(views[0], self.floor)
        winner = torch.full_like(best, len(views), dtype=torch.uint8 if len(views) < 255 else torch.int32)
        for index, view in enumerate(views):
            winner.masked_fill_(view > best, index)
            torch.maximum(best, view, out=best)
        rows = winner.unflatten(0, x.shape[:2])
        changed = (rows[1:] != rows[:-1]) & joined.view(-1, 1, 1, 1, 1)
        segment, *output = changed.nonzero(as_tuple=True)
        by_row = [view.unflatten(0, x.shape[:2]) for view in views]
        left = torch.stack([view[segment, *output] for view in by_row], 1)
        right = torch.stack([view[segment + 1, *output] for view in by_row], 1)
        if self.floor > -torch.inf:
            floor = left.new_full((left.shape[0], 1), self.floor)
            left, right = torch.cat([left, floor], 1), torch.cat([right, floor], 1)
        # Padding has no chord: far below everything, at both ends.
        lowest = torch.finfo(left.dtype).min / 4
        found = envelope_breaks(left.clamp(min=lowest), right.clamp(min=lowest))
        return found._replace(segment=segment[found.segment])

    @property
    def stretch(self) -> float:
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
        # the padded picture, the running maximum, the winners and their comparison
        outputs = self.window.patch_entries(inputs[0]) // (self.window.kernel[0] * self.window.kernel[1])
        return 8 * (self.window.padded_entries(inputs[0]) + 2 * outputs)

    def chosen(self, x: Tensor, choice: Tensor) -> Tensor:
        """One entry of each window of `x` (rows, *shape); `choice` (rows, *output shape) numbers a window's entries."""
        flat = choice.flatten(0, 1)
        views = self._views(x)
        picked: Tensor = torch.where(flat == 0, views[0], 0.0)
        for number, view in enumerate(views[1:], start=1):
            picked = torch.where(flat == number, view, picked)
        return picked.view(*x.shape[:2], *picked.shape[1:])

    def _views(self, x: Tensor) -> list[Tensor]:
        flat = x.flatten(0, 1)
        size: Pair = self.window.output_size(flat.shape[1], flat.shape[2])
        return self.window.shifted(self.window.padded(flat, -torch.inf), size)


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
