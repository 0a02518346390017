"""Lines in groups, each swept by a thread of its own: the same curves as in one sweep, or an error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import network_of, random_module

from shakeproof.budget import GIB, Budget, now
from shakeproof.errors import ProofError
from shakeproof.exact import Lines, swept_curves, threads_for
from shakeproof.exact import lines as of_lines
from shakeproof.exact.lines import cores_for, grouped
from shakeproof.question import Path

ALONE = Budget(memory=GIB)
TOGETHER = replace(ALONE, cores=3)


@pytest.fixture
def eager(monkeypatch):
    """The smallest work is worth a thread."""
    monkeypatch.setattr(of_lines, "LEAST_WORK", 1e4)


def graph_of(seed: int):
    return network_of(random_module(seed), 1, 8, 8).graph


def random_lines(count: int, seed: int) -> Lines:
    generator = torch.Generator().manual_seed(seed)
    slopes, bases = torch.randn(2, count, 1, 1, 8, 8, generator=generator, dtype=torch.float64)
    end = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    return Lines(Path(slopes.unsqueeze(0), bases), torch.zeros_like(end), end, torch.arange(len(end)))


def curves(graph, lines: Lines, budget: Budget, **options):
    return swept_curves(graph, lines, np.zeros(len(lines), dtype=np.int64), budget, whole=True, **options)


@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 1), (2, 5), (3, 40)])
def test_curves_are_those_of_one_sweep(eager, seed, count):
    graph, lines = graph_of(seed), random_lines(count, seed)
    for line, one, other in zip(lines.end, curves(graph, lines, ALONE), curves(graph, lines, TOGETHER), strict=True):
        assert other.covers(0.0, float(line))
        assert np.abs(other.at(one.z) - one.scores).max() < 1e-10
        assert np.abs(one.at(other.z) - other.scores).max() < 1e-10
    if count == 1:
        assert other.pieces > one.pieces  # it was cut


def test_a_group_that_is_dropped_is_noticed(eager, monkeypatch):
    graph, lines = graph_of(0), random_lines(1, 0)
    monkeypatch.setattr(
        of_lines, "grouped", lambda lines, count: [*grouped(lines, count)[:1], *grouped(lines, count)[2:]]
    )
    (curve,) = curves(graph, lines, TOGETHER)
    assert not curve.covers(0.0, float(lines.end[0]))


def test_groups_in_a_wrong_order_are_noticed(eager, monkeypatch):
    graph, lines = graph_of(0), random_lines(1, 0)
    monkeypatch.setattr(of_lines, "grouped", lambda lines, count: grouped(lines, count)[::-1])
    with pytest.raises(ProofError):
        curves(graph, lines, TOGETHER)


def test_an_error_of_a_thread_is_everybodys(eager, monkeypatch):
    def broken(*given):
        raise ProofError("broken on purpose")

    monkeypatch.setattr(of_lines, "sweep", broken)
    with pytest.raises(ProofError, match="on purpose"):
        curves(graph_of(0), random_lines(1, 0), TOGETHER)


def test_pieces_are_looked_at_from_left_to_right(eager):
    """So that the first strength at which a label loses does not depend on which thread was faster."""
    seen: list[float] = []

    def look(piece):
        seen.extend(piece.z.tolist())
        return [0] if seen[-1] > 0.3 else []

    (curve,) = curves(graph_of(0), random_lines(1, 0), TOGETHER, look=look)
    assert seen == sorted(seen)
    assert curve.z[0] == 0
    assert curve.z[-1] >= 0.3


def test_nothing_is_known_of_a_line_that_there_was_no_time_for(eager):
    (curve,) = curves(graph_of(0), random_lines(1, 0), replace(TOGETHER, deadline=now() - 1))
    assert not len(curve.z)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_groups_hold_every_line_once(count):
    lines = random_lines(23, 0)
    groups = grouped(lines, count)
    assert [n for group in groups for n in range(group.start, group.stop)] == list(range(23))
    assert len(groups) <= count


def test_as_many_cores_as_memory_has_room_for():
    graph, lines = graph_of(0), random_lines(1, 0)
    assert cores_for(graph, TOGETHER) == 3
    needed = next(mib for mib in range(1, 4096) if _fits(graph, lines, mib)) * 2**20
    assert cores_for(graph, replace(TOGETHER, memory=2.5 * needed)) == 2


def _fits(graph, lines: Lines, mib: int) -> bool:
    return cores_for(graph, Budget(memory=2 * mib * 2**20, cores=2)) == 2


def test_torchs_own_threads_are_left_as_they_were():
    before = torch.get_num_threads()
    with threads_for(graph_of(0), 3):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
