"""Stretches of lines that bounds settle: the profile stays what it is without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import network_of, random_module

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import ProofError
from shakeproof.exact import CertifiedCell, Curve, bridges, join
from shakeproof.exact.bridges import SkipPlanner
from shakeproof.proof.evidence import by_class
from shakeproof.question import fitting


@pytest.fixture
def eager(monkeypatch):
    """Bets cost nothing, so that small networks make them too."""
    monkeypatch.setattr(bridges, "ENTRIES_A_NODE", 0.0)
    monkeypatch.setattr(bridges, "CELL_COST", 1e-6)


def compared(network: sp.Network, queries: list[sp.Query], **settings) -> int:
    """Assert that profiles with and without bridges agree; how many pieces were saved."""
    whole = sp.analyse(network, queries, sp.Settings(whole_curve=True))
    bridged = sp.analyse(network, queries, sp.Settings(**settings))
    for one, other in zip(whole, bridged, strict=True):
        assert one.status is other.status
        if one.status is sp.Status.MISCLASSIFIED:  # without its whole curve, it ends at strength 0
            assert other.pieces == 0
            continue
        assert [i.winner for i in by_class(one.profile)] == [i.winner for i in by_class(other.profile)]
        assert np.allclose(
            [i.start for i in by_class(one.profile)], [i.start for i in by_class(other.profile)], atol=1e-9
        )
        assert other.min_margin == pytest.approx(one.min_margin, abs=1e-9)
        assert (one.critical_strength is None) == (other.critical_strength is None)
        if one.critical_strength is not None:
            # how closely it can be proved depends on how long the last piece before it is
            assert other.critical_strength == pytest.approx(one.critical_strength, abs=2e-8)
            # which loss is shown depends on the ends of pieces
            assert other.counterexample.replayed is one.counterexample.replayed
            assert other.counterexample.strengths[0] >= other.critical_strength[0]
        assert other.curve.covers(0.0, other.query.strengths[0])
    return sum(one.pieces - other.pieces for one, other in zip(whole, bridged, strict=True) if other.pieces)


def test_the_profile_is_the_same_with_bridges(eager):
    saved = 0
    for seed in range(12):
        network = network_of(random_module(seed), 1, 8, 8)
        image = fitting(network, np.random.default_rng(seed).uniform(0, 1, (1, 8, 8)))
        texts = ("box-blur:size=5", "sharpen:size=5", "motion-blur:size=3,angle=90", "sharpen:size=3,clip=0..1")
        queries = [
            query for text in texts for label in (None, 1) for query in sp.perturbed(network, [image], text, label)
        ]
        saved += compared(network, queries)
    assert saved > 100


def test_the_demo_network_with_bridges(demo_network):
    images = [fitting(demo_network, path) for path, _ in demo.images()[:3]]
    texts = ("box-blur:size=9", "sharpen:size=3")
    queries = [query for text in texts for query in sp.perturbed(demo_network, images, text)]
    assert compared(demo_network, queries) >= 0


def test_early_answers_with_bridges(eager):
    for seed in range(8):
        network = network_of(random_module(seed), 1, 8, 8)
        image = np.random.default_rng(seed).uniform(0, 1, (1, 8, 8))
        whole = sp.profile(network, image, "box-blur:size=5", whole_curve=True)
        early = sp.verify(network, image, "box-blur:size=5", 1.0)
        assert early.status is whole.status


def test_a_bridge_that_evaluation_contradicts_is_an_error(eager, monkeypatch):
    """Were every cell called settled, its ends would tell."""
    monkeypatch.setattr(bridges, "leads_below", lambda enclosed, leader: torch.full((len(leader), 1), torch.inf))
    noticed = 0
    for seed in range(12):
        network = network_of(random_module(seed), 1, 8, 8)
        try:
            sp.profile(network, np.random.default_rng(seed).uniform(0, 1, (1, 8, 8)), "sharpen:size=5")
        except ProofError as error:
            noticed += "contradicts an evaluation" in str(error)
    assert noticed


def test_no_bet_is_made_that_would_be_late(eager, monkeypatch):
    """What a cell takes is predicted from a forward pass, and it has to be done before the deadline."""
    cells = []
    enclose = bridges.enclose
    monkeypatch.setattr(bridges, "enclose", lambda *given: cells.append(given) or enclose(*given))
    network = network_of(random_module(3), 1, 8, 8)
    query = sp.perturbed(
        network, [fitting(network, np.random.default_rng(3).uniform(0, 1, (1, 8, 8)))], "sharpen:size=5"
    )
    sp.analyse(network, query, sp.Settings(timeout=3600))
    assert cells
    cells.clear()
    monkeypatch.setattr(bridges, "WORST_COST", 1e12)
    sp.analyse(network, query, sp.Settings(timeout=3600))
    assert not cells


def test_bets_stay_within_the_stake():
    """A line that wins nothing loses no more than its stake; one that wins everything tries every cell."""
    unlucky = SkipPlanner(0, 0.0, 1.0, breaks=5000, round_cost=10.0)
    spent = 0.0
    while chosen := unlucky.bet():
        spent += 10.0 + bridges.CELL_COST * len(chosen)
        for part in chosen:
            unlucky.settle(part, -1)
    assert 0 < spent <= bridges.STAKE * bridges.PIECE_COST * 5000
    assert not list(unlucky.settled())
    lucky = SkipPlanner(0, 0.25, 0.75, breaks=5000, round_cost=10.0)
    while chosen := lucky.bet():
        for part in chosen:
            lucky.settle(part, 3)
    assert [(cell.low, cell.high, leader) for cell, leader in lucky.settled()] == [(0.25, 0.75, 3)]
    assert not SkipPlanner(0, 0.0, 1.0, breaks=40, round_cost=10.0).bet()


def rows(*values: float) -> np.ndarray:
    return np.array([[value, 0.0] for value in values])


def test_joining_stretches():
    left, right = Curve(np.array([0.0, 0.1, 0.2]), rows(1, 2, 3)), Curve(np.array([0.5, 1.0]), rows(3, -1))
    bridge = CertifiedCell(0.2, 0.5, 0, rows(3, 3))
    curve = join([(0.0, 0.2, left), (0.2, 0.5, bridge), (0.5, 1.0, right)], 2)
    assert curve.covers(0.0, 1.0)
    assert curve.pieces == 3
    assert curve.bridged.tolist() == [False, False, True, False]
    assert [winner for _, _, winner in curve.classes()] == [0, 1]
    with pytest.raises(ProofError, match="stretch of a line is missing"):
        join([(0.0, 0.2, left), (0.5, 1.0, right)], 2)


def test_what_follows_an_unfinished_stretch_is_left_out():
    partial = Curve(np.array([0.0, 0.1]), rows(1, 2))
    curve = join([(0.0, 0.2, partial), (0.2, 1.0, CertifiedCell(0.2, 1.0, 0, rows(1, 1)))], 2)
    assert not curve.covers(0.0, 1.0)
    assert curve.z.tolist() == [0.0, 0.1]
    nothing = join(
        [(0.0, 0.2, Curve(np.empty(0), np.empty((0, 2)))), (0.2, 1.0, CertifiedCell(0.2, 1.0, 0, rows(1, 1)))], 2
    )
    assert not nothing.covers(0.0, 1.0)
