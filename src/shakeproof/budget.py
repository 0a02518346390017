"""How long work may take, on how many cores, how much memory it may use, and whom to tell how far it got.

Whether the process keeps memory that was freed is for programs to say (the command, the benchmarks), not for a library.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from shakeproof.errors import MemoryBudgetError

GIB = 2.0**30
# Where there is a deadline, a step of work should take about so many seconds: long enough to be worth its while, short
# enough to stop in time.
STEP_SECONDS = 0.4
# So many seconds after the deadline, what was found must have been put together.
CLOSING_SECONDS = 1.0

now = time.perf_counter


class OutOfTimeError(Exception):
    """The time was up in the middle of something. Whoever catches this leaves it undone: nothing follows from it."""


def no_progress(share: float) -> None:
    """Hears of progress and does nothing."""


@dataclass(frozen=True)
class Budget:
    """`deadline` is a time of `now()`, `memory` in bytes; `progress` is told which share of the work is done.

    `cores` is for work that is worth being done side by side.
    """

    deadline: float = math.inf
    memory: float = 2 * GIB
    progress: Callable[[float], None] = no_progress
    cores: int = 1

    @staticmethod
    def starting(
        timeout: float | None, memory: float, progress: Callable[[float], None] = no_progress, cores: int = 1
    ) -> Budget:
        """A budget from now on; timeout in seconds, memory in GiB."""
        return Budget(math.inf if timeout is None else now() + timeout, memory * GIB, progress, cores)

    # -- time -----------------------------------------------------------------------------------------------------

    @property
    def is_timed(self) -> bool:
        return self.deadline < math.inf

    @property
    def seconds_left(self) -> float:
        return self.deadline - now()

    def is_late(self, ahead: float = 0.0) -> bool:
        """Whether the time is up, or would be after so many seconds."""
        return now() + ahead > self.deadline

    def check(self, ahead: float = 0.0) -> None:
        """An error if the time is up, or would be after so many seconds."""
        if self.is_late(ahead):
            raise OutOfTimeError

    @property
    def closing(self) -> Budget:
        """The same budget with a little more time, for work that must be done after the deadline."""
        return replace(self, deadline=self.deadline + CLOSING_SECONDS)

    def ended(self) -> Budget:
        """The same without any time left."""
        return replace(self, deadline=min(self.deadline, now()))

    def shortened(self, share: float, most: float = math.inf) -> Budget:
        """A budget with a share of the remaining time, at most so many seconds."""
        return replace(self, deadline=min(now() + share * max(0.0, self.seconds_left), now() + most))

    def slices(self, total: int, most: int, first: int = 1) -> Iterator[slice]:
        """0 to `total` in steps of at most `most`; against a deadline in short steps, and none after it."""
        start, step = 0, min(most, first) if self.is_timed else most
        while start < total and not self.is_late():
            began = now()
            yield slice(start, min(start + step, total))
            start += step
            if self.is_timed:
                step = max(1, min(most, int(step * STEP_SECONDS / max(now() - began, 1e-9))))

    def all_slices(self, total: int, most: int) -> Iterator[slice]:
        """The same, and an error if the time is up before all of them are done."""
        done = 0
        for part in self.slices(total, most):
            yield part
            done = part.stop
        if done < total:
            raise OutOfTimeError

    # -- memory ---------------------------------------------------------------------------------------------------

    def fitting(self, size: float, what: str, share: float = 1.0, fixed: float = 0.0, least: int = 1) -> int:
        """How many things of this size fit into a share of the memory beside what is `fixed`; an error if too few."""
        count = int((share * self.memory - fixed) // size)
        if count < least:
            needed = (least * size + fixed) / share / GIB
            raise MemoryBudgetError(
                f"{what} needs {needed:.2g} GiB of working memory, the budget is {self.memory / GIB:.2g} GiB; raise it",
                option="memory",
            )
        return count

    def shared(self, cores: int) -> Budget:
        """What each of some cores may use."""
        return replace(self, memory=self.memory / cores, cores=1)

    # -- progress -------------------------------------------------------------------------------------------------

    def part(self, start: float, end: float) -> Budget:
        """The same for the part of the work from one share to another."""
        return replace(self, progress=lambda share: self.progress(start + share * (end - start)))


UNLIMITED = Budget()


# -- memory that was freed ---------------------------------------------------------------------------------------------

# glibc's names for what mallopt can set.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 2**31 - 1
# More than such a share of a budget is not kept.
MOST_KEPT = 0.85


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of handing it back to the operating system; says whether it took effect.

    A sweep allocates and frees tensors of some megabytes all the time. By default, glibc gives all of them back time
    and again, and the page faults cost up to half of the time on networks with max pooling. Elsewhere than on glibc,
    nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST_THRESHOLD))


def give_back(budget: float) -> bool:
    """Return freed memory to the system if the process uses most of so many bytes; True if it did.

    Tensors of ever other sizes leave gaps between them, in which the next ones find no room.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        with open("/proc/self/statm", "rb") as sizes:
            resident = int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError):  # another system
        return False
    return resident > MOST_KEPT * budget and bool(trim(0))
