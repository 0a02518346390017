"""The one judge says no more than the evidence does, whatever the evidence."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import shakeproof as sp
from shakeproof import demo
from shakeproof.exact import Curve
from shakeproof.model import SHARE, Comparison
from shakeproof.proof.evidence import BoundedCells, BoundedTree, Counterexample, Proof, Swept
from shakeproof.proof.verdict import Evidence, judge
from shakeproof.question import wins
from shakeproof.search import SplitBox, SplitCells, Tree

ANY = st.floats(allow_nan=True, allow_infinity=True)
# Mostly what a proof needs, now and then anything: safe must stay reachable.
BOUNDS = st.one_of(st.floats(1e-6, 10), st.floats(1e-6, 10), st.sampled_from([math.nan, -1.0, 0.0, math.inf]), ANY)


# -- random proofs, and a second opinion on each ----------------------------------------------------------------------


@st.composite
def swept(draw) -> tuple[Proof, bool]:
    """A curve that may begin late, end early, lose, or be trusted too little."""
    start, end = draw(st.sampled_from([(0.0, 1.0), (0.0, 1.0), (0.0, 1.0), (0.1, 1.0), (0.0, 0.9)]))
    rows = draw(st.integers(0, 5).map(lambda n: 4 if n > 3 else n))
    z = np.linspace(start, end, rows) if rows != 1 else np.array([start])
    lead = st.one_of(st.floats(0.1, 5), st.floats(0.1, 5), st.floats(-1, 1))
    margin = np.array([draw(lead) for _ in range(rows)])
    scores = np.stack([margin, np.zeros(rows), np.full(rows, -9.0)], 1).reshape(rows, 3)
    lower = [draw(BOUNDS) for _ in range(draw(st.sampled_from([max(rows - 1, 1)] * 4 + [0])))]
    proof = Swept(Curve(z, scores), wins(0, 3), 0, 1.0, np.array(lower), timed_out=draw(st.booleans()))
    holds = (
        rows > 0
        and z[0] == 0
        and z[-1] == 1
        and len(lower) > 0
        and all(value > 0 for value in margin)
        and all(value > 0 for value in lower)
    )
    return proof, holds


@st.composite
def trees(draw, roots: int) -> tuple[Tree, bool]:
    """Cuts, some of which were spoilt after the fact: a half lost, or on the wrong side, or cut elsewhere."""
    tree = Tree.planted(roots)
    halves: dict[int, tuple[int, int]] = {}
    for _ in range(draw(st.integers(0, 5))):
        leaves = [part for part in range(len(tree)) if part not in halves]
        part = draw(st.sampled_from(leaves))
        tree, (below, above) = tree.split(np.array([part]), np.array([draw(st.integers(0, 2))]), np.array([0.5]))
        halves[part] = (int(below), int(above))
    bounds = {part: draw(BOUNDS) for part in range(len(tree)) if part not in halves or draw(st.integers(0, 9)) == 0}
    tree = tree.proved(np.array(list(bounds), dtype=np.int64), np.array(list(bounds.values())))
    inner = list(range(roots, len(tree)))
    spoilt, how = set(), draw(st.sampled_from(["", "", "", "lost", "side", "place", "coordinate"]))
    if how and inner:
        part = draw(st.sampled_from(inner))
        spoilt.add(int(tree.parent[part]))
        if how == "lost":  # the half, with all that was cut from it
            gone = {part}
            for child in range(part + 1, len(tree)):
                gone |= {child} if int(tree.parent[child]) in gone else set()
            keep = np.array([p for p in range(len(tree)) if p not in gone])
            number = np.full(len(tree), -1)
            number[keep] = np.arange(len(keep))
            columns = {f.name: getattr(tree, f.name)[keep] for f in dataclasses.fields(tree)}
            parents = columns["parent"]
            tree = Tree(**columns | {"parent": np.where(parents < 0, -1, number[parents])})
        elif how == "side":
            tree = dataclasses.replace(tree, above=np.where(np.arange(len(tree)) == part, ~tree.above, tree.above))
        elif how == "place":
            tree = dataclasses.replace(tree, at=np.where(np.arange(len(tree)) == part, 0.25, tree.at))
        else:
            other = np.where(np.arange(len(tree)) == part, 7, tree.coordinate)
            tree = dataclasses.replace(tree, coordinate=other)

    def proved(part: int) -> bool:
        own = bounds.get(part, math.nan)
        split = part in halves and part not in spoilt and all(proved(half) for half in halves[part])
        return (own > 0 and math.isfinite(own)) or split

    return tree, all(proved(root) for root in range(roots)) and roots > 0


@st.composite
def bounded_cells(draw) -> tuple[Proof, bool]:
    tree, holds = draw(trees(1))
    nothing = np.empty((0, 3))
    return BoundedCells(
        SplitCells(
            low=np.zeros(3),
            high=np.ones(3),
            tree=tree,
            violated=np.empty(0, dtype=np.int64),
            points=nothing,
            scores=nothing,
            replayed=nothing,
            finished=draw(st.booleans()),
            bounded=len(tree),
            doubtful=draw(st.booleans()),
        ),
        wins(0, 3),
    ), holds


@st.composite
def bounded_tree(draw) -> tuple[Proof, bool]:
    roots = draw(st.integers(1, 3))
    tree, holds = draw(trees(roots))
    return BoundedTree(SplitBox(tree, None, None, None, finished=draw(st.booleans())), wins(0, 3)), holds


PROOFS = st.one_of(
    swept(),
    bounded_cells(),
    bounded_tree(),
)


# -- everything else --------------------------------------------------------------------------------------------------


SHARES = [0.0, 1.0, 1.5, math.nan, math.inf]


def witness(replayed: bool) -> Counterexample:
    return Counterexample((0.5,), np.zeros((1, 1), np.float32), np.zeros(3, np.float32), 1, -0.5, replayed)


@st.composite
def comparisons(draw) -> tuple[Comparison | None, bool]:
    """And whether it is one, somewhere, and in all of its places runtime and graph agree, and the property holds."""
    if draw(st.integers(0, 5)) == 0:
        return None, False
    good = draw(st.booleans())
    places = [
        (1.0, False, 0.5, 0.0)
        if good
        else (
            draw(st.sampled_from([1.0, 0.0, -1.0, math.nan])),
            draw(st.booleans()),
            draw(st.sampled_from(SHARES)),
            draw(st.sampled_from([0.0, SHARE, 1.5 * SHARE, math.nan, math.inf])),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    margin, fails, apart, noise = (list(column) for column in zip(*places, strict=True)) if places else [[]] * 4
    agrees = all(d <= 1 and m > 0 and not f and n <= SHARE * m for m, f, d, n in places)
    known, strength = np.ones(len(places), bool), np.zeros(len(places))
    columns = np.array(margin), np.array(fails, dtype=bool), np.array(apart), np.array(noise)
    made = Comparison(*columns, known, strength)
    return made, bool(places) and agrees


@settings(max_examples=1000)
@given(
    proofs=st.lists(PROOFS, max_size=3),
    missing=st.sampled_from([0, 0, 0, 0, 1, -1]),
    found=st.sampled_from([None, None, None, True, False]),
    comparison=comparisons(),
    start=st.sampled_from([None, None, 1.0, 1.0, 1e-300, 0.0, -1.0, math.nan, -math.inf]),
    finite=st.sampled_from([True, True, True, False]),
    fails=st.booleans(),
)
def test_the_judge_says_no_more_than_the_evidence(proofs, missing, found, comparison, start, finite, fails):
    seen = None if found is None else witness(found)
    needed = len(proofs) + missing
    given = tuple(proof for proof, _ in proofs)
    evidence = Evidence(needed, given, seen, comparison[0], start, finite, start_fails=fails)
    status, reason = judge(evidence)
    known = finite and not (start is not None and math.isnan(start))
    wrong = start is not None and start <= 0
    may_be_safe = (
        (known and not wrong and seen is None and comparison[1])
        and 0 < needed == len(proofs)
        and all(holds for _, holds in proofs)
        and comparison[0].noise.max() <= SHARE * min(proof.smallest for proof, _ in proofs)
    )
    assert (status is sp.Status.SAFE) == may_be_safe
    assert (status is sp.Status.MISCLASSIFIED) == (known and wrong and fails)
    assert (status is sp.Status.UNSAFE) == (known and not wrong and found is True)
    assert (status is sp.Status.UNDECIDED) == (reason is not None)
    assert reason is None or isinstance(reason, sp.Reason)
    if status is sp.Status.UNDECIDED and not known:
        assert reason is sp.Reason.NOT_FINITE


KINDS = pytest.mark.parametrize("kind", [swept(), bounded_cells(), bounded_tree()], ids=["swept", "cells", "tree"])


@KINDS
@settings(max_examples=1000)
@given(data=st.data())
def test_a_proof_holds_if_it_is_complete_finite_and_positive(kind, data):
    proof, holds = data.draw(kind)
    assert proof.holds == holds
    evidence = Evidence(
        1,
        (proof,),
        None,
        Comparison(np.ones(1), np.zeros(1, bool), np.zeros(1), np.zeros(1), np.ones(1, bool), np.zeros(1)),
    )
    assert (judge(evidence)[0] is sp.Status.SAFE) == holds


@settings(max_examples=1000)
@given(comparisons())
def test_a_comparison_agrees_if_it_does_everywhere(made):
    comparison, agrees = made
    proof = Swept(Curve(np.array([0.0, 1.0]), np.array([[1.0, 0.0]] * 2)), wins(0, 2), 0, 1.0, np.array([0.9]))
    assert proof.holds
    assert (judge(Evidence(1, (proof,), None, comparison))[0] is sp.Status.SAFE) == agrees


@KINDS
def test_each_kind_of_random_proof_sometimes_holds(kind):
    """The strategies above are no empty threat."""
    for holds in (True, False):
        proof, _ = find(
            kind, lambda made, wanted=holds: made[1] is wanted, settings=settings(database=None, max_examples=5000)
        )
        assert proof.holds is holds


def test_a_result_cannot_be_told_its_verdict(demo_network):
    """It has no field for it: what it says is what the judge makes of its evidence."""
    path, label = demo.images()[0]
    result = sp.profile(demo_network, path, "box-blur:size=3", label=label)
    assert result.status is sp.Status.SAFE
    names = {field.name for field in dataclasses.fields(result)}
    assert not names & {"status", "reason", "critical_strength", "certified_strength", "min_margin", "profile"}
    for name in ("status", "reason"):
        with pytest.raises(TypeError):
            dataclasses.replace(result, **{name: sp.Status.SAFE})
        with pytest.raises(AttributeError):
            setattr(result, name, sp.Status.SAFE)
        with pytest.raises(AttributeError):
            object.__setattr__(result, name, sp.Status.SAFE)
    none = dataclasses.replace(result, evidence=dataclasses.replace(result.evidence, proofs=()))
    assert none.status is sp.Status.UNDECIDED
