"""A query's time limit holds, whatever its network, its property and its method are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from models import dense

import shakeproof as sp
from shakeproof.budget import Budget, OutOfTimeError
from shakeproof.errors import InputError
from shakeproof.graph import Graph
from shakeproof.operators import Linear
from shakeproof.question import read_specification
from shakeproof.rounding import work_out_norms
from shakeproof.search.loop import Tree

HERE = Path(__file__).parent
MOST_SECONDS_OVER = 2.0


def overrun(*words: str) -> list[tuple[str, float]]:
    """The queries of timed_queries.py, and by how many seconds of the processor each overran."""
    done = subprocess.run([sys.executable, HERE / "timed_queries.py", *words], capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [(name, taken - limit) for name, limit, taken, *_ in answers]


def test_no_query_overruns_its_limit():
    found = overrun()
    assert len(found) > 35
    assert [own for own in found if own[1] > MOST_SECONDS_OVER] == []


@pytest.mark.parametrize("name", ["second/overrun", "r4"])
def test_a_search_among_few_inputs_ends_in_time(shared, name):
    """One that leaves many points to be held against many boxes, or many boxes that must leave nothing out."""
    files = {"overrun": f"{name}.onnx", "specification": f"{name}.vnnlib"}
    words = [f"{key}={shared(f'attacks/{file}')}" for key, file in files.items()]
    ((_, over),) = overrun("--only", *words)
    assert over <= MOST_SECONDS_OVER


def test_norms_that_take_too_long_are_not_begun():
    graph = sp.load(dense(0, 4, 3000, 3000, 2), torch.zeros(1, 4)).graph
    with pytest.raises(OutOfTimeError):
        work_out_norms(graph, Budget.starting(0.2, 1.0))
    assert any(not n.operator.known_norms for n in graph.nodes if isinstance(n.operator, Linear))


def test_without_time_for_norms_nothing_is_proved(monkeypatch, demo_network):
    def none_left(graph: Graph, budget: Budget) -> None:
        raise OutOfTimeError

    monkeypatch.setattr("shakeproof.proof.exact_method.work_out_norms", none_left)
    image = str(sp.demo.images()[0][0])
    result = sp.profile(demo_network, image, "box-blur:size=3", timeout=5)
    assert (str(result.status), str(result.reason)) == ("undecided", "timeout")
    assert result.certified_strength == 0


@pytest.fixture
def cut_square():
    """The square from 0 to 1, cut at random."""
    random, tree = np.random.default_rng(0), Tree.planted(1)
    boxes = {0: (np.zeros(2), np.ones(2))}
    for _ in range(60):
        part = int(random.choice(sorted(boxes)))
        low, high = boxes.pop(part)
        axis = int(random.integers(2))
        at = random.choice([random.uniform(low[axis], high[axis]), (low[axis] + high[axis]) / 2])
        tree, (below, above) = tree.split(np.array([part]), np.array([axis]), np.array([at]))
        boxes[int(below)] = low, np.where(np.arange(2) == axis, at, high)
        boxes[int(above)] = np.where(np.arange(2) == axis, at, low), high
    return tree, boxes


def test_boxes_of_a_tree_are_what_its_cuts_say(cut_square):
    tree, boxes = cut_square
    found = tree.boxes(np.zeros(2), np.ones(2))
    for part, ends in boxes.items():
        assert np.array_equal(found[part], np.stack(ends))
    parts = np.array(sorted(boxes))
    walked = torch.stack(tree.ranges(parts, torch.zeros(1, 2).double(), torch.ones(1, 2).double()), 1).numpy()
    assert np.array_equal(found[parts], walked)


def test_every_part_that_holds_a_point_is_found(cut_square):
    """Those whose edge it lies on as well."""
    tree, boxes = cut_square
    points = np.concatenate([np.random.default_rng(1).random((5, 2)), [ends[0] for ends in boxes.values()][:5]])
    for point in points:
        held = tree.holding(point[None])
        for part, (low, high) in boxes.items():
            assert held[part] == bool((low <= point).all() and (point <= high).all())
    assert tree.holding(points)[0]
    assert not tree.holding(np.empty((0, 2))).any()


def test_formulas_inside_formulas_are_bounded(tmp_path, monkeypatch):
    """Each is small enough, and all of them together are not."""
    monkeypatch.setattr("shakeproof.question.vnnlib_formula.MOST_STEPS", 10**6)
    either = " ".join(f"(or (>= Y_0 {i}) (>= Y_1 {i}))" for i in range(12))
    asserted = "\n".join(f"(assert (or (and {either}) (>= Y_0 100)))" for _ in range(100))
    declared = "(declare-const X_0 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
    file = tmp_path / "nested.vnnlib"
    file.write_text(f"{declared}\n(assert (>= X_0 0))\n(assert (<= X_0 1))\n{asserted}\n")
    with pytest.raises(InputError, match="steps to work out"):
        read_specification(file)
