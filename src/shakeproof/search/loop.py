"""Branch and bound: the one loop. Take open parts, bound them, close what is proved, split the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from shakeproof.budget import STEP_SECONDS, Budget, OutOfTimeError, now

Batch = TypeVar("Batch")


class Strategy(ABC, Generic[Batch]):
    """What the parts are, how they are bounded, and how they are split."""

    @abstractmethod
    def open_parts(self) -> int:
        """How many parts are open."""

    @abstractmethod
    def is_decided(self) -> bool:
        """Whether what was found answers the question, whatever is still open."""

    @abstractmethod
    def most_at_once(self) -> int:
        """How many parts fit into memory, and into one round."""

    @abstractmethod
    def take(self, count: int) -> Batch:
        """The most urgent open parts, `count` at most; they are no longer open."""

    @abstractmethod
    def bound(self, parts: Batch) -> Batch:
        """Bound parts, close what that proves, and return what is left of the others."""

    @abstractmethod
    def split(self, parts: Batch) -> None:
        """Cut parts in two, and open the halves."""

    @abstractmethod
    def share_settled(self) -> float:
        """Which share of the domain is settled."""


def branch_and_bound(strategy: Strategy[Batch], budget: Budget) -> bool:
    """Search until nothing is open or the question is decided; False if the time was up before that."""
    seconds_a_part = 0.0
    while strategy.open_parts() and not strategy.is_decided():
        if budget.is_late(seconds_a_part):
            return False
        count = strategy.most_at_once()
        if budget.is_timed:
            within = min(STEP_SECONDS, max(0.0, budget.seconds_left))
            count = max(1, min(count, int(within / seconds_a_part))) if seconds_a_part else 1
        count = min(count, strategy.open_parts())
        started = now()
        try:
            strategy.split(strategy.bound(strategy.take(count)))
        except OutOfTimeError:  # what was taken is not proved
            return False
        seconds_a_part = (now() - started) / count
        budget.progress(strategy.share_settled())
    return True
