"""Requirements of campaigns: judged by exact fractions, and from a file to the exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import comb
from xml.etree import ElementTree

import pytest
from campaign.running import run_here
from warm import complaint, run

from shakeproof import demo
from shakeproof.proof import Claim, Status
from shakeproof.store import CampaignRequirement, Store
from shakeproof.store.judging import (
    PictureCounts,
    counts_of,
    judge,
    judged,
    pictures_needed,
    status_of,
    statuses,
)
from shakeproof.store.reader import AskedClaim

SHARES, CONFIDENCES = ("0.5", "0.9", "0.95"), ("0.5", "0.9", "0.95")


def wanted(share: float = 1.0, confidence: float | None = None) -> CampaignRequirement:
    return CampaignRequirement("A", "", "label", ("identity",), 1.0, share, confidence)


def tail(hits: int, samples: int, share: Fraction) -> Fraction:
    """How likely so many hits are, or more."""
    return sum(
        (comb(samples, n) * share**n * (1 - share) ** (samples - n) for n in range(hits, samples + 1)), Fraction(0)
    )


def expected(counts: PictureCounts, share: str, confidence: str) -> str:
    """By Clopper and Pearson's definition, in fractions: a share below the target is refuted, or one from it on."""
    target, doubt, count = Fraction(share), 1 - Fraction(confidence), counts.population
    if not count:
        return "NOT SHOWN"
    if tail(counts.hold, count, target) <= doubt:
        return "MET"
    holding = counts.hold + counts.undecided
    return "NOT MET" if 1 - tail(holding + 1, count, target) < doubt else "NOT SHOWN"


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_the_verdict_is_that_of_exact_fractions(share, confidence):
    """All counts of up to 30 pictures, and some of more: MET and NOT MET where the tails of the binomial say so."""
    seen = set()
    splits = [own for own in product(range(0, 31, 3), repeat=3) if sum(own) <= 30]
    splits += [
        (count - lost, lost - open_, open_) for count in (59, 58, 300) for lost in (0, 1, 9) for open_ in (0, lost)
    ]
    for hold, fail, undecided in splits:
        counts = PictureCounts(hold, fail, undecided, misclassified=hold % 4)
        found = judge(wanted(float(share), float(confidence)), None, "label", counts)
        assert found.outcome == expected(counts, share, confidence), (counts, found)
        assert 0 <= found.at_least <= found.at_most <= 1
        seen.add(found.outcome.value)
    assert seen == {"MET", "NOT MET", "NOT SHOWN"}


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        ((5, 0, 0, 0), "MET"),
        ((5, 0, 0, 3), "MET"),
        ((5, 1, 0, 0), "NOT MET"),
        ((5, 1, 2, 0), "NOT MET"),
        ((5, 0, 1, 0), "NOT SHOWN"),
        ((0, 0, 0, 4), "NOT SHOWN"),
    ],
)
def test_without_a_confidence_it_is_about_the_pictures_themselves(counts, outcome):
    assert judge(wanted(), None, "label", PictureCounts(*counts)).outcome == outcome


def test_how_many_pictures_a_target_takes():
    for share, confidence in product((0.5, 0.9, 0.95), (0.5, 0.9, 0.95)):
        needed = pictures_needed(share, confidence)
        asked = wanted(share, confidence)
        assert judge(asked, None, "label", PictureCounts(hold=needed)).outcome == "MET"
        assert judge(asked, None, "label", PictureCounts(hold=needed - 1)).outcome != "MET"
    assert pictures_needed(0.95, 0.95) == 59


SAFE = Claim(Status.SAFE, (1.0,), 1.0, None)
LATE = Claim(Status.UNSAFE, (1.0,), 0.4, 0.6)
WRONG = Claim(Status.MISCLASSIFIED, (1.0,), None, 0.0)
OPEN = Claim(Status.UNDECIDED, (1.0,), 0.3, None)


@pytest.mark.parametrize(
    ("claims", "strength", "status"),
    [
        ([SAFE, SAFE], 1.0, "safe"),
        ([SAFE, LATE], 1.0, "unsafe"),
        ([SAFE, LATE], 0.6, "unsafe"),
        ([SAFE, LATE], 0.5, "undecided"),  # inside the bracket
        ([SAFE, LATE], 0.4, "safe"),
        ([SAFE, None], 0.4, "undecided"),
        ([LATE, None], 1.0, "unsafe"),
        ([WRONG, WRONG], 1.0, "misclassified"),
        ([WRONG, None], 1.0, "undecided"),  # what is missing may hold, and then the picture fails
        ([WRONG, OPEN], 1.0, "undecided"),
        ([WRONG, None, LATE], 1.0, "unsafe"),
        ([WRONG, SAFE], 1.0, "unsafe"),  # a kernel that blurs at strength 0
        ([None], 1.0, "undecided"),
    ],
)
def test_what_is_shown_of_a_picture(claims, strength, status):
    assert status_of(claims, strength) == status


def test_more_answers_never_take_back_a_judgement():
    """What is undecided of a picture may turn out in any way: MET stays MET, and NOT MET stays NOT MET."""
    others = [Status.SAFE] * 3 + [Status.UNSAFE]
    for claims in product((SAFE, LATE, WRONG, None), repeat=2):
        for share in (0.5, 0.75, 0.8, 1.0):
            early = judge(wanted(share), None, "label", counts_of([*others[: 3 + (share < 1)], status_of(claims, 1.0)]))
            for later in product(*((SAFE, LATE, WRONG) if claim is None else (claim,) for claim in claims)):
                counts = counts_of([*others[: 3 + (share < 1)], status_of(later, 1.0)])
                assert early.outcome in ("NOT SHOWN", judge(wanted(share), None, "label", counts).outcome), (
                    claims,
                    later,
                )


@pytest.mark.parametrize(("share", "confidence"), [(0.9995, 0.99999), (0.123456, 0.5)])
def test_what_was_asked_is_written_with_all_its_digits(share, confidence):
    said = judge(wanted(share, confidence), None, "label", PictureCounts(hold=3)).sentence
    assert f"{share * 100:g} %" in said.rpartition("required: ")[2]
    assert f"confidence {confidence * 100:g} %" in said


def test_only_its_own_perturbations_count_for_a_requirement():
    """And a picture holds only under all of them; pictures are told apart by their pixels."""
    asked = [
        AskedClaim(None, picture, perturbation, "label", "label", claim)
        for picture, perturbation, claim in [
            ("a", "identity", SAFE),
            ("a", "haze:colour=1", LATE),
            ("b", "identity", LATE),
            ("b", "haze:colour=1", SAFE),
        ]
    ]
    assert statuses(wanted(), asked) == {"a": "safe", "b": "unsafe"}
    both = replace(wanted(), perturbations=("identity", "haze:colour=1"))
    assert statuses(both, asked) == {"a": "unsafe", "b": "unsafe"}
    assert statuses(replace(both, strength=0.4), asked) == {"a": "safe", "b": "safe"}
    more = replace(both, perturbations=(*both.perturbations, "box-blur:size=3"), strength=0.4)
    assert statuses(more, asked) == {"a": "undecided", "b": "undecided"}


# -- from a file to the exit code --------------------------------------------------------------------------------------

FILE = """
models = ["{model}"]
images = {{ paths = {paths} }}
{more}
[[requirement]]
id = "MET-1"
text = "Short shakes do no harm."
perturbations = ["motion-blur:size=5,angle=90", "box-blur:size=3"]
strength = 0.05
share = 0.4
"""
NOT_MET = """
[[requirement]]
id = "NOT-MET-1"
text = "Long shakes do no harm."
perturbations = ["motion-blur:size=11,angle=0", "haze:colour=0.8"]
"""
NOT_SHOWN = """
[[requirement]]
id = "NOT-SHOWN-1"
require = "label:lead=0.01 and never:classes=4"
perturbations = ["box-blur:size=3"]
strength = 0.1
share = 0.95
"""


def campaign(folder, text: str, images: int = 5):
    """The command, on a file with these requirements; what it gave, and the store."""
    paths = [str(path) for path, _ in demo.images()[:images]]
    (folder / "c.toml").write_text(text.replace("{model}", str(demo.MODEL)).replace("{paths}", str(paths)))
    done = run("campaign", folder / "c.toml", "--jobs", "1", "--junit", folder / "j.xml")
    return done, folder / "c.db"


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    return campaign(folder, (FILE + NOT_MET + NOT_SHOWN).replace("{more}", "").replace("{{", "{").replace("}}", "}"))


def test_the_command_judges_and_its_exit_code_says_so(three):
    done, store = three
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[2:]] == [
        "MET MET-1",
        "NOT MET NOT-MET-1",
        "NOT SHOWN NOT-SHOWN-1",
    ]
    assert "at least 59 pictures are needed" in done.stdout
    assert done.stdout.splitlines()[2:] == run("table", store).stdout.splitlines()[:3]


def test_test_cases_and_tables_say_the_same(three):
    _, store = three
    with Store.open(store) as opened:
        found = judged(opened)
    cases = {case.get("name"): case for case in ElementTree.parse(store.parent / "j.xml").getroot()}
    for one, tag in zip(found, (None, "failure", "error"), strict=True):
        case = cases[one.requirement.id]
        (ended,) = [child for child in case if child.tag != "system-out"] or [None]
        assert (None if ended is None else ended.tag) == tag
        assert ended is None or (ended.get("type"), ended.get("message")) == (one.outcome.value, one.sentence)
        assert json.loads(case.find("system-out").text) == one.to_json()
    said = json.loads(run("table", store, "--format", "json").stdout)
    assert said["requirements"] == [one.to_json() for one in found]


def test_the_counts_are_those_of_the_answers(three):
    """From the lines of `results`, without the store's own rule."""
    _, store = three
    answers = [json.loads(line) for line in run("results", store).stdout.splitlines()]
    with Store.open(store) as opened:
        for one in judged(opened):
            asked = one.requirement
            of_image: dict[str, list[str]] = {}
            for answer in answers:
                if (answer["requirement"], answer["perturbation"]) in product([asked.require], asked.perturbations):
                    lost, proved = answer["lost_from"], answer["proved_up_to"]
                    bad, good = lost is not None and lost <= asked.strength, (proved or 0) >= asked.strength
                    of_image.setdefault(answer["image"], []).append("fail" if bad else "hold" if good else "undecided")
            assert len(of_image) == 5
            assert {len(found) for found in of_image.values()} == {len(asked.perturbations)}
            counts = [next(w for w in ("fail", "undecided", "hold") if w in found) for found in of_image.values()]
            assert one.counts.fail + one.counts.misclassified == counts.count("fail")
            assert (one.counts.hold, one.counts.undecided) == (counts.count("hold"), counts.count("undecided"))


@pytest.mark.parametrize(
    ("more", "entries", "code"),
    [("", "", 0), ("", NOT_SHOWN, 3), ("[analysis]\ntimeout = 1e-9\n", "", 3), ("", NOT_MET, 1)],
)
def test_exit_codes(tmp_path, more, entries, code):
    text = (FILE + entries).replace("{more}", more).replace("{{", "{").replace("}}", "}")
    assert campaign(tmp_path, text)[0].returncode == code


def test_names_of_classes_and_their_numbers_ask_the_same(tmp_path):
    """And a picture that is named twice is one picture."""
    (tmp_path / "names.txt").write_text("\n".join(demo.CLASSES))
    (tmp_path / "twice.png").write_bytes(demo.images()[0][0].read_bytes())
    paths = [str(demo.images()[0][0]), str(tmp_path / "twice.png")]
    for name, classes in (("a", "limit-30,limit-50"), ("b", "4,5")):
        (tmp_path / f"{name}.toml").write_text(
            f'models = ["{demo.MODEL}"]\nstore = "s.db"\nimages.paths = {paths}\nnetwork.classes = "names.txt"\n'
            f'perturbations = ["box-blur:size=3"]\n[[requirement]]\nid = "N"\nrequire = "never:classes={classes}"\n'
        )
        run_here(tmp_path / f"{name}.toml")
    with Store.open(tmp_path / "s.db") as store:
        assert store.connection.execute("SELECT count(*) FROM queries").fetchone() == (1,)
        for number in (1, 2):
            (found,) = judged(store, number)
            assert found.counts.population == 1
        assert {one.requirement for one in store.profiles(1)} == {"never:classes=limit-30,limit-50"}


def test_networks_that_do_not_classify(tmp_path):
    """A regressor, whose requirement refers to its value at strength 0; it cannot be asked which class wins."""
    text = (
        f'models = ["{demo.ROAD / "steering.onnx"}"]\nimages.paths = ["{demo.ROAD / "road.png"}"]\n'
        'perturbations = ["motion-blur:size=5,angle=90"]\n[[requirement]]\nid = "S"\nstrength = 0.3\n'
    )
    (tmp_path / "s.toml").write_text(f'{text}require = "drift:index=angle,by=20"\n')
    run_here(tmp_path / "s.toml")
    with Store.open(tmp_path / "s.db") as store:
        (found,) = judged(store)
        assert (found.outcome.value, found.counts.hold) == ("MET", 1)
        (profile,) = store.profiles()
        assert profile.curve.rivals.tolist() == [-1]
        assert profile.curve.margin.min() == pytest.approx(profile.record.min_margin, rel=1e-3)
    (tmp_path / "s.toml").write_text(text)
    assert "require something of its outputs" in complaint("campaign", tmp_path / "s.toml")


def test_test_cases_need_requirements(tmp_path):
    (tmp_path / "c.toml").write_text(
        f'models = ["{demo.MODEL}"]\nperturbations = ["identity"]\nimages.paths = ["{demo.images()[0][0]}"]\n'
    )
    assert "has no [[requirement]]" in complaint("campaign", tmp_path / "c.toml", "--junit", tmp_path / "j.xml")
