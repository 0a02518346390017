"""The Dask engine: the same store, the same answers, whatever happens to workers; and no file but by content."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from campaign.running import QUICK, SLOW, SLOWLY, desk_of, essence, written

from shakeproof import demo
from shakeproof.campaign import Ledger, Pool, Store, workers
from shakeproof.errors import InputError

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two worker processes that live in a folder of their own."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as made:
        os.chdir(before)
        yield made


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    with desk_of(written(folder)) as desk, Pool(1) as pool:
        pool.run(desk, lambda standing: None)
    return essence(folder / "c.db")


def killed_midway(cluster, desk) -> threading.Thread:
    """Kills a worker process as soon as the first answers are there."""
    victim = next(iter(cluster.workers.values())).pid

    def kill() -> None:
        while not desk.statuses:
            time.sleep(0.01)
        os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def test_models_go_to_workers_by_content_and_a_killed_worker_costs_nothing(cluster, expected, tmp_path, monkeypatch):
    """The model's name means nothing where the workers are."""
    shutil.copy(demo.MODEL, tmp_path / "m.onnx")
    file = written(tmp_path, more="[analysis]\ntimeout = 600\n")
    file.write_text(file.read_text().replace(str(demo.MODEL), "m.onnx"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shakeproof.campaign.desk.FEWEST", 2)
    with desk_of(tmp_path / "c.toml", jobs=2) as desk, workers("dask", 2, cluster.scheduler_address) as pool:
        assert pool.jobs == 2
        thread = killed_midway(cluster, desk)
        pool.run(desk, lambda standing: None)
        thread.join()
        assert (desk.ledger.campaign().answered, desk.ledger.campaign().failed) == (16, 0)
    assert essence(tmp_path / "c.db") == expected


def test_one_profile_in_windows_on_all_workers(cluster, tmp_path):
    kernel = "motion-blur:size=9,angle=45"
    for name, more in (("whole", ""), ("cut", "[analysis]\nwindows = 8\n")):
        with (
            desk_of(written(tmp_path, (kernel,), images=2, more=more, name=name), jobs=2) as desk,
            workers("dask", 2, cluster.scheduler_address) as pool,
        ):
            pool.run(desk, lambda standing: None)
            assert desk.statuses.total() == 2
            assert not desk.parts
    assert essence(tmp_path / "whole.db") == essence(tmp_path / "cut.db")


def test_windows_on_local_workers(expected, tmp_path):
    with desk_of(written(tmp_path, more="[analysis]\nwindows = 3\n"), jobs=2) as desk, Pool(2) as pool:
        pool.run(desk, lambda standing: None)
    assert essence(tmp_path / "c.db") == expected
    with Store.open(tmp_path / "c.db") as opened:
        assert opened.campaign().answered == 4 * len(QUICK)


@pytest.fixture
def processes(tmp_path):
    """A scheduler and a worker, each a process."""
    file, dask = tmp_path / "scheduler.json", [sys.executable, "-m", "distributed.cli.dask_{}", "--no-dashboard"]
    options = {
        "scheduler": ("--host", "127.0.0.1", "--port", "0"),
        "worker": ("--nthreads", "1", "--no-nanny"),
    }
    scheduler, worker = (
        subprocess.Popen(
            [*(word.format(name) for word in dask), *words, "--scheduler-file", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        for name, words in options.items()
    )
    while not file.exists() or not file.read_text():
        time.sleep(0.05)
    yield json.loads(file.read_text())["address"], scheduler, worker
    for process in (scheduler, worker):
        process.kill()
        process.wait()


def when_busy(pool, act) -> threading.Thread:
    """Does something as soon as a task is in flight."""

    def wait() -> None:
        while not pool.in_flight:
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_scheduler_that_dies_is_one_line(processes, tmp_path):
    address, scheduler, _ = processes
    with desk_of(written(tmp_path, (SLOW,), images=1, more=SLOWLY)) as desk, workers("dask", 1, address) as pool:
        when_busy(pool, scheduler.kill)
        with pytest.raises(InputError, match="the Dask scheduler is gone; start one, and the same command again"):
            pool.run(desk, lambda standing: None)
    with Ledger.open(tmp_path / "c.db") as ledger:  # nobody works on it any more, and no query is blamed
        left = ledger.connection.execute("SELECT count(*) FROM queries WHERE owner IS NOT NULL OR deaths > 0")
        assert left.fetchone() == (0,)


def test_a_stopped_worker_of_a_cluster_is_noticed(processes, tmp_path, monkeypatch):
    """It has no timeout, and is the only one: that there is no other is said, too."""
    monkeypatch.setattr("shakeproof.campaign.cluster.SILENT", 4.0)
    address, _, worker = processes
    told = []
    with desk_of(written(tmp_path, (SLOW,), images=1, more=SLOWLY)) as desk, workers("dask", 1, address) as pool:
        monkeypatch.setattr("shakeproof.campaign.cluster.PATIENCE", 2.0)
        when_busy(pool, lambda: worker.send_signal(signal.SIGSTOP))
        with pytest.raises(InputError, match="has no workers any more"):
            pool.run(desk, told.append)
    assert any("gave no sign of life for 4 s" in notice for notice in told[-1].notices)


def test_where_no_cluster_is_that_is_said(monkeypatch):
    monkeypatch.setattr("shakeproof.campaign.cluster.PATIENCE", 1.0)
    with pytest.raises(InputError, match=r"tcp://127.0.0.1:9: no Dask scheduler answers"):
        workers("dask", 1, "tcp://127.0.0.1:9").__enter__()
