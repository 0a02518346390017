"""`recheck.py`: whatever is changed in a bundle is noticed, also where the manifest was changed with it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import product
from math import ceil, floor
from pathlib import Path

import pytest
from cli.conftest import recheck, sections
from processes import HANGING
from warm import run

import shakeproof as sp
from shakeproof import checker, demo
from shakeproof.certificate import certificate
from shakeproof.question import read_image
from shakeproof.report.page import confidence
from shakeproof.report.recheck import GAP, UNCHECKED, Proven, counts, detailed, examined, is_band, main
from shakeproof.settings import Settings
from shakeproof.store import keep

DATA = re.compile(r'(id="contents">)([^<]*)(</script>)')


def relist(place: Path) -> None:
    """Write the manifest anew, as whoever changes a bundle would."""
    manifest = json.loads((place / "manifest.json").read_text())
    names = (path for path in place.rglob("*") if path.is_file() and path.name != "manifest.json")
    manifest["files"] = {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in names
    }
    (place / "manifest.json").write_text(json.dumps(manifest))


def changed_evidence(place: Path, change) -> None:
    evidence = json.loads((place / "evidence.json").read_text())
    change(sections(evidence))
    (place / "evidence.json").write_text(json.dumps(evidence))
    relist(place)


def changed_page(place: Path, change) -> None:
    text = (place / "report.html").read_text()
    said = json.loads(zlib.decompress(base64.b64decode(DATA.search(text)[2])))
    change(said)
    packed = base64.b64encode(zlib.compress(json.dumps(said).encode())).decode()
    (place / "report.html").write_text(DATA.sub(lambda found: found[1] + packed + found[3], text))
    relist(place)


def refused(place: Path) -> str:
    found = recheck(place)
    assert found.returncode == 1, found.stdout + found.stderr
    assert found.stderr == ""
    return found.stdout


@pytest.fixture
def said(monkeypatch, capsys):
    """What a check in this process says of a bundle that it refuses."""

    def check(place: Path) -> str:
        monkeypatch.setattr(sys, "argv", ["recheck.py", str(place)])
        assert main() == 1
        return capsys.readouterr().out

    return check


def test_a_list_that_is_written_anew_is_the_same(copied):
    relist(copied)
    assert recheck(copied).returncode == 0
    assert recheck(copied).returncode == 0  # it leaves nothing behind


@pytest.mark.parametrize("pattern", ["certificates/*", "models/*", "images/*", "checker/*/*/question.py", "store.db"])
def test_a_file_that_was_changed_is_not_the_one_that_was_bundled(copied, pattern):
    path = min(copied.glob(pattern))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert "is not the file that was bundled" in refused(copied)
    path.unlink()
    assert "is in the manifest, but not in the folder" in refused(copied)


def result(number: int, **change):
    return lambda said: said["Results"]["rows"][number].update(change)


def counted(heading: str, number: int, key: str):
    def change(said):
        said[heading]["rows"][number][key] += 1

    return change


# Items: 0 is safe up to 0.05, 1 is unsafe, 2 is misclassified, 3 is undecided.
CLAIMS = {
    "a safe item's strength": result(0, strength=1.0),
    "a safe item's certified strength": result(0, certified_strength=1.0),
    "a safe item's verdict": result(0, verdict="unsafe"),
    "an unsafe item's verdict": result(1, verdict="safe"),
    "an unsafe item's certified strength": result(1, certified_strength=0.9),
    "an unsafe item's first loss": result(1, violated_from=0.01),
    "an unsafe item's critical strength": result(1, critical_strength=[0.9, 0.95]),
    "all three of them": result(1, certified_strength=0.95, violated_from=0.97, critical_strength=[0.95, 0.97]),
    "all three, too early": result(1, certified_strength=0.01, violated_from=0.02, critical_strength=[0.01, 0.02]),
    "a misclassified item's verdict": result(2, verdict="unsafe"),
    "a misclassified item's first loss": result(2, violated_from=0.05, critical_strength=[0.0, 0.05]),
    "an undecided item's verdict": result(3, verdict="safe"),
    "an undecided item's certified strength": result(3, certified_strength=1.0),
    "a label": result(0, label=0),
    "a perturbation": result(0, perturbation="box-blur:size=5"),
    "an arithmetic": result(0, arithmetic="float32"),
    "an image": result(0, image_sha256="0" * 64),
    "how pictures reach the network": result(0, details_sha256="0" * 64),
    "what the checker said": result(0, checker="REFUSED: no"),
    "a count of certified items": counted("Claim", 0, "certified"),
    "a count of violated items": counted("Claim", 4, "violated"),
    "a count of undecided items": counted("Claim", 2, "undecided"),
    "a strength of the claim": lambda said: said["Claim"]["rows"][4].update(strength=0.01),
    "a count of answers": counted("Coverage", 2, "count"),
    "a count of verdicts": counted("Coverage", 4, "count"),
    "a count of certificates": counted("Coverage", 5, "count"),
    "a count of certificates that hold": counted("Coverage", 6, "count"),
    "a count by method": counted("Method", 0, "items"),
    "a count by arithmetic": counted("Arithmetic", 0, "items"),
    "what is undecided": lambda said: said["Undecided"]["rows"].clear(),
    "how far an undecided item is proved": lambda said: said["Undecided"]["rows"][0].update({"proved up to": 0.5}),
    "no items": lambda said: said["Results"]["rows"].clear(),
    "no strengths": lambda said: said["Claim"]["rows"].clear(),
    "an item twice": lambda said: said["Results"]["rows"].append(said["Results"]["rows"][0]),
    "an item left out": lambda said: said["Results"]["rows"].pop(),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_number_of_the_evidence_is_compared(copied, said, claim):
    before = (copied / "evidence.json").read_text()
    changed_evidence(copied, CLAIMS[claim])
    assert json.loads((copied / "evidence.json").read_text()) != json.loads(before)
    said(copied)


COUNTEREXAMPLE = {"strength": 0.01, "class": 3, "margin": -1.0, "replayed": True}
PART = {"class": 3, "proved": True}


def answer(number: int, **change):
    def changed(said):
        for key, value in change.items():
            said["answers"][key][number] = value

    return changed


def shown(number: int, key: str, **change):
    """Changes the counterexample of an answer, or the last part of its profile."""

    def changed(said):
        found = said["answers"][key][number]
        (found[-1] if isinstance(found, list) else found).update(change)

    return changed


SHOWN = {
    "a verdict": answer(3, status="safe"),
    "how far is proved": answer(1, proved=0.99),
    "where it is lost": answer(1, lost=0.99),
    "a strength": answer(0, strength=1.0),
    "a certificate": answer(3, certificate="0" * 64),
    "an answer left out": lambda said: [column.pop() for column in said["answers"].values()],
    "the first sentence": lambda said: said.update(lead="2" + said["lead"]),
    "its end": lambda said: said.update(lead=said["lead"].replace(" seconds", "1 seconds")),
    "a notice": lambda said: said["notices"].append("All is well."),
    "a notice left out": answer(0, label_predicted=True),
    "a confidence band": lambda said: said["bands"]["1"][1].__setitem__(0, 0.9),
    "a confidence band's upper end": lambda said: said["bands"]["1"][0].__setitem__(1, 0.9),
    "no confidence band": lambda said: said["bands"].clear(),
    "a confidence band too many": lambda said: said["bands"].update({"2": said["bands"]["1"]}),
    "why something is undecided": answer(3, why="it is safe"),
    "a reason where there is a verdict": answer(0, why="it is wrong"),
    "a method": answer(0, method="bounds"),
    "an arithmetic": answer(0, arithmetic="float32"),
    "what the checker said": answer(3, checked="holds: it does"),
    "a perturbation": lambda said: said["perturbations"][0].update(text="box-blur:size=5"),
    "an answer's perturbation": answer(0, perturbation=3),
    "an image": lambda said: said["images"][0].update(name="another"),
    "a smallest margin of a safe item": answer(0, min_margin=-1.0),
    "a smallest margin of an unsafe item": answer(1, min_margin=1.0),
    "a counterexample of a safe item": answer(0, counterexample=COUNTEREXAMPLE),
    "a counterexample's margin": shown(1, "counterexample", margin=1.0),
    "what is predicted of a misclassified item": answer(2, predicted=0),
    "the strengths": lambda said: said["strengths"].append(0.5),
    "the evidence": lambda said: said["evidence"]["sections"][0]["rows"][0].update(certified=9),
}


@pytest.mark.parametrize("claim", SHOWN)
def test_every_number_of_the_page_is_compared(copied, said, claim):
    changed_page(copied, SHOWN[claim])
    assert "the page" in said(copied).replace(UNCHECKED, "")


PROVED = {
    "the class of a proved part": (shown(1, "profile", **{"class": 5}), "class 5 wins from 0.65"),
    "the start of a proved part": (shown(1, "profile", **{"from": 0.65}), "class 3 wins from 0.65 to 1.0"),
    "the end of a proved part": (shown(0, "profile", to=0.06), "class 8 wins from 0.0 to 0.06"),
    "a proved part more": (answer(1, profile=[PART | {"from": 0.4, "to": 0.5}]), "class 3 wins from 0.4 to 0.5"),
    "a very short one": (answer(1, profile=[PART | {"from": 0.4, "to": 0.4}]), "class 3 wins from 0.4 to 0.4"),
    "a part that a browser takes for proved": (
        answer(1, profile=[{"from": 0.4, "to": 0.5, "class": 3, "proved": []}]),
        "class 3 wins from 0.4 to 0.5",
    ),
    "where a counterexample is": (shown(1, "counterexample", strength=0.6), "class 3 wins at strength 0.6"),
    "the class of a counterexample": (shown(1, "counterexample", **{"class": 5}), "class 5 wins at strength"),
    "a counterexample that is the label": (
        answer(1, counterexample=COUNTEREXAMPLE | {"strength": 0.5, "class": 8}),
        "class 8 wins at strength 0.5",
    ),
    "what is predicted": (answer(1, predicted=3), "class 3 is predicted, by the certificate it is 8"),
}


@pytest.mark.parametrize("claim", PROVED)
def test_what_the_page_shows_is_compared_with_the_certificate(copied, said, claim):
    change, expected = PROVED[claim]
    changed_page(copied, change)
    assert f"PROVES LESS: {expected}" in (told := said(copied))
    assert "the evidence says that its certificate holds" in told


def test_a_profile_without_a_certificate_rests_on_the_tool(copied):
    changed_page(copied, answer(3, profile=[PART | {"from": 0.0, "to": 1.0}]))
    found = recheck(copied)
    assert found.returncode == 3
    assert "1 claims have no certificate" in found.stdout


def test_a_part_may_reach_into_a_gap_and_no_further():
    proof = Proven([(0.0, 0.5, 1), (0.5, 0.5 + GAP, -1), (0.5 + GAP, 1.0, 2)])
    assert proof.wins(1, 0.0, 0.5 + GAP / 2)
    assert not proof.wins(1, 0.0, 0.5 + 3 * GAP)
    assert proof.wins(2, 0.5, 1.0)
    assert not proof.wins(2, 0.5 - 3 * GAP, 1.0)
    assert not proof.wins(-1, 0.5, 0.5 + GAP)
    assert not Proven([(0.0, 0.2, 1), (0.2, 0.3, -1), (0.3, 1.0, 1)]).wins(1, 0.0, 1.0)


def test_a_witness_shows_one_counterexample():
    proof = Proven([], [0.5, 0.25], 3)
    assert proof.beats(3, 8, [0.5, 0.25])
    assert not proof.beats(3, 8, [0.5, 0.2])
    assert not proof.beats(5, 8, [0.5, 0.25])


@pytest.mark.parametrize("samples", [1, 2, 45, 1000])
def test_bands_are_right_up_to_their_last_digit(samples):
    bands = [[floor(low * 1e6) / 1e6, ceil(high * 1e6) / 1e6] for low, high in confidence(samples)]
    assert is_band(samples, bands)
    for side, number, by in product((0, 1), {0, 1, samples // 2, samples}, (-1e-5, 1e-5)):
        other = [own.copy() for own in bands]
        other[number][side] += by
        assert not is_band(samples, other)


def test_effort_is_the_checkers(copied, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["recheck.py", str(copied), "--effort", "1e-9"])
    assert main() == 1
    assert "item 0, safe: DOES NOT HOLD: cannot be checked: it needs more work" in capsys.readouterr().out


def test_what_is_not_checked_is_said(copied):
    assert recheck(copied).stdout.splitlines()[-1].startswith("not checked: prose")


def test_page_and_evidence_changed_alike_are_refused_by_the_certificate(copied, said):
    """Only the certificate knows that the label is lost before."""
    numbers = {"certified_strength": 0.95, "violated_from": 0.97, "critical_strength": [0.95, 0.97]}
    rows = {}

    def both(found):
        found["Results"]["rows"][1].update(numbers)
        rows["all"] = found["Results"]["rows"]
        for row in found["Claim"]["rows"]:
            row.update(counts(rows["all"], row["strength"]))

    changed_evidence(copied, both)
    evidence = json.loads((copied / "evidence.json").read_text())
    changed_page(copied, lambda said: said.update(evidence=evidence))
    changed_page(copied, answer(1, proved=0.95, lost=0.97))
    assert "item 1, unsafe: PROVES LESS: the label is certified up to 0.95" in said(copied)


@pytest.mark.parametrize("heading", ["Results", "Claim", "Summary"])
def test_a_section_that_nobody_compares_is_refused(copied, heading):
    """A reader would see the first of two sections, where the check looks at the other one."""
    more = {"heading": heading, "asks": "", "sentences": ["All items are certified."], "rows": []}
    evidence, text = copied / "evidence.json", (copied / "evidence.json").read_text()
    evidence.write_text(json.dumps({**json.loads(text), "sections": [more, *json.loads(text)["sections"]]}))
    relist(copied)
    refused(copied)
    evidence.write_text(text)
    changed_page(copied, lambda said: said["evidence"]["sections"].append(more))
    assert "heading" in (told := refused(copied)) or heading in told


def test_rows_that_stand_in_the_evidence_twice_are_refused(copied):
    def change(said):
        said["Coverage"]["rows"].insert(0, {"what": "with a verdict", "count": 999})

    changed_page(copied, lambda said: change(sections(said["evidence"])))
    changed_evidence(copied, change)
    assert "same what" in refused(copied)


def test_a_certificate_is_about_all_that_is_claimed_up_to_its_gaps(copied):
    rows = sections(json.loads((copied / "evidence.json").read_text()))["Results"]["rows"]
    assert 0 < rows[1]["violated_from"] - rows[1]["certified_strength"] < GAP
    assert "item 1, unsafe: holds" in recheck(copied).stdout


@pytest.mark.parametrize(
    "name", ["json.py", "numpy.py", "checker/numpy.py", "checker/shakeproof/checker/struct.py", "notes.txt", "a/b/c"]
)
def test_files_that_are_no_part_of_a_bundle_are_refused_and_not_run(copied, tmp_path, name):
    trap = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\nraise SystemExit(0)\n"
    path = copied / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trap)
    for relisted in (False, True):
        if relisted:
            relist(copied)
        found = subprocess.run(
            [sys.executable, str(copied / "recheck.py")], capture_output=True, text=True, cwd=copied, check=False
        )
        if name == "checker/shakeproof/checker/struct.py" and relisted:
            assert found.returncode == 0  # a file of the checker, which nothing imports by that name
        else:
            assert (found.returncode, found.stderr) == (1, "")
            assert name in found.stdout
        assert not (tmp_path / "ran").exists()


def test_bytecode_and_libraries_do_not_take_the_checkers_place(copied, tmp_path):
    folder = copied / "checker" / "shakeproof" / "checker"
    trap = tmp_path / "certificate.py"
    trap.write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    cached = folder / "__pycache__" / f"certificate.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    py_compile.compile(str(trap), str(cached), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    shutil.copytree(cached.parent, tmp_path / "kept")
    assert "__pycache__" in refused(copied)
    relist(copied)
    assert "is no part of a bundle" in refused(copied)
    (folder / "certificate").mkdir()
    (folder / "certificate" / "__init__.py").write_text(trap.read_text())
    relist(copied)
    assert "is no part of a bundle" in refused(copied)
    assert not (tmp_path / "ran").exists()


def test_links_and_names_that_lead_elsewhere_are_refused(copied, tmp_path):
    image = min(copied.glob("images/*"))
    elsewhere = shutil.move(image, tmp_path / image.name)
    os.symlink(elsewhere, image)
    assert "is no plain file or folder" in refused(copied)
    image.unlink()
    manifest = json.loads((copied / "manifest.json").read_text())
    digest = manifest["files"].pop(f"images/{image.name}")
    for name in (str(elsewhere), f"../{Path(elsewhere).name}"):
        there = {**manifest, "files": {**manifest["files"], name: digest}, "images": {image.stem: name}}
        (copied / "manifest.json").write_text(json.dumps(there))
        assert "is in the manifest, but not in the folder" in refused(copied)
    os.symlink(tmp_path, copied / "folder")
    assert "is no plain file or folder" in refused(copied)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("manifest.json", '{"files": {}, "models": {}, "images": {}}', "lists no files"),
        ("manifest.json", "[]", "is not written as a bundle must be"),
        ("evidence.json", '{"sections": [], "sections": []}', "has a key twice"),
        ("evidence.json", '{"sections": [NaN]}', "has the number NaN"),
        ("evidence.json", '{"sections": []}', "is not written as a bundle must be"),
        ("report.html", "<html></html>", "does not have its data once"),
    ],
)
def test_what_is_no_bundle_is_said_in_a_line(copied, said, file, text, expected):
    (copied / file).write_text(text)
    if file != "manifest.json":
        relist(copied)
    line = said(copied)
    assert expected in line
    assert line.count("\n") == 1


def test_another_bundle_is_checked_with_the_own_checker(copied, bundle):
    """Nothing of the bundle is run: neither with a bundle's own script, nor with an installed one."""
    path = copied / "checker" / "shakeproof" / "checker" / "certificate.py"
    path.write_text("raise SystemExit(0)\n")
    relist(copied)
    for script in ([str(bundle / "recheck.py")], ["-m", "shakeproof.report.recheck"]):
        found = subprocess.run([sys.executable, *script, str(copied)], capture_output=True, text=True, check=False)
        assert "3 of 3 certificates hold" in found.stdout
        assert found.returncode == 0


def test_by_bounds_a_certificate_that_proves_less_than_the_claim_is_not_counted(tmp_path):
    """A witness shows that the label is lost; nothing in it proves how far the label wins before."""
    shutil.copy(demo.MODEL, tmp_path / "signs.onnx")
    network = sp.load(tmp_path / "signs.onnx")
    path, label = next(own for own in demo.images() if own[0].stem == "warning.1")
    picture = replace(read_image(str(path)).fitted(network.picture()), name="warning.1", label=label)
    answer = sp.profile(network, picture, "haze:colour=0.8", method="bounds", timeout=HANGING)
    assert (answer.status, answer.method) == ("unsafe", "bounds")
    assert answer.certified_strength > 0.1
    keep(tmp_path / "s.db", "Signs", network, [answer], Settings(method="bounds"), certificates=True)
    made = run("report", tmp_path / "s.db", "--bundle", tmp_path / "bundle")
    assert made.returncode == 0
    assert "0 of 1 certificates hold, 1 prove less than is claimed" in made.stdout
    counts = sections(json.loads((tmp_path / "bundle" / "evidence.json").read_text()))["Coverage"]["rows"]
    assert {row["count"] for row in counts if row["what"].startswith("certificate accepted")} == {0}
    found = recheck(tmp_path / "bundle")
    assert found.returncode == 3
    assert "item 0, unsafe: PROVES LESS: the label is certified up to" in found.stdout


def test_a_certificate_of_another_requirement_shows_nothing_about_a_label(folder):
    """The label is among many classes at all strengths, and does not win at all of them."""
    model = folder / "signs.onnx"
    network = sp.load(model)
    path, label = next(own for own in demo.images() if own[0].stem == "warning.1")
    blur, ends = "haze:colour=0.8", {"certified_strength": 1.0, "violated_from": None}
    assert sp.profile(network, str(path), blur, label=label).status == "unsafe"
    easier = sp.profile(network, str(path), blur, label=label, require=f"top:k={network.classes - 1}")
    assert easier.status == "safe"
    packed = certificate(network, easier)
    header, _ = checker.unpack(packed)
    about = {key: header[key] for key in ("model_sha256", "image_sha256", "perturbation", "label", "arithmetic")}
    row = (
        about | ends | {"requirement": "label", "strength": 1.0, "verdict": "safe", "details_sha256": detailed(header)}
    )
    answer = {"profile": [], "counterexample": None, "predicted": label}
    found = examined(row, answer, packed, model.read_bytes())
    assert found.refused
    assert "requirement is 'top:k=" in found.sentence
