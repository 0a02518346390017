"""The reference runtime has the last word: on every counterexample, and on every proof."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from test_analysis import straight_line_network
from test_exporting import dense, picture, save
from warm import run

import shakeproof as sp
from shakeproof.budget import Budget
from shakeproof.cli.outputs import write_pictures
from shakeproof.cli.queries import Answer
from shakeproof.exact import Piece
from shakeproof.proof.brackets import shown_in
from shakeproof.proof.leads import SweepContext
from shakeproof.proof.replay import compared, places
from shakeproof.question import fitting, robustness

BLUR = "box-blur:size=3,padding=zeros"

# -- counterexamples --------------------------------------------------------------------------------------------------


def fresh(model: Path, x: np.ndarray) -> np.ndarray:
    """Outputs in a session of its own, of an input that must have the model's shape already."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (wanted,) = session.get_inputs()
    assert x.dtype == np.float32
    assert list(x.shape) == wanted.shape
    return session.run(None, {wanted.name: x})[0].flatten()


def around(network: sp.Network, image: np.ndarray, radius: float) -> sp.Specification:
    flat = network.picture().to_input(torch.from_numpy(image)).flatten().numpy()
    label = int(network.scores(torch.from_numpy(flat).view(1, *network.graph.input_shape)).argmax())
    return robustness(flat - radius, flat + radius, label, network.graph.classes)


def unsafe(kind: str, folder: Path, input_shape: tuple[int, ...]) -> tuple[Path, sp.Network, sp.Result]:
    """The first of some random networks for which such a query has a counterexample."""
    for seed in range(20):
        model = save(dense(input_shape, seed=seed), folder)
        network, result = asked(kind, model)
        if result.status is sp.Status.UNSAFE:
            return model, network, result
    raise AssertionError("none of them")


def asked(kind: str, model: Path) -> tuple[sp.Network, sp.Result]:
    image, shape = picture((3, 8, 6)).numpy(), (3, 8, 6)
    normalised = {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]} if kind.startswith("normalised") else {}
    network = sp.load(model, image_shape=shape, **normalised)
    match kind:
        case "path" | "normalised":
            return network, sp.profile(network, image, "sharpen:size=3+brightness:max=-2")
        case "line" | "normalised line":
            return network, sp.profile(network, image, "brightness:max=-2")
        case "early":
            return network, sp.verify(network, image, "brightness:max=-2", 1.0)
        case "bounds":
            return network, sp.profile(network, image, "brightness:max=-2", method="bounds")
        case "clipped":
            return network, sp.profile(network, image, "brightness:max=-2,clip=-0.9..0.6")
        case "box" | "normalised box":
            return network, sp.verify_specification(network, around(network, image, 2.0))
        case "few":
            ((low, high), about) = around(network, image, 9.0).parts[0]
            low = low.astype(np.float32).astype(np.float64)  # where nothing varies, float32 has no other number
            parts = (((low, np.where(np.arange(len(low)) % 24 == 0, high, low)), about),)
            found = sp.Specification(len(low), 3, parts)
            return network, sp.verify_specification(network, found)
        case "any kernel":
            return network, sp.verify(network, image, "any-kernel:size=3", 1.0)
    raise AssertionError(kind)


KINDS = (
    *("path", "line", "early", "bounds", "clipped", "normalised", "normalised line", "normalised box", "box", "few"),
    "any kernel",
)


@pytest.mark.parametrize("input_shape", [(1, 3, 8, 6), (1, 8, 6, 3), (1, 144)], ids=["NCHW", "NHWC", "flat"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_counterexample_is_what_the_model_was_given(tmp_path, kind, input_shape):
    model, network, result = unsafe(kind, tmp_path, input_shape)
    file = tmp_path / "c.npy"
    found = result.counterexample
    write_pictures(Answer(0, network, result), None, file)
    outputs = fresh(model, np.load(file))
    assert np.array_equal(outputs, found.outputs)
    assert outputs.argmax() == found.winner != result.label
    assert found.replayed
    assert found.margin < 0
    scores = network.scores(torch.from_numpy(found.input[None]).double()).numpy()
    assert result.query.obligations[0].property.margin(scores)[0] == pytest.approx(found.margin, rel=1e-3)
    inside(result)


def inside(result: sp.Result) -> None:
    """The counterexample is one of the query's own inputs."""
    found, inputs = result.counterexample, result.query.obligations[0].inputs
    if result.query.path is None:
        assert (inputs.low.numpy() <= found.input).all()
        assert (found.input <= inputs.high.numpy()).all()
        return
    assert found.strengths in inputs
    image = result.query.perturbation.apply(result.query.image.pixels).image(*found.strengths)
    expected = result.query.path.layout.to_input(image).float().numpy()
    assert np.array_equal(found.input, expected)
    assert torch.equal(result.picture(), image.float())


@pytest.mark.parametrize("clip", ["", ",clip=0.2..0.7"])
@pytest.mark.parametrize("input_shape", [(1, 3, 8, 6), (1, 8, 6, 3), (1, 144)], ids=["NCHW", "NHWC", "flat"])
def test_a_path_gives_the_clipped_picture_in_float32(tmp_path, clip, input_shape):
    network = sp.load(save(dense(input_shape), tmp_path), image_shape=(3, 8, 6))
    image = fitting(network, picture((3, 8, 6)))
    (query,) = sp.perturbed(network, [image], "sharpen:size=3+contrast:max=2" + clip)
    z = torch.rand(20, 2, dtype=torch.float64)
    given = query.path.runtime_inputs(z)
    assert given.dtype == np.float32
    assert given.shape == (20, *input_shape)
    path = query.perturbation.apply(image.pixels)
    expected = torch.stack([path.base + (strengths.view(-1, 1, 1, 1) * path.slopes).sum(0) for strengths in z])
    if clip:
        assert bool((expected > 0.7).any() & (expected < 0.2).any())
        expected = expected.clamp(0.2, 0.7)
    assert np.allclose(given, network.picture().to_input(expected).float().numpy(), rtol=0, atol=1e-6)
    exactly = torch.stack([path.image(*strengths.tolist()) for strengths in z])
    assert np.array_equal(given, network.picture().to_input(exactly).float().numpy())


def test_the_files_of_several_queries_are_normalised_by_their_own_network(tmp_path):
    """Each query in a file may name its own mean and deviation."""
    model, _, _ = unsafe("normalised line", tmp_path, (1, 3, 8, 6))
    np.save(tmp_path / "x.npy", picture((3, 8, 6)).numpy())
    files = []
    for mean in ("0.1", "0.2,0.3,0.4"):
        words = ("-p", "brightness:max=-2", "--strength", "1", "--mean", mean, "--std", "0.5", "-o", tmp_path / mean)
        assert run("export", model, tmp_path / "x.npy", *words, "--format", "perturbed").returncode == 0
        files.append(tmp_path / mean / "perturbed.vnnlib")
    done = run("verify", model, *files, "--counterexample", tmp_path / "c.npy", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["unsafe", "unsafe"]
    for number, (row, mean) in enumerate(zip(rows, ([0.1] * 3, [0.2, 0.3, 0.4]), strict=True), start=1):
        x = np.load(tmp_path / f"c-{number}.npy")
        dark = np.load(tmp_path / "x.npy") - 2 * row["counterexample"]["strength"]
        assert np.allclose(x[0], (dark - np.reshape(mean, (3, 1, 1))) / 0.5, atol=1e-5)
        assert fresh(model, x).argmax() == row["counterexample"]["class"] != row["label"]


# -- a runtime that says otherwise ------------------------------------------------------------------------------------

Change = Callable[[np.ndarray, np.ndarray], np.ndarray]
ASKED = ("profile", "verify", "bounds", "bounds early", "two strengths", "any kernel", "box", "small box")
NARROWLY = 1e-4


def safe(kind: str, change: Change | None, margin: float = 0.5) -> sp.Result:
    """A query that the network as read wins, by `margin` where it is closest; its runtime's outputs `change`d."""
    network, image = straight_line_network(1.0, margin)
    if change is not None:
        own = network.runtime
        network = dataclasses.replace(network, runtime=lambda x: change(x, own(x)).astype(np.float32))
    match kind:
        case "profile":
            return sp.profile(network, image, BLUR, 0)
        case "verify":
            return sp.verify(network, image, BLUR, 1.0, 0)
        case "bounds":
            return sp.profile(network, image, BLUR, 0, method="bounds")
        case "bounds early":
            return sp.verify(network, image, BLUR, 1.0, 0, method="bounds")
        case "two strengths":
            return sp.verify(network, image, BLUR + "+brightness:max=1", (1.0, 0.5), 0)
        case "any kernel":
            return sp.verify(network, image, "any-kernel:size=3", 8 / 9, 0)
    flat = image.flatten()
    varying = np.ones(9) if kind == "box" else np.eye(9)[4]
    return sp.verify_specification(network, robustness(flat - varying * 8 / 9, flat + varying * 8 / 9, 0, 2))


@pytest.mark.parametrize("kind", ASKED)
def test_the_queries_below_are_safe_where_the_runtime_agrees(kind):
    for margin in (0.5, NARROWLY):
        result = safe(kind, None, margin)
        assert result.status is sp.Status.SAFE
        assert result.min_margin == pytest.approx(margin, abs=2e-7)


def differs(x: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The class that wins is the same, and where the image is little changed the outputs are too."""
    centre = x.reshape(len(x), -1)[:, 4]
    return np.where((centre < 0.5)[:, None], scores + 0.5, scores)


def scaled(x: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return scores * 1.01


def without_numbers(x: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return np.where((x.reshape(len(x), -1)[:, 4] < 0.5)[:, None], np.nan, scores)


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("change", [differs, scaled, without_numbers])
def test_a_runtime_with_other_outputs_is_noticed(kind, change):
    result = safe(kind, change)
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.RUNTIME_DISAGREES)
    assert result.critical_strength is None
    assert result.certified_strength == 0.0


@pytest.mark.parametrize("kind", ASKED)
def test_a_runtime_that_loses_where_the_network_wins_is_noticed(kind):
    """However little by: what is allowed for noise is less than the margin."""

    def loses(x: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return scores + np.array([0.0, 2 * NARROWLY])

    result = safe(kind, loses, NARROWLY)
    assert (result.status, result.reason) == (sp.Status.UNDECIDED, sp.Reason.RUNTIME_DISAGREES)
    assert result.evidence.comparison.fails.any()


def test_a_runtime_that_loses_alone_confirms_nothing():
    """A sweep that met a loss asks the runtime; what this shows must be one of the network's own, too."""
    network, image = straight_line_network(1.0, 0.5)
    other = dataclasses.replace(network, runtime=lambda x: np.tile(np.array([0, 1], np.float32), (len(x), 1)))
    lost, _ = straight_line_network(1.0, -1.0)
    losing = Piece(torch.tensor([0]), torch.ones(1), torch.tensor([[0.0, 1.0]]), torch.zeros(1))
    for asked, confirmed in ((other, []), (lost, [0])):
        (query,) = sp.perturbed(asked, [sp.Image("x", torch.from_numpy(image), 0)], BLUR)
        context = SweepContext.of(asked, [query], sp.Settings(stop_early=True), Budget())
        assert [number for number, _ in shown_in(context, losing)] == confirmed


@pytest.mark.parametrize("kind", ASKED)
def test_a_runtime_that_rounds_is_no_other(kind):
    for share in (1e-7, -1e-7):
        result = safe(kind, lambda x, scores, share=share: scores * (1 + share))
        assert result.status is sp.Status.SAFE
        assert result.certified_strength == min(result.query.strengths, default=0.0)


@pytest.mark.parametrize("kind", ["profile", "verify", "bounds"])
def test_nothing_is_certified_where_the_runtime_is_another_network(kind):
    """Not even the part of the path before the label loses."""
    network, image = straight_line_network(1.0, -1.0)
    own = network.runtime
    other = dataclasses.replace(network, runtime=lambda x: own(x) + np.array([0.2, 0.2], np.float32))
    results = {
        "profile": lambda about: sp.profile(about, image, BLUR, 0),
        "verify": lambda about: sp.verify(about, image, BLUR, 1.0, 0, method="exact"),
        "bounds": lambda about: sp.profile(about, image, BLUR, 0, method="bounds"),
    }
    assert results[kind](network).status is sp.Status.UNSAFE
    assert results[kind](network).critical_strength is not None
    result = results[kind](other)
    assert result.status is sp.Status.UNSAFE  # the runtime itself shows it
    assert result.critical_strength is None
    assert result.certified_strength == 0.0


def test_places_reach_both_ends():
    network, image = straight_line_network(1.0, -1.0)
    (query,) = sp.perturbed(network, [fitting(network, image)], BLUR, 0, 0.7)
    at = places(query.obligations[0])
    assert (float(at[0]), float(at[-1])) == (0.0, 0.7)
    (two,) = sp.perturbed(network, [fitting(network, image)], BLUR + "+brightness:max=1", 0, (0.7, 0.3))
    corners = {tuple(corner) for corner in places(two.obligations[0]).tolist()}
    assert {(0.0, 0.0), (0.7, 0.0), (0.0, 0.3), (0.7, 0.3)} <= corners
    (box,) = sp.perturbed(network, [fitting(network, image)], "any-kernel:size=3", 0, 0.7)
    inputs = box.obligations[0].inputs
    at = places(box.obligations[0])
    assert torch.equal(at[0].double(), inputs.low.float().double())
    assert torch.equal(at[1].double(), inputs.high.float().double())


def test_many_comparisons_at_once_are_those_of_each_alone(monkeypatch):
    """However few inputs go to the runtime at once."""
    network, image = straight_line_network(1.0, -1.0)
    images = [fitting(network, image * share) for share in (0.2, 0.7, 1.0, 0.5)]
    queries = sp.perturbed(network, images, BLUR, 0)
    asked = [(query.obligations[0], places(query.obligations[0], 3 + number)) for number, query in enumerate(queries)]
    together = compared(network, asked, Budget())
    assert [len(found.margin) for found in together] == [3, 4, 5, 6]
    monkeypatch.setattr("shakeproof.proof.replay.COMPARED_AT_ONCE", 9 * 8)
    for one, found, again in zip(asked, together, compared(network, asked, Budget()), strict=True):
        (alone,) = compared(network, [one], Budget())
        for name in ("margin", "fails", "disagreement", "noise"):
            assert np.allclose(getattr(alone, name), getattr(found, name), rtol=0, atol=1e-12)
            assert np.allclose(getattr(again, name), getattr(found, name), rtol=0, atol=1e-12)
