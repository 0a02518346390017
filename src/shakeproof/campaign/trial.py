"""How long a campaign will take, from a short trial; nothing is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from shakeproof.budget import now
from shakeproof.campaign.asking import Registered, register
from shakeproof.campaign.desk import Desk
from shakeproof.campaign.file import Campaign
from shakeproof.campaign.findings import Certified, Finding
from shakeproof.campaign.ledger import Ledger, Waiting
from shakeproof.campaign.store import Store
from shakeproof.campaign.working import Workbench

# So many queries of each model are tried, spread over all; all models together take about so many seconds.
TRIED, SECONDS = 16, 10.0


@dataclass(frozen=True)
class Forecast:
    """Of `asked` queries `missing` need work; that would take so many seconds, and so many more for their certificates,
    if they are wanted. `at_least`: or longer.
    """

    asked: int
    missing: int
    models: int
    seconds: float
    certificate_seconds: float | None
    at_least: bool


def forecast(campaign: Campaign, store: Path, jobs: int) -> Forecast:
    """Read everything, as a campaign would, and try a few of the queries that are missing."""
    threads = torch.get_num_threads()
    with _copied(store) as ledger:
        registered = register(campaign, ledger)
        desk = Desk(campaign, registered, ledger, jobs)
        waiting = list(desk.queue)
        models = sorted({own.model for own in waiting})
        total, certified, late = 0.0, 0.0, False
        try:
            torch.set_num_threads(1)
            for model in models:
                own = [query for query in waiting if query.model == model]
                each, then, stopped = _tried(campaign, registered, desk, own, SECONDS / len(models))
                total, certified, late = total + each * len(own), certified + then * len(own), late or stopped
        finally:
            torch.set_num_threads(threads)
        asked = ledger.campaign(registered.id).asked
        certificates = None if campaign.certificates is None else certified / jobs
        return Forecast(asked, len(waiting), len(registered.models), total / jobs, certificates, late)


def _tried(
    campaign: Campaign, registered: Registered, desk: Desk, waiting: list[Waiting], seconds: float
) -> tuple[float, float, bool]:
    """What a query of a model takes, in seconds, and its certificate; and whether some did not end in time."""
    settings = replace(campaign.settings, timeout=min(seconds, campaign.settings.timeout or seconds))
    count = min(TRIED, len(waiting))
    some = [waiting[number * len(waiting) // count] for number in range(count)]
    bench = Workbench()
    bench.network(registered.models[some[0].model], campaign.settings)
    size = max(1, min(count, registered.models[some[0].model].at_once))
    limit = None if campaign.certificates is None else min(seconds, campaign.certificates)
    began, certifying, done, late = now(), 0.0, 0, False
    while done < count and (not done or now() - began < seconds):
        task = replace(desk.task(some[done : done + size]), settings=settings, certificates=limit, certify=False)
        found = list(bench.results(task))
        late = late or any(isinstance(own, Finding) and own.record["reason"] == "timeout" for own in found)
        due, answered = {own.query for own in found if isinstance(own, Finding) and own.is_due}, now()
        if due:
            certify = replace(task, certify=True, questions=[own for own in task.questions if own.query in due])
            late = any(isinstance(own, Certified) and own.is_late for own in bench.results(certify)) or late
        certifying += now() - answered
        done += len(found)
    return (now() - began - certifying) / done, certifying / done, late


@contextmanager
def _copied(store: Path) -> Iterator[Ledger]:
    """A copy of the store, if there is one, to be thrown away."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "trial.db"
        if store.exists():
            with Store.open(store) as original, sqlite3.connect(copy) as target:
                original.connection.backup(target)
            target.close()
        with Ledger.open(copy) as ledger:
            yield ledger
