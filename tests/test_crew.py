"""Processes beside this one: jobs are done whatever becomes of them, and none is left behind."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from shakeproof import crew as crews
from shakeproof.crew import Crew, can_fork, crew_for, packed, shift

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
FOREVER = float("inf")


class Network:
    """What a crew is kept for."""


def multiplying(given: bytes, stopped):
    """Jobs that say who did them."""
    factor = pickle.loads(given)

    def do(number: int):
        if factor == "slow":
            while not stopped():
                time.sleep(0.01)
        while factor == "stuck":
            time.sleep(0.01)
        if factor == "failing":
            raise ValueError(number)
        time.sleep(0.02)
        return factor * number, os.getpid()

    return do


@pytest.fixture(params=[1, 3])
def crew(request):
    made = Crew(request.param, multiplying)
    yield made
    made.end()


def own(number: int):
    time.sleep(0.02)
    return 7 * number, os.getpid()


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not condition():
        time.sleep(0.02)
    return condition()


def test_jobs_are_shared_and_come_back_in_order(crew):
    for _ in range(3):
        with shift(crew, 20, packed(7)) as made:
            results = list(made.results(own, FOREVER))
        assert [found for found, _ in results] == [7 * number for number in range(20)]
        assert {process for _, process in results} == {os.getpid(), *(member.process for member in crew.members)}
    assert not crew.is_over


def test_jobs_of_a_member_that_fails_are_done_here(crew):
    for _ in range(2):
        with shift(crew, 9, packed("failing")) as made:
            assert [found for found, _ in made.results(own, FOREVER)] == [7 * number for number in range(9)]
    assert not crew.is_over


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_jobs_of_a_member_that_is_killed_are_done_here(crew, when):
    if when == "before":
        os.kill(crew.members[0].process, signal.SIGKILL)
        assert wait_for(lambda: not is_running(crew.members[0].process))
    with shift(crew, 9, packed("slow")) as made:
        time.sleep(0.1)  # every member has a job by now, and would never end it
        for member in crew.members:
            os.kill(member.process, signal.SIGKILL)
        assert [found for found, _ in made.results(own, FOREVER)] == [7 * number for number in range(9)]
    assert crew.is_over
    assert not any(Path(f"/proc/{member.process}").exists() for member in crew.members)  # nor is there a zombie


def test_whoever_has_heard_enough_gets_no_more(crew):
    with shift(crew, 50, packed("slow")) as made:
        results = made.results(lambda number: (number, os.getpid()), FOREVER)
        time.sleep(0.1)
        made.stop()
        assert not made.working
    assert not crew.is_over
    with shift(crew, 4, packed(7)) as made:
        results = made.results(own, FOREVER)
        next(results)
    with shift(crew, 4, packed(7)) as made:
        assert [found for found, _ in made.results(own, FOREVER)] == [0, 7, 14, 21]


def test_after_the_deadline_nobody_is_waited_for(crew, monkeypatch):
    monkeypatch.setattr(crews, "PATIENCE", 0.2)
    with shift(crew, 6, packed("stuck")) as made:
        time.sleep(0.1)
        assert [found for found, _ in made.results(own, time.perf_counter())] == [7 * n for n in range(6)]
    assert crew.is_over
    assert not any(is_running(member.process) for member in crew.members)


def test_an_error_leaves_nobody_at_work(crew):
    def interrupted() -> None:
        with shift(crew, 6, packed("slow")):
            time.sleep(0.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert crew.is_over
    assert not any(is_running(member.process) for member in crew.members)


def test_a_crew_ends_with_what_it_is_kept_for():
    network = Network()
    with crew_for(network, 1, multiplying, 1.0, 1.0) as made:
        assert made is not None
        (member,) = made.members
    with crew_for(network, 1, multiplying, 1.0, 1.0) as again:
        assert again is made
    del network, again
    gc.collect()
    assert made.is_over
    assert not is_running(member.process)


def test_a_crew_is_begun_when_it_is_worth_it_and_not_for_ever():
    network = Network()
    with crew_for(network, 1, multiplying, 0.4, 1.0) as made:
        assert made is None
    for _ in range(crews.MOST_BROKEN):
        with crew_for(network, 1, multiplying, 0.6, 1.0) as made:
            assert made is not None
            os.kill(made.members[0].process, signal.SIGKILL)
            with shift(made, 4, packed(7)) as jobs:
                assert len(list(jobs.results(own, FOREVER))) == 4
    with crew_for(network, 1, multiplying, 1.0, 1.0) as made:
        assert made is None


def test_crews_that_were_not_asked_for_long_make_room():
    crews._let_go()
    networks = [Network() for _ in range(crews.MOST_KEPT + 2)]
    made = []
    for network in networks:
        with crew_for(network, 1, multiplying, 1.0, 1.0) as crew:
            made.append(crew)
    assert [crew.is_over for crew in made] == [True] * 2 + [False] * crews.MOST_KEPT
    with crew_for(networks[0], 1, multiplying, 1.0, 1.0) as crew:
        assert crew is not None
        assert not crew.is_over
    for network in networks:
        crews._kept[network].crew and crews._kept[network].crew.end()


def test_a_busy_crew_is_left_alone():
    network = Network()
    with (
        crew_for(network, 1, multiplying, 1.0, 1.0) as made,
        crew_for(network, 1, multiplying, 1.0, 1.0) as other,
    ):
        assert made is not None
        assert other is None
    made.end()


def test_a_thread_may_begin_one_beside_others():
    """Threads that compute, as libraries have them, and others that wait."""
    stop, found = threading.Event(), []

    def busy() -> None:
        while not stop.is_set():
            torch.ones(200, 200, dtype=torch.float64) @ torch.ones(200, 200, dtype=torch.float64)

    def ask() -> None:
        for _ in range(5):
            made = Crew(1, multiplying)
            with shift(made, 4, packed(7)) as working:
                found.append([value for value, _ in working.results(own, FOREVER)])
            made.end()

    threads = [threading.Thread(target=busy), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    threads[1].join(60)
    stop.set()
    threads[0].join(60)
    assert found == [[0, 7, 14, 21]] * 5


def test_a_process_that_was_forked_does_not_end_the_crew_of_another():
    network = Network()
    with crew_for(network, 1, multiplying, 1.0, 1.0) as made:
        assert made is not None
    process = os.fork()
    if process == 0:
        os._exit(0 if made.is_over and not crews._kept else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    with shift(made, 4, packed(7)) as working:
        assert [value for value, _ in working.results(own, FOREVER)] == [0, 7, 14, 21]
    made.end()


PARENT = """
import sys, time, pickle, os
from shakeproof.crew import Crew, shift, packed
def begin(given, stopped):
    def do(number):
        while True: pass
    return do
crew = Crew(2, begin)
with shift(crew, 5, packed(None)):
    print(*[member.process for member in crew.members], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_members_end_with_their_parent_in_the_middle_of_a_job(how):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    members = [int(word) for word in parent.stdout.readline().split()]
    time.sleep(0.3)
    assert len(members) == 2
    assert all(map(is_running, members))
    parent.send_signal(how)
    parent.wait(20)
    assert parent.stdout.read() == b""  # nobody holds it open
    assert wait_for(lambda: not any(map(is_running, members)))


def test_an_interrupt_is_the_parents_business(crew):
    for member in crew.members:
        os.kill(member.process, signal.SIGINT)
    with shift(crew, 4, packed(7)) as made:
        assert [value for value, _ in made.results(own, FOREVER)] == [0, 7, 14, 21]
    assert not crew.is_over


def test_members_have_none_of_their_parents_files(tmp_path):
    with (tmp_path / "mine").open("w"):
        made = Crew(1, multiplying)
        (member,) = made.members
        files = [os.readlink(f"/proc/{member.process}/fd/{fd}") for fd in os.listdir(f"/proc/{member.process}/fd")]
    made.end()
    assert not [name for name in files if name not in ("/dev/null",) and not name.startswith(("pipe:", "socket:"))]
    assert len([name for name in files if name != "/dev/null"]) == 2


def test_daemons_have_none(monkeypatch):
    assert can_fork()
    monkeypatch.setattr(crews, "current_process", lambda: type("Daemon", (), {"daemon": True}))
    assert not can_fork()


def test_of_a_tensor_no_more_is_sent_than_it_shows():
    whole = torch.arange(10**6, dtype=torch.float64)
    part = pickle.loads(packed({"part": whole[10:20].view(2, 5).T}))["part"]
    assert torch.equal(part, whole[10:20].view(2, 5).T)
    assert len(packed(whole[10:20])) < 1000


def test_results_of_a_shift_that_was_interrupted_are_nobody_elses(monkeypatch):
    """Just after its members were told, and by somebody who asks again."""
    tell, network = crews.Shift.tell, Network()

    def interrupted(made, message):
        tell(made, message)
        raise KeyboardInterrupt

    def asked(factor: int) -> list[int]:
        with crew_for(network, 1, multiplying, 1.0, 0.0) as crew, shift(crew, 6, packed(factor)) as made:
            return [found for found, _ in made.results(lambda number: (factor * number, 0), FOREVER)]

    assert asked(3) == [3 * number for number in range(6)]
    monkeypatch.setattr(crews.Shift, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked(5)
    monkeypatch.setattr(crews.Shift, "tell", tell)
    for factor in (7, 11):
        assert asked(factor) == [factor * number for number in range(6)]


def test_results_of_another_shift_are_not_taken(crew):
    """Were one left open and forgotten, its number would tell."""
    left = crews.Shift(crew, 6, packed(5))
    time.sleep(0.3)
    with shift(crew, 6, packed(7)) as made:
        assert [found for found, _ in made.results(own, FOREVER)] == [7 * number for number in range(6)]
    assert crew.is_over
    assert left.number != made.number


def test_a_member_that_is_stopped_is_not_waited_for(monkeypatch):
    """Not in the middle of a message either, which does not fit into any buffer."""
    monkeypatch.setattr(crews, "PATIENCE", 0.5)
    monkeypatch.setattr(crews, "LONG", 0.5)
    crew = Crew(1, multiplying)
    os.kill(crew.members[0].process, signal.SIGSTOP)
    began = time.monotonic()
    with shift(crew, 4, packed(7) + bytes(10**7)) as made:
        assert [found for found, _ in made.results(own, FOREVER)] == [0, 7, 14, 21]
    assert time.monotonic() - began < 20
    assert crew.is_over
    assert not is_running(crew.members[0].process)


def test_a_member_at_work_is_waited_for(monkeypatch):
    monkeypatch.setattr(crews, "LONG", 0.5)

    def computing(given, stopped):
        def do(number):
            until = time.process_time() + 2
            while time.process_time() < until:
                pass
            return number, os.getpid()

        return do

    crew = Crew(1, computing)
    try:
        with shift(crew, 2, b"") as made:
            time.sleep(0.2)  # so that the other has begun
            found = list(made.results(lambda number: (number, 0), FOREVER))
        assert found == [(0, crew.members[0].process), (1, 0)]
        assert not crew.is_over
    finally:
        crew.end()


def test_what_was_called_off_is_not_broken():
    network = Network()
    for _ in range(2 * crews.MOST_BROKEN):
        with crew_for(network, 1, multiplying, 1.0, 0.0) as crew:
            assert crew is not None
            with suppress(KeyError), shift(crew, 4, packed(7)):
                raise KeyError
            assert crew.is_over
