"""Input splitting on its own: what it cuts, what it notes of the parts, and what it refuses to believe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import network_of, random_module

import shakeproof as sp
from shakeproof.budget import Budget
from shakeproof.errors import NotFiniteError, ProofError
from shakeproof.search import AnyFailure, FirstFailure, Map, PathProblem, SplitCells, split_inputs
from shakeproof.search.input_splitting import InputSplitting, Leaves

FOREVER = Budget()


def problem_of(seed: int, text: str, replay=None) -> PathProblem:
    """Does the class of a random image lead along a path? `replay` says yes to everything, if nothing else is said."""
    network = network_of(random_module(seed), 1, 8, 8)
    image = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (1, 8, 8)))
    layout = network.picture()
    path = sp.parse(text).apply(image).mapped(layout.to_input)
    unit = torch.eye(network.graph.classes, dtype=torch.float64)
    label = int(network.scores(layout.to_input(image)[None]).argmax())
    claims = torch.stack([unit[label] - unit[j] for j in range(network.graph.classes) if j != label])
    low = torch.zeros(path.parameters, dtype=torch.float64)
    return PathProblem(network.graph, path, claims, low, low + 1, replay or (lambda z: np.ones(len(z), bool)))


def margins(problem: PathProblem, z: np.ndarray) -> np.ndarray:
    return (problem.graph.run(problem.path.at(torch.from_numpy(z))) @ problem.claims.t()).amin(1).numpy()


def flips(problem: PathProblem) -> bool:
    z = np.linspace(0, 1, 101)[:, None]
    return bool((margins(problem, z)[0] > 0) and (margins(problem, z) < -1e-2).any())


def flipping(text: str, replay=None) -> PathProblem:
    return next(p for p in (problem_of(seed, text, replay) for seed in range(50)) if flips(p))


def check(problem: PathProblem, found: SplitCells) -> None:
    """The parts that are left tile the domain, and what is said of each holds at its samples."""
    random = np.random.default_rng(0)
    groups = [found.boxes(parts) for parts in (found.safe, found.violated, found.open)]
    every = np.concatenate(groups)
    m = every.shape[2]
    z = random.uniform(0, 1, (400, 1, m))
    assert ((z >= every[:, 0]) & (z <= every[:, 1])).all(2).any(1).all()
    assert (every[:, 1] - every[:, 0]).prod(1).sum() == pytest.approx(1.0)
    for boxes, bounds, sign in (
        (groups[0], found.tree.bound[found.safe], 1),
        (groups[1], np.zeros(len(groups[1])), -1),
    ):
        for (low, high), bound in zip(boxes, bounds, strict=True):
            inside = np.concatenate([random.uniform(low, high, (10, m)), [low, high]])
            assert (sign * margins(problem, inside) >= bound - 1e-12).all()


def test_losses_that_the_runtime_does_not_show_end_the_search_undecided():
    problem = flipping("box-blur:size=5", lambda z: np.zeros(len(z), bool))
    outcome = split_inputs(problem, FirstFailure(1e-3), FOREVER)
    assert outcome.finished
    assert not len(outcome.replayed)
    assert len(outcome.violated)
    assert outcome.bounded < 100
    assert not outcome.tree.is_complete()
    check(problem, outcome)


def test_the_first_failure_is_pinned_down():
    problem = flipping("box-blur:size=5")
    for tolerance in (1e-2, 1e-6):
        found = split_inputs(problem, FirstFailure(tolerance), FOREVER)
        lost = found.replayed.min()
        safe = found.boxes(found.safe)[:, :, 0]
        reached = 0.0
        for low, high in safe[safe[:, 0].argsort()]:
            reached = high if low <= reached else reached
        assert 0 < lost - reached <= tolerance
        assert not found.tree.is_complete()
        check(problem, found)


def test_a_map_tells_of_every_place():
    problem = flipping("box-blur:size=5+motion-blur:size=3,angle=0")
    found = split_inputs(problem, Map(1 / 16), FOREVER)
    assert found.finished
    assert len(found.safe)
    assert len(found.violated)
    check(problem, found)


def test_a_proof_is_a_complete_tree_with_the_least_bound():
    problem = next(
        p
        for p in (problem_of(seed, "sharpen:size=3+brightness:max=0.1") for seed in range(50))
        if (margins(p, np.random.default_rng(0).uniform(0, 1, (500, 2))) > 0.02).all()
    )
    found = split_inputs(problem, AnyFailure(), FOREVER)
    assert found.finished
    assert found.tree.is_complete()
    assert found.tree.least()[0] == found.tree.bound[found.safe].min() > 0
    assert not len(found.open)
    check(problem, found)


def test_one_failure_ends_the_search_for_any():
    problem = flipping("box-blur:size=5+motion-blur:size=3,angle=0")
    found = split_inputs(problem, AnyFailure(), FOREVER)
    assert found.finished
    assert len(found.replayed)
    assert (margins(problem, found.replayed) < 0).all()


def test_the_time_being_up_leaves_the_rest_open():
    problem = flipping("box-blur:size=5")
    found = split_inputs(problem, Map(1e-9), Budget.starting(0.0, 2.0))
    assert not found.finished
    assert not found.tree.is_complete()
    assert len(found.open) >= 8
    check(problem, found)


def test_a_proof_that_an_evaluation_contradicts_is_an_error(monkeypatch):
    """Were every box proved, the points that lose would tell."""
    problem = flipping("box-blur:size=5", lambda z: np.zeros(len(z), bool))
    bounded = InputSplitting.bounded
    monkeypatch.setattr(
        InputSplitting,
        "bounded",
        lambda self, batch: replace(bounded(self, batch), bound=torch.ones(len(batch), dtype=torch.float64)),
    )
    with pytest.raises(ProofError, match="contradicts a proof"):
        split_inputs(problem, FirstFailure(1e-3), FOREVER)


@pytest.mark.parametrize("which", ["low", "high"])
def test_a_bound_of_another_box_is_an_error(monkeypatch, which):
    """A bound is about the box that the cuts make of a part, to the last bit."""
    problem = flipping("box-blur:size=5")
    close = InputSplitting.close

    def moved(self: InputSplitting, leaves: Leaves) -> None:
        end = getattr(leaves, which)
        close(self, replace(leaves, **{which: torch.nextafter(end, end.new_full((), 0.5))}))

    monkeypatch.setattr(InputSplitting, "close", moved)
    with pytest.raises(ProofError, match="another box"):
        split_inputs(problem, FirstFailure(1e-3), FOREVER)


def test_bounds_that_are_no_numbers_prove_nothing(monkeypatch):
    problem = flipping("box-blur:size=5")
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        bounded = InputSplitting.bounded
        with monkeypatch.context() as patch:
            patch.setattr(
                InputSplitting,
                "bounded",
                lambda self, batch, bad=bad, bounded=bounded: replace(
                    bounded(self, batch),
                    bound=torch.full((len(batch),), bad, dtype=torch.float64),
                    settled=torch.full((len(batch),), bad, dtype=torch.float64),
                ),
            )
            found = split_inputs(problem, Map(1 / 16), FOREVER)
        assert not len(found.safe) or bad == float("inf")  # slabs are bounded by their planes alone
        assert not found.tree.is_complete()
        check(problem, found)


def test_scores_that_are_not_finite_end_the_search():
    problem = problem_of(0, "box-blur:size=5")
    path = replace(problem.path, slopes=torch.full_like(problem.path.slopes, torch.inf))
    with pytest.raises(NotFiniteError):
        split_inputs(replace(problem, path=path), AnyFailure(), FOREVER)
