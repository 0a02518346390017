"""`shakeproof report`: the page, the evidence, and a bundle that is checked where nothing else of shakeproof is."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from warm import complaint, run

import shakeproof as sp
from shakeproof import demo
from shakeproof.campaign import Ledger, Requirement, Store, keep
from shakeproof.certificate import certificate
from shakeproof.checker import check, unpack
from shakeproof.images import Image, read_image
from shakeproof.report.recheck import examined
from shakeproof.settings import Settings

STRENGTH = 0.05


@pytest.fixture(scope="module")
def folder(demo_network, tmp_path_factory):
    """A store beside its network: one answer safe, one unsafe, one misclassified, one undecided; three certificates."""
    place = tmp_path_factory.mktemp("reporting")
    shutil.copy(demo.MODEL, place / "signs.onnx")
    network = sp.load(place / "signs.onnx")
    path, label = next(own for own in demo.images() if own[0].stem == "warning.1")
    picture = replace(read_image(str(path)).fitted(network.picture()), name="warning.1", label=label)
    asked = [
        ("box-blur:size=3", STRENGTH, {}),
        ("haze:colour=0.8", 1.0, {"whole_curve": True}),
        ("sharpen:size=3", STRENGTH, {"label": 0}),
        ("box-blur:size=9", 1.0, {"timeout": 1e-6}),
    ]
    results = [sp.profile(network, picture, text, max_strength=end, **more) for text, end, more in asked]
    assert [result.status for result in results] == ["safe", "unsafe", "misclassified", "undecided"]
    wanted = Requirement("REQ-7", "Signs keep their class.")
    keep(place / "store.sqlite", "Signs", network, results, Settings(), certificates=True, requirement=wanted)
    return place


@pytest.fixture(scope="module")
def bundle(folder):
    made = run("report", folder / "store.sqlite", "-o", folder / "report.html", "--bundle", folder / "bundle")
    assert made.returncode == 0, made.stderr
    assert "3 of 3 certificates hold" in made.stdout
    return folder / "bundle"


@pytest.fixture
def copied(bundle, tmp_path):
    return shutil.copytree(bundle, tmp_path / "elsewhere")


def recheck(place):
    """In a process that finds nothing but the standard library and numpy."""
    script = (
        "import sys, runpy; sys.path = [own for own in sys.path if 'shakeproof' not in own and 'src' not in own];"
        f"sys.argv = ['recheck.py']; runpy.run_path({str(place / 'recheck.py')!r}, run_name='__main__')"
    )
    import_only = {"PYTHONPATH": "", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd="/", env=import_only, check=False
    )


def sections(evidence: dict) -> dict[str, dict]:
    return {section["heading"]: section for section in evidence["sections"]}


def test_evidence_says_what_was_claimed_found_and_checked(folder, bundle):
    file = folder / "evidence.json"
    assert run("report", folder / "store.sqlite", "--format", "json", "-o", file, "--quiet").stdout == ""
    evidence = json.loads(file.read_text())
    assert evidence == json.loads((bundle / "evidence.json").read_text())
    assert evidence["requirement"] == {"id": "REQ-7", "text": "Signs keep their class."}
    said = sections(evidence)
    assert {"Claim", "Domain", "Property", "Criterion", "Arithmetic", "Method", "Assumptions"} <= said.keys()
    rows = said["Results"]["rows"]
    assert [row["verdict"] for row in rows] == ["safe", "unsafe", "misclassified", "undecided"]
    assert [row["certificate_sha256"] is None for row in rows] == [False, False, False, True]
    assert all(row["checker"].startswith("holds: ") for row in rows[:3])
    assert {row["model_sha256"] for row in rows} == {sp.load(demo.MODEL).identity}
    assert [row["item"] for row in said["Undecided"]["rows"]] == [3]
    assert "3 certificates" in said["Check"]["sentences"][0]
    assert said["Domain"]["rows"][0]["strengths from 0 to"] == [STRENGTH]


def test_a_bundle_is_checked_from_itself_alone(copied):
    found = recheck(copied)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3 of 3 certificates hold; 0 verdicts have none" in found.stdout
    with sqlite3.connect(copied / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (4,)


@pytest.mark.parametrize("victim", ["certificate", "model", "image", "verdict", "strength", "checker", "missing"])
def test_whatever_is_changed_in_a_bundle_is_noticed(copied, victim):
    def first(pattern):
        return min(copied.glob(pattern))

    evidence = json.loads((copied / "evidence.json").read_text())
    row = sections(evidence)["Results"]["rows"][0]
    if victim in ("certificate", "model", "image", "checker"):
        pattern = {"model": "models/*", "image": "images/*", "checker": "checker/*/*/question.py"}
        path = first(pattern.get(victim, "certificates/*"))
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    elif victim == "missing":
        first("certificates/*").unlink()
    else:
        row |= {"verdict": "unsafe"} if victim == "verdict" else {"strength": 1.0}
        (copied / "evidence.json").write_text(json.dumps(evidence))
    found = recheck(copied)
    assert found.returncode != 0
    if victim in ("verdict", "strength"):  # not only by its digest
        assert "item 0" in found.stdout
        assert "DOES NOT HOLD: is about something else" in found.stdout


def test_a_certificate_of_another_item_does_not_do(bundle):
    evidence = json.loads((bundle / "evidence.json").read_text())
    safe, unsafe, wrong, _ = sections(evidence)["Results"]["rows"]
    model = demo.MODEL.read_bytes()
    of_safe, of_unsafe, of_wrong = (
        (bundle / "certificates" / f"{row['certificate_sha256']}.cert").read_bytes() for row in (safe, unsafe, wrong)
    )
    assert examined(safe, of_safe, model).accepted
    for row, another in ((safe, of_unsafe), (unsafe, of_safe), (wrong, of_unsafe), (safe, of_wrong)):
        assert not examined(row, another, model).accepted
    for change in ({"label": 0}, {"strength": 0.06}, {"perturbation": "box-blur:size=5"}, {"verdict": "unsafe"}):
        assert not examined(safe | change, of_safe, model).accepted
    assert not examined(unsafe | {"verdict": "misclassified"}, of_unsafe, model).accepted
    winners = unpack(of_unsafe)[1]["winners"]
    assert np.isin(unsafe["label"], winners)  # it is the whole profile: the label first, then another


def test_a_certificate_for_other_inputs_of_the_network_does_not_do(folder, bundle):
    """It holds, and names the same network, image and perturbation; but that network was given x - 0.01."""
    safe, *_ = sections(json.loads((bundle / "evidence.json").read_text()))["Results"]["rows"]
    network = sp.load(folder / "signs.onnx", mean=[0.01], std=[1.0])
    with Store.open(folder / "store.sqlite") as store:
        stored = next(iter(store.profiles())).image
    picture = Image(stored.name, torch.from_numpy(stored.pixels), stored.label)
    other = certificate(network, sp.profile(network, picture, "box-blur:size=3", max_strength=STRENGTH))
    model = demo.MODEL.read_bytes()
    assert check(other, model).accepted
    assert "its mean and std" in examined(safe, other, model).sentence


def test_a_certificate_that_does_not_hold_is_said(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    with sqlite3.connect(tmp_path / "copy" / "store.sqlite") as connection:
        connection.execute("UPDATE certificates SET certificate = substr(certificate, 1, 900) WHERE query = 1")
    found = run("report", tmp_path / "copy" / "store.sqlite", "--format", "json", "-o", tmp_path / "evidence.json")
    assert found.returncode == 1
    assert "2 of 3 certificates hold" in found.stdout
    said = sections(json.loads((tmp_path / "evidence.json").read_text()))
    assert said["Results"]["rows"][0]["checker"].startswith("REFUSED")
    assert [row["item"] for row in said["Check"]["rows"]] == [0]


def test_a_network_that_is_gone_is_said(folder, tmp_path):
    shutil.copy(folder / "store.sqlite", tmp_path)
    with Ledger.open(tmp_path / "store.sqlite") as ledger:
        ledger.connection.execute("UPDATE models SET name = 'elsewhere.onnx'")
    found = run("report", tmp_path / "store.sqlite", "--format", "json", "-o", tmp_path / "evidence.json")
    assert (found.returncode, "certificates hold" in found.stdout) == (0, False)
    said = sections(json.loads((tmp_path / "evidence.json").read_text()))
    assert said["Results"]["rows"][0]["checker"].startswith("not checked: the network's file")


def test_bad_input_is_one_line(folder, tmp_path):
    store = folder / "store.sqlite"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for words, expected in (
        (("report", tmp_path / "none.sqlite"), "none.sqlite"),
        (("report", store, "-o", tmp_path / "report.txt"), "write it as .html"),
        (("report", store, "--bundle", tmp_path / "full"), "new or empty"),
        (("report", store, "-o", tmp_path / "r.html", "--campaign", "99"), "has no campaign 99"),
        (("report", store, "-o", tmp_path / "r.html", "--perturbation", "psf*"), "no such answers"),
    ):
        assert expected in complaint(*words)
    assert {path.name for path in tmp_path.iterdir()} == {"full"}
