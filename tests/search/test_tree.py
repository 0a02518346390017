"""The tree of cuts: complete only if nothing is left out, whatever is done to it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shakeproof.search import Tree

AXES = 3
LOW, HIGH = torch.tensor([[-1.0, 0.0, 2.0]]).double(), torch.tensor([[1.0, 0.5, 3.0]]).double()
FLAT = torch.tensor([[1.0, 0.5, 2.0]]).double()  # one axis without length

# A cut of some leaf, along some axis, at some share of its side; several at once make one round.
cuts = st.tuples(st.integers(0, 10**6), st.integers(0, AXES - 1), st.floats(0, 1))
rounds = st.lists(st.lists(cuts, min_size=1, max_size=4), max_size=12)


def leaves_of(tree: Tree) -> np.ndarray:
    return np.setdiff1d(np.arange(len(tree)), tree.parent)


def grown(roots: int, rounds: list[list[tuple[int, int, float]]], top: torch.Tensor = HIGH) -> Tree:
    tree = Tree.planted(roots)
    for some in rounds:
        leaves = leaves_of(tree)
        chosen = {int(leaves[number % len(leaves)]): (axis, share) for number, axis, share in some}
        parts = np.array(list(chosen))
        axis = np.array([axis for axis, _ in chosen.values()])
        low, high = (end[np.arange(len(parts)), axis].numpy() for end in tree.ranges(parts, LOW, top))
        share = np.array([share for _, share in chosen.values()])
        tree, made = tree.split(parts, axis, low + share * (high - low))
        assert made.tolist() == [*range(len(tree) - 2 * len(parts), len(tree))]
    return tree


def proved(tree: Tree, random: np.random.Generator) -> Tree:
    leaves = leaves_of(tree)
    return tree.proved(leaves, random.uniform(0.1, 2, len(leaves)))


def without(tree: Tree, part: int) -> Tree:
    """The tree without a part and all that was made of it, the others numbered anew."""
    gone = np.zeros(len(tree), bool)
    gone[part] = True
    for number in range(len(tree)):
        gone[number] |= tree.parent[number] >= 0 and gone[tree.parent[number]]
    number = np.cumsum(~gone) - 1
    kept = {field.name: getattr(tree, field.name)[~gone] for field in fields(tree)}
    kept["parent"] = np.where(kept["parent"] >= 0, number[kept["parent"]], -1)
    return Tree(**kept)


def changed(tree: Tree, name: str, part: int, value: float) -> Tree:
    column = getattr(tree, name).copy()
    column[part] = value
    return replace(tree, **{name: column})


@given(roots=st.integers(1, 3), rounds=rounds, seed=st.integers(0, 10**6))
def test_complete_if_and_only_if_every_leaf_is_proved(roots, rounds, seed):
    random = np.random.default_rng(seed)
    tree = proved(grown(roots, rounds), random)
    leaves = leaves_of(tree)
    assert tree.is_complete()
    assert tree.share_proved() == pytest.approx(1.0)
    assert tree.least().tolist() == [tree.bound[leaves[tree.root[leaves] == root]].min() for root in range(roots)]
    some = leaves[random.random(len(leaves)) < 0.5]
    bare = replace(tree, bound=np.full(len(tree), np.nan))
    partly = bare.proved(some, np.ones(len(some)))
    assert partly.is_complete() == (len(some) == len(leaves))
    for root in range(roots):
        left_out = np.isin(leaves[tree.root[leaves] == root], some, invert=True).any()
        assert partly.least()[root] == (-np.inf if left_out else 1.0)
    assert not bare.is_complete()


@given(roots=st.integers(1, 3), rounds=rounds, seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_whatever_is_missing_makes_it_incomplete(roots, rounds, seed):
    tree = proved(grown(roots, rounds), np.random.default_rng(seed))
    for leaf in leaves_of(tree):
        for bad in (np.nan, 0.0, -1.0, -np.inf, np.inf):
            spoilt = changed(tree, "bound", leaf, bad)
            assert not spoilt.is_complete()
            assert not np.isfinite(spoilt.least()[tree.root[leaf]])
    for part in np.flatnonzero(tree.parent >= 0):
        root = tree.root[part]
        for spoilt in (
            without(tree, part),
            changed(tree, "above", part, not tree.above[part]),  # the same half twice
            changed(tree, "at", part, np.nextafter(tree.at[part], np.inf)),  # halves that do not meet
            changed(tree, "at", part, np.nan),
            changed(tree, "coordinate", part, (tree.coordinate[part] + 1) % AXES),
            changed(tree, "root", part, roots),  # a half of another claim
        ):
            assert not spoilt.is_complete()
            assert spoilt.least()[root] == -np.inf


def test_a_root_that_is_missing_is_not_a_claim_that_holds():
    tree = Tree.planted(0)
    assert not tree.is_complete()
    assert not Tree.planted(2).proved(np.array([1]), np.array([1.0])).is_complete()


def test_half_a_domain_is_not_a_domain():
    """A published splitter once made [.5, 1] and [.5, .5] of [0, 1]."""
    tree, halves = Tree.planted(1).split(np.array([0]), np.array([0]), np.array([0.5]))
    tree = tree.proved(halves, np.ones(2))
    assert tree.is_complete()
    assert not replace(tree, above=np.array([False, True, True])).is_complete()
    low, high = replace(tree, above=np.array([False, True, True])).ranges(halves, torch.zeros(1, 1), torch.ones(1, 1))
    assert (low.tolist(), high.tolist()) == ([[0.5], [0.5]], [[1.0], [1.0]])


def test_a_tree_knows_its_parts_and_what_is_missing():
    tree, (below, above) = Tree.planted(2).split(np.array([0]), np.array([1]), np.array([0.5]))
    tree, inner = tree.split(np.array([above]), np.array([0]), np.array([-1.0]))
    leaves = np.array([1, below, *inner])
    low, high = tree.ranges(leaves, torch.tensor([[-2.0, 0.0]]), torch.tensor([[2.0, 1.0]]))
    assert low.tolist() == [[-2, 0], [-2, 0], [-2, 0.5], [-1, 0.5]]
    assert high.tolist() == [[2, 1], [2, 0.5], [-1, 1], [2, 1]]
    assert not tree.is_complete()
    for missing in leaves:
        rest = leaves[leaves != missing]
        assert not tree.proved(rest, np.ones(3)).is_complete()
    whole = tree.proved(leaves, np.array([4.0, 3.0, 2.0, 1.0]))
    assert whole.is_complete()
    assert whole.least().tolist() == [1.0, 4.0]
    assert whole.share_proved() == 1
    assert not tree.is_complete()  # what was there before is as it was
    # a part that is proved as a whole needs no halves, and halves may prove more
    assert tree.proved(np.array([0, 1]), np.array([0.5, 4.0])).least().tolist() == [0.5, 4.0]
    assert whole.proved(np.array([0]), np.array([0.5])).least().tolist() == [1.0, 4.0]


@given(roots=st.integers(1, 2), rounds=rounds, top=st.sampled_from([HIGH, FLAT]), seed=st.integers(0, 10**6))
def test_leaves_tile_the_domain(roots, rounds, top, seed):
    tree = grown(roots, rounds, top)
    leaves = leaves_of(tree)
    low, high = (end.numpy() for end in tree.ranges(leaves, LOW, top))
    points = np.random.default_rng(seed).uniform(LOW.numpy(), top.numpy(), (50, AXES))
    # corners of parts are the hardest points
    points = np.concatenate([points, low, high])
    inside = ((points[:, None] >= low) & (points[:, None] <= high)).all(2)
    volume = (high - low).prod(1)
    for root in range(roots):
        own = tree.root[leaves] == root
        assert inside[:, own].any(1).all()
        assert volume[own].sum() == pytest.approx(float((top - LOW).prod()))
    assert (low >= LOW.numpy()).all()
    assert (high <= top.numpy()).all()


def test_large_and_deep_trees():
    """Neither many leaves nor a long chain of cuts is too much; how long that takes is in benchmarks/trees.py."""
    wide, leaves = Tree.planted(1), np.array([0])
    for depth in range(17):
        wide, leaves = wide.split(leaves, np.zeros(len(leaves), int), np.full(len(leaves), 0.5 + depth))
    assert len(leaves) == 2**17 > 120_000
    wide = wide.proved(leaves, np.ones(len(leaves)))
    assert wide.is_complete()
    assert not wide.proved(leaves[[70_000]], np.array([np.nan])).is_complete()
    deep, part = Tree.planted(1), np.array([0])
    for depth in range(2000):
        deep, made = deep.split(part, np.zeros(1, int), np.array([1.0 + depth]))
        deep, part = deep.proved(made[:1], np.ones(1)), made[1:]
    assert not deep.is_complete()
    assert deep.proved(part, np.ones(1)).is_complete()
