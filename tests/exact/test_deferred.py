"""Deferred rows against rows that are multiplied, against dense evaluation, and against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import network_of
from rational import exact
from torch import nn

from shakeproof import rounding
from shakeproof.budget import GIB, Budget
from shakeproof.exact import Curve, Lines, assemble, rows, sweep
from shakeproof.exact.rows import DeferredRows, Plan, affine_runs, defer_rows, insert
from shakeproof.graph import Graph
from shakeproof.operators import Breaks, Entries, Relu
from shakeproof.question import Path
from shakeproof.rounding import RunningError


class Block(nn.Module):
    """Two convolutions beside a shortcut: the ReLU's own output, or a convolution of it."""

    def __init__(self, channels: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        outputs = channels * stride
        self.first = nn.Conv2d(channels, outputs, 3, stride, 1, groups=groups)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.shortcut(x) - self.second(torch.relu(self.first(x))))


def convolutional(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 4, 2, 1), nn.ReLU(), Block(4, 1, groups=2), Block(4, 2)),
        *(nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Linear(12, 3)),
    ).double()


def graph_of(seed: int) -> Graph:
    return network_of(convolutional(seed), 1, 8, 8, dtype=torch.float64).graph


def random_lines(count: int, seed: int) -> Lines:
    generator = torch.Generator().manual_seed(seed)
    slopes, bases = torch.randn(2, count, 1, 1, 8, 8, generator=generator, dtype=torch.float64)
    return Lines(
        Path(6 * slopes.unsqueeze(0), bases),
        torch.zeros(count).double(),
        torch.ones(count).double(),
        torch.arange(count),
    )


def curves(graph: Graph, lines: Lines, least: float) -> tuple[list[Curve], int]:
    """Each line's curve, and how many rows were deferred, where so many multiplications are to be spared at least."""
    found: list[DeferredRows] = []

    def noted(*given: object) -> DeferredRows | None:
        deferred = defer_rows(*given)
        found.extend([] if deferred is None else [deferred])
        return deferred

    with (
        patch.object(rows, "LEAST_SPARED", least),
        patch("shakeproof.exact.sweep.defer_rows", noted),
        torch.inference_mode(),
    ):
        pieces = sweep(graph, lines, Budget(memory=GIB), running_error=RunningError(graph))
        made = list(assemble(pieces, len(lines), graph.classes))
    return made, sum(len(deferred.number) for deferred in found)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=12)
def test_deferred_rows_are_where_others_would_be(seed):
    graph, lines = graph_of(seed), random_lines(2, seed)
    (usual, none), (found, some) = (curves(graph, lines, least) for least in (torch.inf, 0.0))
    assert none == 0
    assert some > 50
    for number, (one, other) in enumerate(zip(usual, found, strict=True)):
        assert len(one.z) == len(other.z)
        assert np.abs(one.z - other.z).max() < 1e-9
        assert (np.linalg.norm(one.scores - other.scores, axis=1)[1:] <= one.error + other.error + 1e-12).all()
        z = np.sort(np.random.default_rng(seed).uniform(0, 1, 300))
        direct = graph.run(lines.at(torch.full((300,), number), torch.from_numpy(z))).numpy()
        assert np.abs(other.at(z) - direct).max() < 1e-10


class Past(nn.Module):
    """A ReLU whose output is read again, as it is, behind another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 60), nn.Linear(60, 60), nn.Linear(60, 3)

    def forward(self, x):
        once = torch.relu(self.first(x.flatten(1)))
        return self.last(torch.relu(once + torch.relu(self.second(once))))


def test_deferred_rows_of_neurons_that_are_off_are_nothing():
    """Rounding would make breaks of them, some three a network, where others read them."""
    more = 0
    for seed in range(12):
        torch.manual_seed(seed)
        graph, lines = network_of(Past().double(), 1, 8, 8, dtype=torch.float64).graph, random_lines(1, seed)
        ((usual,), _), ((found,), some) = (curves(graph, lines, least) for least in (torch.inf, 0.0))
        assert some > 10
        assert len(found.z) >= len(usual.z)
        more += len(found.z) - len(usual.z)
    assert more < 10  # some sums of chords and kinks are 0 but for their rounding, and nobody's neuron is off


def test_runs_end_where_entries_can_no_longer_be_told():
    """At the next ReLU; not at all before max pooling, whose ties rounding would break."""
    graph = graph_of(0)
    kinds = [type(node.operator) for node in graph.nodes]
    relus = [number for number, kind in enumerate(kinds) if kind is Relu]
    ends = {start: run.end for start, run in affine_runs(graph).items()}
    assert ends == dict(zip(relus, [*relus[1:], len(kinds)], strict=True))
    pooled = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)
    )
    assert not affine_runs(network_of(pooled, 1, 8, 8).graph)


# -- what a deferred row is off by -------------------------------------------------------------------------------------


def two_layers() -> Graph:
    return network_of(nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 6)), 4).graph


SCORES = len(two_layers().nodes)


def deferred_plan(seed: int, count: int = 40) -> DeferredRows:
    """One segment with many crossings, each of another neuron."""
    random = torch.Generator().manual_seed(seed)
    plan = Plan.of(torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 1.0]).double())
    fraction, height = torch.rand(2, count, generator=random, dtype=torch.float64)
    breaks = Breaks(torch.zeros(count, dtype=torch.int64), fraction, 2 * height, torch.arange(count))
    made = insert(plan, breaks)
    graph = two_layers()
    (relu,) = affine_runs(graph)
    with patch.object(rows, "LEAST_SPARED", 0.0):
        found = defer_rows(graph, relu, made)
    assert found is not None
    return found


def truth(deferred: DeferredRows, early: torch.Tensor, columns: torch.Tensor) -> list[list[Fraction]]:
    """Deferred rows of a value, from its early ones, without any rounding: chords, and a tent for each neuron."""
    found = []
    at, low, high, way = (exact(column) for column in (deferred.at, deferred.low, deferred.high, deferred.way))
    for k, place in enumerate(at):
        a, b = (exact(early[int(deferred.before[k]) + side]) for side in (0, 1))
        share = (place - low[k]) / (high[k] - low[k])
        value = [(1 - share) * one + share * two for one, two in zip(a, b, strict=True)]
        for j, kink in enumerate(at):
            if deferred.before[j] == deferred.before[k]:
                # ReLU of what goes down by `way` from where it is positive, less the chord between its ends
                bent, first = max(kink - place, 0), kink - low[k]
                amount = way[j] * (bent - (1 - share) * first)
                value = [v + amount * c for v, c in zip(value, exact(columns[j]), strict=True)]
        found.append(value)
    return found


@pytest.mark.parametrize("everywhere", [True, False], ids=["all entries", "some entries"])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8)
def test_what_deferred_rows_are_off_by_is_allowed_for(everywhere, seed):
    assert 0 < beyond(seed, everywhere) <= 1


@pytest.mark.parametrize("everywhere", [True, False], ids=["all entries", "some entries"])
def test_deferred_rows_without_rounding_would_be_noticed(everywhere, monkeypatch):
    """A negative control: with a hundredth of the unit."""
    monkeypatch.setattr(rounding, "UNIT", rounding.UNIT / 100)
    assert max(beyond(seed, everywhere) for seed in range(20)) > 1


def beyond(seed: int, everywhere: bool) -> float:
    """How far deferred rows are from the truth, as a share of what they claim to be off by, at most."""
    deferred, random = deferred_plan(seed), np.random.default_rng(seed)
    early = torch.from_numpy(random.normal(size=(len(deferred.early.z), 6)) * 10.0 ** random.uniform(-3, 3))
    columns = torch.from_numpy(random.normal(size=(len(deferred.number), 6)) * 10.0 ** random.uniform(-3, 3))
    entries = Entries(None, columns)
    if not everywhere:
        index = torch.from_numpy(np.stack([random.permutation(6)[:3] for _ in columns]))
        entries, columns = Entries(index, columns[:, :3]), torch.zeros_like(columns).scatter_(1, index, columns[:, :3])
    made = deferred.completed({SCORES: early}, {SCORES: entries})[SCORES]
    assert torch.equal(made[deferred.rest.fraction == 0], early)
    length = torch.linalg.vector_norm(early, dim=1)
    known = {SCORES: torch.maximum(length, length.roll(-1))}
    sizes, error = deferred.sized(known, torch.zeros_like(length), {SCORES: entries}, RunningError(two_layers()))
    worst = 0.0
    for number, true in zip(deferred.number.tolist(), truth(deferred, early, columns), strict=True):
        off = sum((a - b) ** 2 for a, b in zip(exact(made[number]), true, strict=True))
        for segment in (number - 1, number):
            allowed = Fraction(float(error[segment]))
            worst = max(worst, float(off / allowed**2))
        assert float(sum(v * v for v in true)) ** 0.5 <= float(sizes[SCORES][number]) * (1 + 1e-12)
    return worst


def test_rows_of_several_neurons_and_ends_of_windows_are_early():
    plan = Plan.of(torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 1.0]).double())
    fraction = torch.tensor([0.5, 0.25, 0.5, 0.75]).double()
    made = insert(plan, Breaks(torch.zeros(4, dtype=torch.int64), fraction, torch.ones(4).double(), torch.arange(4)))
    assert made.z.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert made.neuron.tolist() == [-1, 1, -1, 3, -1]
    graph = graph_of(0)
    start = next(iter(affine_runs(graph)))
    with patch.object(rows, "LEAST_SPARED", 0.0):
        gaps = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).double()
        found = defer_rows(graph, start, made._replace(gap=gaps))
        assert found is not None
        assert found.early.z.tolist() == [0.0, 0.5, 1.0]
        assert found.early.gap.tolist() == [3.0, 12.0, 16.0]  # of all that lies between early rows
        assert found.high.tolist() == [0.5, 1.0]
        assert defer_rows(graph, start, made.part(1, 4)) is None
