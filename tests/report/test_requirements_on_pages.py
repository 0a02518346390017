"""Requirements in a report: judged as the campaign judges them, and found again from the certificates of a bundle."""

from __future__ import annotations

import json
import shutil
import sqlite3
from itertools import product
from random import Random

import pytest
from campaign.running import run_here
from cli.conftest import recheck, sections
from warm import run

from shakeproof import demo
from shakeproof.proof import Claim, Status
from shakeproof.report import recheck as rechecking
from shakeproof.store import CampaignRequirement, Store, judged
from shakeproof.store.judging import PictureCounts, judge, status_of

FILE = """
name = "Signs"
models = ["signs.onnx"]
certificates = true
images.paths = ["stop.png", "limit-30.png", "keep-right.png"]
perturbations = ["motion-blur:size=5,angle=90"]
[[requirement]]
id = "R-1"
text = "Short shakes do no harm."
strength = 0.1
share = 0.1
[[requirement]]
id = "R-2"
require = "label:lead=0.25"
perturbations = ["haze:colour=0.8", "motion-blur:size=5,angle=90"]
[[requirement]]
id = "R-3"
require = "never:classes=4"
strength = 0.1
share = 0.95
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("required")
    shutil.copy(demo.MODEL, folder / "signs.onnx")
    for name in ("stop", "limit-30", "keep-right"):
        shutil.copy(demo.FOLDER / "images" / f"{name}.1.png", folder / f"{name}.png")
    (folder / "c.toml").write_text(FILE)
    run_here(folder / "c.toml")
    return folder / "c.db"


@pytest.fixture(scope="module")
def bundle(store):
    made = run("report", store, "-o", store.parent / "r.html", "--bundle", store.parent / "bundle")
    assert made.returncode == 0, made.stderr
    return store.parent / "bundle"


def entries(bundle) -> list[dict]:
    return sections(json.loads((bundle / "evidence.json").read_text()))["Requirements"]["rows"]


def test_the_evidence_says_what_the_campaign_judges(store, bundle):
    with Store.open(store) as opened:
        found = judged(opened)
    assert [one.outcome.value for one in found] == ["MET", "NOT MET", "NOT SHOWN"]
    for one, entry in zip(found, entries(bundle), strict=True):
        assert (entry["id"], entry["judgement"], entry["why"]) == (one.requirement.id, one.outcome.value, one.sentence)
        counts = [entry[key] for key in ("hold", "fail", "undecided", "fail at strength 0")]
        assert PictureCounts(*counts) == one.counts
    assert [entry["by certificates"] for entry in entries(bundle)] == ["MET", "NOT MET", "NOT SHOWN"]


def test_a_requirement_leads_to_its_items_and_their_certificates(bundle):
    said = sections(json.loads((bundle / "evidence.json").read_text()))
    items = {row["item"]: row for row in said["Results"]["rows"]}
    for entry in said["Requirements"]["rows"]:
        pictures = [row for row in said["Argument"]["rows"] if row["id"] == entry["id"]]
        assert len(pictures) == 3
        for row in pictures:
            own = [items[number] for number in row["items"]]
            assert [item["perturbation"] for item in own] == entry["perturbations"]
            assert {(item["image_sha256"], item["requirement"]) for item in own} == {
                (row["image_sha256"], entry["requirement"])
            }
            assert row["certificates"] == [item["certificate_sha256"] for item in own]
            assert all((bundle / "certificates" / f"{digest}.cert").exists() for digest in row["certificates"])


def test_a_recheck_finds_the_same(bundle):
    done = recheck(bundle)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    for entry in entries(bundle):
        judgement = entry["judgement"]
        assert f"requirement {entry['id']}: {judgement}; by certificates alone, {judgement}" in done.stdout


CHANGES = {
    "its judgement": lambda one: one.update(judgement="MET"),
    "its counts": lambda one: one.update({"hold": one["hold"] + 1, "fail": one["fail"] - 1}),
    "its counts, and the bounds that follow": lambda one: one.update(
        {"hold": one["hold"] + 1, "fail": one["fail"] - 1}
        | dict.fromkeys(("share at least", "share at most"), (one["hold"] + 1) / 3)
    ),
    "what is undecided": lambda one: one.update({"undecided": 1, "fail": one["fail"] - 1}),
    "its strength": lambda one: one.update(strength=0.01),
    "its bounds": lambda one: one.update({"share at least": 0.99}),
    "its perturbations": lambda one: one.update(perturbations=one["perturbations"][1:]),
    "what is required": lambda one: one.update(requirement="label"),
    "what certificates show": lambda one: one.update({"by certificates": "MET"}),
    "how many certificates": lambda one: one.update({"fail by certificates": 0}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_requirement_is_refused(bundle, tmp_path, change):
    """In evidence and page alike, with the manifest made anew."""
    copied = shutil.copytree(bundle, tmp_path / "copy")
    rewritten(copied, lambda said: CHANGES[change](sections(said)["Requirements"]["rows"][1]))
    done = recheck(copied)
    assert done.returncode == 1, done.stdout
    assert "requirement R-2" in done.stdout or "arguments" in done.stdout


def test_a_changed_argument_is_refused(bundle, tmp_path):
    copied = shutil.copytree(bundle, tmp_path / "copy")
    rewritten(copied, lambda said: sections(said)["Argument"]["rows"].pop())
    done = recheck(copied)
    assert done.returncode == 1
    assert "the arguments are not those of the items" in done.stdout


def rewritten(folder, change) -> None:
    """The evidence with a change, as a forger would write it: in the page too, and in the manifest."""
    from cli.test_recheck import changed_page

    said = json.loads((folder / "evidence.json").read_text())
    change(said)
    (folder / "evidence.json").write_text(json.dumps(said))
    changed_page(folder, lambda page: page.update(evidence={**page["evidence"], "sections": said["sections"]}))


def test_answers_left_out_judge_nothing(store, tmp_path):
    words = ("--format", "json", "-o", tmp_path / "e.json", "--no-check", "--quiet", "--status", "safe")
    assert run("report", store, *words).returncode == 0
    said = sections(json.loads((tmp_path / "e.json").read_text()))
    assert said["Requirements"]["rows"] == said["Argument"]["rows"] == []


def test_what_is_not_answered_is_undecided(store, tmp_path):
    """In the evidence as in the campaign; whoever counts again cannot know which pictures these are."""
    copy = shutil.copy(store, tmp_path / "c.db")
    shutil.copy(demo.MODEL, tmp_path / "signs.onnx")
    with sqlite3.connect(copy) as connection:
        for table in ("certificates", "answers", "results"):
            connection.execute(f"DELETE FROM {table} WHERE query IN (SELECT query FROM items WHERE number = 0)")
    run("report", copy, "-o", tmp_path / "r.html", "--bundle", tmp_path / "bundle")
    first = entries(tmp_path / "bundle")[0]
    assert (first["undecided"], first["judgement"]) == (1, "MET")
    assert recheck(tmp_path / "bundle").returncode in (0, 3)


def test_what_was_not_checked_is_not_claimed_of_certificates(store, tmp_path):
    made = run("report", store, "--bundle", tmp_path / "bundle", "--no-check")
    assert made.returncode == 0, made.stderr
    assert {entry["by certificates"] for entry in entries(tmp_path / "bundle")} == {None}
    done = recheck(tmp_path / "bundle")
    assert done.returncode in (0, 3)
    assert "requirement R-1: MET; by certificates alone, MET" in done.stdout


# -- the rule, written twice -------------------------------------------------------------------------------------------


def test_both_judge_alike():
    """The campaign's rule, by scipy, and the bundle's, by the tails of the binomial."""
    seen = set()
    for hold, fail, undecided in product((0, 1, 3, 20, 59, 300), (0, 1, 2, 9), (0, 1, 4)):
        for share, confidence in ((1.0, None), (0.5, 0.5), (0.9, 0.95), (0.95, 0.95), (0.99, 0.999)):
            asked = CampaignRequirement("A", "", "label", (), 1.0, share, confidence)
            one = judge(asked, None, "label", PictureCounts(hold, fail, undecided))
            entry = {
                "share": share,
                "confidence": confidence,
                "share at least": one.at_least,
                "share at most": one.at_most,
            }
            assert rechecking.judgement(entry, hold, fail, undecided) == one.outcome, one
            assert rechecking._are_bounds(entry, hold, fail, undecided)
            for key in ("share at least", "share at most"):
                if 0.001 < entry[key] < 0.99:
                    moved = {**entry, key: entry[key] + 1e-4}
                    assert not rechecking._are_bounds(moved, hold, fail, undecided)
            seen.add(one.outcome.value)
    assert seen == {"MET", "NOT MET", "NOT SHOWN"}


@pytest.mark.parametrize("samples", [300, 1000, 20_000])
@pytest.mark.parametrize("share", [0.9, 0.99, 0.999999])
def test_far_fewer_pictures_than_asked_are_never_enough(samples, share):
    """The tail of the binomial is almost 1 there, though each of its first terms is too small for a float."""
    asked = CampaignRequirement("A", "", "label", ("identity",), 1.0, share, 0.95)
    for hold in (1, samples // 30, samples // 4, samples // 2, samples * 4 // 5):
        one = judge(asked, None, "label", PictureCounts(hold=hold, fail=samples - hold))
        entry = {"share": share, "confidence": 0.95}
        assert rechecking.judgement(entry, hold, samples - hold, 0) == one.outcome.value == "NOT MET"
        assert rechecking._tail(hold, samples, share) > 0.999


def test_both_see_the_same_in_a_picture():
    words = {"safe": "holds", "unsafe": "fails", "undecided": "undecided", "misclassified": "fails at strength 0"}
    random, seen = Random(0), set()
    kinds = (
        ("safe", 1.0, None),
        ("unsafe", 0.3, 0.4),
        ("unsafe", None, 0.9),
        ("undecided", 0.5, None),
        ("undecided", None, None),
        ("misclassified", None, 0.0),
    )
    for _ in range(2000):
        chosen = random.choices(kinds, k=random.randint(1, 3))
        missing, strength = random.random() < 0.2, random.choice((0.0, 0.3, 0.35, 0.4, 0.5, 1.0))
        claims = [Claim(Status(verdict), (1.0,), proved, lost) for verdict, proved, lost in chosen]
        mine = status_of([*claims, *[None] * missing], strength)
        items = [rechecking.shown_of_item(*own, strength) for own in chosen]
        assert rechecking.shown_of_picture(items, missing) == words[mine]
        seen.add(mine.value)
    assert seen == {*words}
