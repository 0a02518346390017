"""The one loop of branch and bound, with a strategy that only counts."""

from __future__ import annotations

import math

import pytest
from processes import Clock

from shakeproof.budget import STEP_SECONDS, Budget, now
from shakeproof.search.loop import Strategy, branch_and_bound


class Counting(Strategy[list[int]]):
    """Parts are numbers: a part n > 0 is cut into two parts n - 1, and 0 is proved at once."""

    def __init__(
        self,
        *parts: int,
        most: int = 4,
        clock: Clock | None = None,
        seconds: float = 0.0,
        decided_after: float = math.inf,
    ) -> None:
        self.open, self.most, self.decided_after = list(parts), most, decided_after
        self.clock, self.seconds = clock, seconds
        self.total, self.settled = sum(2**part for part in parts), 0
        self.taken: list[int] = []
        self.bounded = 0

    def open_parts(self) -> int:
        return len(self.open)

    def is_decided(self) -> bool:
        return self.bounded >= self.decided_after

    def most_at_once(self) -> int:
        return self.most

    def take(self, count: int) -> list[int]:
        assert 1 <= count <= len(self.open)
        self.taken.append(count)
        some, self.open = self.open[-count:], self.open[:-count]
        return some

    def bound(self, parts: list[int]) -> list[int]:
        if self.clock is not None:
            self.clock.time += self.seconds * len(parts)
        self.bounded += len(parts)
        self.settled += sum(part == 0 for part in parts)
        return [part for part in parts if part]

    def split(self, parts: list[int]) -> None:
        self.open += [part - 1 for part in parts for _ in range(2)]

    def share_settled(self) -> float:
        return self.settled / self.total


def test_searches_until_nothing_is_open():
    shares: list[float] = []
    strategy = Counting(5, 3)
    assert branch_and_bound(strategy, Budget(progress=shares.append))
    assert not strategy.open
    assert strategy.settled == 40
    assert strategy.bounded == 63 + 15
    assert shares == sorted(shares)
    assert len(shares) == len(strategy.taken)  # told after each round
    assert shares[-1] == 1.0


def test_nothing_open_is_nothing_to_do():
    strategy = Counting()
    assert branch_and_bound(strategy, Budget(deadline=now() - 1))
    assert not strategy.taken


@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_never_takes_more_than_fits(most, timeout):
    strategy = Counting(7, most=most)
    assert branch_and_bound(strategy, Budget.starting(timeout, 1.0))
    assert max(strategy.taken) == most
    assert not strategy.open


def test_stops_when_decided():
    strategy = Counting(30, decided_after=10)
    assert branch_and_bound(strategy, Budget())
    assert 10 <= strategy.bounded < 10 + strategy.most
    assert strategy.open
    decided = Counting(30, decided_after=0)
    assert branch_and_bound(decided, Budget(deadline=now() - 1))  # the answer is there, whatever the clock says
    assert not decided.taken


def test_keeps_the_clock(monkeypatch):
    """Parts that take 0.05 s each, against a deadline in 0.3 s: it ends in time, and says that it is not done."""
    strategy = Counting(30, most=512, clock=Clock(monkeypatch), seconds=0.05)
    budget = Budget.starting(0.3, 1.0)
    assert not branch_and_bound(strategy, budget)
    assert strategy.taken[0] == 1  # before anything is known of the cost
    assert strategy.open
    assert 2 <= strategy.bounded <= 6
    assert budget.seconds_left > -STEP_SECONDS


def test_steps_are_short_against_a_deadline_only(monkeypatch):
    clock = Clock(monkeypatch)
    strategy = Counting(*[0] * 200, most=512, clock=clock, seconds=0.002)
    assert branch_and_bound(strategy, Budget.starting(60.0, 1.0))
    assert max(strategy.taken) <= STEP_SECONDS / 0.002 + 1
    assert len(strategy.taken) > 1
    untimed = Counting(*[0] * 200, most=512, clock=clock, seconds=0.002)
    assert branch_and_bound(untimed, Budget())
    assert untimed.taken == [200]


def test_late_from_the_start():
    strategy = Counting(3)
    assert not branch_and_bound(strategy, Budget(deadline=now() - 1))
    assert not strategy.taken
