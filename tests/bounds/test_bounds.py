"""Bounds of whole networks against samples, and of operators where they are hard."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import network_of, random_module
from torch import Tensor

from shakeproof.bounds import Boxes, enclose, lowest_leads, planes_below
from shakeproof.graph import Graph, Node
from shakeproof.operators import (
    Combine,
    Gelu,
    HardSwish,
    Linear,
    MatMul,
    Mean,
    Multiply,
    Operator,
    Power,
    Range,
    Reshape,
    Scale,
    Sigmoid,
    Silu,
    Softmax,
    Tanh,
    Transpose,
)
from shakeproof.question import Path

generator = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("operator", [Power(0.5), Power(-1.0), Power(-0.5)])
def test_no_bound_where_a_function_is_not_defined(operator):
    around_zero = Range(torch.tensor([[-1.0]]).double(), torch.tensor([[2.0]]).double())
    relaxation = operator.relaxed(around_zero)
    spread = relaxation.spread(torch.zeros(1, 1, dtype=torch.float64))
    assert not spread.isfinite().any()
    _, constant = relaxation.pull(torch.ones(1, 1, dtype=torch.float64), torch.tensor([0]))
    assert not constant.isfinite().any()


def test_softmax_where_one_entry_may_dominate():
    """Sums of the others must not be made by subtraction: beside exp(0), exp(-46) would be lost."""
    low, high = torch.tensor([[-50.0, -46.0, -46.0]]).double(), torch.tensor([[0.0, -46.0, -46.0]]).double()
    relaxation = Softmax(0).relaxed(Range(low, high))
    shares = torch.stack([low, high]).softmax(2)
    limits = relaxation.image(Range(low, high))
    assert (limits.low <= shares.amin(0) + 1e-12).all()
    assert (limits.high >= shares.amax(0) - 1e-12).all()


# -- whole networks ------------------------------------------------------------------------------------------------


def random_path(shape: Sequence[int], parameters: int, seed: int) -> Path:
    random = torch.Generator().manual_seed(seed)
    rows = torch.rand((parameters + 1, *shape), generator=random, dtype=torch.float64)
    return Path(rows[1:] - 0.5, rows[0])


def smooth_graph(seed: int) -> Graph:
    """Attention with normalisation and gates, written node by node: 6 tokens of 4 numbers, 3 classes."""
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64) / 2

    shapes = [torch.Size((6, 4))]
    nodes: list[Node] = []

    def add(operator: Operator, *inputs: int) -> int:
        rows = (torch.ones(1, *shapes[i], dtype=torch.float64) for i in inputs)
        nodes.append(Node(operator, inputs, operator.apply(*rows).shape[1:]))
        shapes.append(nodes[-1].shape)
        return len(nodes)

    def linear(x: int, outputs: int) -> int:
        return add(Linear(weights(outputs, shapes[x][-1]), weights(outputs)), x)

    one = torch.tensor(1.0, dtype=torch.float64)
    query, key, value = linear(0, 4), linear(0, 4), linear(0, 4)
    attention = add(Softmax(1), add(MatMul(), query, add(Transpose((1, 0)), key)))
    mixed = add(Combine(1), add(MatMul(), attention, value), 0)
    centred = add(Combine(-1), mixed, add(Mean((1,)), mixed))
    variance = add(Mean((1,)), add(Power(2.0), centred))
    scale = add(Power(-0.5), add(Scale(one, one / 10), variance))
    normal = add(Multiply(), centred, scale)
    gates = [add(operator, linear(normal, 4)) for operator in (Sigmoid(), Gelu(), Silu(), Tanh(), HardSwish())]
    hidden = gates[0]
    for gate in gates[1:]:
        hidden = add(Combine(1), hidden, gate)
    hidden = add(Multiply(), hidden, gates[0])
    linear(add(Reshape((24,)), hidden), 3)
    return Graph(shapes[0], tuple(nodes))


def module_graph(seed: int) -> Graph:
    return network_of(random_module(seed), 1, 8, 8).graph


def boxes_of(parameters: int, seed: int) -> Boxes:
    """Three boxes of sides 1, 0.1 and 0.01."""
    random = torch.Generator().manual_seed(seed)
    low = torch.rand((3, parameters), generator=random, dtype=torch.float64)
    return Boxes(low, low + 10.0 ** -torch.arange(3, dtype=torch.float64).unsqueeze(1))


def samples(boxes: Boxes, count: int, seed: int) -> Tensor:
    """Points (count, cells, m) of each cell."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand((count, *boxes.low.shape), generator=random, dtype=torch.float64)
    return boxes.low + shares * (boxes.high - boxes.low)


@pytest.mark.parametrize("make", [module_graph, smooth_graph])
@given(seed=st.integers(0, 1000), parameters=st.integers(1, 3))
@settings(max_examples=8)
def test_bounds_of_networks_contain_samples(make, seed, parameters):
    graph = make(seed)
    path = random_path(graph.input_shape, parameters, seed)
    domain = boxes_of(parameters, seed)
    enclosed = enclose(graph, path.at(domain.points), domain, path.error.expand(len(domain), *path.error.shape))
    coefficients = torch.randn((6, graph.classes), dtype=torch.float64, generator=generator)
    cell = torch.tensor([0, 0, 1, 1, 2, 2])
    planes = planes_below(graph, enclosed, coefficients, cell)
    z = samples(domain, 50, seed)
    scores = torch.stack([graph.run(path.at(some)) for some in z])
    low, high = enclosed.scores.range
    size = 1 + scores.abs().max()
    finite = low.isfinite() & high.isfinite()
    assert finite[2].all()  # the smallest cell
    assert ((scores >= low - 1e-9 * size) & (scores <= high + 1e-9 * size) | ~finite).all()
    combined = torch.einsum("rk,srk->sr", coefficients, scores[:, cell])
    below = planes.offset + torch.einsum("rm,srm->sr", planes.gradient, z[:, cell])
    assert ((below <= combined + 1e-9 * size) | ~below.isfinite()).all()


def test_planes_get_tight_as_cells_shrink():
    graph = smooth_graph(0)
    path = random_path(graph.input_shape, 2, 0)
    gaps = []
    for size in (1e-1, 1e-2, 1e-3):
        low = torch.full((1, 2), 0.4, dtype=torch.float64)
        boxes = Boxes(low, low + size)
        coefficients = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
        enclosed = enclose(graph, path.at(boxes.points), boxes, path.error.unsqueeze(0))
        planes = planes_below(graph, enclosed, coefficients, torch.tensor([0]))
        centre = graph.run(path.at(boxes.centre))[0]
        gaps.append(float(centre[0] - centre[1] - planes.offset - planes.gradient[0] @ boxes.centre[0]))
    assert gaps[1] < gaps[0] / 20
    assert gaps[2] < gaps[1] / 50  # of second order


@pytest.mark.parametrize("seed", range(6))
def test_leads_do_not_depend_on_how_many_rivals_fit_the_memory(monkeypatch, seed):
    """Where one rival is not beaten, it does not matter what is known of the others."""
    graph, path = network_of(random_module(seed), 1, 8, 8).graph, random_path((1, 1, 8, 8), 1, seed)
    ends = torch.linspace(0, 20, 9, dtype=torch.float64).unsqueeze(1)
    boxes = Boxes(ends[:-1], ends[1:])
    enclosed = enclose(graph, path.at(boxes.points), boxes, torch.zeros_like(path.base).unsqueeze(0))
    leader = enclosed.scores.points[0].argmax(1)
    whole, calls = lowest_leads(graph, enclosed, leader), []
    monkeypatch.setattr("shakeproof.bounds.crown.cells_within", lambda *given: calls.append(given) or 1)
    few = lowest_leads(graph, enclosed, leader)
    assert calls
    assert torch.equal(few > 0, whole > 0)
    assert torch.allclose(few[whole > 0], whole[whole > 0], atol=1e-12)
    assert bool((few <= whole + 1e-12).all())
