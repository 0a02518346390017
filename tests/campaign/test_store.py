"""The store: what comes back is what went in, by content; and what is wrong with a file is said in one line."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.digests import question_digest
from shakeproof.errors import InputError
from shakeproof.store import (
    LEASE,
    STORED_COLUMNS,
    DrawnCurve,
    Item,
    NamedRequirement,
    Store,
    StoreWriter,
    certified,
    drawn,
    finding,
    flat,
    paper_table,
    schema,
)
from shakeproof.store import connection as store_connection
from shakeproof.store.flat import with_claim
from shakeproof.store.schema import ADDED, APPLICATION, TABLES, VERSION, add_checksum_function, add_checksums
from shakeproof.store.tables import KINDS

PERTURBATIONS = ("motion-blur:size=9,angle=90", "sharpen:size=4,padding=zeros,clip=0..1", "haze:colour=0.3")
SETTINGS = sp.Settings(method="exact")


@pytest.fixture(scope="module")
def results(demo_network) -> list[sp.Result]:
    pictures = [str(path) for path, _ in demo.images()[:4]]
    return sp.profile(demo_network, pictures, PERTURBATIONS, method="exact")


def asked(writer: StoreWriter, network, results, settings=SETTINGS, toml="[campaign]", strengths=(0.5, 1.0)) -> int:
    model, own = writer.add_model(network, settings)
    items = []
    for result in results:
        query = result.query
        image, pixels = writer.add_image(query.image)
        question = question_digest(own, pixels, query.image.label, query.perturbation, settings)
        items.append(
            Item(model, image, writer.add_perturbation(query.perturbation), question, (float(max(strengths)),))
        )
    return writer.begin("signs", "signs.toml", toml, NamedRequirement("R1", "blur"), strengths, settings, items)


@pytest.fixture
def store(tmp_path, demo_network, results) -> Path:
    with StoreWriter.open(tmp_path / "s.db") as writer:
        campaign = asked(writer, demo_network, results)
        waiting = writer.waiting(campaign, None, None)
        found = [
            finding(own.query, demo_network, result, "signs.onnx", certificates=number == 0)
            for number, (own, result) in enumerate(zip(waiting, results, strict=True))
        ]
        writer.add(found, None)
        writer.certify([certified(waiting[0].query, demo_network, results[0], 60.0)], 60.0)
    return tmp_path / "s.db"


def test_answers_come_back_as_they_were(store, demo_network, results):
    with Store.open(store) as opened:
        (campaign,) = opened.campaigns()
        assert (campaign.asked, campaign.answered, campaign.failed, campaign.missing) == (12, 12, 0, 0)
        assert (campaign.requirement.id, campaign.strengths) == ("R1", (0.5, 1.0))
        profiles = list(opened.profiles())
    assert not Path(f"{store}-wal").exists()  # one file
    for profile, result in zip(profiles, results, strict=True):
        assert profile.record == replace(result.record, model=profile.model.name)
        assert (profile.image.pixels == result.query.image.pixels.numpy()).all()
        assert profile.perturbation == result.query.perturbation
        assert profile.perturbation.kernel == result.query.perturbation.kernel
        assert profile.perturbation.offset(0.5) == result.query.perturbation.offset(0.5)
        image = torch.from_numpy(profile.image.pixels)
        assert (profile.perturbation.apply(image).image(0.7) == result.query.perturbation.apply(image).image(0.7)).all()
        assert profile.label_predicted
    assert profiles[0].model.identity == demo_network.identity
    assert profiles[0].model.class_names == demo_network.class_names
    assert profiles[0].model.image_shape == (3, 32, 32)


def test_curves_are_drawn_closely_and_small(store, results):
    with Store.open(store) as opened:
        for profile, result in zip(opened.profiles(), results, strict=True):
            curve, kept = result.curve, profile.curve
            exact = curve.leads(result.label)
            height = np.ptp(exact[:, kept.rivals])
            for own, rival in zip(kept.leads.T, kept.rivals, strict=True):
                assert np.abs(np.interp(curve.z, kept.z, own) - exact[:, rival]).max() <= 1.1e-3 * height
            assert (kept.margin < 0).any() == (curve.margin(result.label) < 0).any()
            assert kept.bridged.sum() == curve.bridged.sum()
    sizes = [len(drawn(result, result.profile).packed()) for result in results]
    assert max(sizes) < 2000


def test_a_drawn_curve_keeps_bridges_and_crossings():
    z, leads = np.array([0.0, 0.25, 0.5, 1.0]), np.array([[2.0, 1], [1, 3], [-1, 2], [-2, 2]])
    curve = DrawnCurve(z, np.array([4, 2]), leads, np.array([False, True, False]))
    again = DrawnCurve.unpacked(curve.packed())
    assert (again.z == z).all()
    assert np.abs(again.leads - leads).max() < 1e-4
    assert again.rivals.tolist() == [4, 2]
    assert again.bridged.tolist() == [False, True, False]


def test_a_certificate_is_kept_with_its_hash(store, results):
    from shakeproof import checker

    with Store.open(store) as opened:
        first, second = list(opened.profiles())[:2]
        assert first.certificate is not None
        assert checker.check(opened.certificate(first.query), demo.MODEL.read_bytes())
        assert second.certificate is None
        assert opened.certificate(second.query) is None


def test_filters(store):
    with Store.open(store) as opened:
        assert len(list(opened.profiles(perturbation="sharpen:*"))) == 4
        assert len(list(opened.profiles(model="*signs.onnx"))) == 12
        assert len(list(opened.profiles(model="other*"))) == 0
        unsafe = list(opened.profiles(status="unsafe"))
        assert 0 < len(unsafe) < 12
        assert {profile.record.status for profile in unsafe} == {"unsafe"}


def test_one_profile_answers_all_strengths(store, demo_network, results):
    """Asking for less is known; asking another way is not."""
    with StoreWriter.open(store) as writer:
        for toml, strengths, settings, missing in (
            ("less", (0.25,), SETTINGS, 0),
            ("other", (1.0,), sp.Settings(method="bounds"), 12),
            ("slower", (1.0,), replace(SETTINGS, memory=1.0, timeout=3.0, whole_curve=True), 0),
        ):
            campaign = asked(writer, demo_network, results, settings, toml, strengths)
            assert len(writer.waiting(campaign, None, None)) == missing
        record = next(iter(writer.profiles())).record
        assert record.strength == 1.0
    for result in results:
        for strength in (0.0, 0.1, 0.5, 1.0):
            again = sp.verify(demo_network, result.query.image, result.query.perturbation, strength)
            assert result.record.status_at(strength) == again.status
    with pytest.raises(InputError, match="this answer covers"):
        record.status_at(1.5)


def test_nobody_knows_where_a_runtime_disagrees(results):
    """Up to where the network was proved is then no safe part of the path."""
    unsure = replace(
        results[0].record, status=sp.Status.UNDECIDED, reason=sp.Reason.RUNTIME_DISAGREES, certified_strength=0.7
    )
    assert unsure.status_at(0.5) is sp.Status.UNDECIDED
    assert replace(unsure, reason=sp.Reason.TIMEOUT).status_at(0.5) is sp.Status.SAFE
    assert replace(unsure, reason=sp.Reason.TIMEOUT).status_at(0.8) is sp.Status.UNDECIDED


def test_where_nothing_is_proved_strength_0_is_not_either(results):
    late = replace(results[0].record, status=sp.Status.UNDECIDED, reason=sp.Reason.TIMEOUT, certified_strength=0.0)
    assert late.status_at(0.0) is sp.Status.UNDECIDED
    assert replace(late, certified_strength=1e-9).status_at(0.0) is sp.Status.SAFE


def test_what_ran_out_of_time_is_asked_again_with_more(tmp_path, demo_network, results):
    late = sp.profile(demo_network, str(demo.images()[0][0]), PERTURBATIONS[0], timeout=1e-6)
    assert late.reason == "timeout"
    with StoreWriter.open(tmp_path / "s.db") as writer:
        campaign = asked(writer, demo_network, [late])
        (own,) = writer.waiting(campaign, 5.0, None)
        writer.add([finding(own.query, demo_network, late, "m", False)], timeout=5.0)
        assert not writer.waiting(campaign, 5.0, None)
        assert not writer.waiting(campaign, 1.0, None)
        assert writer.waiting(campaign, 6.0, None) == writer.waiting(campaign, None, None) == [own]
        assert writer.campaign().answered == 1  # it is kept until there is a better one
        writer.add([finding(own.query, demo_network, results[0], "m", False)], timeout=6.0)
        assert not writer.waiting(campaign, None, None)
        assert writer.waiting(campaign, None, 9.0) == [replace(own, is_answered=True)]  # without a certificate


def test_an_answer_is_not_lost_to_one_that_ran_out_of_time(store, demo_network):
    """A certificate is asked for, with too little time for it: what was known is known still, as it was."""
    late = sp.profile(demo_network, str(demo.images()[0][0]), PERTURBATIONS[0], timeout=1e-6)
    with StoreWriter.open(store) as writer:
        campaign, before = writer.campaign().id, [profile.record for profile in writer.profiles()]
        waiting = writer.waiting(campaign, 5.0, 9.0)
        query = waiting[0].query
        writer.add([finding(query, demo_network, late, "m", True)], timeout=5.0)
        assert [profile.record for profile in writer.profiles()] == before
        assert query not in [item.query for item in writer.waiting(campaign, 5.0, 9.0)]  # until there is more time
        assert writer.waiting(campaign, 6.0, 9.0) == waiting
        assert writer.campaign().failed == 0


def test_a_certificate_goes_with_the_answer_that_it_is_of(store, demo_network, results):
    with StoreWriter.open(store) as writer:
        first = next(iter(writer.profiles()))
        assert first.certificate is not None
        writer.add([finding(first.query, demo_network, results[0], "m", False)], None)
        assert writer.certificate(first.query) is None


def test_nobody_takes_what_another_works_on(tmp_path, demo_network, results):
    path = tmp_path / "s.db"
    with StoreWriter.open(path) as mine, StoreWriter.open(path) as theirs:
        campaign = asked(mine, demo_network, results)
        queries = [own.query for own in mine.waiting(campaign, None, None)]
        theirs.owner = f"{theirs.owner}1"  # another process of another machine, or of this one
        assert mine.claim(queries[:3], None, None) == queries[:3]
        assert theirs.claim(queries[:5], None, None) == queries[3:5]
        mine.release(queries[:1])
        assert theirs.claim(queries[:3], None, None) == queries[:1]
        mine.add([finding(queries[1], demo_network, results[1], "m", False)], None)
        mine.release()
        assert theirs.claim(queries[:3], None, None) == [queries[2]]
        assert mine.claim(queries[:5], None, None) == []


@pytest.mark.parametrize("jump", [-(10**9), 0, 10**9])
def test_a_silent_owner_loses_its_queries_whatever_the_time_of_day(tmp_path, demo_network, results, monkeypatch, jump):
    """An owner on another machine, whose clock was set: what counts is whether its number changes while we look on."""
    clock = [0.0]
    monkeypatch.setattr("shakeproof.store.writer.now", lambda: clock[0])
    with StoreWriter.open(tmp_path / "s.db") as mine, StoreWriter.open(tmp_path / "s.db") as theirs:
        campaign = asked(mine, demo_network, results)
        queries = [own.query for own in mine.waiting(campaign, None, None)]
        theirs.owner, theirs.beats = "elsewhere 1 1", max(0, int(time.time()) + jump)
        assert theirs.claim(queries, None, None) == queries
        for _ in range(5):  # it counts on
            theirs.renew()
            clock[0] += LEASE / 2
            mine.renew()
            assert mine.claim(queries, None, None) == []
        clock[0] += LEASE + 1  # it does not any more
        mine.renew()
        assert mine.claim(queries, None, None) == queries


def test_what_a_dead_process_claimed_is_free_at_once(tmp_path, demo_network, results):
    path = tmp_path / "s.db"
    claims = (
        "import sys\nfrom shakeproof.store import StoreWriter\n"
        f"StoreWriter.open({str(path)!r}).claim([1, 2], None, None)\nprint('done', flush=True)\nsys.stdin.read()\n"
    )
    with StoreWriter.open(path) as writer:
        asked(writer, demo_network, results)
        other = subprocess.Popen([sys.executable, "-c", claims], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdout.readline() == b"done\n"
        writer.renew()
        assert writer.claim([1, 2], None, None) == []
        other.kill()
        other.wait()
        writer.renew()
        assert writer.claim([1, 2], None, None) == [1, 2]


def test_errors_are_no_answers_and_can_be_asked_again(tmp_path, demo_network, results):
    with StoreWriter.open(tmp_path / "s.db") as writer:
        campaign = asked(writer, demo_network, results[:2])
        first, second = (own.query for own in writer.waiting(campaign, None, None))
        writer.fail(first, "crash", "three workers died of it")
        writer.fail(second, "timeout", "stopped after 5 s", timeout=5.0)
        assert not writer.waiting(campaign, 5.0, None)
        assert [own.query for own in writer.waiting(campaign, None, None)] == [second]
        assert [(error.kind, error.query) for error in writer.errors()] == [("crash", first), ("timeout", second)]
        assert (writer.campaign().answered, writer.campaign().failed) == (0, 2)
        writer.forget_errors(campaign)
        assert [own.query for own in writer.waiting(campaign, None, None)] == [first, second]


def said_of(path: Path, opener=Store) -> str:
    with pytest.raises(InputError) as caught:
        list(opener.open(path).profiles())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_newer_store_is_refused(store):
    with sqlite3.connect(store) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = store.read_bytes()
    for opener in (Store, StoreWriter):
        assert "written by a newer shakeproof" in said_of(store, opener)
    assert store.read_bytes() == before


def test_an_older_store_is_brought_up_to_date(tmp_path):
    """The oldest there can be: a file of ours without any table."""
    path = tmp_path / "s.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    assert "is empty; shakeproof campaign creates a store" in said_of(path)
    with StoreWriter.open(path) as writer:
        assert writer.campaigns() == []
    with Store.open(path) as opened:
        assert opened.campaigns() == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_store_made_before_is_read_and_brought_up_to_date(store, version):
    """The first version had no checksums, the first two no flat rows; later ones may have other columns."""
    with Store.open(store) as opened:
        before = [[one.record for one in opened.profiles()], [*opened.rows()], [*opened.lines()], paper_table(opened)]
    with sqlite3.connect(store) as connection:
        connection.execute(f"ALTER TABLE answers {'DROP COLUMN min_margin' if version == 3 else 'RENAME TO others'}")
        if version < 3:
            connection.execute("DROP TABLE others")
            connection.execute("ALTER TABLE results ADD COLUMN status TEXT NOT NULL DEFAULT ''")
            connection.execute("ALTER TABLE results ADD COLUMN reason TEXT")
        for table, column in ADDED.items():
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column.split()[0]}")
        add_checksum_function(connection)
        add_checksums(connection, ADDED)
        for table in TABLES.keys() - {"answers"} if version == 1 else ():
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        connection.execute(f"PRAGMA user_version = {version}")
    kept = store.read_bytes()
    for opener in (Store, StoreWriter, Store):
        with opener.open(store) as opened:
            profiles = [one.record for one in opened.profiles()]
            assert [profiles, [*opened.rows()], [*opened.lines()], paper_table(opened)] == before
        assert opener is StoreWriter or kept == store.read_bytes()
        kept = store.read_bytes()
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE results SET record = replace(record, 'a', 'b')")
    assert "is damaged" in said_of(store)


@pytest.mark.parametrize("opener", [Store, StoreWriter])
def test_claims_of_another_rule_are_worked_out_anew(store, monkeypatch, opener):
    with Store.open(store) as opened:
        before = [*opened.rows()]
    monkeypatch.setattr(schema, "ANSWERS", schema.ANSWERS.replace(schema.RULE, "another rule"))
    monkeypatch.setattr(store_connection, "ANSWERS", schema.ANSWERS)
    monkeypatch.setattr(schema, "with_claim", lambda answer: {**with_claim(answer), "proved_up_to": -1.0})
    with opener.open(store) as opened:
        changed = [*opened.rows()]
    place = STORED_COLUMNS.index("proved_up_to")
    assert len(changed) == len(before) > 0
    assert {row[place] for row in changed} == {-1.0}


def test_flat_rows_and_lines_say_what_records_do(store):
    """Written from typed columns, they are what they would be if each record were read."""
    with Store.open(store) as opened:
        profiles = [*opened.profiles()]
        for profile, row, line in zip(profiles, opened.rows(), opened.lines(), strict=True):
            answer = with_claim(profile.said)
            assert json.loads(line) == answer
            about = (profile.model.identity, profile.image.digest, profile.certificate, profile.finished)
            assert [*row] == [*flat(answer, STORED_COLUMNS[:-4]), *about]
            assert (answer["proved_up_to"], answer["lost_from"]) == (profile.claim.proved, profile.claim.lost)


@pytest.mark.parametrize(
    "change",
    [
        "answers SET lost_from = 0.0 WHERE lost_from IS NULL",
        "answers SET proved_up_to = proved_up_to * (1 - 2e-16)",
        "answers SET verdict = 'safe'",
        "queries SET image = 1",
        "items SET query = 1",
        "results SET curve = x'00'",
    ],
)
def test_a_changed_value_is_noticed_before_it_is_read(store, change):
    with sqlite3.connect(store) as connection:
        connection.execute(f"UPDATE {change}")
    with Store.open(store) as opened, pytest.raises(InputError, match="is damaged"):
        paper_table(opened) if "results" not in change else [*opened.lines()]


@pytest.mark.parametrize("strengths", [(), (1.0,), (0.0, 0.05, 0.3, 0.5, 1.0)])
def test_a_table_counts_each_answer_by_its_claim(tmp_path, demo_network, results, strengths):
    with StoreWriter.open(tmp_path / "s.db") as writer:
        asked(writer, demo_network, results, strengths=strengths or (1.0,))
        writer.connection.execute("UPDATE campaigns SET strengths = ?", (json.dumps(strengths),))
        waiting = writer.waiting(1, None, None)
        pairs = zip(waiting[1:], results[1:], strict=True)  # the first ends in an error
        writer.add([finding(own.query, demo_network, result, "m", False) for own, result in pairs], None)
        writer.fail(waiting[0].query, "crash", "it fell")
        for text, row in paper_table(writer).rows.items():
            claims = [one.claim for one in writer.profiles() if str(one.perturbation) == text[1]]
            assert row.misclassified == sum(claim.verdict is sp.Status.MISCLASSIFIED for claim in claims)
            for strength, counts in row.counts.items():
                expected = Counter(KINDS[claim.at(strength)] for claim in claims)
                expected["undecided"] += text[1] == PERTURBATIONS[0]
                assert +counts == +expected
        assert {text for _, text in paper_table(writer).rows} == {*PERTURBATIONS}


def test_other_files_are_left_alone(tmp_path):
    foreign, text, folder = tmp_path / "f.db", tmp_path / "t.db", tmp_path / "d.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE results (a)")
    text.write_text("no database at all\n" * 100)
    folder.mkdir()
    before = foreign.read_bytes()
    for opener in (Store, StoreWriter):
        assert "not a shakeproof store" in said_of(foreign, opener)
        assert "not a shakeproof store" in said_of(text, opener)
        assert "is a folder" in said_of(folder, opener)
    assert "no such store" in said_of(tmp_path / "n.db")
    assert foreign.read_bytes() == before


def test_a_damaged_store_says_so(store):
    data = bytearray(store.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    store.write_bytes(data)
    assert "is damaged" in said_of(store)


def test_a_store_that_cannot_be_written(store):
    """Root may write anything, so the file says no itself: by a folder that is no folder."""
    assert "cannot be opened" in said_of(store / "s.db", StoreWriter)
    opened = StoreWriter(store, sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True, isolation_level=None))
    with opened, pytest.raises(InputError, match="cannot be written; choose a store"):
        opened.renew()


def test_a_locked_store_says_so(store, monkeypatch):
    monkeypatch.setattr("shakeproof.store.connection.PATIENCE", 0.05)
    with sqlite3.connect(store, isolation_level=None) as holder, StoreWriter.open(store) as writer:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match="another program has locked it"):
            writer.renew()
        assert len(list(writer.profiles())) == 12  # reading goes on
        holder.execute("ROLLBACK")


def test_settings_are_kept(store):
    with Store.open(store) as opened:
        settings = next(iter(opened.profiles())).settings
    assert settings["method"] == "exact"
    assert settings["arithmetic"] == "real"
    assert json.dumps(settings)
