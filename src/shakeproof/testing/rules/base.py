"""What a rule is: a function of a trial that says by how much it is broken, or less than nothing.

A rule's name is its function's, its explanation the docstring. What is not a number breaks any rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shakeproof.testing.trial import Trial, require

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


def worst_of(*parts: Tensor) -> Tensor:
    return torch.stack([part.amax() for part in parts if part.numel()]).amax()


def difference(one: Tensor, other: Tensor) -> Tensor:
    """Between entries, relative to the largest."""
    require(one.shape == other.shape, f"shape {tuple(one.shape)} instead of {tuple(other.shape)}")
    return (one - other).abs() / (1 + other.abs().amax())


def verdict(holds: bool) -> Tensor:
    return torch.tensor(0.0 if holds else 1.0)
