"""Brackets of critical strengths: the label provably wins up to the low end, and provably loses at the high end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.budget import OutOfTimeError
from shakeproof.exact import Curve
from shakeproof.proof import brackets, exact_method, leads
from shakeproof.proof.brackets import Brackets, first_proved, loses_after, wins_before
from shakeproof.proof.leads import Leads, SweptLine
from shakeproof.proof.replay import fails

PICTURE = next(str(path) for path, _ in demo.images() if "warning.1" in str(path))
BLUR = "motion-blur:size=9,angle=90"


def loses_in_the_runtime(network: sp.Network, result: sp.Result, z: float) -> bool:
    return bool(fails(network, result.query.obligations[0], torch.tensor([[z]], dtype=torch.float64))[0])


@pytest.mark.parametrize(("breaks", "strengths"), [(0, 33), (1e9, 9)])
def test_more_strengths_are_probed_only_before_a_long_sweep(demo_network, monkeypatch, breaks, strengths):
    monkeypatch.setattr(exact_method, "MANY_BREAKS", breaks)
    result = sp.verify(demo_network, PICTURE, BLUR, 1.0)
    assert len(result.evidence.comparison.strength) == strengths
    assert result.status == "unsafe"


def test_an_early_answer_proves_the_first_loss_that_was_seen(folded_demo, monkeypatch):
    """And the others only where that one is not proved."""
    proofs = []

    def counted(context, number, z):
        proofs.append(list(z))
        return leads.provably_loses(context, number, z)

    monkeypatch.setattr(brackets, "provably_loses", counted)
    first = sp.verify(folded_demo, PICTURE, BLUR, 1.0)
    assert proofs == [[first.critical_strength[1]]]
    monkeypatch.setattr(brackets, "provably_loses", lambda context, number, z: np.asarray(z) > proofs[0][0])
    assert sp.verify(folded_demo, PICTURE, BLUR, 1.0).critical_strength[1] > proofs[0][0]


@pytest.mark.parametrize(
    ("model", "image", "blur", "strength", "width"),
    [
        (
            "networks/cifar10_resnet18.onnx",
            "data/cifar10_test_first2000.npz@7",
            "motion-blur:size=5,angle=45",
            0.55,
            1e-3,
        ),
        ("networks/gtsrb_cnn.onnx", "data/gtsrb_test_first1000.npz@7", "box-blur:size=9", 1.0, 1e-6),
    ],
    ids=["resnet18", "gtsrb"],
)
def test_brackets_of_deep_networks_are_narrow(shared, model, image, blur, strength, width):
    """Although enclosures of a ResNet18 are so wide that proofs end well before the loss."""
    network = sp.load(shared(model))
    file, number = image.split("@")
    result = sp.profile(network, f"{shared(file)}@{number}", blur, max_strength=strength)
    assert result.status == "unsafe"
    low, high = result.critical_strength
    assert 0 < high - low < width
    assert loses_in_the_runtime(network, result, high + 1e-6)


def test_in_float32_arithmetic_a_bracket_ends_where_the_runtime_loses(folded_demo):
    """A loss in every order of summation can only be proved well behind the first strength at which one loses."""
    real, float32 = (sp.profile(folded_demo, PICTURE, BLUR, arithmetic=a) for a in ("real", "float32"))
    assert real.status == float32.status == "unsafe"
    low, high = float32.critical_strength
    assert low <= real.critical_strength[1]
    assert high == pytest.approx(real.critical_strength[1], abs=1e-4)
    assert loses_in_the_runtime(folded_demo, float32, high)


def test_what_the_runtime_shows_is_no_proof_in_real_numbers(folded_demo, monkeypatch):
    known = sp.profile(folded_demo, PICTURE, BLUR).critical_strength
    monkeypatch.setattr(SweptLine, "off", lambda self, piece: np.full(len(piece), np.inf))
    for module in (brackets, leads, exact_method):
        nothing = lambda context, numbers, *rest, **more: Leads(np.full(len(numbers), -np.inf), [])  # noqa: E731
        monkeypatch.setattr(module, "leads", nothing)
    result = sp.profile(folded_demo, PICTURE, BLUR)
    low, high = result.critical_strength
    assert low <= known[0]
    assert (result.status, result.counterexample.replayed, high) == ("unsafe", True, 1.0)


def test_what_the_runtime_shows_is_an_answer_when_the_time_is_up(folded_demo, monkeypatch):
    """In the middle of proving it at each of the strengths at which it was shown."""

    def late(context, number, strengths):
        raise OutOfTimeError

    monkeypatch.setattr(brackets, "provably_loses", late)
    result = sp.verify(folded_demo, PICTURE, BLUR, 1.0)
    assert (result.status, result.counterexample.replayed, result.critical_strength[1]) == ("unsafe", True, 1.0)


def test_between_a_loss_and_a_proof_far_behind_it_proofs_are_tried(folded_demo, monkeypatch):
    known = sp.profile(folded_demo, PICTURE, BLUR).critical_strength
    monkeypatch.setattr(exact_method, "find_brackets", lambda context, lines: Brackets({}, {}, []))
    low, high = sp.profile(folded_demo, PICTURE, BLUR).critical_strength
    assert low <= known[0]
    assert known[0] < high < known[1] + 1e-6


class Asked:
    """Which strengths fail, and how often that was asked."""

    def __init__(self, *stretches: tuple[float, float]) -> None:
        self.stretches, self.times = stretches, 0

    def __call__(self, z):
        self.times += 1
        return np.any([(z >= start) & (z <= end) for start, end in self.stretches], axis=0)


def test_the_first_failure_is_found_with_two_questions():
    fails_from = Asked((0.3001, 1.0))
    found = first_proved(fails_from, 0.3, 0.9, np.empty(0))
    assert 0.3001 <= found < 0.30012
    assert fails_from.times == 2


def test_a_narrow_stretch_that_fails_is_found_if_it_is_named():
    spike = Asked((0.30014, 0.30015), (0.5, 1.0))
    assert first_proved(spike, 0.3, 0.9, np.array([0.300145, 0.7])) <= 0.300145
    assert first_proved(spike, 0.3, 0.9, np.empty(0)) >= 0.5


def test_nothing_but_what_is_known_where_nothing_else_fails():
    assert first_proved(Asked((0.9, 0.9)), 0.3, 0.9, np.array([0.95])) == 0.9


# -- what is sure without a proof: margins beyond all that rounding may have done --------------------------------------

ERROR = 0.01
OFF = float(Curve(np.array([0.0, 1.0]), np.zeros((2, 2)), np.array([ERROR])).off[0])
NOTHING = np.zeros(1)


def line(margins: list[float], lower: list[float]) -> SweptLine:
    """Of one curve whose label, 0, leads by so much at its rows; each piece is off by the same."""
    scores = np.array([[margin, 0.0] for margin in margins])
    curve = Curve(np.linspace(0, 1, len(margins)), scores, np.full(len(margins) - 1, ERROR))
    return SweptLine(0, 0, curve, None, np.array(lower))


@pytest.mark.parametrize(("times", "sure"), [(1.1, False), (2.9, False), (3.1, True)])
def test_a_label_surely_wins_if_row_and_evaluation_are_three_errors_above_nothing(times, sure):
    """Both may be off, and so may what lies between them: the chord is two from the evaluation, the truth one more."""
    at_row, evaluated = (line([margin, 0.0], [-1.0]) for margin in (times * OFF, 1.0))
    assert wins_before(at_row, np.array([0.5]), np.array([1.0]), NOTHING).sure.tolist() == [sure]
    assert wins_before(evaluated, np.array([0.5]), np.array([times * OFF]), NOTHING).sure.tolist() == [sure]


def test_nothing_is_sure_behind_a_piece_that_is_not_proved():
    behind = wins_before(line([1.0, 1.0, 1.0], [-1.0, 1.0]), np.array([0.25, 0.75]), np.array([1.0, 1.0]), NOTHING)
    assert behind.sure.tolist() == [True, False]


@pytest.mark.parametrize(("margin", "sure"), [(-0.9 * OFF, False), (-1.1 * OFF, True), (0.0, False)])
def test_a_label_surely_loses_if_it_is_an_error_behind(margin, sure):
    after = loses_after(line([1.0, -1.0], [-1.0]), np.array([0.9]), np.array([margin]), NOTHING, np.array([1]))
    assert after.sure.tolist() == [sure]


def test_what_taking_a_difference_may_be_off_by_counts():
    own = np.array([1.0])
    before = wins_before(line([1.0, 1.0], [-1.0]), np.array([0.5]), np.array([0.9]), own)
    after = loses_after(line([1.0, -1.0], [-1.0]), np.array([0.9]), np.array([-0.9]), own, np.array([1]))
    assert before.sure.tolist() == after.sure.tolist() == [False]


def test_an_end_that_the_sweep_shows_is_not_proved_any_nearer(demo_network, monkeypatch):
    """Elsewhere bounds are asked for, and bring ends nearer if they can."""
    asked = []

    def counted(context, numbers, cells, rivals=None, exactly=False):
        asked.append(len(cells))
        return leads.leads(context, numbers, cells, rivals, exactly)

    monkeypatch.setattr(brackets, "leads", counted)
    low, high = sp.profile(demo_network, PICTURE, BLUR).critical_strength
    assert not asked
    assert 0 < high - low <= 2 * brackets.NEAR_ENOUGH
    monkeypatch.setattr(brackets, "NEAR_ENOUGH", -1.0)
    nearer = sp.profile(demo_network, PICTURE, BLUR).critical_strength
    assert asked
    assert low <= nearer[0] < nearer[1] <= high
