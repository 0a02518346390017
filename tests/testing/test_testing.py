"""The checker of operators: that it names what is wrong, and that each of its rules can be broken."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from tampering import TAMPERINGS, tampered
from torch import Tensor

from shakeproof.operators import (
    Affine,
    Elementwise,
    MaxPool,
    Multiply,
    Operator,
    Power,
    Range,
    Relaxation,
    Relu,
    SlidingWindow,
)
from shakeproof.testing import check_operator, rules_of
from shakeproof.testing.rules import RULES


@dataclass(frozen=True, eq=False)
class Absolute(Elementwise):
    """What a user might add."""

    factor: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        return self.factor * inputs[0].abs()

    def strays(self, slopes: Tensor, within: Range) -> Range:
        places = (within.low, within.high, torch.zeros_like(within.low).clamp(within.low, within.high))
        heights = torch.stack([self.apply(x) - slopes * x for x in places])
        return Range(heights.amin(0), heights.amax(0))

    def image(self, within: Range) -> Range:
        return self.strays(torch.zeros((), dtype=within.low.dtype), within)


class EndsOnly(Absolute):
    """With the mistake that one makes: it is not farthest from a line at an end."""

    def strays(self, slopes: Tensor, within: Range) -> Range:
        heights = torch.stack([self.apply(x) - slopes * x for x in within])
        return Range(heights.amin(0), heights.amax(0))


@dataclass(frozen=True, eq=False)
class Doubled(Affine):
    """Crashes where it should not."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return 2 * inputs[0]

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients, shapes):
        raise RuntimeError("to be written")


@dataclass(frozen=True, eq=False)
class Quotient(Operator):
    """Two inputs, the second of which must not be zero."""

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0] / inputs[1]

    def relaxed(self, *ranges: Range) -> Relaxation:
        first, second = ranges
        corners = torch.stack([x / y for x in first for y in second])
        return Unknown(Range(corners.amin(0), corners.amax(0)))


@dataclass(frozen=True, eq=False)
class Unknown(Relaxation):
    """Anything in a range, whatever the two inputs are."""

    limits: Range

    def points(self, *values: Tensor) -> Tensor:
        return self.limits.centre.expand(len(values[0]), *self.limits.low.shape)

    def spread(self, *radii: Tensor) -> Tensor:
        return self.limits.radius

    def pull(self, coefficients, cell):
        lowest = torch.where(coefficients > 0, self.limits.low[cell], self.limits.high[cell])
        return (torch.zeros_like(coefficients),) * 2, (coefficients * lowest).flatten(1).sum(1)

    def attained(self, coefficients, *values: Tensor) -> Tensor:
        return torch.where(coefficients > 0, self.limits.low, self.limits.high)


FACTOR = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


def test_an_operator_of_ones_own():
    check_operator(Absolute(FACTOR), shapes=[(2, 3)])


def test_negative_controls_of_an_operator_of_ones_own():
    for rule, broken in tampered(Absolute(FACTOR)):
        with pytest.raises(AssertionError):
            check_operator(broken, shapes=[(2, 3)], only=rule)


def test_the_broken_rules_are_named_with_the_worst_violation_and_the_seed():
    with pytest.raises(AssertionError, match=r"EndsOnly breaks, with seed=\d+") as caught:
        check_operator(EndsOnly(FACTOR), shapes=[(2, 3)])
    assert "the rule that strays contains the distance from lines: violated by 0." in str(caught.value)
    assert "where rounding explains 1e-12" in str(caught.value)


def test_the_seed_in_the_message_repeats_it():
    with pytest.raises(AssertionError) as first:
        check_operator(EndsOnly(FACTOR), shapes=[(2, 3)])
    seed = int(str(first.value).split("seed=")[1].split(",")[0])
    with pytest.raises(AssertionError) as again:
        check_operator(EndsOnly(FACTOR), shapes=[(2, 3)], seed=seed, trials=1)
    assert str(again.value) == str(first.value)


def test_an_error_is_named_with_its_rule():
    with pytest.raises(AssertionError, match="adjoint is the transpose: RuntimeError: to be written"):
        check_operator(Doubled(), shapes=[(3,)])


def test_several_inputs_have_several_intervals():
    check_operator(Quotient(), shapes=[(2, 3), (2, 3)], within=[(-4, 4), (0.5, 4)])
    with pytest.raises(AssertionError):
        check_operator(Quotient(), shapes=[(2, 3), (2, 3)])


def test_where_an_operator_is_not_defined_the_interval_is_suggested():
    with pytest.raises(AssertionError, match="is the operator defined everywhere in `within`"):
        check_operator(Power(0.5), shapes=[(3,)], within=(-4.0, 4.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"only": "no such rule"}, "has no rule 'no such rule'"), ({"within": [(0, 1), (0, 1)]}, "2 intervals for 1")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_operator(Relu(), shapes=[(3,)], **arguments)


def test_rules_belong_to_kinds():
    assert "adjoint is the transpose" not in rules_of(Relu())
    assert "breaks are complete" in rules_of(MaxPool(SlidingWindow((2, 2))))
    assert set(rules_of(Multiply())) < set(rules_of(Relu()))


def test_every_rule_can_be_broken():
    assert {rule.check for rule in RULES} == {tampering.broken for tampering in TAMPERINGS}


def test_neither_pytest_nor_hypothesis_is_needed():
    script = "import sys, shakeproof.testing; sys.exit(bool({'pytest', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
