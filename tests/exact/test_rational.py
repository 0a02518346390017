"""Exact arithmetic: least leads of small networks, against evaluations in fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rational import Stack, badly_scaled, exact, exact_path, exact_scores

from shakeproof.exact import RationalNetwork
from shakeproof.graph import Graph
from shakeproof.operators import AveragePool, Relu, SlidingWindow
from shakeproof.question import Path


def line_of(graph: Graph, seed: int) -> Path:
    random = np.random.default_rng(seed)
    return Path(*(torch.from_numpy(random.normal(size=(*lead, *graph.input_shape))) for lead in ((1,), ())))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_least_lead_is_the_least_of_all_evaluations(seed):
    graph = badly_scaled(seed)
    path = line_of(graph, seed)
    network = RationalNetwork(graph)
    assert network.is_possible
    label, rivals = 0, list(range(1, graph.classes))
    found = network.least_lead((exact(path.slopes[0]), exact(path.base)), (0.25, 0.75), label, rivals)
    places = [Fraction(1, 4) + Fraction(k, 80) for k in range(41)]
    leads = []
    for z in [*places, found.place]:
        scores = exact_scores(graph, exact_path(path, [z]))
        leads.append(min(scores[label] - scores[rival] for rival in rivals))
    assert found.lead == leads[-1]  # it is attained
    assert found.lead <= min(leads)  # and nothing is below it


def test_a_spike_between_neighbouring_numbers():
    """2^-60 wide, beside one third: no float64 strength is on it, and yet it is there."""
    third, steep = float(Fraction(1, 3)), 2.0**60
    made = Stack(2)
    made.linear(np.array([[steep, -steep * third]] * 3), np.array([-1.0, -2.0, -3.0]))
    made.add(Relu())
    made.linear(np.array([[0.0, 0.0, 0.0], [3.0, -6.0, 3.0]]), np.array([1.0, 0.0]))
    network = RationalNetwork(made.graph)
    line = [Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]  # z, and 1
    found = network.least_lead(line, (0.0, 1.0), 0, [1])
    assert found.lead == -2
    assert Fraction(float(found.place)) != found.place


def test_what_was_rounded_is_not_called_exact():
    graph = badly_scaled(0)
    first = replace(graph.nodes[0], operator=replace(graph.nodes[0].operator, roundings=1))
    assert not RationalNetwork(replace(graph, nodes=(first, *graph.nodes[1:]))).is_possible


def test_nothing_is_said_when_the_time_is_up():
    graph = badly_scaled(1)
    path = line_of(graph, 1)
    line = exact(path.slopes[0]), exact(path.base)
    assert RationalNetwork(graph).least_lead(line, (0.0, 1.0), 0, [1], lambda terms: False) is None


@pytest.mark.parametrize("stretch", [(0.5, 0.5), (0.0, 0.0)])
def test_a_point(stretch):
    graph = badly_scaled(2)
    path = line_of(graph, 2)
    found = RationalNetwork(graph).least_lead((exact(path.slopes[0]), exact(path.base)), stretch, 0, [1])
    scores = exact_scores(graph, exact_path(path, [Fraction(stretch[0])]))
    assert found.lead == scores[0] - scores[1]


def test_means_over_windows_of_many_sizes_are_exact():
    """Whole numbers that all divisors divide are too large for float64 here."""
    window = SlidingWindow((23, 22), pads=(11, 11, 11, 10))
    ones = torch.ones(1, 1, 23, 22, 1, dtype=torch.float64)
    divisor = sum(view for view in window.shifted(window.padded(ones[0], 0.0)))[0]
    made = Stack(1, 23, 22, 1)
    made.add(AveragePool(window, divisor))
    (rows,) = RationalNetwork(made.graph)._rows.values()
    for row, size in zip(rows.terms, divisor.flatten().tolist(), strict=True):
        assert {Fraction(weight, rows.scale) for _, weight in row} == {Fraction(1, int(size))}
