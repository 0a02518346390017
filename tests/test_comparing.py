"""Two networks side by side: against running every picture by hand, and against rational arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import dense, model, network_of
from onnx import helper
from rational import ExactLine, exact_path, exact_scores
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.comparing import Agreement, Disagreement
from shakeproof.errors import InputError, ProofError
from shakeproof.proof.evidence import Interval, by_class, joined, with_unproved
from shakeproof.question import as_whole

LEVELS = np.random.default_rng(1).integers(0, 256, (1, 6, 6)).astype(np.uint8)
PIXELS = LEVELS / 255
TEXT = "sharpen:size=3"


def relu(seed, classes=3, scale=2.0):
    return network_of(nn.Sequential(nn.Flatten(), *dense(seed, 36, 8, 6, classes, scale=scale)), 1, 6, 6)


def deployed(path, *middle, seed=0):
    """x - flattened - middle - three scores, rounded to whole numbers: around 0 on the picture, many are the same."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        *middle,
        helper.make_node("MatMul", [middle[-1].output[0] if middle else "flat", "w"], ["scores"]),
        helper.make_node("Round", ["scores"], ["y"]),
    ]
    drawn, x = np.random.default_rng(seed).normal(size=(36, 3)), PIXELS.reshape(36, 1)
    drawn -= x * (x.T @ drawn) / (x.T @ x)
    weights = {"w": drawn.astype(np.float32), "shape": np.array([1, 36], np.int64)}
    onnx.save(model(nodes, (1, 1, 6, 6), weights, (1, 3)), path)
    return sp.load_deployed(path)


def classes_by_hand(network, pictures):
    """What ArgMax makes of each picture's scores; -1 where one is no number."""
    found = []
    for (levels,) in pictures.batches(1):
        scores = network.reference((levels / np.float32(255)).astype(np.float32)[None, None])[0]
        found.append(int(scores.argmax()) if np.isfinite(scores).all() else -1)
    return np.array(found)


def in_stretches(pictures, stretches):
    """Which pictures begin in one of some stretches (start, end)."""
    begins, ends = pictures.strengths(len(pictures))[:-1], pictures.strengths(len(pictures))[1:]
    return sum(((begins >= start) & (ends <= end) for start, end in stretches), np.zeros(len(pictures), int)) > 0


def test_every_picture_on_which_two_networks_disagree_is_found_and_no_other(tmp_path):
    """Some of them disagree, some do not, and some have scores that are the same: of these the first counts."""
    seen, ties = set(), 0
    for seed in range(6):
        sine = deployed(tmp_path / "sine.onnx", helper.make_node("Sin", ["flat"], ["s"]), seed=seed)
        plain = deployed(tmp_path / "plain.onnx", seed=seed)
        compared = sp.compare(plain, sine, PIXELS, TEXT, 0.5, pixels="8bit")
        pictures = compared.first.proof.pictures
        mine, theirs = classes_by_hand(plain, pictures), classes_by_hand(sine, pictures)
        assert (compared.first.proof.classes == mine).all()
        apart = in_stretches(pictures, [(found.start, found.end) for found in compared.disagreements])
        assert (apart == (mine != theirs)).all()
        assert compared.open == ()
        assert compared.status == (Agreement.DISAGREE if apart.any() else Agreement.AGREE)
        assert abs(compared.share - 2 * np.diff(pictures.strengths(len(pictures)))[apart].sum()) < 1e-9
        for found in compared.disagreements:
            assert found.replayed
            assert found.start <= found.strength <= found.end
            assert found.first != found.second
        seen.add(compared.status)
        ties += (compared.first.proof.margins == 0).sum()
    assert seen == {Agreement.AGREE, Agreement.DISAGREE}
    assert ties


def truth(network, z):
    """The class with the highest score at a strength, nothing rounded; None if two share it."""
    path = sp.parse(TEXT).exactly(*as_whole(torch.from_numpy(PIXELS)))
    line = ExactLine([[Fraction(n, path.unit) for n in path.slopes[0].ravel()]],
                     [Fraction(n, path.unit) for n in path.base.ravel()])  # fmt: skip
    scores = exact_scores(network.graph, exact_path(line, [z]))
    best = [number for number, score in enumerate(scores) if score == max(scores)]
    return best[0] if len(best) == 1 else None


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_who_is_proved_to_win_wins_in_real_numbers(seed):
    """At the very ends of what is proved, where rounding would show first, and everywhere else."""
    network = relu(seed)
    proved = [part for part in sp.profile(network, PIXELS, TEXT, max_strength=1.0).profile if part.proved]
    assert sum(part.end - part.start for part in proved) > 1 - 1e-6
    for part in proved:
        for z in (part.start, part.end, (part.start + part.end) / 2):
            assert truth(network, Fraction(z)) == part.winner


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_real_disagreements_are_true_and_so_is_agreement(seed):
    one, other = relu(seed), relu(seed, scale=2.02)
    compared = sp.compare(one, other, PIXELS, TEXT)
    for found in compared.disagreements:
        for z in (found.start, found.end, found.strength):
            assert (truth(one, Fraction(z)), truth(other, Fraction(z))) == (found.first, found.second)
    known = [*((found.start, found.end) for found in compared.disagreements), *compared.open]
    for z in np.random.default_rng(seed).random(20).tolist():
        if not any(start <= z <= end for start, end in known):
            assert truth(one, Fraction(z)) == truth(other, Fraction(z)) is not None
    assert all(end - start < 1e-6 for start, end in compared.open)


@cache
def flipping_pair():
    """Two networks of different weights, of which one changes its mind on the path."""
    for seed in range(50):
        one, other = relu(seed), relu(seed, scale=2.02)
        compared = sp.compare(one, other, PIXELS, TEXT)
        if compared.disagreements:
            return one, other, compared
    raise AssertionError("no such pair")


def test_a_network_agrees_with_itself_though_it_flips():
    one, other, _ = flipping_pair()
    assert max(len(sp.profile(network, PIXELS, TEXT).profile) for network in (one, other)) > 1
    for network in (one, other):
        assert sp.compare(network, network, PIXELS, TEXT).status == "agree"


def test_a_twin_that_flips_at_the_same_strength_is_undecided_there():
    """The same function by other weights: within rounding of the flip, nobody can tell them apart or call them same."""
    torch.manual_seed(0)
    for seed in range(50):
        layers = nn.Sequential(nn.Flatten(), *dense(seed, 36, 8, 3))
        one, order = network_of(layers, 1, 6, 6), torch.randperm(8)
        if len(sp.profile(one, PIXELS, TEXT).profile) > 1:
            break
    layers[1].weight.data, layers[1].bias.data = layers[1].weight[order].detach(), layers[1].bias[order].detach()
    layers[3].weight.data = layers[3].weight[:, order].detach()
    compared = sp.compare(one, network_of(layers, 1, 6, 6), PIXELS, TEXT)
    assert (compared.status, compared.reason, compared.disagreements) == ("undecided", sp.Reason.ROUNDING, ())
    assert 0 < sum(end - start for start, end in compared.open) < 1e-6


def test_what_was_not_looked_at_is_open(tmp_path):
    plain = deployed(tmp_path / "plain.onnx")
    late = sp.compare(plain, plain, PIXELS, TEXT, pixels="8bit", timeout=1e-9)
    assert (late.status, late.reason) == ("undecided", sp.Reason.TIMEOUT)
    ((start, end),) = late.open
    assert 0 < start < end == 1.0
    one, other, compared = flipping_pair()
    late = sp.compare(one, other, PIXELS, TEXT, timeout=1e-9)
    assert late.status == "undecided"
    assert late.open[-1][1] == 1.0
    assert compared.reason in (None, sp.Reason.ROUNDING)


def test_scores_that_are_no_numbers_are_open(tmp_path):
    root = deployed(tmp_path / "root.onnx", helper.make_node("Sqrt", ["flat"], ["s"]), seed=1)
    dark = np.where(np.arange(36).reshape(1, 6, 6) % 5, PIXELS, 0.0)
    blurred = "motion-blur:size=3,angle=0"
    assert sp.compare(root, root, dark, blurred, pixels="8bit").status == "agree"
    log = deployed(tmp_path / "log.onnx", helper.make_node("Log", ["flat"], ["s"]), seed=1)
    compared = sp.compare(root, log, dark, blurred, pixels="8bit")
    assert compared.reason == sp.Reason.NOT_FINITE
    assert compared.open[0][0] == 0.0
    pictures = compared.first.proof.pictures
    assert (in_stretches(pictures, compared.open) == (classes_by_hand(log, pictures) < 0)).all()


def test_nothing_is_claimed_that_was_not_replayed_or_compared():
    _, _, compared = flipping_pair()
    assert compared.status == "disagree"
    unseen = replace(compared, disagreements=tuple(replace(own, replayed=False) for own in compared.disagreements))
    assert (unseen.status, unseen.reason) == ("undecided", sp.Reason.NOT_REPLAYED)
    alone = replace(compared, disagreements=(), open=())
    assert alone.status == "agree"
    comparison = replace(alone.second.evidence.comparison, disagreement=np.full(9, 2.0))
    misread = replace(alone.second, evidence=replace(alone.second.evidence, comparison=comparison))
    assert replace(alone, second=misread).status == "undecided"
    assert replace(alone, second=misread).reason == sp.Reason.RUNTIME_DISAGREES


def test_proofs_do_not_contradict_each_other():
    start, end = np.array([0, 0.5, 2]), np.array([1.0, 2, 3])
    assert joined(start, end, np.array([2, 2, 1])) == (Interval(0, 2, 2), Interval(2, 3, 1))
    with pytest.raises(ProofError, match="two classes"):
        joined(start[:2], end[:2], np.array([2, 1]))


def test_a_profile_marks_what_is_not_proved():
    shown = [Interval(0, 0.4, 1), Interval(0.4, 1, 2)]
    profile = with_unproved([Interval(0, 0.3, 1), Interval(0.5, 0.9, 2)], shown)
    assert profile == (
        Interval(0, 0.3, 1),
        Interval(0.3, 0.4, 1, proved=False),
        Interval(0.4, 0.5, 2, proved=False),
        Interval(0.5, 0.9, 2),
        Interval(0.9, 1, 2, proved=False),
    )
    assert [(part.winner, part.proved) for part in by_class(profile)] == [(1, False), (2, False)]
    assert with_unproved([], [Interval(0, 0, 1)]) == (Interval(0, 0, 1, proved=False),)
    assert with_unproved([Interval(0, 0, 1)], [Interval(0, 0, 2)]) == (Interval(0, 0, 1),)
    # what is proved stands where the curve shows another class, or none
    assert with_unproved([Interval(0, 0.4, 2)], shown) == (Interval(0, 0.4, 2), Interval(0.4, 1, 2, proved=False))
    assert with_unproved([Interval(2, 3, 1)], shown)[-1] == Interval(2, 3, 1)


def test_a_rival_that_the_comparison_cannot_tell_from_another_is_not_proved_to_win():
    """From strength 0.75 on, one of two rivals wins by less than float32's noise."""
    spot = np.zeros((1, 3, 3))
    spot[0, 1, 1] = 1.0  # 1 - 8/9 z under the blur
    layers = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    nn.init.zeros_(layers[1].weight)
    layers[1].weight.data[0, 4] = 1.0
    layers[1].bias.data = torch.tensor([0.0, 1 / 3, 1 / 3 + 2**-25])
    result = sp.profile(network_of(layers, 1, 3, 3), spot, "box-blur:size=3,padding=zeros", 0)
    first, *others = result.profile
    assert (first.winner, first.proved, result.status) == (0, True, "unsafe")
    assert (others[-1].winner, others[-1].proved, others[-1].end) == (2, False, 1.0)
    assert all(not other.proved or other.end <= 0.75 for other in result.profile)


def test_at_strength_0_alone():
    one, other = relu(0), relu(3)
    same = int(one.predicted(one.picture().to_input(torch.from_numpy(PIXELS)[None]))[0]) == int(
        other.predicted(other.picture().to_input(torch.from_numpy(PIXELS)[None]))[0]
    )
    compared = sp.compare(one, other, PIXELS, TEXT, 0.0)
    assert compared.status == ("agree" if same else "disagree")
    assert compared.share == 0


def test_labels_of_images_do_not_matter(demo_network):
    path, label = demo.images()[0]
    image = replace(sp.read_image(str(path)).fitted(demo_network.picture()), label=label + 1)
    assert sp.compare(demo_network, demo_network, image, "box-blur:size=3", 0.01).status == "agree"


def test_what_cannot_be_compared(tmp_path):
    with pytest.raises(InputError, match=r"3 classes, .* 4; networks must have the same"):
        sp.compare(relu(0), relu(0, classes=4), PIXELS, TEXT)
    with pytest.raises(InputError, match=r"pictures of 1 x 6 x 6, .* of 1 x 3 x 3"):
        sp.compare(relu(0), network_of(nn.Sequential(nn.Flatten(), *dense(0, 9, 3)), 1, 3, 3), PIXELS, TEXT)
    sigmoid = network_of(nn.Sequential(nn.Flatten(), *dense(0, 36, 8, 3, activation=nn.Sigmoid)), 1, 6, 6)
    with pytest.raises(InputError, match="only piecewise-linear networks can be compared") as smooth:
        sp.compare(relu(0), sigmoid, PIXELS, TEXT)
    assert smooth.value.option == "pixels"
    with pytest.raises(InputError, match="one strength"):
        sp.compare(relu(0), relu(0), PIXELS, f"{TEXT}+brightness:max=0.1")
    named = [relu(0).named(sp.load(demo.MODEL).class_names.of(names)) for names in (("a", "b", "c"), ("a", "c", "b"))]
    with pytest.raises(InputError, match=r"calls class 1 b, .* c; if the classes are the same") as strange:
        sp.compare(*named, PIXELS, TEXT)
    assert strange.value.option == "classes"


def test_in_a_line_and_as_json():
    _, _, compared = flipping_pair()
    assert repr(compared).startswith("<Compared array under sharpen:size=3: disagree on ")
    said = compared.to_json()
    assert said["status"] == "disagree"
    first = compared.disagreements[0]
    assert said["disagreements"][0] == {
        "from": first.start,
        "to": first.end,
        "classes": [first.first, first.second],
        "strength": first.strength,
        "replayed": True,
    }
    assert "deployments" not in said


def test_a_plot_of_any_comparison(tmp_path):
    _, _, compared = flipping_pair()
    plain, sine = deployed(tmp_path / "a.onnx"), deployed(tmp_path / "b.onnx", helper.make_node("Sin", ["flat"], ["s"]))
    pictures = sp.compare(plain, sine, PIXELS, TEXT, pixels="8bit")
    late = sp.compare(plain, sine, PIXELS, TEXT, pixels="8bit", timeout=1e-9)
    nothing = replace(compared, disagreements=(Disagreement(0.2, 0.2, 0, 1, 0.2, True),), open=((0.3, 0.4),))
    for own in (compared, pictures, late, nothing, replace(nothing, disagreements=(), open=())):
        figure = own.plot()
        red = [text.get_text() for text in figure.legends[0].get_texts()]
        assert ("they disagree" in red) == bool(own.disagreements)
        assert ("not settled" in red) == bool(own.open)
