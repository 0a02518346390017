"""Certificates worked out in rational arithmetic, and checked by the checker that does not round."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import exact_checker
import numpy as np
import onnx
import pytest
from exact_checker import MAGIC, RefusedError, check_exactly, pack, unpack

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from soundness_suite.networks import Builder, single
from soundness_suite.paths import kernel, path
from soundness_suite.truth import Curve

from shakeproof import checker

TEXTS = [
    "box-blur:size=3",
    "motion-blur:size=4,angle=45,padding=replicate",
    "sharpen:size=3,padding=zeros,clip=0..1",
    "contrast:max=1.7",
    "brightness:max=0.2,clip=0.25..0.75",
]


@dataclass(frozen=True)
class Made:
    """A network in a file, an image, a perturbation; the exact curve; and a certificate's header and ends."""

    model: Path
    curve: Curve
    header: dict[str, Any]
    pixels: np.ndarray
    ends: np.ndarray

    def packed(self, ends: np.ndarray | None = None, **changes: Any) -> bytes:
        ends = self.ends if ends is None else np.asarray(ends, float)
        return pack(
            {**self.header, "strength": [float(ends[-1])], **changes}, {"pixels": self.pixels, "cuts": ends[1:-1]}
        )

    def check(self, certificate: bytes) -> tuple[bool, Fraction]:
        return check_exactly(certificate, self.model)


def dense(random: np.random.Generator, shape: tuple[int, int, int], normalised: bool) -> onnx.ModelProto:
    """A few layers of Gemm and ReLU; some with (x - 0.5) / 0.3 in front."""
    builder = Builder(shape)
    x, inputs = builder.flat, int(np.prod(shape))
    if normalised:
        x = builder.add("Sub", x, builder.constant([0.5]))
        x = builder.add("Div", x, builder.constant([single(0.3)]))
    for width in random.integers(16, 28, 3):
        weight = np.float32(random.normal(size=(width, inputs)) * np.sqrt(2 / inputs)).astype(float)
        x = builder.relu(builder.linear(x, weight, np.float32(random.normal(size=width) / 3).astype(float)))
        inputs = int(width)
    weight = np.float32(random.normal(size=(3, inputs))).astype(float)
    return builder.model(builder.linear(x, weight, np.float32(random.normal(size=3) / 5).astype(float)))


def full_kernel(text: str) -> list[list[str]]:
    family, _, rest = text.partition(":")
    options = dict(o.split("=") for o in rest.split(","))
    if family in ("brightness", "contrast"):
        return [[str(1 + Fraction(options["max"])) if family == "contrast" else "1"]]
    return [[str(entry) for entry in row] for row in kernel(family, options)]


def made(folder: Path, number: int, share: float = 0.9) -> Made:
    """Safe up to its strength: a share of the critical one. Leaves end at the exact breakpoints, as float64."""
    random = np.random.default_rng([5, number])
    text, image = TEXTS[number % 5], random.random((1 + number % 2, 5, 5))
    onnx.save(dense(random, image.shape, bool(number % 3)), folder / "network.onnx")
    model = onnx.load(folder / "network.onnx")
    whole = Curve(model, path(image, text, 1.0))
    scores = whole.scores(Fraction(0))
    label = scores.index(max(scores))
    critical = whole.truth(label).critical
    strength = 1.0 if critical is None else share * float(critical)
    curve = Curve(model, path(image, text, strength))
    ends = np.array(sorted({float(cut) for cut in curve.cuts}))
    header = {
        "tool": "test",
        "model": "network.onnx",
        "model_sha256": hashlib.sha256((folder / "network.onnx").read_bytes()).hexdigest(),
        "image": "random",
        "image_sha256": hashlib.sha256(image.astype("<f8").tobytes()).hexdigest(),
        "file_sha256": "",
        "channels_last": False,
        "perturbation": text,
        "kernels": [full_kernel(text)],
        "mean": [],
        "std": [],
        "label": label,
        "strength": [strength],
        "arithmetic": "real",
        "claim": "safe",
    }
    return Made(folder / "network.onnx", curve, header, image, ends)


@pytest.mark.parametrize("number", range(5))
def test_five_certificates_hold(tmp_path, number):
    """What is proved is the exact margin, but for breakpoints that are no float64 numbers."""
    given = made(tmp_path, number)
    truth = given.curve.truth(given.header["label"])
    accepted, margin = given.check(given.packed())
    assert accepted
    assert checker.check(given.packed(), given.model.read_bytes()).accepted
    assert len(given.ends) > 2
    assert truth.margin - Fraction(1, 10**13) < margin <= truth.margin


@pytest.mark.parametrize("number", range(5))
def test_python_and_flint_agree(tmp_path, number, monkeypatch):
    pytest.importorskip("flint", reason="python-flint is not installed (pip install shakeproof[exact])")
    given = made(tmp_path, number)
    found = given.check(given.packed())
    monkeypatch.setattr(exact_checker, "fmpz_mat", None)
    exact_checker.layers_of.cache_clear()
    assert given.check(given.packed()) == found


@pytest.mark.parametrize("number", range(15))
def test_coarse_leaves_prove_less_and_never_too_much(tmp_path, number):
    given = made(tmp_path, number, share=0.999)
    random = np.random.default_rng(number)
    truth, last = given.curve.truth(given.header["label"]).margin, np.inf
    ends = given.ends
    while len(ends) > 2:
        kept = random.random(len(ends)) < 0.6
        kept[[0, -1]] = True
        ends = ends[kept]
        accepted, margin = given.check(given.packed(ends))
        assert margin <= truth
        assert accepted == (margin > 0)
        last = margin
    assert last < truth or len(given.ends) <= 3


@pytest.mark.parametrize("number", range(15))
def test_what_is_false_is_never_accepted(tmp_path, number):
    """Beyond the critical strength, or for another class, no leaves help."""
    given = made(tmp_path, number, share=1.0000001)
    if not given.curve.truth(given.header["label"]).safe:
        accepted, margin = given.check(given.packed())
        assert not accepted
        assert margin <= 0
    other = (given.header["label"] + 1) % 3
    assert not given.check(given.packed(label=other))[0]


def test_values_between_the_ends_stay_within_their_radius(tmp_path):
    """On leaves of any length, the exact scores at random places in between."""
    given = made(tmp_path, 1, share=3.0)
    random = np.random.default_rng(0)
    layers = exact_checker.read_layers(onnx.load(given.model), given.pixels.size)
    network = exact_checker.Network(given.header, given.pixels, layers)
    label, strength = given.header["label"], given.curve.cuts[-1]
    ends = [strength * Fraction(step, 7) for step in range(8)]
    rivals = [j for j in range(3) if j != label]
    leads = network.leads(ends, label, rivals)
    for leaf, (start, end) in enumerate(pairwise(ends)):
        for share in (Fraction(int(s), 97) for s in random.integers(0, 98, 12)):
            scores = given.curve.scores(start + share * (end - start))
            for row, rival in enumerate(rivals):
                left, right = (int(leads.whole[row, leaf + side]) * leads.unit for side in (0, 1))
                radius = int(leads.radius[row, leaf]) * exact_checker.RADIUS_UNIT
                assert abs(scores[label] - scores[rival] - (left + share * (right - left))) <= radius


def test_a_profile_and_a_witness(tmp_path):
    for number in range(15):
        given = made(tmp_path, number, share=1.5)
        truth = given.curve.truth(given.header["label"])
        if truth.critical is not None and given.header["strength"][0] <= 1:
            break
    lost = float(truth.critical) * 1.25
    scores = given.curve.scores(Fraction(lost))
    winner = scores.index(max(scores))
    assert winner != given.header["label"]
    arrays = {"pixels": given.pixels, "witness": np.array([lost]), "winners": np.array([winner], "<i2")}
    unsafe = {**given.header, "claim": "unsafe"}
    assert given.check(pack(unsafe, arrays)) == (True, scores[given.header["label"]] - scores[winner])
    arrays["witness"] = np.array([float(truth.critical) / 2])
    assert not given.check(pack(unsafe, arrays))[0]
    critical = float(truth.critical)
    before = [*given.ends[given.ends < critical * 0.99], critical * 0.99]
    after = [critical * 1.01, *(e for e in given.ends if critical * 1.01 < e < lost), lost]
    ends = np.array([*before, *after])
    winners = [*[given.header["label"]] * (len(before) - 1), -1, *[winner] * (len(after) - 1)]
    profile = {**given.header, "claim": "profile", "strength": [lost]}
    arrays = {"pixels": given.pixels, "cuts": ends[1:-1], "winners": np.array(winners, "<i2")}
    assert given.check(pack(profile, arrays))[0]
    assert checker.check(pack(profile, arrays), given.model.read_bytes()).accepted
    arrays["winners"][-1] = given.header["label"]
    assert not given.check(pack(profile, arrays))[0]


def test_what_is_malformed_is_refused(tmp_path):
    given = made(tmp_path, 0)
    whole = given.packed()
    strength, inner = given.header["strength"][0], given.ends[1:-1]
    for certificate, reason in {
        whole[:-40] + whole[-39:]: "checksum",
        b"x" + whole: "not a shakeproof certificate",
        given.packed(strength=[strength / 2]): "increase",
        given.packed(np.array([0.0, 0.0, *inner, strength])): "increase",
        given.packed(np.array([0.0, *inner, *inner, strength])): "increase",
        given.packed(arithmetic="float32"): "real arithmetic",
        given.packed(claim="profile"): "winners",
        given.packed(model_sha256="0"): "another model",
        given.packed(claim="unsafe"): "no witness",
    }.items():
        with pytest.raises(RefusedError, match=reason):
            given.check(certificate)


def test_every_byte_counts(tmp_path):
    given = made(tmp_path, 0)
    whole = given.packed()
    for place in np.random.default_rng(0).integers(0, len(whole), 50):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(place % 8)
        with pytest.raises(RefusedError):
            given.check(bytes(changed))


def test_packing_and_unpacking(tmp_path):
    given = made(tmp_path, 2)
    header, arrays = unpack(given.packed())
    assert np.array_equal(arrays["cuts"], given.ends[1:-1])
    assert np.array_equal(arrays["pixels"], given.pixels)
    assert header["strength"] == given.header["strength"]
    line = given.packed()[len(MAGIC) :].split(b"\n")[0]
    assert next(iter(json.loads(line))) == "tool"
