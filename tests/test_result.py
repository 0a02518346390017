"""What is written down of a result can be read back, and nothing else can."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from test_analysis import straight_line_network

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.proof.result import SELDOM, spoken_time
from shakeproof.question import robustness
from shakeproof.report import DemoRows

# As the interface promises them.
KEYS = [
    *("version", "model", "image", "label", "predicted", "perturbation", "strength", "status", "critical_strength"),
    *("certified_strength", "profile", "counterexample", "min_margin", "method", "pieces", "rounding", "arithmetic"),
    *("reason", "seconds"),
]


def box(network: sp.Network, radius: float) -> sp.Specification:
    """The image of `straight_line_network`, each pixel within a radius."""
    image = np.zeros(9)
    image[4] = 1.0
    return robustness(image - radius, image + radius, 0, network.graph.classes)


def asked(kind: str) -> sp.Result:
    network, image = straight_line_network(1.0, -1.0)
    blur = "box-blur:size=3,padding=zeros"
    two = blur + "+brightness:max=0.1"
    match kind:
        case "exact safe":
            return sp.profile(network, image, blur, 0, 0.4)
        case "exact unsafe":
            return sp.profile(network, image, blur, 0)
        case "exact undecided":
            return sp.profile(network, image, blur, 0, timeout=1e-9)
        case "verified early":
            return sp.verify(network, image, blur, 1.0, 0)
        case "bounds safe":
            return sp.profile(network, image, blur, 0, 0.4, method="bounds")
        case "bounds unsafe":
            return sp.profile(network, image, blur, 0, method="bounds")
        case "two strengths safe":
            return sp.verify(network, image, two, (0.1, 0.2), 0)
        case "two strengths unsafe":
            return sp.profile(network, image, two, 0)
        case "any kernel safe":
            return sp.verify(network, image, "any-kernel:size=3", 0.01, 0)
        case "any kernel unsafe":
            return sp.verify(network, image, "any-kernel:size=3", 1.0, 0)
        case "box safe":
            return sp.verify_specification(network, box(network, 0.01))
        case "box unsafe":
            return sp.verify_specification(network, box(network, 2.0))
        case "misclassified":
            return sp.profile(network, image, blur, 1)
        case "any kernel misclassified":
            return sp.verify(network, image, "any-kernel:size=3", 1.0, 1)
    raise AssertionError(kind)


KINDS = {
    "exact safe": ("safe", "exact"),
    "exact unsafe": ("unsafe", "exact"),
    "exact undecided": ("undecided", "exact"),
    "verified early": ("unsafe", "exact"),
    "bounds safe": ("safe", "bounds"),
    "bounds unsafe": ("unsafe", "bounds"),
    "two strengths safe": ("safe", "bounds"),
    "two strengths unsafe": ("unsafe", "bounds"),
    "any kernel safe": ("safe", "bounds"),
    "any kernel unsafe": ("unsafe", "bounds"),
    "box safe": ("safe", "bounds"),
    "box unsafe": ("unsafe", "bounds"),
    "misclassified": ("misclassified", "exact"),
    "any kernel misclassified": ("misclassified", "bounds"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_reads_back_from_its_own_line(kind):
    result = asked(kind)
    line = json.dumps(result.to_json())
    said = json.loads(line)
    assert [key for key in said if key not in SELDOM] == [*KEYS, "tested", "requirement"]
    assert said["requirement"] == (None if kind.startswith("box") else "label")
    assert (said["status"], said["method"]) == KINDS[kind]
    assert sp.Record.from_json(line) == sp.Record.from_json(said) == result.record
    assert sp.Record.from_json(line).to_json() == said == result.to_json()
    assert type(sp.Record.from_json(line).status) is sp.Status
    hash(result.record)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_line_says(kind):
    said = json.loads(json.dumps(asked(kind).to_json()))
    assert said["version"] == 2
    assert (said["rounding"], said["arithmetic"]) == ("rigorous", "real")
    assert (said["reason"] is not None) == (said["status"] == "undecided")
    found = said["counterexample"]
    assert (found is not None) >= (said["status"] == "unsafe")
    if found is not None and said["status"] == "unsafe":
        assert list(found) == ["strength", "class", "margin", "replayed"]
        assert found["replayed"] is True
        assert found["margin"] < 0
        assert found["class"] != said["label"]
    match kind.partition(" ")[0]:
        case "box":
            assert said["perturbation"] is said["strength"] is None
            assert said["certified_strength"] == 0
        case "two":
            assert isinstance(said["strength"], list)
            assert found is None or isinstance(found["strength"], list)
        case _:
            assert isinstance(said["strength"], float)
    if said["status"] == "safe" and said["strength"] is not None:
        strengths = said["strength"] if isinstance(said["strength"], list) else [said["strength"]]
        assert said["certified_strength"] == min(strengths)
        assert said["min_margin"] > 0
    if kind in ("exact unsafe", "bounds unsafe"):  # the label loses at exactly one half
        low, high = said["critical_strength"]
        assert low <= 0.5 <= high + 1e-12
        assert said["certified_strength"] == low
        assert high - low <= (1e-9 if said["method"] == "exact" else 1e-4)
    if said["status"] == "misclassified":
        assert said["certified_strength"] == 0
        assert said["critical_strength"] == (None if kind.startswith("any") else [0.0, 0.0])
    if kind == "exact unsafe":
        profile = said["profile"]
        assert [(part["class"], part["proved"]) for part in profile] == [(0, True), (0, False), (1, False), (1, True)]
        assert [part["from"] for part in profile] == [0.0, *[pytest.approx(0.5)] * 3]
        assert [part["to"] for part in profile] == [*[part["from"] for part in profile[1:]], 1.0]


def test_a_result_that_is_undecided_for_another_reason_reads_back():
    network, image = straight_line_network(2.0, 1.0)
    broken = dataclasses.replace(network, runtime=lambda x: np.full((len(x), 2), np.inf, np.float32))
    result = sp.profile(broken, image, "box-blur:size=3,padding=zeros", 0)
    assert result.reason is sp.Reason.RUNTIME_DISAGREES
    assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
    assert sp.Record.from_json(json.dumps(result.to_json())).reason is result.reason


def test_times_are_said_in_their_units():
    spoken = [spoken_time(seconds) for seconds in (0.0123, 9, 119, 120, 5400, 7200, 172_800, 4_320_000)]
    assert spoken == ["0.012 s", "9 s", "119 s", "2 min", "90 min", "2 h", "48 h", "50 days"]


def test_every_reason_reads_back():
    line = asked("exact undecided").to_json()
    for reason in sp.Reason:
        assert sp.Record.from_json(json.dumps(line | {"reason": str(reason)})).reason is reason


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"version": 3},
        {"version": None},
        {"status": "maybe"},
        {"status": None},
        {"reason": "because"},
        {"profile": None},
        {"profile": [{"from": 0.0}]},
        {"profile": [1]},
        {"counterexample": {"strength": 1.0}},
        {"counterexample": 3},
        {"more": 1},
    ],
)
def test_other_lines_are_refused(change):
    line = asked("exact unsafe").to_json() | change
    for form in (line, json.dumps(line)):
        with pytest.raises(InputError) as error:
            sp.Record.from_json(form)
        assert len(str(error.value).splitlines()) == 1
    if "version" in change:
        assert re.search(rf"version {change['version']} cannot be read, only of version 2", str(error.value))


@pytest.mark.parametrize("key", KEYS)
def test_a_line_without_one_of_its_keys_is_refused(key):
    line = asked("exact safe").to_json()
    del line[key]
    with pytest.raises(InputError):
        sp.Record.from_json(json.dumps(line))


@pytest.mark.parametrize(
    "line", ["", "no json", "[]", "[1]", "3", "null", '"x"', "{}", '{"version": 2}', "[" * 100_000]
)
def test_what_is_no_line_at_all(line):
    with pytest.raises(InputError, match="not a result"):
        sp.Record.from_json(line)


def test_the_bundled_signs_read_back(demo_network):
    for path, label in demo.images()[:4]:
        for text in ("box-blur:size=9", "sharpen:size=3+brightness:max=0.2"):
            result = sp.profile(demo_network, path, text, label, timeout=20)
            assert sp.Record.from_json(json.dumps(result.to_json())) == result.record
            assert result.record.model == str(demo.MODEL)
            assert result.record.image == str(path)


def test_a_picture_of_every_counterexample():
    for kind in ("exact unsafe", "two strengths unsafe", "any kernel unsafe", "box unsafe"):
        result = asked(kind)
        assert torch.equal(result.picture().flatten(), torch.from_numpy(result.counterexample.input).flatten())
        assert tuple(result.picture().shape) == (1, 3, 3)
    assert asked("exact safe").picture() is None


def test_what_is_not_proved_is_nowhere_called_safe():
    """In the table and on the page of the demo: a result without a critical strength need not be safe."""
    network, image = straight_line_network(2.0, 1.0)
    result = sp.profile(network, image, "box-blur:size=3", label=0)
    undecided = replace(result, evidence=replace(result.evidence, comparison=None))
    for shown, safe in ((result, True), (undecided, False)):
        assert (shown.status is sp.Status.SAFE, shown.critical_strength) == (safe, None)
        claim = shown.record.claim
        assert (claim.proved, claim.lost) == (1.0 if safe else None, None)
        console = Console(file=io.StringIO())
        console.print(DemoRows([shown.query.name], [str(shown.query.perturbation)], 80).drawn([shown]))
        assert ("safe" in console.file.getvalue()) is safe
