"""The sweep of networks that jump, against rational arithmetic: at every jump, beside it, and in between."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rational import Stack, binarised, exact, exact_path, exact_pieces, exact_scores

from shakeproof.bounds import Enclosure
from shakeproof.budget import Budget
from shakeproof.errors import ProofError
from shakeproof.exact import Curve, Lines, RationalNetwork, jumps, swept_curves
from shakeproof.graph import Graph
from shakeproof.operators import Abs, Positive, Range, Sign
from shakeproof.question import Path

END = 1.0
ALL_CASES = jumps._cases


def swept(graph: Graph, path: Path, **options) -> Curve:
    stack = Path.stacked([path])
    lines = Lines(stack, torch.zeros(1).double(), torch.full((1,), END).double(), torch.zeros(1, dtype=torch.long))
    with torch.inference_mode():
        (curve,) = swept_curves(graph, lines, np.zeros(1, dtype=np.int64), Budget(), **options)
    return curve


def lead(scores: list[Fraction], of: int) -> Fraction:
    return scores[of] - max(score for number, score in enumerate(scores) if number != of)


def beyond(graph: Graph, path: Path, curve: Curve) -> Fraction:
    """By how much the truth is below what was proved, or farther from a chord than it may be: not positive."""
    places = exact_pieces(graph, path, Fraction(END))
    between = [
        low + (high - low) * share
        for low, high in pairwise(places)
        for share in (Fraction(1, 10**9), Fraction(1, 2), 1 - Fraction(1, 10**9))
    ]
    worst = Fraction(-1)
    z = [Fraction(at) for at in curve.z.tolist()]
    for at in sorted({*places, *between, *z}):
        scores = exact_scores(graph, exact_path(path, [at]))
        for segment, (low, high) in enumerate(pairwise(z)):
            if not low <= at <= high:
                continue
            worst = max(
                worst,
                *(
                    Fraction(bound) - lead(scores, of)
                    for of, bound in enumerate(curve.lead[segment].tolist())
                    if np.isfinite(bound)
                ),
            )
            if not curve.jumps[segment]:
                share = (at - low) / (high - low)
                chord = [
                    a + (b - a) * share
                    for a, b in zip(*(exact(curve.scores[row]) for row in (segment, segment + 1)), strict=True)
                ]
                apart = sum((a - b) ** 2 for a, b in zip(chord, scores, strict=True))
                worst = max(worst, apart - Fraction(float(curve.error[segment])) ** 2)
    return worst


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_what_is_proved_is_true(seed):
    graph, path = binarised(seed)
    curve = swept(graph, path)
    assert curve.covers(0.0, END)
    assert beyond(graph, path, curve) <= 0


# z and 1 are the inputs
STRENGTH = Path(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0.0, 1.0]).double())
NOTHING = Path(torch.tensor([[1.0, 0.0]]).double(), torch.tensor([0.0, 0.0]).double())


def spiked(at: float, copies: int = 1) -> Graph:
    """The second class scores 1 in one place, and 0 in all others; the first always a half."""
    made = Stack(2)
    made.linear(np.array([[1.0, -at]] * copies), np.zeros(copies))
    made.add(Sign())
    made.add(Abs())
    made.linear(np.array([[0.0] * copies, [-1.0 / copies] * copies]), np.array([0.5, 1.0]))
    return made.graph


def without_radius(value: Enclosure) -> Range:
    return Range(value.points.amin(0), value.points.amax(0))


def left_of_it(value: Enclosure) -> Range:
    return Range(value.points[0], value.points[0])


def never_at_it(operator, cells, number, most):
    found, made = ALL_CASES(operator, cells, number, most)
    return found, replace(made, points=torch.where(made.points == 0, 1.0, made.points))


@pytest.mark.parametrize(
    ("name", "broken"), [("_outward", without_radius), ("_outward", left_of_it), ("_cases", never_at_it)]
)
def test_a_broken_rule_would_be_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(jumps, name, broken)
    made = [*map(binarised, range(20)), *((spiked(at), STRENGTH) for at in (0.0, 0.3, 1.0))]
    assert any(beyond(graph, path, swept(graph, path)) > 0 for graph, path in made)


@pytest.mark.parametrize("at", [0.0, 0.5, 0.3, 1 / 3, 1.0])
def test_a_value_that_it_has_in_one_place_only_counts(at):
    curve = swept(spiked(at), STRENGTH)
    inside = curve.lead[:, 0] > 0.4
    assert inside.any()
    assert not inside.all()
    assert curve.lead[~inside, 0] == pytest.approx(-0.5)
    assert (np.diff(curve.z)[~inside] < 1e-12).all()
    assert beyond(spiked(at), STRENGTH, curve) <= 0


def test_a_neuron_that_sees_nothing_is_nothing():
    """Its sign is 0 for certain, all along: neither of the others is taken."""
    graph = spiked(0.5)
    first = replace(
        graph.nodes[0], operator=replace(graph.nodes[0].operator, weight=torch.tensor([[0.0, 3.7]]).double())
    )
    curve = swept(replace(graph, nodes=(first, *graph.nodes[1:])), NOTHING)
    assert len(curve.z) == 2
    assert curve.lead[0, 0] == pytest.approx(-0.5)


def test_whole_numbers_are_added_up_without_rounding():
    """A sum of signs that is 0 for a while is 0; one that is only nearly 0 for float64 is not said to be."""

    def summed(weights: list[float]) -> Graph:
        made = Stack(2)
        made.linear(np.array([[1.0, 1.0]] * len(weights)), np.zeros(len(weights)))
        made.add(Sign())
        made.linear(np.array([weights]), np.zeros(1))
        made.add(Sign())
        made.linear(np.array([[0.0], [-1.0]]), np.array([0.5, 1.0]))
        return made.graph

    for weights, cases in (([1.0, 1.0, -2.0], 1), ([0.75, 0.25, -1.0], 1), ([0.1, 0.2, -0.3], 3)):
        curve = swept(summed(weights), STRENGTH)
        assert len(curve.z) == 2
        assert bool(curve.jumps[0]) == (cases > 1)
        assert beyond(summed(weights), STRENGTH, curve) <= 0


@pytest.mark.parametrize("copies", [2, 4, 12])
def test_neurons_that_jump_together_are_all_taken_into_account(copies):
    graph = spiked(1 / 3, copies)
    curve = swept(graph, STRENGTH)
    assert beyond(graph, STRENGTH, curve) <= 0
    assert (curve.lead[:, 0] < 0).sum() == 1


def test_a_lost_case_is_noticed(monkeypatch):
    def some(operator, cells, number, most):
        found, made = ALL_CASES(operator, cells, number, most)
        keep = torch.tensor([place for place in range(len(found)) if place != 1])  # one of the second cell's
        return found.taken(keep), replace(made, points=made.points[:, keep], radius=made.radius[keep])

    monkeypatch.setattr(jumps, "_cases", some)
    with pytest.raises(ProofError, match="case"):
        swept(spiked(0.5), STRENGTH)


def test_few_cells_at_a_time_give_the_same_curve(monkeypatch):
    graph, path = next(made for made in map(binarised, range(100)) if len(swept(*made).z) > 20)
    whole = swept(graph, path)
    monkeypatch.setattr(jumps, "MOST_CELLS", 2)
    parts = swept(graph, path)
    assert np.array_equal(parts.z, whole.z)
    assert np.allclose(parts.lead, whole.lead)


@pytest.mark.parametrize("name", ["positive", "sign"])
def test_what_is_no_number_is_on_no_side(name):
    """A sum that overflows: comparisons call what is no number small."""
    made = Stack(2)
    made.linear(np.array([[1e300, 1.0], [1e300, 0.0]]), np.zeros(2))
    made.linear(np.array([[1e300, -1e300]]), np.zeros(1))
    made.add(Positive(False) if name == "positive" else Sign())
    made.linear(np.array([[-1.0], [0.0]]), np.array([0.5, 0.0]))
    curve = swept(made.graph, STRENGTH)
    assert not len(curve.z) or not (curve.lead[:, 0] > 0).any()


def test_what_is_not_finished_is_not_claimed(monkeypatch):
    """The time is up after some cells: the curve ends where the first that is missing starts."""
    graph, path = next(made for made in map(binarised, range(100)) if len(swept(*made).z) > 20)
    monkeypatch.setattr(jumps, "MOST_CELLS", 2)
    for steps in range(1, 12, 2):
        late = iter([False] * steps)
        monkeypatch.setattr(Budget, "is_late", lambda self, ahead=0.0, late=late: next(late, True))
        curve = swept(graph, path)
        assert not curve.covers(0.0, END)
        assert not len(curve.z) or curve.z[0] == 0
        if len(curve.z) > 1:
            assert beyond(graph, path, curve) <= 0


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_exact_arithmetic_knows_every_jump(seed):
    """Its least lead is below the truth everywhere; on a point, it is the truth."""
    graph, path = binarised(seed)
    network = RationalNetwork(graph)
    assert network.is_possible
    line, places = (exact(path.slopes[0]), exact(path.base)), exact_pieces(graph, path, Fraction(END))
    found = network.least_lead(line, (0.0, END), 0, [1, 2])
    assert found is not None
    middles = [(low + high) / 2 for low, high in pairwise(places)]
    near = [
        low + (high - low) * share
        for low, high in pairwise(places)
        for share in (Fraction(1, 10**30), 1 - Fraction(1, 10**30))
    ]
    leads = [lead(exact_scores(graph, exact_path(path, [z])), 0) for z in (*places, *middles, *near)]
    assert found.lead <= min(leads)
    assert found.lead > min(leads) - Fraction(1, 10**20)  # of what is approached at a jump, the limit
    for z in (0.0, 0.25, END):
        at = network.least_lead(line, (z, z), 0, [1, 2])
        assert at is not None
        assert at.lead == lead(exact_scores(graph, exact_path(path, [Fraction(z)])), 0)
