"""What operators are tried on: cells, on which each input is affine in some parameters up to a radius, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shakeproof.operators import Operator, Range, Relaxation

PARAMETERS, CELLS = 2, 12
# Of each kind that `Trial._ways` has: one for a random combination of the outputs, one for a single output.
SAMPLES = 8
# How often an input is known exactly, and how often nothing of it is left to a radius (as in the first layer).
POINTS, NO_RADIUS = 0.1, 0.25

Interval = tuple[float, float]


class Sample(NamedTuple):
    """A point of each cell, and what is claimed there: sum(coefficients * out) >= sum(pulled * inputs) + constant."""

    share: Tensor
    inputs: tuple[Tensor, ...]
    out: Tensor
    coefficients: Tensor
    pulled: tuple[Tensor, ...]
    constant: Tensor

    @property
    def below(self) -> Tensor:
        return total(self.pulled, self.inputs) + self.constant


@dataclass(frozen=True, eq=False)
class Trial:
    """An operator, and its inputs on some cells: affine with values `points` (m + 1, cells, *shape), up to `radii`."""

    operator: Any  # an Operator; the rules of a kind of operator see only those of their kind
    points: tuple[Tensor, ...]
    radii: tuple[Tensor, ...]
    seed: int

    @property
    def random(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def shapes(self) -> list[torch.Size]:
        return [radius.shape[1:] for radius in self.radii]

    @cached_property
    def ranges(self) -> tuple[Range, ...]:
        reaches = [(p[1:] - p[0]).abs().sum(0) + radius for p, radius in zip(self.points, self.radii, strict=True)]
        return tuple(Range(p[0] - reach, p[0] + reach) for p, reach in zip(self.points, reaches, strict=True))

    @cached_property
    def relaxation(self) -> Relaxation:
        relaxation: Relaxation = self.operator.relaxed(*self.ranges)
        return relaxation

    @cached_property
    def samples(self) -> list[Sample]:
        random = self.random
        return [self._sample(number, random) for number in range(SAMPLES)]

    def rows(self, random: torch.Generator) -> tuple[Tensor, ...]:
        """Inputs (cells, *shape), one on each cell."""
        return tuple(r.low + (r.high - r.low) * uniform(r.low.shape, random).to(r.low) for r in self.ranges)

    def to(self, dtype: torch.dtype) -> Trial:
        points, radii = (tuple(value.to(dtype) for value in values) for values in (self.points, self.radii))
        return Trial(self.operator.to(dtype), points, radii, self.seed)

    def _sample(self, number: int, random: torch.Generator) -> Sample:
        shape = self.operator.apply(*(points[0] for points in self.points)).shape
        coefficients = torch.randn(shape, generator=random, dtype=torch.float64).to(self.radii[0])
        if number % 2:
            coefficients = coefficients * _one_entry(shape, random)
        pulled, constant = self.relaxation.pull(coefficients, torch.arange(CELLS))
        share, inner = self._ways(number // 2, pulled, random)
        inputs = tuple(
            affine_at(points, share) + part * radius
            for points, part, radius in zip(self.points, inner, self.radii, strict=True)
        )
        return Sample(share, inputs, self.operator.apply(*inputs), coefficients, pulled, constant)

    def _ways(self, kind: int, pulled: Sequence[Tensor], random: torch.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Parameters and radii, as shares of their reach: anywhere, at a corner, where the plane is low, or high."""
        free = uniform((CELLS, PARAMETERS), random), *(uniform(radius.shape, random) for radius in self.radii)
        share, *inner = (2 * part.to(self.radii[0]) - 1 for part in free)
        if kind == 0:
            return share, tuple(inner)
        if kind == 1:
            return share.sign(), tuple(part.sign() for part in inner)
        steps = [points[1:] - points[0] for points in self.points]
        slopes = sum((p * step).flatten(2).sum(2) for p, step in zip(pulled, steps, strict=True))
        assert isinstance(slopes, Tensor)
        way = -1 if kind == 2 else 1
        return way * slopes.t().sign(), tuple(way * p.sign() for p in pulled)


def draw_trial(operator: Operator, shapes: Sequence[Sequence[int]], within: Sequence[Interval], seed: int) -> Trial:
    """Cells of one scale: inputs as far from zero as `within` lets them or nearer, ranges as wide or narrower."""
    random = torch.Generator().manual_seed(seed)
    place, reach = _zoom(random), _zoom(random)
    drawn = [_draw_input(shape, interval, place, reach, random) for shape, interval in zip(shapes, within, strict=True)]
    return Trial(operator, tuple(points for points, _ in drawn), tuple(radius for _, radius in drawn), seed)


def _zoom(random: torch.Generator) -> float:
    exponent, whole = uniform((2,), random).tolist()
    return 1.0 if whole < 0.5 else float(10 ** (-2 * exponent))


def _draw_input(
    shape: Sequence[int], within: Interval, place: float, reach: float, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """An input's values at the points of each cell, and its radius there."""
    # Most functions bend at zero: that is where smaller inputs are.
    anchor = min(max(0.0, within[0]), within[1])
    low, high = (anchor + place * (end - anchor) for end in within)
    start, other = low + (high - low) * uniform((2, CELLS, *shape), random)
    half = reach * (other - start) / 2
    half = torch.where(uniform(half.shape, random) < POINTS, 0.0, half)
    shares = uniform((PARAMETERS + 1, *half.shape), random) + 1e-3
    if uniform((1,), random) < NO_RADIUS:
        shares[-1] = 0
    shares = shares / shares.sum(0)
    signs = torch.where(uniform(shares[1:].shape, random) < 0.5, -1.0, 1.0)
    centre = start + half
    points = torch.cat([centre.unsqueeze(0), centre + signs * shares[:-1] * half])
    return points, shares[-1] * half.abs()


def _one_entry(shape: torch.Size, random: torch.Generator) -> Tensor:
    """1 at one entry of each row, 0 elsewhere."""
    flat = uniform((shape[0], shape[1:].numel()), random)
    return (flat == flat.amax(1, keepdim=True)).view(shape)


def require(holds: bool, otherwise: str) -> None:
    """Like `assert`, which Python may be told to skip."""
    if not holds:
        raise AssertionError(otherwise)


def uniform(shape: Sequence[int], random: torch.Generator) -> Tensor:
    return torch.rand(tuple(shape), generator=random, dtype=torch.float64)


def affine_at(points: Tensor, share: Tensor) -> Tensor:
    """An affine function's value (cells, *shape) where z is `share` (cells, m) of the way from centre to sides."""
    return points[0] + torch.einsum("cm,mc...->c...", share, points[1:] - points[0])


def total(coefficients: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """sum(coefficients * values) of each row, over all inputs."""
    sums = []
    for part, value in zip(coefficients, values, strict=True):
        require(part.shape == value.shape, f"coefficients {tuple(part.shape)} of a value {tuple(value.shape)}")
        sums.append((part * value).flatten(1).sum(1))
    return torch.stack(sums).sum(0)


def worst_of(*parts: Tensor) -> Tensor:
    return torch.stack([part.amax() for part in parts if part.numel()]).amax()


def difference(one: Tensor, other: Tensor) -> Tensor:
    """Between entries, relative to the largest."""
    require(one.shape == other.shape, f"shape {tuple(one.shape)} instead of {tuple(other.shape)}")
    return (one - other).abs() / (1 + other.abs().amax())


def verdict(holds: bool) -> Tensor:
    return torch.tensor(0.0 if holds else 1.0)
