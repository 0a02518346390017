"""Rules of functions that jump."""

from __future__ import annotations

import torch
from torch import Tensor

from shakeproof.operators import Jumping
from shakeproof.testing.rules.base import rule, verdict
from shakeproof.testing.trial import Trial

# How far beside a jump a function is looked at.
BESIDE = 1e-6


def _two(trial: Trial) -> tuple[Jumping, Tensor, Tensor]:
    """A function, and of some numbers the smaller and the larger of two."""
    assert isinstance(trial.operator, Jumping)
    random = trial.random
    (one,), (other,) = trial.rows(random), trial.rows(random)
    return trial.operator, torch.minimum(one, other), torch.maximum(one, other)


@rule(Jumping)
def values_are_whole_and_never_fall(trial: Trial) -> Tensor:
    """A cell is taken once for every whole number from the value at its least input to that at its greatest."""
    function, low, high = _two(trial)
    first, last = function.apply(low), function.apply(high)
    return verdict(bool(((first <= last) & (first == first.round()) & (last == last.round())).all()))


@rule(Jumping)
def leaves_is_where_a_value_is_left(trial: Trial) -> Tensor:
    """A little below it the function has the value, or less; a little above it more."""
    function, low, high = _two(trial)
    value = function.apply(low)
    risen = function.apply(high) > value
    at = function.leaves(value)
    below, above = function.apply(at - BESIDE) <= value, function.apply(at + BESIDE) > value
    return verdict(bool((below & above)[risen].all()))
