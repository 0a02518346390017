"""The sweep against dense evaluation, split windows against whole ones, many lines against one."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import TESTS, network_of, random_module

import shakeproof as sp
from shakeproof.budget import GIB, Budget
from shakeproof.errors import MemoryBudgetError, NotFiniteError, ProofError
from shakeproof.exact import Curve, Lines, assemble, longest_window, sweep
from shakeproof.operators import MaxPool, Relu, SlidingWindow
from shakeproof.question import Path

ROOMY = Budget(memory=GIB)


def graph_of(seed: int, **options):
    return network_of(random_module(seed, **options), 1, 8, 8).graph


def random_lines(count: int, seed: int, side: int = 8) -> Lines:
    generator = torch.Generator().manual_seed(seed)
    slopes, bases = torch.randn(2, count, 1, 1, side, side, generator=generator, dtype=torch.float64)
    end = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    return Lines(Path(slopes.unsqueeze(0), bases), torch.zeros_like(end), end, torch.arange(len(end)))


def curves(graph, lines: Lines, budget: Budget = ROOMY) -> list[Curve]:
    with torch.inference_mode():
        return list(assemble(sweep(graph, lines, budget), len(lines), graph.classes))


def test_a_sweep_ends_when_the_time_is_up():
    """Within a window, too: of a deep network, one may take longer than there is time."""
    graph, lines = graph_of(0), random_lines(1, 0)
    assert [*sweep(graph, lines, ROOMY)]
    assert not [*sweep(graph, lines, replace(ROOMY, deadline=0.0))]


def dense_error(graph, lines: Lines, found: list[Curve]) -> float:
    """The largest difference between the curves and direct evaluation at many strengths."""
    worst = 0.0
    for number, curve in enumerate(found):
        assert curve.covers(0.0, float(lines.end[number]))
        z = np.sort(np.random.default_rng(number).uniform(0, float(lines.end[number]), 400))
        direct = graph.run(lines.at(torch.full((400,), number), torch.from_numpy(z))).numpy()
        worst = max(worst, float(np.abs(curve.at(z) - direct).max()))
    return worst


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_curves_agree_with_dense_evaluation(seed):
    graph, lines = graph_of(seed), random_lines(2, seed)
    assert dense_error(graph, lines, curves(graph, lines)) < 1e-10


def test_a_missing_breakpoint_is_noticed():
    graph, lines = graph_of(1), random_lines(1, 1)
    (curve,) = curves(graph, lines)
    bend = np.abs(np.diff(np.diff(curve.scores, axis=0) / np.diff(curve.z)[:, None], axis=0)).max(1).argmax() + 1
    broken = Curve(np.delete(curve.z, bend), np.delete(curve.scores, bend, 0))
    assert dense_error(graph, lines, [broken]) > 1e-6


@given(seed=st.integers(0, 10**6), rows=st.integers(4, 40))
@settings(max_examples=15)
def test_split_windows_give_the_same_curves(seed, rows, short_windows):
    graph, lines = graph_of(seed), random_lines(3, seed)
    whole = curves(graph, lines)
    with short_windows(rows):
        split = curves(graph, lines)
    for one, other in zip(whole, split, strict=True):
        assert np.abs(other.at(one.z) - one.scores).max() < 1e-9
        assert np.abs(one.at(other.z) - other.scores).max() < 1e-9
        assert abs(len(one.z) - len(other.z)) <= 1 + len(one.z) // 100


@pytest.fixture(scope="module")
def short_windows():
    """Limits the length of windows, as a small memory budget would."""
    from contextlib import contextmanager
    from unittest.mock import patch

    @contextmanager
    def limited(rows: int):
        with patch("shakeproof.exact.sweep.longest_window", lambda graph, budget: rows):
            yield

    return limited


def test_a_lost_segment_is_noticed():
    """Windows that do not share a row would lose the segment between them."""
    graph, lines = graph_of(2), random_lines(1, 2)
    with torch.inference_mode():
        pieces = list(sweep(graph, lines, ROOMY))
    without_last = [type(pieces[0])(*(torch.cat(column)[:-1] for column in zip(*pieces, strict=True)))]
    (curve,) = assemble(without_last, 1, graph.classes)
    assert not curve.covers(0.0, float(lines.end[0]))


def test_a_piece_lost_in_the_middle_is_noticed(short_windows):
    """The ends would still be covered; the gap must not become a chord."""
    graph, lines = graph_of(2), random_lines(1, 2)
    with torch.inference_mode(), short_windows(8):
        pieces = list(sweep(graph, lines, ROOMY))
    assert len(pieces) > 2
    assert assemble(pieces, 1, graph.classes)[0].covers(0.0, float(lines.end[0]))
    with pytest.raises(ProofError, match="missing"):
        assemble([*pieces[:1], *pieces[2:]], 1, graph.classes)


def test_many_lines_are_as_one_by_one():
    graph, lines = graph_of(3), random_lines(7, 3)
    together = curves(graph, lines)
    for number, curve in enumerate(together):
        chosen = slice(number, number + 1)
        part = replace(lines, start=lines.start[chosen], end=lines.end[chosen], path=lines.path[chosen])
        (alone,) = curves(graph, part)
        assert len(alone.z) == len(curve.z)
        assert np.abs(alone.z - curve.z).max() < 1e-12
        assert np.abs(alone.scores - curve.scores).max() < 1e-10


def test_a_value_seen_in_another_shape_is_not_overwritten():
    """A reshaped view of a layer lives on beside the ReLU of that layer."""

    class Views(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(64, 12)
            self.last = torch.nn.Linear(24, 3)

        def forward(self, x):
            layer = self.first(x.flatten(1))
            view = layer.reshape(1, 3, 4)
            return self.last(torch.cat([torch.relu(layer), view.flatten(1)], 1))

    graph, lines = network_of(Views(), 1, 8, 8).graph, random_lines(3, 11)
    lines = replace(
        lines, paths=replace(lines.paths, slopes=1e-9 * lines.paths.slopes)
    )  # too short for a break, after which rows are made anew
    assert dense_error(graph, lines, curves(graph, lines)) < 1e-10


def test_closed_lines_are_dropped():
    graph, lines = graph_of(4), random_lines(3, 4)
    keep = torch.tensor([True, False, True])
    with torch.inference_mode():
        found = assemble(sweep(graph, lines, ROOMY, lambda: keep), 3, graph.classes)
    assert [len(curve.z) > 0 for curve in found] == keep.tolist()


def test_coinciding_breaks_make_no_empty_segment():
    """Equal pixels cross zero together: one row for all of them."""
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    graph = network_of(module, 1, 8, 8).graph
    ones = torch.ones(1, 1, 1, 8, 8, dtype=torch.float64)
    start, end = torch.tensor([0.0]).double(), torch.tensor([1.0]).double()
    lines = Lines(Path(ones.unsqueeze(0), -0.5 * ones), start, end, torch.tensor([0]))
    (curve,) = curves(graph, lines)
    assert curve.z.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("window", [SlidingWindow((2, 2), (2, 2)), SlidingWindow((3, 2), (2, 1), pads=(1, 0, 1, 1))])
@pytest.mark.parametrize("floor", [-torch.inf, 0.0])
@pytest.mark.parametrize("many", [0, 10**9])
def test_pooled_rows_are_the_pool_of_rows(monkeypatch, window, floor, many):
    """Between rows, by the entries that win at both ends, and by all of them where another one wins."""
    monkeypatch.setattr("shakeproof.operators.base.MANY_PAIRS", many)
    pool, random = MaxPool(window, floor), torch.Generator().manual_seed(0)
    x = torch.randn(6, 1, 7, 8, 3, dtype=torch.float64, generator=random)
    joined = torch.tensor([True, True, False, True, True])
    source = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 4, 4, 5])
    fraction = torch.tensor([0.0, 0.2, 0.9, 0.0, 0.5, 0.0, 0.0, 0.0, 0.1, 0.7, 0.0], dtype=torch.float64)
    following, share = (source + 1).clamp(max=5), fraction.view(-1, 1, 1, 1, 1)
    output = pool.breaks(x, joined).output
    rows = torch.lerp(output.rows[source], output.rows[following], share)
    output.put_between(rows, source, fraction)
    assert torch.allclose(rows, pool.apply(torch.lerp(x[source], x[following], share)), rtol=0, atol=1e-14)
    assert len(output.segment) > 50


def test_ties_in_rounding_noise_make_no_rows():
    """Windows over a flat region tie up to rounding, and bend nowhere."""
    pool = MaxPool(SlidingWindow((2, 2), (2, 2)))
    flat = torch.linspace(1, 2, 5, dtype=torch.float64).view(-1, 1, 1, 1, 1).expand(5, 1, 8, 8, 3)
    noisy = flat * (1 + 1e-16 * torch.randint(-1, 2, flat.shape))
    assert not len(pool.breaks(noisy, torch.ones(4, dtype=torch.bool)).segment)


@pytest.mark.parametrize("large", [1e14, 1e28])
def test_one_large_neuron_hides_no_crossing(large):
    """A dead neuron beside the others, of whatever size, leaves their breaks where they are."""

    class Lopsided(torch.nn.Module):
        def __init__(self, offset: float) -> None:
            super().__init__()
            self.first = torch.nn.Linear(64, 8)
            self.last = torch.nn.Linear(8, 3)
            with torch.no_grad():
                self.first.bias[0] = -offset

        def forward(self, x):
            return self.last(torch.relu(self.first(x.flatten(1))))

    found = []
    for offset in (1e3, large):
        torch.manual_seed(0)
        graph = network_of(Lopsided(offset).double(), 1, 8, 8, dtype=torch.float64).graph
        found.append(curves(graph, random_lines(1, 5))[0])
    assert len(found[0].z) > 3
    assert np.array_equal(found[0].z, found[1].z)


def test_tiny_values_cross_too():
    """Products of two tiny values underflow; their signs do not."""
    tiny = torch.tensor([[-1e-200], [1e-200]], dtype=torch.float64)
    assert Relu().breaks(tiny, torch.ones(1, dtype=torch.bool)).fraction.tolist() == [0.5]


@pytest.mark.parametrize(
    ("z", "scores", "error"),
    [
        ([0.0, 0.0], [[1.0], [1.0]], ProofError),
        ([1.0, 0.0], [[1.0], [1.0]], ProofError),
        ([0.0, float("nan")], [[1.0], [1.0]], ProofError),
        ([0.0, float("inf")], [[1.0], [1.0]], ProofError),
        ([0.0, 1.0], [[1.0], [float("nan")]], NotFiniteError),
        ([0.0, 1.0], [[1.0], [float("inf")]], NotFiniteError),
    ],
)
def test_a_curve_must_be_increasing_and_finite(z, scores, error):
    with pytest.raises(error):
        Curve(np.array(z), np.array(scores))


def test_first_loss_and_classes():
    curve = Curve(np.array([0.0, 0.5, 1.0]), np.array([[2.0, 0.0, 1.0], [1.0, 2.0, 0.0], [4.0, 3.0, 0.0]]))
    assert curve.first_loss(0) == pytest.approx(1 / 3)
    assert curve.first_loss(1) == 0.0
    assert [winner for _, _, winner in curve.classes()] == [0, 1, 0]
    assert [start for start, _, _ in curve.classes()] == pytest.approx([0.0, 1 / 3, 0.75])
    assert curve.margin(0).tolist() == [1.0, -1.0, 1.0]


def test_a_tie_is_a_loss():
    curve = Curve(np.array([0.0, 0.5, 1.0]), np.array([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0]]))
    assert curve.first_loss(0) == 0.5
    assert [winner for _, _, winner in curve.classes()] == [0]


def test_memory_budget():
    graph = graph_of(6)
    small, large = longest_window(graph, Budget(memory=0.02 * GIB)), longest_window(graph, ROOMY)
    assert 4 <= small < large
    with pytest.raises(MemoryBudgetError, match="raise it") as refused:
        longest_window(graph, Budget(memory=1e6))
    assert refused.value.option == "memory"


def test_results_do_not_depend_on_the_budget():
    network = network_of(random_module(7), 1, 8, 8)
    image = torch.rand(1, 8, 8, dtype=torch.float64)
    results = [sp.profile(network, image, "box-blur:size=5", memory=m) for m in (0.02, 2.0)]
    assert results[0].critical_strength == results[1].critical_strength
    assert results[0].min_margin == pytest.approx(results[1].min_margin, abs=1e-9)


def test_the_sweep_never_leaves_the_device(monkeypatch):
    """No operator falls back to numpy, which would fail (or crawl) on a GPU."""
    graph, lines = graph_of(10), random_lines(2, 10)

    def refuse(self, *_):
        raise AssertionError("a tensor was turned into a numpy array")

    for name in ("numpy", "__array__", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)  # where numpy is told by this that it may look
    with torch.inference_mode():
        pieces = list(sweep(graph, lines, ROOMY))
    assert sum(len(piece.z) for piece in pieces) > 10
    with pytest.raises(AssertionError, match="numpy array"):
        assemble(pieces, 2, graph.classes)


LARGE = """
import sys, torch, shakeproof as sp
from models import network_of
from torch import nn

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(3, 32, 7, stride=2, padding=3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
network = network_of(module, 3, 224, 224)
image = torch.rand(3, 224, 224, generator=torch.Generator().manual_seed(1))
sp.profile(network, image, "identity", memory=float(sys.argv[1]))
before = peak()
result = sp.profile(network, image, "motion-blur:size=9,angle=30", max_strength=0.01, memory=float(sys.argv[1]))
assert result.curve.covers(0.0, 0.01)
print(result.pieces, peak() - before)
"""


@pytest.mark.parametrize("budget", [0.25, 0.6])
def test_large_images_within_the_budget(budget):
    """A network for 224 x 224 pictures, a narrow range of strengths: memory stays below the budget."""
    asked = [sys.executable, "-c", LARGE, str(budget)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=TESTS)
    pieces, gib = map(float, done.stdout.split())
    assert pieces > 50
    assert gib < budget


def test_a_clip_in_front_bends_too():
    graph = graph_of(8).after(Relu())
    lines = random_lines(2, 8)
    assert dense_error(graph, lines, curves(graph, lines)) < 1e-10


def test_every_consecutive_pair_of_pieces_shares_a_row(short_windows):
    graph, lines = graph_of(9), random_lines(1, 9)
    with torch.inference_mode(), short_windows(8):
        pieces = list(sweep(graph, lines, ROOMY))
    assert len(pieces) > 2
    for one, other in itertools.pairwise(pieces):
        assert one.z[-1] == other.z[0]
