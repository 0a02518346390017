"""Certificates: true ones hold, and nothing else does, with the digest refreshed so that merits are what refuses."""

from __future__ import annotations

import ast
import contextlib
import copy
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import bounds, header, kernels_of, question, safe
from models import model
from onnx import TensorProto, helper, numpy_helper

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import pack
from shakeproof.checker import certificate as certificates
from shakeproof.checker import kernels
from shakeproof.question import FAMILIES, read_image

TEXT = "box-blur:size=3"


def small_model(seed: int = 0) -> bytes:
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    weights = {"w": random.normal(size=(2, 1, 3, 3)), "v": random.normal(size=(3, 50))}
    return model(nodes, (1, 1, 5, 5), {k: w.astype(np.float32) for k, w in weights.items()}).SerializeToString()


MODEL = small_model()
PIXELS = np.random.default_rng(1).uniform(size=(1, 5, 5)).astype(np.float32).astype(float)
ENDS = np.linspace(0, 1, 40).tolist()


def winner(data: bytes = MODEL, pixels: np.ndarray = PIXELS, z: float = 0.0) -> int:
    asked = checker.Question(header(data, pixels, TEXT), pixels, data)
    below, above = bounds(asked, [z], [z])
    return int(((below + above) / 2).argmax())


LABEL = winner()
GOOD = safe(MODEL, PIXELS, TEXT, ENDS, label=LABEL)


def remade(change: Callable[[dict[str, Any], dict[str, np.ndarray]], None], given: bytes = GOOD) -> bytes:
    """A certificate after a change, with a digest that fits, and arrays declared as they are."""
    said, arrays = checker.unpack(given)
    said, arrays = copy.deepcopy(said), {name: array.copy() for name, array in arrays.items()}
    change(said, arrays)
    return sealed(said, arrays)


def sealed(said: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    listed = {n: [a.dtype.str, *a.shape] for n, a in arrays.items()}
    body = certificates.MAGIC + json.dumps(said | {"arrays": listed}).encode() + b"\n"
    body += b"".join(array.tobytes() for array in arrays.values())
    return body + hashlib.sha256(body).digest()


def test_a_true_certificate_holds():
    outcome = checker.check(GOOD, MODEL)
    assert outcome.accepted, outcome.sentence
    assert outcome.details["leaves"] == 39
    assert "the pixels in the certificate" in outcome.sentence
    normalised = safe(MODEL, PIXELS, TEXT, [0.0, 1e-9], label=LABEL, mean=[0.0], std=[1.0])
    assert "(x - [0.0]) / [1.0]" in checker.check(normalised, MODEL).sentence
    assert checker.check(remade(lambda said, arrays: None), MODEL).accepted
    assert pack(*checker.unpack(GOOD)) == GOOD


def shifted(arrays: dict[str, np.ndarray], place: int, by: float) -> None:
    arrays["cuts"][place] += by


CHANGES: dict[str, Callable[[dict[str, Any], dict[str, np.ndarray]], Any]] = {
    "a leaf moved": lambda s, a: shifted(a, 5, 0.1),
    "a cut at 0": lambda s, a: a["cuts"].__setitem__(0, 0.0),
    "a cut below 0": lambda s, a: a["cuts"].__setitem__(0, -1e-300),
    "a cut at the end": lambda s, a: a["cuts"].__setitem__(-1, 1.0),
    "a cut beyond the end": lambda s, a: a["cuts"].__setitem__(-1, 1.5),
    "leaves that go back": lambda s, a: a.update(cuts=a["cuts"][::-1].copy()),
    "a cut that is NaN": lambda s, a: shifted(a, 3, np.nan),
    "a cut that is infinite": lambda s, a: shifted(a, 3, np.inf),
    "two equal cuts": lambda s, a: a["cuts"].__setitem__(4, a["cuts"][3]),
    "cuts in a table": lambda s, a: a.update(cuts=a["cuts"].reshape(2, -1)),
    "another label": lambda s, a: s.update(label=(LABEL + 1) % 3),
    "a label that is no class": lambda s, a: s.update(label=3),
    "a negative label": lambda s, a: s.update(label=LABEL - 3),
    "a label of no leaf": lambda s, a: s.update(label=-1),
    "a label that is true": lambda s, a: s.update(label=True),
    "a label that is a float": lambda s, a: s.update(label=float(LABEL)),
    "a larger strength": lambda s, a: s.update(strength=[1.5]),
    "a smaller strength": lambda s, a: s.update(strength=[0.5]),
    "a strength of 1, not 1.0": lambda s, a: s.update(strength=[1]),
    "no strength": lambda s, a: s.update(strength=[]),
    "two strengths": lambda s, a: s.update(strength=[1.0, 1.0]),
    "a strength that is a word": lambda s, a: s.update(strength=["1.0"]),
    "another arithmetic": lambda s, a: s.update(arithmetic="interval"),
    "another claim": lambda s, a: s.update(claim="maybe"),
    "a claim of another kind": lambda s, a: s.update(claim="unsafe"),
    "a key too many": lambda s, a: s.update(verdict="safe"),
    "a key too few": lambda s, a: s.pop("mean"),
    "an array too many": lambda s, a: a.update(more=np.zeros(3)),
    "an array too few": lambda s, a: a.pop("cuts"),
    "no pixels": lambda s, a: a.pop("pixels"),
    "cuts in float32": lambda s, a: a.update(cuts=a["cuts"].astype("<f4")),
    "winners for a claim that has none": lambda s, a: a.update(winners=np.full(39, LABEL, "<i2")),
    "other pixels": lambda s, a: a["pixels"].__setitem__((0, 2, 2), 0.9),
    "a pixel that is NaN": lambda s, a: a["pixels"].__setitem__((0, 2, 2), np.nan),
    "pixels of another shape": lambda s, a: a.update(pixels=a["pixels"].reshape(1, 25, 1)),
    "another perturbation": lambda s, a: s.update(perturbation="box-blur:size=5"),
    "another family": lambda s, a: s.update(perturbation="sharpen:size=3"),
    "another kernel": lambda s, a: s["kernels"][0][0].__setitem__(0, "1/8"),
    "nearly the same kernel": lambda s, a: s["kernels"][0][0].__setitem__(0, f"{10**12 + 1}/{9 * 10**12}"),
    "another padding": lambda s, a: s.update(perturbation=f"{TEXT},padding=zeros", label=(LABEL + 1) % 3),
    "a padding that is none": lambda s, a: s.update(perturbation=f"{TEXT},padding=mirror"),
    "no kernel": lambda s, a: s.update(kernels=[]),
    "a kernel too many": lambda s, a: s["kernels"].append([["1"]]),
    "a kernel with a hole": lambda s, a: s["kernels"][0][1].pop(),
    "a kernel of numbers": lambda s, a: s["kernels"][0][0].__setitem__(0, 0.125),
    "a fraction of zero": lambda s, a: s["kernels"][0][0].__setitem__(0, "1/0"),
    "a fraction without end": lambda s, a: s["kernels"][0][0].__setitem__(0, "1e999999999"),
    "clipping to nothing": lambda s, a: s.update(perturbation=f"{TEXT},clip=0.6..0.4"),
    "clipping without numbers": lambda s, a: s.update(perturbation=f"{TEXT},clip=a..b"),
    "a mean without std": lambda s, a: s.update(mean=[0.5]),
    "a std of zero": lambda s, a: s.update(mean=[0.5], std=[0.0]),
    "channels last": lambda s, a: s.update(channels_last=1),
    "a witness": lambda s, a: a.update(witness=np.array([0.5])),
    "another model": lambda s, a: s.update(model_sha256="0" * 64),
    "another image": lambda s, a: s.update(image_sha256="0" * 64),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_certificate_does_not_hold(name):
    given = remade(CHANGES[name])
    assert given != GOOD
    outcome = checker.check(given, MODEL)
    assert not outcome.accepted
    assert "\n" not in outcome.sentence


def test_one_leaf_for_everything_holds_only_where_it_is_true():
    """A coarse leaf is not refused for being coarse."""

    def coarse(said: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays["cuts"] = np.zeros(0)

    outcome = checker.check(remade(coarse), MODEL)
    asked = checker.Question(checker.unpack(GOOD)[0], PIXELS, MODEL)
    assert outcome.accepted == bool(asked.margins([[0.0]], [[1.0]], LABEL)[0] > 0)


def test_the_same_words_about_another_model_or_image():
    assert "another model" in checker.check(GOOD, small_model(5)).sentence
    others = [small_model(seed) for seed in range(20)]
    for other in (data for data in others if winner(data) != LABEL):
        said, arrays = checker.unpack(GOOD)
        said["model_sha256"] = hashlib.sha256(other).hexdigest()
        assert "not proved" in checker.check(sealed(said, arrays), other).sentence
    for seed in range(20):
        pixels = np.random.default_rng(seed).uniform(size=(1, 5, 5))
        if winner(pixels=pixels) != LABEL:
            assert "not proved" in checker.check(safe(MODEL, pixels, TEXT, ENDS, label=LABEL), MODEL).sentence


def test_files_that_are_no_certificates():
    huge = ["<f8", 2**20, 2**20, 2**10]
    said, arrays = checker.unpack(GOOD)

    def written(said: Any, more: bytes = b"") -> bytes:
        body = certificates.MAGIC + json.dumps(said).encode() + b"\n" + more
        return body + hashlib.sha256(body).digest()

    tail = b"".join(array.tobytes() for array in arrays.values())
    assert checker.check(written(said, tail), MODEL).accepted
    nested = b"[" * 100000
    twice = json.dumps(said)[:-1] + ', "label": 0}'
    for given in (
        b"",
        b"shakeproof",
        certificates.MAGIC,
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[: len(GOOD) // 2],
        written([]),
        written(None),
        written(said),
        written(said, tail + b"\0"),
        written(said, tail[:-8]),
        written(said | {"arrays": {"pixels": huge}}, tail),
        written(said | {"arrays": {"pixels": ["<f8", -1, 4]}}, tail),
        written(said | {"arrays": {"pixels": ["|O", 4]}}, tail),
        written(said | {"arrays": {"pixels": []}}, tail),
        written(said | {"arrays": [huge]}, tail),
        written(said | {"strength": [float("nan")]}, tail),
        written(said | {"strength": [float("inf")]}, tail),
        *(body + hashlib.sha256(body).digest() for body in (certificates.MAGIC + nested + b"\n",)),
        *(body + hashlib.sha256(body).digest() for body in (certificates.MAGIC + twice.encode() + b"\n" + tail,)),
        *(body + hashlib.sha256(body).digest() for body in (certificates.MAGIC + b"\xff\xfe\n" + tail,)),
    ):
        outcome = checker.check(given, MODEL)
        assert not outcome.accepted, given[:60]
        assert "\n" not in outcome.sentence


def test_accidents_are_noticed():
    random = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(GOOD)
        for _ in range(random.integers(1, 4)):
            broken[random.integers(len(broken))] ^= int(random.integers(1, 256))
        assert bytes(broken) == GOOD or not checker.check(bytes(broken), MODEL).accepted


def test_accidents_with_a_digest_that_fits_prove_nothing_false():
    """Bytes changed after the header, digest refreshed: accepted only if what it says is still proved on its merits."""
    random = np.random.default_rng(1)
    start = GOOD.index(b"\n", len(certificates.MAGIC)) + 1
    for _ in range(100):
        broken = bytearray(GOOD[:-32])
        broken[random.integers(start, len(broken))] ^= int(2 ** random.integers(8))
        given = bytes(broken) + hashlib.sha256(broken).digest()
        if checker.check(given, MODEL).accepted:
            said, arrays = checker.unpack(given)
            assert (np.diff([0.0, *arrays["cuts"], 1.0]) > 0).all()
            assert (arrays["pixels"] == PIXELS).all()
            assert said == checker.unpack(GOOD)[0]


def test_models_that_are_broken():
    random = np.random.default_rng(2)
    for _ in range(150):
        broken = bytearray(MODEL)
        place, length = random.integers(len(broken)), random.integers(0, 4)
        broken[place : place + length] = bytes(random.integers(0, 256, random.integers(0, 4), dtype=np.uint8))
        given = bytes(broken)[: random.integers(1, len(broken) + 1) if random.random() < 0.3 else None]
        said = header(given, PIXELS, TEXT, label=LABEL)
        with contextlib.suppress(checker.Refused, *checker.MALFORMED):  # and nothing else
            checker.Question(said, PIXELS, given).margins([[0.0]], [[0.1]], LABEL)
    for given in (b"", b"\x1f\x8b broken", b"not onnx", gzip.compress(b"")):
        with pytest.raises((checker.Refused, *checker.MALFORMED)):
            checker.Question(header(given, PIXELS, TEXT), PIXELS, given)


def test_what_is_given_twice_is_refused():
    """protobuf would merge two graphs in one file; whoever reads only one of them reads another network."""
    with pytest.raises(checker.Refused, match="twice"):
        checker.Question(header(MODEL + MODEL, PIXELS, TEXT), PIXELS, MODEL + MODEL)


def test_a_packed_model():
    packed = gzip.compress(MODEL)
    assert checker.check(safe(packed, PIXELS, TEXT, ENDS, label=LABEL), packed).accepted
    assert not checker.check(GOOD, packed).accepted


def test_weights_outside_the_file_are_refused():
    data = model([helper.make_node("Add", ["x", "w"], ["y"])], (1, 1, 5, 5), {"w": np.ones(5, np.float32)})
    tensor = data.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    with pytest.raises(checker.Refused, match="outside"):
        question(data, PIXELS, TEXT)


def test_constants_by_fields_and_by_bytes():
    """protobuf's typed fields, packed, against raw bytes; negative integers included."""
    values = np.array([[1.5, -2.25, 0.1]], dtype=np.float32)
    typed = helper.make_tensor("w", TensorProto.FLOAT, values.shape, values.ravel().tolist())
    raw = numpy_helper.from_array(values, "w")
    found = []
    for tensor in (typed, raw):
        nodes = [helper.make_node("Reshape", ["x", "s"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
        data = model(nodes, (1, 1, 5, 5), {})
        shape = helper.make_tensor("s", TensorProto.INT64, [2], [25, -1])
        data.graph.initializer.extend([tensor, shape])
        found.append(bounds(question(data, PIXELS, TEXT), [0.0], [0.5]))
    assert np.array_equal(found[0], found[1])


# -- other claims ------------------------------------------------------------------------------------------------------


def flipping() -> tuple[bytes, float]:
    """Class 0 leads by 0.5 - z at strength z."""
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("Gemm", ["f", "w", "o"], ["y"])]
    weights = {"w": np.array([[0.0, 1.0]] + [[0.0, 0.0]] * 24), "o": np.array([0.5, 0.0])}
    return model(nodes, (1, 1, 5, 5), weights).SerializeToString(), 0.5


def test_a_witness():
    data, flip = flipping()
    pixels, text = np.zeros((1, 5, 5)), "brightness:max=1"

    def claimed(*strength: float, rival: int = 1, label: int = 0, most: float = 1.0) -> checker.Outcome:
        said = header(data, pixels, text, label=label, claim="unsafe", strength=[most])
        arrays = {"pixels": pixels, "witness": np.array(strength), "winners": np.array([rival], dtype="<i2")}
        return checker.check(pack(said, arrays), data)

    assert claimed(flip + 1e-9).accepted
    assert not claimed(flip).accepted
    assert not claimed(flip - 1e-9).accepted
    assert not claimed(1.5).accepted
    assert claimed(0.7, most=0.8).accepted
    assert not claimed(0.9, most=0.8).accepted
    assert not claimed(np.nan).accepted
    assert not claimed(0.9, 0.9).accepted
    assert not claimed().accepted
    assert not claimed(0.9, rival=0).accepted
    assert not claimed(0.9, rival=2).accepted
    assert not claimed(0.9, rival=-1).accepted
    assert claimed(0.1, rival=0, label=1).accepted


def profile(*ends: float, winners: list[int]) -> bytes:
    data, _ = flipping()
    pixels = np.zeros((1, 5, 5))
    said = header(data, pixels, "brightness:max=1", claim="profile", strength=[ends[-1]])
    arrays = {"pixels": pixels, "cuts": np.array(ends[1:-1]), "winners": np.array(winners, dtype="<i2")}
    return pack(said, arrays)


def test_a_profile():
    data, flip = flipping()
    ends = (0.0, 0.2, flip - 1e-9, flip + 1e-9, 1.0)
    outcome = checker.check(profile(*ends, winners=[0, 0, -1, 1]), data)
    assert outcome.accepted, outcome.sentence
    assert outcome.details["leaves"] == 3
    assert outcome.details["gaps"] == 1
    assert outcome.details["gap_length"] == pytest.approx(2e-9)
    assert "gaps: 1, 2e-09 wide in total" in outcome.sentence
    for winners in ([0, 0, 0, 1], [0, 0, 1, 1], [0, 1, -1, 1], [1, 0, -1, 1], [0, 0, -1, 2], [0, 0, -2, 1], [0, 0, -1],
                    [0, 0, -1, 1, 1], [-1] * 4):  # fmt: skip
        assert not checker.check(profile(*ends, winners=winners), data).accepted
    assert not checker.check(profile(0.0, flip + 1e-9, flip - 1e-9, 1.0, winners=[-1, -1, 1]), data).accepted


def test_strength_zero_is_one_leaf_of_no_length():
    assert checker.check(safe(MODEL, PIXELS, TEXT, [0.0, 0.0], label=LABEL), MODEL).accepted
    assert not checker.check(safe(MODEL, PIXELS, TEXT, [0.0, 0.0], label=(LABEL + 1) % 3), MODEL).accepted
    assert not checker.check(safe(MODEL, PIXELS, TEXT, [0.0, 0.0, 0.0], label=LABEL), MODEL).accepted


def tree(axes: list[int], cuts: list[float], **more: Any) -> bytes:
    said = header(MODEL, PIXELS, f"{TEXT}+brightness:max=0.01", **{"label": LABEL, **more})
    arrays = {"pixels": PIXELS, "axes": np.array(axes, dtype=np.uint8), "cuts": np.array(cuts)}
    return pack(said, arrays)


def test_a_tree_of_cuts():
    fine, cuts = [], []
    for k in range(39, 0, -1):  # one slab after another is cut off at the top
        fine.append(0)
        cuts.append(k / 40)
    axes = [*fine, *[255] * 40]
    assert checker.check(tree(axes, cuts), MODEL).accepted
    everywhere = checker.Question(checker.unpack(tree([255], []))[0], PIXELS, MODEL)
    proved = everywhere.margins([[0.0, 0.0]], [[1.0, 1.0]], LABEL)[0] > 0
    assert checker.check(tree([255], []), MODEL).accepted == proved
    good = [0, 1, 255, 255, 255]
    low, high = certificates._tree([1.0, 0.5], np.array(good, np.uint8), np.array([0.3, 0.2]))
    assert np.prod(high - low, axis=1).sum() == pytest.approx(0.5)
    assert low.tolist() == [[0, 0], [0, 0.2], [0.3, 0]]
    assert high.tolist() == [[0.3, 0.2], [0.3, 0.5], [1.0, 0.5]]
    for bad_axes, bad_cuts in (
        (axes[:-1], cuts),
        ([*axes, 255], cuts),
        (axes, cuts[:-1]),
        (axes, [*cuts, 0.5]),
        ([7, *axes[1:]], cuts),
        (axes, [1.0, *cuts[1:]]),
        (axes, [np.nan, *cuts[1:]]),
        ([], []),
        (axes, cuts[::-1]),
    ):
        assert not checker.check(tree(bad_axes, bad_cuts), MODEL).accepted
    assert not checker.check(tree(axes, cuts, label=(LABEL + 1) % 3), MODEL).accepted


# -- images ------------------------------------------------------------------------------------------------------------


def test_the_image_is_compared(tmp_path):
    bytes_ = np.random.default_rng(0).integers(0, 256, (1, 5, 5), dtype=np.uint8)
    for pixels in (bytes_ / 255.0, (bytes_ / 255.0).astype(np.float32).astype(float)):
        given = safe(MODEL, pixels, TEXT, ENDS, label=winner(pixels=pixels))
        accepted = checker.check(given, MODEL).accepted
        for name, array in (
            ("a", bytes_),
            ("b", bytes_[0]),
            ("c", bytes_.ravel()),
            ("d", bytes_[0][:, :, None]),
            ("e", pixels),
        ):
            np.save(tmp_path / f"{name}.npy", array)
            assert checker.check(given, MODEL, tmp_path / f"{name}.npy").accepted == accepted
        np.savez(tmp_path / "all.npz", x=np.stack([bytes_ ^ 1, bytes_]))
        assert checker.check(given, MODEL, tmp_path / "all.npz@1").accepted == accepted
        (tmp_path / "junk.npz").write_bytes(b"PK not an archive")
        (tmp_path / "junk.npy").write_bytes(b"not an array")
        for wrong in ("all.npz@0", "all.npz@7", "all.npz", "none.npy", "junk.npy", "junk.npz@0"):
            assert not checker.check(given, MODEL, tmp_path / wrong).accepted
        np.save(tmp_path / "other.npy", bytes_ ^ 1)
        assert "pixels" in checker.check(given, MODEL, tmp_path / "other.npy").sentence
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"as it is")
    assert not checker.check(GOOD, MODEL, picture).accepted
    digest = hashlib.sha256(b"as it is").hexdigest()
    assert checker.check(remade(lambda s, a: s.update(file_sha256=digest)), MODEL, picture).accepted


# -- kernels -----------------------------------------------------------------------------------------------------------

# Sets of kernels, paths of several segments, and degradations that differ from pixel to pixel.
WITHOUT_CERTIFICATES = {
    "all-kernels",
    "any-kernel",
    "chromatic-blur",
    "downsample",
    "exposure",
    "linear",
    "motion-angle",
    "motion-length",
    "psf-hull",
    "rolling-shutter",
    "rotation-blur",
    "varying-blur",
    "vignetting",
    "zoom-blur",
}
EVERY = [
    "identity",
    *(f"box-blur:size={size}" for size in (3, 4, 7)),
    *(f"sharpen:size={size}" for size in (3, 4, 5, 6, 9)),
    *(
        f"motion-blur:size={s},angle={a}"
        for s in (3, 4, 5, 8)
        for a in ("0", "45", "90", "135", "17.5", "100", "179.99")
    ),
    *(
        f"{family}:size={size},sigma={sigma}"
        for family in ("gaussian-blur", "unsharp")
        for size in (3, 4, 7)
        for sigma in ("1", "0.3", "2.75")
    ),
    *(f"defocus:radius={radius}" for radius in ("0.6", "1", "2.5", "3", "3.7")),
    *(
        f"otf:size={each}"
        for each in (
            "3,jitter=0.4",
            "7,jitter=1.5,vertical=0",
            "5,jitter=0,vertical=0.8",
            "9,aperture=0.5",
            "9,turbulence=0.31",
            "5,defocus=2.25",
            "11,jitter=0.6,vertical=0.9,defocus=0.7,aperture=4,turbulence=1",
        )
    ),
    "haze:colour=0.8",
    "haze:colour=0",
    "unsharp:size=5,sigma=1+haze:colour=0.1+defocus:radius=2",
    "box-blur:size=3,padding=zeros",
    "brightness:max=-0.2",
    "contrast:max=1e-05",
    "box-blur:size=3+motion-blur:size=5,angle=90,padding=circular+contrast:max=0.3,clip=0..1",
    "box-blur:size=4+sharpen:size=6,clip=-0.5..1.25",
]


def test_every_family_is_described_to_the_checker_too():
    """But for those without certificates; kernels from files are compared by their entries, elsewhere."""
    assert set(kernels.FAMILIES) == {*FAMILIES} - WITHOUT_CERTIFICATES
    assert {part.partition(":")[0] for text in EVERY for part in text.split("+")} == {*kernels.FAMILIES} - {
        "custom",
        "psf",
    }


@pytest.mark.parametrize("text", EVERY)
def test_kernels_are_the_provers(text):
    """Two programs, written apart, mean the same by a text; and so does the path of pictures."""
    perturbation = sp.parse(text)
    assert str(perturbation) == text
    parts, clip, remarks = kernels.meaning(text, kernels_of(perturbation))
    assert clip == list(perturbation.clip or ())
    assert len(remarks) <= sum(text.count(inexact) for inexact in ("17.5", "100", "179.99", "sigma", "radius", "otf"))
    import torch

    pixels = np.random.default_rng(0).normal(size=(2, 9, 9))
    theirs = perturbation.apply(torch.from_numpy(pixels))
    base, slopes, error = kernels.path(pixels, parts)
    assert (np.abs(theirs.base.numpy() - base) <= 2 * error).all()
    assert (np.abs(theirs.slopes.numpy() - slopes) <= 2 * error).all()
    assert error.max() < 1e-12


def near(first: sp.Perturbation, second: sp.Perturbation) -> bool:
    """Steep lines through few pixels are the same kernel at several angles."""
    kernels_ = [np.array(p.kernel.coefficients, dtype=float) for p in (first, second)]
    both = all(len(p.parts) == 1 and p.parts[0].family == "motion-blur" for p in (first, second))
    return both and kernels_[0].shape == kernels_[1].shape and np.abs(kernels_[0] - kernels_[1]).max() < 1e-9


def test_every_other_text_is_refused():
    for text in EVERY:
        for other in EVERY:
            perturbation, meant = sp.parse(text), sp.parse(other)
            if kernels_of(perturbation) != kernels_of(meant) and not near(perturbation, meant):
                with pytest.raises((checker.Refused, *checker.MALFORMED)):
                    kernels.meaning(other, kernels_of(perturbation))


@pytest.mark.parametrize(
    "text",
    ["box-blur", "box-blur:size=3,size=3", "box-blur:size=3,colour=1", "box-blur:size=+3", "box-blur:size=3 ", "",
     "blur:size=3", "box-blur:size=1000", "box-blur:size=3.0", "any-kernel:size=3", "box-blur:size",
     "box-blur:size=1e3", "identity+identity", "box-blur:size=3,clip=0..1,clip=0..1", "box-blur:clip=0..1,size=3",
     "box-blur:size=3,clip=0", "box-blur:size=3,clip=0..1+box-blur:size=3"],
)  # fmt: skip
def test_texts_that_mean_nothing(text):
    with pytest.raises((checker.Refused, *checker.MALFORMED)):
        kernels.meaning(text, kernels_of(sp.parse(TEXT)))


@pytest.mark.parametrize(
    "text",
    ["brightness:max=1e999999999", "brightness:max=abc", "motion-blur:size=3,angle=180", "defocus:radius=1e9",
     "defocus:radius=0", "gaussian-blur:size=3,sigma=0"],
)  # fmt: skip
def test_numbers_that_are_none(text):
    with pytest.raises((checker.Refused, *checker.MALFORMED)):
        kernels.path(PIXELS, kernels.meaning(text, [[["1"]]])[0])


@pytest.mark.parametrize("text", ["custom:file={}", "psf:file={}", "psf:file={},index=0", "custom:file={},index=0"])
def test_a_kernel_from_a_file_is_the_certificates(tmp_path, text):
    np.save(tmp_path / "k.npy", np.array([[0.0, 0.5], [0.25, 0.25]]))
    perturbation = sp.parse(text.format(tmp_path / "k.npy"))
    _, _, (remark,) = kernels.meaning(str(perturbation), kernels_of(perturbation))
    assert "own" in remark


@pytest.mark.parametrize("text", ["gaussian-blur:size=5,sigma=1", "unsharp:size=5,sigma=1", "defocus:radius=2"])
@pytest.mark.parametrize("change", ["1/100000000", "-1/100000000"])
def test_an_entry_a_little_off_is_refused(text, change):
    rows = kernels_of(sp.parse(text))
    kernels.meaning(text, rows)
    rows[0][2][3] = str(Fraction(rows[0][2][3]) + Fraction(change))
    with pytest.raises(checker.Refused):
        kernels.meaning(text, rows)


# -- standing alone ----------------------------------------------------------------------------------------------------

# Of what proves, and of what enumerates. Some lines of the former serve both: how a kernel's windows are cut out, how a
# packed model is read, and which of the two a certificate is for.
MOST_LINES, MOST_LINES_TO_ENUMERATE = 1385, 170
SOURCES = sorted(Path(checker.__file__).parent.glob("*.py"))


def test_it_imports_numpy_and_the_standard_library_only():
    """What enumerates asks onnxruntime, when it comes to that."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                allowed = top in sys.stdlib_module_names or top == "numpy" or name.startswith("shakeproof.checker")
                asked = (path.name, name) == ("enumeration.py", "onnxruntime") and node.col_offset > 0
                assert allowed or asked, f"{path.name} imports {name}"


def lines_of_code(path: Path) -> int:
    """Lines with anything but comments and docstrings."""
    text = path.read_text()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def test_it_stays_small():
    """Whoever audits it reads all of it: what is added must replace something, or be worth its lines."""
    lines = {path.name: lines_of_code(path) for path in SOURCES}
    assert lines.pop("enumeration.py") <= MOST_LINES_TO_ENUMERATE
    assert sum(lines.values()) <= MOST_LINES


ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        ours = name.startswith("shakeproof.") and not name.startswith("shakeproof.checker")
        if ours or top not in sys.stdlib_module_names | {"numpy", "shakeproof", "_distutils_hack"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import runpy
sys.argv = ["checker", *sys.argv[1:]]
runpy.run_module("shakeproof.checker", run_name="__main__")
"""


def test_the_command_where_only_numpy_is_installed(tmp_path):
    (tmp_path / "net.onnx").write_bytes(MODEL)
    (tmp_path / "good").write_bytes(GOOD)
    (tmp_path / "bad").write_bytes(GOOD[:-1])

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        script = [sys.executable, "-c", ALONE, *words]
        return subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)

    found = run("good", "--model", "net.onnx")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.count("\n") == 1
    assert "holds" in found.stdout
    found = run("good", "bad", "--model", "net.onnx", "--json")
    assert (found.returncode, found.stderr) == (1, "")
    assert [json.loads(line)["accepted"] for line in found.stdout.splitlines()] == [True, False]
    for words in (("good", "--model", "none.onnx"), ("none", "--model", "net.onnx"), ("good",), ()):
        found = run(*words)
        assert found.returncode == 2
        assert "Traceback" not in found.stderr


# -- with the prover's breakpoints -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arithmetic", ["real", "float32"])
def test_a_sweeps_breakpoints_are_a_certificate(shared, arithmetic):
    file = shared("benchmarks/mnist_fc/onnx/mnist-net_256x4.onnx")
    network = sp.load(file)
    picture = read_image(f"{shared('data/mnist_test.npz')}@0").fitted(network.picture())
    text = "motion-blur:size=5,angle=45"
    result = sp.profile(network, picture, text, whole_curve=True)
    assert result.status == sp.Status.SAFE
    pixels, data = picture.pixels.numpy(), file.read_bytes()
    ends = np.unique(result.curve.z)
    given = safe(data, pixels, text, ends, label=result.label, arithmetic=arithmetic)
    outcome = checker.check(given, data, Path(f"{shared('data/mnist_test.npz')}@0"))
    assert outcome.accepted, outcome.sentence
    least = outcome.details["least_margin"]
    assert least <= result.min_margin
    assert least >= result.min_margin - (1e-9 if arithmetic == "real" else 0.1)


def test_swapped_ends_are_refused():
    asked = checker.Question(header(MODEL, PIXELS, TEXT), PIXELS, MODEL)
    for low, high in ((0.3, 0.2), (0.2, np.nan), (-np.inf, 0.2)):
        with pytest.raises(checker.Refused, match="box"):
            asked.margins([[low]], [[high]], LABEL)
