"""What a check may say, and what it may cost: every part says what it is about to compute and keep, before it does.

Work is counted in multiplications; one core does 10^9 to 10^10 of them in a second. The prover, which has limits of its
own, is only kept from taking too much memory.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

# Of a check, for each leaf and once for what they share: for any model, for each byte of it, and at most in all.
PER_LEAF, PER_BYTE, MOST_WORK = 1e10, 1e4, 1e14
MEMORY = 2**29  # bytes of all values at a time; while one is made, several times its own size is needed
CALL = 1e5  # what calling an operator's rule costs, whatever its size,
ELEMENTWISE = 100  # and what its steps on each entry do


class Refused(Exception):  # noqa: N818 - a finding, not a failure
    """Why something was not accepted, in one sentence."""


class Unknown(Refused):
    """The checker has no rule for something in the network."""


def require(holds: Any, otherwise: str, finding: type[Refused] = Refused) -> None:
    if not holds:
        raise finding(otherwise)


@dataclass
class Allowance:
    """How much work is left, and how many bytes values may take."""

    work: float = math.inf
    memory: float = MEMORY


_CURRENT = ContextVar("budget", default=Allowance())  # noqa: B039 - what is infinite is not used up


@contextmanager
def limited(leaves: int, size: int, effort: float) -> Iterator[None]:
    """Within this, what a check of so many leaves on a model of so many bytes may cost, times the effort."""
    work = min(MOST_WORK, (1 + leaves) * (PER_LEAF + PER_BYTE * size))
    before = _CURRENT.set(Allowance(effort * work, max(1.0, effort) * MEMORY))
    try:
        yield
    finally:
        _CURRENT.reset(before)


def spend(work: float, entries: float = 0.0) -> None:
    """Before so many multiplications are made, and values of so many entries are kept. Unknown if it is too much."""
    budget = _CURRENT.get()
    budget.work -= work
    require(budget.work >= 0, "it needs more work than the limit on effort allows", Unknown)
    require(8 * entries <= budget.memory, f"it needs arrays of {entries:.2g} entries, which is too many", Unknown)
