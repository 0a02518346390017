"""Every kernel of a size at once: the simplex of their shares, its bounds, its proofs and its counterexamples."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from models import network_of, random_module
from processes import HANGING
from scipy.ndimage import convolve, correlate
from scipy.optimize import linprog

import shakeproof as sp
from shakeproof.bounds import Boxes, Shares
from shakeproof.budget import Budget
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.digests import question_digest
from shakeproof.errors import InputError, ProofError
from shakeproof.question import InputKernels, fitting, wins
from shakeproof.search import AnyFailure, PathProblem
from shakeproof.search.input_splitting import InputSplitting

MODES = {"reflect": "mirror", "zeros": "constant", "replicate": "nearest", "circular": "wrap"}


def shares_of(count: int, total: float, seed: int = 0) -> np.ndarray:
    """Random shares: spread evenly, at corners, and on edges."""
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.full(9, 0.3), count)
    return total * weights[:, :8] * random.choice([1.0, 0.9], (count, 1))


# -- bounds -----------------------------------------------------------------------------------------------------------


def least(gradient, low, high, total: float) -> Fraction:
    """The least value of a linear function on what of a box sums to a total, in fractions."""
    left = Fraction(total) - sum(map(Fraction, low))
    value = sum(Fraction(g) * Fraction(start) for g, start in zip(gradient, low, strict=True))
    for g, start, end in sorted(zip(gradient, low, high, strict=True)):
        amount = min(left, Fraction(end) - Fraction(start))
        if g < 0:
            value, left = value + Fraction(g) * amount, left - amount
    return value


@pytest.mark.parametrize("seed", range(40))
def test_extremes_are_those_of_a_linear_program(seed):
    """Affine functions on what of a box sums to a total: from their values at points, and from their gradients."""
    random = np.random.default_rng(seed)
    m, total = int(random.integers(1, 9)), float(random.uniform(0.1, 1))
    low = random.uniform(0, total / m, m) * random.integers(0, 2, m)
    high = low + random.uniform(0, total, m) * random.integers(0, 2, m)
    gradient, offset = random.normal(size=m) * 10 ** random.uniform(-3, 3, m), float(random.normal())
    cells = Shares(torch.tensor(low)[None], torch.tensor(high)[None], total)
    assert not bool(cells.is_empty)
    values, radius = cells.points @ torch.tensor(gradient) + offset, float(random.uniform(0, 0.1))
    extremes = cells.extremes(values[..., None], torch.full((1, 1), radius, dtype=torch.float64))
    scale = np.abs(gradient).sum() + abs(offset)
    for sign, end in ((1, extremes.low), (-1, extremes.high)):
        true = least(sign * gradient, low, high, total) + sign * Fraction(offset) - Fraction(radius)
        assert sign * Fraction(float(end)) <= true  # enclosed
        assert float(true - sign * Fraction(float(end))) <= 1e-10 * scale  # and no looser
    at_start = torch.tensor([offset], dtype=torch.float64)
    lowest = Fraction(float(cells.lowest(at_start, torch.tensor(gradient)[None])))
    true = Fraction(offset) + least(gradient, low, high, total)
    assert lowest <= true
    assert float(true - lowest) <= 1e-10 * scale
    solved = linprog(gradient, np.ones((1, m)), [total], bounds=list(zip(low, high, strict=True)))
    assert solved.fun + offset == pytest.approx(float(true), abs=1e-6 * scale)


def test_a_box_that_is_too_far_out_is_empty():
    low = torch.tensor([[0.3, 0.3], [0.2, 0.3], [0.25, 0.25]], dtype=torch.float64)
    assert Shares(low, low + 1, 0.5).is_empty.tolist() == [True, False, False]


def test_many_cells_and_neurons_at_once():
    random = np.random.default_rng(0)
    low = torch.tensor(random.uniform(0, 0.05, (5, 8)))
    cells = Shares(low, low + torch.tensor(random.uniform(0, 0.5, (5, 8))), 0.5)
    gradients = torch.tensor(random.normal(size=(5, 8, 3, 2)))
    values = torch.einsum("pcm,cmij->pcij", cells.points, gradients)
    together = cells.extremes(values)
    for cell, i, j in np.ndindex(5, 3, 2):
        one = cells[torch.tensor([cell])].extremes(values[:, cell : cell + 1, i, j])
        assert float(together.low[cell, i, j]) == pytest.approx(float(one.low), abs=1e-10)
        assert float(together.high[cell, i, j]) == pytest.approx(float(one.high), abs=1e-10)
    box = Boxes(cells.low, cells.high).extremes(values)
    assert bool((box.low <= together.low + 1e-9).all() and (box.high >= together.high - 1e-9).all())
    assert bool((box.low < together.low - 0.01).any())  # the total is worth something


# -- the set ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", MODES)
def test_pictures_are_those_under_a_kernel(padding):
    kernels = sp.all_kernels(3, padding)
    image = np.random.default_rng(1).uniform(0, 1, (2, 6, 7))
    path = kernels.apply(torch.from_numpy(image))
    for shares in shares_of(20, 0.8):
        kernel = np.array(kernels.kernel(shares))
        assert kernel.min() >= 0
        assert kernel[1, 1] >= 0.2 - 1e-12
        assert kernel.sum() == pytest.approx(1)
        expected = np.stack([correlate(plane, kernel, mode=MODES[padding]) for plane in image])
        assert np.abs(path.image(*shares).numpy() - expected).max() < 1e-14


def test_which_shares_belong_to_the_set(demo_network):
    (query,) = sp.perturbed(demo_network, [sp.demo.images()[0][0]], "all-kernels:size=3", strength=0.25)
    inputs = query.obligations[0].inputs
    assert isinstance(inputs, InputKernels)
    assert [0.25, *[0.0] * 7] in inputs
    assert [0.25, *[1e-300] * 7] not in inputs
    assert [-1e-300, *[0.0] * 7] not in inputs
    assert all(corner.tolist() in inputs for corner in inputs.corners)
    assert len(inputs.corners) == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("all-kernels:size=5", "size must be 3"),
        ("all-kernels:size=3,padding=odd", "padding must be one of"),
        ("all-kernels:size=3,clip=1..0", "LOW below HIGH"),
        ("all-kernels:size=3+haze:colour=0", "all-kernels is a set of images, to which nothing can be added"),
    ],
)
def test_texts_that_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        sp.parse(text)


def test_texts_are_read_and_written():
    for text in ("all-kernels:size=3", "all-kernels:size=3,padding=zeros,clip=0..1"):
        assert str(sp.parse(text)) == text


def test_only_verify_takes_it(demo_network):
    with pytest.raises(InputError, match="set of images, without one kernel or a path; only `verify` takes it"):
        sp.profile(demo_network, sp.demo.images()[0][0], "all-kernels:size=3")


# -- answers ----------------------------------------------------------------------------------------------------------


def test_what_is_safe_holds_for_random_kernels(demo_network):
    """Thousands of kernels in the runtime, none of which may contradict."""
    checked = 0
    for path, label in sp.demo.images()[:4]:
        image = fitting(demo_network, path)
        for strength in (0.1, 0.3):
            result = sp.verify(demo_network, image, "all-kernels:size=3", strength, label, timeout=HANGING)
            if result.status != "safe":
                continue
            assert result.certified_strength == strength
            pictures = []
            for shares in shares_of(200, strength):
                kernel = np.array(sp.all_kernels(3).kernel(shares))
                pictures.append([correlate(plane, kernel, mode="mirror") for plane in image.pixels.numpy()])
            scores = demo_network.reference(np.array(pictures, np.float32)[:, None])
            assert (scores.argmax(1) == label).all()
            checked += len(scores)
    assert checked >= 800


def test_a_counterexample_is_a_kernel_that_the_runtime_confirms(demo_network):
    path, label = sp.demo.images()[2]
    image = fitting(demo_network, path)
    result = sp.verify(demo_network, image, "all-kernels:size=3", 1.0, label, timeout=HANGING)
    assert result.status == "unsafe"
    found = result.counterexample
    assert found.replayed
    assert found.strengths is None
    assert found.shares in result.query.obligations[0].inputs
    kernel = result.kernel.rows
    assert sum(map(sum, (map(Fraction, row) for row in kernel))) == pytest.approx(1)
    picture = np.stack([correlate(plane, np.array(kernel), mode="mirror") for plane in image.pixels.numpy()])
    assert demo_network.reference(picture[None, None].astype(np.float32)).argmax() == found.winner != label
    said = json.loads(json.dumps(result.to_json()))
    assert said["kernel"]["rows"] == [list(row) for row in kernel]
    assert sp.Record.from_json(said).kernel == result.kernel
    assert "kernel" not in sp.verify(demo_network, image, "all-kernels:size=3", 0.01, label).to_json()


def test_small_networks_agree_with_dense_sampling():
    """Also with clipping and other paddings; there are safe and unsafe ones among them."""
    seen = set()
    for seed in range(12):
        network = network_of(random_module(seed), 1, 8, 8)
        image = np.random.default_rng(seed).uniform(0, 1, (1, 8, 8))
        for text in ("all-kernels:size=3", "all-kernels:size=3,padding=zeros,clip=0.2..0.8"):
            result = sp.verify(network, image, text, 0.5, timeout=60)
            seen.add(str(result.status))
            inputs = result.query.obligations[0].inputs
            shares = torch.from_numpy(np.concatenate([shares_of(300, 0.5, seed), inputs.corners.numpy()]))
            winners = network.reference(inputs.runtime_inputs(shares)).argmax(1)
            if result.status == "safe":
                assert (winners == result.label).all()
            if result.status == "unsafe":
                assert result.counterexample.shares in inputs
    assert {"safe", "unsafe"} <= seen


def test_where_there_is_nothing_everything_holds():
    """Boxes without any share in the set are closed, also where a whole batch of them is taken."""
    network = network_of(random_module(3), 1, 8, 8)
    image = np.random.default_rng(3).uniform(0, 1, (1, 8, 8))
    (query,) = sp.perturbed(network, [image], "all-kernels:size=3", strength=0.5)
    inputs = query.obligations[0].inputs
    ends = torch.full((8,), 0.5, dtype=torch.float64)
    claims = torch.from_numpy(wins(query.label, network.graph.classes).claims[0][:, 0])
    problem = PathProblem(
        network.graph, inputs.path, claims, 0 * ends, ends, lambda w: np.zeros(len(w), bool), inputs.total
    )
    search = InputSplitting(problem, AnyFailure(), Budget())
    for axis in (0, 1):  # above 0.3 along two axes, nothing is left
        taken = search.take(10)
        keep, search.open = search.cut(
            taken, torch.full_like(taken.axis, axis), torch.full((len(taken),), 0.3).double()
        )
        search.aside.append(keep)
    assert len(search.open) == 1
    assert not len(search.bound(search.take(1)))
    assert search.tree.is_proved[search.safe[-1].part].all()


def test_a_proof_for_less_is_none(demo_network):
    """What was proved of a simplex says nothing about a larger one, nor about the box around it."""
    path, label = sp.demo.images()[0]
    small, large = (sp.verify(demo_network, path, "all-kernels:size=3", strength, label) for strength in (0.01, 0.02))
    assert small.status == large.status == "safe"
    with pytest.raises(ProofError, match="another query"):
        replace(small, evidence=large.evidence)
    (proof,) = small.evidence.proofs
    boxed = replace(proof, cells=replace(proof.cells, total=None))
    with pytest.raises(ProofError, match="another query"):
        replace(small, evidence=replace(small.evidence, proofs=(boxed,)))


def test_there_is_no_certificate(demo_network):
    path, label = sp.demo.images()[0]
    result = sp.verify(demo_network, path, "all-kernels:size=3", 0.01, label)
    with pytest.raises(NoCertificateError, match="certificates cover perturbed images"):
        certificate(demo_network, result)


# -- the hull of measured shakes --------------------------------------------------------------------------------------


@pytest.fixture
def shakes(tmp_path, monkeypatch):
    """Three point spread functions of different sizes, heavy in the middle, so that this is where they are centred."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(4)
    spreads = [random.uniform(0, 1, shape) for shape in ((3, 5), (5, 5), (1, 3))]
    for spread in spreads:
        spread[spread.shape[0] // 2, spread.shape[1] // 2] = 3
    np.savez("shakes.npz", *spreads)
    return [spread / spread.sum() for spread in spreads]


def test_mixtures_of_measured_shakes(shakes):
    hull, image = sp.parse("psf-hull:file=shakes.npz,padding=zeros"), np.random.default_rng(1).uniform(0, 1, (2, 8, 9))
    path = hull.apply(torch.from_numpy(image))
    assert path.parameters == 3
    for shares in ((0.2, 0.3, 0.4), (0, 0, 1), (0, 0, 0)):
        expected = (1 - sum(shares)) * image
        for share, spread in zip(shares, shakes, strict=True):  # what a point becomes
            spread_out = [convolve(plane, spread, mode="constant") for plane in image]
            expected = expected + share * np.stack(spread_out)
        assert np.abs(path.image(*shares).numpy() - expected).max() < 1e-14
        kernel = np.array(hull.kernel(shares))
        assert kernel.shape == (5, 5)
        assert kernel.sum() == pytest.approx(1)


def test_a_hull_is_as_safe_as_each_of_its_corners(shakes, demo_network):
    path, label = sp.demo.images()[0]
    whole = sp.verify(demo_network, path, "psf-hull:file=shakes.npz", 0.3, label)
    assert whole.status == "safe"
    for index in range(3):
        assert sp.verify(demo_network, path, f"psf:file=shakes.npz,index={index}", 0.3, label).status == "safe"
    digests = {question_digest("network", "image", 0, sp.parse("psf-hull:file=shakes.npz"), sp.Settings())}
    np.savez("shakes.npz", np.ones((3, 3)))
    digests.add(question_digest("network", "image", 0, sp.parse("psf-hull:file=shakes.npz"), sp.Settings()))
    assert len(digests) == 2


def test_a_scale_is_part_of_the_text(shakes):
    for text in ("psf-hull:file=shakes.npz,scale=0.5", "psf:file=shakes.npz,index=1,scale=2"):
        assert str(sp.parse(text)) == text
    assert str(sp.parse("psf:file=shakes.npz,index=1,scale=1")) == "psf:file=shakes.npz,index=1"
    assert sp.parse("psf:file=shakes.npz,index=1,scale=2").kernel.shape == (11, 11)
    assert sp.parse("psf:file=shakes.npz,index=1,scale=0.5").kernel.shape == (3, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("psf-hull:file=shakes.npz,scale=0", "scale must be a number from 0.01 to 100"),
        ("psf:file=shakes.npz,index=0,scale=nan", "scale must be a number from 0.01 to 100"),
        ("psf-hull:file=none.npz", "cannot read a kernel"),
        ("psf-hull:file=many.npz", "a set has 1 to 8 kernels, not 9"),
        ("psf-hull:file=negative.npz", "has no negative entries"),
    ],
)
def test_hulls_that_are_refused(shakes, text, words):
    np.savez("many.npz", *[np.ones((3, 3))] * 9)
    np.savez("negative.npz", -np.ones((3, 3)))
    with pytest.raises(InputError, match=words):
        sp.parse(text)
