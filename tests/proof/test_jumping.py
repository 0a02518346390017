"""Networks that jump, asked as users ask: verdicts, profiles and brackets against rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model, network_of
from onnx import helper
from rational import ExactLine, exact_path, exact_pieces, exact_scores
from torch import Tensor, nn

import shakeproof as sp
from shakeproof.errors import InputError
from shakeproof.model import Network
from shakeproof.question import as_whole, parse_path

# How close to a change of class a profile may be wrong.
PERTURBATIONS = ["box-blur:size=3", "brightness:max=0.5", "motion-blur:size=3,angle=45", "contrast:max=1,clip=0..1"]


class Jump(nn.Module):
    """A function that jumps, as binarised and quantised networks write it."""

    WAYS: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "sign": torch.sign,
        "sign, or 1": lambda x: torch.sign(torch.sign(x) + 0.1),
        "choice": lambda x: torch.where(x >= 0, 1.0, -1.0),
        "comparison": lambda x: 2 * (x > 0).float() - 1,
        "round": torch.round,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "two bits": lambda x: torch.round(torch.clamp(x, 0, 3)),
    }

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.WAYS[self.way](x)


def binarised(seed: int, side: int = 4) -> tuple[nn.Module, np.ndarray]:
    """A small network that jumps, and a picture: some with ties, sums that are 0 and black pixels."""
    random = np.random.default_rng(seed)

    def linear(inputs: int, outputs: int) -> nn.Linear:
        made = nn.Linear(inputs, outputs)
        shape = (outputs, inputs)
        kinds = [random.choice([-1.0, 1.0], shape), random.integers(-2, 3, shape) / 4, random.normal(size=shape)]
        made.weight.data = torch.tensor(kinds[random.integers(3)]).float()
        made.bias.data = torch.tensor(random.choice([0.0, 0.25, random.normal()], outputs)).float()
        return made

    layers: list[nn.Module] = [nn.Flatten()]
    sizes = [side * side, *(5 for _ in range(random.integers(1, 4))), 3]
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [linear(inputs, outputs), Jump(str(random.choice(list(Jump.WAYS))))]
        if random.random() < 0.3:
            layers.insert(-1, nn.ReLU())
    picture = random.integers(0, 5, (1, side, side)) / 4 if random.random() < 0.7 else random.random((1, side, side))
    picture[:, : random.integers(side)] = 0
    return nn.Sequential(*layers, linear(sizes[-2], 3)).eval(), picture


def loaded(module: nn.Module, side: int = 4) -> Network:
    return network_of(module, 1, side, side)


def exact_line(picture: np.ndarray, text: str) -> ExactLine:
    path = parse_path(text).exactly(*as_whole(torch.from_numpy(picture).double()))
    base, *slopes = ([Fraction(n, path.unit) for n in whole.ravel()] for whole in (path.base, *path.slopes))
    return ExactLine(slopes, base)


def lead(scores: list[Fraction], of: int) -> Fraction:
    return scores[of] - max(score for number, score in enumerate(scores) if number != of)


def wrong(network: Network, picture: np.ndarray, text: str, result: sp.Result) -> str | None:
    """What is not true of an answer, if anything."""
    graph, line = network.graph, exact_line(picture, text)
    if "clip" in text:
        graph = result.query.path.within(graph)
    places = exact_pieces(graph, line, Fraction(1))
    beside = [
        low + (high - low) * share for low, high in pairwise(places) for share in (Fraction(1, 10**15), Fraction(1, 2))
    ]
    truth = {z: exact_scores(graph, exact_path(line, [z])) for z in sorted({*places, *beside})}
    leads = {z: lead(scores, result.label) for z, scores in truth.items()}
    if result.status == sp.Status.SAFE and min(leads.values()) <= 0:
        return "safe"
    certified = Fraction(0 if result.proof is None else result.proof.certified)
    if certified and any(z <= certified and ahead <= 0 for z, ahead in leads.items()):
        return "certified"
    if result.critical_strength is not None:
        high = Fraction(result.critical_strength[1])
        if high < 1 and lead(exact_scores(graph, exact_path(line, [high])), result.label) > 0:
            return "critical"
    found = result.counterexample
    if result.status == sp.Status.UNSAFE and not found.replayed:
        scores = exact_scores(graph, exact_path(line, [Fraction(found.strengths[0])]))
        if lead(scores, result.label) > 0:
            return "unsafe"
    for part in result.profile:
        inside = [z for z in beside if Fraction(part.start) <= z <= Fraction(part.end)]
        if part.proved and any(lead(truth[z], part.winner) <= 0 for z in inside):
            return "profile"
    return None


@given(seed=st.integers(0, 10**6), text=st.sampled_from(PERTURBATIONS))
@settings(max_examples=60)
def test_no_answer_is_wrong(seed, text):
    module, picture = binarised(seed)
    network = loaded(module)
    assert wrong(network, picture, text, sp.profile(network, picture, text)) is None


def test_most_answers_are_decided():
    """Small networks whose weights are the file's are decided without rounding, if need be."""
    said = [
        sp.profile(loaded(module), picture, PERTURBATIONS[0]).status for module, picture in map(binarised, range(20))
    ]
    assert said.count(sp.Status.UNDECIDED) <= 1
    assert {sp.Status.SAFE, sp.Status.UNSAFE} <= set(said)


NODES = {
    "Greater and Where": [("Greater", ["h", "c"], {}), ("Where", ["g", "one", "minus"], {})],
    "GreaterOrEqual and Cast": [("GreaterOrEqual", ["h", "c"], {}), ("Cast", ["g"], {"to": 1})],
    "Less, the constant first": [("Less", ["c", "h"], {}), ("Where", ["g", "one", "minus"], {})],
    "LessOrEqual and Not": [("LessOrEqual", ["h", "c"], {}), ("Not", ["g"], {}), ("Cast", ["g"], {"to": 1})],
    "a threshold for each neuron": [("Greater", ["h", "b"], {}), ("Where", ["g", "b", "minus"], {})],
}


@pytest.mark.parametrize("name", NODES)
def test_comparisons_as_exporters_write_them(tmp_path, name):
    """On a picture where neurons are just at their threshold, too: the load compares with onnxruntime on zeros."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.integers(-2, 3, (16, 6)).astype(np.float32),
        "v": random.normal(size=(6, 3)).astype(np.float32),
        "c": np.zeros((), np.float32),
        "b": np.array([0, 0.5, 0, -0.25, 0.1, 0], np.float32),
        "one": np.ones((), np.float32),
        "minus": -np.ones((), np.float32),
    }
    nodes, made = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["h"])], "h"
    for number, (kind, inputs, attributes) in enumerate(NODES[name]):
        given = [made if i == "g" else i for i in inputs]
        made = f"v{number}"
        nodes.append(helper.make_node(kind, given, [made], **attributes))
    nodes.append(helper.make_node("MatMul", [made, "v"], ["y"]))
    path = tmp_path / "network.onnx"
    onnx.save(model(nodes, [1, 1, 4, 4], weights), path)
    network = sp.load(path)
    assert network.graph.jumping_operators == ("Positive",)
    for picture in (np.zeros((1, 4, 4)), random.integers(0, 5, (1, 4, 4)) / 4):
        result = sp.profile(network, picture, "brightness:max=0.5")
        assert result.status != sp.Status.UNDECIDED or "each neuron" in name  # thresholds that are rounded
        assert wrong(network, picture, "brightness:max=0.5", result) is None


def test_bounds_agree():
    for seed in range(12):
        module, picture = binarised(seed)
        network = loaded(module)
        exact, bounded = (
            sp.verify(network, picture, "box-blur:size=3", 1.0, method=method, timeout=10)
            for method in ("exact", "bounds")
        )
        assert wrong(network, picture, "box-blur:size=3", bounded) is None
        assert {exact.status, bounded.status} != {sp.Status.SAFE, sp.Status.UNSAFE}


def test_float32_is_not_promised():
    module, picture = binarised(0)
    with pytest.raises(InputError, match="float32"):
        sp.profile(loaded(module), picture, "box-blur:size=3", arithmetic="float32")


def beside_a_jump(picture: np.ndarray, way: float) -> nn.Module:
    """A neuron so close to its threshold on a picture that float32 is on the wrong side of it, or at it."""
    random = np.random.default_rng(0)
    torch.manual_seed(0)
    first, last = nn.Linear(16, 4), nn.Linear(4, 3)
    first.weight.data = torch.from_numpy(random.normal(size=(4, 16))).float()
    height = (first.weight.data[0].double() @ torch.from_numpy(picture.ravel()).float().double()).item()
    first.bias.data[0] = -height
    while (height + first.bias.data[0].double().item()) * way <= 0:
        first.bias.data[0] = float(np.nextafter(first.bias.data[0].numpy(), np.float32(way * np.inf)))
    first.bias.data[1:] = 5.0
    last.weight.data[:, 0] = torch.tensor([1.0, -1.0, 0.0])
    return nn.Sequential(nn.Flatten(), first, Jump("sign"), last).eval()


@pytest.mark.parametrize("way", [-1.0, 1.0])
def test_where_float32_falls_on_the_other_side_the_network_was_not_misread(way):
    picture = np.random.default_rng(1).random((1, 4, 4)).astype(np.float32).astype(float)
    network = loaded(beside_a_jump(picture, way))
    given = picture.astype(np.float32)[None].reshape(1, *network.graph.input_shape)
    ours, theirs = network.scores(torch.from_numpy(given).double()), network.reference(given)
    assert network.beside(ours, theirs, given)[0] <= 1
    # another function's outputs are not excused by that
    assert network.beside(ours, theirs + np.float32([30.0, 0.0, -30.0]), given)[0] > 1


class OfOnePixel(nn.Module):
    """The first class scores a half; the second, 1 where a pixel is not 0."""

    def forward(self, x: Tensor) -> Tensor:
        other = torch.sign(x.flatten(1)[:, :1])
        return torch.cat([0 * other + 0.5, other], 1)


@pytest.mark.parametrize("text", ["box-blur:size=3", "box-blur:size=4"])
def test_what_is_too_small_for_float64_is_not_nothing(text):
    """Beside a black pixel is one that is next to black: what the blur makes of both is lost, but positive."""
    picture = np.zeros((1, 4, 4))
    picture[0, 1, 1] = 5e-324
    assert sp.profile(loaded(OfOnePixel().eval()), picture, text, label=0).status != sp.Status.SAFE
