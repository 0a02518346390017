"""Answers about requirements beside dense evaluation: by the exact method, by bounds, and picture by picture."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from models import network_of
from processes import HANGING
from torch import nn

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.model import stated
from shakeproof.question import perturbed
from shakeproof.report import result_figure, save
from shakeproof.report.requirement_plots import pixel_strengths

OUTPUTS = 5
SHAKES = ("motion-blur:size=5,angle=45", "box-blur:size=3", "brightness:max=0.4,clip=0..1")
REQUIREMENTS = (
    "label",
    "label:lead=0.05",
    "top:k=2",
    "top:k=3",
    "among:classes=0,1,2",
    "never:classes=3,4",
    "score:class=1,above=0",
    "output:index=2,within=-0.3..0.4",
    "drift:index=0,by=0.05",
    "top:k=2 and drift:index=1,by=0.1 and never:classes=4",
)


def small(seed: int, outputs: int = OUTPUTS, last: nn.Module | None = None) -> sp.Network:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 12), nn.ReLU()]
    layers += [nn.Linear(12, outputs), *([] if last is None else [last])]
    module = nn.Sequential(*layers).eval()
    with torch.no_grad():
        layers[-1 if last is None else -2].weight *= 4 if last is None else 2
    return network_of(module, 1, 8, 8)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((1, 8, 8))


def margins_along(network: sp.Network, image: np.ndarray, shake: str, text: str, count: int = 2001):
    """Densely, by the property itself on the network's own outputs."""
    (query,) = perturbed(network, [image], shake, None, 1.0, text)
    z = np.linspace(0, 1, count)
    path = query.path.path
    inputs = path.clipped(path.at(torch.from_numpy(z).view(-1, 1)))
    outputs = network.with_softmax(network.scores(inputs)).numpy()
    return z, query.obligations[0].property.margin(outputs)


@pytest.mark.parametrize("text", REQUIREMENTS)
@pytest.mark.parametrize("shake", SHAKES)
def test_the_exact_method_finds_what_dense_evaluation_finds(text, shake):
    kinds = set()
    for seed in range(6):
        network, image = small(seed), picture(seed)
        result = sp.profile(network, image, shake, require=text)
        z, margin = margins_along(network, image, shake, text)
        kinds.add(result.status.value)
        assert result.method == "exact"
        assert json.loads(json.dumps(result.to_json()))["requirement"] == text
        assert sp.Record.from_json(result.to_json()) == result.record
        if margin[0] <= 0:
            assert result.status == "misclassified"
            continue
        assert result.min_margin <= margin.min() + 1e-12
        failing = z[margin <= 0]
        if result.status == "safe":
            assert not len(failing)
        else:
            assert result.status == "unsafe"
            low, high = result.critical_strength
            assert 0 <= high - low < 1e-6
            assert not (failing < low).any()
            assert (z[margin > 0] > high).any() or len(failing)
            near = margins_at(network, image, shake, text, [low, high])
            assert near[0] > 0 >= near[1] - 1e-9
            assert result.counterexample.replayed
    assert kinds


def margins_at(network, image, shake, text, z):
    (query,) = perturbed(network, [image], shake, None, 1.0, text)
    path = query.path.path
    inputs = path.clipped(path.at(torch.tensor(z, dtype=torch.float64).view(-1, 1)))
    return query.obligations[0].property.margin(network.with_softmax(network.scores(inputs)).numpy())


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_bounds_and_the_exact_method_do_not_contradict_each_other(text):
    for seed in range(4):
        network, image = small(seed), picture(seed)
        exact = sp.profile(network, image, SHAKES[0], require=text)
        bounds = sp.profile(network, image, SHAKES[0], require=text, method="bounds", tolerance=1e-3, timeout=HANGING)
        assert bounds.method == "bounds" or exact.status == "misclassified"
        assert bounds.status == exact.status
        if exact.status == "unsafe":
            assert bounds.certified_strength <= exact.critical_strength[1]
            assert abs(bounds.critical_strength[1] - exact.critical_strength[1]) < 2e-3


@pytest.mark.parametrize("text", REQUIREMENTS)
def test_8_bit_pictures_say_what_the_runtime_says(text):
    for seed in range(3):
        network, image = small(seed), np.round(picture(seed) * 255) / 255
        exact = sp.profile(network, image, SHAKES[1], require=text)
        pictures = sp.profile(network, image, SHAKES[1], require=text, pixels="8bit")
        assert pictures.method == "enumeration"
        if pictures.status == "unsafe" and exact.status == "unsafe":
            assert abs(pictures.critical_strength[1] - exact.critical_strength[1]) < 0.1
        elif exact.status == "misclassified" or abs(exact.min_margin) > 0.02:
            assert pictures.status == exact.status


def test_a_label_needs_no_other_graph_and_is_answered_as_ever():
    network, image = small(0), picture(0)
    (query,) = perturbed(network, [image], SHAKES[0])
    assert stated(network, query.obligations[0].property).graph_of_cases is network.graph
    one, other = (sp.profile(network, image, SHAKES[0], **more) for more in ({}, {"require": "label"}))
    assert one.record == other.record or one.critical_strength == other.critical_strength
    top = sp.profile(network, image, SHAKES[0], require="top:k=1")
    assert top.critical_strength == pytest.approx(one.critical_strength, abs=1e-9) or top.status == one.status == "safe"


# -- probabilities, and networks with one output ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "outputs", "method"),
    [(nn.Sigmoid(), 1, "exact"), (nn.Sigmoid(), 3, "exact"), (nn.Softmax(1), 2, "exact"), (nn.Softmax(1), 4, "bounds")],
)
def test_probabilities_are_above_a_number_where_dense_evaluation_says_so(last, outputs, method):
    for seed in range(4):
        network, image = small(seed, outputs, last), picture(seed)
        start = margins_at(network, image, SHAKES[1], "score:class=0,above=0", [0.0])[0]
        text = f"score:class=0,above={round(0.98 * float(start), 6)!r}"
        result = sp.profile(network, image, SHAKES[1], require=text, timeout=HANGING, tolerance=1e-4)
        z, margin = margins_along(network, image, SHAKES[1], text)
        assert result.method == method
        assert result.status == ("unsafe" if (margin <= 0).any() else "safe")
        if result.status == "unsafe":
            low, high = result.critical_strength
            assert low - 1e-3 <= z[margin <= 0][0] <= high + 1e-3
            assert margins_at(network, image, SHAKES[1], text, [low])[0] > 0


def test_the_exact_method_refuses_a_softmax_of_many_by_name():
    network = small(0, 4, nn.Softmax(1))
    with pytest.raises(InputError, match="Softmax"):
        sp.profile(network, picture(0), SHAKES[1], require="score:class=0,above=0.1", method="exact")


def test_a_regressor_has_no_label_and_is_asked_about_its_output():
    network, image = small(3, 1), picture(3)
    result = sp.profile(network, image, SHAKES[0], require="drift:index=0,by=0.05")
    assert result.label is None
    assert "drift:index=0,by=0.05" in result.summary
    with pytest.raises(InputError, match="classifier"):
        sp.profile(network, image, SHAKES[0])
    with pytest.raises(InputError, match="says nothing about a label"):
        sp.profile(network, image, SHAKES[0], 0, require="drift:index=0,by=0.05")


def test_any_kernel_takes_what_needs_no_order_of_several():
    network, image = small(1), picture(1)
    safe = sp.verify(network, image, "any-kernel:size=3", 1e-4, require="output:index=0,within=-100..100")
    assert safe.status == "safe"
    with pytest.raises(InputError, match="top:k=2: is proved along strengths"):
        sp.verify(network, image, "any-kernel:size=3", 1e-4, require="top:k=2")


# -- the bundled networks that look at roads ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "image", "text", "status"),
    [
        ("segmenter", "crossing", "pixels:share=0.9", "safe"),
        ("segmenter", "crossing", "pixels:share=0.995,class=2", None),
        ("segmenter", "road", "pixels:share=1.0", None),
        ("detector", "crossing", "detection:box=44,score=0.5,drift=4", "safe"),
        ("detector", "crossing", "detection:box=44,score=0.5,drift=0.3", None),
        ("steering", "road", "drift:index=angle,by=2", "safe"),
        ("steering", "road", "drift:index=angle,by=0.2", None),
        ("pedestrian", "pedestrian", "score:class=0,above=0.5", "safe"),
    ],
)
def test_road_networks_beside_dense_evaluation(name, image, text, status):
    network = sp.load(demo.ROAD / f"{name}.onnx", output_name="*")
    image, shake = str(demo.ROAD / f"{image}.png"), "motion-blur:size=5,angle=90"
    result = sp.profile(network, image, shake, require=text, timeout=HANGING)
    z, margin = margins_along(network, image, shake, text, 501)
    assert result.method == "exact"
    assert result.status in (status or "unsafe", "safe" if not (margin <= 0).any() else "unsafe")
    if result.status == "unsafe":
        low, high = result.critical_strength
        assert high - low < 1e-6
        assert (margin[z < low] > 0).all()
    else:
        assert (margin > 0).all()


def test_plots_show_outputs_and_where_each_pixel_is_lost(tmp_path):
    network = sp.load(demo.ROAD / "segmenter.onnx")
    image, shake = str(demo.ROAD / "crossing.png"), "motion-blur:size=9,angle=90"
    result = sp.profile(network, image, shake, require="pixels:share=0.97", whole_curve=True)
    (case,) = result.query.obligations[0].property.cases
    lost_from, kept = pixel_strengths(case, result.proof.curve.z, result.proof.outputs)
    path, z = result.query.path.path, np.linspace(0, 1, 301)
    outputs = network.scores(path.at(torch.from_numpy(z).view(-1, 1))).numpy()
    margins = np.minimum.reduceat(-(outputs @ case.coefficients.T), case.groups[0], axis=1)
    densely = np.array([z[column <= 0].min(initial=np.inf) for column in margins.T])
    assert (lost_from <= densely + 1e-9).all()
    met = np.isfinite(densely)
    assert (densely[met] - lost_from[met]).max() <= 1 / 300 + 1e-9
    assert kept[0] == 1
    critical = result.critical_strength[1]
    assert (np.sort(lost_from)[case.groups[1] - 1] <= critical + 1e-6).all()
    save(result_figure(result), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
