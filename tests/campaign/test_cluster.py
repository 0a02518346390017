"""Workers are Dask's: the same store, the same answers, whatever happens to workers; and no file but by content."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import distributed
import pytest
from campaign.running import QUICK, SLOW, SLOWLY, essence, no_progress, run_here, said_by, scheduler_of, written

import shakeproof as sp
from shakeproof import demo
from shakeproof.errors import InputError
from shakeproof.parallel import Cluster
from shakeproof.parallel.cluster import LOCAL
from shakeproof.store import Store, StoreWriter


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of this machine, as the command starts them."""
    with Cluster(2) as started:
        yield started


@pytest.fixture(scope="module")
def plain(demo_network):
    """What a plain analysis says of the same."""
    pictures = [str(path) for path, _ in demo.images()[:4]]
    results = sp.profile(demo_network, pictures, QUICK)
    return {(result.query.name, str(result.query.perturbation)): result.record for result in results}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    run_here(written(folder))
    return essence(folder / "c.db")


def same(store: Path, plain) -> bool:
    with Store.open(store) as opened:
        found = {(own.image.name, str(own.perturbation)): own.record for own in opened.profiles()}
    assert found.keys() == plain.keys()
    return all(said_by(found[key]) == said_by(plain[key]) for key in plain)


def process_of(cluster: Cluster, address: str) -> int | None:
    """The process of a worker of this machine; None while it is started anew."""
    return next((own.pid for own in cluster.local.workers.values() if own.worker_address == address), None)


def struck(cluster: Cluster, chosen=lambda task: True, how=signal.SIGKILL, over=None) -> threading.Thread:
    """Sends a signal to a worker as soon as it has begun with a task that is chosen; until it is `over`, to each."""

    def strike() -> None:
        struck_at: set[float] = set()
        while not over.is_set() if over else not struck_at:
            for own in [*cluster.in_flight.values()]:
                if own.began is None or own.began in struck_at or not chosen(own.task):
                    continue
                if (process := process_of(cluster, own.address)) is not None:
                    struck_at.add(own.began)
                    os.kill(process, how)
            time.sleep(0.01)

    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    return thread


def test_answers_are_those_of_a_plain_analysis(cluster, tmp_path, plain):
    told = []
    with scheduler_of(written(tmp_path), jobs=2) as scheduler:
        cluster.run(scheduler, told.append)
    assert same(tmp_path / "c.db", plain)
    assert (told[-1].settled, told[-1].total, told[-1].before) == (16, 16, 0)
    assert sum(told[-1].statuses.values()) == 16
    with scheduler_of(written(tmp_path)) as scheduler:  # nothing is left
        cluster.run(scheduler, told.append)
        assert (scheduler.before, scheduler.statuses.total()) == (16, 0)


def test_nobody_else_can_send_work(cluster):
    """The workers obey only who has the credentials that were made for them."""
    address = cluster.local.scheduler_address
    assert address.startswith("tls://127.0.0.1:")
    for named in (address, address.replace("tls", "tcp")):
        with pytest.raises((OSError, TypeError, ValueError)):
            distributed.Client(named, timeout=2, set_as_default=False)


def test_a_worker_that_is_killed_is_replaced(cluster, tmp_path, expected):
    """No query is blamed, and none is lost."""
    with scheduler_of(written(tmp_path, more="[analysis]\ntimeout = 600\n")) as scheduler:
        thread = struck(cluster)
        cluster.run(scheduler, no_progress)
        thread.join()
        assert (scheduler.writer.campaign().answered, scheduler.writer.campaign().failed) == (16, 0)
    assert essence(tmp_path / "c.db") == expected


def test_a_query_that_kills_three_workers_is_an_error_and_the_rest_goes_on(cluster, tmp_path):
    file = written(tmp_path, (SLOW, "identity"), images=1, more=SLOWLY)
    with scheduler_of(file) as scheduler:
        scheduler.alone = {own.query for own in scheduler.queue}
        over = threading.Event()
        thread = struck(cluster, lambda task: str(task.questions[0].perturbation) == SLOW, over=over)
        cluster.run(scheduler, no_progress)
        over.set()
        thread.join()
        (error,) = scheduler.writer.errors()
        assert (error.kind, str(error.perturbation)) == ("crash", SLOW)
        assert "3 workers died of it" in error.message
        assert (scheduler.writer.campaign().answered, scheduler.writer.campaign().failed) == (1, 1)
        assert scheduler.statuses == {"error": 1, "safe": 1}
    with scheduler_of(file) as scheduler:  # it is not tried again
        assert scheduler.is_done()
        scheduler.writer.forget_errors(scheduler.registered.id)
        assert not scheduler.is_done()


def test_a_timeout_is_enforced_from_outside(cluster, tmp_path, monkeypatch):
    """A worker that hangs, as a stopped process does, cannot end by itself."""
    monkeypatch.setattr("shakeproof.parallel.cluster.GRACE", 4.0)
    file = written(tmp_path, (SLOW, "identity"), images=1, more=SLOWLY + "timeout = 1\n")
    with scheduler_of(file) as scheduler:
        scheduler.alone = {own.query for own in scheduler.queue}
        thread = struck(cluster, lambda task: str(task.questions[0].perturbation) == SLOW, how=signal.SIGSTOP)
        cluster.run(scheduler, no_progress)
        thread.join()
        (error,) = scheduler.writer.errors()
        assert (error.kind, scheduler.writer.campaign().answered) == ("timeout", 1)
        more_time = scheduler.writer.waiting(scheduler.registered.id, 2.0, None)
        assert [own.query for own in more_time] == [error.query]


def test_a_stopped_worker_is_noticed_and_replaced_without_a_timeout(tmp_path, plain, monkeypatch):
    monkeypatch.setitem(LOCAL, "distributed.scheduler.worker-ttl", "5 s")
    told = []
    with scheduler_of(written(tmp_path)) as scheduler, Cluster(1) as alone:
        thread = struck(alone, how=signal.SIGSTOP)
        alone.run(scheduler, told.append)
        thread.join()
        assert "gave no sign of life for 5 s; another takes its place" in scheduler.notices[0]
        assert not scheduler.writer.campaign().failed
    assert same(tmp_path / "c.db", plain)


def test_a_certificate_never_costs_an_answer(cluster, tmp_path, plain):
    """The worker that makes one is killed; answers are there before, and stay."""
    file = written(tmp_path)
    file.write_text("certificates = true\n" + file.read_text())
    with scheduler_of(file) as scheduler:
        thread = struck(cluster, lambda task: task.certify)
        cluster.run(scheduler, no_progress)
        thread.join()
        assert scheduler.writer.campaign().answered == 16
        assert all(own.certificate or own.unproved for own in scheduler.writer.profiles())
    assert same(tmp_path / "c.db", plain)


def test_a_certificate_that_takes_too_long_is_asked_for_again_with_more_time(cluster, tmp_path):
    file = written(tmp_path, images=1).read_text()
    for seconds, made in ((1e-9, 0), (1e-9, 0), (60.0, 4)):
        (tmp_path / "c.toml").write_text(f"certificates = true\ncertificate_timeout = {seconds}\n{file}")
        with scheduler_of(tmp_path / "c.toml") as scheduler:
            cluster.run(scheduler, no_progress)
            profiles = list(scheduler.writer.profiles())
            assert len(profiles) == 4
            assert sum(own.certificate is not None for own in profiles) == made
            late, why = scheduler.writer.without_certificates(scheduler.registered.id)
            assert late == 4 - made
            assert made or "its certificate takes longer than 1e-09 s" in why
            assert all((own.unproved is None) == bool(made) for own in profiles)


def another_model(folder: Path) -> Path:
    """The same network with another description, which changes nothing else; no worker has it yet."""
    model = folder / "m.onnx"
    model.write_bytes(demo.MODEL.read_bytes() + b"\x32" + bytes([len(folder.name)]) + folder.name.encode())
    return model


def test_a_model_that_vanishes_leaves_its_queries_open(cluster, tmp_path):
    model = another_model(tmp_path)
    file = written(tmp_path)
    file.write_text(file.read_text().replace(f"['{demo.MODEL}']", f"['{demo.MODEL}', 'm.onnx']"))
    with scheduler_of(file) as scheduler:
        model.unlink()
        cluster.run(scheduler, no_progress)
        assert "m.onnx: cannot read the network" in next(iter(scheduler.unusable.values()))
        found = scheduler.writer.campaign()
        assert (found.asked, found.answered, found.missing, found.failed) == (32, 16, 16, 0)


def test_a_model_that_changes_is_not_taken_for_the_same(cluster, tmp_path):
    model = another_model(tmp_path)
    file = written(tmp_path)
    file.write_text(file.read_text().replace(str(demo.MODEL), "m.onnx"))
    with scheduler_of(file) as scheduler:
        model.write_bytes(model.read_bytes() + b"\x32\x01x")
        cluster.run(scheduler, no_progress)
        assert "has changed since the campaign began" in next(iter(scheduler.unusable.values()))
        assert scheduler.writer.campaign().missing == 16


def test_one_profile_in_windows_on_all_workers(cluster, tmp_path, expected):
    with scheduler_of(written(tmp_path, more="[analysis]\nwindows = 3\n"), jobs=2) as scheduler:
        cluster.run(scheduler, no_progress)
        assert scheduler.statuses.total() == 4 * len(QUICK)
        assert not scheduler.parts
    assert essence(tmp_path / "c.db") == expected


def test_pictures_of_a_path_in_windows_on_all_workers(cluster, tmp_path):
    """Every 8-bit picture, wherever it was run: the answers of one process."""
    eight, kernels = '[analysis]\npixels = "8bit"\n', ("motion-blur:size=9,angle=90", "sharpen:size=3")
    for name, more in (("one", ""), ("cut", "windows = 3\n")):
        file = written(tmp_path, kernels, images=2, more=eight + more, name=name)
        if more:
            with scheduler_of(file, jobs=2) as scheduler:
                cluster.run(scheduler, no_progress)
                assert not scheduler.parts
        else:
            run_here(file)
    one, cut = essence(tmp_path / "one.db"), essence(tmp_path / "cut.db")
    assert len(one) == 4
    assert cut == one


def test_workers_that_cannot_begin_are_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no Python can start like this
    with pytest.raises(InputError, match="worker processes cannot be started"):
        Cluster(1).__enter__()


def test_workers_end_with_whoever_began_them():
    with Cluster(1) as started:
        (process,) = (own.pid for own in started.local.workers.values())
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_queries_out_of_the_same_sweep_have_their_own_clocks(demo_network):
    """With a timeout too, queries share a sweep; those that it is not enough for are asked again, each on its own."""
    pictures = [str(path) for path, _ in demo.images()[:4]]
    quick = sp.profile(demo_network, pictures, QUICK, timeout=600.0)
    slow = sp.profile(demo_network, pictures, QUICK)
    assert [own.record.critical_strength for own in quick] == [own.record.critical_strength for own in slow]
    late = sp.profile(demo_network, pictures, QUICK, timeout=1e-6)
    assert {own.reason for own in late if own.status != "misclassified"} == {"timeout"}


# -- a cluster of somebody else's -------------------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path, request):
    """A scheduler and a worker in a folder of their own, each a process; the parameter is when silence is noticed."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    file, dask = folder / "scheduler.json", [sys.executable, "-m", "distributed.cli.dask_{}", "--no-dashboard"]
    options = {
        "scheduler": ("--host", "127.0.0.1", "--port", "0"),
        "worker": ("--nthreads", "1", "--no-nanny", "--preload", "shakeproof.parallel"),
    }
    scheduler, worker = (
        subprocess.Popen(
            [*(word.format(name) for word in dask), *words, "--scheduler-file", str(file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=os.environ | {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": getattr(request, "param", "5 minutes")},
        )
        for name, words in options.items()
    )
    while not file.exists() or not file.read_text():
        time.sleep(0.05)
    yield json.loads(file.read_text())["address"], scheduler, worker
    for process in (scheduler, worker):
        process.kill()
        process.wait()


def when_busy(cluster: Cluster, act) -> threading.Thread:
    """Does something as soon as a worker has begun with a task."""

    def wait() -> None:
        while not any(own.began is not None for own in [*cluster.in_flight.values()]):
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_models_go_to_workers_by_content(processes, expected, tmp_path, monkeypatch):
    """The model's name means nothing where the workers are."""
    shutil.copy(demo.MODEL, tmp_path / "m.onnx")
    file = written(tmp_path)
    file.write_text(file.read_text().replace(str(demo.MODEL), "m.onnx"))
    monkeypatch.chdir(tmp_path)
    with scheduler_of(Path("c.toml")) as scheduler, Cluster(1, processes[0]) as foreign:
        assert foreign.jobs == 1
        foreign.run(scheduler, no_progress)
        assert (scheduler.writer.campaign().answered, scheduler.writer.campaign().failed) == (16, 0)
    assert essence(tmp_path / "c.db") == expected


def test_a_scheduler_that_dies_is_one_line(processes, tmp_path):
    address, dask_scheduler, _ = processes
    with scheduler_of(written(tmp_path, (SLOW,), images=1, more=SLOWLY)) as scheduler, Cluster(1, address) as foreign:
        when_busy(foreign, dask_scheduler.kill)
        with pytest.raises(InputError, match="the Dask scheduler is gone; start one, and the same command again"):
            foreign.run(scheduler, no_progress)
    with StoreWriter.open(tmp_path / "c.db") as writer:  # nobody works on it any more, and no query is blamed
        left = writer.connection.execute("SELECT count(*) FROM queries WHERE owner IS NOT NULL")
        assert left.fetchone() == (0,)
        assert not [*writer.errors()]


@pytest.mark.parametrize("processes", ["10 s"], indirect=True)
def test_a_stopped_worker_of_a_cluster_is_noticed(processes, tmp_path, monkeypatch):
    """It has no timeout, and is the only one: that there is no other is said, too."""
    address, _, worker = processes
    told = []
    with scheduler_of(written(tmp_path, (SLOW,), images=1, more=SLOWLY)) as scheduler, Cluster(1, address) as foreign:
        monkeypatch.setattr("shakeproof.parallel.cluster.PATIENCE", 2.0)
        when_busy(foreign, lambda: worker.send_signal(signal.SIGSTOP))
        with pytest.raises(InputError, match="has lost its workers"):
            foreign.run(scheduler, told.append)
    assert any("gave no sign of life for 10 s" in notice for notice in scheduler.notices)


def test_where_no_cluster_is_that_is_said(monkeypatch):
    monkeypatch.setattr("shakeproof.parallel.cluster.PATIENCE", 1.0)
    with pytest.raises(InputError, match=r"tcp://127.0.0.1:9: no Dask scheduler answers"):
        Cluster(1, "tcp://127.0.0.1:9").__enter__()
