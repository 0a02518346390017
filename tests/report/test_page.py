"""What the page holds: names that stay names, and nothing that is called proved and is not."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report.conftest import HOSTILE
from scipy.stats import binom

import shakeproof.report
from shakeproof.report import html_page, safety_case
from shakeproof.report.reported import confidence, lost_from, proved_up_to
from shakeproof.verdict import Reason

ASSETS = Path(shakeproof.report.__file__).parent / "assets"


@pytest.fixture(scope="module")
def page(reported):
    return html_page(reported, safety_case(reported), f"Signs {HOSTILE}")


def contents(page: str) -> dict:
    block = re.search(r'id="contents">([^<]*)</script>', page)
    return json.loads(zlib.decompress(base64.b64decode(block[1])))


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
        assert (answer["proved"] > 0) <= (answer["status"] in ("safe", "unsafe"))
        assert (answer["lost"] is not None) == (answer["status"] == "unsafe")


def test_what_is_proved_agrees_with_the_record_at_every_strength(reported):
    for one in reported.profiles:
        record = one.record
        if isinstance(record.strength, tuple):
            continue
        for strength in np.linspace(0.01, record.strength, 50):
            proved, lost = proved_up_to(record), lost_from(record)
            said = "safe" if proved >= strength else "unsafe" if lost is not None and lost <= strength else "undecided"
            assert said == record.status_at(strength)


@pytest.mark.parametrize("change", [{"rounding": "nominal"}, {"reason": "runtime-disagrees"}, {"reason": "not-finite"}])
def test_what_ignores_rounding_or_is_about_another_network_proves_nothing(reported, change):
    safe = next(one.record for one in reported.profiles if one.record.status == "safe")
    change = {key: Reason(value) if key == "reason" else value for key, value in change.items()}
    assert proved_up_to(safe) == 1.0
    assert proved_up_to(replace(safe, **change)) == 0.0


def test_what_ignores_rounding_is_nowhere_called_certified(reported):
    safe = next(one for one in reported.profiles if one.record.status == "safe")
    nominal = replace(safe, record=replace(safe.record, rounding="nominal"))
    only = replace(reported, profiles=[nominal], errors=[], checks={})
    evidence = safety_case(only)
    (answer,) = contents(html_page(only, evidence, "signs"))["answers"]
    (row,) = next(section["rows"] for section in evidence["sections"] if section["heading"] == "Results")
    assert (answer["status"], answer["proved"], row["verdict"]) == ("undecided", 0.0, "undecided")
    assert "certified" not in {key for at in evidence["sections"][0]["rows"] for key, count in at.items() if count}


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
