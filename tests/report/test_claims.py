"""What an answer says at a strength: tables, results, report and evidence take it from one rule."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from warm import complaint, run

import shakeproof as sp
from shakeproof import demo
from shakeproof.proof.result import Record
from shakeproof.proof.verdict import FORMAT, Reason, Status, claim_of
from shakeproof.question import read_image
from shakeproof.settings import Settings
from shakeproof.store import StoreWriter, keep

STRENGTHS = [0.25, 0.5, 1.0]
COUNTED = {"certified": "safe", "violated": "unsafe", "undecided": "undecided"}
# What each of the store's answers says up to these strengths.
EXPECTED = {
    "box-blur:size=3": ["safe", "safe", "safe"],
    "sharpen:size=3": ["undecided", "undecided", "undecided"],  # its time was up
    "haze:colour=0.8+box-blur:size=3": ["undecided", "undecided", "unsafe"],
}


@pytest.fixture(scope="module")
def answers(demo_network):
    path, label = next(own for own in demo.images() if own[0].stem == "warning.1")
    picture = replace(read_image(str(path)).fitted(demo_network.picture()), name="warning.1", label=label)
    more = {"sharpen:size=3": {"timeout": 1e-9}, "haze:colour=0.8+box-blur:size=3": {"timeout": 20}}
    return [sp.profile(demo_network, picture, text, **more.get(text, {})) for text in EXPECTED]


@pytest.fixture(scope="module")
def store(demo_network, answers, tmp_path_factory):
    """One answer is safe, one was not finished, one has a counterexample of two strengths."""
    path = tmp_path_factory.mktemp("claims") / "store.db"
    keep(path, "Signs", demo_network, answers, Settings())
    with StoreWriter.open(path) as writer:
        writer.connection.execute("UPDATE campaigns SET strengths = ?", (json.dumps(STRENGTHS),))
    return path


def test_the_answers_are_the_cases_meant(answers):
    safe, _, two = answers
    assert [answer.status for answer in answers] == ["safe", "undecided", "unsafe"]
    assert two.critical_strength is None
    assert len(two.counterexample.strengths) == 2
    assert safe.record.claim.proved == 1.0


def test_table_report_and_evidence_agree(store, answers, tmp_path):
    inside = max(answers[2].counterexample.strengths)
    expected = dict(EXPECTED)
    expected["haze:colour=0.8+box-blur:size=3"] = ["unsafe" if inside <= z else "undecided" for z in STRENGTHS]
    assert inside < 1  # so that the strength where it is found, and not only the largest, is unsafe
    table = json.loads(run("table", store, "--format", "json").stdout)["cells"]
    words = {"verified": "safe", "unsafe": "unsafe", "undecided": "undecided"}
    shown = {text: [] for text in EXPECTED}
    for cell in table:
        shown[cell["perturbation"]] += [words[key] for key in words if cell[key]]
    assert shown == expected
    assert run("report", store, "--format", "json", "-o", tmp_path / "e.json", "--quiet").returncode == 0
    sections = {own["heading"]: own for own in json.loads((tmp_path / "e.json").read_text())["sections"]}
    for number, row in enumerate(sections["Claim"]["rows"]):
        column = [said[number] for said in expected.values()]
        counts = {word: column.count(status) for word, status in COUNTED.items()}
        assert row == {"strength": STRENGTHS[number], **counts}


def test_results_say_and_choose_by_the_same_verdict(store, answers):
    lines = [json.loads(line) for line in run("results", store).stdout.splitlines()]
    assert [line["verdict"] for line in lines] == ["safe", "undecided", "unsafe"]
    assert [line["proved_up_to"] for line in lines] == [1.0, None, None]
    assert [line["lost_from"] for line in lines] == [None, None, max(answers[2].counterexample.strengths)]
    assert [Record.from_json(line).status for line in lines] == ["safe", "undecided", "unsafe"]
    chosen = run("results", store, "--status", "undecided").stdout.splitlines()
    assert [json.loads(line)["perturbation"] for line in chosen] == ["sharpen:size=3"]


def test_a_line_and_its_record_claim_the_same(answers):
    for answer in answers:
        assert claim_of(answer.to_json()) == answer.record.claim


RECORD = {
    "version": FORMAT,
    "reason": None,
    "rounding": "rigorous",
    "strength": 1.0,
    "certified_strength": 0.0,
    "critical_strength": None,
    "counterexample": None,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"status": Status.SAFE}, ("safe", 1.0, None)),
        ({"status": Status.SAFE, "strength": (1.0, 0.5)}, ("safe", 0.5, None)),
        ({"status": Status.SAFE, "strength": 0.0}, ("safe", 0.0, None)),
        ({"status": Status.SAFE, "rounding": "nominal"}, ("undecided", None, None)),
        ({"status": Status.SAFE, "reason": Reason.NOT_FINITE}, ("undecided", None, None)),
        ({"status": Status.UNDECIDED, "certified_strength": 0.3}, ("undecided", 0.3, None)),
        ({"status": Status.UNDECIDED, "certified_strength": 0.3, "rounding": "nominal"}, ("undecided", None, None)),
        (
            {"status": Status.UNDECIDED, "reason": Reason.RUNTIME_DISAGREES, "certified_strength": 0.3},
            ("undecided", None, None),
        ),
        ({"status": Status.MISCLASSIFIED, "critical_strength": (0.0, 0.0)}, ("misclassified", None, 0.0)),
        (
            {
                "status": Status.UNSAFE,
                "certified_strength": 0.3,
                "critical_strength": (0.3, 0.4),
                "counterexample": {"strength": 0.9},
            },
            ("unsafe", 0.3, 0.4),
        ),
        (
            {"status": Status.UNSAFE, "counterexample": {"strength": (0.2, 0.7)}, "strength": (1.0, 1.0)},
            ("unsafe", None, 0.7),
        ),
        ({"status": Status.UNSAFE, "certified_strength": 0.5, "critical_strength": (0.4, 0.4)}, ("unsafe", 0.4, 0.4)),
        (
            {
                "status": Status.UNSAFE,
                "rounding": "nominal",
                "critical_strength": (0.3, 0.4),
                "counterexample": {"strength": 0.9},
            },
            ("unsafe", None, 0.9),
        ),
    ],
)
def test_the_rule(changed, expected):
    found = claim_of(RECORD | changed)
    assert (found.verdict, found.proved, found.lost) == expected
    _, proved, lost = expected
    for strength in (0.0, 0.2, 0.3, 0.4, 0.7, 0.95, 1.0):
        said = found.at(strength)
        assert (said in ("unsafe", "misclassified")) == (lost is not None and lost <= strength)
        assert (said == "safe") == (
            proved is not None and strength <= proved and not (lost is not None and lost <= strength)
        )


@pytest.mark.parametrize("command", ["table", "results"])
def test_what_is_only_read_needs_no_torch(store, command):
    """Importing it takes longer than a table of 100,000 answers."""
    script = (
        "import sys; from shakeproof.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", script, command, str(store)], capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout


def test_a_record_that_is_none_is_said_in_a_line(store, tmp_path):
    for number, text in enumerate(('{"version": 2}', "[", '{"version": 1}')):
        copy = shutil.copy(store, tmp_path / f"{number}.db")
        with StoreWriter.open(copy) as writer:
            writer.connection.execute("UPDATE results SET record = ?", (text,))
        assert "result" in complaint("results", copy)
