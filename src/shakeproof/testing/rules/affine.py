"""Rules of affine operators."""

from __future__ import annotations

import torch
from torch import Tensor

from shakeproof.operators import Affine, Entries
from shakeproof.testing.rules.base import difference, rule, worst_of
from shakeproof.testing.trial import CELLS, Trial, total, uniform

# Input entries whose coefficients are compared, in each trial.
UNITS = 32


def _affine(trial: Trial) -> Affine:
    assert isinstance(trial.operator, Affine)
    return trial.operator


@rule(Affine)
def apply_is_affine(trial: Trial) -> Tensor:
    """In all inputs together: on a line through two of them, and beyond, the output is on a line."""
    random = trial.random
    start, end = trial.rows(random), trial.rows(random)
    share = 3 * uniform((CELLS,), random) - 1

    def between(one: Tensor, other: Tensor) -> Tensor:
        return one + share.view(-1, *(1,) * (one.dim() - 1)) * (other - one)

    found = trial.operator.apply(*map(between, start, end))
    return difference(found, between(trial.operator.apply(*start), trial.operator.apply(*end)))


@rule(Affine)
def magnitude_has_the_absolute_coefficients(trial: Trial) -> Tensor:
    """Of a sample of input entries; it is linear and has no offset."""
    random = trial.random
    operator, magnitude = _affine(trial), _affine(trial).magnitude()
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
    pulled = total(_affine(trial).adjoint(coefficients, trial.shapes), inputs)
    return (pulled - total([coefficients], [output])).abs() / (1 + total([coefficients.abs()], [output.abs()]))


@rule(Affine)
def of_entries_is_apply_on_single_entries(trial: Trial) -> Tensor:
    """Where an operator says what it makes of some entries of one input, of all that it may be asked about."""
    operator, gaps = _affine(trial), [torch.zeros(1)]
    for number in range(len(trial.shapes)):
        units = [unit * 3 for unit in _units(trial, number, trial.random)]
        place = units[number].flatten(1).nonzero()[:, 1:]
        found = operator.of_entries(
            Entries(place, torch.full_like(place, 3, dtype=torch.float64)), number, trial.shapes
        )
        everywhere = operator.of_entries(Entries(None, units[number].flatten(1)), number, trial.shapes)
        made = (operator.apply(*units) - operator.apply(*map(torch.zeros_like, units))).flatten(1)
        gaps += [difference(_dense(entries, made), made) for entries in (found, everywhere) if entries is not None]
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
