"""Disks that fill up, memory that runs out: one clear line each, and nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from campaign.running import COMMAND, QUICK, answered, essence, no_progress, run_here, scheduler_of, written

from shakeproof.errors import InputError
from shakeproof.parallel import Cluster
from shakeproof.store import Store, StoreWriter

MORE = (*QUICK, "box-blur:size=7", "sharpen:size=7", "motion-blur:size=7,angle=0", "defocus:radius=2")


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, (done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.startswith("shakeproof: ")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    return lines[0]


def campaign(file: Path, *words: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [*COMMAND, "campaign", str(file), "--jobs", "1", "--quiet", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 160 KiB, which can grow."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", folder], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_loses_nothing(tmp_path, small_disk):
    file = written(tmp_path, MORE)
    store = small_disk / "s.db"
    assert f"{store}: the disk is full; make room and start again" in complaint(campaign(file, "--store", str(store)))
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    kept = answered(store)
    assert 0 <= kept < 32
    done = campaign(file, "--store", str(store))
    assert done.returncode == 0, done.stderr
    assert answered(store) == 32


def test_a_file_that_may_not_grow_loses_nothing(tmp_path):
    """As under a quota, or ulimit -f."""
    file = written(tmp_path, MORE)
    said = complaint(campaign(file, limit=100_000))
    assert f"{tmp_path / 'c.db'}: " in said
    assert "start again" in said
    done = campaign(file)
    assert done.returncode == 0, done.stderr
    assert answered(tmp_path / "c.db") == 32


def test_a_worker_without_memory_says_so_and_the_rest_goes_on(tmp_path, monkeypatch):
    """The limit is the kernel's: torch cannot allocate beyond it."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    with Cluster(1) as cluster:
        with scheduler_of(written(tmp_path, ("identity",), images=1)) as scheduler:
            cluster.run(scheduler, no_progress)  # it is ready: all is imported and loaded
        (process,) = (own.pid for own in cluster.local.workers.values())
        used = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(process, resource.RLIMIT_AS, (used, used))
        with scheduler_of(written(tmp_path, ("box-blur:size=9", "sharpen:size=5"), images=1)) as scheduler:
            cluster.run(scheduler, no_progress)
            found = scheduler.writer.campaign()
            assert found.missing == 0
            assert found.answered + found.failed == 2
            for error in scheduler.writer.errors():
                assert error.kind in ("memory", "crash", "internal")


def test_a_store_without_the_right_to_write(tmp_path):
    """Root may write anything but what is mounted to be read."""
    file = written(tmp_path, images=1)
    run_here(file)
    folder = tmp_path / "read-only"
    folder.mkdir()
    before = essence(tmp_path / "c.db")
    made = subprocess.run(["mount", "--bind", tmp_path, folder], check=False, capture_output=True)
    if made.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        assert essence(folder / "c.db") == before  # it can be read
        assert "cannot be written" in complaint(campaign(file, "--store", str(folder / "c.db")))
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_damaged_store_is_left_alone(tmp_path):
    file = written(tmp_path, images=1)
    run_here(file)
    data = bytearray((tmp_path / "c.db").read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (tmp_path / "c.db").write_bytes(data)
    assert "is damaged" in complaint(campaign(file))
    done = subprocess.run([*COMMAND, "table", str(tmp_path / "c.db")], capture_output=True, text=True, check=False)
    assert "is damaged" in complaint(done)


def test_no_changed_byte_goes_unnoticed(tmp_path):
    """SQLite does not notice a digit that has changed. Either the same is read, or the store is called damaged."""
    file = written(tmp_path, images=2)
    run_here(file)
    store, random = tmp_path / "c.db", Random(0)
    before, data = essence(store), store.read_bytes()
    noticed = 0
    for _ in range(150):
        place = random.randrange(len(data))
        store.write_bytes(data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :])
        try:
            assert essence(store) == before
        except InputError:
            noticed += 1
    assert noticed > 30  # the rest is where nothing is kept


def test_a_damaged_page_inside_a_table_is_one_line(tmp_path):
    file = written(tmp_path, images=1)
    run_here(file)
    data = (tmp_path / "c.db").read_bytes()
    place = data.index(b'"status"')  # in an answer
    (tmp_path / "c.db").write_bytes(data[:place] + b'"sTatus"' + data[place + 8 :])
    assert "is damaged" in complaint(campaign(file))
    done = subprocess.run([*COMMAND, "results", str(tmp_path / "c.db")], capture_output=True, text=True, check=False)
    assert "is damaged" in complaint(done)


def test_a_damaged_log_is_said_and_what_is_lost_is_asked_again(tmp_path):
    """As a process leaves it that is killed; SQLite drops damaged pages, and all behind them, without a word."""
    file = written(tmp_path, images=1)
    with StoreWriter.open(tmp_path / "c.db"):  # so that the log stays when the campaign ends
        run_here(file)
        left = tmp_path / "left"
        left.mkdir()
        for name in ("c.db", "c.db-wal"):
            shutil.copy(tmp_path / name, left / name)
    whole = (left / "c.db-wal").read_bytes()
    place = whole.rindex(b'"status"')
    for damaged, lines in ((False, 0), (True, 1)):
        store = tmp_path / f"{damaged}.db"
        shutil.copy(left / "c.db", store)
        log = whole[:place] + b'"sTatus"' + whole[place + 8 :] if damaged else whole
        Path(f"{store}-wal").write_bytes(log)
        done = campaign(file, "--store", str(store))
        assert (done.returncode, answered(store)) == (0, 4)
        assert done.stderr.count("-wal: is damaged; answers in") == lines


def test_a_vanished_model_is_one_line(tmp_path):
    file = written(tmp_path, images=1)
    file.write_text(file.read_text().replace("signs.onnx", "gone.onnx"))
    assert "gone.onnx: cannot read the network" in complaint(campaign(file))
    with Store.open(tmp_path / "c.db") as store:
        assert store.campaigns() == []


def test_a_store_that_somebody_locks_is_one_line(tmp_path):
    file = written(tmp_path, images=1)
    with StoreWriter.open(tmp_path / "c.db") as holder:
        holder.connection.execute("BEGIN EXCLUSIVE")
        script = (
            "import sys; import shakeproof.store.connection as o; o.PATIENCE = 0.2; from shakeproof.cli import main;"
            f" sys.argv = ['shakeproof', 'campaign', {str(file)!r}, '--jobs', '1', '--quiet']; main()"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "another program has locked it" in complaint(done)
        holder.connection.execute("ROLLBACK")
