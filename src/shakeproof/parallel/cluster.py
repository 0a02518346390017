"""Workers are Dask's: processes of this machine, or of any number of machines, which share no files with this one.

Tasks carry pictures and kernels. A worker that lacks a task's model says so, and gets the task again with the model's
bytes. Only this process touches the store: a scheduler or a worker that dies costs the queries in flight, no more. Dask
starts workers anew that end, run out of memory or give no sign of life, and gives a task up that several died of.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dask
import distributed
import torch
from distributed.scheduler import KilledWorker

from shakeproof import __version__
from shakeproof.budget import keep_freed_memory, now
from shakeproof.errors import InputError
from shakeproof.model import model_files
from shakeproof.parallel.scheduler import Standing, TaskScheduler
from shakeproof.parallel.tasks import ModelError, Outcome, Task, TaskRunner

# So long is waited for a task to end, in seconds; whoever waits is told how far it got as often.
MOMENT = 0.25
# A cluster may take so many seconds to answer, and its workers to come back, before it is given up.
PATIENCE = 60.0
# A worker that does not stop by itself is stopped after so many times the timeout, and so many seconds more.
TIMES, GRACE = 1.25, 5.0
# What else than the memory budget a worker takes, in GiB.
BESIDES = 0.5
# How Dask runs the workers of this machine: one that is silent for so long, e.g. stopped (SIGSTOP), is started anew,
# which may take a while on a busy machine; a task is given up when a third worker has died of it; and up to its limit,
# what a worker holds is its own business.
LOCAL = {
    "distributed.scheduler.worker-ttl": "60 s",
    "distributed.deploy.lost-worker-timeout": "10 minutes",
    "distributed.scheduler.allowed-failures": 2,
    "distributed.worker.profile.enabled": False,  # it looks at the stack a hundred times a second
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}
# What each of them does first: an interrupt is for whoever began it, who decides when it ends. And what tasks need is
# imported while nobody waits for it.
PRELOAD = f"""
import signal, threading
from importlib import import_module
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=import_module, args=({__name__!r},), daemon=True).start()
"""
# Workers say by this name of an event that they have begun with a task.
BEGUN = "shakeproof-begun"
LOST = "the Dask scheduler is gone; start one, and the same command again: what was answered is kept"
NOT_THERE = "{}: no Dask scheduler answers there; start one with dask scheduler, and workers with dask worker"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(memory: float) -> int:
    """A worker for each core, but no more than the machine's memory has room for; `memory` is a worker's, in GiB."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(cores(), int(total / (memory + BESIDES))))


# -- on a worker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    """What the worker at an address, with a version of shakeproof, found in so many seconds of a processor.

    Without `outcomes`, it lacks the model; or that cannot be used, and `refused` says why.
    """

    address: str
    version: str
    outcomes: list[Outcome] | None = None
    seconds: float = 0.0
    refused: str | None = None


@cache
def _runner() -> tuple[TaskRunner, threading.Lock]:
    """This process's, which does one task at a time."""
    keep_freed_memory()
    return TaskRunner(), threading.Lock()


def perform(version: str, task: Task, threads: int, files: Mapping[str, bytes] | None) -> Reply:
    """Do a task on a worker. `files` are its model's, the first of them the model itself."""
    worker = distributed.get_worker()
    runner, busy = _runner()
    with busy:
        digest = task.model.digest
        if version != __version__ or (files is None and digest not in runner.copies):
            return Reply(worker.address, __version__)
        if files is not None and digest not in runner.copies:
            folder = Path(worker.local_directory) / digest
            folder.mkdir(exist_ok=True)
            for name, data in files.items():
                (folder / name).write_bytes(data)
            runner.copies[digest] = str(folder / next(iter(files)))
        torch.set_num_threads(threads)
        try:
            runner.network(task.model, task.settings)
            worker.log_event(BEGUN, {"key": worker.get_current_task(), "address": worker.address})
            began = time.process_time()
            outcomes = list(runner.outcomes(task))
            return Reply(worker.address, __version__, outcomes, time.process_time() - began)
        except ModelError as error:
            runner.copies.pop(digest, None)
            return Reply(worker.address, __version__, refused=str(error))


# -- where the campaign runs ------------------------------------------------------------------------------------------


@dataclass
class InFlight:
    """A task that was handed out, perhaps to a worker that is `near`; and which one began with it, and when."""

    task: Task
    near: str | None = None
    address: str = ""
    began: float | None = None

    def is_late(self) -> bool:
        """Whether it takes longer than its timeout explains: queries share a clock, then each has one of its own."""
        timeout = self.task.settings.timeout
        if timeout is None or self.began is None:
            return False
        each = timeout + (self.task.certificates or 0.0 if self.task.certify else 0.0)
        return now() - self.began > (1 + len(self.task.questions)) * TIMES * each + GRACE


class Cluster:
    """The Dask cluster at `scheduler`, or one of this machine with `jobs` workers that ends with this."""

    def __init__(self, jobs: int, scheduler: str | None = None) -> None:
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said here, in one line
        self.wanted, self.scheduler = jobs, scheduler
        self.settings = ExitStack()
        self.local: Any = None
        self.client: Any = None
        self.in_flight: dict[Any, InFlight] = {}
        self.silent: list[str] = []

    def __enter__(self) -> Self:
        try:
            if self.scheduler is None:
                self.settings.enter_context(dask.config.set(LOCAL))
                self.local = _local_cluster(self.wanted)
            self.client = distributed.Client(self.local or self.scheduler, timeout=PATIENCE / 2)
            self.client.subscribe_topic(BEGUN, self._note_begun)
            self.client.subscribe_topic("scheduler", self._note_silent)
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except (OSError, RuntimeError, ValueError) as error:
            self.__exit__(None, None, None)
            if self.scheduler is None:
                raise InputError(f"worker processes cannot be started ({error})") from error
            if isinstance(error, TimeoutError) and self.client is not None:
                raise InputError(f"{self.scheduler}: the Dask cluster has no workers") from error
            raise InputError(NOT_THERE.format(self.scheduler)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):  # whatever a cluster says when it ends changes nothing
            if self.client is not None:
                self.client.cancel(list(self.in_flight), force=True)
                self.client.close()
        with suppress(Exception), self.settings:
            if self.local is not None:
                self.local.close()

    @property
    def jobs(self) -> int:
        """How many workers there are now."""
        return max(1, len(self._workers()))

    def run(self, scheduler: TaskScheduler, tell: Callable[[Standing], None]) -> None:
        """Work until nothing is left, and tell how far it got."""
        gone: float | None = None
        try:
            while not scheduler.is_done():
                if self.client.status not in ("running", "connecting"):
                    raise InputError(LOST)
                workers = self._workers()
                gone = None if workers else gone or now()
                if gone is not None and now() - gone > PATIENCE:
                    raise InputError("the Dask cluster has lost its workers; start some and run the same command again")
                self._recall(scheduler, workers)
                self._hand_out(scheduler, workers)
                for future in self._finished():
                    self._hear(future, scheduler)
                self._stop_late(scheduler)
                while self.silent:
                    scheduler.notices.append(self.silent.pop())
                scheduler.beat()
                tell(scheduler.standing())
        except Exception as error:  # what Dask raises without a scheduler is of many kinds
            if isinstance(error, InputError) or self.client.status == "running":
                raise
            raise InputError(LOST) from error
        finally:
            with suppress(InputError):  # that it cannot be written was said, and who ends leaves all to others anyway
                scheduler.close()

    def _workers(self) -> dict[str, int]:
        """How many threads each worker has, by address."""
        try:
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, KeyError):
            return {}
        return {address: int(facts["nthreads"]) for address, facts in workers.items()}

    def _hand_out(self, scheduler: TaskScheduler, workers: Mapping[str, int]) -> None:
        """One task for each worker: Dask blames those that wait behind another for what that one does."""
        scheduler.jobs = max(1, len(workers))
        while len(self.in_flight) < len(workers):
            task = scheduler.next_task()
            if task is None:
                return
            self._submit(task, near=task.where if task.where in workers else None)

    def _submit(self, task: Task, near: str | None = None, files: Mapping[str, bytes] | None = None) -> None:
        """A task to one worker, or to whichever is free."""
        threads = min(self._workers().values(), default=1) if self.local is None else max(1, cores() // self.wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a model is large
            future = self.client.submit(perform, __version__, task, threads, files, workers=near, pure=False, retries=0)
        self.in_flight[future] = InFlight(task, near)

    def _recall(self, scheduler: TaskScheduler, workers: Mapping[str, int]) -> None:
        """Dask keeps a task that is meant for one worker for ever, even where that is gone; others can do it."""
        for future, flight in [*self.in_flight.items()]:
            if flight.near is not None and flight.near not in workers:
                del self.in_flight[future]
                self.client.cancel([future], force=True)
                scheduler.put_back(flight.task.queries)

    def _finished(self) -> list[Any]:
        if not self.in_flight:
            time.sleep(MOMENT)
            return []
        with suppress(TimeoutError), self.client.as_current():  # whatever other clients there are
            distributed.wait(list(self.in_flight), timeout=MOMENT, return_when="FIRST_COMPLETED")
        return [future for future in self.in_flight if future.done()]

    def _hear(self, future: Any, scheduler: TaskScheduler) -> None:
        task = self.in_flight.pop(future).task
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise error
            scheduler.lose(task, "crash", _why_killed(error))
            return
        if future.status != "finished":  # cancelled, or lost with the scheduler
            scheduler.put_back(task.queries)
            return
        reply: Reply = future.result()
        if reply.version != __version__:
            raise InputError(f"workers have shakeproof {reply.version}, this is {__version__}; install the same")
        if reply.refused is not None:
            scheduler.give_up(task, reply.refused)
        elif reply.outcomes is None:
            self._send_model(task, scheduler)
        else:
            scheduler.finish(task, reply.outcomes, reply.seconds, reply.address)

    def _send_model(self, task: Task, scheduler: TaskScheduler) -> None:
        """The same task again, with the model's files; to the same worker, since that is free."""
        try:
            files = {path.name: path.read_bytes() for path in model_files(Path(task.model.name))}
        except (InputError, OSError) as error:
            scheduler.give_up(task, str(error))
            return
        self._submit(task, files=files)

    def _stop_late(self, scheduler: TaskScheduler) -> None:
        """Stop workers that do not stop by themselves when the time is up."""
        for future, flight in [*self.in_flight.items()]:
            if flight.is_late():
                del self.in_flight[future]
                self.client.cancel([future], force=True)
                with suppress(Exception):  # a worker without a nanny cannot be started anew
                    self.client.restart_workers([flight.address], timeout=GRACE, raise_for_error=False)
                scheduler.lose(flight.task, "timeout", "was stopped: it did not end by itself when its time was up")

    def _note_begun(self, event: tuple[float, dict[str, Any]]) -> None:
        """A worker has loaded a task's network; from now on the task's time counts."""
        for future, flight in [*self.in_flight.items()]:
            if future.key == event[1]["key"]:
                flight.address, flight.began = event[1]["address"], now()

    def _note_silent(self, event: tuple[float, dict[str, Any]]) -> None:
        """Note workers that do not respond; Dask restarts them."""
        facts = event[1]
        if facts.get("action") == "worker-ttl-timed-out":
            where = ", ".join(facts["workers"])
            self.silent.append(
                f"the worker {where} gave no sign of life for {facts['ttl']:g} s; another takes its place"
            )


def _why_killed(error: KilledWorker) -> str:
    deaths = error.allowed_failures + 1
    return f"{deaths} workers died of it, as happens when memory runs out; give more of it, or fewer jobs"


def _local_cluster(jobs: int) -> distributed.LocalCluster:
    """Worker processes that listen to this machine alone, and obey only who has the credentials made for them."""
    return distributed.LocalCluster(
        n_workers=jobs,
        processes=True,
        threads_per_worker=1,
        security=True,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=logging.CRITICAL,
        preload=[PRELOAD],
        env={"OMP_NUM_THREADS": max(1, cores() // jobs), "OMP_WAIT_POLICY": "PASSIVE"},
    )
