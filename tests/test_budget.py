"""Time, memory and progress, as work is told of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from processes import Clock

from shakeproof.budget import GIB, STEP_SECONDS, Budget, now
from shakeproof.errors import MemoryBudgetError


def covered(slices: list[slice], total: int) -> list[int]:
    return [number for part in slices for number in range(total)[part]]


# -- memory -----------------------------------------------------------------------------------------------------------


@given(
    memory=st.floats(1, 1e12),
    size=st.floats(1, 1e12),
    share=st.floats(0.01, 1),
    fixed=st.floats(0, 1e12),
    least=st.integers(1, 10),
)
def test_what_fits(memory, size, share, fixed, least):
    budget, free = Budget(memory=memory), share * memory - fixed
    assume(abs(free - least * size) > 1e-9 * (free + least * size))
    if free < least * size:
        with pytest.raises(MemoryBudgetError) as refused:
            budget.fitting(size, "it", share, fixed, least)
        assert refused.value.option == "memory"
    else:
        count = budget.fitting(size, "it", share, fixed, least)
        assert count >= least
        assert count * size + fixed <= share * memory * (1 + 1e-9)
        assert (count + 1) * size + fixed >= share * memory * (1 - 1e-9)


def test_what_does_not_fit_says_how_much_would():
    with pytest.raises(MemoryBudgetError) as refused:
        Budget(memory=GIB).fitting(GIB, "bounding the network", share=0.5, fixed=GIB / 2, least=3)
    assert str(refused.value) == ("bounding the network needs 7 GiB of working memory, the budget is 1 GiB; raise it")
    assert refused.value.option == "memory"
    with pytest.raises(MemoryBudgetError):  # two fit, but three are needed
        Budget(memory=2.5 * GIB).fitting(GIB, "bounding the network", least=3)
    assert Budget(memory=7 * GIB).fitting(GIB, "bounding the network", share=0.5, fixed=GIB / 2, least=3) == 3


# -- time -------------------------------------------------------------------------------------------------------------


def test_starting():
    budget = Budget.starting(10.0, 0.5)
    assert budget.memory == GIB / 2
    assert 9.5 < budget.seconds_left <= 10
    assert budget.is_timed
    assert not budget.is_late()
    assert budget.is_late(ahead=11)
    assert Budget(deadline=now() - 1e-3).is_late()
    endless = Budget.starting(None, 1.0)
    assert not endless.is_timed
    assert not endless.is_late(ahead=1e9)
    assert endless.seconds_left == math.inf


def test_shortened():
    budget = Budget.starting(10.0, 1.0)
    assert 4.5 < budget.shortened(0.5).seconds_left <= 5
    assert 1.5 < budget.shortened(0.5, 2.0).seconds_left <= 2
    assert budget.shortened(1.0).deadline <= budget.deadline + 1e-3
    assert budget.shortened(0.5).memory == budget.memory
    late = Budget(deadline=now() - 5)
    assert late.shortened(0.5, 2.0).is_late(ahead=1e-6)
    assert late.shortened(0.5).seconds_left <= 0
    assert not Budget().shortened(0.5).is_timed
    assert 1.5 < Budget().shortened(0.5, 2.0).seconds_left <= 2


@given(total=st.integers(0, 300), most=st.integers(1, 50), first=st.integers(1, 60), timed=st.booleans())
def test_slices_cover_everything_once(total, most, first, timed):
    budget = Budget(now() + 1000 if timed else math.inf)
    slices = list(budget.slices(total, most, first))
    assert covered(slices, total) == list(range(total))
    assert all(0 < part.stop - part.start <= most for part in slices)
    if timed and total:
        assert slices[0].stop == min(first, most, total)
    if not timed:
        assert len(slices) == -(-total // most)


def test_no_slice_after_the_deadline(monkeypatch):
    assert not list(Budget(deadline=now() - 1).slices(100, 10))
    clock, done = Clock(monkeypatch), []
    for part in Budget.starting(0.2, 1.0).slices(10**6, 1000):
        clock.time += 0.02 * (part.stop - part.start)
        done.append(part)
    reached = covered(done, 10**6)
    assert reached == list(range(len(reached)))
    assert (
        1 <= len(done) <= len(reached) <= 0.2 / 0.02 + STEP_SECONDS / 0.02
    )  # the last step may be late by its own length


def test_slices_become_as_long_as_a_step_may_take(monkeypatch):
    clock, lengths = Clock(monkeypatch), []
    for part in Budget.starting(60.0, 1.0).slices(700, 1000):
        clock.time += 0.002 * (part.stop - part.start)
        lengths.append(part.stop - part.start)
    assert lengths[0] == 1
    assert 50 < max(lengths) <= STEP_SECONDS / 0.002 + 1


# -- progress ---------------------------------------------------------------------------------------------------------


def test_parts_of_the_work():
    told: list[float] = []
    budget = Budget(deadline=5.0, memory=7.0, progress=told.append)
    second = budget.part(0.5, 1.0)
    assert (second.deadline, second.memory) == (5.0, 7.0)
    for share in (0.0, 0.5, 1.0):
        second.progress(share)
    second.part(0.0, 0.5).progress(1.0)
    assert told == [0.5, 0.75, 1.0, 0.75]
    Budget().progress(0.3)  # nobody hears of it
