"""The local engine: answers are those of a plain analysis, whatever happens to workers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from campaign.running import QUICK, SLOW, SLOWLY, desk_of, said_by, workers_of, written

import shakeproof as sp
from shakeproof import demo
from shakeproof.campaign import Pool, Store
from shakeproof.errors import InputError


def no_progress(standing) -> None:
    pass


@pytest.fixture(scope="module")
def plain(demo_network):
    """What a plain analysis says of the same."""
    pictures = [str(path) for path, _ in demo.images()[:4]]
    results = sp.profile(demo_network, pictures, QUICK)
    return {(result.query.name, str(result.query.perturbation)): result.record for result in results}


def same(store: Path, plain) -> bool:
    with Store.open(store) as opened:
        found = {(own.image.name, str(own.perturbation)): own.record for own in opened.profiles()}
    assert found.keys() == plain.keys()
    return all(said_by(found[key]) == said_by(plain[key]) for key in plain)


def test_answers_are_those_of_a_plain_analysis(tmp_path, plain):
    told = []
    with desk_of(written(tmp_path), jobs=2) as desk, Pool(2) as pool:
        pool.run(desk, told.append)
    assert same(tmp_path / "c.db", plain)
    assert (told[-1].settled, told[-1].total, told[-1].before) == (16, 16, 0)
    assert sum(told[-1].statuses.values()) == 16
    with desk_of(written(tmp_path)) as desk, Pool(1) as pool:  # nothing is left
        pool.run(desk, told.append)
        assert (desk.before, desk.statuses.total()) == (16, 0)


def killer(victims, how=signal.SIGKILL, times: int = 1) -> threading.Thread:
    """Kills so many workers of this process, each as soon as it has something to do."""

    def kill() -> None:
        done: set[int] = set()
        while len(done) < times:
            for worker in victims():
                if worker not in done:
                    done.add(worker)
                    os.kill(worker, how)
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def at_work(pool: Pool):
    return lambda: [own.process.pid for own in [*pool.workers] if own.heard is not None and own.unanswered]


def test_a_worker_that_is_killed_is_replaced(tmp_path, plain):
    """Of the queries that it worked on, nobody knows which it died of: each is tried on its own, none is blamed."""
    with desk_of(written(tmp_path, more="[analysis]\nwhole_curves = true\n")) as desk, Pool(1) as pool:
        thread = killer(at_work(pool))
        pool.run(desk, no_progress)
        thread.join()
        assert desk.alone
    with Store.open(tmp_path / "c.db") as opened:
        assert (opened.campaign().answered, opened.campaign().failed) == (16, 0)


def test_a_query_that_kills_its_worker_three_times_is_an_error_and_the_rest_goes_on(tmp_path):
    file = written(tmp_path, (SLOW, "identity"), images=1, more=SLOWLY)
    with desk_of(file) as desk, Pool(1) as pool:
        thread = killer(at_work(pool), times=4)  # the first one has both queries
        pool.run(desk, no_progress)
        thread.join()
        (error,) = desk.ledger.errors()
        assert (error.kind, str(error.perturbation)) == ("memory", SLOW)
        assert "so did 2 workers before" in error.message
        assert (desk.ledger.campaign().answered, desk.ledger.campaign().failed) == (1, 1)
        assert desk.statuses == {"error": 1, "safe": 1}
    with desk_of(file) as desk:  # it is not tried again
        assert desk.is_done()
        desk.ledger.forget_errors(desk.registered.id)
        assert not desk.is_done()


def test_a_timeout_is_enforced_from_outside(tmp_path, monkeypatch):
    """A worker that hangs, as a stopped process does, cannot end by itself."""
    monkeypatch.setattr("shakeproof.campaign.local.GRACE", 0.5)
    file = written(tmp_path, (SLOW, "identity"), images=1, more=SLOWLY + "timeout = 1\n")
    with desk_of(file) as desk, Pool(1) as pool:
        thread = killer(at_work(pool), how=signal.SIGSTOP, times=2)  # the first one has both queries
        pool.run(desk, no_progress)
        thread.join()
        (error,) = desk.ledger.errors()
        assert (error.kind, desk.ledger.campaign().answered) == ("timeout", 1)
        more_time = desk.ledger.waiting(desk.registered.id, 2.0, None)
        assert [own.query for own in more_time] == [error.query]


def test_a_stopped_worker_is_noticed_and_replaced_without_a_timeout(tmp_path, plain, monkeypatch):
    monkeypatch.setattr("shakeproof.campaign.local.STOPPED", 0.5)
    told = []
    with desk_of(written(tmp_path)) as desk, Pool(1) as pool:
        thread = killer(at_work(pool), how=signal.SIGSTOP)
        pool.run(desk, told.append)
        thread.join()
        (notice,) = told[-1].notices
        assert "was stopped; another takes its place" in notice
        assert not desk.ledger.campaign().failed
    assert same(tmp_path / "c.db", plain)


def test_a_certificate_never_costs_an_answer(tmp_path, plain, monkeypatch):
    """The worker that makes one is killed each time; answers are there before, and stay."""
    file = written(tmp_path, more="").read_text()
    (tmp_path / "c.toml").write_text("certificates = true\n" + file)
    with desk_of(tmp_path / "c.toml") as desk, Pool(1) as pool:
        certifying = lambda: [own.process.pid for own in [*pool.workers] if own.task is not None and own.task.certify]  # noqa: E731
        thread = killer(certifying)
        pool.run(desk, no_progress)
        thread.join()
        assert desk.ledger.campaign().answered == 16
        found = {own.query: own for own in desk.ledger.profiles()}
        assert all(own.certificate or own.unproved for own in found.values())
    assert same(tmp_path / "c.db", plain)


def test_a_certificate_that_takes_too_long_is_asked_for_again_with_more_time(tmp_path, plain):
    file = written(tmp_path, images=1).read_text()
    for seconds, made in ((1e-9, 0), (1e-9, 0), (60.0, 4)):
        (tmp_path / "c.toml").write_text(f"certificates = true\ncertificate_timeout = {seconds}\n{file}")
        with desk_of(tmp_path / "c.toml") as desk, Pool(1) as pool:
            pool.run(desk, no_progress)
            profiles = list(desk.ledger.profiles())
            assert len(profiles) == 4
            assert sum(own.certificate is not None for own in profiles) == made
            late, why = desk.ledger.without_certificates(desk.registered.id)
            assert late == 4 - made
            assert made or "its certificate takes longer than 1e-09 s" in why
            assert all((own.unproved is None) == bool(made) for own in profiles)


def test_a_model_that_vanishes_leaves_its_queries_open(tmp_path):
    model = tmp_path / "m.onnx"
    shutil.copy(demo.MODEL, model)
    file = written(tmp_path)
    file.write_text(file.read_text().replace(f"['{demo.MODEL}']", f"['{demo.MODEL}', 'm.onnx']"))
    # the same network twice would be asked once: this one has another description, which changes nothing else
    model.write_bytes(model.read_bytes() + b"\x32\x01x")
    with desk_of(file) as desk, Pool(1) as pool:
        model.unlink()
        pool.run(desk, no_progress)
        assert "m.onnx: cannot read the network" in next(iter(desk.unusable.values()))
        found = desk.ledger.campaign()
        assert (found.asked, found.answered, found.missing, found.failed) == (32, 16, 16, 0)


def test_a_model_that_changes_is_not_taken_for_the_same(tmp_path):
    model = tmp_path / "m.onnx"
    shutil.copy(demo.MODEL, model)
    file = written(tmp_path)
    file.write_text(file.read_text().replace(str(demo.MODEL), "m.onnx"))
    with desk_of(file) as desk, Pool(1) as pool:
        model.write_bytes(model.read_bytes() + b"\x32\x01x")
        pool.run(desk, no_progress)
        assert "has changed since the campaign began" in next(iter(desk.unusable.values()))
        assert desk.ledger.campaign().missing == 16


def test_workers_that_cannot_begin_end_the_campaign(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no Python can start like this
    with desk_of(written(tmp_path)) as desk, Pool(1) as pool, pytest.raises(InputError, match="end before they begin"):
        pool.run(desk, no_progress)


def test_workers_end_with_whoever_began_them(tmp_path):
    with Pool(2) as pool:
        began = [worker.process.pid for worker in pool.workers]
        assert set(began) <= set(workers_of(os.getpid()))
    assert not set(began) & set(workers_of(os.getpid()))


def test_queries_out_of_the_same_sweep_have_their_own_clocks(demo_network):
    """With a timeout too, queries share a sweep; those that it is not enough for are asked again, each on its own."""
    pictures = [str(path) for path, _ in demo.images()[:4]]
    quick = sp.profile(demo_network, pictures, QUICK, timeout=600.0)
    slow = sp.profile(demo_network, pictures, QUICK)
    assert [own.record.critical_strength for own in quick] == [own.record.critical_strength for own in slow]
    late = sp.profile(demo_network, pictures, QUICK, timeout=1e-6)
    assert {own.reason for own in late if own.status != "misclassified"} == {"timeout"}
