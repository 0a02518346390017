"""Boxes of many inputs: bounds with any alphas and betas, splitting neurons, and linear programs for what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import NETWORKS, WIDE, box_around, dense, network_of, samples
from torch import Tensor, nn

from shakeproof.bounds import AlphaBetaCrown, Parts, ascend, enclose_box
from shakeproof.bounds.alpha_beta import WithBeta
from shakeproof.budget import Budget
from shakeproof.errors import MemoryBudgetError
from shakeproof.graph import Graph
from shakeproof.model import with_claims, without_max_pools
from shakeproof.operators import MaxPool, Range
from shakeproof.question import InputBox
from shakeproof.search import BoxProblem, descend, split_activations
from shakeproof.search.activation_splitting import PENALTIES, ActivationSplitting, solved
from shakeproof.search.attack import gradients_at

BUDGET = Budget(memory=2**28)


# -- bounds -----------------------------------------------------------------------------------------------------------


def random_rows(crown: AlphaBetaCrown, count: int, seed: int) -> Parts:
    """Parts of a box with random cuts, alphas and betas: all that soundness may depend on."""
    random = torch.Generator().manual_seed(seed)
    start = crown.start()

    def draw() -> Tensor:
        return torch.rand((count, start.low.shape[1]), generator=random, dtype=torch.float64)

    whole = (torch.arange(count) % 2 == 0).unsqueeze(1)  # every other row is the whole box, without betas
    at, place = crown.split_at(start).expand(count, -1), torch.where(whole, 0.5, draw())
    low = torch.where(place < 0.1, at, start.low.expand(count, -1))
    high = torch.where(place > 0.9, at, start.high.expand(count, -1))
    return Parts(low, high, 3 * draw() - 1, torch.where(whole | (draw() < 0.5), 0.0, 3 * draw() - 1.5))


def excess(graph: Graph, seed: int, count: int = 60, tampered: Callable[[Parts], Parts] = lambda rows: rows) -> float:
    """By how much bounds on random parts of a box exceed what samples in those parts show, at most."""
    low, high = box_around(graph, seed)
    crown = enclose_box(graph, low, high, BUDGET).proving
    rows = random_rows(crown, count, seed)
    random = torch.Generator().manual_seed(seed + 1)
    coefficients = torch.randn((count, graph.classes), generator=random, dtype=torch.float64)
    used = tampered(rows)
    lines = crown.on(used)
    bound = lines.lowest(lines.relaxations(used.alpha, used.beta), coefficients).value
    x = samples(low, high, 3000, seed)
    values = [x, *graph.values(x)]
    inputs = torch.cat([values[graph.nodes[b.node].inputs[0]].flatten(1)[:, b.place] for b in crown.bends], 1)
    whole = crown.start()
    assert bool((inputs >= whole.low - 1e-9).all() & (inputs <= whole.high + 1e-9).all())
    worst = -np.inf
    for row in range(count):
        inside = ((inputs >= rows.low[row]) & (inputs <= rows.high[row])).all(1)
        if bool(inside.any()):
            worst = max(worst, float(bound[row] - (values[-1][inside] @ coefficients[row]).min()))
    return worst


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5)
def test_any_alphas_and_betas_are_sound(name, seed):
    assert excess(without_max_pools(NETWORKS[name](seed % 50).graph), seed) <= 1e-9


@pytest.mark.parametrize("what", ["low", "high", "beta"])
def test_wrong_ranges_are_noticed(what):
    """A negative control: the test above fails if a range is a little wrong."""

    def tampered(rows: Parts) -> Parts:
        size, none = rows.high - rows.low, torch.zeros_like(rows.beta)
        changed = {
            "low": Parts(rows.low + 0.4 * size, rows.high, rows.alpha, none),
            "high": Parts(rows.low, rows.high - 0.4 * size, rows.alpha, none),
            "beta": Parts(rows.low + 0.2 * size, rows.high - 0.2 * size, rows.alpha, rows.beta),
        }
        return changed[what]

    small = (network_of(dense(seed, 3, 4, 2), 3).graph for seed in range(40))
    assert any(excess(graph, seed, tampered=tampered) > 1e-3 for seed, graph in enumerate(small))


def excess_of_betas(seed: int) -> float:
    """The same on parts where every neuron is decided: the network is straight there, only betas count."""
    graph = network_of(dense(seed, 2, 4, 2), 2).graph
    low, high = box_around(graph, seed, radius=2.0)
    crown = enclose_box(graph, low, high, BUDGET).proving
    start, at = crown.start(), crown.split_at(crown.start())
    random = torch.Generator().manual_seed(seed)
    above = torch.rand((60, at.shape[1]), generator=random) < 0.5
    beta = 0.3 * torch.randn((60, at.shape[1]), generator=random, dtype=torch.float64)
    alpha = start.alpha.expand(60, -1)
    rows = Parts(torch.where(above, at, start.low), torch.where(above, start.high, at), alpha, beta)
    coefficients = torch.randn((60, 2), generator=random, dtype=torch.float64)
    lines = crown.on(rows)
    bound = lines.lowest(lines.relaxations(rows.alpha, rows.beta), coefficients).value
    x = samples(low, high, 5000, seed)
    values = [x, *graph.values(x)]
    inputs = torch.cat([values[graph.nodes[b.node].inputs[0]].flatten(1)[:, b.place] for b in crown.bends], 1)
    inside = ((inputs >= rows.low.unsqueeze(1)) & (inputs <= rows.high.unsqueeze(1))).all(2)
    least = torch.where(inside, coefficients @ values[-1].t(), torch.inf).amin(1)
    return float((bound - least).max())


def test_betas_are_sound_where_they_are_all_that_counts(monkeypatch):
    assert max(map(excess_of_betas, range(20))) <= 1e-9
    pull = WithBeta.pull

    def swapped(self: WithBeta, coefficients: Tensor, cell: Tensor | slice):
        return pull(replace(self, low=self.high, high=self.low), coefficients, cell)

    monkeypatch.setattr(WithBeta, "pull", swapped)  # a negative control: the wrong end of each range
    assert max(map(excess_of_betas, range(20))) > 0.1


@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_the_bound(name):
    graph = without_max_pools(NETWORKS[name](3).graph)
    crown = enclose_box(graph, *box_around(graph, 3), BUDGET).proving
    rows = random_rows(crown, 4, 7)
    rows = replace(rows, alpha=rows.alpha.clamp(0.3, 0.9))  # well within what it may be
    lines = crown.on(rows)
    coefficients = torch.randn(4, graph.classes, dtype=torch.float64)

    def bound(alpha: Tensor, beta: Tensor) -> Tensor:
        return lines.lowest(lines.relaxations(alpha, beta), coefficients).value

    relaxations = lines.relaxations(rows.alpha, rows.beta)
    found = lines.lowest(relaxations, coefficients)
    by_alpha, by_beta, _ = lines.derivatives(found, lines.walked(relaxations, found), rows.beta)
    agree = 0
    for neuron in range(0, rows.alpha.shape[1], max(1, rows.alpha.shape[1] // 40)):
        step = torch.zeros_like(rows.alpha)
        step[:, neuron] = 1e-6
        moved = (bound(rows.alpha + step, rows.beta) - bound(rows.alpha - step, rows.beta)) / 2e-6
        shared = (bound(rows.alpha, rows.beta + step) - bound(rows.alpha, rows.beta - step)) / 2e-6
        clear = rows.beta[:, neuron].abs() > 1e-3  # at 0 a bound has a kink
        assert torch.allclose(moved, by_alpha[:, neuron], atol=1e-4, rtol=1e-4)
        assert torch.allclose(shared[clear], by_beta[clear, neuron], atol=1e-4, rtol=1e-4)
        agree += int(clear.sum())
    assert agree > 10


def test_ascent_improves_and_stays_sound():
    graph = NETWORKS["relu"](5).graph
    low, high = box_around(graph, 5)
    root = enclose_box(graph, low, high, BUDGET)
    start, coefficients = root.searching.start(), torch.eye(3, dtype=torch.float64)
    rows = Parts(*(x.repeat(3, 1) for x in (start.low, start.high, start.alpha, start.beta)))
    better = ascend(root.searching, coefficients.float(), rows, 60, torch.full((3,), torch.inf), BUDGET)
    narrow = root.searching.on(better)
    found = narrow.lowest(narrow.relaxations(better.alpha, better.beta), coefficients.float()).value
    lines = root.proving.on(Parts(*(x.double() for x in (better.low, better.high, better.alpha, better.beta))))
    plain = lines.lowest(
        lines.relaxations(start.alpha.double().repeat(3, 1), start.beta.double().repeat(3, 1)), coefficients
    )
    again = lines.lowest(lines.relaxations(better.alpha.double(), better.beta.double()), coefficients).value
    assert bool((again > plain.value + 1e-3).all())
    assert torch.allclose(again.float(), found, atol=1e-3)
    assert bool((graph.run(samples(low, high, 5000, 0)).amin(0) >= again).all())


def test_gradients():
    for name in ("relu", "sigmoid"):
        graph = NETWORKS[name](1).graph
        x = samples(*box_around(graph, 1), 5, 2)
        coefficients = torch.randn(5, 3, dtype=torch.float64)
        scores, gradient = gradients_at(graph, x, coefficients)
        step = 1e-7 * torch.randn(x.shape, dtype=torch.float64)
        moved = ((graph.run(x + step) - graph.run(x - step)) * coefficients).sum(1) / 2
        assert torch.allclose(scores, graph.run(x))
        assert torch.allclose((gradient * step).flatten(1).sum(1), moved, rtol=2e-2, atol=1e-12)


def test_memory_is_kept():
    graph = NETWORKS["relu"](0).graph
    with pytest.raises(MemoryBudgetError, match="raise it") as refused:
        enclose_box(graph, *box_around(graph, 0), Budget(memory=100.0))
    assert refused.value.option == "memory"


# -- rewriting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((1, 2)), nn.MaxPool2d(3, 1, 1, dilation=1)]
)
@pytest.mark.parametrize("first", [nn.Identity(), nn.ReLU()])
def test_max_pooling_as_relus(pool, first):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), first, pool, nn.Flatten(), nn.LazyLinear(3))
    module(torch.zeros(1, 1, 7, 6))
    graph = network_of(module, 1, 7, 6).graph
    assert any(isinstance(node.operator, MaxPool) for node in graph.nodes)
    rewritten = without_max_pools(graph)
    assert not any(isinstance(node.operator, MaxPool) for node in rewritten.nodes)
    x = torch.randn(50, *graph.input_shape, dtype=torch.float64)
    assert torch.allclose(rewritten.run(x), graph.run(x), atol=1e-12)


def test_claims_behind_a_network():
    graph = NETWORKS["relu"](2).graph
    coefficients, constants = torch.randn(4, 3, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    x = samples(*box_around(graph, 0), 50, 0)
    expected = (torch.einsum("crk,nk->ncr", coefficients, graph.run(x)) + constants).amax(2)
    assert torch.allclose(with_claims(graph, coefficients, constants).run(x), expected)


# -- the box ----------------------------------------------------------------------------------------------------------


def test_float32_boxes_lie_inside():
    low = torch.tensor([0.1, 0.1, 1 / 3, -1.0], dtype=torch.float64)
    high = torch.tensor([0.2, 0.1, 1 / 3 + 1e-12, -1.0], dtype=torch.float64)
    inner = InputBox(low, high).float32
    assert bool((inner[0].double() >= low)[[0, 3]].all() & (inner[1].double() <= high)[[0, 3]].all())
    assert inner[0][1] == inner[1][1] == torch.tensor(0.1)  # the nearest: there is none inside
    assert inner[0][2] == inner[1][2] == torch.tensor(1 / 3)


# -- leaves -----------------------------------------------------------------------------------------------------------


def test_a_linear_program_settles_leaves():
    """Every part with all neurons decided: the bound is the true minimum, or beyond any claim if there is no input."""
    graph = network_of(dense(1, 2, 4, 2), 2).graph
    low, high = box_around(graph, 4, radius=2.0)
    crown = enclose_box(graph, low, high, BUDGET).proving
    start, at = crown.start(), crown.split_at(crown.start())
    coefficients = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    x = samples(low, high, 20_000, 5)
    values = [x, *graph.values(x)]
    (bend,) = crown.bends
    inputs = values[graph.nodes[bend.node].inputs[0]].flatten(1)[:, bend.place]
    empty = 0
    for pattern in range(2 ** len(bend.place)):
        on = torch.tensor([bool(pattern >> i & 1) for i in range(len(bend.place))])
        row = Parts(torch.where(on, at, start.low), torch.where(on, start.high, at), start.alpha, start.beta)
        lows = []
        for penalty in PENALTIES:
            better, lowest = solved(crown, row, coefficients, penalty)
            lines = crown.on(better)
            lows.append(float(lines.lowest(lines.relaxations(better.alpha, better.beta), coefficients).value))
        inside = ((inputs >= row.low) & (inputs <= row.high)).all(1)
        if bool(inside.any()):
            least = (values[-1][inside] @ coefficients[0]).min()
            assert max(lows) <= float(least) + 1e-9
            there = graph.run(torch.clamp(lowest, low, high))
            assert float(there @ coefficients[0]) == pytest.approx(max(lows), abs=1e-6)
        else:
            assert max(lows) > 10 * float(values[-1].abs().max())
            empty += 1
    assert len(bend.place) == 4
    assert empty > 0


def test_a_linear_program_looks_at_the_clock():
    """One with hundreds of neurons on as many inputs takes a long time."""
    graph = network_of(dense(1, 300, 300, 2), 300).graph
    crown = enclose_box(graph, *box_around(graph, 4, radius=2.0), BUDGET).proving
    start, at = crown.start(), crown.split_at(crown.start())
    assert at.isfinite().all()
    row = Parts(at, start.high, start.alpha, start.beta)
    claim = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert solved(crown, row, claim, PENALTIES[0], Budget.starting(0.05, 1.0)) is None
    assert solved(crown, row, claim, PENALTIES[0]) is not None


# -- searching --------------------------------------------------------------------------------------------------------


def test_the_clock_is_kept():
    network = network_of(dense(0, 200, 300, 300, 300, 5, scale=3.0), 200)
    low, high = box_around(network.graph, 0, radius=0.3)
    graph = with_claims(network.graph, torch.eye(5).double().unsqueeze(1), torch.full((5, 1), 500.0).double())
    problem = BoxProblem(graph, InputBox(low, high), lambda x: np.zeros(len(x), bool))
    started = time.process_time()
    with torch.inference_mode():
        outcome = split_activations(problem, Budget.starting(2, 1.0))
    assert not outcome.tree.is_complete()
    assert outcome.counterexample is None
    assert not outcome.finished or outcome.unconfirmed is not None
    assert time.process_time() - started < 60  # it would go on for days


def test_an_attack_that_is_late_starts_nothing_more(monkeypatch):
    """However many claims there are: the clock is looked at before each batch of places."""
    network = network_of(dense(3, *WIDE), 12)
    begun = []

    def counted(graph, box, x, claim, steps, budget):
        begun.append(len(x))
        return iter(())

    monkeypatch.setattr("shakeproof.search.activation_splitting.descend", counted)
    low, high = box_around(network.graph, 3)
    problem = BoxProblem(network.graph, InputBox(low, high), lambda x: np.zeros(len(x), bool))
    for deadline, batches in ((time.perf_counter() + 1000, 10), (time.perf_counter() - 1, 0)):
        search = ActivationSplitting(problem, Budget(deadline, 2**30))
        search.most_rows = 100
        begun.clear()
        search.attack_from(1000, 5)
        assert len(begun) == batches


def test_descent_stays_in_the_box_and_finds_what_is_there():
    graph = NETWORKS["relu"](7).graph
    low, high = box_around(graph, 7, radius=0.5)
    box = InputBox(low, high)
    least = graph.run(samples(low, high, 5000, 0))[:, 0].min()
    shifted = with_claims(graph, torch.tensor([[[1.0, 0, 0]]]).double(), -least.view(1, 1)).to(torch.float32)
    with torch.inference_mode():
        found = list(
            descend(shifted, Range(*box.float32), box.samples(50, 0), torch.zeros(50, dtype=torch.long), 40, BUDGET)
        )
    assert found
    x = torch.cat(found).double()
    assert bool((x >= low).all() & (x <= high).all())
    assert bool((graph.run(x)[:, 0] <= least + 1e-4).all())
