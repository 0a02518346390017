"""Certificates of enumerations: true ones hold, changed ones do not, and a checker with a rule broken is noticed."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from models import model
from onnx import TensorProto, helper
from warm import run

import shakeproof as sp
from shakeproof import checker
from shakeproof.certificate import NoCertificateError, certificate, pack
from shakeproof.checker import certificate as certificates
from shakeproof.checker import enumeration
from shakeproof.question import Image

RANDOM = np.random.default_rng(7)
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
Header = dict[str, Any]


def scores(path: Path, weights: np.ndarray, shape: tuple[Any, ...], taken: int = TensorProto.FLOAT) -> str:
    """A network that only runs, for its sine: weights (entries, classes)."""
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["c"], ["flat"]),
        helper.make_node("Sin", ["flat"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    made = model(nodes, shape, {"w": weights.astype(np.float32)}, (shape[0], weights.shape[1]))
    made.graph.input[0].type.tensor_type.elem_type = taken
    onnx.save(made, path)
    return str(path)


def balanced(pixels: np.ndarray) -> np.ndarray:
    """Weights with which the network above hardly knows what to make of a picture: its class changes soon and often."""
    x, weights = np.sin(pixels.ravel()), RANDOM.normal(size=(pixels.size, 3))
    return weights - np.outer(x, x @ weights) / (x @ x)


def normalised(pixels: np.ndarray) -> np.ndarray:
    return (pixels - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1))


def ties(path: Path) -> str:
    """Class 0 wins as long as the second pixel is one level above the first, 1 where it is two, 2 never."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    weights = np.zeros((4, 3), np.float32)
    weights[:2, 1] = -255, 255
    onnx.save(model(nodes, ("n", 1, 2, 2), {"w": weights, "b": np.array([1.5, 0, -9], np.float32)}, ("n", 3)), path)
    return str(path)


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, tuple[bytes, bytes]]:
    """Models and true certificates about them."""
    folder = tmp_path_factory.mktemp("models")
    levels = RANDOM.integers(90, 140, (1, 4, 4))
    grey, weights = Image("grey", torch.from_numpy(levels / 255)), balanced(levels / 255)
    one = scores(folder / "one.onnx", weights, (1, 1, 4, 4))
    many = scores(folder / "many.onnx", weights, ("n", 1, 4, 4))
    taken = scores(folder / "bytes.onnx", balanced(levels), ("n", 1, 4, 4), TensorProto.UINT8)
    half = scores(folder / "half.onnx", weights, (1, 1, 4, 4), TensorProto.FLOAT16)
    colours = RANDOM.integers(90, 140, (3, 5, 5))
    last = scores(folder / "last.onnx", balanced(normalised(colours / 255).transpose(1, 2, 0)), ("n", 5, 5, 3))
    packed = folder / "packed.onnx.gz"
    packed.write_bytes(gzip.compress(Path(many).read_bytes()))
    colour = Image("colour", torch.from_numpy(colours / 255))
    single = Image("float32", torch.from_numpy((levels / 255).astype(np.float32).astype(np.float64)))
    real = Image("real", torch.from_numpy(levels / 255 + RANDOM.uniform(0, 0.003, levels.shape)))
    steps = Image("steps", torch.from_numpy(np.array([[[10, 11], [0, 255]]]) / 255))
    asked: dict[str, tuple[Any, ...]] = {
        "one at a time": (one, grey, "box-blur:size=3"),
        "in batches": (many, grey, "sharpen:size=3"),
        "rounded up": (many, grey, "sharpen:size=3", "half-up"),
        "a part of the strengths": (many, grey, "sharpen:size=3", "half-even", 0.37),
        "channels last, normalised": (last, colour, "box-blur:size=4,padding=replicate"),
        "bytes": (taken, grey, "motion-blur:size=3,angle=45,padding=zeros"),
        "float16": (half, grey, "contrast:max=0.7,clip=0.1..0.85"),
        "packed": (str(packed), single, "gaussian-blur:size=3,sigma=1"),
        "pixels that are no bytes": (one, real, "motion-blur:size=3,angle=30,padding=circular"),
        "ties": (ties(folder / "ties.onnx"), steps, "brightness:max=0.1"),
        "ties, rounded up": (ties(folder / "up.onnx"), steps, "brightness:max=0.1", "half-up"),
        "brighter pixels that are no bytes": (one, real, "brightness:max=0.4"),
        "haze": (one, grey, "haze:colour=0.8"),
        "misclassified": (one, grey, "box-blur:size=3", "half-even", 1.0, "label"),
        "nothing happens": (one, grey, "identity"),
    }
    found: dict[str, tuple[bytes, bytes]] = {}
    for name, (file, image, text, *more) in asked.items():
        rule, end, label = (*more, *("half-even", 1.0, None)[len(more) :])
        network = sp.load_deployed(file)
        if "normalised" in name:
            network = network.normalised(MEAN, STD)
        pixels = "8bit" if rule == "half-even" else "8bit,rounding=half-up"
        whole = sp.profile(network, image, text, max_strength=end, pixels=pixels)
        if label or (name != "nothing happens" and whole.status == "safe"):
            whole = sp.profile(network, image, text, (whole.label + 1) % 3, end, pixels=pixels)
        data = Path(file).read_bytes()
        found[name] = data, certificate(network, whole, profile=True)
        if whole.status == "unsafe":
            found[f"{name}: a witness"] = data, certificate(network, whole)
            kept = whole.certified_strength
            safe = sp.verify(network, image, text, kept, whole.label, pixels=pixels)
            found[f"{name}: what is safe"] = data, certificate(network, safe)
    return found


def test_weights_outside_the_model_are_refused(cases, tmp_path, monkeypatch):
    """Its digest says nothing of them: one certificate would hold of whatever weights lie in the current folder."""
    data, made = cases["one at a time"]
    monkeypatch.chdir(tmp_path)
    outside = onnx.load_from_string(data)
    onnx.save(outside, "outside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    elsewhere = Path("outside.onnx").read_bytes()
    header, arrays = checker.unpack(made)
    forged = pack(header | {"model_sha256": hashlib.sha256(elsewhere).hexdigest()}, arrays)
    assert "onnxruntime does not run the model" in checker.check(forged, elsewhere).sentence


def test_true_certificates_hold(cases):
    claims = set()
    for name, (data, made) in cases.items():
        outcome = checker.check(made, data)
        assert outcome.accepted, f"{name}: {outcome.sentence}"
        assert "another deployment" not in outcome.sentence
        assert outcome.details["deployment"] == outcome.details["stated"]
        claims.add(outcome.details["claim"])
    assert claims == {"safe", "unsafe", "profile"}
    batches = {checker.unpack(made)[0]["deployment"]["batch"] for _, made in cases.values()}
    assert min(batches) == 1 < max(batches)


def test_a_class_may_win_at_one_strength_alone(cases):
    """10.5 and 11.5 are rounded to 10 and 12, with halves to even; to 11 and 12, with halves up."""
    said, _ = checker.unpack(cases["ties"][1])
    assert said["intervals"][:4] == [["[0, 1/51)", 0], ["[1/51, 1/51]", 1], ["(1/51, 5/51)", 0], ["[5/51, 5/51]", 1]]
    assert said["kept"] == 1
    up, _ = checker.unpack(cases["ties, rounded up"][1])
    assert up["intervals"] == [["[0, 1]", 0]]


def remade(made: bytes, change: Callable[[Header, dict[str, Any]], Any]) -> bytes:
    said, arrays = checker.unpack(made)
    said, arrays = copy.deepcopy(said), {name: array.copy() for name, array in arrays.items()}
    change(said, arrays)
    return pack(said, arrays)


def moved(place: int, old: str, new: str) -> Callable[[Header, Any], None]:
    return lambda s, a: s["intervals"][place].__setitem__(0, s["intervals"][place][0].replace(old, new))


def other_end(said: Header, arrays: Any) -> None:
    text = said["intervals"][-1][0]
    said["intervals"][-1][0] = text[:-1] + ("]" if text.endswith(")") else ")")


def further(said: Header, arrays: Any) -> None:
    """The end of the first interval, by 10^-40, wherever it is written."""
    end = said["intervals"][0][0].split(", ")[1][:-1]
    for interval in said["intervals"]:
        interval[0] = interval[0].replace(end, str(Fraction(end) + Fraction(1, 10**40)))


CHANGES: dict[str, Callable[[Header, dict[str, Any]], Any]] = {
    "an end that is open": moved(0, "[", "("),
    "another beginning": moved(0, "[0,", "[1/1000,"),
    "an end that is a little further": further,
    "an end that is part of it, or is not": other_end,
    "an interval dropped": lambda s, a: s["intervals"].pop(),
    "the first interval dropped": lambda s, a: s["intervals"].pop(0),
    "an interval too many": lambda s, a: s["intervals"].append(["[1, 1]", 0]),
    "no intervals": lambda s, a: s.update(intervals=[]),
    "another class": lambda s, a: s["intervals"][0].__setitem__(1, (s["intervals"][0][1] + 1) % 3),
    "a class that is a float": lambda s, a: s["intervals"][0].__setitem__(1, float(s["intervals"][0][1])),
    "a picture more": lambda s, a: s.update(pictures=s["pictures"] + 1),
    "a picture fewer": lambda s, a: s.update(pictures=s["pictures"] - 1),
    "no pictures": lambda s, a: s.update(pictures=0),
    "less than none": lambda s, a: s.update(pictures=-1),
    "one more is kept": lambda s, a: s.update(kept=s["kept"] + 1),
    "another label": lambda s, a: s.update(label=(s["label"] + 1) % 3),
    "a label that is no class": lambda s, a: s.update(label=99),
    "a negative label": lambda s, a: s.update(label=s["label"] - 3),
    "another strength": lambda s, a: s.update(strength=[s["strength"][0] / 1e6]),
    "another claim": lambda s, a: s.update(claim="maybe"),
    "a claim that is not true": lambda s, a: s.update(claim="unsafe" if s["claim"] == "safe" else "safe"),
    "another rounding": lambda s, a: s.update(rounding="up"),
    "another perturbation": lambda s, a: s.update(perturbation="box-blur:size=5"),
    "another kernel": lambda s, a: s["kernels"][0][0].__setitem__(0, "1/8"),
    "two parts": lambda s, a: s.update(kernels=s["kernels"] * 2, strength=s["strength"] * 2),
    "another model": lambda s, a: s.update(model_sha256="0" * 64),
    "another image": lambda s, a: s.update(image_sha256="0" * 64),
    "other pixels": lambda s, a: a["pixels"].__setitem__((0, 1, 1), 0.5),
    "an array too many": lambda s, a: a.update(cuts=np.zeros(1)),
    "another arithmetic": lambda s, a: s.update(arithmetic="float32"),
    "no batch": lambda s, a: s["deployment"].pop("batch"),
    "a batch of none": lambda s, a: s["deployment"].update(batch=0),
    "a batch of too many": lambda s, a: s["deployment"].update(batch=10**9),
    "another input": lambda s, a: s.update(input_shape=[1, 1]),
    "an input of words": lambda s, a: s.update(input_shape=["a"] * 4),
    "a key too few": lambda s, a: s.pop("kept"),
    "a key too many": lambda s, a: s.update(status="safe"),
}


FALSE = [
    *((kind, name) for kind in ("in batches", "in batches: a witness", "in batches: what is safe") for name in CHANGES),
    ("misclassified", "a negative label"),
    ("misclassified", "a label that is no class"),
]


@pytest.mark.parametrize(("kind", "name"), FALSE)
def test_a_changed_certificate_does_not_hold(cases, kind, name):
    data, made = cases[kind]
    given = remade(made, CHANGES[name])
    assert given != made
    outcome = checker.check(given, data)
    assert not outcome.accepted
    assert "\n" not in outcome.sentence
    assert outcome.sentence


def test_another_model_or_image(cases):
    data, made = cases["in batches"]
    other, _ = cases["one at a time"]
    assert "another model" in checker.check(made, other).sentence
    forged = remade(made, lambda s, a: s.update(model_sha256=hashlib.sha256(other).hexdigest()))
    assert not checker.check(forged, other).accepted

    def darker(said: Header, arrays: dict[str, Any]) -> None:
        arrays["pixels"] = arrays["pixels"] / 2
        said["image_sha256"] = hashlib.sha256(arrays["pixels"].astype("<f8").tobytes()).hexdigest()

    assert not checker.check(remade(made, darker), data).accepted


def test_models_that_do_not_run(cases):
    data, made = cases["in batches"]
    for broken in (b"", b"no model", data[:-100]):
        forged = remade(made, lambda s, a, broken=broken: s.update(model_sha256=hashlib.sha256(broken).hexdigest()))
        outcome = checker.check(forged, broken)
        assert "does not run" in outcome.sentence


def test_another_deployment_is_said(cases):
    data, made = cases["in batches"]
    for change in ({"runtime": "onnxruntime 0.1"}, {"processor": "abacus"}, {"provider": "Another"}, {"threads": 4}):
        outcome = checker.check(remade(made, lambda s, a, change=change: s["deployment"].update(change)), data)
        assert outcome.accepted
        assert "another deployment" in outcome.sentence
        assert str(*change.values()) in outcome.sentence
    assert checker.check(remade(made, lambda s, a: s["deployment"].update(batch=3)), data).accepted


# What a line of the checker is, and what it might have been by mistake.
MISTAKES = {
    "halves rounded up": ('"half-even": round', '"half-even": lambda x: math.floor(x + HALF)'),
    "halves rounded to even": ('"half-up": lambda x: math.floor(x + HALF)', '"half-up": round'),
    "no clipping": ("min(max(value, low), high)", "value"),
    "nothing right behind a strength": ("nearest(old + step * HALF) == old", "False"),
    "all right behind a strength": ("nearest(old + step * HALF) == old", "True"),
    "a strength of two minds": ("stays[old, step]].append", "False].append"),
    "steps of one direction": ("1 if last > now else -1", "1"),
    "a change too few": ("range(now, last, step)", "range(now, last - step, step)"),
    "a change a little late": ("(2 * old + step) * unit", "(2 * old + 2 * step) * unit"),
    "no order": ("sorted(moments, key=lambda moment: (float(moment[0][0]), *moment[0]))", "moments"),
    "the last picture dropped": ("in self.moments:\n            for", "in self.moments[:-1]:\n            for"),
    "the first picture dropped": ("        yield picture.copy()\n        for", "        for"),
    "one array for all pictures": ("            yield picture.copy()", "            yield picture"),
    "ends that are part of it": ("{')]'[within]}", "]"),
    "starts that are part of it": ("{'[('[out]}", "["),
    "no offset": ("int(255 * scale * part.offset) * unit", "0"),
    "an offset in another unit": ("int(255 * scale * part.offset) * unit", "int(255 * scale * part.offset)"),
    "the kernel at all strengths": ("full - base", "full"),
    "one start for all sizes": ("identity(*np.shape(part.kernel))", "[[1]]"),
    "another padding": ("windows(levels, kernel, part.padding)", 'windows(levels, kernel, "reflect")'),
    "pixels rounded": ("if any(near) and", "if True and"),
    "pixels as they are": ("(np.float64, np.float32)]", "()]"),
    "another range of numbers": ("levels.astype(np.float32) / np.float32(255)", "levels.astype(np.float32)"),
    "bytes as fractions": ('if self._type == "|u1" else', "if False else"),
    "no normalisation": ("(pixels - mean) / std if mean.size else pixels", "pixels"),
    "channels first": ('arranged(pixels, self._header["channels_last"]', "arranged(pixels, False"),
    "batches in disorder": ("classes += pool.map", "classes[:0] = pool.map"),
    "the rest of a batch": ("[: len(pictures)]", ""),
    "ties kept": ("scores[:, label] > rivals.max(1)", "scores[:, label] >= rivals.max(1) - 1"),
    "the last of the best": ("rivals.argmax(1)", "rivals.argmin(1)"),
    "any intervals": ("if repr(claimed) != repr(actual)]", "if False]"),
    "as many intervals as are there": ("zip_longest(header", "zip(header"),
    "any number kept": ('kept == header["kept"] and fits', "fits"),
    "any claim": ('kept == header["kept"] and fits', 'kept == header["kept"]'),
    "any number of pictures": ('require(fits, f"the path has', 'require(True, f"the path has'),
    "other arrays": ('header["arrays"].keys() == {"pixels"}', "True"),
    "no label": ("0 <= label < scores.shape[1] > 1", "True"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_checker_is_noticed(cases, monkeypatch, name):
    """A true certificate would be refused, or a false one accepted."""
    source = Path(enumeration.__file__).read_text()
    right, wrong = MISTAKES[name]
    assert source.count(right) == 1
    broken = types.ModuleType("broken")
    exec(compile(source.replace(right, wrong), "broken", "exec"), broken.__dict__)
    monkeypatch.setattr(certificates, "enumeration", broken)
    if any(not checker.check(made, data).accepted for data, made in cases.values()):
        return
    false = ((cases[kind][0], remade(cases[kind][1], CHANGES[change])) for kind, change in FALSE)
    assert any(checker.check(made, data).accepted for data, made in false)


def test_pictures_are_those_of_the_prover(cases):
    for _, made in cases.values():
        said, arrays = checker.unpack(made)
        pictures = checker.Pictures(said, arrays["pixels"].astype("<f8"))
        found = [*pictures]
        assert len(found) == len(pictures) >= said["pictures"]
        assert all((one != other).any() for one, other in pairwise(found))


def test_what_is_undecided_has_none(tmp_path):
    file = scores(tmp_path / "n.onnx", RANDOM.normal(size=(36, 3)), (1, 1, 6, 6))
    network, image = sp.load_deployed(file), RANDOM.integers(0, 256, (1, 6, 6)) / 255
    late = sp.profile(network, image, "box-blur:size=3", pixels="8bit", timeout=1e-9)
    with pytest.raises(NoCertificateError, match="undecided"):
        certificate(network, late)
    lost = sp.profile(network, image, "box-blur:size=3", (late.label + 1) % 3, pixels="8bit")
    assert certificate(network, lost)


# -- through the commands ---------------------------------------------------------------------------------------------

NO_RUNTIME = """
import sys
sys.modules["onnxruntime"] = None
import runpy
sys.argv = ["checker", *sys.argv[1:]]
runpy.run_module("shakeproof.checker", run_name="__main__")
"""


def test_the_commands(tmp_path):
    file = scores(tmp_path / "net.onnx", RANDOM.normal(size=(36, 3)) * 3, ("n", 1, 6, 6))
    np.save(tmp_path / "x.npy", RANDOM.integers(0, 256, (1, 6, 6)).astype(np.uint8))
    image, made = str(tmp_path / "x.npy"), tmp_path / "c"
    asked = ("-p", "sharpen:size=3", "--pixels", "8bit,rounding=half-up", "--certificate", str(made), "--json")
    for words in (("profile", file, image), ("verify", file, image, "--strength", "0.2")):
        done = run(*words, *asked)
        row = json.loads(done.stdout)
        assert done.returncode == {"safe": 0, "unsafe": 1}[row["status"]]
        said, _ = checker.unpack(made.read_bytes())
        assert said["rounding"] == "half-up"
        assert said["deployment"] == row["deployment"]
        checked = run("check", str(made), "--model", file, "--image", image, "--json")
        assert checked.returncode == 0, checked.stdout
        assert json.loads(checked.stdout)["image_compared"]
    made.write_bytes(remade(made.read_bytes(), lambda s, a: s.update(kept=s["kept"] + 1)))
    assert run("check", str(made), "--model", file).returncode == 1
    script = [sys.executable, "-c", NO_RUNTIME, str(made), "--model", file]
    without = subprocess.run(script, capture_output=True, text=True, check=False)
    assert without.returncode == 1
    assert "onnxruntime is not installed" in without.stdout
    assert not without.stderr


def test_a_certificate_spares_nothing(tmp_path):
    """Where bounds would spare pictures, they are run if a certificate is asked for."""
    from shakeproof import demo

    (picture, _), *_ = demo.images()
    words = ("verify", str(demo.MODEL), str(picture), "-p", "box-blur:size=3", "--strength", "0.05", "--pixels", "8bit")
    done = run(*words, "--certificate", str(tmp_path / "c"))
    assert done.returncode == 0, done.stderr
    assert run("check", str(tmp_path / "c"), "--model", str(demo.MODEL)).returncode == 0
