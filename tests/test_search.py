"""Coverage of boxes, input splitting against the exact method, and verdicts by bounds."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_module
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.bounds import Path
from shakeproof.errors import InputError, MemoryBudgetError, ShakeproofError
from shakeproof.operators import Range, Relu
from shakeproof.search import Limits, Problem, covers, split_inputs
from shakeproof.search.split import ContradictionError

# -- coverage ----------------------------------------------------------------------------------------------------------


def partition(
    low: np.ndarray, high: np.ndarray, cuts: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes that make up a box, from random cuts."""
    boxes = [(low, high)]
    for _ in range(cuts):
        first, last = boxes.pop(random.integers(len(boxes)))
        axis = random.integers(len(low))
        place = random.uniform(first[axis], last[axis])
        left, right = last.copy(), first.copy()
        left[axis] = right[axis] = place
        boxes += [(first, left), (right, last)]
    lows, highs = zip(*boxes, strict=True)
    return np.array(lows), np.array(highs)


@given(seed=st.integers(0, 10**6), cuts=st.integers(0, 40), dimensions=st.integers(1, 4))
@settings(deadline=None)
def test_partitions_cover_and_with_a_gap_they_do_not(seed, cuts, dimensions):
    random = np.random.default_rng(seed)
    low = random.uniform(-1, 0, dimensions)
    high = low + random.uniform(0.1, 1, dimensions)
    lows, highs = partition(low, high, cuts, random)
    order = random.permutation(len(lows))
    lows, highs = lows[order], highs[order]
    assert covers(low, high, lows, highs)
    victim, axis = random.integers(len(lows)), random.integers(dimensions)
    narrower = highs.copy()
    narrower[victim, axis] = np.nextafter(highs[victim, axis], -np.inf)  # one unit in the last place is a gap
    assert not covers(low, high, lows, narrower)
    assert not covers(low, high, np.delete(lows, victim, 0), np.delete(highs, victim, 0))


def test_half_a_domain_is_not_a_domain():
    """A published splitter once made [.5, 1] and [.5, .5] of [0, 1]."""
    zero, one = np.zeros(1), np.ones(1)
    assert not covers(zero, one, np.array([[0.5], [0.5]]), np.array([[1.0], [0.5]]))
    assert covers(zero, one, np.array([[0.5], [0.0]]), np.array([[1.0], [0.5]]))
    assert not covers(zero, one, np.empty((0, 1)), np.empty((0, 1)))


def test_flat_domains():
    low, high = np.array([0.0, 0.3]), np.array([1.0, 0.3])
    assert covers(low, high, np.array([[0.0, 0.0], [0.5, 0.3]]), np.array([[0.5, 1.0], [1.0, 0.3]]))
    assert not covers(low, high, np.array([[0.0, 0.0], [0.5, 0.4]]), np.array([[0.5, 1.0], [1.0, 0.5]]))
    point = np.array([0.2])
    assert covers(point, point, np.array([[0.2]]), np.array([[0.2]]))
    assert not covers(point, point, np.array([[0.3]]), np.array([[0.4]]))


# -- splitting ---------------------------------------------------------------------------------------------------------


def network_of(seed: int) -> sp.Network:
    return sp.load(random_module(seed), torch.zeros(1, 1, 8, 8))


@given(
    seed=st.integers(0, 200), text=st.sampled_from(["box-blur:size=5", "sharpen:size=3", "motion-blur:size=5,angle=45"])
)
@settings(max_examples=25, deadline=None)
def test_bounds_never_contradict_the_exact_method(seed, text):
    network = network_of(seed)
    image = np.random.default_rng(seed).uniform(0, 1, (1, 8, 8))
    exact = sp.profile(network, image, text, method="exact")
    bounds = sp.profile(network, image, text, method="bounds")
    assert (exact.method, bounds.method) == ("exact", "bounds")
    assert bounds.status is exact.status
    if exact.critical_strength is not None:
        low, high = bounds.critical_strength
        assert low <= exact.critical_strength[1]
        assert high >= exact.critical_strength[0]
        assert high - low <= 1e-4
    else:
        assert bounds.min_margin <= exact.min_margin + 1e-9


def test_tolerance_is_kept():
    network = next(n for n in map(network_of, range(50)) if flips(n))
    image = np.random.default_rng(0).uniform(0, 1, (1, 8, 8))
    for tolerance in (1e-2, 1e-5, 1e-7):
        low, high = sp.profile(
            network, image, "box-blur:size=5", method="bounds", tolerance=tolerance
        ).critical_strength
        assert 0 < high - low <= tolerance


def flips(network: sp.Network) -> bool:
    image = np.random.default_rng(0).uniform(0, 1, (1, 8, 8))
    critical = sp.profile(network, image, "box-blur:size=5").critical_strength
    return critical is not None and critical[0] > 0


def test_a_narrow_flip_is_found():
    """The label loses for a thousandth of the strengths, where no grid point of the first boxes is."""
    from test_analysis import narrow_flip_network

    network, image = narrow_flip_network(centre=0.337, width=1e-3)
    result = sp.profile(network, image, "box-blur:size=3,padding=zeros", label=0, method="bounds")
    assert result.status is sp.Status.UNSAFE
    assert result.critical_strength[0] == pytest.approx(0.3365, abs=1e-4)


class Smooth(nn.Module):
    """Sigmoids, a gate and a softmax inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x):
        x = torch.sigmoid(self.first(x.flatten(1)))
        return self.last(x * torch.softmax(self.second(x), 1))


@given(seed=st.integers(0, 10**4))
@settings(max_examples=8, deadline=None)
def test_smooth_networks_and_two_strengths(seed):
    """What is proved of a map holds at sampled strengths, and its boxes cover the square."""
    torch.manual_seed(seed)
    network = sp.load(Smooth().eval(), torch.zeros(1, 1, 8, 8))
    image = torch.rand(1, 8, 8, dtype=torch.float64)
    both = sp.motion_blur(5, 0) + sp.brightness(0.9)
    result = sp.profile(network, image, both, max_strength=(1.0, 0.8), timeout=20)
    regions, path = result.regions, both.apply(image)
    assert result.query.strengths == (1.0, 0.8)
    every = np.concatenate([regions.safe, regions.violated, regions.open])
    assert covers(np.zeros(2), np.array([1.0, 0.8]), every[:, 0], every[:, 1])
    random = np.random.default_rng(seed)
    for boxes, wins in ((regions.safe, True), (regions.violated, False)):
        for low, high in boxes[:: max(1, len(boxes) // 20)]:
            z = random.uniform(low, high, (20, 2))
            scores = network.scores(torch.stack([path.at(*point) for point in z]).unsqueeze(1)).numpy()
            assert ((scores.argmax(1) == result.label) == wins).all()
    expected = sp.Status.UNSAFE if len(regions.violated) else sp.Status.SAFE
    assert result.status is expected


def problem_of(network: sp.Network, image: torch.Tensor, text: str, replay) -> Problem:
    affine = sp.parse(text).apply(image)
    layout = network.picture()
    path = Path(layout.to_input(affine.slopes), layout.to_input(affine.base))
    unit = torch.eye(network.graph.classes, dtype=torch.float64)
    label = int(network.scores(layout.to_input(image)[None]).argmax())
    claims = torch.stack([unit[label] - unit[j] for j in range(network.graph.classes) if j != label])
    low = torch.zeros(path.parameters, dtype=torch.float64)
    return Problem(network.graph, path, claims, low, low + 1, replay)


def test_losses_that_the_runtime_does_not_show_end_the_search_undecided():
    network = next(n for n in map(network_of, range(50)) if flips(n))
    image = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (1, 8, 8)))
    problem = problem_of(network, image, "box-blur:size=5", lambda z: np.zeros(len(z), bool))
    outcome = split_inputs(problem, Limits(tolerance=1e-3))
    assert not outcome.timed_out
    assert not len(outcome.replayed)
    assert len(outcome.violated)
    assert outcome.cells < 100


def test_an_unsound_rule_is_noticed(monkeypatch):
    """If ReLUs were enclosed as straight as they are at the centre, an evaluation would contradict a proof."""
    sound = Relu.relaxed
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0  # blurred, it falls to 1 - 8/9 z
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():  # the margin is 0.05 - 10 max(z - 0.1, 0)
        module[1].weight.copy_(-9 / 8 * torch.eye(9)[4:5])
        module[1].bias.fill_(9 / 8 - 0.1)
        module[3].weight.copy_(torch.tensor([[-10.0], [0.0]]))
        module[3].bias.copy_(torch.tensor([0.05, 0.0]))
    network = sp.load(module, torch.zeros(1, 1, 3, 3))
    blur = sp.box_blur(3, padding="zeros")
    assert sp.profile(network, image, blur, 0, method="bounds").critical_strength[0] == pytest.approx(0.105, abs=1e-4)

    def too_straight(self, *ranges):
        centre = ranges[0].centre
        return sound(self, Range(centre, centre))

    monkeypatch.setattr(Relu, "relaxed", too_straight)
    with pytest.raises(ContradictionError, match="contradicts a proof"):
        sp.profile(network, image, blur, 0, method="bounds")


def test_timeouts_are_kept(demo_network):
    path, label = demo.images()[0]
    text = "+".join(f"motion-blur:size=9,angle={angle}" for angle in (0, 30, 60, 90, 120))
    started = time.perf_counter()
    result = sp.verify(demo_network, path, text, 0.35, label=label, timeout=2.0)
    assert time.perf_counter() - started < 3.0
    if result.status is sp.Status.UNDECIDED:
        assert result.reason is sp.Reason.TIMEOUT
        assert result.min_margin is None


MEMORY = """
import sys, torch, shakeproof as sp
from torch import nn

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)).eval()
network = sp.load(module, torch.zeros(1, 3, 128, 128))
image = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(1))
sp.profile(network, image, "identity", memory=float(sys.argv[1]))
before = peak()
both = "motion-blur:size=9,angle=30+contrast:max=0.3"
result = sp.profile(network, image, both, memory=float(sys.argv[1]), timeout=20)
print(result.pieces, peak() - before)
"""


def test_memory_is_kept():
    done = subprocess.run([sys.executable, "-c", MEMORY, "0.3"], capture_output=True, text=True, check=True)
    cells, gib = map(float, done.stdout.split())
    assert cells >= 9
    assert gib < 0.3


def test_a_budget_that_is_too_small_is_an_error(demo_network):
    path, label = demo.images()[0]
    with pytest.raises(MemoryBudgetError, match="raise it with --memory"):
        sp.verify(demo_network, path, "box-blur:size=3", 0.2, label=label, method="bounds", memory=1e-6)


def test_rounding_of_values_that_cancel_proves_nothing():
    """Between two affine layers values are huge and cancel: what is left of the margin is rounding."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 2), nn.Identity(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].bias.copy_(torch.tensor([1e16, 1e16]))
        module[3].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        module[3].bias.copy_(torch.tensor([0.9, 0.0]))
    network = sp.load(module, torch.zeros(1, 1, 3, 3, dtype=torch.float64))
    image = np.full((1, 3, 3), 0.5)
    for method in ("exact", "bounds"):
        result = sp.verify(network, image, "box-blur:size=3", 1.0, label=0, method=method)
        assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.ROUNDING)


def test_scores_that_are_not_finite_are_no_verdict():
    class Root(nn.Module):
        def forward(self, x):
            total = x.flatten(1).sum(1, keepdim=True)
            return torch.cat([torch.sqrt(total + 50), total * 0], 1)

    network = sp.load(Root(), torch.zeros(1, 1, 3, 3))
    image = np.full((1, 3, 3), -50.0)
    for text in ("brightness:max=0.1", "brightness:max=0.1+contrast:max=0.1"):
        with pytest.raises(ShakeproofError, match="not finite"):
            sp.verify(network, image, text, 1.0, label=0)


def test_strengths_of_any_number_type(demo_network):
    path, label = demo.images()[0]
    for strength in (np.float32(0.25), np.array(0.25), torch.tensor(0.25), np.array([0.25])):
        result = sp.verify(demo_network, path, "box-blur:size=3", strength, label=label)
        assert result.to_json()["strength"] == 0.25


def test_methods(demo_network):
    path, label = demo.images()[0]
    both = "motion-blur:size=3,angle=0+motion-blur:size=3,angle=90"
    assert sp.verify(demo_network, path, "box-blur:size=3", 0.2, label=label).method == "exact"
    assert sp.verify(demo_network, path, both, 0.1, label=label).method == "bounds"
    with pytest.raises(InputError, match="takes one strength; use --method bounds"):
        sp.verify(demo_network, path, both, 0.1, label=label, method="exact")
    with pytest.raises(InputError, match="method must be auto, exact or bounds"):
        sp.verify(demo_network, path, both, 0.1, label=label, method="guess")
    with pytest.raises(InputError, match="tolerance must be between 0 and 1"):
        sp.verify(demo_network, path, both, 0.1, label=label, tolerance=0.0)
    with pytest.raises(InputError, match="2 strengths, or one for all"):
        sp.verify(demo_network, path, both, (0.1, 0.2, 0.3), label=label)


def test_one_of_two_strengths_may_be_zero(demo_network):
    path, label = demo.images()[1]
    both = "box-blur:size=9+motion-blur:size=9,angle=45"
    flat = sp.verify(demo_network, path, both, (0.6, 0.0), label=label, timeout=20)
    line = sp.verify(demo_network, path, "box-blur:size=9", 0.6, label=label)
    assert flat.status is line.status
    assert sp.profile(demo_network, path, both, max_strength=(0.6, 0.0), timeout=20).status is line.status


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_no_strength_at_all(demo_network, method):
    path, label = demo.images()[0]
    result = sp.verify(demo_network, path, "box-blur:size=3", 0.0, label=label, method=method)
    assert result.status is sp.Status.SAFE


def test_json_of_several_strengths(demo_network):
    path, label = demo.images()[0]
    text = "box-blur:size=9+contrast:max=-0.9"
    row = json.loads(json.dumps(sp.verify(demo_network, path, text, (1.0, 0.5), label=label).to_json()))
    assert row["strength"] == [1.0, 0.5]
    assert row["method"] == "bounds"
    assert row["critical_strength"] is None
    assert row["profile"] == []
    if row["counterexample"] is not None:
        assert len(row["counterexample"]["strength"]) == 2


# -- real networks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "data", "normalised"),
    [("mnist_sigmoid_6x200", "mnist_test", False), ("cifar10_vit_ibp_3_3_8", "cifar10_test_first2000", True)],
)
def test_smooth_networks_are_decided(shared, network, data, normalised):
    loaded = sp.load(shared(f"networks/{network}.onnx"))
    if normalised:
        loaded = loaded.normalised((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    archive = shared(f"data/{data}.npz")
    for index in range(2):
        for text in ("box-blur:size=5", "sharpen:size=3"):
            result = sp.verify(loaded, f"{archive}@{index}", text, 0.4, timeout=60)
            assert result.status is not sp.Status.UNDECIDED
            if result.status is sp.Status.SAFE:
                path = result.query.perturbation.apply(result.query.image.pixels)
                images = torch.stack([path.at(z) for z in np.linspace(0, 0.4, 200)])
                inputs = loaded.picture().to_input(images).float().numpy()
                assert (loaded.reference(inputs).argmax(1) == result.label).all()
