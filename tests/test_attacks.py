"""Networks built to fool a verifier: each with the truth worked out in fractions, where float64 or a shortcut errs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from models import model, network_of
from onnx import helper
from processes import HANGING
from rational import ExactLine, exact_path, exact_scores
from torch import nn

import shakeproof as sp
from shakeproof.errors import ProofError
from shakeproof.operators import envelope_breaks
from shakeproof.question import as_whole, robustness

BLUR = "box-blur:size=3,padding=zeros"
DOT = np.zeros((1, 3, 3))
DOT[0, 1, 1] = 1.0  # one bright pixel: blurred, it is 1 - 8 z / 9, and all others are z / 9

Rows = Sequence[Sequence[float]]


def blurred(z: Fraction) -> list[Fraction]:
    return [1 - 8 * z / 9 if place == 4 else z / 9 for place in range(9)]


class Tower:
    """A network on nine pixels, as an ONNX file and as exact arithmetic."""

    def __init__(self) -> None:
        self.nodes = [helper.make_node("Flatten", ["x"], ["v0"])]
        self.weights: dict[str, np.ndarray] = {}
        self.layers: list[tuple[str, tuple[np.ndarray, ...]]] = []

    def _add(self, kind: str, inputs: Sequence[str], **attributes) -> str:
        before, name = self.nodes[-1].output[0], f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [before, *inputs], [name], **attributes))
        return name

    def _constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def linear(self, weight: Rows, bias: Sequence[float]) -> Tower:
        stored = [np.asarray(part, np.float32) for part in (weight, bias)]
        assert all(
            np.array_equal(part.astype(float), np.asarray(given))
            for part, given in zip(stored, (weight, bias), strict=True)
        )
        self._add("Gemm", [self._constant(stored[0]), self._constant(stored[1])], transB=1)
        self.layers.append(("linear", tuple(stored)))
        return self

    def relu(self) -> Tower:
        return self.clip(0.0, np.inf)

    def clip(self, low: float, high: float) -> Tower:
        self._add("Clip", [self._constant(low), self._constant(high)])
        self.layers.append(("clip", (np.float32(low), np.float32(high))))
        return self

    def pairs(self) -> Tower:
        """The larger of each two neighbours."""
        size = len(self.layers[-1][1][1])
        self._add("Reshape", [self._constant([1, 1, 1, size], np.int64)])
        self._add("MaxPool", [], kernel_shape=[1, 2], strides=[1, 2])
        self._add("Reshape", [self._constant([1, size // 2], np.int64)])
        self.layers.append(("pairs", ()))
        return self

    def saved(self, folder: Path) -> sp.Network:
        self.nodes[-1].output[0] = "y"
        onnx.save(model(self.nodes, [1, 1, 3, 3], self.weights), folder / "tower.onnx")
        return sp.load(folder / "tower.onnx")

    def margin(self, x: Sequence[Fraction]) -> Fraction:
        """By how much the first of two classes leads."""
        for kind, parts in self.layers:
            if kind == "linear":
                rows = zip(*(part.astype(float).tolist() for part in parts), strict=True)
                x = [sum(Fraction(w) * v for w, v in zip(row, x, strict=True)) + Fraction(b) for row, b in rows]
            elif kind == "clip":
                low, high = (float(end) for end in parts)
                x = [min(max(v, Fraction(low)), v if high == np.inf else Fraction(high)) for v in x]
            else:
                x = [max(pair) for pair in zip(x[::2], x[1::2], strict=True)]
        return x[0] - x[1]


def amplified(tower: Tower, gain: float, times: int, limit: float) -> Tower:
    """The first of two values times a gain, again and again."""
    for _ in range(times):
        tower.linear([[gain, 0], [0, 1]], [0, 0]).clip(-limit, limit)
    return tower


def dipping() -> Tower:
    """max(a, b) dips by less than 2^-46 of itself in the middle of the path; later layers make a loss of it."""
    tiny, large = 2.0**-36, 1024.0
    corner = [9.0, *[0.0] * 8]
    more = [0.875 + 2.0**-7 * step for step in range(12)]  # bends elsewhere, so that there are many pieces
    unit = np.eye(14)[2:]
    tower = (
        Tower()
        .linear([corner, [-w for w in corner], *[corner] * 12], [-0.375, 0.625, *(-bend for bend in more)])
        .relu()
    )
    first = [[-4 * tiny, *[0.0] * 13], [0.0, -4 * tiny, *[0.0] * 12]]
    tower.linear([*first, *(row.tolist() for row in np.repeat(unit, 2, 0))], [large, large, *[0.0] * 24]).pairs()
    tower.linear([[1.0, *[0.0] * 12], [0.0, 1.0, *[0.0] * 11]], [-large, 0.0]).clip(-8, 8)
    return amplified(tower, 1024.0, 4, 128.0).linear([[1, 1], [0, 0]], [1, 0])


def test_a_dip_far_below_the_values_is_a_dip(tmp_path):
    tower = dipping()
    assert tower.margin(blurred(Fraction(1, 2))) < -5
    assert tower.margin(blurred(Fraction(0))) > 0
    network = tower.saved(tmp_path)
    for options in ({}, {"whole_curve": True}, {"method": "bounds"}):
        result = sp.profile(network, DOT, BLUR, label=0, **options)
        assert result.status is not sp.Status.SAFE
        assert result.min_margin < -5  # float64 itself sees it
    assert sp.verify(network, DOT, BLUR, 1.0, label=0).status is not sp.Status.SAFE
    # where it flips is known up to what float64 makes of the dip
    flip, blur = Fraction(sp.profile(network, DOT, BLUR, label=0).profile[0].end), Fraction(1, 40)
    assert tower.margin(blurred(flip - blur)) > 0 > tower.margin(blurred(flip + blur))


@pytest.mark.parametrize("exponent", [40, 46, 49, 51])
def test_every_bend_of_a_maximum_is_found(exponent):
    """RunningError of size 1 that cross in a dip of 2^-exponent, down to the last bits of float64."""
    depth = 2.0**-exponent
    chords = torch.tensor([[[1.0, 1.0 - depth]], [[1.0 - depth, 1.0]]], dtype=torch.float64)
    assert envelope_breaks(*chords).fraction.tolist() == [0.5]


def lost_in_rounding(gain: float, times: int) -> Tower:
    """2 - (2 + 2^-55 sum(x)): float64 says 0, and amplifies that."""
    tower = Tower().linear([[0.0] * 9, [2.0**-55] * 9], [2, 2]).relu()
    return amplified(tower.linear([[1, -1], [0, 1]], [0, 0]).clip(-4, 4), gain, times, 128.0).linear(
        [[1, 1], [0, 1]], [1, 0]
    )


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_amplified_rounding_is_no_proof(tmp_path, method):
    tower = lost_in_rounding(1024.0, 6)
    assert all(tower.margin(blurred(Fraction(part, 4))) < -30 for part in range(5))
    result = sp.profile(tower.saved(tmp_path), DOT, BLUR, label=0, method=method)
    # float64 cannot tell; without rounding, the loss is found
    assert result.status is (sp.Status.UNSAFE if method == "exact" else sp.Status.UNDECIDED)
    assert result.certified_strength == 0


def test_amplified_rounding_is_no_proof_on_a_box(tmp_path):
    tower = lost_in_rounding(1024.0, 6)
    assert tower.margin([Fraction(1)] * 9) < -30
    box = sp.read_specification(query_file(tmp_path, 0.5, 1.0))
    assert sp.verify_specification(tower.saved(tmp_path), box, timeout=20).status is not sp.Status.SAFE


def query_file(folder: Path, low: float, high: float) -> Path:
    declared = [*(f"(declare-const X_{i} Real)" for i in range(9)), *(f"(declare-const Y_{i} Real)" for i in range(2))]
    bounds = [f"(assert (>= X_{i} {low}))\n(assert (<= X_{i} {high}))" for i in range(9)]
    path = folder / "query.vnnlib"
    path.write_text("\n".join([*declared, *bounds, "(assert (>= Y_1 Y_0))"]))
    return path


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_a_gain_of_2_to_the_18_is_enough(tmp_path, method):
    margin = float(np.float32(1e-11))
    tower = Tower().linear([[0.0] * 9, [0, 0, 0, 0, 2.0**-54, 0, 0, 0, 0]], [1, 1]).relu()
    tower.linear([[64, -64]], [0]).clip(-1, 1).linear([[64]], [0]).clip(-1, 1).linear([[64], [0]], [margin, 0])
    assert tower.margin(blurred(Fraction(0))) < 0 < tower.margin(blurred(Fraction(1)))
    result = sp.profile(tower.saved(tmp_path), DOT, BLUR, label=0, method=method)
    # float64 cannot tell; without rounding, the loss is found
    assert result.status is (sp.Status.UNSAFE if method == "exact" else sp.Status.UNDECIDED)
    assert result.certified_strength == 0


@pytest.mark.parametrize("seed", range(24))
def test_the_critical_strength_of_an_exact_tie(tmp_path, seed):
    """A ReLU dies, and from there on both classes score the same: that is where the label loses."""
    random = np.random.default_rng(seed)
    weight = -random.integers(0, 4, 9)
    weight[0], weight[4] = -random.integers(8, 30), 0
    start = int(random.integers(1, 9))
    tower = Tower().linear([weight.tolist()], [start]).relu().linear([[3], [1]], [0, 0])
    # weight . x(z) + start = start + z sum(weight) / 9, without the pixel in the middle
    dies = Fraction(9 * start, int(-weight.sum()))
    network = tower.saved(tmp_path)
    result = sp.profile(network, DOT, BLUR, label=0)
    if dies > 1:
        assert result.status is sp.Status.SAFE
        return
    assert tower.margin(blurred(dies)) == 0
    low, high = result.critical_strength or (result.certified_strength, 1.0)
    assert (result.critical_strength is not None) >= (dies < 1)  # a tie at the very end may not show
    assert low - 1e-9 <= dies <= high + 1e-9
    assert high - low <= 2e-9
    assert tower.margin(blurred(Fraction(low))) > 0
    assert low - 1e-9 <= result.certified_strength <= low


class Inner(nn.Module):
    """1 + relu(b - 10 h) - b with b = 1e18 h: float64 loses what is subtracted, and no score shows how large b is."""

    def forward(self, x):
        hat = torch.relu(0.4 - (x.flatten(1)[:, :1] - 0.5).abs())
        big = 1e18 * hat
        return torch.cat([1 + torch.relu(big - 10 * hat) - big, 0 * hat], 1)


class FarFromZero(nn.Module):
    """1 - 1e8 relu(|a + 1e10| - 1e10), for a up to 1e-7."""

    def forward(self, x):
        moved = (1e-7 * x.flatten(1)[:, :1] + 1e10).abs() - 1e10
        return torch.cat([1 - 1e8 * torch.relu(moved), 0 * moved], 1)


class Underflow(nn.Module):
    """What is too small for float64 comes back as 1."""

    def forward(self, x):
        h = torch.relu(torch.relu(x.flatten(1)[:, :1] * 1e-200) * 1e-200)
        h = torch.relu(h * 1e200) * 1e200
        return torch.cat([1 - 2 * h, 0 * h], 1)


class Flat(nn.Module):
    """GELU far below 0 is -8e-17 at its end, and -0.0 in float64."""

    def forward(self, x):
        h = torch.nn.functional.gelu(-8.5 * x.flatten(1)[:, :1])
        return torch.cat([1 + 2.5e16 * h, 0 * h], 1)


@pytest.mark.parametrize(("module", "method"), [
    (Inner, "exact"), (Inner, "bounds"), (FarFromZero, "exact"), (FarFromZero, "bounds"),
    (Underflow, "exact"), (Underflow, "bounds"), (Flat, "bounds"),
])  # fmt: skip
def test_what_float64_loses_inside_is_no_proof(module, method):
    """With brightness from 0 to 1 on a black image, the truth is negative on the way."""
    network = network_of(module().double(), 1, 2, 2, dtype=torch.float64)
    image = np.zeros((1, 2, 2))
    for result in (
        sp.profile(network, image, "brightness:max=1", label=0, method=method, timeout=5.0),
        sp.verify(network, image, "brightness:max=1", 1.0, label=0, method=method, timeout=5.0),
    ):
        assert result.status is not sp.Status.SAFE


@pytest.mark.parametrize("method", ["exact", "bounds"])
def test_pixels_that_cancel_are_not_known_exactly(method):
    """0.3 - 0.3 z is 0 at the end in float64, and -1.1e-17 in truth."""
    off = Fraction(0.3) - Fraction("0.3")
    assert off < 0

    class Steep(nn.Module):
        def forward(self, x):
            h = torch.relu(-x.flatten(1)[:, :1])
            return torch.cat([1 - 1e18 * h, 0 * h], 1)

    network = network_of(Steep().double(), 1, 2, 2, dtype=torch.float64)
    result = sp.profile(network, np.full((1, 2, 2), 0.3), "brightness:max=-0.3", label=0, method=method, timeout=5.0)
    assert 1 + 10**18 * off < 0
    assert result.status is not sp.Status.SAFE


def test_an_end_of_a_range_is_not_rounded_away():
    """x in [-1, 1e-20]: its middle and radius make it [-1, 0], and a ReLU of it would count as off."""

    class Mixed(nn.Module):
        def forward(self, x):
            tiny, other, rest = torch.relu(x[:, :1]), 5 * x[:, 1:2].abs(), x[:, 2:].sum(1, keepdim=True)
            return torch.cat([1 - 2e20 * tiny + other + rest, 0 * rest], 1)

    network = network_of(Mixed(), 12)
    low, high = np.array([-1.0, -1.0, *[0.0] * 10]), np.array([1e-20, 1.0, *[0.01] * 10])
    specification = robustness(low, high, 0, 2)
    assert sp.verify_specification(network, specification, timeout=5.0).status is not sp.Status.SAFE


def test_evidence_is_about_its_query(tmp_path):
    """A proof up to one strength is none up to another, nor of another label or requirement."""
    network = Tower().linear([[1] * 9, [0] * 9], [1, 0]).saved(tmp_path)
    result = sp.verify(network, DOT, BLUR, 0.5, label=0)
    assert result.status is sp.Status.SAFE
    (longer,) = sp.perturbed(network, [result.query.image], BLUR, 0, 1.0)
    (other,) = sp.perturbed(network, [result.query.image], BLUR, 1, 0.5)
    (lead,) = sp.perturbed(network, [result.query.image], BLUR, 0, 0.5, "label:lead=100")
    for query in (longer, other, lead, replace(result.query, strengths=(1.0,))):
        with pytest.raises(ProofError):
            replace(result, query=query)


class AlmostOne(nn.Module):
    """Batch norms whose factors are 1 in float64, and less than that by 2^-61 and 2^-63."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(2, eps=2.0**-22 + 2.0**-60), nn.Linear(8, 2)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1.0, 2.0]))
            self.norm.running_var.copy_(torch.tensor([1 - 2.0**-22, 4 - 2.0**-22]))
            self.last.weight.zero_()
            self.last.weight[0, 0], self.last.weight[0, 4] = 1, -1
            self.last.bias.copy_(torch.tensor([2.0**-62, 0.0]))

    def forward(self, x):
        return self.last(self.norm(x).flatten(1))


def test_a_factor_that_only_rounds_to_one_is_not_one():
    """In truth the label is behind by 1.08e-19 from the start."""
    network = network_of(AlmostOne().eval(), 2, 2, 2)
    result = sp.verify(network, np.ones((2, 2, 2)), "brightness:max=0.25", 1.0, label=0)
    assert result.status is sp.Status.UNDECIDED
    assert result.certified_strength == 0


@pytest.mark.parametrize("name", ["profile_1617", "profile_500836"])
def test_a_profile_claims_no_class_that_does_not_win(shared, name):
    """Rounding hides which class wins on nearly all of these paths. What the profile says is marked as not proved."""
    network, picture = sp.load(shared(f"attacks/second/{name}.onnx")), shared(f"attacks/second/{name}.npy")
    result = sp.profile(
        network, str(picture), "sharpen:size=3,padding=zeros", label=1, max_strength=0.5, whole_curve=True
    )
    path = result.query.perturbation.exactly(*as_whole(result.query.image.pixels))
    slope, base = ([Fraction(n, path.unit) for n in part.ravel()] for part in (path.slopes[0], path.base))
    line = ExactLine([slope], base)
    wrong = [part for part in result.profile if not _wins(network, line, part)]
    assert wrong  # float64 is wrong here
    assert not any(part.proved for part in wrong)
    assert not any(part["proved"] for part in result.to_json()["profile"])


def _wins(network: sp.Network, line: ExactLine, part: sp.Interval) -> bool:
    """Whether a class has the highest score at the ends of an interval and in between, nothing rounded."""
    start, end = Fraction(part.start), Fraction(part.end)
    for share in range(9):
        scores = list(exact_scores(network.graph, exact_path(line, [start + (end - start) * share / 8])))
        best = scores.pop(part.winner)
        if not best > max(scores):
            return False
    return True


def brighter_than(folder: Path, threshold: float, gain: float) -> sp.Network:
    """Class 0 wins where one pixel is above a threshold."""
    weights = {
        "w": np.array([[gain], [0]], np.float32),
        "b": np.array([-np.float32(threshold) * np.float32(gain), 0], np.float32),
        **{name: np.array(numbers) for name, numbers in (("start", [9, 9]), ("stop", [10, 10]), ("axes", [2, 3]))},
    }
    nodes = [
        helper.make_node("Slice", ["x", "start", "stop", "axes"], ["pixel"]),
        helper.make_node("Flatten", ["pixel"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
    ]
    onnx.save(model(nodes, ["n", 1, 20, 20], weights), folder / "pixel.onnx")
    return sp.load(folder / "pixel.onnx")


@pytest.mark.parametrize(
    ("levels", "kernel", "strength", "threshold", "gain"),
    [
        # 128 - 255 z is half a level at 1/2, where it is rounded to black
        ([0, 3, 1, 255, 128, 255, 255, 255, 255], [-1, -1, -1, -1, 9, -1, -1, -1, -1], 0.5, 2.0**-25, 2.0**20),
        # 200 - 80 z, where the float32 numbers nearest to n / 255 end more than a level higher
        (
            [179, 149, 131, 97, 200, 65, 70, 62, 84],
            [99700, 99780, 100000, 100000, -418067, 100000, 100000, 100000, 100000],
            1.0,
            120.3 / 255,
            1.0,
        ),
    ],
)
def test_the_pictures_that_are_run_are_those_of_the_exact_path(tmp_path, levels, kernel, strength, threshold, gain):
    """Each pixel is a little less than the float32 number that is nearest to it: the kernel adds up the differences."""
    np.save(tmp_path / "kernel.npy", np.array(kernel, float).reshape(3, 3))
    image = np.random.default_rng(0).integers(0, 256, (1, 20, 20))
    image[0, 8:11, 8:11] = np.array(levels).reshape(3, 3)
    network = brighter_than(tmp_path, threshold, gain)
    text = f"custom:file={tmp_path / 'kernel.npy'},padding=zeros"
    result = sp.verify(network, (image / 255).astype(np.float32), text, strength, label=0, pixels="8bit")
    slope = sum(w * n for w, n in zip(kernel, levels, strict=True)) - levels[4]
    last = round(levels[4] + Fraction(strength) * slope)
    assert Fraction(last, 255) < Fraction(float(np.float32(threshold)))
    assert result.status == "unsafe"
    assert result.certified_strength < strength


# -- scripts that once showed a false claim ----------------------------------------------------------------------------

SCRIPTS = {
    ("wrongf32_resize.py", "224", "256", ".9", ".25"): r"NetworkMismatchError: .* differs from the reference runtime",
    ("wrongf32_const.py", "1500", ".6"): r"NetworkMismatchError: .* differs from the reference runtime",
    ("wrongreal_const2.py",): r"Add \(A1\): float64 would have to round a constant",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script[0])
def test_a_script_no_longer_shows_a_false_claim(shared, tmp_path, script):
    name, *arguments = script
    command = [sys.executable, str(shared(f"attacks/second/{name}")), *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANGING)
    said = ran.stdout + ran.stderr
    assert re.search(SCRIPTS[script], said), said
    assert not re.search(r"^(float32 )?safe None (rigorous|float32)", said, re.MULTILINE)
    assert "float32 safe" not in said
