"""Everything that is computed stays on the problem's device, and what proves is in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from models import NETWORKS, box_around, network_of, random_module
from second_device import SECOND, MixedDevicesError, SecondDevice, There
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from shakeproof import linalg
from shakeproof.bounds import Boxes, enclose, enclose_box, planes_below
from shakeproof.budget import Budget
from shakeproof.exact import Lines, sweep, swept_curves
from shakeproof.graph import Graph
from shakeproof.model import with_claims, without_max_pools
from shakeproof.question import InputBox, Path
from shakeproof.search import AnyFailure, BoxProblem, FirstFailure, Map, PathProblem, split_activations, split_inputs


def graph_of(seed: int) -> Graph:
    return network_of(random_module(seed), 1, 8, 8).graph


@pytest.fixture
def second(monkeypatch) -> Iterator[SecondDevice]:
    monkeypatch.setattr(linalg, "_openblas", lambda: None)  # the CPU's own products may be rounded otherwise
    with torch.no_grad(), SecondDevice() as mode:
        yield mode


def moved(x: Tensor) -> Tensor:
    there = x.to(SECOND)
    assert isinstance(there, There)
    return there


def test_the_second_device_is_noticed(second):
    """A negative control: it computes, and does not mix."""
    x, here = moved(torch.arange(6.0).view(2, 3)), torch.ones(2, 3)
    assert x.device == SECOND
    assert (x * 2 + torch.ones(3, device=SECOND)).cpu().tolist() == [[1, 3, 5], [7, 9, 11]]
    assert float(x[x > 2].sum()) == 12
    assert (x + torch.tensor(1.0)).cpu().tolist() == [[1, 2, 3], [4, 5, 6]]
    x[:, 1] = 0.0
    assert x.cpu().tolist() == [[0, 0, 2], [3, 0, 5]]
    for mixed in (lambda: x + here, lambda: x[torch.tensor([0])], lambda: torch.cat([x, here])):
        with pytest.raises(MixedDevicesError):
            mixed()
    with pytest.raises((RuntimeError, TypeError)):
        x.numpy()


def path_of(graph: Graph, seed: int, parameters: int = 1) -> Path:
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand((parameters + 1, *graph.input_shape), generator=random, dtype=torch.float64)
    return Path(rows[1:] - 0.5, rows[0])


@pytest.mark.parametrize("make", [lambda: graph_of(0), lambda: NETWORKS["sigmoid"](0).graph])
def test_bounds_stay_on_the_device(second, make):
    graph = make()
    path, low = path_of(graph, 0, 2), torch.tensor([[0.1, 0.2], [0.3, 0.4]]).double()
    rows, cell = torch.randn(4, graph.classes, dtype=torch.float64), torch.tensor([0, 0, 1, 1])

    def bounds(there: bool) -> list[Tensor]:
        put = moved if there else (lambda x: x)
        own = graph.to(SECOND) if there else graph
        domain = Boxes(put(low), put(low + 0.1))
        error = put(path.error.expand(len(low), *path.error.shape))
        enclosed = enclose(own, path.mapped(put).at(domain.points), domain, error)
        planes = planes_below(own, enclosed, put(rows), put(cell))
        return [*enclosed.scores.range, planes.offset, planes.gradient]

    for one, other in zip(bounds(True), bounds(False), strict=True):
        assert isinstance(one, There)
        assert torch.equal(one.cpu(), other)
    assert torch.float32 not in second.seen


@pytest.mark.parametrize("name", ["relu", "leaky", "sigmoid", "branching"])
def test_bounds_over_boxes_stay_on_the_device(second, name):
    graph = without_max_pools(NETWORKS[name](0).graph)
    low, high = box_around(graph, 0, radius=0.05)
    budget = Budget()
    found = enclose_box(graph.to(SECOND), moved(low), moved(high), budget, optimise=name != "branching")
    start = found.proving.start()
    assert all(isinstance(x, There) for x in (start.low, start.high, start.alpha, start.beta))
    assert start.low.dtype == torch.float64
    plain = enclose_box(graph, low, high, budget, optimise=False).proving.start()
    assert start.low.shape[1] <= plain.low.shape[1]


@pytest.mark.parametrize("goal", [AnyFailure(), FirstFailure(1e-2), Map(1 / 8)])
def test_input_splitting_stays_on_the_device(second, goal):
    graph = graph_of(0)
    parameters = 1 if isinstance(goal, FirstFailure) else 2
    path = path_of(graph, 1, parameters)
    label = int(graph.run(path.base.unsqueeze(0)).argmax())
    claims = torch.stack(
        [torch.eye(graph.classes)[label] - row for j, row in enumerate(torch.eye(graph.classes)) if j != label]
    ).double()
    low = torch.zeros(parameters, dtype=torch.float64)

    def problem(there: bool) -> PathProblem:
        put = moved if there else (lambda x: x)

        def replay(z: Tensor) -> np.ndarray:
            assert isinstance(z, There) == there
            return np.ones(len(z), bool)

        own = graph.to(SECOND) if there else graph
        return PathProblem(own, path.mapped(put), put(claims), put(low), put(low + 2), replay)

    one, other = (split_inputs(problem(there), goal, Budget()) for there in (True, False))
    assert one.bounded == other.bounded > 0
    assert np.array_equal(one.tree.bound, other.tree.bound, equal_nan=True)
    assert np.array_equal(one.boxes(one.open), other.boxes(other.open))
    assert torch.float32 not in second.seen


def box_problem(there: bool, gap: float, name: str = "relu") -> BoxProblem:
    """Are all outputs above the least that samples show, less a gap?"""
    graph = without_max_pools(NETWORKS[name](3).graph)
    low, high = box_around(graph, 3, radius=0.2)
    shares = torch.rand((2000, *low.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    least = graph.run(low + shares.round() * (high - low)).amin(0)
    claimed = with_claims(graph, torch.eye(3).double().unsqueeze(1), (gap - least).unsqueeze(1))
    if there:
        return BoxProblem(claimed.to(SECOND), InputBox(moved(low), moved(high)), lambda x: np.zeros(len(x), bool))
    return BoxProblem(claimed, InputBox(low, high), lambda x: np.ones(len(x), bool))


@pytest.mark.parametrize("gap", [0.3, 0.2, -0.3])
def test_activation_splitting_stays_on_the_device(second, gap):
    found = split_activations(box_problem(True, gap), Budget.starting(200 if gap > 0 else 3, 1.0))
    assert found.tree.is_complete() == (gap > 0)
    assert (found.unconfirmed is not None) == (gap < 0)


def lines_of(graph: Graph, there: bool) -> Lines:
    put = moved if there else (lambda x: x)
    random = torch.Generator().manual_seed(5)
    slopes, bases = torch.randn((2, 2, *graph.input_shape), generator=random, dtype=torch.float64)
    end = torch.tensor([0.5, 0.7], dtype=torch.float64)
    path = Path(slopes.unsqueeze(0), bases).mapped(put)
    return Lines(path, put(torch.zeros_like(end)), put(end), put(torch.arange(2)))


def test_the_sweep_stays_on_the_device(second):
    graph = graph_of(1)
    pieces = list(sweep(graph.to(SECOND), lines_of(graph, True), Budget()))
    assert all(isinstance(column, There) for piece in pieces for column in piece)
    plain = list(sweep(graph, lines_of(graph, False), Budget()))
    for one, other in zip(pieces, plain, strict=True):
        assert torch.equal(one.scores.cpu(), other.scores)
    assert torch.float32 not in second.seen


@pytest.mark.parametrize("whole", [True, False])
def test_curves_stay_on_the_device(second, whole, monkeypatch):
    from shakeproof.exact import bridges

    monkeypatch.setattr(bridges, "ENTRIES_A_NODE", 0.0)  # bets cost nothing, so that this small network makes them too
    monkeypatch.setattr(bridges, "CELL_COST", 1e-6)
    graph, labels, looked = graph_of(1), np.array([0, 1]), []

    def curves(there: bool):
        own = graph.to(SECOND) if there else graph
        look = lambda piece: looked.append(piece) or ()  # noqa: E731
        return swept_curves(own, lines_of(graph, there), labels, Budget(), whole=whole, look=look)

    one, other = curves(True), curves(False)
    assert looked
    assert any(curve.bridged.any() for curve in one) == (not whole)
    for here, there in zip(one, other, strict=True):
        assert np.array_equal(here.z, there.z)
        assert np.array_equal(here.scores, there.scores)
        assert np.array_equal(here.bridged, there.bridged)
    assert torch.float32 not in second.seen


# -- precision --------------------------------------------------------------------------------------------------------


class OnlyFloat64(TorchDispatchMode):
    """No number of less precision is computed with."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given: list[Tensor] = []
        tree_map(lambda x: given.append(x) if isinstance(x, Tensor) else None, (args, kwargs, found))
        assert all(x.dtype == torch.float64 or not x.is_floating_point() for x in given), func
        return found


def test_what_proves_over_boxes_is_float64(monkeypatch):
    """Float32 only ever searches: every bound that is noted comes from a pass in which there is none of it."""
    from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Lowest, PartLines
    from shakeproof.search.activation_splitting import ActivationSplitting

    lowest, relaxations, on, proves = (
        PartLines.lowest,
        PartLines.relaxations,
        AlphaBetaCrown.on,
        ActivationSplitting.proves,
    )
    proved: list[Tensor] = []
    noted = 0

    def strict(crown: AlphaBetaCrown):
        narrow = crown.box.low.dtype == torch.float32
        assert narrow == (crown.noise is None)  # what does not allow for rounding does not prove
        return torch.no_grad() if narrow else OnlyFloat64()

    def checked_lowest(self: PartLines, relaxations, coefficients) -> Lowest:
        with strict(self.crown):
            found = lowest(self, relaxations, coefficients)
        if self.crown.noise is not None:
            proved.append(found.value)
        return found

    def checked_relaxations(self: PartLines, alpha, beta):
        with strict(self.crown):
            return relaxations(self, alpha, beta)

    def checked_on(self: AlphaBetaCrown, rows):
        with strict(self):
            return on(self, rows)

    def checked_proves(self, bound, part):
        nonlocal noted
        assert any(np.array_equal(bound, value.numpy()) for value in proved)
        found = proves(self, bound, part)
        noted += int(found.sum())
        return found

    monkeypatch.setattr(PartLines, "lowest", checked_lowest)
    monkeypatch.setattr(PartLines, "relaxations", checked_relaxations)
    monkeypatch.setattr(AlphaBetaCrown, "on", checked_on)
    monkeypatch.setattr(ActivationSplitting, "proves", checked_proves)
    with torch.no_grad():
        found = split_activations(box_problem(False, 0.1), Budget.starting(60, 1.0))
    assert found.tree.is_complete()
    assert noted >= 3


def test_what_proves_cells_is_float64():
    graph = graph_of(0)
    path, low = path_of(graph, 1, 2), torch.zeros(2, dtype=torch.float64)
    claims = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    problem = PathProblem(graph, path, claims, low, low + 1, lambda z: np.zeros(len(z), bool))
    with torch.no_grad(), OnlyFloat64():
        split_inputs(problem, Map(1 / 8), Budget())
        list(sweep(graph, lines_of(graph, False), Budget()))
    with pytest.raises(AssertionError), torch.no_grad(), OnlyFloat64():
        graph.to(torch.float32)
