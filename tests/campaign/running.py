"""Campaigns on the bundled classifier, for tests that run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import interruptible

from shakeproof import Record, demo
from shakeproof.errors import InputError
from shakeproof.parallel import TaskRunner, TaskScheduler
from shakeproof.proof.evidence import by_class
from shakeproof.store import Store, StoreWriter, read_campaign, register

COMMAND = [sys.executable, "-m", "shakeproof"]
QUICK = ("box-blur:size=5", "sharpen:size=4", "motion-blur:size=9,angle=45", "haze:colour=0.2,clip=0..1")
# Takes minutes: several strengths, pinned down too closely.
SLOW = "box-blur:size=9+brightness:max=0.2"
SLOWLY = "[analysis]\ntolerance = 1e-9\n"


def written(folder: Path, perturbations=QUICK, images: int = 4, more: str = "", name: str = "c") -> Path:
    paths = [str(path) for path, _ in demo.images()[:images]]
    kernels = [*perturbations]
    text = f"models = {[str(demo.MODEL)]}\nperturbations = {kernels}\nstrengths = [0.5, 1.0]\n"
    text += f"images = {{ paths = {paths} }}\n{more}"
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


@contextmanager
def scheduler_of(file: Path, jobs: int = 1) -> Iterator[TaskScheduler]:
    campaign = read_campaign(file)
    with StoreWriter.open(campaign.store) as writer:
        yield TaskScheduler(campaign, register(campaign, writer), writer, jobs)


def no_progress(standing) -> None:
    """Whoever runs a campaign is told how far it got."""


def run_here(file: Path) -> None:
    """A whole campaign in this process."""
    runner = TaskRunner()
    with scheduler_of(file) as scheduler:
        while (task := scheduler.next_task()) is not None:
            runner.copies[task.model.digest] = task.model.name
            scheduler.finish(task, list(runner.outcomes(task)), 0.1)


def started(file: Path, *words: str) -> subprocess.Popen[str]:
    """The command itself, in its own process group."""
    return interruptible([*COMMAND, "campaign", file, *words], start_new_session=True)


def workers_of(process: int) -> list[int]:
    """The worker processes that a process has begun."""
    found = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in found.read_text().split()] if found.exists() else []


def answered(store: Path) -> int:
    try:
        with Store.open(store) as opened:
            return sum(campaign.answered for campaign in opened.campaigns())
    except InputError:  # it is being made
        return 0


def essence(store: Path) -> list[tuple[object, ...]]:
    """All that a store says, but for how long it took; numbers as far as the order of sums does not change them."""
    with Store.open(store) as opened:
        return [
            (own.model.digest, own.image.digest, str(own.perturbation), *said_by(own.record))
            for own in opened.profiles()
        ]


def said_by(record: Record) -> tuple[object, ...]:
    critical = None if record.critical_strength is None else round(record.critical_strength[0], 7)
    classes = [(round(part.start, 7), round(part.end, 7), part.winner) for part in by_class(record.profile)]
    return record.status, record.label, critical, classes, round(record.certified_strength, 7)
