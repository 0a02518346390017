"""The Dask engine: workers on any number of machines, which share no files with this one.

Tasks carry pictures and kernels. A worker that lacks a task's model says so, and gets the task again with the model's
bytes. Only this process touches the store: a scheduler or a worker that dies costs the queries in flight, no more.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import torch

from shakeproof import __version__
from shakeproof.budget import now
from shakeproof.campaign.desk import Desk, Standing
from shakeproof.campaign.local import GRACE, MOMENT, TIMES
from shakeproof.campaign.working import ModelError, Outcome, Task, Workbench
from shakeproof.errors import InputError
from shakeproof.model import model_files

# A cluster may take so many seconds to answer, and its workers to come back, before it is given up.
PATIENCE = 60.0
# A worker of which the scheduler hears nothing for so many seconds is given up, e.g. one that was stopped (SIGSTOP).
SILENT = 30.0
LOST = "the Dask scheduler is gone; start one, and the same command again: what was answered is kept"
NOT_THERE = "{}: no Dask scheduler answers there; start one with dask scheduler, and workers with dask worker"


@dataclass
class _Station:
    """What a worker keeps between tasks: the networks, and copies of their files. It does one thing at a time."""

    folder: TemporaryDirectory[str] = field(default_factory=TemporaryDirectory)
    bench: Workbench = field(default_factory=Workbench)
    busy: threading.Lock = field(default_factory=threading.Lock)


@cache
def _station() -> _Station:
    """This process's."""
    return _Station()


@dataclass(frozen=True)
class _Lacking:
    """What a worker says that cannot begin: it has not got the model, or another `version` of shakeproof."""

    address: str
    version: str


@dataclass(frozen=True)
class _Done:
    """What a worker found, and where it is: there, the answers are still known."""

    address: str
    outcomes: list[Outcome]


def perform(version: str, task: Task, threads: int, files: Mapping[str, bytes] | None) -> Any:
    """On a worker: the results of a task, a text where its model cannot be used. `files` are the model's, the first of
    them its own.
    """
    from distributed import get_worker

    station, address = _station(), get_worker().address
    with station.busy:
        copies, digest = station.bench.copies, task.model.digest
        if version != __version__ or (files is None and digest not in copies):
            return _Lacking(address, __version__)
        if digest not in copies and files is not None:
            folder = Path(station.folder.name) / digest
            folder.mkdir(exist_ok=True)
            for name, data in files.items():
                (folder / name).write_bytes(data)
            copies[digest] = str(folder / next(iter(files)))
        torch.set_num_threads(threads)
        try:
            return _Done(address, list(station.bench.results(task)))
        except ModelError as error:
            return str(error)


class Cluster:
    """A Dask cluster: the one at `scheduler`, or one of this machine with `jobs` workers that ends with this."""

    def __init__(self, jobs: int, scheduler: str | None) -> None:
        try:
            import distributed
        except ImportError:
            raise InputError("the engine dask needs Dask; pip install 'shakeproof[dask]'") from None
        self.distributed: Any = distributed
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what goes wrong is said here, in one line
        self.wanted, self.scheduler = jobs, scheduler
        self.in_flight: dict[Any, tuple[Task, float]] = {}
        # What the scheduler last said of each worker, and since when; and which of them gave no sign of life.
        self.seen: dict[str, tuple[Any, float]] = {}
        self.silent: set[str] = set()

    def __enter__(self) -> Self:
        distributed = self.distributed
        self.local = None
        try:
            if self.scheduler is None:
                os.environ.setdefault("OMP_NUM_THREADS", "1")
                self.local = distributed.LocalCluster(
                    n_workers=self.wanted, threads_per_worker=1, dashboard_address=None, silence_logs=50
                )
            self.client = distributed.Client(self.local or self.scheduler, timeout=PATIENCE / 2)
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except (OSError, ValueError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and hasattr(self, "client"):
                raise InputError(f"{self.scheduler}: the Dask cluster has no workers") from error
            raise InputError(NOT_THERE.format(self.scheduler)) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):  # whatever a cluster says when it ends changes nothing
            self.client.cancel(list(self.in_flight))
            self.client.close()
            if self.local is not None:
                self.local.close()

    @property
    def jobs(self) -> int:
        """How many workers there are now."""
        return max(1, len(self._known()))

    def run(self, desk: Desk, tell: Callable[[Standing], None]) -> None:
        """Work until nothing is left."""
        gone: float | None = None
        try:
            while not desk.is_done():
                if self.client.status not in ("running", "connecting"):
                    raise InputError(LOST)
                workers = self._workers(desk)
                gone = None if workers else gone or now()
                if gone is not None and now() - gone > PATIENCE:
                    raise InputError("the Dask cluster has no workers any more; start some, and the same command again")
                self._hand_out(desk, workers)
                for future in self._finished():
                    self._hear(future, desk)
                self._stop_late(desk)
                desk.beat()
                tell(desk.standing())
        except Exception as error:  # what Dask raises without a scheduler is of many kinds
            if isinstance(error, InputError) or self.client.status == "running":
                raise
            raise InputError(LOST) from error
        finally:
            with suppress(InputError):
                desk.close()

    def _known(self) -> dict[str, Any]:
        """What the scheduler says of each worker, by address."""
        try:
            return dict(self.client.scheduler_info(n_workers=-1)["workers"])
        except (OSError, KeyError):
            return {}

    def _workers(self, desk: Desk) -> dict[str, int]:
        """Addresses of workers that give signs of life, and how many threads each has. What silent ones were working on
        is put back.
        """
        known = self._known()
        for address, facts in known.items():
            if self.seen.get(address, (None, 0.0))[0] != facts["last_seen"]:
                self.seen[address] = (facts["last_seen"], now())
        silent = {address for address in known if now() - self.seen[address][1] > SILENT}
        for address in silent - self.silent:
            desk.notices.append(f"the Dask worker {address} gave no sign of life for {SILENT:g} s; others do its work")
            self._stop([address], desk)
        self.silent = silent
        return {address: int(facts["nthreads"]) for address, facts in known.items() if address not in silent}

    def _stop(self, addresses: Sequence[str], desk: Desk) -> None:
        """Put back what workers were doing, and start them anew if they let us."""
        working = self.client.processing(addresses)
        keys = {key for own in working.values() for key in own}
        for future in [own for own in self.in_flight if own.key in keys]:
            task, _ = self.in_flight.pop(future)
            self.client.cancel([future], force=True)
            desk.put_back(task.queries)
        with suppress(Exception):  # a worker without a nanny cannot be
            self.client.restart_workers([*addresses], timeout=GRACE, raise_for_error=False)

    def _hand_out(self, desk: Desk, workers: Mapping[str, int]) -> None:
        """One task for each worker, and one that waits, so that none has to."""
        desk.jobs = max(1, len(workers))
        while workers and len(self.in_flight) < len(workers) + 1:
            task = desk.next_task()
            if task is None:
                return
            near = {task.where: workers[task.where]} if task.where in workers else workers
            self._submit(task, near)

    def _submit(self, task: Task, workers: Mapping[str, int], files: Mapping[str, bytes] | None = None) -> None:
        """A task to whichever of some workers is free."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a model is large
            future = self.client.submit(
                *(perform, __version__, task, min(workers.values()), files),
                workers=[*workers],
                allow_other_workers=len(workers) == 1,
                pure=False,
                retries=0,
            )
        self.in_flight[future] = (task, now())

    def _finished(self) -> list[Any]:
        with suppress(TimeoutError):
            self.distributed.wait(list(self.in_flight), timeout=MOMENT, return_when="FIRST_COMPLETED")
        return [future for future in self.in_flight if future.done()]

    def _hear(self, future: Any, desk: Desk) -> None:
        task, _ = self.in_flight.pop(future)
        if future.status == "error":
            desk.lose(task.queries, "crash", f"its workers died ({type(future.exception()).__name__})")
            return
        if future.status != "finished":  # cancelled, or lost with the scheduler
            desk.put_back(task.queries)
            return
        said = future.result()
        if isinstance(said, _Lacking):
            self._send_model(task, said, desk)
        elif isinstance(said, str):
            desk.give_up(task, said)
        else:
            desk.take(said.outcomes)
            desk.done(replace(task, where=said.address))

    def _send_model(self, task: Task, lacking: _Lacking, desk: Desk) -> None:
        """The same task to the same worker, with the model's files."""
        if lacking.version != __version__:
            raise InputError(f"workers have shakeproof {lacking.version}, this is {__version__}; install the same")
        try:
            files = {path.name: path.read_bytes() for path in model_files(Path(task.model.name))}
        except OSError as error:
            desk.give_up(task, f"{task.model.name}: cannot read the network ({error.strerror})")
            return
        workers = self._workers(desk)
        if lacking.address in workers:
            self._submit(task, {lacking.address: workers[lacking.address]}, files)
        else:
            desk.put_back(task.queries)

    def _stop_late(self, desk: Desk) -> None:
        """Stop workers that do not stop by themselves when the time is up: each query has a clock of its own."""
        for future, (task, began) in [*self.in_flight.items()]:
            timeout = task.settings.timeout
            if timeout is None:
                continue
            working = [address for address, keys in self.client.processing().items() if future.key in keys]
            each = timeout + (task.certificates or 0.0 if task.certify else 0.0)
            if not working:
                self.in_flight[future] = (task, now())  # it has not begun
            elif now() - began > (1 + len(task.questions)) * TIMES * each + GRACE:
                del self.in_flight[future]
                self.client.cancel([future], force=True)
                self.client.restart_workers(working, raise_for_error=False)
                desk.lose(task.queries, "timeout", "was stopped: it did not end by itself when its time was up")
