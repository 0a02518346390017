"""What the page holds: names that stay names, and nothing that is called proved and is not."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report.conftest import HOSTILE, changed
from scipy.stats import binom

import shakeproof.report
from shakeproof.budget import no_progress
from shakeproof.report import gathered, html_page, safety_case
from shakeproof.report.page import blocks, confidence
from shakeproof.store import Store, StoreWriter, paper_table

STRENGTHS = [0.0, 0.1, 0.5, 1.0]
ASSETS = Path(shakeproof.report.__file__).parent / "assets"


@pytest.fixture(scope="module")
def page(reported):
    return html_page(reported, safety_case(reported), f"Signs {HOSTILE}")


def contents(page: str) -> dict:
    """As the page's program puts it together."""
    said, drawings = (
        unpacked(re.search(rf'id="{name}">([^<]*)</script>', page)[1]) for name in ("contents", "drawings")
    )
    columns = said["answers"]
    answers = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for number, answer in enumerate(answers):
        answer["margins"] = drawings["margins"].get(str(number))
    for number, image in enumerate(said["images"]):
        image["pixels"] = drawings["pixels"].get(str(number))
    return said | {"answers": answers}


def unpacked(block: str) -> dict:
    return json.loads(zlib.decompress(base64.b64decode(block)))


def test_names_stay_names(page):
    """The elements of the page are those of its template, whatever anything is called."""

    class Elements(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = []

        def handle_starttag(self, tag, attributes):
            self.found.append(tag)

    parser = Elements()
    parser.feed(page)
    template = (ASSETS / "page.html").read_text()
    assert "img" not in parser.found
    assert parser.found.count("script") == 1 + len(re.findall('type="application/octet-stream"', page))
    assert set(parser.found) == {*re.findall(r"<([a-z]\w*)", template)}
    assert HOSTILE not in page
    assert any(HOSTILE in image["name"] for image in contents(page)["images"])


def test_the_program_takes_no_text_for_markup():
    program = "".join(path.read_text() for path in ASSETS.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", program)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|WebSocket|sendBeacon", program)
    assert set(re.findall(r"https?://[^\"]*", program)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_browser_is_told_to_fetch_nothing(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_every_answer_is_there_with_what_it_supports(page, reported):
    answers = contents(page)["answers"]
    assert len(answers) == len(reported.profiles) + len(reported.errors)
    assert {answer["status"] for answer in answers} == {"safe", "unsafe", "undecided", "error"}
    for answer in answers:
        assert (answer["proved"] is not None) <= (answer["status"] in ("safe", "unsafe"))
        assert (answer["lost"] is not None) == (answer["status"] == "unsafe")


def said_by_the_page(answer: dict, strength: float) -> str:
    """As the page's program counts it."""
    if answer["lost"] is not None and answer["lost"] <= strength:
        return "violated"
    return "certified" if answer["proved"] is not None and strength <= answer["proved"] else "undecided"


def test_page_evidence_table_and_record_say_the_same_at_every_strength(page, reported, store, tmp_path):
    words = {"safe": "certified", "unsafe": "violated", "misclassified": "violated", "undecided": "undecided"}
    answers = contents(page)["answers"]
    for one, answer in zip(reported.profiles, answers, strict=False):
        end = min(one.claim.ends)
        for strength in np.linspace(0, end, 50):
            assert said_by_the_page(answer, strength) == words[one.record.status_at(strength)]
    copy = Path(shutil.copy(store, tmp_path))
    with StoreWriter.open(copy) as writer:
        writer.connection.execute("UPDATE campaigns SET strengths = ?", (json.dumps(STRENGTHS),))
    with Store.open(copy) as opened:
        cells = [*paper_table(opened).cells()]
        again = gathered(opened, None, checks=False, advance=no_progress)
    counted = {z: Counter() for z in STRENGTHS}
    for cell in cells:
        counted[cell["strength"]].update({key: cell[key] for key in ("verified", "unsafe", "undecided")})
    for row in section(safety_case(again), "Claim")["rows"]:
        table = counted[row["strength"]]
        shown = Counter(said_by_the_page(answer, row["strength"]) for answer in answers)
        assert [row[key] for key in ("certified", "violated", "undecided")] == [
            table[key] for key in ("verified", "unsafe", "undecided")
        ]
        assert shown == Counter({key: row[key] for key in shown})
    assert all(counted[1.0].values())  # of each kind, so that the comparison can fail


@pytest.mark.parametrize("change", [{"rounding": "nominal"}, {"reason": "runtime-disagrees"}, {"reason": "not-finite"}])
def test_what_ignores_rounding_or_is_about_another_network_proves_nothing(reported, change):
    safe = next(one for one in reported.profiles if one.record.status == "safe")
    other = changed(safe, **change)
    assert safe.claim.proved == 1.0
    for claim in (other.claim, other.record.claim):
        assert (claim.verdict, claim.proved, claim.lost) == ("undecided", None, None)


def test_what_ignores_rounding_is_nowhere_called_certified(reported):
    safe = next(one for one in reported.profiles if one.record.status == "safe")
    only = replace(reported, profiles=[nominal(safe)], errors=[], checks={})
    evidence = safety_case(only)
    (answer,) = contents(html_page(only, evidence, "signs"))["answers"]
    (row,) = section(evidence, "Results")["rows"]
    assert (answer["status"], answer["proved"], row["verdict"]) == ("undecided", None, "undecided")
    assert "certified" not in {key for at in evidence["sections"][0]["rows"] for key, count in at.items() if count}


def nominal(one):
    return changed(one, rounding="nominal")


def section(evidence: dict, heading: str) -> dict:
    return next(own for own in evidence["sections"] if own["heading"] == heading)


def test_a_nominal_loss_is_what_the_runtime_showed(reported):
    """The critical strength of such an answer was not proved; the counterexample was run."""
    unsafe = next(one for one in reported.profiles if one.record.status == "unsafe" and one.record.critical_strength)
    witness = unsafe.said["counterexample"]["strength"]
    assert unsafe.claim.lost == unsafe.record.critical_strength[1] < witness
    assert (nominal(unsafe).claim.proved, nominal(unsafe).claim.lost) == (None, witness)
    assert nominal(unsafe).claim.critical == (0.0, witness)


def test_a_page_of_many_answers_leaves_drawings_out_and_says_so(reported):
    def size(room: int) -> int:
        return sum(map(len, blocks(reported, evidence, room).values()))

    evidence = safety_case(reported)
    least, most = size(0), size(10**7)
    room = (least + most) // 2
    assert least < size(room) <= room
    drawings = unpacked(blocks(reported, evidence, room)["drawings"])
    assert 0 < len(drawings["margins"]) < sum(one.curve is not None for one in reported.profiles)
    assert any(text.startswith("Left out, to keep the page small") for text in drawings["notices"])


def test_margins_and_pixels_are_kept_closely_enough_to_be_drawn(page, reported):
    blocks = {
        name: zlib.decompress(base64.b64decode(data))
        for name, data in re.findall(r'id="((?:pictures|curves)\d+)">([^<]*)</script>', page)
    }

    def levels(place):
        kept = np.frombuffer(
            blocks[place["block"]], "<u2" if place["bits"] == 16 else "u1", place["count"], place["at"]
        )
        return place["low"] + (place["high"] - place["low"]) * kept / (2 ** place["bits"] - 1)

    said = contents(page)
    for one, answer in zip(reported.profiles, said["answers"], strict=False):
        kept = levels(said["images"][answer["image"]]["pixels"])
        assert np.abs(kept - one.image.pixels.ravel()).max() < 1 / 1000
        assert (answer["margins"] is None) == (one.curve is None)
        if one.curve is not None:
            leads = levels(answer["margins"]["leads"]).reshape(one.curve.leads.shape)
            assert np.abs(leads - one.curve.leads).max() <= 1e-4 * np.ptp(one.curve.leads)


def test_confidence_holds_as_often_as_it_says():
    """Clopper and Pearson's bounds miss a share from either side at most once in forty times, whatever the share."""
    samples = 45
    bands = confidence(samples)
    assert (bands[0][0], bands[-1][1]) == (0.0, 1.0)
    assert all(low < hits / samples < high for hits, (low, high) in enumerate(bands) if 0 < hits < samples)
    hits = np.arange(samples + 1)
    for share in np.linspace(0.001, 0.999, 199):
        chance = binom.pmf(hits, samples, share)
        too_low = sum(c for c, (low, _) in zip(chance, bands, strict=True) if share < low)
        too_high = sum(c for c, (_, high) in zip(chance, bands, strict=True) if share > high)
        assert max(too_low, too_high) <= 0.025 + 1e-12
