"""Checks for operators of your own: samples against every rule that the search for bounds and the sweep rely on.

A wrong rule does not crash. It proves what is not true. So whoever adds an operator tests it in two lines:

    from shakeproof.testing import check_operator
    check_operator(MyOperator(...), shapes=[(3, 4)])

`shapes` are those of its inputs, without the row axis; several inputs have several shapes. An operator that is not
defined everywhere says where its inputs may be, for all of them or for each: `within=(0.1, 5)`. What goes wrong is an
AssertionError that names each rule broken, the worst violation and the seed that repeats it. Which rules there are
depends on what the operator is (`rules_of` lists them): an `Affine` one has a magnitude and an adjoint, a
`PiecewiseLinear` one tells its breaks, a `Jumping` one where it leaves a value, an `Elementwise` one how far it strays
from lines.

What this can show: that a rule is broken, with an example. What it cannot show: that it is not. Samples are drawn at
random (from seeds: the same call draws the same ones), at several scales, inside and at the corners of cells and where
the operator's own bounds are attained; a mistake that only shows elsewhere stays hidden. Nor is it looked at whether
bounds are tight, breaks necessary, or the workspace large enough; nor whether the operator computes what its name says
(compare it with onnxruntime for that).

Violations are relative to the size of the values that are added up where they are found, and up to 1e-12 they are
rounding: float64 sums of some thousand terms agree to that, and no mistake that matters is as small. Where the operator
is tried in float32 it is 1e-4, and second derivatives are compared with differences to 1e-5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shakeproof.operators import Operator
from shakeproof.testing.rules import RULES, Rule
from shakeproof.testing.trial import Interval, Trial, draw_trial

__all__ = ["check_operator", "rules_of"]

TRIALS = 20


def check_operator(
    operator: Operator,
    shapes: Sequence[Sequence[int]],
    *,
    within: Interval | Sequence[Interval] = (-4.0, 4.0),
    trials: int = TRIALS,
    seed: int = 0,
    only: str | None = None,
) -> None:
    """Try an operator on samples; an AssertionError names every rule that the first bad trial breaks, and by how much.

    `shapes` are those of its inputs, without the row axis. Inputs are drawn from `within`, an interval for all or for
    each, on which the operator has to be defined. Trial k is drawn from seed + k. `only` asks for one rule by name.
    """
    rules = [rule for rule in RULES if isinstance(operator, rule.kind) and only in (None, rule.name)]
    if not rules:
        raise ValueError(f"{type(operator).__name__} has no rule {only!r}; it has {', '.join(rules_of(operator))}")
    intervals = _one_for_each(within, len(shapes))
    with torch.no_grad():
        for number in range(seed, seed + trials):
            trial = draw_trial(operator, shapes, intervals, number)
            broken = [f"\n- {violation}" for rule in rules if (violation := _violation(rule, trial))]
            if broken:
                raise AssertionError(f"{type(operator).__name__} breaks, with seed={number},{''.join(broken)}")


def rules_of(operator: Operator) -> tuple[str, ...]:
    """The names of the rules that an operator has to keep."""
    return tuple(rule.name for rule in RULES if isinstance(operator, rule.kind))


def _one_for_each(within: Interval | Sequence[Interval], count: int) -> list[Interval]:
    intervals = [item for item in within if not isinstance(item, (int, float))]
    if not intervals:
        low, high = (item for item in within if isinstance(item, (int, float)))
        return [(low, high)] * count
    if len(intervals) != count:
        raise ValueError(f"{len(intervals)} intervals for {count} inputs")
    return intervals


def _violation(rule: Rule, trial: Trial) -> str | None:
    """A sentence about how the operator breaks the rule; None if it keeps it."""
    try:
        worst = float(rule.check(trial).amax())
    except Exception as error:  # of the operator's own code: whatever it is, the rule's name belongs to it
        how = f"{type(error).__name__}: {error}"
    else:
        if worst <= rule.tolerance:
            return None
        how = f"violated by {worst:.2g} of the values' size, where rounding explains {rule.tolerance:.0e}"
        if worst != worst:
            how = "not a number; is the operator defined everywhere in `within`?"
    return f"the rule that {rule.name}: {how}. ({rule.explanation})"
