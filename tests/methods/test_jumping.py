"""Networks that jump, asked as users ask: verdicts, profiles and brackets against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rational import ExactLine, exact_path, exact_pieces, exact_scores
from torch import Tensor, nn

import shakeproof as sp
from shakeproof.network import Network
from shakeproof.perturbation import parse_path

# How close to a change of class a profile may be wrong.
NEAR = Fraction(1, 10**6)
PERTURBATIONS = ["box-blur:size=3", "brightness:max=0.5", "motion-blur:size=3,angle=45", "contrast:max=1,clip=0..1"]


class Jump(nn.Module):
    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = getattr(torch, function)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


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
        layers += [linear(inputs, outputs), Jump(str(random.choice(["sign", "sign", "round", "floor", "ceil"])))]
        if random.random() < 0.3:
            layers.insert(-1, nn.ReLU())
    picture = random.integers(0, 5, (1, side, side)) / 4 if random.random() < 0.7 else random.random((1, side, side))
    picture[:, : random.integers(side)] = 0
    return nn.Sequential(*layers, linear(sizes[-2], 3)).eval(), picture


def loaded(module: nn.Module, side: int = 4) -> Network:
    return sp.load(module, torch.zeros(1, 1, side, side))


def exact_line(picture: np.ndarray, text: str) -> ExactLine:
    return ExactLine(*parse_path(text).exactly(torch.from_numpy(picture).double()))


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
    certified = Fraction(result.proof.certified)
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
    for stretch in result.profile:
        low, high = Fraction(stretch.start) + NEAR, Fraction(stretch.end) - NEAR
        if any(low <= z <= high and lead(truth[z], stretch.winner) < 0 for z in beside):
            return "profile"
    return None


@given(seed=st.integers(0, 10**6), text=st.sampled_from(PERTURBATIONS))
@settings(max_examples=60, deadline=None)
def test_no_answer_is_wrong(seed, text):
    module, picture = binarised(seed)
    network = loaded(module)
    assert wrong(network, picture, text, sp.profile(network, picture, text)) is None
