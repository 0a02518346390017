"""Certificates of chains: accepted as they are made, refused when any part of them is another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import checker, demo
from shakeproof.certificate import certificate, pack
from shakeproof.checker import kernels
from shakeproof.question.perturbation import written_chain

SIGNS = [str(file) for file, _ in demo.images()]
STOP, WARNING = (next(file for file in SIGNS if word in file) for word in ("stop", "warning"))
MODEL = Path(demo.MODEL).read_bytes()
TEXTS = (
    "motion-length:angle=30,upto=15",
    "motion-length:angle=90,upto=6.5,clip=0..1",
    "motion-length:angle=0,upto=5,padding=zeros",
    "motion-angle:size=5,from=0,to=180,strength=0.3",
    "motion-angle:size=7,from=200,to=-30",
    "motion-angle:size=5,from=20.5,to=21.5,strength=0.3",
    "gaussian-blur:size=7,sigma=0..1.5",
    "gaussian-blur:size=6,sigma=0.4..1,tolerance=0.05",
    "defocus:radius=0..1.5,tolerance=0.05",
    "defocus:size=7,radius=1..2,tolerance=0.1",
)


@pytest.fixture(scope="module")
def moving(tmp_path_factory) -> str:
    """A trajectory of a few samples."""
    file = tmp_path_factory.mktemp("motion") / "shake.csv"
    file.write_text("time,x,y\n0,0,0\n0.01,0.5,0.25\n0.02,1.25,-0.5\n0.05,2,-1\n0.1,0,0\n")
    return f"exposure:trajectory={file},upto=0.08"


def meaning(text: str) -> tuple[Any, Any, Any]:
    perturbation = sp.parse(text)
    return kernels.meaning(text, written_chain(perturbation), [*perturbation.scale.nodes])


@pytest.mark.parametrize("text", TEXTS)
def test_chains_are_the_provers(text):
    """Two programs, written apart, mean the same by a text, and by its pictures."""
    perturbation, pixels = sp.parse(text), np.random.default_rng(0).normal(size=(2, 17, 17))
    parts, clip, remarks = meaning(text)
    assert clip == list(perturbation.clip or ())
    assert len(parts) == perturbation.scale.segments
    assert "within 1e-9 of the checker's" in remarks[0]
    path = perturbation.apply(torch.from_numpy(pixels))
    base, slopes, error = kernels.path(pixels, parts)
    starts = base + np.concatenate([slopes[:1] * 0, slopes[:-1].cumsum(0)])
    assert (np.abs(path.starts.numpy() - starts) <= 2 * error).all()
    assert (np.abs(path.slopes.numpy() - slopes) <= 2 * error).all()


@pytest.mark.parametrize("text", TEXTS)
def test_leaves_enclose_what_the_network_gives(text):
    """On leaves inside a segment; over a node there are none."""
    perturbation, image = sp.parse(text), sp.question.fitting(sp.load(demo.MODEL), STOP).pixels
    network, nodes = sp.load(demo.MODEL), perturbation.scale.nodes
    header = _header(text, image.numpy())
    question, random = checker.Question(header, image.numpy(), MODEL), np.random.default_rng(0)
    path = perturbation.apply(image)
    for segment in random.integers(0, len(nodes) - 1, 6):
        low, high = np.sort(random.uniform(nodes[segment], nodes[segment + 1], 2))
        bound = question.margins(np.array([[low]]), np.array([[high]]), 0)[0]
        z = torch.tensor(random.uniform(low, high, 16))
        scores = network.scores(network.picture().to_input(path.clipped(path.at(z[:, None])))).numpy()
        assert (scores[:, 0] - scores[:, 1:].max(1)).min() >= bound
    if len(nodes) > 2:
        with pytest.raises(checker.Refused, match="over the end of its segment"):
            question.margins(np.array([[0.0]]), np.array([[np.nextafter(nodes[1], 1)]]), 0)


def _header(text: str, pixels: np.ndarray) -> dict[str, Any]:
    result = sp.verify(demo.MODEL, pixels, text, strength=0.0, label=0)
    from shakeproof.certificate import _asked

    return {**_asked(sp.load(demo.MODEL), result)[0], "strength": [1.0]}


@pytest.mark.parametrize("file", [STOP, WARNING])
@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[3], TEXTS[5], TEXTS[6], TEXTS[8]])
def test_certificates_of_chains_hold(text, file):
    network = sp.load(demo.MODEL)
    result = sp.profile(network, file, text)
    for profile in (False, True):
        outcome = checker.check(certificate(network, result, profile=profile), MODEL)
        assert outcome.accepted, outcome.sentence
        assert "goes straight from picture to picture" in outcome.sentence


def test_the_kernels_of_an_exposure_are_the_certificates_own(moving):
    network = sp.load(demo.MODEL)
    outcome = checker.check(certificate(network, sp.profile(network, STOP, moving)), MODEL)
    assert outcome.accepted
    assert "the kernels are the certificate's own;" in outcome.sentence


def _moved(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["nodes"][1] *= 1.01


def _other_entry(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["kernels"][3][2][2] = "1/3"


def _swapped(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["kernels"][2], header["kernels"][5] = header["kernels"][5], header["kernels"][2]


def _one_missing(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    del header["kernels"][3]


def _unsorted(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["nodes"][1], header["nodes"][2] = header["nodes"][2], header["nodes"][1]


def _shorter(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """The chain ends before strength 1."""
    del header["kernels"][-1], header["nodes"][-1]


def _without_nodes(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    del header["nodes"]


def _longer(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["perturbation"] = header["perturbation"].replace("upto=15", "upto=16")


def _turned(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["perturbation"] = header["perturbation"].replace("angle=30", "angle=31")


def _other_family(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["perturbation"] = "box-blur:size=15"


def _more_options(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["perturbation"] += ",sigma=3"


def _over_a_node(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    node = header["nodes"][1]
    arrays["cuts"] = arrays["cuts"][arrays["cuts"] != node]


def _words_for_nodes(header: dict[str, Any], arrays: dict[str, Any]) -> None:
    header["nodes"] = [str(node) for node in header["nodes"]]


CHANGES = [
    *(_moved, _other_entry, _swapped, _one_missing, _unsorted, _shorter, _without_nodes, _longer, _turned),
    *(_other_family, _more_options, _over_a_node, _words_for_nodes),
]


@pytest.fixture(scope="module")
def good() -> bytes:
    network = sp.load(demo.MODEL)
    return certificate(network, sp.profile(network, STOP, TEXTS[0]))


def remade(good: bytes, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> bytes:
    header, arrays = checker.unpack(good)
    header, arrays = {**header}, {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    return pack(header, arrays)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_changed_is_refused(good, change):
    """Each would be another question, or a proof with a hole."""
    assert checker.check(remade(good, lambda header, arrays: None), MODEL).accepted
    assert not checker.check(remade(good, change), MODEL).accepted


@pytest.mark.parametrize("text", TEXTS)
def test_every_node_is_needed(text):
    """Without one of them, the chain is another, even if the kernels at all others are right."""
    perturbation = sp.parse(text)
    rows, nodes = written_chain(perturbation), [*perturbation.scale.nodes]
    if len(nodes) > 2:
        with pytest.raises(checker.Refused, match=r"bends where|no node between"):
            kernels.meaning(text, [rows[0], rows[-1]], [nodes[0], nodes[-1]])
    if "motion" in text:
        for place in range(1, len(nodes) - 1):
            with pytest.raises(checker.Refused, match="bends where"):
                kernels.meaning(text, rows[:place] + rows[place + 1 :], nodes[:place] + nodes[place + 1 :])


def test_a_turn_from_an_angle_to_the_same_one_does_not_stand_still():
    """Both ends have one kernel: a chain of these two would be a picture that never changes."""
    text = "motion-angle:size=5,from=0,to=180"
    rows = written_chain(sp.parse(text))
    assert rows[0] == rows[-1]
    with pytest.raises(checker.Refused, match="bends where"):
        kernels.meaning(text, [rows[0], rows[-1]], [0.0, 1.0])


def test_a_plain_family_takes_no_nodes():
    network = sp.load(demo.MODEL)
    plain = certificate(network, sp.verify(network, STOP, "box-blur:size=3", strength=0.1))
    for nodes in ([0.0, 1.0], []):
        header, arrays = checker.unpack(plain)
        assert not checker.check(pack({**header, "nodes": nodes}, arrays), MODEL).accepted
