"""The rules that operators have to keep, each of one kind of operator.

A rule is a function of a trial. It returns by how much the operator breaks it, relative to the size of the values. Its
name is the function's, its explanation the docstring. NaN breaks every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from shakeproof.operators import (
    Affine,
    Elementwise,
    Entries,
    Jumping,
    Operator,
    PiecewiseLinear,
    Range,
    Smooth,
    TwoLines,
)
from shakeproof.testing.trial import (
    CELLS,
    Sample,
    Trial,
    affine_at,
    difference,
    require,
    total,
    uniform,
    verdict,
    worst_of,
)

# What rounding explains, beside the size of the values: of float64, of float32, and of differences of differences.
OF_FLOAT64, OF_FLOAT32, OF_DIFFERENCES = 1e-12, 1e-4, 1e-5

Check = Callable[[Trial], Tensor]


@dataclass(frozen=True)
class Rule:
    """One rule of one kind of operator; violations up to `tolerance` are rounding."""

    kind: type[object]
    tolerance: float
    check: Check

    @property
    def name(self) -> str:
        return self.check.__name__.replace("_", " ")

    @property
    def explanation(self) -> str:
        return " ".join((self.check.__doc__ or "").split())


RULES: list[Rule] = []


def rule(kind: type[object], tolerance: float = OF_FLOAT64) -> Callable[[Check], Check]:
    """Makes a function a rule of every operator of that kind."""

    def registered(check: Check) -> Check:
        RULES.append(Rule(kind, tolerance, check))
        return check

    return registered


# -- all operators: what they compute, and how they are enclosed -------------------------------------------------------


@rule(Operator)
def apply_treats_each_row_alone(trial: Trial) -> Tensor:
    """The output is (rows, *shape), and a row's is the same without the others."""
    inputs = trial.rows(trial.random)
    alone = [trial.operator.apply(*(x[row : row + 1] for x in inputs)) for row in range(CELLS)]
    return difference(trial.operator.apply(*inputs), torch.cat(alone))


@rule(Operator)
def apply_leaves_its_inputs_as_they_are(trial: Trial) -> Tensor:
    """Others may still read them."""
    inputs = trial.rows(trial.random)
    copies = [x.clone() for x in inputs]
    trial.operator.apply(*copies)
    return worst_of(*(difference(one, other) for one, other in zip(copies, inputs, strict=True)))


@rule(Operator)
def workspace_is_a_number_of_bytes(trial: Trial) -> Tensor:
    """For shapes without the row axis."""
    size = trial.operator.workspace(*trial.shapes)
    return verdict(isinstance(size, int) and size >= 0)


@rule(Operator)
def points_and_spread_enclose_outputs(trial: Trial) -> Tensor:
    """The output is never farther from the affine function through `points` than `spread`."""
    affine = trial.relaxation.points(*trial.points)
    spread = trial.relaxation.spread(*trial.radii)
    gaps = []
    for s in trial.samples:
        line = affine_at(affine, s.share)
        require(line.shape == spread.shape == s.out.shape, "points, spread and output differ in shape")
        gaps.append(((s.out - line).abs() - spread) / (1 + s.out.abs().amax()))
    return worst_of(*gaps)


@rule(Operator)
def image_contains_outputs(trial: Trial) -> Tensor:
    """If the relaxation has an image."""
    image = trial.relaxation.image(*trial.ranges)
    if image is None:
        return verdict(True)
    gaps = []
    for s in trial.samples:
        require(image.low.shape == image.high.shape == s.out.shape, "image and output differ in shape")
        gaps.append(torch.maximum(image.low - s.out, s.out - image.high) / (1 + s.out.abs().amax()))
    return worst_of(*gaps)


@rule(Operator)
def pull_is_a_lower_bound(trial: Trial) -> Tensor:
    """sum(coefficients * output) is at least sum(pulled * input) + constant."""
    exact = [(s, total([s.coefficients], [s.out])) for s in trial.samples]
    return worst_of(*((s.below - value) / _size(s, s.out) for s, value in exact))


@rule(Operator)
def attained_is_where_pull_has_equality(trial: Trial) -> Tensor:
    """sum(coefficients * attained) is sum(pulled * input) + constant."""
    gaps = []
    for s in trial.samples:
        attained = trial.relaxation.attained(s.coefficients, *s.inputs)
        gaps.append((s.below - total([s.coefficients], [attained])).abs() / _size(s, attained))
    return worst_of(*gaps)


@rule(Operator)
def pull_leaves_its_coefficients_as_they_are(trial: Trial) -> Tensor:
    """They are read again for the derivatives of the bound."""
    coefficients = trial.samples[0].coefficients
    copy = coefficients.clone()
    trial.relaxation.pull(copy, slice(None))
    return difference(copy, coefficients)


@rule(Operator)
def pull_takes_the_cell_of_each_row(trial: Trial) -> Tensor:
    """Numbered in any order, or as they come."""
    sample = trial.samples[0]
    order = torch.randperm(CELLS, generator=trial.random)
    pulled, constant = trial.relaxation.pull(sample.coefficients[order], order)
    same, same_constant = trial.relaxation.pull(sample.coefficients, slice(None))
    pairs = [(constant, sample.constant[order]), (same_constant, sample.constant)]
    pairs += [(part, each[order]) for part, each in zip(pulled, sample.pulled, strict=True)]
    pairs += zip(same, sample.pulled, strict=True)
    return worst_of(*(difference(one, other) for one, other in pairs))


@rule(Operator)
def one_cell_serves_all_rows(trial: Trial) -> Tensor:
    """Relaxed on a single cell, `pull` and `attained` take many rows, numbered or not."""
    cell = [Range(r.low[:1], r.high[:1]) for r in trial.ranges]
    alone = trial.operator.relaxed(*cell)
    coefficients, random = trial.samples[0].coefficients, trial.random
    inputs = [low + (high - low) * uniform((CELLS, *low.shape[1:]), random) for low, high in cell]
    out = total([coefficients], [trial.operator.apply(*inputs)])
    attained = total([coefficients], [alone.attained(coefficients, *inputs)])
    (pulled, constant), (same, same_constant) = (
        alone.pull(coefficients, cells) for cells in (slice(None), torch.zeros(CELLS, dtype=torch.long))
    )
    below = total(pulled, inputs) + constant
    size = 1 + out.abs() + constant.abs()
    pairs = [(same_constant, constant), *zip(same, pulled, strict=True)]
    gaps = [(below - out) / size, (below - attained).abs() / size]
    return worst_of(*gaps, *(difference(one, other) for one, other in pairs))


@rule(Operator, OF_FLOAT32)
def to_float32_keeps_the_operator(trial: Trial) -> Tensor:
    """`to(torch.float32)` computes and encloses the same, in float32, up to its rounding."""
    small = trial.to(torch.float32)
    inputs = trial.rows(trial.random)
    out = small.operator.apply(*(x.float() for x in inputs))
    require(out.dtype == torch.float32, f"float32 becomes {out.dtype}")
    apart = difference(out.double(), trial.operator.apply(*inputs))
    rules = (points_and_spread_enclose_outputs, pull_is_a_lower_bound, attained_is_where_pull_has_equality)
    return worst_of(apart, *(check(small) for check in rules))


def _size(sample: Sample, output: Tensor) -> Tensor:
    """Of what is added up in a plane and its combination of outputs; where they are steep, the constant is large."""
    return 1 + (sample.coefficients * output).abs().flatten(1).sum(1) + sample.constant.abs()


# -- affine operators --------------------------------------------------------------------------------------------------

# Input entries whose coefficients are compared, in each trial.
UNITS = 32


@rule(Affine)
def apply_is_affine(trial: Trial) -> Tensor:
    """In all inputs together: on a line through two of them, and beyond, the output is on a line."""
    random = trial.random
    start, end = trial.rows(random), trial.rows(random)
    share = 3 * uniform((CELLS,), random) - 1

    def between(one: Tensor, other: Tensor) -> Tensor:
        return one + share.view(-1, *(1,) * (one.dim() - 1)) * (other - one)

    middle = trial.operator.apply(*map(between, start, end))
    return difference(middle, between(trial.operator.apply(*start), trial.operator.apply(*end)))


@rule(Affine)
def magnitude_has_the_absolute_coefficients(trial: Trial) -> Tensor:
    """Of a sample of input entries; it is linear and has no offset."""
    random = trial.random
    operator, magnitude = trial.operator, trial.operator.magnitude()
    one, other = ([x.abs() for x in trial.rows(random)] for _ in range(2))
    parts = [magnitude.apply(*inputs) for inputs in (one, other)]
    gaps = [difference(magnitude.apply(*map(torch.add, one, other)), parts[0] + parts[1])]
    for number in range(len(trial.shapes)):
        units = _units(trial, number, random)
        offset = operator.apply(*map(torch.zeros_like, units))
        gaps.append(difference(magnitude.apply(*units), (operator.apply(*units) - offset).abs()))
    return worst_of(*gaps)


@rule(Affine)
def adjoint_is_the_transpose(trial: Trial) -> Tensor:
    """sum(coefficients * (output - offset)) is sum(adjoint * input), for inputs of the shapes it is told."""
    inputs = trial.rows(trial.random)
    output = trial.operator.apply(*inputs) - trial.operator.apply(*map(torch.zeros_like, inputs))
    coefficients = torch.randn(output.shape, generator=trial.random, dtype=output.dtype)
    pulled = total(trial.operator.adjoint(coefficients, trial.shapes), inputs)
    return (pulled - total([coefficients], [output])).abs() / (1 + total([coefficients.abs()], [output.abs()]))


@rule(Affine)
def of_entries_is_apply_on_single_entries(trial: Trial) -> Tensor:
    """Where an operator says what it makes of some entries of one input, of all that it may be asked about."""
    operator, gaps = trial.operator, [torch.zeros(1)]
    for number in range(len(trial.shapes)):
        units = [unit * 3 for unit in _units(trial, number, trial.random)]
        place = units[number].flatten(1).nonzero()[:, 1:]
        single = operator.of_entries(
            Entries(place, torch.full_like(place, 3, dtype=torch.float64)), number, trial.shapes
        )
        everywhere = operator.of_entries(Entries(None, units[number].flatten(1)), number, trial.shapes)
        expected = (operator.apply(*units) - operator.apply(*map(torch.zeros_like, units))).flatten(1)
        gaps += [
            difference(_dense(entries, expected), expected) for entries in (single, everywhere) if entries is not None
        ]
    return worst_of(*gaps)


def _dense(entries: Entries, like: Tensor) -> Tensor:
    return entries.value if entries.at is None else torch.zeros_like(like).scatter_add_(1, entries.at, entries.value)


def _units(trial: Trial, number: int, random: torch.Generator) -> list[Tensor]:
    """Inputs that are zero except for one entry, a different one in each row, of input `number`."""
    sizes = [shape.numel() for shape in trial.shapes]
    chosen = torch.randperm(sizes[number], generator=random)[:UNITS]
    inputs = [torch.zeros(len(chosen), size, dtype=torch.float64) for size in sizes]
    inputs[number][torch.arange(len(chosen)), chosen] = 1
    return [x.view(-1, *shape) for x, shape in zip(inputs, trial.shapes, strict=True)]


# -- piecewise-linear operators ----------------------------------------------------------------------------------------

# Places between two breaks where the output is compared with the chord.
BETWEEN_BREAKS = 5
# Slopes are compared where breaks are farther apart than this share of a segment.
APART = 1e-4


def _chain(trial: Trial) -> tuple[Tensor, Tensor]:
    """Rows, and where neighbours are joined; every other chain has entries that are equal or on a threshold."""
    random = trial.random
    (rows,) = trial.rows(random)
    if trial.seed % 2:
        coarse = rows.abs().amax() / 4
        rows = (rows / coarse).round() * coarse
    joined = uniform((len(rows) - 1,), random) < 0.7
    joined[trial.seed % len(joined)] = True
    return rows, joined


@rule(PiecewiseLinear)
def breaks_are_inside_joined_segments(trial: Trial) -> Tensor:
    """Fractions are strictly between 0 and 1, and no break is between the ends of different lines."""
    rows, joined = _chain(trial)
    segment, fraction, height, *_ = trial.operator.breaks(rows, joined)
    require(segment.shape == fraction.shape == height.shape, f"{len(segment)} segments, {len(fraction)} fractions")
    return verdict(bool(joined[segment].all() and (fraction > 0).all() and (fraction < 1).all()))


@rule(PiecewiseLinear)
def breaks_are_complete(trial: Trial) -> Tensor:
    """None is missing: evaluated densely, outputs are chords between neighbouring breaks."""
    rows, joined = _chain(trial)
    breaks = trial.operator.breaks(rows, joined)
    segments: list[int] = joined.nonzero().flatten().tolist()
    gaps = []
    for segment in segments:
        cuts = torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), breaks.fraction[breaks.segment == segment]])
        gaps.append(_bend_between(trial.operator, rows[segment], rows[segment + 1], cuts.unique()))
    return worst_of(*gaps)


@rule(PiecewiseLinear)
def breaks_bend_no_more_than_they_say(trial: Trial) -> Tensor:
    """Where a break is, all slopes together change by no more than the heights that are given for it."""
    rows, joined = _chain(trial)
    breaks = trial.operator.breaks(rows, joined)
    enough = True
    for segment in joined.nonzero().flatten().tolist():
        here = breaks.segment == segment
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        cuts = torch.cat([ends, breaks.fraction[here]]).unique()
        heights = torch.zeros_like(cuts).index_add(
            0, torch.searchsorted(cuts, breaks.fraction[here]), breaks.height[here]
        )
        values = trial.operator.apply(torch.lerp(rows[segment], rows[segment + 1], _along(cuts, rows)))
        slopes = values.diff(dim=0) / _along(cuts.diff(), rows)
        clear = torch.minimum(cuts.diff()[1:], cuts.diff()[:-1]) > APART  # else the slopes are made of rounding
        bends = slopes.diff(dim=0).abs().flatten(1).sum(1)
        noise = 1e-9 * (1 + slopes.abs().flatten(1).sum(1).amax()) / APART
        enough &= bool((bends <= (1 + 1e-6) * heights[1:-1] + noise * 1e-3)[clear].all())
    return verdict(enough)


@rule(PiecewiseLinear)
def differences_are_stretched_no_more_than_is_said(trial: Trial) -> Tensor:
    """Entry by entry by `steepest`, and all together by `lipschitz`."""
    bending, random = trial.operator, trial.random
    (one,), (other,) = trial.rows(random), trial.rows(random)
    moved, before = (bending.apply(one) - bending.apply(other)).flatten(1), (one - other).flatten(1)
    entries = moved.abs().amax(1) <= (1 + 1e-9) * bending.steepest * before.abs().amax(1)
    return verdict(bool((entries & (moved.norm(dim=1) <= (1 + 1e-9) * bending.lipschitz * before.norm(dim=1))).all()))


def _along(numbers: Tensor, rows: Tensor) -> Tensor:
    return numbers.view(-1, *(1,) * (rows.dim() - 1))


def _bend_between(operator: Operator, start: Tensor, end: Tensor, cuts: Tensor) -> Tensor:
    """How far the output is from chords between neighbouring cuts of a segment."""

    def outputs(at: Tensor) -> Tensor:
        return operator.apply(torch.lerp(start, end, at.view(-1, *(1,) * start.dim())))

    heights = outputs(cuts)
    gaps = []
    for share in torch.linspace(0, 1, BETWEEN_BREAKS + 2, dtype=torch.float64)[1:-1]:
        chord = torch.lerp(heights[:-1], heights[1:], share)
        gaps.append(difference(outputs(torch.lerp(cuts[:-1], cuts[1:], share)), chord))
    return worst_of(*gaps)


# -- functions of one number -------------------------------------------------------------------------------------------

# Places of a range where a function is evaluated.
GRID = 201


def _grid(start: Tensor, end: Tensor) -> Tensor:
    """Numbers from each start to each end: (grid, cells, *shape)."""
    steps = torch.linspace(0, 1, GRID, dtype=torch.float64).view(-1, *(1,) * start.dim())
    return torch.lerp(start, end, steps)


def _values(function: Elementwise, x: Tensor) -> Tensor:
    return function.apply(x.flatten(0, 1)).view(x.shape)


def _outside(interval: Range, heights: Tensor) -> Tensor:
    """How far heights (grid, ...) are outside a range, each beside their own size."""
    size = 1 + heights.abs().amax(0)
    return torch.maximum(interval.low - heights.amin(0), heights.amax(0) - interval.high) / size


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
    function, within = trial.operator, trial.ranges[0]
    x = _grid(*within)
    values = _values(function, x)
    width = within.high - within.low
    chord = torch.where(width > 0, (values[-1] - values[0]) / width, 0.0)
    any_slope = torch.randn(chord.shape, generator=trial.random, dtype=torch.float64)
    slopes = torch.stack([chord, 1.5 * chord, any_slope, 3 * any_slope])
    interval = function.strays(slopes, within)
    require(interval.low.shape == interval.high.shape == slopes.shape, "strays does not have the shape of the slopes")
    return _outside(interval, values.unsqueeze(1) - slopes * x.unsqueeze(1))


@rule(Elementwise)
def image_contains_the_function(trial: Trial) -> Tensor:
    """f(x) on a grid."""
    function, within = trial.operator, trial.ranges[0]
    return _outside(function.image(within), _values(function, _grid(*within)))


@rule(Elementwise)
def split_at_is_inside_or_the_function_is_straight(trial: Trial) -> Tensor:
    """A cut is strictly between the ends; where there is none, f is its chord. Neurons may come in any shape."""
    function, within = trial.operator, trial.ranges[0]
    cut = function.split_at(within)
    require(cut.shape == within.low.shape, f"cuts {tuple(cut.shape)} of ranges {tuple(within.low.shape)}")
    flat = function.split_at(Range(*(end.flatten(1) for end in within)))
    same = torch.allclose(flat, cut.flatten(1), rtol=0, atol=0, equal_nan=True)
    require(same, "cuts depend on the shape of the ranges")
    inside = cut.isnan() | ((cut > within.low) & (cut < within.high))
    values = _values(function, _grid(*within))
    bend = (values - _grid(values[0], values[-1])).abs().amax(0) / (1 + values.abs().amax(0))
    return worst_of(verdict(bool(inside.all())), torch.where(cut.isnan(), bend, 0.0))


@rule(Elementwise)
def tilts_are_slopes_of_lines_below(trial: Trial) -> Tensor:
    """If there are any: lines through the origin from the least slope to the greatest, and 0 is the only bend."""
    function, within = trial.operator, trial.ranges[0]
    if function.tilts is None:
        return verdict(True)
    least, greatest = (tilt.to(within.low).expand(within.low.shape) for tilt in function.tilts)
    slopes = torch.stack([torch.lerp(least, greatest, share) for share in (0.0, 0.3, 0.7, 1.0)]).unsqueeze(1)
    x = _grid(*within)
    above = (slopes * x - _values(function, x)) / (1 + x.abs())
    around = (within.low < 0) & (within.high > 0)
    cut = function.split_at(within)
    only_bend = bool(torch.where(around, cut == 0, cut.isnan()).all())
    return worst_of(above, verdict(only_bend and bool((least <= greatest).all())))


@rule(Elementwise)
def relaxed_is_between_two_lines(trial: Trial) -> Tensor:
    """The slopes of `TwoLines` may be chosen anew, which boxes of many inputs ask for."""
    return verdict(isinstance(trial.relaxation, TwoLines))


def _interval(trial: Trial) -> tuple[float, float]:
    """From where to where the trial has inputs."""
    return float(trial.ranges[0].low.min()), float(trial.ranges[0].high.max())


@rule(Smooth, OF_DIFFERENCES)
def curvature_is_the_second_derivative(trial: Trial) -> Tensor:
    """Against differences of the function."""
    function, (low, high) = trial.operator, _interval(trial)
    step = 1e-4
    x = torch.linspace(low + step, max(high - step, low + step), GRID, dtype=torch.float64)
    second = (function.apply(x + step) - 2 * function.apply(x) + function.apply(x - step)) / step**2
    return difference(function.curvature(x), second)


@rule(Smooth)
def curvature_is_monotone_between_turns(trial: Trial) -> Tensor:
    """So that its extremes on a range are at the ends or at turns."""
    function, (low, high) = trial.operator, _interval(trial)
    ends = sorted({low, high, *(turn for turn in function.turns if low < turn < high)})
    against = []
    for start, end in pairwise(ends):
        values = function.curvature(torch.linspace(start, end, GRID, dtype=torch.float64))
        steps = values.diff() / (1 + values.abs().amax())
        against.append(torch.minimum(steps.amax(), -steps.amin()))
    return worst_of(*against)


# -- functions that jump -----------------------------------------------------------------------------------------------

# How far beside a jump a function is looked at.
BESIDE = 1e-6


def _ordered(trial: Trial) -> tuple[Tensor, Tensor]:
    """Two inputs, every entry of the first at most that of the second."""
    random = trial.random
    (one,), (other,) = trial.rows(random), trial.rows(random)
    return torch.minimum(one, other), torch.maximum(one, other)


@rule(Jumping)
def values_are_whole_and_never_fall(trial: Trial) -> Tensor:
    """A cell is taken once for every whole number from the value at its least input to that at its greatest."""
    function, (low, high) = trial.operator, _ordered(trial)
    first, last = function.apply(low), function.apply(high)
    return verdict(bool(((first <= last) & (first == first.round()) & (last == last.round())).all()))


@rule(Jumping)
def leaves_is_where_a_value_is_left(trial: Trial) -> Tensor:
    """A little below it the function has the value, or less; a little above it more."""
    function, (low, high) = trial.operator, _ordered(trial)
    value = function.apply(low)
    risen = function.apply(high) > value
    at = function.leaves(value)
    below, above = function.apply(at - BESIDE) <= value, function.apply(at + BESIDE) > value
    return verdict(bool((below & above)[risen].all()))
