"""What an operator is: what it computes, where it bends, and how it is enclosed between affine functions.

The exact sweep asks a piecewise-linear operator for its breaks. Bounds ask any operator for a `Relaxation`: an affine
function of its inputs, and how far the output may be from it, for each of many cells of the input domain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shakeproof.linalg import Check

# So often is a constant rounded, at most, while it is prepared: batch norm divides by a root, multiplies, subtracts.
CONSTANT_ROUNDINGS = 8

# Of segments with more rows times entries than this, one after another is worked on.
MANY_PAIRS = 2**12


class Breaks(NamedTuple):
    """Points strictly inside segments: segment i joins rows i and i + 1, fraction 0 < t < 1 says where. Unordered.

    The output bends by at most `height` for each unit by which the fraction is missed. Where it is one neuron of an
    elementwise function that bends, `neuron` is its number among all entries; -1 elsewhere, None if nobody knows.
    `output` is what the operator makes of the rows themselves and of rows in between, if it knows that already.
    """

    segment: Tensor
    fraction: Tensor
    height: Tensor
    neuron: Tensor | None = None
    output: BentOutput | None = None


class BentOutput(NamedTuple):
    """An operator's output at rows (rows, *shape), and where it is no chord between two of them.

    Entry `entry` (n), by its number among all, is between row `segment` (n, in order) and the next one the maximum of
    chords, from `left` to `right`, both (n, k). All other entries are chords.
    """

    rows: Tensor
    segment: Tensor
    entry: Tensor
    left: Tensor
    right: Tensor

    def put_between(self, rows: Tensor, source: Tensor, fraction: Tensor) -> None:
        """Write what is no chord into `rows`, of which row i is at a `fraction` of segment source[i], in order."""
        segments, counts = self.segment.unique_consecutive(return_counts=True)
        first, end = (torch.searchsorted(source, segments, right=is_last) for is_last in (False, True))
        ends, is_large = counts.cumsum(0), counts * (end - first) > MANY_PAIRS
        flat = rows.view(len(rows), -1)
        for bounds in torch.stack([first, end, ends - counts, ends], 1)[is_large]:
            row, stop, low, high = map(int, bounds)
            share = fraction[row:stop].unsqueeze(1)
            chords = zip(self.left[low:high].unbind(1), self.right[low:high].unbind(1), strict=True)
            highest = reduce(torch.maximum, (torch.addcmul(left * (1 - share), right, share) for left, right in chords))
            flat[row:stop].index_copy_(1, self.entry[low:high], highest)
        self._put_pairs(flat, fraction, first, (end - first).masked_fill_(is_large, 0), counts)

    def _put_pairs(self, flat: Tensor, fraction: Tensor, first: Tensor, times: Tensor, counts: Tensor) -> None:
        """The same of segments with few rows, `times` from the `first` on, and few entries: for each pair of these."""
        times, first = times.repeat_interleave(counts), first.repeat_interleave(counts)
        number = torch.arange(len(times), device=times.device).repeat_interleave(times)
        row = torch.arange(len(number), device=times.device) - (times.cumsum(0) - times - first)[number]
        share = fraction[row].unsqueeze(1)
        chords = torch.addcmul(self.left[number] * (1 - share), self.right[number], share)
        flat[row, self.entry[number]] = chords.amax(1)


class Entries(NamedTuple):
    """Values (n) with few entries that are not 0: `value` (n, k), in places `at` (n, k) among all; None: all in order.

    The same place may come twice, if no more than one of its values is not 0.
    """

    at: Tensor | None
    value: Tensor


class Range(NamedTuple):
    """What a value is known to lie between, on each cell: low and high (cells, *shape)."""

    low: Tensor
    high: Tensor

    @property
    def centre(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Tensor:
        return (self.high - self.low) / 2


# Numbers the cell that each row is on, or takes rows and cells as they come (one cell serves all rows).
Cells = Tensor | slice


class Relaxation(ABC):
    """An operator on some cells, enclosed: its output is an affine function of its inputs, give or take a radius."""

    @abstractmethod
    def points(self, *values: Tensor) -> Tensor:
        """The affine function at several points of each cell; values (points, cells, *shape)."""

    @abstractmethod
    def spread(self, *radii: Tensor) -> Tensor:
        """How far the output may be from it when the inputs are only known up to `radii` (cells, *shape)."""

    @abstractmethod
    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        """Coefficients of the inputs, and a constant (rows), with

            sum(coefficients * output) >= sum(pulled * input) + constant

        on the row's cell; coefficients (rows, *shape), cell (rows) numbers the cells.
        """

    @abstractmethod
    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        """The output (rows, *shape) at which `pull` has equality, for inputs `values` (rows, *shape)."""

    def image(self, *ranges: Range) -> Range | None:
        """The range of the output for inputs in the given ranges, if it is cheap to compute."""
        return None


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """One layer; its fields are its parameters. Values have shape (rows, *shape)."""

    only_moves: ClassVar[bool] = False
    """Whether every entry of the output is one of the input's, or a constant: nothing is computed, nothing rounded."""

    rounds_as_ieee: ClassVar[bool] = False
    """Whether every float32 runtime makes it of additions, multiplications and divisions by a number, which IEEE 754
    rounds, of the file's own weights: `terms` counts their roundings. `--arithmetic float32` covers these classes only,
    and each must say so itself.
    """

    @abstractmethod
    def apply(self, *inputs: Tensor) -> Tensor:
        """The operator's output for all rows at once."""

    @abstractmethod
    def relaxed(self, *ranges: Range) -> Relaxation:
        """The operator enclosed, for inputs in `ranges`. Where it cannot be enclosed, the radius is infinite or NaN."""

    def to(self, where: torch.device | torch.dtype) -> Self:
        """The same operator with its parameters on a device, or of another type."""
        moved = {
            item.name: value.to(where) for item in fields(self) if isinstance(value := getattr(self, item.name), Tensor)
        }
        return replace(self, **moved) if moved else self

    def workspace(self, *inputs: torch.Size) -> int:
        """Bytes a row needs beside inputs and output; `inputs` are shapes without the row axis."""
        return 0

    def terms(self, *inputs: torch.Size) -> int:
        """How many rounded operations an entry of the output is made of, one after another, at most."""
        return 4


@dataclass(frozen=True, eq=False)
class Affine(Operator):
    """Affine in its input(s) together: a chord stays a chord, nothing bends, and it is its own enclosure.

    Its coefficients were rounded `roundings` times on their way from the file, and its constant is off by at most `off`
    beyond that, which broadcasts against the output.
    """

    roundings: int = field(default=0, kw_only=True)
    off: Tensor | None = field(default=None, kw_only=True)

    passes_ranges: ClassVar[bool] = False
    """Whether its output's range is worth working out from its inputs' (which are kept for that)."""

    @abstractmethod
    def magnitude(self) -> Operator:
        """The linear operator whose coefficients are the absolute values of this one's."""

    @abstractmethod
    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        """Coefficients of the inputs (of `shapes`) in sum(coefficients * output); coefficients (rows, *shape)."""

    def of_entries(self, entries: Entries, place: int, shapes: Sequence[torch.Size]) -> Entries | None:
        """What it makes of its input number `place` alone, without its constant; None if it cannot say that in short.

        Every value is a coefficient times a given one, rounded once.
        """
        return None

    def relaxed(self, *ranges: Range) -> Relaxation:
        return self.itself([within.low.shape[1:] for within in ranges])

    def itself(self, shapes: Sequence[torch.Size]) -> Itself:
        """The enclosure, for which the shapes of the inputs are enough."""
        return Itself(self, self._magnitude, shapes)

    @cached_property
    def _magnitude(self) -> Operator:
        return self.magnitude()

    def norm(self, shape: torch.Size, check: Check) -> float:
        """No less than |operator(x) - operator(0)| / |x| for its only input; infinite if only coefficients' absolute
        values tell.
        """
        return torch.inf

    @cached_property
    def known_norms(self) -> dict[tuple[torch.Size, ...], tuple[tuple[float, float], ...]]:
        """What `operator_norms` has worked out, by the shapes of the inputs."""
        return {}


@dataclass(frozen=True, eq=False)
class Itself(Relaxation):
    """An affine operator encloses itself."""

    operator: Affine
    magnitude: Operator
    shapes: Sequence[torch.Size]

    def points(self, *values: Tensor) -> Tensor:
        flat = self.operator.apply(*(value.flatten(0, 1) for value in values))
        return flat.view(*values[0].shape[:2], *flat.shape[1:])

    def spread(self, *radii: Tensor) -> Tensor:
        return self.magnitude.apply(*radii)

    def pull(self, coefficients: Tensor, cell: Cells) -> tuple[tuple[Tensor, ...], Tensor]:
        offset = self.operator.apply(*(coefficients.new_zeros(1, *shape) for shape in self.shapes))
        constant = coefficients.flatten(1) @ offset.flatten()
        return self.operator.adjoint(coefficients, self.shapes), constant

    def attained(self, coefficients: Tensor, *values: Tensor) -> Tensor:
        return self.operator.apply(*values)

    def image(self, *ranges: Range) -> Range | None:
        if not self.operator.passes_ranges:
            return None
        centre = self.operator.apply(*(interval.centre for interval in ranges))
        radius = self.magnitude.apply(*(interval.radius for interval in ranges))
        return Range(centre - radius, centre + radius)


class PiecewiseLinear(Operator):
    """Linear between breaks: it has one input, and tells where along a chain of segments it bends."""

    @abstractmethod
    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        """Where the output bends between neighbouring rows of `x` (rows, *shape).

        `joined` (rows - 1) is False where two neighbours are ends of different lines, with no segment between them.
        Sound because on a segment every input is a chord: after the breaks are inserted as rows, every output is one.
        """

    @property
    def steepest(self) -> float:
        """Its Lipschitz constant entry by entry: how much farther apart two outputs may be than their inputs."""
        return 1.0

    @property
    def lipschitz(self) -> float:
        """The same of the Euclidean norm of all entries."""
        return self.steepest


def summed_to(x: Tensor, shape: torch.Size) -> Tensor:
    """`x` (rows, *wide) summed over the axes along which a value of `shape` was repeated."""
    repeated = [axis + 1 for axis, size in enumerate(shape) if size == 1 and x.shape[axis + 1] > 1]
    return x.sum(repeated, keepdim=True) if repeated else x


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
    segment, fraction, height = torch.cat(groups), torch.cat(fractions), torch.cat(heights)
    strict = fraction > 0
    return Breaks(segment[strict], fraction[strict], height[strict])
