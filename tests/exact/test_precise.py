"""The sweep with twice the digits: against fractions, against the plain sweep, and where only it can prove anything."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from models import network_of
from rational import exact, exact_path, exact_scores
from torch import nn

import shakeproof as sp
from shakeproof.analysis import answers
from shakeproof.budget import GIB, Budget
from shakeproof.evidence import by_class
from shakeproof.exact import Inputs, Lines, Precise, assemble, precise, slices, sweep
from shakeproof.exact.precise_rows import breaks, put_in, rows_at
from shakeproof.exact.twofold import Twofold
from shakeproof.exact.weights import channel_weights
from shakeproof.methods import SweptWindow, evaluation, sweeping
from shakeproof.model import Graph
from shakeproof.model.graph import Node
from shakeproof.operators import Clip, Combine, Conv, Linear, Relu, Reshape, SlidingWindow
from shakeproof.question import Path


def deep(seed: int, layers: int = 12, width: int = 5) -> Graph:
    """Layers with weights of float32, with residual branches and clips."""
    generator = torch.Generator().manual_seed(seed)

    def linear(inputs: int, outputs: int) -> Linear:
        weight = torch.randn(outputs, inputs, generator=generator).double()
        return Linear(weight, torch.randn(outputs, generator=generator).double() / 8)

    shape, nodes = torch.Size((width,)), list[Node]()
    last = 0
    for layer in range(layers):
        nodes.append(Node(linear(width, width), (last,), shape))
        nodes.append(Node(Clip(0.0, 6.0) if layer % 2 else Relu(), (len(nodes),), shape))
        if layer % 3 == 2:
            nodes.append(Node(Combine(1 if layer % 2 else -1), (len(nodes), last), shape))
        last = len(nodes)
    nodes.append(Node(linear(width, 3), (last,), torch.Size((3,))))
    return Graph(shape, tuple(nodes))


def path_of(graph: Graph, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed + 1000)
    slopes, base = (torch.randn(1, *graph.input_shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Path(slopes, base[0])


def precisely(graph: Graph, path: Path, tolerance: float = 1e-60) -> Precise:
    return Precise.of(graph, Inputs.of([(exact(path.slopes[0]), exact(path.base))], graph.input_shape), tolerance)


def twofold_scores(found: Precise, z: torch.Tensor) -> tuple[Twofold, torch.Tensor]:
    """The last value with all its digits, and what it is off by."""
    start = found.inputs.at(0, z)
    values, sizes = {0: start}, {0: found.size(0, start)}
    error = torch.full_like(z, found.inputs.off(0) * precise._effects(found.graph)[0])
    for index in range(len(found.graph.nodes)):
        error = error + found.step(index, values, sizes, None)
    return values[len(found.graph.nodes)], error


@pytest.mark.parametrize("seed", range(12))
def test_scores_are_as_close_to_the_truth_as_they_say(seed):
    graph = deep(seed)
    path = path_of(graph, seed)
    z = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    scores, error = twofold_scores(precisely(graph, path), z)
    size = float(scores.high.abs().max())
    assert float(error.max()) < 1e-12 * size  # far beyond what float64 could say of these layers
    for row, at in enumerate(z.tolist()):
        true = exact_scores(graph, exact_path(path, [Fraction(at)]))
        found = [Fraction(a) + Fraction(b) for a, b in zip(*(part[row].tolist() for part in scores), strict=True)]
        off = sum(((a - b) ** 2 for a, b in zip(true, found, strict=True)), Fraction(0))
        assert off <= Fraction(float(error[row])) ** 2
        assert off < (Fraction(size) * Fraction(2) ** -80) ** 2


@pytest.mark.parametrize("tolerance", [1e-60, 1e-3, 1e3])
@pytest.mark.parametrize("seed", range(8))
def test_chords_contain_the_truth(seed, tolerance):
    """With as many slices as can be, with some, and in float64 from an early layer on."""
    graph = deep(seed, layers=7)
    path = path_of(graph, seed)
    ends = (torch.tensor([end], dtype=torch.float64) for end in (0.0, 1.0))
    lines = Lines(Path.stacked([path]), *ends, path=torch.tensor([0]))
    found = precisely(graph, path, tolerance)
    (curve,) = assemble(sweep(graph, lines, Budget(), chords=found), 1, graph.classes)
    (plain,) = assemble(sweep(graph, lines, Budget()), 1, graph.classes)
    assert curve.covers(0.0, 1.0)
    assert len(curve.z) == len(plain.z)
    assert np.abs(curve.z - plain.z).max() < 1e-9
    z, rows = [Fraction(float(at)) for at in curve.z], [exact(row) for row in torch.from_numpy(curve.scores)]
    for k in range(len(z) - 1):
        for share in (Fraction(1, 2**20), Fraction(1, 2), Fraction(7, 8)):
            true = exact_scores(graph, exact_path(path, [z[k] + share * (z[k + 1] - z[k])]))
            chord = [a + share * (b - a) for a, b in zip(rows[k], rows[k + 1], strict=True)]
            steep = max(abs(b - a) for a, b in zip(rows[k], rows[k + 1], strict=True)) / (z[k + 1] - z[k])
            off = sum(((a - b) ** 2 for a, b in zip(true, chord, strict=True)), Fraction(0))
            beside = min(2 * steep * Fraction(2) ** -50, max(map(abs, rows[k])))  # rows are near their strengths
            assert off <= (Fraction(float(curve.error[k])) + beside) ** 2


def test_breaks_are_where_they_are_by_twice_the_digits():
    """A row is put where a neuron is at its threshold but for 2^-100 of what it is beside it."""
    graph = deep(3, layers=1)
    path = path_of(graph, 3)
    found = precisely(graph, path)
    z = torch.tensor([0.0, 1.0], dtype=torch.float64)
    rows, _ = found.made_of(0, [found.inputs.at(0, z)], [])
    plan = put_in(z, breaks(graph.nodes[1].operator, rows, torch.ones(5, dtype=torch.float64)))
    planned, _ = rows_at(plan, rows, lambda x: x.norm(dim=1))
    assert len(plan.z) > 2
    for row in range(1, len(plan.z) - 1):
        nearest = (planned.high[row] + planned.low[row]).abs().min()
        assert float(nearest) < 2.0**-98 * float(planned.high.abs().max())


def test_windows_are_those_of_one_sweep(monkeypatch):
    graph = deep(5, layers=7)
    path = path_of(graph, 5)
    ends = (torch.tensor([end], dtype=torch.float64) for end in (0.0, 1.0))
    lines = Lines(Path.stacked([path]), *ends, path=torch.tensor([0]))
    found = precisely(graph, path)
    (whole,) = assemble(sweep(graph, lines, Budget(), chords=found), 1, graph.classes)
    monkeypatch.setattr(precise, "longest_window", lambda graph, budget: 4)
    (parts,) = assemble(sweep(graph, lines, Budget(), chords=found), 1, graph.classes)
    assert np.array_equal(whole.z, parts.z)
    assert np.array_equal(whole.scores, parts.scores)


# -- a network that float64 cannot enclose ----------------------------------------------------------------------------


class Cancelling(nn.Module):
    """A small network with layers in between that double everything and take the difference of large multiples, which
    is what there was: only norms grow.
    """

    def __init__(self, pairs: int, large: float = 1024.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)
        self.twice, self.undo = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 4, 1)
        unit = torch.eye(4).view(4, 4, 1, 1)
        self.pairs = pairs
        with torch.no_grad():
            self.twice.weight.copy_(torch.cat([unit, unit]))
            self.undo.weight.copy_(torch.cat([large * unit, (1 - large) * unit], 1))
            for conv in (self.twice, self.undo):
                conv.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.clamp(self.first(x), 0, 6)
        for _ in range(self.pairs):
            x = torch.relu(self.undo(torch.relu(self.twice(x))))
        return self.last(x.flatten(1))


def cancelling(pairs: int) -> sp.Network:
    return network_of(Cancelling(pairs).eval(), 1, 6, 6)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1, 6, 6))


@pytest.mark.parametrize("seed", range(4))
def test_what_float64_cannot_enclose_is_proved_and_the_same(seed, monkeypatch):
    plain, large = (sp.profile(cancelling(pairs), picture(seed), "sharpen:size=3") for pairs in (0, 5))
    assert large.rounding == plain.rounding == "rigorous"
    assert large.status == plain.status
    assert [stretch.winner for stretch in by_class(large.profile)] == [
        stretch.winner for stretch in by_class(plain.profile)
    ]
    assert large.proof.certified == pytest.approx(plain.proof.certified, abs=1e-3)
    if plain.critical_strength is not None:
        low, high = large.critical_strength
        assert low <= plain.critical_strength[1]
        assert high >= plain.critical_strength[0]
    margin = float(large.evidence.start)
    assert large.evidence.proofs[0].curve.off.max() < margin
    monkeypatch.setattr(evaluation, "GREAT_EFFECT", float("inf"))  # a network so small is then proved without rounding
    in_float64 = sp.profile(cancelling(5), picture(seed), "sharpen:size=3")
    assert in_float64.evidence.proofs[0].curve.off.min() > 1e3 * margin


def test_a_sweep_that_goes_on_is_as_precise_as_one():
    """Whichever row it was left at: just there a neuron bends, and twice the digits see how far from that number."""
    network = cancelling(5)
    (query,) = sp.perturbed(network, [picture(0)], "sharpen:size=3")
    (whole,) = sp.analyse(network, [query])
    curve = whole.curve
    for end in curve.z[1:-1].tolist():
        begun = SweptWindow(0.0, end, curve.up_to(end), late=True, seconds=0.0)
        (result,) = answers(network, [query], begun=lambda asked, begun=begun: begun)
        assert (result.status, result.certified_strength) == (whole.status, whole.certified_strength)
        assert result.curve.error.max() < 2 * curve.error.max()
        assert np.abs(result.curve.at(curve.z) - curve.scores).max() < 1e-9
        (late,) = answers(network, [query], sp.Settings(timeout=1e-9), begun=lambda asked, begun=begun: begun)
        assert late.curve.z[-1] == end  # nothing is lost


def test_digits_are_added_where_they_are_needed_only():
    with sweeping._batch(*batch_of(cancelling(0))) as batch:
        assert not isinstance(batch.chords, Precise)
    with sweeping._batch(*batch_of(cancelling(5))) as batch:
        assert isinstance(batch.chords, Precise)
        depths = [own.depth for _, own in sorted(batch.chords.sliced.items())]
        assert depths[0] > depths[-1]
        assert len(depths) < sum(isinstance(node.operator, slices.Products) for node in batch.graph.nodes)


def batch_of(network: sp.Network):
    return network, sp.perturbed(network, [picture(0)], "sharpen:size=3"), sp.Settings()


@pytest.mark.parametrize("clip", ["", ",clip=0..0.9"])
def test_a_normalisation_is_divided_by_as_it_was_given(clip):
    """By 0.3, of which 1 / 0.3 is no number of float64: were it multiplied by that, effects of 10^20 would show it."""
    network = cancelling(6).normalised([0.1], [0.3])
    queries = sp.perturbed(network, [picture(0)], f"box-blur:size=3{clip}")
    with sweeping._batch(network, queries, sp.Settings()) as batch:
        chords = batch.chords
        assert isinstance(chords, Precise)
        _, error = chords.evaluated_at(0, torch.tensor([0.25], dtype=torch.float64))
        assert float(error) < 1e-2
        slope, base = batch.exactly(0)
    pixels = [b + s / 4 for s, b in zip(slope, base, strict=True)]
    given = chords.inputs.at(0, torch.tensor([0.25], dtype=torch.float64))
    if clip:
        pixels = [min(max(pixel, Fraction(0)), Fraction(0.9)) for pixel in pixels]
        given = precise.bent(batch.graph.nodes[0].operator, given)
    found = zip(*(part.flatten().tolist() for part in chords.normal.applied(given)), pixels, strict=True)
    off = sum((Fraction(a) + Fraction(b) - (x - Fraction(0.1)) / Fraction(0.3)) ** 2 for a, b, x in found)
    inputs = 4 * chords.inputs.off(0)
    assert 0 < off <= Fraction(float(chords.normal.left_out(chords.norm(0, given.high))) + inputs) ** 2


def test_what_goes_wrong_in_the_low_digits_is_noticed(monkeypatch):
    """Were the low parts lost, scores would not be what they are said to be."""
    graph = deep(5)
    path = path_of(graph, 5)
    found = precisely(graph, path)
    z = torch.tensor([0.3], dtype=torch.float64)
    _, error = twofold_scores(found, z)
    kept = precise.Sliced.apply
    monkeypatch.setattr(
        precise.Sliced, "apply", lambda own, x, above: kept(own, Twofold(x.high, torch.zeros_like(x.low)), above)
    )
    scores, _ = twofold_scores(found, z)
    true = exact_scores(graph, exact_path(path, [Fraction(0.3)]))
    off = max(
        abs(Fraction(a) + Fraction(b) - t)
        for a, b, t in zip(scores.high[0].tolist(), scores.low[0].tolist(), true, strict=True)
    )
    assert off > Fraction(float(error))


# -- weights of channels ----------------------------------------------------------------------------------------------


def test_weights_lower_what_errors_may_grow_to():
    graph = cancelling(5).graph
    weights = channel_weights(graph)
    assert len(weights) == len(graph.nodes) + 1
    assert all(bool((own > 0).all()) and bool(torch.isfinite(own).all()) for own in weights)
    assert bool((weights[0] == 1).all())
    assert bool((weights[-1] == 1).all())


@pytest.mark.parametrize("seed", range(5))
def test_errors_grow_by_no_more_than_their_effects(seed):
    """An error at any value grows by no more than its effect says, in weighted norms."""
    graph = cancelling(2).graph
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, *graph.input_shape, generator=generator, dtype=torch.float64)
    weights, effects = channel_weights(graph), precise._effects(graph)
    values = [x, *graph.values(x)]
    for value in range(len(graph.nodes)):
        shift = torch.randn(values[value].shape, generator=generator, dtype=torch.float64) * 1e-3
        moved = {number: own for number, own in enumerate(values) if number <= value} | {value: values[value] + shift}
        for index in range(value, len(graph.nodes)):
            moved[index + 1] = graph.nodes[index].operator.apply(*(moved[i] for i in graph.nodes[index].inputs))
        grown = float((moved[len(graph.nodes)] - values[-1]).norm())
        assert grown <= effects[value] * float((shift * weights[value]).norm())


def test_memory_and_time_are_kept():
    graph = deep(1, layers=7)
    path = path_of(graph, 1)
    ends = (torch.tensor([end], dtype=torch.float64) for end in (0.0, 1.0))
    lines = Lines(Path.stacked([path]), *ends, path=torch.tensor([0]))
    assert list(sweep(graph, lines, Budget(deadline=0.0), chords=precisely(graph, path))) == []
    with pytest.raises(sp.ShakeproofError, match="memory"):
        list(sweep(graph, lines, Budget(memory=GIB / 2**20), chords=precisely(graph, path)))


@pytest.mark.parametrize("scale", [2.0**-12, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("first", [2, 3])
def test_effects_of_branches_around_a_depthwise_layer(first, scale):
    """Its weights are others than those of what is added to it."""
    generator = torch.Generator().manual_seed(0)

    def mixing(inputs: int, outputs: int, side: int) -> Conv:
        weight = torch.randn(1, outputs, side * side * inputs, generator=generator).double()
        return Conv(weight, torch.zeros(outputs).double(), SlidingWindow((side, side), pads=(side // 2,) * 4))

    shape, flat = torch.Size((1, 4, 4, 4)), torch.Size((64,))
    kernels = scale * torch.randn(4, 1, 9, generator=generator).double()
    depthwise = Conv(kernels, torch.zeros(4).double(), SlidingWindow((3, 3), pads=(1,) * 4))
    last = Linear(torch.randn(3, 64, generator=generator).double(), torch.zeros(3).double())
    nodes = [Node(mixing(1, 4, 3), (0,), shape), Node(Relu(), (1,), shape), Node(depthwise, (2,), shape)]
    nodes += [Node(Combine(1), (first, 5 - first), shape), Node(mixing(4, 4, 1), (4,), shape)]
    nodes += [Node(Reshape((64,)), (5,), flat), Node(last, (6,), torch.Size((3,)))]
    graph = Graph(torch.Size((1, 4, 4, 1)), tuple(nodes))
    weights, effects = channel_weights(graph), precise._effects(graph)
    x = torch.rand(1, *graph.input_shape, generator=generator, dtype=torch.float64)
    values = [x, *graph.values(x)]
    for value in range(2, len(nodes)):
        moves = torch.eye(values[value].numel(), dtype=torch.float64).view(-1, *values[value].shape[1:]) * 2.0**-20
        own = {number: known.expand(len(moves), *known.shape[1:]) for number, known in enumerate(values[:value])}
        own[value] = values[value] + moves
        for index in range(value, len(nodes)):
            own[index + 1] = nodes[index].operator.apply(*(own[i] for i in nodes[index].inputs))
        columns = (own[len(nodes)] - values[-1]).T * 2.0**20
        gain = torch.linalg.matrix_norm(columns / weights[value].expand(values[value].shape[1:]).flatten(), 2)
        assert float(gain) <= effects[value] * (1 + 1e-6)


def test_what_a_sum_leaves_out_of_a_value_that_is_repeated():
    """One number added to a thousand: each of these sums is rounded."""
    generator = torch.Generator().manual_seed(0)

    def linear(outputs: int, scale: float) -> Linear:
        weight = torch.randn(outputs, 4, generator=generator).double() * scale
        return Linear(weight, torch.zeros(outputs).double())

    one, many, flat = torch.Size((1, 1, 1, 1)), torch.Size((1, 32, 32, 1)), torch.Size((1024,))
    nodes = [Node(linear(1, 1.0), (0,), torch.Size((1,))), Node(Reshape(tuple(one)), (1,), one)]
    nodes += [Node(linear(1024, 2.0**-12), (0,), flat), Node(Reshape(tuple(many)), (3,), many)]
    nodes += [Node(Combine(1), (2, 4), many), Node(Reshape((1024,)), (5,), flat)]
    graph = Graph(torch.Size((4,)), tuple(nodes))
    path = path_of(graph, 0)
    found = precisely(graph, path)
    start = found.inputs.at(0, torch.tensor([0.3], dtype=torch.float64))
    values, sizes = {0: start}, {0: found.size(0, start)}
    for index in range(4):
        found.step(index, values, sizes, None)
    made, claimed = found.made_of(4, [values[2], values[4]], [sizes[2], sizes[4]])
    first, second, total = (
        [Fraction(a) + Fraction(b) for a, b in zip(x.high.flatten().tolist(), x.low.flatten().tolist(), strict=True)]
        for x in (values[2], values[4], made)
    )
    off = sum((t - first[0] - b) ** 2 for t, b in zip(total, second, strict=True))
    assert 0 < off <= Fraction(float(claimed)) ** 2
