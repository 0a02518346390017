"""Rules of piecewise-linear operators."""

from __future__ import annotations

import torch
from torch import Tensor

from shakeproof.operators import Operator, PiecewiseLinear
from shakeproof.testing.rules.base import difference, rule, verdict, worst_of
from shakeproof.testing.trial import Trial, require, uniform

# Places between two breaks where the output is compared with the chord.
BETWEEN_BREAKS = 5
# Slopes are compared where breaks are farther apart than this share of a segment.
APART = 1e-4


def _bending(trial: Trial) -> PiecewiseLinear:
    assert isinstance(trial.operator, PiecewiseLinear)
    return trial.operator


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
    segment, fraction, height, _ = _bending(trial).breaks(rows, joined)
    require(segment.shape == fraction.shape == height.shape, f"{len(segment)} segments, {len(fraction)} fractions")
    return verdict(bool(joined[segment].all() and (fraction > 0).all() and (fraction < 1).all()))


@rule(PiecewiseLinear)
def breaks_are_complete(trial: Trial) -> Tensor:
    """None is missing: evaluated densely, outputs are chords between neighbouring breaks."""
    rows, joined = _chain(trial)
    found = _bending(trial).breaks(rows, joined)
    segments: list[int] = joined.nonzero().flatten().tolist()
    gaps = []
    for segment in segments:
        cuts = torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), found.fraction[found.segment == segment]])
        gaps.append(_bend_between(trial.operator, rows[segment], rows[segment + 1], cuts.unique()))
    return worst_of(*gaps)


@rule(PiecewiseLinear)
def breaks_bend_no_more_than_they_say(trial: Trial) -> Tensor:
    """Where a break is, all slopes together change by no more than the heights that are given for it."""
    rows, joined = _chain(trial)
    found = _bending(trial).breaks(rows, joined)
    enough = True
    for segment in joined.nonzero().flatten().tolist():
        here = found.segment == segment
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        cuts = torch.cat([ends, found.fraction[here]]).unique()
        heights = torch.zeros_like(cuts).index_add(
            0, torch.searchsorted(cuts, found.fraction[here]), found.height[here]
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
    """Entry by entry by `steepest`, and all together by `stretch`."""
    bending, random = _bending(trial), trial.random
    (one,), (other,) = trial.rows(random), trial.rows(random)
    moved, given = (bending.apply(one) - bending.apply(other)).flatten(1), (one - other).flatten(1)
    entries = moved.abs().amax(1) <= (1 + 1e-9) * bending.steepest * given.abs().amax(1)
    return verdict(bool((entries & (moved.norm(dim=1) <= (1 + 1e-9) * bending.stretch * given.norm(dim=1))).all()))


def _along(numbers: Tensor, rows: Tensor) -> Tensor:
    return numbers.view(-1, *(1,) * (rows.dim() - 1))


@rule(PiecewiseLinear, 0.0)
def overwrite_is_apply(trial: Trial) -> Tensor:
    """To the bit, for an input that may be lost."""
    (x,) = trial.rows(trial.random)
    expected = trial.operator.apply(x)
    return difference(_bending(trial).overwrite(x.clone()), expected)


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
