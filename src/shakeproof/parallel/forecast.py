"""How long a campaign will take, from a short trial; nothing is written."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shakeproof.budget import now
from shakeproof.linalg import on_threads
from shakeproof.parallel.scheduler import TaskScheduler
from shakeproof.parallel.tasks import TaskRunner
from shakeproof.proof import Expected
from shakeproof.store import Campaign, Certified, Finding, Store, StoreWriter, register

# So many queries of each model are tried, spread over all; all models together take about so many seconds.
TRIED, SECONDS = 16, 10.0


@dataclass(frozen=True)
class Forecast:
    """Of `asked` queries `missing` need work; that would take so many seconds, and so many more for their certificates,
    if they are wanted. `at_least`: or longer. `as_pictures` is what 8-bit pictures would take in place of those that
    did not end in their trial, all together.
    """

    asked: int
    missing: int
    models: int
    seconds: float
    certificate_seconds: float | None
    at_least: bool
    as_pictures: Expected | None = None


def forecast(campaign: Campaign, store: Path, jobs: int) -> Forecast:
    """Read everything, as a campaign would, and try a few of the queries that are missing."""
    with _copied(store) as writer:
        registered = register(campaign, writer)
        scheduler = TaskScheduler(campaign, registered, writer, jobs)
        missing = Counter(waiting.model for waiting in scheduler.queue)
        with on_threads(1):
            trials = {model: _try_some(scheduler, model, SECONDS / len(missing)) for model in missing}
        seconds, certifying = (
            sum(
                count * (scheduler.costs.each(registered.models[model].digest, certify) or 0.0)
                for model, count in missing.items()
            )
            / jobs
            for certify in (False, True)
        )
        return Forecast(
            asked=scheduler.total,
            missing=missing.total(),
            models=len(registered.models),
            seconds=seconds,
            certificate_seconds=None if campaign.certificates is None else certifying,
            at_least=any(trial.late for trial in trials.values()),
            as_pictures=_together([trial.as_pictures(missing[model]) for model, trial in trials.items()], jobs),
        )


@dataclass(frozen=True)
class ShortTrial:
    """What became of some queries of a model: whether some did not end in time, and what pictures would take each."""

    late: bool
    pictures: Sequence[Mapping[str, Any]]

    def as_pictures(self, count: int) -> tuple[float, float]:
        """How many pictures so many queries have about, and the seconds that they take on one core."""
        each = [(picture["pictures"], picture["seconds"] * picture["cores"]) for picture in self.pictures]
        pictures, seconds = (sum(column) / len(each) for column in zip(*each, strict=True)) if each else (0.0, 0.0)
        return count * pictures, count * seconds


def _together(models: Sequence[tuple[float, float]], jobs: int) -> Expected | None:
    pictures, seconds = (sum(column) for column in zip(*models, strict=True)) if models else (0.0, 0.0)
    return Expected(round(pictures), seconds / jobs, counted=False, cores=jobs) if pictures else None


def _try_some(scheduler: TaskScheduler, model: int, seconds: float) -> ShortTrial:
    """Measure queries of a model, and their certificates."""
    campaign, model_file = scheduler.campaign, scheduler.registered.models[model]
    settings = replace(campaign.settings, timeout=min(seconds, campaign.settings.timeout or seconds))
    limit = None if campaign.certificates is None else min(seconds, campaign.certificates)
    waiting = [one for one in scheduler.queue if one.model == model]
    count = min(TRIED, len(waiting))
    sample = [waiting[number * len(waiting) // count] for number in range(count)]
    runner = TaskRunner()
    runner.network(model_file, settings)
    size, late, ends = min(count, model_file.at_once), False, now() + seconds
    pictures: list[Mapping[str, Any]] = []
    for start in range(0, count, size):
        task = replace(
            scheduler.task(sample[start : start + size]), settings=settings, certificates=limit, certify=False
        )
        began = now()
        findings = [one for one in runner.outcomes(task) if isinstance(one, Finding)]
        scheduler.costs.add(model_file.digest, False, len(task.questions), now() - began)
        late = late or any(one.record["reason"] == "timeout" for one in findings)
        pictures += [one.record["as_pictures"] for one in findings if one.record.get("as_pictures")]
        due, began = {one.query for one in findings if one.is_due}, now()
        certify = replace(task, certify=True, questions=[one for one in task.questions if one.query in due])
        late = any(isinstance(one, Certified) and one.is_late for one in runner.outcomes(certify)) or late
        scheduler.costs.add(model_file.digest, True, len(task.questions), now() - began)
        if now() > ends:
            break
    return ShortTrial(late, pictures)


@contextmanager
def _copied(store: Path) -> Iterator[StoreWriter]:
    """A copy of the store, if there is one, to be thrown away."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "trial.db"
        if store.exists():
            with Store.open(store) as original, sqlite3.connect(copy) as target:
                original.connection.backup(target)
            target.close()
        with StoreWriter.open(copy) as writer:
            yield writer
