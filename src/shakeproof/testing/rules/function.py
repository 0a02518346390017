"""Rules of functions of one number, and of smooth ones."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from shakeproof.operators import Elementwise, Range, Smooth, TwoLines
from shakeproof.testing.rules.base import OF_DIFFERENCES, difference, rule, verdict, worst_of
from shakeproof.testing.trial import Trial, require, uniform

# Places of a range where a function is evaluated.
GRID = 201


def _function(trial: Trial) -> tuple[Elementwise, Range]:
    assert isinstance(trial.operator, Elementwise)
    return trial.operator, trial.ranges[0]


def _grid(within: Range) -> Tensor:
    """Numbers of each range: (grid, cells, *shape)."""
    return _along(within.low, within.high)


def _along(start: Tensor, end: Tensor) -> Tensor:
    steps = torch.linspace(0, 1, GRID, dtype=torch.float64).view(-1, *(1,) * start.dim())
    return torch.lerp(start, end, steps)


def _values(function: Elementwise, x: Tensor) -> Tensor:
    return function.apply(x.flatten(0, 1)).view(x.shape)


def _outside(found: Range, heights: Tensor) -> Tensor:
    """How far heights (grid, ...) are outside a range, each beside their own size."""
    size = 1 + heights.abs().amax(0)
    return torch.maximum(found.low - heights.amin(0), heights.amax(0) - found.high) / size


@rule(Elementwise)
def apply_treats_each_entry_alone(trial: Trial) -> Tensor:
    """An entry of the output is a function of that entry of the input."""
    random = trial.random
    (one,), (other,) = trial.rows(random), trial.rows(random)
    mask = uniform(one.shape, random) < 0.5
    apply = trial.operator.apply
    return difference(apply(torch.where(mask, one, other)), torch.where(mask, apply(one), apply(other)))


@rule(Elementwise)
def strays_contains_the_distance_from_lines(trial: Trial) -> Tensor:
    """f(x) - slope * x on a grid, for chords, for steeper lines and for any."""
    function, within = _function(trial)
    x = _grid(within)
    values = _values(function, x)
    width = within.high - within.low
    chord = torch.where(width > 0, (values[-1] - values[0]) / width, 0.0)
    any_slope = torch.randn(chord.shape, generator=trial.random, dtype=torch.float64)
    slopes = torch.stack([chord, 1.5 * chord, any_slope, 3 * any_slope])
    found = function.strays(slopes, within)
    require(found.low.shape == found.high.shape == slopes.shape, "strays does not have the shape of the slopes")
    return _outside(found, values.unsqueeze(1) - slopes * x.unsqueeze(1))


@rule(Elementwise)
def image_contains_the_function(trial: Trial) -> Tensor:
    """f(x) on a grid."""
    function, within = _function(trial)
    return _outside(function.image(within), _values(function, _grid(within)))


@rule(Elementwise)
def split_at_is_inside_or_the_function_is_straight(trial: Trial) -> Tensor:
    """A cut is strictly between the ends; where there is none, f is its chord. Neurons may come in any shape."""
    function, within = _function(trial)
    cut = function.split_at(within)
    require(cut.shape == within.low.shape, f"cuts {tuple(cut.shape)} of ranges {tuple(within.low.shape)}")
    flat = function.split_at(Range(*(end.flatten(1) for end in within)))
    same = torch.allclose(flat, cut.flatten(1), rtol=0, atol=0, equal_nan=True)
    require(same, "cuts depend on the shape of the ranges")
    inside = cut.isnan() | ((cut > within.low) & (cut < within.high))
    values = _values(function, _grid(within))
    bend = (values - _along(values[0], values[-1])).abs().amax(0) / (1 + values.abs().amax(0))
    return worst_of(verdict(bool(inside.all())), torch.where(cut.isnan(), bend, 0.0))


@rule(Elementwise)
def tilts_are_slopes_of_lines_below(trial: Trial) -> Tensor:
    """If there are any: lines through the origin from the least slope to the greatest, and 0 is the only bend."""
    function, within = _function(trial)
    if function.tilts is None:
        return verdict(True)
    least, greatest = (tilt.to(within.low).expand(within.low.shape) for tilt in function.tilts)
    slopes = torch.stack([torch.lerp(least, greatest, share) for share in (0.0, 0.3, 0.7, 1.0)]).unsqueeze(1)
    x = _grid(within)
    above = (slopes * x - _values(function, x)) / (1 + x.abs())
    around = (within.low < 0) & (within.high > 0)
    cut = function.split_at(within)
    only_bend = bool(torch.where(around, cut == 0, cut.isnan()).all())
    return worst_of(above, verdict(only_bend and bool((least <= greatest).all())))


@rule(Elementwise)
def relaxed_is_between_two_lines(trial: Trial) -> Tensor:
    """The slopes of `TwoLines` may be chosen anew, which boxes of many inputs ask for."""
    return verdict(isinstance(trial.relaxation, TwoLines))


def _smooth(trial: Trial) -> tuple[Smooth, float, float]:
    """A function, and from where to where the trial has inputs."""
    assert isinstance(trial.operator, Smooth)
    return trial.operator, float(trial.ranges[0].low.min()), float(trial.ranges[0].high.max())


@rule(Smooth, OF_DIFFERENCES)
def curvature_is_the_second_derivative(trial: Trial) -> Tensor:
    """Against differences of the function."""
    function, low, high = _smooth(trial)
    step = 1e-4
    x = torch.linspace(low + step, max(high - step, low + step), GRID, dtype=torch.float64)
    second = (function.apply(x + step) - 2 * function.apply(x) + function.apply(x - step)) / step**2
    return difference(function.curvature(x), second)


@rule(Smooth)
def curvature_is_monotone_between_turns(trial: Trial) -> Tensor:
    """So that its extremes on a range are at the ends or at turns."""
    function, low, high = _smooth(trial)
    ends = sorted({low, high, *(turn for turn in function.turns if low < turn < high)})
    against = []
    for start, end in pairwise(ends):
        values = function.curvature(torch.linspace(start, end, GRID, dtype=torch.float64))
        steps = values.diff() / (1 + values.abs().amax())
        against.append(torch.minimum(steps.amax(), -steps.amin()))
    return worst_of(*against)
