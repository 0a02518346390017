"""Boxes of many inputs: bounds with any slopes and shares, splitting neurons, and verdicts against an exact solver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_module
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

import shakeproof as sp
from shakeproof.bounds import Rows, Tilted, ascend, enclose_box, gradients_at
from shakeproof.bounds.tilted import Restricted
from shakeproof.errors import InputError, MemoryBudgetError
from shakeproof.network.claims import with_claims, without_max_pools
from shakeproof.network.graph import Graph
from shakeproof.operators import MaxPool
from shakeproof.search import BoxProblem, Limits, split_activations
from shakeproof.search.activations import _Search
from shakeproof.search.descent import descend, float32_box, starts
from shakeproof.search.leaves import PENALTIES, solved
from shakeproof.search.tree import Tree
from shakeproof.vnnlib import Case, Specification, robustness

FOREVER, MEMORY = float("inf"), 2**28
WIDE = (12, 10, 8, 3)


def dense(seed: int, *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, scale: float = 2.0) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data *= scale
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


def network_of(module: nn.Module, *shape: int) -> sp.Network:
    return sp.load(module, torch.zeros(1, *shape))


NETWORKS: dict[str, Callable[[int], sp.Network]] = {
    "relu": lambda seed: network_of(dense(seed, *WIDE), 12),
    "leaky": lambda seed: network_of(dense(seed, *WIDE, activation=lambda: nn.LeakyReLU(0.2)), 12),
    "hardtanh": lambda seed: network_of(dense(seed, *WIDE, activation=lambda: nn.Hardtanh(-0.5, 0.7)), 12),
    "sigmoid": lambda seed: network_of(dense(seed, *WIDE, activation=nn.Sigmoid), 12),
    "branching": lambda seed: network_of(random_module(seed), 1, 8, 8),
}


def box_around(graph: Graph, seed: int, radius: float = 0.3) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    centre = torch.rand(tuple(graph.input_shape), generator=random, dtype=torch.float64) * 2 - 1
    return centre - radius, centre + radius


def samples(low: Tensor, high: Tensor, count: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand((count, *low.shape), generator=random, dtype=torch.float64)
    corner = torch.rand((count, *(1,) * low.dim()), generator=random) < 0.5
    return low + torch.where(corner, shares.round(), shares) * (high - low)


# -- bounds -----------------------------------------------------------------------------------------------------------


def random_rows(tilted: Tilted, count: int, seed: int) -> Rows:
    """Parts of a box with random cuts, slopes and shares: all that soundness may depend on."""
    random = torch.Generator().manual_seed(seed)
    start = tilted.start()

    def draw() -> Tensor:
        return torch.rand((count, start.low.shape[1]), generator=random, dtype=torch.float64)

    whole = (torch.arange(count) % 2 == 0).unsqueeze(1)  # every other row is the whole box, without shares
    at, place = tilted.split_at(start).expand(count, -1), torch.where(whole, 0.5, draw())
    low = torch.where(place < 0.1, at, start.low.expand(count, -1))
    high = torch.where(place > 0.9, at, start.high.expand(count, -1))
    return Rows(low, high, 3 * draw() - 1, torch.where(whole | (draw() < 0.5), 0.0, 3 * draw() - 1.5))


def excess(graph: Graph, seed: int, count: int = 60, tampered: Callable[[Rows], Rows] = lambda rows: rows) -> float:
    """By how much bounds on random parts of a box exceed what samples in those parts show, at most."""
    low, high = box_around(graph, seed)
    tilted = enclose_box(graph, low, high, FOREVER, MEMORY).proving
    rows = random_rows(tilted, count, seed)
    random = torch.Generator().manual_seed(seed + 1)
    coefficients = torch.randn((count, graph.classes), generator=random, dtype=torch.float64)
    used = tampered(rows)
    lines = tilted.on(used)
    bound = lines.lowest(lines.relaxations(used.slope, used.share), coefficients).value
    x = samples(low, high, 3000, seed)
    values = [x, *graph.values(x)]
    inputs = torch.cat([values[graph.nodes[b.node].inputs[0]].flatten(1)[:, b.place] for b in tilted.bends], 1)
    whole = tilted.start()
    assert bool((inputs >= whole.low - 1e-9).all() & (inputs <= whole.high + 1e-9).all())
    worst = -np.inf
    for row in range(count):
        inside = ((inputs >= rows.low[row]) & (inputs <= rows.high[row])).all(1)
        if bool(inside.any()):
            worst = max(worst, float(bound[row] - (values[-1][inside] @ coefficients[row]).min()))
    return worst


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_any_slopes_and_shares_are_sound(name, seed):
    assert excess(without_max_pools(NETWORKS[name](seed % 50).graph), seed) <= 1e-9


@pytest.mark.parametrize("what", ["low", "high", "share"])
def test_wrong_ranges_are_noticed(what):
    """A negative control: the test above fails if a range is a little wrong."""

    def tampered(rows: Rows) -> Rows:
        size, none = rows.high - rows.low, torch.zeros_like(rows.share)
        changed = {
            "low": Rows(rows.low + 0.4 * size, rows.high, rows.slope, none),
            "high": Rows(rows.low, rows.high - 0.4 * size, rows.slope, none),
            "share": Rows(rows.low + 0.2 * size, rows.high - 0.2 * size, rows.slope, rows.share),
        }
        return changed[what]

    small = (network_of(dense(seed, 3, 4, 2), 3).graph for seed in range(40))
    assert any(excess(graph, seed, tampered=tampered) > 1e-3 for seed, graph in enumerate(small))


def excess_of_shares(seed: int) -> float:
    """The same on parts where every neuron is decided: the network is straight there, only shares count."""
    graph = network_of(dense(seed, 2, 4, 2), 2).graph
    low, high = box_around(graph, seed, radius=2.0)
    tilted = enclose_box(graph, low, high, FOREVER, MEMORY).proving
    start, at = tilted.start(), tilted.split_at(tilted.start())
    random = torch.Generator().manual_seed(seed)
    above = torch.rand((60, at.shape[1]), generator=random) < 0.5
    share = 0.3 * torch.randn((60, at.shape[1]), generator=random, dtype=torch.float64)
    slope = start.slope.expand(60, -1)
    rows = Rows(torch.where(above, at, start.low), torch.where(above, start.high, at), slope, share)
    coefficients = torch.randn((60, 2), generator=random, dtype=torch.float64)
    lines = tilted.on(rows)
    bound = lines.lowest(lines.relaxations(rows.slope, rows.share), coefficients).value
    x = samples(low, high, 5000, seed)
    values = [x, *graph.values(x)]
    inputs = torch.cat([values[graph.nodes[b.node].inputs[0]].flatten(1)[:, b.place] for b in tilted.bends], 1)
    inside = ((inputs >= rows.low.unsqueeze(1)) & (inputs <= rows.high.unsqueeze(1))).all(2)
    least = torch.where(inside, coefficients @ values[-1].t(), torch.inf).amin(1)
    return float((bound - least).max())


def test_shares_are_sound_where_they_are_all_that_counts(monkeypatch):
    assert max(map(excess_of_shares, range(20))) <= 1e-9
    pull = Restricted.pull

    def swapped(self: Restricted, coefficients: Tensor, cell: Tensor | slice):
        return pull(replace(self, low=self.high, high=self.low), coefficients, cell)

    monkeypatch.setattr(Restricted, "pull", swapped)  # a negative control: the wrong end of each range
    assert max(map(excess_of_shares, range(20))) > 0.1


@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_the_bound(name):
    graph = without_max_pools(NETWORKS[name](3).graph)
    tilted = enclose_box(graph, *box_around(graph, 3), FOREVER, MEMORY).proving
    rows = random_rows(tilted, 4, 7)
    rows = replace(rows, slope=rows.slope.clamp(0.3, 0.9))  # well within what it may be
    lines = tilted.on(rows)
    coefficients = torch.randn(4, graph.classes, dtype=torch.float64)

    def bound(slope: Tensor, share: Tensor) -> Tensor:
        return lines.lowest(lines.relaxations(slope, share), coefficients).value

    relaxations = lines.relaxations(rows.slope, rows.share)
    found = lines.lowest(relaxations, coefficients)
    by_slope, by_share, _ = lines.slopes_of(found, lines.walked(relaxations, found), rows.share)
    agree = 0
    for neuron in range(0, rows.slope.shape[1], max(1, rows.slope.shape[1] // 40)):
        step = torch.zeros_like(rows.slope)
        step[:, neuron] = 1e-6
        moved = (bound(rows.slope + step, rows.share) - bound(rows.slope - step, rows.share)) / 2e-6
        shared = (bound(rows.slope, rows.share + step) - bound(rows.slope, rows.share - step)) / 2e-6
        clear = rows.share[:, neuron].abs() > 1e-3  # at 0 a bound has a kink
        assert torch.allclose(moved, by_slope[:, neuron], atol=1e-4, rtol=1e-4)
        assert torch.allclose(shared[clear], by_share[clear, neuron], atol=1e-4, rtol=1e-4)
        agree += int(clear.sum())
    assert agree > 10


def test_ascent_improves_and_stays_sound():
    graph = NETWORKS["relu"](5).graph
    low, high = box_around(graph, 5)
    root = enclose_box(graph, low, high, FOREVER, MEMORY)
    start, coefficients = root.searching.start(), torch.eye(3, dtype=torch.float64)
    rows = Rows(*(x.repeat(3, 1) for x in (start.low, start.high, start.slope, start.share)))
    better, found = ascend(root.searching, coefficients.float(), rows, 60, torch.full((3,), torch.inf), FOREVER)
    lines = root.proving.on(Rows(*(x.double() for x in (better.low, better.high, better.slope, better.share))))
    plain = lines.lowest(
        lines.relaxations(start.slope.double().repeat(3, 1), start.share.double().repeat(3, 1)), coefficients
    )
    again = lines.lowest(lines.relaxations(better.slope.double(), better.share.double()), coefficients).value
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
    with pytest.raises(MemoryBudgetError, match="--memory"):
        enclose_box(graph, *box_around(graph, 0), FOREVER, 100.0)


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


# -- the tree ---------------------------------------------------------------------------------------------------------


def test_a_tree_knows_its_parts_and_what_is_missing():
    tree = Tree(2)
    below, above = tree.split(np.array([0]), np.array([1]), np.array([0.5]))
    inner = tree.split(np.array([above]), np.array([0]), np.array([-1.0]))
    low, high = tree.ranges(
        np.array([1, below, inner[0], inner[1]]), torch.tensor([[-2.0, 0.0]]), torch.tensor([[2.0, 1.0]])
    )
    assert low.tolist() == [[-2, 0], [-2, 0], [-2, 0.5], [-1, 0.5]]
    assert high.tolist() == [[2, 1], [2, 0.5], [-1, 1], [2, 1]]
    assert not tree.is_complete()
    leaves = [1, below, *inner]
    for missing in leaves:
        tree.proved[leaves] = True
        tree.proved[missing] = False
        assert not tree.is_complete()
    tree.proved[leaves] = True
    assert tree.is_complete()
    assert tree.share_proved() == 1
    tree.at[inner[1]] = -0.9  # halves that do not meet leave something out
    assert not tree.is_complete()
    tree.at[inner[1]] = -1.0
    tree.above[inner[1]] = False  # the same half twice
    assert not tree.is_complete()


def test_float32_boxes_lie_inside():
    low = torch.tensor([0.1, 0.1, 1 / 3, -1.0], dtype=torch.float64)
    high = torch.tensor([0.2, 0.1, 1 / 3 + 1e-12, -1.0], dtype=torch.float64)
    inner = float32_box(low, high)
    assert bool((inner.low.double() >= low)[[0, 3]].all() & (inner.high.double() <= high)[[0, 3]].all())
    assert inner.low[1] == inner.high[1] == torch.tensor(0.1)  # the nearest: there is none inside
    assert inner.low[2] == inner.high[2] == torch.tensor(1 / 3)


# -- leaves -----------------------------------------------------------------------------------------------------------


def test_a_linear_program_settles_leaves():
    """Every part with all neurons decided: the bound is the true minimum, or beyond any claim if there is no input."""
    graph = network_of(dense(1, 2, 4, 2), 2).graph
    low, high = box_around(graph, 4, radius=2.0)
    tilted = enclose_box(graph, low, high, FOREVER, MEMORY).proving
    start, at = tilted.start(), tilted.split_at(tilted.start())
    coefficients = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    x = samples(low, high, 20_000, 5)
    values = [x, *graph.values(x)]
    (bend,) = tilted.bends
    inputs = values[graph.nodes[bend.node].inputs[0]].flatten(1)[:, bend.place]
    empty = 0
    for pattern in range(2 ** len(bend.place)):
        on = torch.tensor([bool(pattern >> i & 1) for i in range(len(bend.place))])
        row = Rows(torch.where(on, at, start.low), torch.where(on, start.high, at), start.slope, start.share)
        lows = []
        for penalty in PENALTIES:
            better, lowest = solved(tilted, row, coefficients, penalty)
            lines = tilted.on(better)
            lows.append(float(lines.lowest(lines.relaxations(better.slope, better.share), coefficients).value))
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


# -- verdicts ---------------------------------------------------------------------------------------------------------


def exact_least(module: nn.Module, low: np.ndarray, high: np.ndarray, row: np.ndarray) -> float:
    """The least of row @ outputs over a box, by mixed-integer programming: an independent solver for small networks."""
    layers = [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in module if hasattr(m, "bias")
    ]
    count = len(low) + sum(2 * len(b) for _, b in layers[:-1])
    lower, upper = np.full(count, -np.inf), np.full(count, np.inf)
    whole = np.zeros(count)
    lower[: len(low)], upper[: len(low)] = low, high
    rows, least, most = [], [], []
    place, size, ends = 0, len(low), (low, high)
    free = len(low)
    for weight, bias in layers[:-1]:
        centre, radius = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        middle, reach = weight @ centre + bias, np.abs(weight) @ radius
        bottom, top = middle - reach, middle + reach
        for i in range(len(bias)):
            out, on = free + i, free + len(bias) + i
            lower[out], upper[out], lower[on], upper[on], whole[on] = 0, max(top[i], 0), 0, 1, 1
            value = np.zeros(count)
            value[place : place + size] = weight[i]
            at_least, on_top, off = -value.copy(), -value.copy(), np.zeros(count)
            at_least[out], on_top[out], off[out] = 1, 1, 1
            on_top[on] = -bottom[i]  # out <= value - bottom (1 - on)
            off[on] = -max(top[i], 0)  # out <= top on
            rows += [at_least, on_top, off]
            least += [bias[i], -np.inf, -np.inf]
            most += [np.inf, bias[i] - bottom[i], 0]
        place, size, ends = free, len(bias), (np.maximum(bottom, 0), np.maximum(top, 0))
        free += 2 * len(bias)
    weight, bias = layers[-1]
    goal = np.zeros(count)
    goal[place : place + size] = row @ weight
    found = milp(
        goal, constraints=LinearConstraint(np.array(rows), least, most), bounds=Bounds(lower, upper), integrality=whole
    )
    assert found.success
    return float(found.fun + row @ bias)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_verdicts_agree_with_an_exact_solver(seed):
    """The property is put a little on either side of the exact minimum, where every shortcut would show."""
    random = np.random.default_rng(seed)
    module = dense(seed % 1000, *WIDE)
    network = network_of(module, 12)
    low = random.uniform(-1, 1, 12)
    high = low + random.uniform(0.1, 1.2)
    row = random.normal(size=3)
    least = exact_least(module, low, high, row)
    for gap, expected in ((1e-3, "safe"), (-1e-3, "unsafe")):
        # met where row @ y <= least - gap
        case = Case(low, high, -row[None], np.array([least - gap]), np.zeros(1, bool))
        result = sp.verify_specification(network, Specification(12, 3, (case,)), timeout=60)
        assert result.status == expected, (seed, gap, result.reason)
        if expected == "safe":
            assert 0 < result.min_margin <= gap + 1e-6
        else:
            assert result.counterexample.replayed
            assert (result.counterexample.input >= low).all() & (result.counterexample.input <= high).all()


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_no_verdict_contradicts_samples(name, seed):
    """Conjunctions and disjunctions of any rows; safe is never contradicted, and most is decided."""
    random = np.random.default_rng(seed)
    network = NETWORKS[name](seed % 50)
    low, high = (end.flatten().numpy() for end in box_around(network.graph, seed, radius=0.15))
    size = len(low)
    x = random.uniform(low, high, (3000, size))
    outputs = network.scores(torch.from_numpy(x).view(-1, *network.graph.input_shape)).numpy()
    cases = []
    for _ in range(random.integers(1, 3)):
        rows = random.normal(size=(random.integers(1, 4), 3))
        highest = (outputs @ rows.T).max(0)
        cases.append(
            Case(low, high, rows, -highest + random.normal(size=len(rows)) * outputs.std(), np.zeros(len(rows), bool))
        )
    specification = Specification(size, 3, tuple(cases))
    result = sp.verify_specification(network, specification, timeout=5)
    if result.status == "safe":
        assert not any(case.met_by(outputs).any() for case in cases)
    elif result.status == "unsafe":
        found = result.counterexample
        assert specification.is_counterexample(found.input.flatten().astype(float), found.outputs.astype(float))
    else:
        assert result.reason == "timeout"


def test_a_wrong_proof_would_be_noticed(monkeypatch):
    """A negative control: a search that does not attack, and accepts bounds that are too low, answers wrongly."""
    module = dense(4, *WIDE)
    network = network_of(module, 12)
    low, high = (end.flatten().numpy() for end in box_around(network.graph, 4, radius=0.5))
    row = np.array([1.0, -1.0, 0.5])
    case = row_case(low, high, -row, exact_least(module, low, high, row) + 1e-3)
    assert answer(network, case).status == "unsafe"
    monkeypatch.setattr("shakeproof.search.activations._Search.tested", lambda self, x: None)
    proves = _Search.proves
    monkeypatch.setattr(_Search, "proves", lambda self, bound, parts: proves(self, bound + 2e-3, parts))
    assert answer(network, case).status == "safe"


def test_the_clock_is_kept():
    network = network_of(dense(0, 200, 300, 300, 300, 5, scale=3.0), 200)
    low, high = box_around(network.graph, 0, radius=0.3)
    graph = with_claims(network.graph, torch.eye(5).double().unsqueeze(1), torch.full((5, 1), 500.0).double())
    problem = BoxProblem(graph, low, high, lambda x: np.zeros(len(x), bool))
    started = time.perf_counter()
    with torch.inference_mode():
        outcome = split_activations(problem, Limits(deadline=started + 2, memory=2**30))
    assert not outcome.proved
    assert outcome.timed_out or outcome.unconfirmed is not None
    assert time.perf_counter() - started < 60  # it would go on for days; machines are noisy


def test_an_attack_that_is_late_starts_nothing_more(monkeypatch):
    """However many claims there are: the clock is looked at before each batch of places."""
    network = network_of(dense(3, *WIDE), 12)
    begun = []

    def counted(graph, box, x, claim, steps, until):
        begun.append(len(x))
        return iter(())

    monkeypatch.setattr("shakeproof.search.activations.descend", counted)
    low, high = box_around(network.graph, 3)
    problem = BoxProblem(network.graph, low, high, lambda x: np.zeros(len(x), bool))
    for deadline, batches in ((time.perf_counter() + 1000, 10), (time.perf_counter() - 1, 0)):
        search = _Search(problem, Limits(deadline=deadline, memory=2**30))
        search.most_rows = 100
        begun.clear()
        search.attack_from(1000, 5)
        assert len(begun) == batches


def test_descent_stays_in_the_box_and_finds_what_is_there():
    graph = NETWORKS["relu"](7).graph
    low, high = box_around(graph, 7, radius=0.5)
    box = float32_box(low, high)
    least = graph.run(samples(low, high, 5000, 0))[:, 0].min()
    shifted = with_claims(graph, torch.tensor([[[1.0, 0, 0]]]).double(), -least.view(1, 1)).to(torch.float32)
    with torch.inference_mode():
        found = list(descend(shifted, box, starts(box, 50, 0), torch.zeros(50, dtype=torch.long), 40, FOREVER))
    assert found
    x = torch.cat(found).double()
    assert bool((x >= low).all() & (x <= high).all())
    assert bool((graph.run(x)[:, 0] <= least + 1e-4).all())


# -- what a query may be ----------------------------------------------------------------------------------------------


def answer(network: sp.Network, *cases: Case, **options) -> sp.BoxResult:
    size = network.graph.input_shape.numel()
    return sp.verify_specification(network, Specification(size, network.graph.classes, cases), **options)


def row_case(low, high, row, constant: float, strict: bool = False) -> Case:
    return Case(np.asarray(low), np.asarray(high), np.array([row]), np.array([constant]), np.array([strict]))


def test_few_inputs_are_split_themselves():
    network = network_of(dense(3, 4, 20, 20, 2), 4)
    low, high = np.full(4, -0.5), np.full(4, 0.5)
    x = np.random.default_rng(0).uniform(low, high, (100_000, 4))
    highest = network.scores(torch.from_numpy(x))[:, 0].max().item()
    assert answer(network, row_case(low, high, [1.0, 0.0], -highest - 0.2)).status == "safe"
    assert answer(network, row_case(low, high, [1.0, 0.0], -highest + 0.01)).status == "unsafe"


def test_one_point_and_fixed_inputs():
    network = network_of(dense(3, 12, 10, 2), 12)
    point = np.linspace(-1, 1, 12)
    outputs = network.scores(torch.from_numpy(point)[None])[0].numpy()
    for radius in (0.0, 1e-9):
        low, high = point.copy(), point.copy()
        high[3] += radius
        assert answer(network, row_case(low, high, [1.0, 0.0], -outputs[0] - 1e-3)).status == "safe"
        assert answer(network, row_case(low, high, [1.0, 0.0], -outputs[0] + 1e-3)).status == "unsafe"


def test_several_boxes_and_rows():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    y = network.scores(torch.zeros(1, 12).double())[0].numpy()
    never, always = row_case(low, high, [1.0, 0, 0], -1e4), row_case(low + 1, high + 1, [1.0, 0, 0], 1e4)
    assert answer(network, never).status == "safe"
    found = answer(network, never, always)
    assert found.status == "unsafe"
    assert (found.counterexample.input >= 0.8).all()
    both = Case(
        low, high, np.array([[1.0, 0, 0], [-1.0, 0, 0]]), np.array([-y[0] - 5.0, y[0] - 5.0]), np.zeros(2, bool)
    )
    assert answer(network, both).status == "safe"  # above y + 5 and below y - 5
    band = Case(low, high, both.coefficients, np.array([-y[0] + 1e-3, y[0] + 1e-3]), np.zeros(2, bool))
    assert answer(network, band).status == "unsafe"
    anything = Case(low, high, np.empty((0, 3)), np.empty(0), np.empty(0, bool))
    assert answer(network, anything).status == "unsafe"


def test_ties_meet_a_property_that_is_not_strict():
    module = dense(3, 12, 4, 2)
    module[-1].weight.data[:], module[-1].bias.data[:] = 0.0, 1.0
    network = network_of(module, 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    assert answer(network, row_case(low, high, [1.0, -1.0], 0.0)).status == "unsafe"
    assert answer(network, row_case(low, high, [1.0, -1.0], 0.0, strict=True), timeout=5).status == "undecided"


def test_one_output_any_shape_and_softmax():
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    single = network_of(dense(3, 12, 10, 1), 12)
    assert answer(single, row_case(low, high, [1.0], -1e3)).status == "safe"
    with pytest.raises(InputError, match="one score per class"):
        sp.verify(
            sp.load(dense(3, 12, 10, 1), torch.zeros(1, 12), image_shape=(1, 3, 4)), np.zeros((1, 3, 4)), "identity", 1
        )
    shaped = network_of(nn.Sequential(dense(3, 12, 10, 6), nn.Unflatten(1, (2, 3))), 12)
    assert shaped.graph.classes == 6
    soft = network_of(nn.Sequential(dense(3, *WIDE), nn.Softmax(1)), 12)
    assert answer(soft, row_case(low, high, [1.0, 0, 0], -1.001)).status == "safe"  # shares never exceed 1
    assert answer(soft, row_case(low, high, [1.0, 0, 0], 0.0)).status == "unsafe"
    logarithm = network_of(nn.Sequential(dense(3, *WIDE), nn.LogSoftmax(1)), 12)
    with pytest.raises(InputError, match="LogSoftmax"):
        answer(logarithm, row_case(low, high, [1.0, 0, 0], 0.5))
    assert answer(logarithm, row_case(low, high, [1.0, -1.0, 0], 0.0)).status in ("safe", "unsafe")


def test_slopes_found_in_float32_are_kept_within_their_limits():
    """0.9 as float32 is less than 0.9, and so little is enough for a line that is not below its function."""

    class Leaky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bent, free = x[:, :20], x[:, 20:]
            lead = nn.functional.leaky_relu(bent, 0.9).sum(1, keepdim=True) - 0.89 * bent.sum(1, keepdim=True)
            return lead + (free * torch.tensor([1.0, -1.0]).repeat(10)).sum(1, keepdim=True)

    network = network_of(Leaky(), 40)
    reach = np.where(np.arange(40) < 20, 1.0, 1 + 5e-8)  # the worst corner has no float32 number
    worst = np.where(np.arange(40) % 2 * (np.arange(40) >= 20), reach, -reach)
    least = float(network.scores(torch.from_numpy(worst).view(1, 1, 40))[0, 0])
    assert answer(network, row_case(-reach, reach, [-1.0], least + 3e-7), timeout=30).status != "safe"
    assert answer(network, row_case(-reach, reach, [-1.0], least - 1e-3), timeout=30).status == "safe"


def test_a_branch_that_is_older_than_the_bend_before_it():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.older, self.newer, self.last = (nn.Linear(*s) for s in ((12, 8), (8, 8), (8, 8), (8, 3)))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).relu()
            older, newer = self.older(hidden), self.newer(hidden)
            return self.last(newer.relu() + older.relu())

    torch.manual_seed(0)
    network = network_of(Branches(), 12)
    low, high = np.full(12, -1.0), np.full(12, 1.0)
    x = torch.from_numpy(np.random.default_rng(0).uniform(low, high, (50_000, 12)))
    highest = network.scores(x.unsqueeze(1))[:, 0].max().item()
    for gap, expected in ((0.02, "safe"), (-0.02, "unsafe")):
        assert answer(network, row_case(low, high, [1.0, 0, 0], -highest - 10 * gap), timeout=60).status == expected


def test_what_is_no_specification_is_refused():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    good = row_case(low, high, [1.0, 0, 0], 0.0)
    for cases, problem in (
        ((), "needs a case"),
        ((row_case(high, low, [1.0, 0, 0], 0.0),), "lower end above"),
        ((row_case(low.astype(np.float32), high, [1.0, 0, 0], 0.0),), "float64"),
        ((row_case(low, high + np.inf, [1.0, 0, 0], 0.0),), "finite"),
        ((row_case(low, high, [1.0, 0, np.nan], 0.0),), "finite"),
        ((good, row_case(low[:5], high[:5], [1.0, 0, 0], 0.0)), "shapes"),
    ):
        with pytest.raises(InputError, match=problem):
            answer(network, *cases)


def test_many_claims_within_clock_and_memory():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    rows = np.random.default_rng(0).normal(size=(3000, 3))
    never = [row_case(low, high, row, -1e3) for row in rows]
    assert answer(network, *never, timeout=60, memory=0.05).status == "safe"
    assert answer(network, *never, row_case(low, high, [1.0, 0, 0], 1e3), timeout=60, memory=0.05).status == "unsafe"


def test_a_query_of_another_size_is_refused():
    network = network_of(dense(3, *WIDE), 12)
    with pytest.raises(InputError, match="11 inputs and 3 outputs"):
        sp.verify_specification(network, robustness(np.zeros(11), np.ones(11), 0, 3))
    with pytest.raises(InputError, match="use --method bounds"):
        sp.verify_specification(network, robustness(np.zeros(12), np.ones(12), 0, 3), method="exact")


def test_networks_whose_outputs_are_not_finite_are_no_verdict():
    module = dense(3, *WIDE)
    network = network_of(module, 12)
    low, high = np.full(12, -1e308), np.full(12, 1e308)
    assert answer(network, row_case(low, high, [1.0, 0, 0], -1e300), timeout=3).status == "undecided"
