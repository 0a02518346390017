"""Verdicts and their evidence."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from models import dense, narrow_flip_network, network_of, random_module
from PIL import Image as Pillow
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.exact import Curve
from shakeproof.model import Comparison
from shakeproof.proof.evidence import Counterexample, Swept
from shakeproof.proof.verdict import Evidence, judge
from shakeproof.question import fitting, wins


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
    return network_of(module.double(), 1, 3, 3, dtype=torch.float64), image


def test_safe_unsafe_and_the_critical_strength():
    network, image = straight_line_network(1.0, -1.0)
    blur = sp.box_blur(3, padding="zeros")
    result = sp.profile(network, image, blur, label=0)
    assert result.status is sp.Status.UNSAFE
    low, high = result.critical_strength
    assert low <= 0.5 <= high
    assert high - low <= 1e-9
    assert [(i.winner, i.proved) for i in result.profile] == [(0, True), (0, False), (1, False), (1, True)]
    assert result.profile[1].end - result.profile[1].start < 1e-9 > result.profile[2].end - result.profile[2].start
    assert 0.5 < result.counterexample.strengths[0] < 0.51  # close to the flip
    assert result.counterexample.margin == pytest.approx(-0.001)
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


def test_a_flip_too_shallow_for_float32_is_no_verdict():
    """That it is there is proved of the network as it was read. The runtime does not show it, nor can it tell."""
    module = Shallow(1e-9)
    network = network_of(module, 1, 3, 3, dtype=torch.float64)
    single = module.float()
    network = dataclasses.replace(
        network,
        runtime=lambda x: torch.stack([single(torch.from_numpy(row))[0] for row in x]).detach().numpy(),
    )
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0
    result = sp.profile(network, image, "box-blur:size=3,padding=zeros", label=0)
    assert result.counterexample is not None
    assert not result.counterexample.replayed
    assert result.counterexample.margin == pytest.approx(-1e-9, rel=1e-3)
    assert result.counterexample.proved
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.COMPARISON)
    # at 0.5 the margin is smaller than the runtime's noise: what is said ends at the place before
    assert not result.evidence.comparison.tells()
    assert result.critical_strength is None
    assert result.certified_strength == 0.375


CURVE = Curve(np.array([0.0, 1.0]), np.array([[2.0, 0.0], [1.0, 0.0]]))
LATE = Curve(np.array([0.1, 1.0]), CURVE.scores)
EMPTY = Curve(CURVE.z[:0], CURVE.scores[:0])
SEEN = Counterexample((0.5,), np.zeros((1, 1), np.float32), np.zeros(2, np.float32), 1, -0.5, replayed=True)
AGREED = Comparison(np.ones(3), np.zeros(3, bool), np.zeros(3), np.zeros(3), np.ones(3, bool), np.full(3, np.nan))


@pytest.mark.parametrize(
    ("curve", "end", "witness", "lower", "start", "status", "reason"),
    [
        (CURVE, 1.0, None, 0.9, 2.0, "safe", None),
        (CURVE, 1.0, None, 0.0, 2.0, "undecided", "rounding"),
        (CURVE, 1.0, None, np.nan, 2.0, "undecided", "rounding"),
        (CURVE, 1.0, None, None, 2.0, "undecided", "rounding"),
        (CURVE, 0.9, None, 0.9, 2.0, "undecided", "timeout"),  # the curve must end exactly where the question ends
        (LATE, 1.0, None, 0.9, 2.0, "undecided", "timeout"),
        (EMPTY, 1.0, None, 0.9, 2.0, "undecided", "timeout"),
        (CURVE, 1.0, SEEN, 0.9, 2.0, "unsafe", None),
        (CURVE, 1.0, dataclasses.replace(SEEN, replayed=False, proved=True), 0.9, 2.0, "unsafe", None),
        (CURVE, 1.0, dataclasses.replace(SEEN, replayed=False), 0.9, 2.0, "undecided", "not-replayed"),
        (CURVE, 1.0, SEEN, 0.9, -1.0, "misclassified", None),
        (CURVE, 1.0, None, 0.9, 0.0, "misclassified", None),
        (CURVE, 1.0, None, 0.9, -0.0, "undecided", "not-replayed"),
    ],
)
def test_verdicts_need_their_evidence(curve, end, witness, lower, start, status, reason):
    proof = Swept(curve, wins(0, 2), 0, end, np.array([] if lower is None else [lower]), timed_out=reason == "timeout")
    shown = status == "misclassified"
    assert judge(Evidence(1, (proof,), witness, AGREED, start, start_fails=shown)) == (status, reason)


def test_nan_scores_are_no_verdict():
    network, image = straight_line_network(1.0, -1.0)
    nodes = list(network.graph.nodes)
    last = next(i for i, n in enumerate(nodes) if hasattr(n.operator, "bias"))
    broken = dataclasses.replace(nodes[last].operator, bias=torch.tensor([float("nan"), 0.0], dtype=torch.float64))
    nodes[last] = type(nodes[last])(broken, nodes[last].inputs, nodes[last].shape)
    graph = type(network.graph)(network.graph.input_shape, tuple(nodes))
    for method in ("exact", "bounds"):
        for ask in (sp.profile, sp.verify):
            strength = {"strength": 1.0} if ask is sp.verify else {}
            network = dataclasses.replace(network, graph=graph)
            result = ask(network, image, "box-blur:size=3", label=0, method=method, **strength)
            assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.NOT_FINITE)
            assert result.predicted is None
            assert result.critical_strength is None
            assert result.certified_strength == 0.0
            assert result.profile == ()


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
    queries = [query for kernel in made for query in sp.perturbed(network, [fitting(network, image)], kernel, 0, 1.0)]
    assert [r.status for r in sp.analyse(network, queries, sp.Settings())] == ["safe", "unsafe"]


def test_cancellation_inside_the_network_proves_nothing(float64_only):
    """relu(x + 2^46) - 2^46 loses the digits that the margin is made of."""

    class Cancelling(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(9, 2), nn.Linear(2, 2)
            with torch.no_grad():
                self.first.bias.fill_(2.0**46)
                self.last.weight.copy_(torch.eye(2))
                self.last.bias.fill_(-(2.0**46))

        def forward(self, x):
            return self.last(torch.relu(self.first(x.flatten(1))))

    network = network_of(Cancelling().double(), 1, 3, 3, dtype=torch.float64)
    result = sp.profile(network, torch.rand(1, 3, 3), "box-blur:size=3")
    assert result.status is sp.Status.UNDECIDED
    assert result.reason is sp.Reason.ROUNDING


def test_a_runtime_without_finite_scores_proves_nothing():
    """Scores that are finite in float64 but not in float32: the deployed network does not win there."""
    network, image = straight_line_network(2.0, 1.0)
    huge = dataclasses.replace(network, runtime=lambda x: np.full((len(x), 2), np.inf, np.float32))
    assert sp.profile(network, image, "box-blur:size=3", label=0).status is sp.Status.SAFE
    result = sp.profile(huge, image, "box-blur:size=3", label=0)
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.RUNTIME_DISAGREES)


class Hill(nn.Module):
    """Both scores are small, the label's larger by `lead`, except on a narrow hill in between, where they are a h1 +
    b h2 + lead and (a + b + 128) h1: so large that float64 does not tell who wins, and by 0.06 it is the rival.

    Other neurons, which matter nowhere, bend all along the way: no piece in particular catches the eye.
    """

    def __init__(self, a: float, b: float, lead: float = 0.45, middle: float = 0.5312, width: float = 0.004) -> None:
        super().__init__()
        others = torch.cat([torch.linspace(0.01, 0.51, 100), torch.linspace(0.55, 0.99, 100)]).double()
        self.first, self.second, self.last = nn.Linear(9, 202), nn.Linear(202, 3), nn.Linear(3, 2)
        self.double()
        with torch.no_grad():
            for layer in (self.first, self.second, self.last):
                layer.weight.zero_()
                layer.bias.zero_()
            self.first.weight[:, 4], self.first.weight[1, 4] = -9 / 8, 9 / 8  # the strength, and less it
            self.first.bias.copy_(9 / 8 - torch.cat([torch.tensor([middle, 9 / 4 - middle]).double(), others]))
            self.second.weight[:2, :2], self.second.bias[:2] = -1, width
            self.second.weight[2, 2:] = 1e-3
            self.last.weight.copy_(torch.tensor([[a, b, 0], [a + b + 128, 0, 0]], dtype=torch.float64))
            self.last.bias[0] = lead

    def forward(self, x):
        return self.last(torch.relu(self.second(torch.relu(self.first(x.flatten(1))))))

    def exact_margin(self, pixels: list[float]) -> Fraction:
        values = [Fraction(pixel) for pixel in pixels]
        for layer in (self.first, self.second, self.last):
            rows, bias = layer.weight.tolist(), layer.bias.tolist()
            values = [
                sum((Fraction(w) * v for w, v in zip(row, values, strict=True) if w), Fraction(offset))
                for row, offset in zip(rows, bias, strict=True)
            ]
            if layer is not self.last:
                values = [max(Fraction(0), value) for value in values]
        return values[0] - values[1]


@pytest.mark.parametrize("exact", [False, True])
def test_a_loss_that_float64_rounds_away_is_never_safe(exact, request):
    if not exact:
        request.getfixturevalue("float64_only")
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0
    random = np.random.default_rng(0)
    for _ in range(30):
        module = Hill(*(random.uniform(1, 2, 2).astype(np.float32) * np.float32(2.0**58)).tolist())
        network = network_of(module, 1, 3, 3, dtype=torch.float64)
        result = sp.profile(network, image, "box-blur:size=3,padding=zeros", label=0)
        path = result.query.path.path
        pixels = path.at(torch.tensor([0.5312], dtype=torch.float64)).flatten().tolist()
        assert module.exact_margin(pixels) < 0
        # where float64 does not see the loss, which depends on the order of its sums, exact arithmetic does
        if exact or result.reason is None:
            assert result.status is sp.Status.UNSAFE
        else:
            assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.ROUNDING)


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
    assert result.certified_strength == result.critical_strength[0]


def test_many_queries_are_answered_in_order(demo_network):
    images = [fitting(demo_network, path) for path, _ in demo.images()[:3]]
    kernels = [sp.box_blur(5), sp.sharpen(3, clip=(0.0, 1.0)), sp.motion_blur(5, 30, clip=(0.0, 0.8))]
    by_kernel = [sp.perturbed(demo_network, images, kernel, 3) for kernel in kernels]
    queries = [query for of_image in zip(*by_kernel, strict=True) for query in of_image]
    every_piece = sp.Settings(whole_curve=True)
    together = sp.analyse(demo_network, queries, every_piece)
    for query, result in zip(queries, together, strict=True):
        assert result.query is query
        alone = sp.analyse(demo_network, [query], every_piece)[0]
        assert alone.pieces == pytest.approx(result.pieces, rel=0.01)  # sums in another order may join two bends
        assert alone.profile[-1].winner == result.profile[-1].winner
        assert result.min_margin == pytest.approx(alone.min_margin, abs=1e-9)


def test_a_probe_that_finds_a_loss_is_all_the_work(demo_network, monkeypatch):
    """What rounding may do is worked out for a sweep: of a deep network, that takes long."""
    path, label = demo.images()[0]
    lost = sp.profile(demo_network, path, "motion-blur:size=9,angle=45", label=label).critical_strength
    assert lost is not None
    monkeypatch.setattr("shakeproof.proof.exact_method.RunningError", lambda graph: pytest.fail("a sweep was prepared"))
    assert sp.verify(demo_network, path, "motion-blur:size=9,angle=45", 1.0, label=label).status == "unsafe"


def test_clipping_is_part_of_the_path(demo_network):
    """At every strength, the curve is the network's score of the clipped image."""
    path, label = demo.images()[0]
    result = sp.profile(demo_network, path, "sharpen:size=9,clip=0..1", label=label)
    query = result.query
    z = np.linspace(0, 1, 37)
    images = torch.stack([query.perturbation.apply(query.image.pixels).image(float(t)) for t in z])
    assert torch.equal(images, images.clamp(0, 1))
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


def test_strength_zero_beside_another(demo_network):
    """A line of no length shares a sweep with others, more than that have breaks."""
    pictures = [fitting(demo_network, path) for path, _ in demo.images()] * 2
    queries = [
        *sp.perturbed(demo_network, pictures, "box-blur:size=5", strength=0.0),
        *sp.perturbed(demo_network, pictures[:1], "box-blur:size=5", strength=0.02),
    ]
    *none, one = sp.analyse(demo_network, queries)
    assert {(own.start, own.end) for result in none for own in result.profile} == {(0.0, 0.0)}
    (alone,) = sp.analyse(demo_network, queries[-1:])
    assert (one.status, one.pieces) == (alone.status, alone.pieces)


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
        *("version", "model", "image", "label", "predicted", "perturbation", "strength", "status"),
        *("critical_strength", "certified_strength", "profile", "counterexample", "min_margin", "method", "pieces"),
        *("rounding", "arithmetic", "reason", "seconds", "tested", "requirement"),
    ]
    data = json.loads(json.dumps(sp.profile(demo_network, path, "box-blur:size=11", label=label).to_json()))
    assert list(data) == keys
    assert data["profile"][0]["from"] == 0.0
    assert data["profile"][-1]["to"] == 1.0


def test_brackets_are_confirmed_by_direct_evaluation():
    for seed in range(6):
        network = network_of(random_module(seed), 1, 8, 8)
        image = torch.rand(1, 8, 8, dtype=torch.float64)
        result = sp.profile(network, image, "sharpen:size=5")
        if result.critical_strength is None:
            continue
        low, high = result.critical_strength
        assert 0 <= high - low <= 1e-9
        path = result.query.perturbation.apply(image)
        before, after = network.scores(torch.stack([path.image(low), path.image(high)]).unsqueeze(1))
        assert before.argmax() == result.label
        assert after.argmax() != result.label


def overflowing_queries() -> tuple[sp.Network, list[sp.Query], int]:
    """Some queries of which one has scores beyond float64, all from images that are fine in themselves."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    for parameter in module.parameters():
        parameter.data *= 50
    network = network_of(module, 1, 6, 6, dtype=torch.float64)
    pictures = [np.random.default_rng(seed).random((1, 6, 6)) for seed in range(4)]
    pictures.insert(1, pictures[0] * 1e308)
    images = [sp.Image("huge or not", torch.from_numpy(pixels)) for pixels in pictures]
    return network, sp.perturbed(network, images, "sharpen:size=3"), 1


@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_scores_that_are_no_numbers_are_one_querys_own_trouble(method, stop_early):
    network, queries, broken = overflowing_queries()
    settings = sp.Settings(method=method, stop_early=stop_early)
    together = sp.analyse(network, queries, settings)
    result = together[broken]
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.NOT_FINITE)
    assert (result.predicted, result.critical_strength, result.certified_strength) == (None, None, 0.0)
    others = [number for number in range(len(queries)) if number != broken]
    assert {together[number].status for number in others} == {sp.Status.SAFE, sp.Status.UNSAFE}
    without = sp.analyse(network, [queries[number] for number in others], settings)
    for number, alone in zip(others, without, strict=True):
        assert dataclasses.replace(together[number].record, seconds=0) == dataclasses.replace(alone.record, seconds=0)
        assert together[number].query is queries[number]
        assert np.array_equal(together[number].curve.scores, alone.curve.scores)


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_scores_that_overflow_on_the_way_are_no_verdict(method):
    """Finite at the image itself, beyond float64 later: never safe, nor a loss that nobody has seen."""
    network, image = straight_line_network(1.0, 0.5)
    nodes = list(network.graph.nodes)
    last = max(i for i, n in enumerate(nodes) if hasattr(n.operator, "bias"))
    weight = nodes[last].operator.weight.clone()
    weight[:, 0] = 1e308  # a corner pixel, 0 in the image and brighter later
    nodes[last] = dataclasses.replace(nodes[last], operator=dataclasses.replace(nodes[last].operator, weight=weight))
    graph = dataclasses.replace(network.graph, nodes=tuple(nodes))
    result = sp.profile(dataclasses.replace(network, graph=graph), image, "brightness:max=99", 0, method=method)
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.NOT_FINITE)
    assert result.counterexample is None
    assert result.certified_strength == 0.0


# -- what users pass ---------------------------------------------------------------------------------------------------

SIGNS = [path for path, _ in demo.images()[:2]]


def test_a_list_of_images_or_perturbations_gives_a_list_of_results(demo_network):
    texts = ["box-blur:size=5", sp.haze(0.5)]
    both = sp.profile(demo.MODEL, SIGNS, texts)
    assert [(r.query.name, str(r.query.perturbation)) for r in both] == [
        (str(sign), str(text)) for sign in SIGNS for text in texts
    ]
    assert [r.status for r in sp.profile(demo_network, SIGNS[0], texts)] == [r.status for r in both[:2]]
    assert [r.status for r in sp.verify(demo_network, tuple(SIGNS), texts[0], 0.2)] == ["safe", "safe"]
    (alone,) = sp.profile(demo_network, [SIGNS[0]], texts[0])
    assert alone.critical_strength == both[0].critical_strength
    assert sp.profile(demo_network, [], texts) == sp.profile(demo_network, SIGNS, []) == []


def test_labels_for_each_image(demo_network):
    for labels in ([1, None], np.array([1, 4]), torch.tensor([1, 4])):
        first, second = sp.verify(demo_network, SIGNS, "box-blur:size=3", 0.1, label=labels)
        assert (first.label, first.status, second.label, second.status) == (1, "misclassified", 4, "safe")
    for one in (np.int64(6), torch.tensor(6)):
        result = sp.verify(demo_network, SIGNS[0], "box-blur:size=3", 0.1, label=one)
        assert json.loads(json.dumps(result.to_json()))["label"] == 6


def test_pictures_of_every_kind(demo_network):
    array = np.asarray(Pillow.open(SIGNS[0]))
    pixels = torch.tensor(array).permute(2, 0, 1) / 255
    kinds = [SIGNS[0], str(SIGNS[0]), array, Pillow.open(SIGNS[0]), pixels, pixels.double().requires_grad_(),
             sp.read_image(SIGNS[0])]  # fmt: skip
    for kind in kinds:
        result = sp.verify(demo_network, kind, "box-blur:size=3", 0.1)
        assert torch.allclose(result.query.image.pixels, pixels.double(), atol=1e-7)


BLUR = "box-blur:size=3"


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda n: sp.profile("gone.onnx", SIGNS[0], BLUR), "gone.onnx"),
        (lambda n: sp.profile(None, SIGNS[0], BLUR), "a network is what load(...) gives"),
        (lambda n: sp.profile(nn.ReLU(), SIGNS[0], BLUR), "load it first"),
        (lambda n: sp.verify_specification(n, "q.vnnlib"), "q.vnnlib"),
        (lambda n: sp.verify_specification(n, 5), "a specification is a VNN-LIB file"),
        (lambda n: sp.profile(n, None, BLUR), "not NoneType"),
        (lambda n: sp.profile(n, {}, BLUR), "not dict"),
        (lambda n: sp.profile(n, "gone.png", BLUR), "gone.png"),
        (lambda n: sp.profile(n, np.zeros((3, 31, 32)), BLUR), "3 x 31 x 32"),
        (lambda n: sp.perturbed(n, SIGNS[0], BLUR), "images are a list"),
        (lambda n: sp.profile(n, SIGNS[0], None), "a perturbation is a text"),
        (lambda n: sp.profile(n, SIGNS[0], np.ones((3, 3))), "not numpy.ndarray of shape (3, 3)"),
        (lambda n: sp.profile(n, SIGNS[0], sp.any_kernel(3)), "only `verify` takes it"),
        (lambda n: sp.profile(n, SIGNS[0], BLUR, label="stpo"), "names no class"),
        (lambda n: sp.profile(n, SIGNS[0], BLUR, label=6.0), "the number of a class"),
        (lambda n: sp.profile(n, SIGNS, BLUR, label=[6]), "1 labels for 2 images"),
        (lambda n: sp.verify(n, SIGNS[0], BLUR, "half"), "a strength is a number"),
        (lambda n: sp.verify(n, SIGNS[0], BLUR, None), "a strength is a number"),
        (lambda n: sp.profile(n, SIGNS[0], BLUR, timeout="5"), "the timeout must be a number"),
        (lambda n: sp.export(demo.MODEL, SIGNS[0], 5, 0.1, "q"), "a perturbation is a text"),
        (lambda n: sp.parse(5), "a perturbation is a text"),
        (lambda n: sp.psf(5), "file is given by its name"),
        (lambda n: sp.box_blur("3"), "kernel size '3'"),
        (lambda n: sp.any_kernel(3.0), "size must be odd"),
        (lambda n: sp.motion_blur(3, "north"), "angle must be a number"),
        (lambda n: sp.brightness(None), "max must be a number"),
        (lambda n: sp.box_blur(3, clip=5), "clip must be"),
        (lambda n: sp.box_blur(3, clip=("a", "b")), "clip must be"),
    ],
)  # fmt: skip
def test_the_wrong_thing_is_called_so(demo_network, ask, problem):
    with pytest.raises(InputError) as error:
        ask(demo_network)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_what_dir_shows():
    assert {*dir(sp)} == {*sp.__all__, "__version__"}
    for name in sp.__all__:
        assert getattr(sp, name) is not None
    assert "analysis" not in dir(sp)


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "shakeproof", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"shakeproof, version {sp.__version__}"


def test_a_network_behind_a_clip_is_made_once(demo_network):
    first, again, other = (
        sp.perturbed(demo_network, [demo.images()[0][0]], f"sharpen:size=3,clip=0..{end}")[0].path
        for end in (1, 1, 0.9)
    )
    assert first.within(demo_network.graph) is again.within(demo_network.graph)
    assert other.within(demo_network.graph) is not first.within(demo_network.graph)


# -- wrong labels, wrong ranges, batches ------------------------------------------------------------------------------


def even_kernel_flip(network):
    """An image that the network takes for another class once the even kernel blurs it at strength 0; its own class."""
    generator = np.random.default_rng(0)
    for _ in range(2000):
        image = generator.uniform(size=(1, 6, 6))
        own, blurred = (sp.profile(network, image, text, max_strength=0.0) for text in ("identity", "box-blur:size=4"))
        if own.predicted != blurred.predicted:
            return image, own.predicted, blurred.predicted
    raise AssertionError("no such image")


def random_classifier():
    return network_of(nn.Sequential(nn.Flatten(), *dense(3, 36, 20, 4)), 1, 6, 6)


def test_even_kernels_that_make_a_picture_misclassified_say_so():
    network = random_classifier()
    image, own, blurred = even_kernel_flip(network)
    for method in ("exact", "bounds"):
        result = sp.profile(network, image, "box-blur:size=4", label=own, method=method)
        assert (result.status, result.predicted, result.unperturbed) == ("misclassified", blurred, own)
        assert "the kernel already blurs at strength 0" in result.sentence
        assert "preprocessing" not in result.sentence  # the picture itself is classified as it should be
        assert result.to_json()["unperturbed"] == own
        assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
    wrong = next(c for c in range(network.classes) if c not in (own, blurred))
    odd = sp.profile(network, image, "box-blur:size=3", label=wrong)
    assert (odd.status, odd.unperturbed) == ("misclassified", None)
    assert "check the label and the preprocessing" in odd.sentence
    assert "unperturbed" not in odd.to_json()


@pytest.mark.parametrize("pixels", ["real", "8bit"])
def test_a_wrong_label_ends_the_query_at_once(pixels):
    network = random_classifier()
    image = np.random.default_rng(1).integers(0, 256, (1, 6, 6)).astype(np.uint8)
    right = sp.profile(network, image, "box-blur:size=3", pixels=pixels)
    wrong = (right.predicted + 1) % network.classes
    at_once = sp.profile(network, image, "box-blur:size=3", label=wrong, pixels=pixels)
    whole = sp.profile(network, image, "box-blur:size=3", label=wrong, pixels=pixels, whole_curve=True)
    assert at_once.status == whole.status == "misclassified"
    assert at_once.counterexample.strengths[0] <= whole.counterexample.strengths[0]
    assert at_once.counterexample.replayed
    assert at_once.critical_strength == (0.0, 0.0)
    assert at_once.pieces <= whole.pieces == right.pieces
    assert whole.profile == right.profile
    if pixels == "real":
        assert (at_once.pieces, at_once.profile) == (0, ())


def test_the_counterexample_is_close_to_the_flip():
    network = sp.load(demo.MODEL)
    image = next(path for path, _ in demo.images() if path.name == "warning.1.png")
    for method in ("exact", "bounds"):
        result = sp.profile(network, str(image), "motion-blur:size=9,angle=90", method=method)
        shown = result.counterexample
        assert shown.replayed
        assert result.critical_strength[1] < shown.strengths[0] < result.critical_strength[1] + 0.01
        scale = np.abs(shown.outputs).max()
        lead = np.delete(shown.outputs, result.label).max() - shown.outputs[result.label]
        assert lead > 1e-4 * scale  # far more than float32's noise
        assert repr(shown).startswith("<Counterexample at strength 0.68")
        assert "\n" not in repr(shown)


def test_floats_from_0_to_255_and_batches_are_explained():
    network = sp.load(demo.MODEL)
    pixels = np.random.default_rng(0).uniform(0, 255, (3, 32, 32))
    for wrong in (pixels, pixels.astype(np.float32), torch.from_numpy(pixels)):
        with pytest.raises(sp.ShakeproofError, match="0 is black and 1 is white; divide them by 255, or pass Image"):
            sp.profile(network, wrong, "box-blur:size=3")
    taken = sp.Image("as it is", torch.from_numpy(pixels))
    assert sp.profile(network, taken, "box-blur:size=3", max_strength=0.0).query.image is taken
    normalised = sp.profile(network, 2 * pixels / 255 - 1, "box-blur:size=3", max_strength=0.0)
    assert normalised.query.image.pixels.min() < 0
    batch = np.stack([pixels, pixels]) / 255
    with pytest.raises(sp.ShakeproofError, match=r"is a batch of 2 pictures; pass one of them, or a list of all"):
        sp.profile(network, batch, "box-blur:size=3")
    assert len(sp.profile(network, list(batch), "box-blur:size=3", max_strength=0.01)) == 2
    assert sp.profile(network, batch[:1], "box-blur:size=3", max_strength=0.01).pieces > 0
