"""Where the work is done: processes of this machine, or a Dask cluster. Same store, same answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from shakeproof.campaign.desk import Desk, Standing
from shakeproof.campaign.local import Pool


class Engine(Protocol):
    """Workers, `jobs` of them at once."""

    @property
    def jobs(self) -> int: ...

    def run(self, desk: Desk, tell: Callable[[Standing], None]) -> None:
        """Work until nothing is left, and tell how far it got."""


def workers(engine: str, jobs: int, scheduler: str | None = None) -> AbstractContextManager[Engine]:
    """Workers that end when they are not needed any more."""
    if engine == "local":
        return Pool(jobs)
    from shakeproof.campaign.cluster import Cluster

    return Cluster(jobs, scheduler)
