"""Rounding is in every bound: float64 against rational arithmetic, on networks that make the most of the difference."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rational import (
    Exact,
    Stack,
    amplifying,
    badly_scaled,
    bending_often,
    exact,
    exact_path,
    exact_scores,
    exact_values,
    long_sum,
)
from torch import Tensor

from shakeproof import rounding
from shakeproof.bounds import Boxes, Enclosed, Parts, ascend, enclose, enclose_box, planes_below
from shakeproof.budget import Budget
from shakeproof.errors import ProofError
from shakeproof.exact import Lines, assemble, sweep
from shakeproof.exact.rows import Plan, insert
from shakeproof.graph import Graph, Node
from shakeproof.model import without_max_pools
from shakeproof.operators import Breaks, Clip, LeakyRelu, Linear
from shakeproof.question import Path
from shakeproof.rounding import RunningError

seeds = st.integers(0, 10**6)


def inputs_of(seed: int, count: int) -> Tensor:
    random = np.random.default_rng(seed + 1)
    size = 10.0 ** random.uniform(-6, 3, (count, 4))
    return torch.from_numpy(random.normal(size=(count, 4)) * size)


# -- points -----------------------------------------------------------------------------------------------------------


def at_points(graph: Graph, x: Tensor) -> Enclosed:
    """The network at inputs that are exactly known."""
    zero = torch.zeros(len(x), 1, dtype=torch.float64)
    return enclose(graph, torch.stack([x, x]), Boxes(zero, zero), torch.zeros_like(x))


@pytest.fixture(params=[False, True], ids=["by entries", "by norms"])
def by_norms(request, monkeypatch):
    """Whether norms are carried along, which is otherwise done for deep networks only."""
    if request.param:
        monkeypatch.setattr("shakeproof.graph.FEW_LAYERS", -1)
    return request.param


def beyond(graph: Graph, x: Tensor) -> float:
    """How far scores are from the truth, as a share of what they claim to be off by, at most."""
    found = at_points(graph, x).scores
    worst = 0.0
    for row, scores, errors in zip(x, found.points[0].tolist(), found.radius.tolist(), strict=True):
        for true, score, error in zip(exact_scores(graph, exact(row)), scores, errors, strict=True):
            off = abs(true - Fraction(score))
            assert np.isfinite(error)
            worst = max(worst, float(off / Fraction(error)) if error else float(off > 0) * np.inf)
    return worst


@given(seed=seeds)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_errors_of_evaluations_contain_the_truth(seed, by_norms):
    assert beyond(badly_scaled(seed), inputs_of(seed, 3)) <= 1


def test_errors_that_are_too_small_would_be_noticed(by_norms, monkeypatch):
    """A negative control: with a thousandth of the unit the truth is outside."""
    graphs = [replace(badly_scaled(seed), unit=rounding.UNIT / 1000) for seed in range(30)]
    monkeypatch.setattr("shakeproof.bounds.forward.UNIT", 0.0)
    monkeypatch.setattr(rounding, "UNIT", 0.0)
    assert max(beyond(graph, inputs_of(seed, 3)) for seed, graph in enumerate(graphs)) > 1


def test_amplified_rounding_is_seen(by_norms):
    """In float64 the first score leads by 1, in truth by 1 - 32 sum(x); the error says so."""
    graph, x = amplifying(), torch.full((1, 4), 0.25, dtype=torch.float64)
    assert graph.run(x).tolist() == [[1.0, 0.0]]
    true = exact_scores(graph, exact(x))
    assert true == [1 - 32, 0]
    assert at_points(graph, x).scores.radius[0, 0] >= 32


@pytest.mark.parametrize("seed", range(3))
def test_long_sums_that_cancel(seed):
    """What a sum is off by has to do with its terms and their number, not with the little that it comes to."""
    graph = long_sum(seed)
    x = torch.full((1, *graph.input_shape), 1 / 3, dtype=torch.float64)
    true = exact_scores(graph, exact(x))[0]
    enclosed = at_points(graph, x)
    off = abs(Fraction(float(enclosed.scores.points[0, 0, 0])) - true)
    terms = float(graph.nodes[0].operator.weight.abs().sum()) / 3
    assert off > 10 * Fraction(2.0**-50) * Fraction(terms)  # more than a short sum explains: the test is one
    assert off <= Fraction(float(enclosed.scores.radius[0, 0]))
    low, high = enclosed.scores.range
    assert Fraction(float(low[0, 0])) <= true <= Fraction(float(high[0, 0]))
    units = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    below = planes_below(graph, enclosed, units, torch.tensor([0, 0])).offset.tolist()
    assert Fraction(below[0]) <= true <= -Fraction(below[1])
    crown = enclose_box(graph, x[0], x[0], Budget()).proving
    start = crown.start()
    lines = crown.on(start)
    below = lines.lowest(lines.relaxations(start.alpha, start.beta), units).value.tolist()
    assert Fraction(below[0]) <= true <= -Fraction(below[1])


# -- chords of the sweep ----------------------------------------------------------------------------------------------


def apart(graph: Graph, path: Path) -> float:
    """How far the truth is from the chords of a sweep, at most, as a share of what they claim to be off by."""
    ends = (torch.tensor([end], dtype=torch.float64) for end in (0.0, 1.0))
    lines = Lines(Path.stacked([path]), *ends, path=torch.tensor([0]))
    (curve,) = assemble(sweep(graph, lines, Budget(), running_error=RunningError(graph)), 1, graph.classes)
    z, rows = [Fraction(float(at)) for at in curve.z], [exact(row) for row in torch.from_numpy(curve.scores)]
    worst = 0.0
    pieces = range(len(curve.error)) if len(curve.error) < 40 else range(0, len(curve.error), len(curve.error) // 20)
    for k in pieces:
        for share in (Fraction(1, 2**20), Fraction(1, 2), Fraction(7, 8)):
            true = exact_scores(graph, exact_path(path, [z[k] + share * (z[k + 1] - z[k])]))
            chord = [a + share * (b - a) for a, b in zip(rows[k], rows[k + 1], strict=True)]
            # a row may be beside the strength that it is said to be at, by a few units in the last place
            steep = max(abs(b - a) for a, b in zip(rows[k], rows[k + 1], strict=True)) / (z[k + 1] - z[k])
            off = sum(((a - b) ** 2 for a, b in zip(true, chord, strict=True)), Fraction(0))
            beside = min(2 * steep * Fraction(2) ** -50, max(map(abs, rows[k])))
            allowed = Fraction(float(curve.error[k])) + beside
            worst = max(worst, float(off / allowed**2) if allowed else float(off > 0) * np.inf)
    return worst


@given(seed=seeds)
@settings(max_examples=40)
def test_chords_contain_the_truth(seed):
    graph = badly_scaled(seed)
    assert apart(graph, path_of(graph, seed, 1)) <= 1


@given(seed=seeds)
@settings(max_examples=20)
def test_chords_of_deferred_rows_contain_the_truth(seed):
    graph = bending_often(seed)
    path = path_of(graph, seed, 1)
    with patch("shakeproof.exact.rows.LEAST_SPARED", 0.0):
        assert apart(graph, path) <= 1


@given(seed=seeds, layers=st.integers(0, 9), factor=st.sampled_from([2.0, 1024.0, 1e5]))
@settings(max_examples=20)
def test_chords_of_networks_that_amplify_rounding_contain_the_truth(seed, layers, factor):
    graph = amplifying(factor, layers)
    assert apart(graph, path_of(graph, seed, 1)) <= 1


def test_chords_allow_for_constants_that_scores_are_rounded_to():
    """Nothing behind a bias reads how large it made the scores: what they are rounded by is its own."""
    weight = torch.linspace(0.1, 0.7, 6, dtype=torch.float64).view(2, 3)
    bias = torch.tensor([1e9, -3e9], dtype=torch.float64)
    node = Node(Linear(weight, bias), (0,), torch.Size([2]))
    graph = Graph(torch.Size([3]), (node,))
    slopes, base = torch.linspace(0.3, 0.9, 6, dtype=torch.float64).view(2, 3)
    assert 0 < apart(graph, Path(slopes.unsqueeze(0), base)) <= 1
    with patch("shakeproof.rounding._of_constants", lambda graph: torch.tensor(0.0, dtype=torch.float64)):
        assert apart(graph, Path(slopes.unsqueeze(0), base)) > 1


def test_chords_without_rounding_would_be_noticed(monkeypatch):
    """A negative control: with a thousandth of the unit, and of what bends and new rows are off by."""
    monkeypatch.setattr(rounding, "UNIT", rounding.UNIT / 1000)
    graphs = [replace(badly_scaled(seed), unit=rounding.UNIT) for seed in range(20)]
    paths = [path_of(graph, seed, 1) for seed, graph in enumerate(graphs)]
    assert max(map(apart, graphs, (replace(path, error=path.error / 1000) for path in paths))) > 1


def test_bends_that_have_no_row_of_their_own_are_allowed_for():
    """Between neighbouring numbers there is no room for a row: what bends there is an error of the pieces beside it."""
    one, two = float(np.nextafter(0.5, 0)), 0.5
    z = torch.tensor([0.0, one, two, 1.0], dtype=torch.float64)
    plan = Plan.of(torch.zeros(4, dtype=torch.int64), z)
    fraction = torch.tensor([0.25, 0.25, 0.25 + 2.0**-54], dtype=torch.float64)
    made = insert(plan, Breaks(torch.tensor([1, 2, 2]), fraction, torch.full_like(fraction, 8)))
    assert made.z.tolist() == [0.0, one, two, 0.625, 1.0]
    assert made.source.tolist() == [0, 1, 2, 2, 3]
    beside = 8 * 0.25, 8 * 2.0**-54
    assert made.gap.tolist() == [beside[0], beside[0], beside[1], beside[1], 0.0]


def test_bends_at_the_ends_of_segments_are_missed_by_next_to_nothing():
    """Two lines meet, with a row each: a bend falls on the end of one, another on the start of the other."""
    z = torch.tensor([0.25, 0.5, 0.5, 1.0], dtype=torch.float64)
    plan = Plan.of(torch.tensor([0, 0, 1, 1]), z)
    nearly, hardly = 1 - 2.0**-53, 2.0**-80
    fraction = torch.tensor([hardly, nearly, 0.5, 0.5], dtype=torch.float64)
    made = insert(plan, Breaks(torch.tensor([2, 0, 2, 0]), fraction, torch.full_like(fraction, 8)))
    assert made.z.tolist() == [0.25, 0.375, 0.5, 0.5, 0.75, 1.0]
    assert made.line.tolist() == [0, 0, 0, 1, 1, 1]
    assert made.source.tolist() == [0, 0, 1, 2, 2, 3]
    assert made.fraction.tolist() == [0.0, 0.5, 0.0, 0.0, 0.5, 0.0]
    before, after = 8 * (1 - nearly), 8 * hardly
    assert made.gap.tolist() == [0.0, before, before + after, after, 0.0, 0.0]


def test_lines_of_no_length_keep_their_rows():
    z = torch.tensor([0.3, 0.3, 0.0, 1.0, 0.3, 0.3], dtype=torch.float64)
    plan = Plan.of(torch.tensor([0, 0, 1, 1, 2, 2]), z)
    fraction = torch.tensor([0.25, 0.25], dtype=torch.float64)
    made = insert(plan, Breaks(torch.tensor([2, 2]), fraction, torch.full_like(fraction, 8)))
    assert made.z.tolist() == [0.3, 0.3, 0.0, 0.25, 1.0, 0.3, 0.3]
    assert made.line.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert made.gap.tolist() == [0.0] * 7


def test_a_bend_that_is_nowhere_leaves_nothing_known():
    """As where values are infinite: no row is put in, and what is said of the pieces beside it is no number."""
    plan = Plan.of(torch.zeros(3, dtype=torch.int64), torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    made = insert(plan, Breaks(torch.tensor([1]), torch.tensor([torch.nan]).double(), torch.ones(1).double()))
    assert made.z.tolist() == plan.z.tolist()
    assert made.gap.isnan().tolist() == [True, True, False]


# -- cells ------------------------------------------------------------------------------------------------------------


def path_of(graph: Graph, seed: int, parameters: int) -> Path:
    random = np.random.default_rng(seed + 2)
    rows = random.normal(size=(parameters + 1, *graph.input_shape)) * 10.0 ** random.uniform(-3, 2)
    return Path(torch.from_numpy(rows[1:]), torch.from_numpy(rows[0]))


def errors_on(path: Path, cells: Boxes) -> Tensor:
    return path.error.expand(len(cells), *path.error.shape)


def cells_of(seed: int, parameters: int) -> Boxes:
    """A point, the next best thing to one, small cells, and a large one."""
    random = np.random.default_rng(seed + 3)
    low = torch.from_numpy(random.uniform(0, 1, (5, parameters)))
    size = torch.tensor([0.0, 0.0, 1e-12, 1e-4, 0.5], dtype=torch.float64).unsqueeze(1)
    high = low + size
    high[1] = torch.nextafter(low[1], torch.ones_like(low[1]))
    return Boxes(low, high)


def places(low: Tensor, high: Tensor, random: np.random.Generator) -> list[Exact]:
    """Exact points of one cell: its ends, and some between them."""
    ends = [exact(low), exact(high)]
    shares = [[Fraction(float(s)) for s in row] for row in random.uniform(0, 1, (3, len(ends[0])))]
    corner = [[Fraction(int(s)) for s in row] for row in random.integers(0, 2, (1, len(ends[0])))]
    between = [[a + s * (b - a) for a, b, s in zip(*ends, row, strict=True)] for row in shares + corner]
    return [*ends, *between]


def strays(graph: Graph, seed: int, parameters: int) -> tuple[float, float]:
    """By how much the truth lies outside the ranges of scores, and below planes, at most, as a share of the scores."""
    path, domain = path_of(graph, seed, parameters), cells_of(seed, parameters)
    random = np.random.default_rng(seed + 4)
    enclosed = enclose(graph, path.at(domain.points), domain, errors_on(path, domain))
    low, high = enclosed.scores.range
    claims = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [0.3, 0.4, -1.7]]).double()[
        :, : graph.classes
    ]
    cell = torch.arange(len(domain)).repeat_interleave(len(claims))
    rows = claims.repeat(len(domain), 1)
    least = planes_below(graph, enclosed, rows, cell).lowest(domain.low[cell], domain.high[cell])
    forward = domain.extremes(enclosed.scores.points @ claims.t(), enclosed.scores.radius @ claims.abs().t())
    outside, below = -np.inf, -np.inf
    for number in range(len(domain)):
        for z in places(domain.low[number], domain.high[number], random):
            scores = exact_scores(graph, exact_path(path, z))
            size = max(map(abs, scores)) + Fraction(1, 10**30)
            for j, score in enumerate(scores):
                for over in (Fraction(float(low[number, j])) - score, score - Fraction(float(high[number, j]))):
                    outside = max(outside, float(over / size))
            for j, claim in enumerate(claims.tolist()):
                value = sum((Fraction(c) * s for c, s in zip(claim, scores, strict=True)), start=Fraction(0))
                for bound in (least[number * len(claims) + j], forward.low[number, j]):
                    if bool(bound.isfinite()):
                        below = max(below, float((Fraction(float(bound)) - value) / size))
                if bool(forward.high[number, j].isfinite()):
                    below = max(below, float((value - Fraction(float(forward.high[number, j]))) / size))
    return outside, below


@given(seed=seeds, parameters=st.integers(1, 2))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_and_planes_contain_the_truth(seed, parameters, by_norms):
    outside, below = strays(badly_scaled(seed), seed, parameters)
    assert outside <= 0
    assert below <= 0


@given(seed=seeds, parameters=st.integers(1, 2), layers=st.integers(0, 9), factor=st.sampled_from([2.0, 1024.0, 1e5]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cells_of_networks_that_amplify_rounding_contain_the_truth(seed, parameters, layers, factor, by_norms):
    outside, below = strays(amplifying(factor, layers), seed, parameters)
    assert outside <= 0
    assert below <= 0


def test_cells_without_rounding_would_be_noticed(monkeypatch):
    """A negative control: where it is not allowed for, the truth lies outside of cells and below planes."""
    unit = rounding.UNIT / 1000
    monkeypatch.setattr("shakeproof.bounds.forward.UNIT", 0.0)
    monkeypatch.setattr(rounding, "UNIT", unit)
    monkeypatch.setattr("shakeproof.question.inputs.UNIT", unit)
    found = np.array([strays(replace(badly_scaled(seed), unit=unit), seed, 1) for seed in range(30)])
    assert (found.max(0) > 0).all()
    monkeypatch.setattr(rounding, "UNIT", 0.0)
    assert (np.array(strays(replace(amplifying(), unit=0.0), 0, 1)) > 0).all()


# -- boxes of many inputs ---------------------------------------------------------------------------------------------


def too_high(graph: Graph, seed: int, optimise: bool) -> float:
    """By how much bounds on parts of a box exceed the truth there, at most; neurons are where they are said to be."""
    random = np.random.default_rng(seed + 5)
    centre = inputs_of(seed, 1)[0]
    radius = torch.from_numpy(np.abs(random.normal(size=4)) * 10.0 ** random.uniform(-17, 0))
    low, high = centre - radius, centre + radius
    bounds = enclose_box(graph, low, high, Budget(), optimise)
    crown, whole = bounds.proving, bounds.proving.start()
    count, neurons = 12, whole.low.shape[1]
    at = crown.split_at(whole).expand(count, -1)
    side = torch.from_numpy(random.uniform(0, 1, (count, neurons)))
    side[: count // 2] = 0.5  # some rows are the whole box
    parts = Parts(
        torch.where(side < 0.2, at, whole.low),
        torch.where(side > 0.8, at, whole.high),
        torch.from_numpy(random.uniform(-1, 2, (count, neurons))),
        torch.from_numpy(random.normal(size=(count, neurons)) * (random.uniform(0, 1, (count, neurons)) < 0.5)),
    )
    coefficients = torch.from_numpy(random.normal(size=(count, graph.classes)))
    if optimise:
        start = bounds.searching.start()
        rows = Parts(*(x.repeat(count, 1) for x in (start.low, start.high, start.alpha, start.beta)))
        better = ascend(bounds.searching, coefficients.float(), rows, 10, torch.full((count,), torch.inf), Budget())
        parts = Parts(parts.low, parts.high, better.alpha.double(), parts.beta)
    lines = crown.on(parts)
    least = lines.lowest(lines.relaxations(parts.alpha, parts.beta), coefficients).value.tolist()
    worst = -np.inf
    for x in places(low, high, random):
        values = exact_values(graph, x)
        entries = [
            values[graph.nodes[bend.node].inputs[0]][place] for bend in crown.bends for place in bend.place.tolist()
        ]
        for entry, bottom, top in zip(entries, exact(whole.low), exact(whole.high), strict=True):
            assert bottom <= entry <= top
        for row in range(count):
            ends = zip(entries, exact(parts.low[row]), exact(parts.high[row]), strict=True)
            if np.isfinite(least[row]) and all(bottom <= entry <= top for entry, bottom, top in ends):
                pairs = zip(exact(coefficients[row]), values[-1], strict=True)
                true = sum((c * v for c, v in pairs), start=Fraction(0))
                size = max(map(abs, values[-1])) + Fraction(1, 10**30)
                worst = max(worst, float((Fraction(least[row]) - true) / size))
    return worst


@given(seed=seeds, optimise=st.booleans())
@settings(max_examples=25)
def test_bounds_over_boxes_contain_the_truth(seed, optimise):
    assert too_high(without_max_pools(badly_scaled(seed, pooled=False)), seed, optimise) <= 0


@given(seed=seeds, layers=st.integers(0, 9), factor=st.sampled_from([2.0, 1024.0, 1e5]))
@settings(max_examples=20)
def test_bounds_over_boxes_of_networks_that_amplify_rounding_contain_the_truth(seed, layers, factor):
    assert too_high(amplifying(factor, layers), seed, optimise=False) <= 0


def test_bounds_over_boxes_without_rounding_would_be_noticed(monkeypatch):
    """A negative control, as above."""
    monkeypatch.setattr(rounding, "UNIT", 0.0)

    def noticed(seed: int) -> bool:
        try:
            return too_high(replace(badly_scaled(seed, pooled=False), unit=0.0), seed, optimise=False) > 0
        except (AssertionError, ProofError):  # a neuron that is not where it is said to be
            return True

    assert any(map(noticed, range(30)))


@given(seed=seeds)
@settings(max_examples=25)
def test_ranges_of_functions_that_are_rounded_themselves_contain_the_truth(seed):
    """Where a function's input is exactly a number, what it makes of it is still rounded."""
    random = np.random.default_rng(seed)
    made = Stack(4)
    made.add(LeakyRelu(torch.tensor(random.uniform(0.1, 0.9)).double()))
    made.add(Clip(-0.1, 0.1))
    made.linear(random.normal(size=(2, 4)), np.zeros(2))
    assert too_high(made.graph, seed, optimise=False) <= 0
    low = torch.from_numpy(-random.uniform(0.5, 2, 4))
    start = enclose_box(made.graph, low, -low, Budget(), optimise=False).proving.start()
    entries = exact_values(made.graph, exact(low))[1]
    for entry, bottom in zip(entries, exact(start.low)[-4:], strict=True):
        assert bottom <= entry
