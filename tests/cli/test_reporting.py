"""`shakeproof report`: the page, the evidence, and a bundle that is checked where nothing else of shakeproof is."""

from __future__ import annotations

import json
import shutil
import sqlite3

import numpy as np
import torch
from cli.conftest import STRENGTH, recheck, sections
from warm import complaint, run

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import certificate
from shakeproof.checker import check, unpack
from shakeproof.question import Image
from shakeproof.report.recheck import examined
from shakeproof.store import Store, StoreWriter

# An answer that claims nothing beside its row of the evidence.
NOTHING = {"profile": [], "counterexample": None, "predicted": None}


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
    counts = {row["what"]: row["count"] for row in said["Coverage"]["rows"]}
    assert counts["certificate accepted by the checker"] == 3
    assert said["Domain"]["rows"][0]["strengths from 0 to"] == [STRENGTH]


def test_a_bundle_is_checked_from_itself_alone(copied):
    found = recheck(copied)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "3 of 3 certificates hold; 0 prove less than is claimed; 0 claims have no certificate" in found.stdout
    with sqlite3.connect(copied / "store.db") as connection:
        assert connection.execute("SELECT count(*) FROM results").fetchone() == (4,)


def test_a_certificate_of_another_item_does_not_do(bundle):
    evidence = json.loads((bundle / "evidence.json").read_text())
    safe, unsafe, wrong, _ = sections(evidence)["Results"]["rows"]
    model = demo.MODEL.read_bytes()
    of_safe, of_unsafe, of_wrong = (
        (bundle / "certificates" / f"{row['certificate_sha256']}.cert").read_bytes() for row in (safe, unsafe, wrong)
    )
    assert examined(safe, NOTHING, of_safe, model).accepted
    for row, another in ((safe, of_unsafe), (unsafe, of_safe), (wrong, of_unsafe), (safe, of_wrong)):
        assert not examined(row, NOTHING, another, model).accepted
    for change in ({"label": 0}, {"strength": 0.06}, {"perturbation": "box-blur:size=5"}, {"verdict": "unsafe"}):
        assert not examined(safe | change, NOTHING, of_safe, model).accepted
    assert not examined(unsafe | {"verdict": "misclassified"}, NOTHING, of_unsafe, model).accepted
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
    assert "its mean and std" in examined(safe, NOTHING, other, model).sentence


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
    with StoreWriter.open(tmp_path / "store.sqlite") as writer:
        writer.connection.execute("UPDATE models SET name = 'elsewhere.onnx'")
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
        (("report", store, "-o", tmp_path / "r.html", "--perturbation", "psf*"), "no matching answers"),
    ):
        assert expected in complaint(*words)
    assert {path.name for path in tmp_path.iterdir()} == {"full"}
