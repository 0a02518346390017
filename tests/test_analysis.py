"""Verdicts and their evidence."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from models import random_module
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.analysis import make_query
from shakeproof.errors import InputError
from shakeproof.exact import Curve
from shakeproof.result import Counterexample
from shakeproof.verdict import above_rounding, judge


def straight_line_network(margin_at_0: float, margin_at_1: float) -> tuple[sp.Network, np.ndarray]:
    """Two classes whose margin is affine in the strength of a box blur of the returned image."""
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0  # the centre falls from 1 to 1/9 as z grows to 1
    slope = (margin_at_0 - margin_at_1) / (8 / 9)
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].weight[0, 4] = slope
        module[1].bias.copy_(torch.tensor([margin_at_0 - slope, 0.0]))
    return sp.load(module.double(), torch.zeros(1, 1, 3, 3, dtype=torch.float64)), image


def test_safe_unsafe_and_the_critical_strength():
    network, image = straight_line_network(1.0, -1.0)
    blur = sp.box_blur(3, padding="zeros")
    result = sp.profile(network, image, blur, label=0)
    assert result.status is sp.Status.UNSAFE
    low, high = result.critical_strength
    assert low <= 0.5 <= high
    assert high - low <= 1e-9
    assert [i.winner for i in result.profile] == [0, 1]
    assert result.counterexample.strength == 1.0
    assert result.counterexample.margin == pytest.approx(-1.0)
    assert result.counterexample.replayed
    safe = sp.verify(network, image, blur, strength=0.4, label=0)
    assert safe.status is sp.Status.SAFE
    assert safe.min_margin == pytest.approx(0.2)
    assert safe.counterexample is None


def test_misclassified():
    network, image = straight_line_network(-1.0, 1.0)
    result = sp.profile(network, image, "box-blur:size=3,padding=zeros", label=0)
    assert result.status is sp.Status.MISCLASSIFIED
    assert result.critical_strength == (0.0, 0.0)
    assert result.predicted == 1


def test_without_a_label_the_prediction_is_taken():
    network, image = straight_line_network(-1.0, -2.0)
    result = sp.profile(network, image, "box-blur:size=3")
    assert result.label == result.predicted == 1


class Shallow(nn.Module):
    """The label's score is 1.7 |centre - 5/9|, zero at strength 1/2; its rival's is a constant, very small depth."""

    def __init__(self, depth: float) -> None:
        super().__init__()
        self.pick, self.out = nn.Linear(9, 1).double(), nn.Linear(1, 2).double()
        with torch.no_grad():
            self.pick.weight.zero_()
            self.pick.weight[0, 4] = 1.7
            self.pick.bias.fill_(-1.7 * 5 / 9)
            self.out.weight.copy_(torch.tensor([[1.0], [0.0]]))
            self.out.bias.copy_(torch.tensor([0.0, depth], dtype=torch.float64))

    def forward(self, x):
        return self.out(torch.abs(self.pick(x.flatten(1))))


def test_a_flip_too_shallow_for_float32_is_undecided_and_explained():
    module = Shallow(1e-9)
    network = sp.load(module, torch.zeros(1, 1, 3, 3, dtype=torch.float64))
    single = module.float()
    network = dataclasses.replace(
        network,
        reference=lambda x: torch.stack([single(torch.from_numpy(row))[0] for row in x]).detach().numpy(),
    )
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0
    result = sp.profile(network, image, "box-blur:size=3,padding=zeros", label=0)
    assert result.counterexample is not None
    assert not result.counterexample.replayed
    assert result.counterexample.margin == pytest.approx(-1e-9, rel=1e-3)
    assert result.status is sp.Status.UNDECIDED
    assert result.reason is sp.Reason.NOT_REPLAYED
    assert "float32" in result.reason.sentence
    assert result.critical_strength[0] == pytest.approx(0.5, abs=1e-5)


CURVE = Curve(np.array([0.0, 1.0]), np.array([[2.0, 0.0], [1.0, 0.0]]))
SEEN = Counterexample(0.5, 1, -0.5, replayed=True)


@pytest.mark.parametrize(
    ("curve", "strength", "witness", "assured", "wins", "status", "reason"),
    [
        (CURVE, 1.0, None, True, True, "safe", None),
        (CURVE, 1.0, None, False, True, "undecided", "rounding"),
        (CURVE, 0.9, None, True, True, "undecided", "timeout"),  # the curve must end exactly where the question ends
        (Curve(np.array([0.1, 1.0]), CURVE.scores), 1.0, None, True, True, "undecided", "timeout"),
        (Curve(CURVE.z[:0], CURVE.scores[:0]), 1.0, None, True, True, "undecided", "timeout"),
        (CURVE, 1.0, SEEN, True, True, "unsafe", None),
        (CURVE, 1.0, dataclasses.replace(SEEN, replayed=False), True, True, "undecided", "not-replayed"),
        (CURVE, 1.0, SEEN, True, False, "misclassified", None),
        (CURVE, 1.0, None, True, False, "misclassified", None),
    ],
)
def test_verdicts_need_their_evidence(curve, strength, witness, assured, wins, status, reason):
    assert judge(curve, 0, strength, witness, assured, wins) == (status, reason)


def test_nan_scores_are_an_error_never_a_verdict():
    network, image = straight_line_network(1.0, -1.0)
    nodes = list(network.graph.nodes)
    last = next(i for i, n in enumerate(nodes) if hasattr(n.operator, "bias"))
    broken = dataclasses.replace(nodes[last].operator, bias=torch.tensor([float("nan"), 0.0], dtype=torch.float64))
    nodes[last] = type(nodes[last])(broken, nodes[last].inputs, nodes[last].shape)
    graph = type(network.graph)(network.graph.input_shape, tuple(nodes))
    with pytest.raises(sp.ShakeproofError, match="not finite"):
        sp.profile(dataclasses.replace(network, graph=graph), image, "box-blur:size=3", label=0)


def test_one_text_with_two_kernels(tmp_path):
    """A kernel file rewritten between two perturbations: each keeps the kernel it was made with."""
    network, image = straight_line_network(1.0, -1.0)
    file = tmp_path / "k.npy"
    made = []
    for centre in (1.0, 0.0):
        matrix = np.zeros((3, 3))
        matrix[1, 1] = centre
        np.save(file, matrix)
        made.append(sp.custom(file))
    queries = [make_query(network, image, kernel, 0, 1.0) for kernel in made]
    assert [r.status for r in sp.analyse(network, queries, sp.Settings())] == ["safe", "unsafe"]


def test_cancellation_inside_the_network_proves_nothing():
    """relu(x + 2^40) - 2^40 loses the digits that the margin is made of."""

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(9, 2), nn.Linear(2, 2)
            with torch.no_grad():
                self.first.bias.fill_(2.0**40)
                self.last.weight.copy_(torch.eye(2))
                self.last.bias.fill_(-(2.0**40))

        def forward(self, x):
            return self.last(torch.relu(self.first(x.flatten(1))))

    network = sp.load(Cancelling().double(), torch.zeros(1, 1, 3, 3, dtype=torch.float64))
    result = sp.profile(network, torch.rand(1, 3, 3), "box-blur:size=3")
    assert result.status is sp.Status.UNDECIDED
    assert result.reason is sp.Reason.ROUNDING


def test_a_runtime_without_finite_scores_proves_nothing():
    """Scores that are finite in float64 but not in float32: the deployed network does not win there."""
    network, image = straight_line_network(2.0, 1.0)
    huge = dataclasses.replace(network, reference=lambda x: np.full((len(x), 2), np.inf, np.float32))
    assert sp.profile(network, image, "box-blur:size=3", label=0).status is sp.Status.SAFE
    result = sp.profile(huge, image, "box-blur:size=3", label=0)
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.ROUNDING)


def test_the_margin_must_exceed_rounding_at_every_row():
    fine = Curve(np.array([0.0, 1.0]), np.array([[1.0 + 1e-6, 1.0], [1e6 + 1.0, 1e6]]))
    assert above_rounding(fine, 0)
    assert not above_rounding(Curve(fine.z, np.array([[1.0 + 1e-6, 1.0], [1e6 + 1e-5, 1e6]])), 0)


def test_verify_stops_early_and_agrees_with_the_profile(demo_network):
    for path, label in demo.images()[:6]:
        for text in ("box-blur:size=9", "motion-blur:size=9,angle=45"):
            whole = sp.profile(demo_network, path, text, label=label)
            early = sp.verify(demo_network, path, text, strength=1.0, label=label)
            assert early.status is whole.status
            assert early.pieces <= whole.pieces
            if whole.critical_strength is not None:
                assert early.critical_strength[0] <= whole.critical_strength[0]
                assert early.critical_strength[1] >= whole.critical_strength[1] - 1e-10
                assert early.counterexample.replayed
                assert early.counterexample.margin < 0


def test_a_flip_between_probes_is_found_by_the_sweep():
    """Where no probe falls into it, a narrow flip is still found, with its exact critical strength."""
    network, image = narrow_flip_network(centre=0.5 / 32 + 0.25, width=1e-3)
    result = sp.verify(network, image, "box-blur:size=3,padding=zeros", strength=1.0, label=0)
    assert result.status is sp.Status.UNSAFE
    assert result.critical_strength[1] - result.critical_strength[0] <= 1e-9
    assert result.critical_strength[0] == pytest.approx(0.5 / 32 + 0.25 - 5e-4, abs=1e-5)


def narrow_flip_network(centre: float, width: float) -> tuple[sp.Network, np.ndarray]:
    """The label loses on an interval of strengths, and nowhere else: margin |z - centre| - width / 2."""
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0
    pick, out = nn.Linear(9, 1), nn.Linear(1, 2)
    with torch.no_grad():
        pick.weight.zero_()
        pick.weight[0, 4] = -9 / 8  # (1 - pixel) 9/8 is the strength
        pick.bias.fill_(9 / 8 - centre)
        out.weight.copy_(torch.tensor([[1.0], [0.0]]))
        out.bias.copy_(torch.tensor([0.0, width / 2]))

    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.pick, self.out = pick, out

        def forward(self, x):
            return self.out(torch.abs(self.pick(x.flatten(1))))

    return sp.load(Narrow(), torch.zeros(1, 1, 3, 3)), image


def test_many_queries_are_answered_in_order(demo_network):
    images = [make_query(demo_network, path, "identity", label, 1.0).image for path, label in demo.images()]
    kernels = [sp.box_blur(5), sp.sharpen(3, clip=(0.0, 1.0)), sp.motion_blur(5, 30, clip=(0.0, 0.8))]
    queries = [sp.Query(image, kernel, 3) for image in images[:3] for kernel in kernels]
    together = sp.analyse(demo_network, queries, sp.Settings())
    for query, result in zip(queries, together, strict=True):
        assert result.query is query
        alone = sp.analyse(demo_network, [query], sp.Settings())[0]
        assert alone.pieces == result.pieces
        assert alone.profile[-1].winner == result.profile[-1].winner
        assert result.min_margin == pytest.approx(alone.min_margin, abs=1e-9)


def test_clipping_is_part_of_the_path(demo_network):
    """At every strength, the curve is the network's score of the clipped image."""
    path, label = demo.images()[0]
    result = sp.profile(demo_network, path, "sharpen:size=9,clip=0..1", label=label)
    query = result.query
    z = np.linspace(0, 1, 37)
    images = torch.stack([query.perturbation.apply(query.image.pixels).at(float(t)).clamp(0, 1) for t in z])
    direct = demo_network.scores(images.unsqueeze(1)).numpy()
    assert np.abs(result.curve.at(z) - direct).max() < 1e-10
    unclipped = sp.profile(demo_network, path, "sharpen:size=9", label=label)
    assert np.abs(unclipped.curve.at(z) - direct).max() > 1e-3


def test_a_timeout_is_kept_and_said(demo_network):
    path, label = demo.images()[0]
    result = sp.profile(demo_network, path, "box-blur:size=9", label=label, timeout=1e-6)
    assert result.status is sp.Status.UNDECIDED
    assert result.reason is sp.Reason.TIMEOUT
    assert json.loads(json.dumps(result.to_json()))["min_margin"] is None


def test_progress_reaches_the_end(demo_network):
    path, label = demo.images()[0]
    seen = []
    sp.profile(demo_network, path, "box-blur:size=5", label=label, progress=seen.append)
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_strength_zero(demo_network):
    path, label = demo.images()[0]
    result = sp.profile(demo_network, path, "box-blur:size=5", label=label, max_strength=0.0)
    assert result.status is sp.Status.SAFE
    assert [(i.start, i.end) for i in result.profile] == [(0.0, 0.0)]


@pytest.mark.parametrize(
    "change",
    [{"label": 10}, {"label": -1}, {"max_strength": 1.5}, {"max_strength": -0.1}, {"max_strength": float("nan")},
     {"timeout": 0}, {"memory": 0}, {"memory": float("inf")}],
)  # fmt: skip
def test_impossible_questions(demo_network, change):
    with pytest.raises(InputError):
        sp.profile(demo_network, demo.images()[0][0], "box-blur:size=5", **change)


def test_json_has_the_promised_keys(demo_network):
    path, label = demo.images()[0]
    keys = [
        *("model", "image", "label", "predicted", "perturbation", "strength", "status", "critical_strength", "profile"),
        *("counterexample", "min_margin", "method", "pieces", "rounding", "reason", "seconds"),
    ]
    data = json.loads(json.dumps(sp.profile(demo_network, path, "box-blur:size=11", label=label).to_json()))
    assert list(data) == keys
    assert data["profile"][0]["from"] == 0.0
    assert data["profile"][-1]["to"] == 1.0


def test_brackets_are_confirmed_by_direct_evaluation():
    for seed in range(6):
        network = sp.load(random_module(seed), torch.zeros(1, 1, 8, 8))
        image = torch.rand(1, 8, 8, dtype=torch.float64)
        result = sp.profile(network, image, "sharpen:size=5")
        if result.critical_strength is None:
            continue
        low, high = result.critical_strength
        assert 0 <= high - low <= 1e-9
        path = result.query.perturbation.apply(image)
        before, after = network.scores(torch.stack([path.at(low), path.at(high)]).unsqueeze(1))
        assert before.argmax() == result.label
        assert after.argmax() != result.label
