"""Runs the rules of an operator on trials, and says in words which are broken."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shakeproof.operators import Operator
from shakeproof.testing.rules import RULES, Rule
from shakeproof.testing.trial import Interval, Trial, draw_trial

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
