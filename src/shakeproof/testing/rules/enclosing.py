"""Rules of all operators: what they compute, and how they are enclosed."""

from __future__ import annotations

import torch
from torch import Tensor

from shakeproof.operators import Operator, Range
from shakeproof.testing.rules.base import OF_FLOAT32, difference, rule, verdict, worst_of
from shakeproof.testing.trial import CELLS, Sample, Trial, affine_at, require, total, uniform


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
    given = [x.clone() for x in inputs]
    trial.operator.apply(*given)
    return worst_of(*(difference(one, other) for one, other in zip(given, inputs, strict=True)))


@rule(Operator)
def apply_makes_a_new_value_unless_it_may_return_its_input(trial: Trial) -> Tensor:
    """What shares its entries with an input must not be overwritten: `may_return_input` says so."""
    inputs = trial.rows(trial.random)
    out = trial.operator.apply(*inputs).untyped_storage().data_ptr()
    shares = any(out == x.untyped_storage().data_ptr() for x in inputs)
    return verdict(trial.operator.may_return_input or not shares)


@rule(Operator)
def workspace_is_a_number_of_bytes(trial: Trial) -> Tensor:
    """For shapes without the row axis."""
    found = trial.operator.workspace(*trial.shapes)
    return verdict(isinstance(found, int) and found >= 0)


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
    return worst_of(*((s.below - found) / _size(s, s.out) for s, found in exact))


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
    given = coefficients.clone()
    trial.relaxation.pull(given, slice(None))
    return difference(given, coefficients)


@rule(Operator)
def pull_takes_the_cell_of_each_row(trial: Trial) -> Tensor:
    """Numbered in any order, or as they come."""
    sample = trial.samples[0]
    order = torch.randperm(CELLS, generator=trial.random)
    pulled, constant = trial.relaxation.pull(sample.coefficients[order], order)
    same, same_constant = trial.relaxation.pull(sample.coefficients, slice(None))
    pairs = [(constant, sample.constant[order]), (same_constant, sample.constant)]
    pairs += [(part, own[order]) for part, own in zip(pulled, sample.pulled, strict=True)]
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
