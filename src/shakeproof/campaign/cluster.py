"""The Dask engine: workers on any number of machines, which share no files with this one.

Models go to workers as bytes, once each, pictures and kernels with their tasks. Only this process touches the store: a
scheduler or a worker that dies costs the queries in flight, no more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

import torch

from shakeproof import __version__
from shakeproof.budget import now
from shakeproof.campaign.asking import ModelFile
from shakeproof.campaign.desk import Desk, Standing
from shakeproof.campaign.local import GRACE, MOMENT, TIMES
from shakeproof.campaign.working import ModelError, Task, Workbench
from shakeproof.errors import InputError
from shakeproof.network import model_files

# A cluster may take so many seconds to answer, and its workers to come back, before it is given up.
PATIENCE = 60.0
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


def receive(version: str, model: ModelFile, files: Mapping[str, bytes]) -> str:
    """On a worker: keep a model's files. Says which version of shakeproof is there, if it is another."""
    station = _station()
    folder = Path(station.folder.name) / model.digest
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    station.bench.copies[model.digest] = str(folder / next(iter(files)))
    return "" if version == __version__ else __version__


def perform(task: Task, threads: int) -> Any:
    """On a worker: the results of a task; None where its model is missing, a text where it cannot be used."""
    station = _station()
    with station.busy:
        if task.model.digest not in station.bench.copies:
            return None
        torch.set_num_threads(threads)
        try:
            return list(station.bench.results(task))
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
        self.wanted, self.scheduler = jobs, scheduler
        self.in_flight: dict[Any, tuple[Task, float]] = {}

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
        return max(1, len(self._workers()))

    def run(self, desk: Desk, tell: Callable[[Standing], None]) -> None:
        """Work until nothing is left."""
        sent: dict[str, set[str]] = {}
        gone: float | None = None
        try:
            while not desk.is_done():
                workers = self._workers()
                gone = None if workers else gone or now()
                if gone is not None and now() - gone > PATIENCE:
                    raise InputError("the Dask cluster has no workers any more; start some, and the same command again")
                self._hand_out(desk, workers, sent)
                for future in self._finished():
                    self._hear(future, desk, sent)
                self._stop_late(desk)
                desk.beat()
                tell(desk.standing())
        finally:
            with suppress(InputError):
                desk.close()

    def _workers(self) -> dict[str, int]:
        """Addresses, and how many threads each has."""
        try:
            known = self.client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, KeyError):
            return {}
        return {address: int(facts["nthreads"]) for address, facts in known.items()}

    def _hand_out(self, desk: Desk, workers: Mapping[str, int], sent: dict[str, set[str]]) -> None:
        """One task for each worker, and one that waits, so that none has to."""
        desk.jobs = max(1, len(workers))
        while workers and len(self.in_flight) < len(workers) + 1:
            task = desk.next_task()
            if task is None:
                return
            self._submit(desk, task, workers, sent)

    def _submit(self, desk: Desk, task: Task, workers: Mapping[str, int], sent: dict[str, set[str]]) -> None:
        """A task to whichever worker is free; its model first to all that do not have it."""
        known = sent.setdefault(task.model.digest, set())
        new = [address for address in workers if address not in known]
        try:
            if new:
                files = {path.name: path.read_bytes() for path in model_files(Path(task.model.name))}
                others = self.client.run(receive, __version__, task.model, files, workers=new, on_error="return")
                known |= {address for address, said in others.items() if said == ""}
                wrong = {said for said in others.values() if isinstance(said, str) and said}
                if wrong:
                    raise InputError(
                        f"workers have shakeproof {', '.join(wrong)}, this is {__version__}; install the same"
                    )
        except OSError as error:
            desk.give_up(task, f"{task.model.name}: cannot read the network ({error.strerror})")
            return
        future = self.client.submit(perform, task, min(workers.values()), pure=False, retries=0)
        self.in_flight[future] = (task, now())

    def _finished(self) -> list[Any]:
        with suppress(TimeoutError):
            self.distributed.wait(list(self.in_flight), timeout=MOMENT, return_when="FIRST_COMPLETED")
        return [future for future in self.in_flight if future.done()]

    def _hear(self, future: Any, desk: Desk, sent: dict[str, set[str]]) -> None:
        task, _ = self.in_flight.pop(future)
        if future.status != "finished":
            message = "its workers died" if future.status == "error" else "its worker was lost"
            desk.lose(task.queries, "crash", f"{message} ({type(future.exception()).__name__})")
            return
        said = future.result()
        if said is None:  # a worker that came later, or again
            sent.pop(task.model.digest, None)
            desk.put_back(task.queries)
        elif isinstance(said, str):
            desk.give_up(task, said)
        else:
            desk.take(said)

    def _stop_late(self, desk: Desk) -> None:
        """Stop workers that do not stop by themselves when the time is up: each query has a clock of its own."""
        for future, (task, began) in [*self.in_flight.items()]:
            timeout = task.settings.timeout
            if timeout is None:
                continue
            clocks = 1 + len(task.questions)
            working = [address for address, keys in self.client.processing().items() if future.key in keys]
            if not working:
                self.in_flight[future] = (task, now())  # it has not begun
            elif now() - began > clocks * TIMES * timeout + GRACE:
                del self.in_flight[future]
                self.client.cancel([future], force=True)
                self.client.restart_workers(working, raise_for_error=False)
                desk.lose(task.queries, "timeout", "was stopped: it did not end by itself when its time was up")
