"""Runs the rules of an operator on trials, and says in words which are broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from shakeproof.operators import Operator
from shakeproof.testing.rules import RULES, Rule
from shakeproof.testing.trial import Interval, Trial, draw_trial

TRIALS = 20


@dataclass(frozen=True)
class Broken:
    """A rule that did not hold, and how."""

    rule: Rule
    how: str

    def __str__(self) -> str:
        return f"the rule that {self.rule.name}: {self.how}. ({self.rule.explanation})"


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
    rules = [rule for rule in _rules(operator) if only in (None, rule.name)]
    if not rules:
        raise ValueError(f"{type(operator).__name__} has no rule {only!r}; it has {', '.join(rules_of(operator))}")
    intervals = _one_for_each(within, len(shapes))
    with torch.no_grad():
        for number in range(seed, seed + trials):
            trial = draw_trial(operator, shapes, intervals, number)
            broken = list(_broken(rules, trial))
            if broken:
                listed = "\n".join(f"- {each}" for each in broken)
                raise AssertionError(f"{type(operator).__name__} breaks, with seed={number},\n{listed}")


def rules_of(operator: Operator) -> tuple[str, ...]:
    """The names of the rules that an operator has to keep."""
    return tuple(rule.name for rule in _rules(operator))


def _rules(operator: Operator) -> list[Rule]:
    return [rule for rule in RULES if isinstance(operator, rule.kind)]


def _one_for_each(within: Interval | Sequence[Interval], count: int) -> list[Interval]:
    intervals = [item for item in within if not isinstance(item, (int, float))]
    if not intervals:
        low, high = (item for item in within if isinstance(item, (int, float)))
        return [(low, high)] * count
    if len(intervals) != count:
        raise ValueError(f"{len(intervals)} intervals for {count} inputs")
    return intervals


def _broken(rules: Sequence[Rule], trial: Trial) -> Iterator[Broken]:
    for rule in rules:
        how = _violation(rule, trial)
        if how is not None:
            yield Broken(rule, how)


def _violation(rule: Rule, trial: Trial) -> str | None:
    """What is wrong, in words."""
    try:
        worst = float(rule.check(trial).amax())
    except Exception as error:  # of the operator's own code: whatever it is, the rule's name belongs to it
        return f"{type(error).__name__}: {error}"
    if worst <= rule.tolerance:
        return None
    if worst != worst:
        return "not a number; is the operator defined everywhere in `within`?"
    return f"violated by {worst:.2g} of the values' size, where rounding explains {rule.tolerance:.0e}"
