"""The local engine: worker processes on this machine, begun again where they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

from shakeproof.budget import now
from shakeproof.campaign.desk import Desk, Standing
from shakeproof.campaign.findings import Finding
from shakeproof.campaign.ledger import process_state
from shakeproof.campaign.working import Task
from shakeproof.errors import InputError

# So long nothing is looked at, in seconds; whoever waits is told how far it got as often.
MOMENT = 0.25
# A worker that does not stop by itself is stopped after so many times the timeout, and so many seconds more.
TIMES, GRACE = 1.25, 5.0
# A process that is stopped (SIGSTOP) for so many seconds is given up.
STOPPED = 10.0
# So many workers that end before they have loaded a network, for each job, are no accident.
STILLBORN = 3
# What else than the memory budget a worker takes, in GiB.
BESIDES = 0.5


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(memory: float) -> int:
    """A worker for each core, but no more than the machine's memory has room for; `memory` is a worker's, in GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(cores(), int(total / (memory + BESIDES))))


class Worker:
    """A process, and what it works on: `task`, and which of its queries have no answer yet."""

    def __init__(self, threads: int) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shakeproof.campaign.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt is for whoever began it, who decides when it ends
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.task: Task | None = None
        self.unanswered: list[int] = []
        self.heard: float | None = None  # when it last said something about its task
        self.has_begun = False
        self.ran = now()  # when it was last seen, and not stopped

    def give(self, task: Task) -> bool:
        """Whether it took a task."""
        self.task, self.unanswered, self.heard = task, task.queries, None
        try:
            self.connection.send(task)
        except OSError:
            return False
        return True

    def is_late(self) -> bool:
        """Whether it has been silent for longer than its timeout explains; the clock of each query is inside."""
        timeout = None if self.task is None else self.task.settings.timeout
        if self.task is None or timeout is None or self.heard is None:
            return False
        clocks = 1 if len(self.unanswered) == 1 else 2  # a shared one, and then one for each
        allowed = clocks * timeout + (self.task.certificates or 0.0 if self.task.certify else 0.0)
        return now() - self.heard > TIMES * allowed + GRACE

    def is_stopped(self) -> bool:
        """Whether the process has been stopped for some time, as the system says; not every system does."""
        if process_state(self.process.pid) != "T":
            self.ran = now()
        return now() - self.ran > STOPPED

    def end(self) -> int:
        """Stop it, whatever it does; says how it ended."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class Pool:
    """Worker processes; each computes on its share of the cores."""

    def __init__(self, jobs: int) -> None:
        self.jobs, self.threads = jobs, max(1, cores() // jobs)
        self.workers = [Worker(self.threads) for _ in range(jobs)]
        self.stillborn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers:
            worker.end()

    def run(self, desk: Desk, tell: Callable[[Standing], None]) -> None:
        """Work until nothing is left."""
        try:
            while not desk.is_done():
                self._hand_out(desk)
                busy = {worker.connection: worker for worker in self.workers if worker.task is not None}
                for ready in wait(list(busy), MOMENT):
                    self._hear(busy[ready], desk)  # type: ignore[index]
                for worker in [own for own in self.workers if own.is_stopped()]:
                    desk.notices.append(f"a worker (process {worker.process.pid}) was stopped; another takes its place")
                    self._replace(worker, desk, stopped=True)
                for worker in [own for own in self.workers if own.is_late()]:
                    self._replace(worker, desk, late=True)
                desk.beat()
                tell(desk.standing())
        finally:
            with suppress(InputError):  # that it cannot be written was said, and who ends leaves all to others anyway
                desk.close()

    def _hand_out(self, desk: Desk) -> None:
        for worker in [own for own in self.workers if own.task is None]:
            task = desk.next_task()
            if task is None:
                return
            if not worker.give(task):
                self._replace(worker, desk)

    def _hear(self, worker: Worker, desk: Desk) -> None:
        """Take what a worker sends: results, that it has done its task, or what is wrong with the network."""
        task = worker.task
        assert task is not None
        try:
            said = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker, desk)
            return
        worker.heard, worker.has_begun, self.stillborn = now(), True, 0
        if isinstance(said, list):
            done = {own.query for own in said if not (task.certify and isinstance(own, Finding))}
            worker.unanswered = [own for own in worker.unanswered if own not in done]
            desk.take(said)
        else:
            worker.task = None
            if said is not None:
                desk.give_up(task, said)
            else:
                desk.done(task)

    def _replace(self, worker: Worker, desk: Desk, late: bool = False, stopped: bool = False) -> None:
        """Another worker in the place of one that has ended, or has to. That one is stopped is no query's fault."""
        kind, message = _cause(worker.end())
        self.workers[self.workers.index(worker)] = Worker(self.threads)
        if worker.task is None:
            return
        if late:
            desk.lose(worker.unanswered, "timeout", "was stopped: it did not end by itself when its time was up")
        elif worker.has_begun and not stopped:
            desk.lose(worker.unanswered, kind, message)
        elif not stopped:
            self.stillborn += 1
            desk.put_back(worker.unanswered)
            if self.stillborn > STILLBORN * len(self.workers):
                raise InputError(f"workers end before they begin: the last one's task was not answered, {message}")
        desk.put_back([query for query in worker.task.queries if stopped or query not in worker.unanswered])


def _cause(code: int) -> tuple[str, str]:
    """Why a process ended, by its exit code."""
    if code == -signal.SIGKILL:
        return "memory", "its worker was killed, as happens when memory runs out; give more of it, or fewer jobs"
    if code < 0:
        return "crash", f"its worker crashed ({signal.Signals(-code).name})"
    return "crash", f"its worker ended with exit code {code}"
