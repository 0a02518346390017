"""Every operator's enclosure against samples, each with a negative control; whole networks; exact coverage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_module
from torch import Tensor

import shakeproof as sp
from shakeproof import operators
from shakeproof.bounds import Boxes, Domain, Hulls, Path, enclose, planes_below
from shakeproof.network.graph import Graph, Node
from shakeproof.operators import (
    Abs,
    AveragePool,
    Clip,
    Combine,
    Concat,
    Conv,
    Elementwise,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Linear,
    MatMul,
    MaxPool,
    Mean,
    Multiply,
    Operator,
    Pad,
    Power,
    Range,
    Relaxation,
    Relu,
    Reshape,
    Scale,
    Sigmoid,
    Silu,
    SlidingWindow,
    Softmax,
    Softplus,
    Tanh,
    Transpose,
    unrolled,
)  # fmt: skip

PARAMETERS, CELLS, SAMPLES = 2, 3, 24
SMALL_ENOUGH = 1e-9

generator = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


PICTURE = (1, 4, 5, 2)
convolution = Conv(normal(1, 3, 18), normal(3), SlidingWindow((3, 3), (2, 1), pads=(1, 0, 1, 1)))
few = Conv(normal(1, 2, 18), normal(2), SlidingWindow((3, 3), pads=(1, 1, 1, 1)))
# name: operator, shapes of its inputs, how its inputs are moved to where it is defined
RULES: dict[str, tuple[Operator, list[tuple[int, ...]], tuple[float, float]]] = {
    "linear": (Linear(normal(3, 4), normal(3)), [(2, 4)], (0, 1)),
    "scale": (Scale(normal(4), normal(2, 4)), [(2, 4)], (0, 1)),
    "sum": (Combine(1), [(2, 4), (1, 4)], (0, 1)),
    "difference": (Combine(-1), [(2, 1), (2, 4)], (0, 1)),
    "mean": (Mean((0, 2)), [(2, 3, 4)], (0, 1)),
    "conv": (convolution, [PICTURE], (0, 1)),
    "conv groups": (Conv(normal(2, 3, 4), normal(6), SlidingWindow((2, 2), dilations=(2, 1))), [PICTURE], (0, 1)),
    "unrolled conv": (unrolled(few, torch.Size((1, 2, 2, 2))), [(1, 2, 2, 2)], (0, 1)),
    "average pool": (
        AveragePool(SlidingWindow((2, 2), (2, 2)), torch.full((2, 2, 1), 4.0, dtype=torch.float64)), [PICTURE], (0, 1)),
    "reshape": (Reshape((8, 5)), [PICTURE], (0, 1)),
    "transpose": (Transpose((2, 0, 1)), [(2, 3, 4)], (0, 1)),
    "concat": (Concat(0), [(2, 3), (1, 3)], (0, 1)),
    "pad": (Pad(((0, 1), (-1, 2, 0, 0, -1)), 0.7), [(2, 3)], (0, 1)),
    "relu": (Relu(), [(2, 6)], (0, 1)),
    "leaky relu": (LeakyRelu(torch.tensor(0.2, dtype=torch.float64)), [(2, 6)], (0, 1)),
    "steep relu": (LeakyRelu(normal(6)), [(2, 6)], (0, 1)),
    "clip": (Clip(-0.5, 0.8), [(2, 6)], (0, 1)),
    "half clip": (Clip(-float("inf"), 0.3), [(2, 6)], (0, 1)),
    "abs": (Abs(), [(2, 6)], (0, 1)),
    "max pool": (MaxPool(SlidingWindow((2, 2), (2, 2))), [PICTURE], (0, 1)),
    "max pool overlapping": (MaxPool(SlidingWindow((3, 2), (1, 2), pads=(1, 1, 1, 0))), [PICTURE], (0, 1)),
    "max pool of a relu": (MaxPool(SlidingWindow((2, 2), (1, 1)), floor=0.0), [PICTURE], (0, 1)),
    "sigmoid": (Sigmoid(), [(2, 6)], (0, 2)),
    "tanh": (Tanh(), [(2, 6)], (0, 1.5)),
    "erf": (Erf(), [(2, 6)], (0, 1.5)),
    "softplus": (Softplus(), [(2, 6)], (0, 2)),
    "gelu": (Gelu(), [(2, 6)], (0, 2)),
    "gelu tanh": (GeluTanh(), [(2, 6)], (0, 2)),
    "silu": (Silu(), [(2, 6)], (0, 3)),
    "hard swish": (HardSwish(), [(2, 6)], (0, 3)),
    "exp": (Exp(), [(2, 6)], (0, 1)),
    "square": (Power(2.0), [(2, 6)], (0, 1)),
    "cube": (Power(3.0), [(2, 6)], (0, 1)),
    "square root": (Power(0.5), [(2, 6)], (8, 1)),
    "reciprocal": (Power(-1.0), [(2, 6)], (8, 1)),
    "reciprocal of negatives": (Power(-1.0), [(2, 6)], (-8, 1)),
    "product": (Multiply(), [(2, 3), (2, 1)], (0, 1)),
    "matrix product": (MatMul(), [(2, 3, 4), (1, 4, 2)], (0, 1)),
    "softmax": (Softmax(1), [(2, 5)], (0, 1)),
    "wide softmax": (Softmax(0), [(4, 2)], (0, 4)),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Inputs of an operator on some cells: affine in z up to a radius, and samples of them."""

    domain: Domain
    points: list[Tensor]
    radii: list[Tensor]

    @property
    def ranges(self) -> list[Range]:
        found = [self.domain.extremes(points) for points in self.points]
        return [Range(f.low - radius, f.high + radius) for f, radius in zip(found, self.radii, strict=True)]

    def affine(self, points: Tensor, share: Tensor) -> Tensor:
        """An affine function's value where z is `share` (cells, m) of the way from the centre to the sides."""
        steps = points[1:] - points[0]
        return points[0] + torch.einsum("cm,mc...->c...", share, steps)


def make_case(name: str, seed: int) -> Case:
    _, shapes, (place, size) = RULES[name]
    random = torch.Generator().manual_seed(seed)
    low = torch.rand((CELLS, PARAMETERS), generator=random, dtype=torch.float64)
    high = low + torch.rand((CELLS, PARAMETERS), generator=random, dtype=torch.float64)
    scale = 10.0 ** -torch.randint(0, 3, (1,), generator=random).item()
    points, radii = [], []
    for shape in shapes:
        middle = place + size * torch.randn((CELLS, *shape), generator=random, dtype=torch.float64)
        steps = size * scale * torch.randn((PARAMETERS, CELLS, *shape), generator=random, dtype=torch.float64) / 2
        points.append(torch.cat([middle.unsqueeze(0), middle + steps]))
        radii.append(size * scale * torch.rand((CELLS, *shape), generator=random, dtype=torch.float64) / 2)
    return Case(Boxes(low, high), points, radii)


def excess(operator: Operator, relaxation: Relaxation, case: Case, seed: int) -> float:
    """By how much an enclosure fails to contain samples, some of them as far out as its own slopes point."""
    random = torch.Generator().manual_seed(seed + 1)
    affine, spread, limits = (
        relaxation.points(*case.points),
        relaxation.spread(*case.radii),
        relaxation.image(*case.ranges),
    )
    assert not affine.isnan().any()
    assert not spread.isnan().any()
    cells = torch.arange(CELLS)
    worst = 0.0
    for _ in range(SAMPLES):
        share = 2 * torch.rand((CELLS, PARAMETERS), generator=random, dtype=torch.float64) - 1
        coefficients = torch.randn(affine.shape[1:], generator=random, dtype=torch.float64)
        if torch.rand(1, generator=random) < 0.5:  # one output alone
            keep = torch.zeros(coefficients[0].numel(), dtype=torch.float64)
            keep[torch.randint(0, len(keep), (1,), generator=random)] = 1
            coefficients = coefficients * keep.view(coefficients.shape[1:])
        pulled, constant = relaxation.pull(coefficients, cells)
        inputs = []
        for points, radius, slope in zip(case.points, case.radii, pulled, strict=True):
            inner = 2 * torch.rand(radius.shape, generator=random, dtype=torch.float64) - 1
            outer = slope.sign() if torch.rand(1, generator=random) < 0.5 else -slope.sign()
            chosen = torch.where(torch.rand(1, generator=random) < 0.5, inner, outer)
            inputs.append(case.affine(points, share) + chosen * radius)
        out = operator.apply(*inputs)
        size = 1 + out.abs().max().item()
        outside = (out - case.affine(affine, share)).abs() - spread
        worst = max(worst, outside.max().item() / size)
        if limits is not None:
            worst = max(worst, (limits.low - out).max().item() / size, (out - limits.high).max().item() / size)
        total = (coefficients * out).flatten(1).sum(1)
        below = sum((p * x).flatten(1).sum(1) for p, x in zip(pulled, inputs, strict=True)) + constant
        lowest = (coefficients * relaxation.attained(coefficients, *inputs)).flatten(1).sum(1)
        worst = max(worst, ((below - lowest).abs() / (1 + total.abs())).max().item())
        worst = max(worst, ((below - total) / (1 + total.abs())).max().item())
    return worst


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_enclosures_contain_samples(name, seed):
    operator, case = RULES[name][0], make_case(name, seed)
    assert excess(operator, operator.relaxed(*case.ranges), case, seed) < SMALL_ENOUGH


class Tampered(Relaxation):
    """A negative control: an enclosure with something a little wrong."""

    def __init__(self, inner: Relaxation, what: str) -> None:
        self.inner, self.what = inner, what

    def points(self, *values):
        found = self.inner.points(*values)
        return found + 0.05 * (found.abs() + 1) if self.what == "points" else found

    def spread(self, *radii):
        return self.inner.spread(*radii) * (0.5 if self.what == "spread" else 1)

    def pull(self, coefficients, cell):
        pulled, constant = self.inner.pull(coefficients, cell)
        if self.what == "slopes":
            pulled = tuple(p * 1.3 + 0.01 * p.abs().amax() for p in pulled)
        return pulled, constant + (0.3 * coefficients.abs().flatten(1).amax(1) if self.what == "constant" else 0)

    def attained(self, coefficients, *values):
        return self.inner.attained(coefficients, *values)

    def image(self, *ranges):
        found = self.inner.image(*ranges)
        if found is None or self.what != "image":
            return found
        return Range(found.low + 0.4 * (found.high - found.low), found.high)


@pytest.mark.parametrize("what", ["points", "spread", "slopes", "constant", "image"])
@pytest.mark.parametrize("name", RULES)
def test_a_wrong_enclosure_is_noticed(name, what):
    operator = RULES[name][0]
    ranges = make_case(name, 0).ranges
    if what == "image" and operator.relaxed(*ranges).image(*ranges) is None:
        pytest.skip("no separate image to tamper with")

    def strays(seed: int) -> bool:
        case = make_case(name, seed)
        tampered = Tampered(operator.relaxed(*case.ranges), what)
        return excess(operator, tampered, case, seed) > 1e3 * SMALL_ENOUGH

    assert any(map(strays, range(40)))


def test_every_operator_has_a_rule_here():
    def concrete(kind: type) -> set[type]:
        below = {k for sub in kind.__subclasses__() if sub.__module__.startswith("shakeproof.") for k in concrete(sub)}
        return below if kind.__abstractmethods__ else below | {kind}

    assert concrete(operators.Operator) == {type(operator) for operator, _, _ in RULES.values()}


ELEMENTWISE = [name for name, (operator, _, _) in RULES.items() if isinstance(operator, Elementwise)]


@pytest.mark.parametrize("name", ELEMENTWISE)
@given(ends=st.tuples(st.floats(-12, 12), st.floats(-12, 12)), slope=st.floats(-3, 3))
@settings(max_examples=30, deadline=None)
def test_straying_from_a_line(name, ends, slope):
    """On a fine grid, a function strays from a line no farther than it says, and not much less far either."""
    operator, _, (place, _) = RULES[name]
    if isinstance(operator, Power) and place:
        ends = tuple(np.sign(place) * (abs(end) + 0.05) for end in ends)
    low, high = (torch.full((1, 6), end, dtype=torch.float64) for end in sorted(ends))
    found = operator.strays(torch.full((1, 1, 6), slope, dtype=torch.float64), Range(low, high))
    x = low + (high - low) * torch.linspace(0, 1, 2001, dtype=torch.float64).unsqueeze(1)
    heights = operator.apply(x) - slope * x
    size = 1 + heights.abs().max()
    assert (found.low[0, 0] <= heights.amin(0) + 1e-9 * size).all()
    assert (found.high[0, 0] >= heights.amax(0) - 1e-9 * size).all()
    image = operator.image(Range(low, high))
    values = operator.apply(x)
    assert (image.low <= values.amin(0) + 1e-9 * size).all()
    assert (image.high >= values.amax(0) - 1e-9 * size).all()


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if hasattr(RULES[n][0], "curvature")])
def test_curvatures_are_second_derivatives(name):
    operator, _, (place, _) = RULES[name]
    x = torch.linspace(-6, 6, 241, dtype=torch.float64)
    x = x.abs().add(0.3).mul(np.sign(place)) if place else x
    h = 1e-4
    second = (operator.apply(x + h) - 2 * operator.apply(x) + operator.apply(x - h)) / h**2
    assert (operator.curvature(x) - second).abs().max() < 1e-5 * (1 + second.abs().max())
    # between neighbouring turns it is monotone
    turns = sorted({-7.0, 7.0, *operator.turns})
    for low, high in itertools.pairwise(turns):
        inner = torch.linspace(low, high, 401, dtype=torch.float64)
        if place:
            inner = inner.abs().add(0.3).sort().values * np.sign(place)
        steps = operator.curvature(inner).diff()
        assert (steps >= -1e-12).all() or (steps <= 1e-12).all()


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
    return sp.load(random_module(seed), torch.zeros(1, 1, 8, 8)).graph


def domains(parameters: int, seed: int) -> list[Domain]:
    """Boxes, simplices and other polytopes."""
    random = torch.Generator().manual_seed(seed)
    low = torch.rand((3, parameters), generator=random, dtype=torch.float64)
    size = 10.0 ** -torch.arange(3, dtype=torch.float64).unsqueeze(1)
    corners = torch.rand((3, parameters + 1, parameters), generator=random, dtype=torch.float64)
    many = torch.rand((3, parameters + 4, parameters), generator=random, dtype=torch.float64)
    return [Boxes(low, low + size), *(Hulls(low.unsqueeze(1) + size.unsqueeze(1) * c) for c in (corners, many))]


def samples(domain: Domain, count: int, seed: int) -> Tensor:
    """Points (count, cells, m) of each cell."""
    random = torch.Generator().manual_seed(seed)
    if isinstance(domain, Hulls):
        shares = torch.rand((count, *domain.vertices.shape[:2]), generator=random, dtype=torch.float64) ** 4
        return torch.einsum("scv,cvm->scm", shares / shares.sum(2, keepdim=True), domain.vertices)
    return domain.low + torch.rand((count, *domain.low.shape), generator=random, dtype=torch.float64) * (
        domain.high - domain.low
    )


@pytest.mark.parametrize("make", [module_graph, smooth_graph])
@given(seed=st.integers(0, 1000), parameters=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_bounds_of_networks_contain_samples(make, seed, parameters):
    graph = make(seed)
    path = random_path(graph.input_shape, parameters, seed)
    for domain in domains(parameters, seed):
        enclosed = enclose(graph, path.at(domain.points), domain)
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
        planes = planes_below(graph, enclose(graph, path.at(boxes.points), boxes), coefficients, torch.tensor([0]))
        centre = graph.run(path.at(boxes.centre))[0]
        gaps.append(float(centre[0] - centre[1] - planes.offset - planes.gradient[0] @ boxes.centre[0]))
    assert gaps[1] < gaps[0] / 20
    assert gaps[2] < gaps[1] / 50  # of second order
