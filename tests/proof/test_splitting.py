"""Whole queries answered by splitting: verdicts against the exact method, an exact solver, and samples."""

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
from models import NETWORKS, TESTS, WIDE, box_around, dense, narrow_flip_network, network_of, random_module
from processes import HANGING
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor, nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError, MemoryBudgetError, ProofError
from shakeproof.operators import Range, Relu
from shakeproof.question import Case, by_boxes, robustness
from shakeproof.question.properties import Box
from shakeproof.search.activation_splitting import ActivationSplitting

# -- paths -------------------------------------------------------------------------------------------------------------


def branching(seed: int) -> sp.Network:
    return network_of(random_module(seed), 1, 8, 8)


@given(
    seed=st.integers(0, 200), text=st.sampled_from(["box-blur:size=5", "sharpen:size=3", "motion-blur:size=5,angle=45"])
)
@settings(max_examples=25)
def test_bounds_never_contradict_the_exact_method(seed, text):
    network = branching(seed)
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
    network = next(n for n in map(branching, range(50)) if flips(n))
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
@settings(max_examples=8)
def test_smooth_networks_and_two_strengths(seed):
    """What is proved of a map holds at sampled strengths, and its boxes cover the square."""
    torch.manual_seed(seed)
    network = network_of(Smooth().eval(), 1, 8, 8)
    image = torch.rand(1, 8, 8, dtype=torch.float64)
    both = sp.motion_blur(5, 0) + sp.brightness(0.9)
    result = sp.profile(network, image, both, max_strength=(1.0, 0.8), timeout=20)
    regions, path = result.regions, both.apply(image)
    assert result.query.strengths == (1.0, 0.8)
    random = np.random.default_rng(seed)
    every = np.concatenate([regions.safe, regions.violated, regions.open])
    z = random.uniform(0, [1.0, 0.8], (500, 1, 2))
    assert ((z >= every[:, 0]) & (z <= every[:, 1])).all(2).any(1).all()
    assert (every[:, 1] - every[:, 0]).prod(1).sum() == pytest.approx(0.8)
    for boxes, wins in ((regions.safe, True), (regions.violated, False)):
        for low, high in boxes[:: max(1, len(boxes) // 20)]:
            z = random.uniform(low, high, (20, 2))
            scores = network.scores(path.at(torch.from_numpy(z)).unsqueeze(1)).numpy()
            assert ((scores.argmax(1) == result.label) == wins).all()
    expected = sp.Status.UNSAFE if len(regions.violated) else sp.Status.SAFE
    assert result.status is expected


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
    network = network_of(module, 1, 3, 3)
    blur = sp.box_blur(3, padding="zeros")
    assert sp.profile(network, image, blur, 0, method="bounds").critical_strength[0] == pytest.approx(0.105, abs=1e-4)

    def too_straight(self, *ranges):
        centre = ranges[0].centre
        return sound(self, Range(centre, centre))

    monkeypatch.setattr(Relu, "relaxed", too_straight)
    with pytest.raises(ProofError, match="contradicts a proof"):
        sp.profile(network, image, blur, 0, method="bounds")


def test_timeouts_are_kept(demo_network):
    path, label = demo.images()[0]
    text = "+".join(f"motion-blur:size=9,angle={angle}" for angle in (0, 30, 60, 90, 120))
    started = time.process_time()  # beside other work, the clock on the wall says little
    result = sp.verify(demo_network, path, text, 0.35, label=label, timeout=2.0)
    assert time.process_time() - started < 3.0 * torch.get_num_threads()
    if result.status is sp.Status.UNDECIDED:
        assert result.reason is sp.Reason.TIMEOUT
        assert result.min_margin is None


MEMORY = """
import sys, torch, shakeproof as sp
from models import network_of
from torch import nn

def peak():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU(),
    nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)).eval()
network = network_of(module, 3, 128, 128)
image = torch.rand(3, 128, 128, generator=torch.Generator().manual_seed(1))
sp.profile(network, image, "identity", memory=float(sys.argv[1]))
before = peak()
both = "motion-blur:size=9,angle=30+contrast:max=0.3"
result = sp.profile(network, image, both, memory=float(sys.argv[1]), timeout=600)
print(result.pieces, peak() - before)
"""


def test_memory_is_kept():
    done = subprocess.run([sys.executable, "-c", MEMORY, "0.3"], capture_output=True, text=True, check=True, cwd=TESTS)
    cells, gib = map(float, done.stdout.split())
    assert cells >= 9
    assert gib < 0.3


def test_a_budget_that_is_too_small_is_an_error(demo_network):
    path, label = demo.images()[0]
    with pytest.raises(MemoryBudgetError, match="raise it") as refused:
        sp.verify(demo_network, path, "box-blur:size=3", 0.2, label=label, method="bounds", memory=1e-6)
    assert refused.value.option == "memory"


def test_rounding_of_values_that_cancel_proves_nothing(float64_only):
    """Between two affine layers values are huge and cancel: what is left of the margin is rounding."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(9, 2), nn.Identity(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].bias.copy_(torch.tensor([1e16, 1e16]))
        module[3].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
        module[3].bias.copy_(torch.tensor([0.9, 0.0]))
    network = network_of(module, 1, 3, 3, dtype=torch.float64)
    image = np.full((1, 3, 3), 0.5)
    for method in ("exact", "bounds"):
        result = sp.verify(network, image, "box-blur:size=3", 1.0, label=0, method=method)
        assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.ROUNDING)


def amplifying_module() -> nn.Module:
    """3 + 2^-57 sum(x) is 3 in float64; in truth, what is left of it once 3 is taken away becomes large, and loses."""
    layers = [nn.Flatten(), nn.Linear(9, 2), nn.ReLU(), nn.Linear(2, 1), nn.Hardtanh(-4.0, 4.0)]
    for _ in range(6):
        layers += [nn.Linear(1, 1), nn.Hardtanh(-100.0, 100.0)]
    module = nn.Sequential(*layers, nn.Linear(1, 2)).double()
    with torch.no_grad():
        for layer in module:
            if isinstance(layer, nn.Linear):
                layer.bias.zero_()
                layer.weight.fill_(1024.0)
        module[1].weight.copy_(torch.tensor([[0.0], [2.0**-57]]).expand(2, 9))
        module[1].bias.fill_(3.0)
        module[3].weight.copy_(torch.tensor([[1.0, -1.0]]))
        module[-1].weight.copy_(torch.tensor([[1.0], [0.0]]))
        module[-1].bias.copy_(torch.tensor([1.0, 0.0]))
    return module


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_amplified_rounding_proves_nothing_along_a_path(method, float64_only):
    network = network_of(amplifying_module(), 1, 3, 3, dtype=torch.float64)
    image = np.full((1, 3, 3), 0.5)
    result = sp.verify(network, image, "box-blur:size=3,padding=zeros", 1.0, label=0, method=method)
    assert result.status is sp.Status.UNDECIDED


@pytest.mark.parametrize("fixed", [0, 5])
def test_amplified_rounding_proves_nothing_on_a_box(fixed):
    """Of all inputs, and of the few that vary."""
    network = network_of(amplifying_module(), 1, 3, 3, dtype=torch.float64)
    low, high = np.full(9, 0.5), np.ones(9)
    high[:fixed] = 0.5
    assert answer(network, row_case(low, high, [-1.0, 1.0], 0.0)).status == "undecided"


def test_scores_that_are_not_finite_are_no_verdict():
    class Root(nn.Module):
        def forward(self, x):
            total = x.flatten(1).sum(1, keepdim=True)
            return torch.cat([torch.sqrt(total + 50), total * 0], 1)

    network = network_of(Root(), 1, 3, 3)
    image = np.full((1, 3, 3), -50.0)
    for text in ("brightness:max=0.1", "brightness:max=0.1+contrast:max=0.1"):
        result = sp.verify(network, image, text, 1.0, label=0)
        assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.NOT_FINITE)


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
    with pytest.raises(InputError, match="takes one strength") as refused:
        sp.verify(demo_network, path, both, 0.1, label=label, method="exact")
    assert refused.value.option == "method"
    with pytest.raises(InputError, match="method must be auto, exact or bounds"):
        sp.verify(demo_network, path, both, 0.1, label=label, method="guess")
    with pytest.raises(InputError, match="tolerance must be between 0 and 1"):
        sp.verify(demo_network, path, both, 0.1, label=label, tolerance=0.0)
    with pytest.raises(InputError, match="2 strengths, or one for all"):
        sp.verify(demo_network, path, both, (0.1, 0.2, 0.3), label=label)


def test_one_of_two_strengths_may_be_zero(demo_network):
    path, label = demo.images()[1]
    both = "box-blur:size=9+motion-blur:size=9,angle=45"
    flat = sp.verify(demo_network, path, both, (0.6, 0.0), label=label, timeout=HANGING)
    line = sp.verify(demo_network, path, "box-blur:size=9", 0.6, label=label)
    assert flat.status is line.status
    assert sp.profile(demo_network, path, both, max_strength=(0.6, 0.0), timeout=HANGING).status is line.status


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
            result = sp.verify(loaded, f"{archive}@{index}", text, 0.4, timeout=HANGING)
            assert result.status is not sp.Status.UNDECIDED
            if result.status is sp.Status.SAFE:
                path = result.query.perturbation.apply(result.query.image.pixels)
                images = path.at(torch.linspace(0, 0.4, 200, dtype=torch.float64).unsqueeze(1))
                inputs = loaded.picture().to_input(images).float().numpy()
                assert (loaded.reference(inputs).argmax(1) == result.label).all()


# -- specifications ---------------------------------------------------------------------------------------------------


def answer(network: sp.Network, *cases: tuple[Box, Case], **options) -> sp.Result:
    size = network.graph.input_shape.numel()
    return sp.verify_specification(network, by_boxes(size, network.graph.classes, cases), **options)


def row_case(low, high, row, constant: float, strict: bool = False) -> tuple[Box, Case]:
    return (np.asarray(low), np.asarray(high)), Case(np.array([row]), np.array([constant]), np.array([strict]))


def exact_least(module: nn.Module, low: np.ndarray, high: np.ndarray, row: np.ndarray) -> float:
    """The least of row @ outputs over a box, by mixed-integer programming: an independent solver for small networks."""
    layers = [
        (m.weight.detach().double().numpy(), m.bias.detach().double().numpy()) for m in module if hasattr(m, "bias")
    ]
    count = len(low) + sum(2 * len(b) for _, b in layers[:-1])
    lower, upper = np.full(count, -np.inf), np.full(count, np.inf)
    whole = np.zeros(count)
    lower[: len(low)], upper[: len(low)] = low, high
    rows, least, most = [], [], []
    place, size, ends = 0, len(low), (low, high)
    free = len(low)
    for weight, bias in layers[:-1]:
        centre, radius = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
        middle, reach = weight @ centre + bias, np.abs(weight) @ radius
        bottom, top = middle - reach, middle + reach
        for i in range(len(bias)):
            out, on = free + i, free + len(bias) + i
            lower[out], upper[out], lower[on], upper[on], whole[on] = 0, max(top[i], 0), 0, 1, 1
            value = np.zeros(count)
            value[place : place + size] = weight[i]
            at_least, on_top, off = -value.copy(), -value.copy(), np.zeros(count)
            at_least[out], on_top[out], off[out] = 1, 1, 1
            on_top[on] = -bottom[i]  # out <= value - bottom (1 - on)
            off[on] = -max(top[i], 0)  # out <= top on
            rows += [at_least, on_top, off]
            least += [bias[i], -np.inf, -np.inf]
            most += [np.inf, bias[i] - bottom[i], 0]
        place, size, ends = free, len(bias), (np.maximum(bottom, 0), np.maximum(top, 0))
        free += 2 * len(bias)
    weight, bias = layers[-1]
    goal = np.zeros(count)
    goal[place : place + size] = row @ weight
    found = milp(
        goal, constraints=LinearConstraint(np.array(rows), least, most), bounds=Bounds(lower, upper), integrality=whole
    )
    assert found.success
    return float(found.fun + row @ bias)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=12)
def test_verdicts_agree_with_an_exact_solver(seed):
    """The property is put a little on either side of the exact minimum, where every shortcut would show."""
    random = np.random.default_rng(seed)
    module = dense(seed % 1000, *WIDE)
    network = network_of(module, 12)
    low = random.uniform(-1, 1, 12)
    high = low + random.uniform(0.1, 1.2)
    row = random.normal(size=3)
    least = exact_least(module, low, high, row)
    for gap, expected in ((1e-3, "safe"), (-1e-3, "unsafe")):
        # met where row @ y <= least - gap
        result = answer(network, row_case(low, high, -row, least - gap), timeout=HANGING)
        assert result.status == expected, (seed, gap, result.reason)
        if expected == "safe":
            assert 0 < result.min_margin <= gap + 1e-6
        else:
            assert result.counterexample.replayed
            assert (result.counterexample.input >= low).all() & (result.counterexample.input <= high).all()


@pytest.mark.parametrize("name", NETWORKS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5)
def test_no_verdict_contradicts_samples(name, seed):
    """Conjunctions and disjunctions of any rows; safe is never contradicted, and most is decided."""
    random = np.random.default_rng(seed)
    network = NETWORKS[name](seed % 50)
    low, high = (end.flatten().numpy() for end in box_around(network.graph, seed, radius=0.15))
    size = len(low)
    x = random.uniform(low, high, (3000, size))
    outputs = network.scores(torch.from_numpy(x).view(-1, *network.graph.input_shape)).numpy()
    cases = []
    for _ in range(random.integers(1, 3)):
        rows = random.normal(size=(random.integers(1, 4), 3))
        highest = (outputs @ rows.T).max(0)
        constants = -highest + random.normal(size=len(rows)) * outputs.std()
        cases.append(Case(rows, constants, np.zeros(len(rows), bool)))
    specification = by_boxes(size, 3, (((low, high), case) for case in cases))
    result = sp.verify_specification(network, specification, timeout=5)
    if result.status == "safe":
        assert not any(case.met_by(outputs).any() for case in cases)
    elif result.status == "unsafe":
        found = result.counterexample
        assert specification.is_counterexample(found.input.flatten().astype(float), found.outputs.astype(float))
    else:
        assert result.reason == "timeout"


def test_a_wrong_proof_would_be_noticed(monkeypatch):
    """A negative control: a search that does not attack, and accepts bounds that are too low, answers wrongly."""
    module = dense(4, *WIDE)
    network = network_of(module, 12)
    low, high = (end.flatten().numpy() for end in box_around(network.graph, 4, radius=0.5))
    row = np.array([1.0, -1.0, 0.5])
    case = row_case(low, high, -row, exact_least(module, low, high, row) + 1e-3)
    assert answer(network, case).status == "unsafe"
    monkeypatch.setattr(ActivationSplitting, "test", lambda self, x: None)
    proves = ActivationSplitting.proves
    monkeypatch.setattr(ActivationSplitting, "proves", lambda self, bound, part: proves(self, bound + 2e-3, part))
    assert answer(network, case).status == "safe"


# -- what a query may be ----------------------------------------------------------------------------------------------


def test_few_inputs_are_split_themselves():
    network = network_of(dense(3, 4, 20, 20, 2), 4)
    low, high = np.full(4, -0.5), np.full(4, 0.5)
    x = np.random.default_rng(0).uniform(low, high, (100_000, 4))
    highest = network.scores(torch.from_numpy(x))[:, 0].max().item()
    assert answer(network, row_case(low, high, [1.0, 0.0], -highest - 0.2)).status == "safe"
    assert answer(network, row_case(low, high, [1.0, 0.0], -highest + 0.01)).status == "unsafe"


def test_one_point_and_fixed_inputs():
    network = network_of(dense(3, 12, 10, 2), 12)
    point = np.linspace(-1, 1, 12)
    outputs = network.scores(torch.from_numpy(point)[None])[0].numpy()
    for radius in (0.0, 1e-9):
        low, high = point.copy(), point.copy()
        high[3] += radius
        assert answer(network, row_case(low, high, [1.0, 0.0], -outputs[0] - 1e-3)).status == "safe"
        assert answer(network, row_case(low, high, [1.0, 0.0], -outputs[0] + 1e-3)).status == "unsafe"


def test_several_boxes_and_rows():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    y = network.scores(torch.zeros(1, 12).double())[0].numpy()
    never, always = row_case(low, high, [1.0, 0, 0], -1e4), row_case(low + 1, high + 1, [1.0, 0, 0], 1e4)
    assert answer(network, never).status == "safe"
    found = answer(network, never, always)
    assert found.status == "unsafe"
    assert (found.counterexample.input >= 0.8).all()
    rows = np.array([[1.0, 0, 0], [-1.0, 0, 0]])
    both = Case(rows, np.array([-y[0] - 5.0, y[0] - 5.0]), np.zeros(2, bool))
    assert answer(network, ((low, high), both)).status == "safe"  # above y + 5 and below y - 5
    band = Case(rows, np.array([-y[0] + 1e-3, y[0] + 1e-3]), np.zeros(2, bool))
    assert answer(network, ((low, high), band)).status == "unsafe"
    anything = Case(np.empty((0, 3)), np.empty(0), np.empty(0, bool))
    assert answer(network, ((low, high), anything)).status == "unsafe"


def test_ties_meet_a_property_that_is_not_strict():
    module = dense(3, 12, 4, 2)
    module[-1].weight.data[:], module[-1].bias.data[:] = 0.0, 1.0
    network = network_of(module, 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    assert answer(network, row_case(low, high, [1.0, -1.0], 0.0)).status == "unsafe"
    assert answer(network, row_case(low, high, [1.0, -1.0], 0.0, strict=True), timeout=5).status == "undecided"


def test_one_output_any_shape_and_softmax():
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    single = network_of(dense(3, 12, 10, 1), 12)
    assert answer(single, row_case(low, high, [1.0], -1e3)).status == "safe"
    with pytest.raises(InputError, match="one score per class"):
        sp.verify(network_of(dense(3, 12, 10, 1), 12).with_image_shape((1, 3, 4)), np.zeros((1, 3, 4)), "identity", 1)
    shaped = network_of(nn.Sequential(dense(3, 12, 10, 6), nn.Unflatten(1, (2, 3))), 12)
    assert shaped.graph.classes == 6
    soft = network_of(nn.Sequential(dense(3, *WIDE), nn.Softmax(1)), 12)
    assert answer(soft, row_case(low, high, [1.0, 0, 0], -1.001)).status == "safe"  # shares never exceed 1
    assert answer(soft, row_case(low, high, [1.0, 0, 0], 0.0)).status == "unsafe"
    logarithm = network_of(nn.Sequential(dense(3, *WIDE), nn.LogSoftmax(1)), 12)
    with pytest.raises(InputError, match="LogSoftmax"):
        answer(logarithm, row_case(low, high, [1.0, 0, 0], 0.5))
    assert answer(logarithm, row_case(low, high, [1.0, -1.0, 0], 0.0)).status in ("safe", "unsafe")


def test_slopes_found_in_float32_are_kept_within_their_limits():
    """0.9 as float32 is less than 0.9, and so little is enough for a line that is not below its function."""

    class Leaky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bent, free = x[:, :20], x[:, 20:]
            lead = nn.functional.leaky_relu(bent, 0.9).sum(1, keepdim=True) - 0.89 * bent.sum(1, keepdim=True)
            return lead + (free * torch.tensor([1.0, -1.0]).repeat(10)).sum(1, keepdim=True)

    network = network_of(Leaky(), 40)
    reach = np.where(np.arange(40) < 20, 1.0, 1 + 5e-8)  # the worst corner has no float32 number
    worst = np.where(np.arange(40) % 2 * (np.arange(40) >= 20), reach, -reach)
    least = float(network.scores(torch.from_numpy(worst).view(1, 1, 40))[0, 0])
    assert answer(network, row_case(-reach, reach, [-1.0], least + 3e-7), timeout=30).status != "safe"
    assert answer(network, row_case(-reach, reach, [-1.0], least - 1e-3), timeout=HANGING).status == "safe"


def test_a_branch_that_is_older_than_the_bend_before_it():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.older, self.newer, self.last = (nn.Linear(*s) for s in ((12, 8), (8, 8), (8, 8), (8, 3)))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).relu()
            older, newer = self.older(hidden), self.newer(hidden)
            return self.last(newer.relu() + older.relu())

    torch.manual_seed(0)
    network = network_of(Branches(), 12)
    low, high = np.full(12, -1.0), np.full(12, 1.0)
    x = torch.from_numpy(np.random.default_rng(0).uniform(low, high, (50_000, 12)))
    highest = network.scores(x.unsqueeze(1))[:, 0].max().item()
    for gap, expected in ((0.02, "safe"), (-0.02, "unsafe")):
        assert (
            answer(network, row_case(low, high, [1.0, 0, 0], -highest - 10 * gap), timeout=HANGING).status == expected
        )


def test_what_is_no_specification_is_refused():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    good = row_case(low, high, [1.0, 0, 0], 0.0)
    for cases, problem in (
        ((), "needs a case"),
        ((row_case(high, low, [1.0, 0, 0], 0.0),), "lower end above"),
        ((row_case(low.astype(np.float32), high, [1.0, 0, 0], 0.0),), "float64"),
        ((row_case(low, high + np.inf, [1.0, 0, 0], 0.0),), "finite"),
        ((row_case(low, high, [1.0, 0, np.nan], 0.0),), "finite"),
        ((good, row_case(low[:5], high[:5], [1.0, 0, 0], 0.0)), "must have 12 inputs"),
    ):
        with pytest.raises(InputError, match=problem):
            answer(network, *cases)


def test_many_claims_within_clock_and_memory():
    network = network_of(dense(3, *WIDE), 12)
    low, high = np.full(12, -0.2), np.full(12, 0.2)
    rows = np.random.default_rng(0).normal(size=(3000, 3))
    never = [row_case(low, high, row, -1e3) for row in rows]
    assert answer(network, *never, timeout=HANGING, memory=0.05).status == "safe"
    assert (
        answer(network, *never, row_case(low, high, [1.0, 0, 0], 1e3), timeout=HANGING, memory=0.05).status == "unsafe"
    )


def test_a_query_of_another_size_is_refused():
    network = network_of(dense(3, *WIDE), 12)
    with pytest.raises(InputError, match="11 inputs and 3 outputs"):
        sp.verify_specification(network, robustness(np.zeros(11), np.ones(11), 0, 3))
    with pytest.raises(InputError, match="a path of images, not a box") as refused:
        sp.verify_specification(network, robustness(np.zeros(12), np.ones(12), 0, 3), method="exact")
    assert refused.value.option == "method"


def test_networks_whose_outputs_are_not_finite_are_no_verdict():
    module = dense(3, *WIDE)
    network = network_of(module, 12)
    low, high = np.full(12, -1e308), np.full(12, 1e308)
    result = answer(network, row_case(low, high, [1.0, 0, 0], -1e300), timeout=HANGING)
    assert result.status == "undecided"
    assert result.reason in ("not-finite", "runtime-disagrees")


def test_every_box_is_compared_with_the_runtime(monkeypatch):
    """Of two boxes that are both proved, one without a comparison is not safe, however the other one went."""
    from shakeproof.model import Comparison
    from shakeproof.proof import bounds_method

    network = network_of(nn.Linear(2, 2), 2)
    boxes = [(np.full(2, low), np.full(2, low + 0.1)) for low in (0.0, 0.5)]
    case = Case(np.array([[0.0, 0.0]]), np.array([-1.0]), np.zeros(1, bool))  # 0 >= 1: never met
    specification = by_boxes(2, 2, [(box, case) for box in boxes])
    assert sp.verify_specification(network, specification).status is sp.Status.SAFE
    asked, made = bounds_method.compared, []

    def cut_off(*arguments):
        made.extend(asked(*arguments))
        return [made[0]] if len(made) == 1 else [Comparison.of_nothing()]

    monkeypatch.setattr(bounds_method, "compared", cut_off)
    assert sp.verify_specification(network, specification).status is sp.Status.UNDECIDED
