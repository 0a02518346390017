"""`shakeproof campaign`, `table` and `results`, as users type them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal

import pytest
from campaign.running import SLOW, SLOWLY, answered, essence, started, workers_of, written
from processes import HANGING, until
from warm import complaint, run

import shakeproof as sp
from shakeproof import Record, demo
from shakeproof.store import Store


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    finished = run("campaign", written(folder), "--jobs", "2", cwd=folder)
    first = finished.stdout.partition("; wrote ")[0]
    assert (finished.returncode, first) == (0, "16 of 16 queries answered (16 in this run)")
    return folder


def test_a_second_run_has_nothing_to_do(done):
    again = run("campaign", done / "c.toml", "--jobs", "1")
    assert again.returncode == 0
    assert "16 of 16 queries answered (0 in this run)" in again.stdout


def test_a_dry_run_counts_and_writes_nothing(done, tmp_path):
    finished = run("campaign", written(tmp_path, images=3), "--dry-run", "--jobs", "2")
    assert finished.stdout.startswith("12 queries: 1 model, 4 perturbations\n12 would take about ")
    assert finished.stdout.endswith("s with 2 jobs on this machine\n")
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]
    before = (done / "c.db").read_bytes()
    more = run("campaign", written(done, images=5, name="more"), "--store", done / "c.db", "--dry-run")
    assert more.stdout.startswith("20 queries: 1 model, 4 perturbations, 16 already answered\n4 would take")
    assert (done / "c.db").read_bytes() == before


def test_a_dry_run_says_what_pictures_would_take_where_the_time_is_short(tmp_path):
    file = written(tmp_path, ["sharpen:size=3"], images=1, more="[analysis]\ntimeout = 1e-9\n")
    said = run("campaign", file, "--dry-run", "--jobs", "2").stdout.splitlines()
    pictures = sp.profile(demo.MODEL, str(demo.images()[0][0]), "sharpen:size=3", pixels="8bit").pieces
    assert re.fullmatch(
        r'queries whose trial did not finish, as 8-bit pictures \(pixels = "8bit"\): '
        rf"about {pictures:,} pictures, about .* on 2 cores",
        said[-1],
    )


def test_the_table(done):
    cells = list(csv.DictReader(io.StringIO(run("table", done / "c.db", "--format", "csv").stdout)))
    assert len(cells) == 8
    with Store.open(done / "c.db") as store:
        for cell in cells:
            own = [p for p in store.profiles() if str(p.perturbation) == cell["perturbation"]]
            statuses = [profile.record.status_at(float(cell["strength"])) for profile in own]
            assert int(cell["verified"]) == statuses.count("safe")
            assert int(cell["unsafe"]) == statuses.count("unsafe") + statuses.count("misclassified")
            assert int(cell["undecided"]) == statuses.count("undecided")
            assert int(cell["misclassified"]) == statuses.count("misclassified")
            assert float(cell["seconds"]) == pytest.approx(sum(profile.record.seconds for profile in own))
    said = json.loads(run("table", done / "c.db", "--format", "json").stdout)
    assert [str(cell["verified"]) for cell in said["cells"]] == [cell["verified"] for cell in cells]
    shown = {kind: run("table", done / "c.db", "--format", kind).stdout for kind in ("text", "markdown", "latex")}
    first = f"{cells[0]['verified']}/{cells[0]['unsafe']}/{cells[0]['undecided']}"
    assert f"| box-blur:size=5 | {first}" in shown["markdown"]
    row = [line for line in shown["markdown"].splitlines() if "box-blur:size=5" in line]
    assert row[0].endswith(f"| {cells[0]['misclassified']} | {float(cells[0]['seconds']):.2f} |")
    assert f"box-blur:size=5 & {first}" in shown["latex"]
    assert "│box-blur:size=5" in shown["text"]
    assert "| signs.onnx | box-blur:size=5" in run("table", done / "c.db", "--format", "markdown", "--by-model").stdout


def test_the_results(done, tmp_path):
    lines = run("results", done / "c.db").stdout.splitlines()
    assert len([Record.from_json(line) for line in lines]) == 16
    unsafe = run("results", done / "c.db", "--status", "unsafe", "--perturbation", "motion*").stdout.splitlines()
    assert 0 < len(unsafe) < 4
    rows = list(csv.DictReader(io.StringIO(run("results", done / "c.db", "--format", "csv").stdout)))
    assert [row["status"] for row in rows] == [json.loads(line)["status"] for line in lines]
    assert [json.loads(row["profile"]) for row in rows] == [json.loads(line)["profile"] for line in lines]
    parquet = pytest.importorskip("pyarrow.parquet")
    written = run("results", done / "c.db", "--format", "parquet", "-o", tmp_path / "r.parquet")
    assert written.stdout == f"wrote {tmp_path / 'r.parquet'}\n"
    assert parquet.read_table(tmp_path / "r.parquet").column("status").to_pylist() == [row["status"] for row in rows]
    assert "name a file with -o" in complaint("results", done / "c.db", "--format", "parquet")


def test_mistakes_are_one_line(done, tmp_path):
    assert "no such store" in complaint("table", tmp_path / "n.db")
    assert "no such store" in complaint("results", tmp_path / "n.db")
    assert "cannot be read" in complaint("campaign", tmp_path / "n.toml")
    assert "has no campaign 7" in complaint("table", done / "c.db", "--campaign", "7")
    assert "not a shakeproof store" in complaint("campaign", done / "c.toml", "--store", done / "c.toml")
    assert "cannot be opened" in complaint("campaign", done / "c.toml", "--store", tmp_path / "no" / "s.db")


def test_a_killed_campaign_goes_on_where_it_was(done, tmp_path):
    """SIGKILL in the midst of it: what was answered is kept, and nothing is left behind that works on."""
    file = written(tmp_path, more="[analysis]\ntimeout = 600\n")
    store = tmp_path / "c.db"
    process = started(file, "--jobs", "1")
    until(lambda: answered(store) > 0)
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    kept = answered(store)
    until(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers))
    again = run("campaign", file, "--jobs", "1")
    assert again.returncode == 0
    assert f"16 of 16 queries answered ({16 - kept} in this run)" in again.stdout
    assert essence(store) == essence(done / "c.db")


def test_an_interrupt_says_how_to_go_on(tmp_path):
    file = written(tmp_path, ("identity", SLOW), images=10, more=SLOWLY)
    process = started(file, "--jobs", "1")
    until(lambda: answered(tmp_path / "c.db") > 0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers hear it, too
    _, err = process.communicate(timeout=HANGING)
    assert process.returncode == 130, err
    assert "shakeproof: interrupted; answers so far are in" in err
    assert "run the same command to continue" in err
    assert 0 < answered(tmp_path / "c.db") < 20
    with Store.open(tmp_path / "c.db") as store:
        assert store.connection.execute("SELECT count(*) FROM queries WHERE owner IS NOT NULL").fetchone() == (0,)


def test_two_campaigns_on_one_store_share_the_work(tmp_path):
    """Two files that ask much the same: each query is answered once."""
    first, second = (written(tmp_path, images=count, name=f"c{count}") for count in (4, 5))
    processes = [started(file, "--store", str(tmp_path / "s.db"), "--jobs", "1") for file in (first, second)]
    outs = [process.communicate(timeout=HANGING)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    own = [int(out.partition(" queries answered (")[2].split()[0]) for out in outs]
    assert sum(own) == 20
    with Store.open(tmp_path / "s.db") as store:
        assert sorted(campaign.answered for campaign in store.campaigns()) == [16, 20]
