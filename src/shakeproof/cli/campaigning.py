"""`campaign`: answers all queries of a campaign file into a store; answers that are there are not computed again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shakeproof.cli.options import FILE, check_writable
from shakeproof.cli.terminal import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_UNDECIDED,
    EXIT_UNSAFE,
    complain,
    say,
    say_judged,
    terminal,
)
from shakeproof.errors import InputError

if TYPE_CHECKING:
    from shakeproof.parallel import Standing, TaskScheduler
    from shakeproof.store import Campaign, Store, StoredCampaign, StoreWriter

# Without a terminal, progress is a line every so many seconds.
SAID_EVERY = 30.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), metavar="FILE",
              help="SQLite file for the answers [default: as FILE.toml says, else FILE.db beside it].")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 4096),
              help="Number of worker processes [default: one per core].")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS",
              help="Dask scheduler, e.g. tcp://host:8786 [default: worker processes on this machine].")  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Check all inputs, count the queries and estimate the time; write nothing."
)
@click.option("--retry", is_flag=True, help="Repeat the queries that ended in an error.")
@click.option("--junit", type=FILE, metavar="FILE",
              help="Write a JUnit XML file with one test case per requirement.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print no progress and no notes.")
def campaign(
    file: Path,
    store: Path | None,
    jobs: int | None,
    scheduler: str | None,
    dry_run: bool,
    retry: bool,
    junit: Path | None,
    quiet: bool,
) -> int:
    """Analyse a campaign: models x images x perturbations.

    FILE.toml lists them. Each answer is stored as soon as it is known. Run the same command again to continue; several
    runs at once share the work. `shakeproof table`, `results` and `report` show the answers.

    If the file has requirements, each is judged: exit code 0 all are met, 1 one is not met, 3 one is not shown. Else 0
    all answered, 3 some queries ended in an error. In both cases 2 bad input, 130 interrupted.
    """
    from shakeproof.parallel import default_jobs
    from shakeproof.store import read_campaign

    plan = read_campaign(file)
    if junit is not None:
        check_writable(junit, ())
        if not plan.requirements:
            raise InputError(f"{file}: has no [[requirement]], of which --junit writes test cases")
    store = store or plan.store
    jobs = jobs or default_jobs(plan.settings.memory)
    if dry_run:
        return _forecast(plan, store, jobs)
    try:
        return _run(plan, store, jobs, scheduler, retry, quiet, junit)
    except KeyboardInterrupt:
        complain(f"interrupted; answers so far are in {store}; run the same command to continue")
        return EXIT_INTERRUPTED


def _forecast(plan: Campaign, store: Path, jobs: int) -> int:
    from shakeproof.parallel import forecast

    estimate = forecast(plan, store, jobs)
    known = f", {estimate.asked - estimate.missing} already answered" if estimate.missing < estimate.asked else ""
    models, kernels = _several(estimate.models, "model"), _several(len(plan.perturbations), "perturbation")
    say(f"{_several(estimate.asked, 'query')}: {models}, {kernels}{known}")
    if estimate.missing:
        about = "more than" if estimate.at_least else "about"
        then = estimate.certificate_seconds
        certified = "" if then is None else f", and their certificates {about} {_duration(then)}"
        time = f"{estimate.missing} would take {about} {_duration(estimate.seconds)}"
        say(f"{time} with {_several(jobs, 'job')} on this machine{certified}")
        if estimate.as_pictures is not None:
            say(f'queries whose trial did not finish, as 8-bit pictures (pixels = "8bit"): {estimate.as_pictures}')
    return 0


def _run(
    plan: Campaign,
    store: Path,
    jobs: int,
    scheduler: str | None,
    retry: bool,
    quiet: bool,
    junit: Path | None,
) -> int:
    from shakeproof.parallel import Cluster, TaskScheduler
    from shakeproof.store import StoreWriter, register

    with StoreWriter.open(store) as writer, Cluster(jobs, scheduler) as cluster:
        with _progress("reading", quiet) as tell:
            registered = register(plan, writer, lambda share: tell(share, ""))
        if retry:
            writer.forget_errors(registered.id)
        if not quiet:
            for note in registered.notes:
                terminal(stderr=True).print(f"note: {note}", style="dim", markup=False)
        run = TaskScheduler(plan, registered, writer, cluster.jobs)
        with _progress("certifying", quiet) as tell:
            shown = 0

            def show(standing: Standing) -> None:
                nonlocal shown
                for notice in standing.notices[shown:]:
                    complain(notice)
                shown = len(standing.notices)
                tell(standing.settled / max(standing.total, 1), _counts(standing))

            cluster.run(run, show)
        code = _summary(writer, writer.campaign(registered.id), run, quiet)
        return _judge(writer, registered.id, code, quiet, junit) if plan.requirements else code


def _judge(store: Store, campaign: int, code: int, quiet: bool, junit: Path | None) -> int:
    """Print whether each requirement is met, and write test cases; the exit code."""
    from shakeproof.cli.outputs import JunitFile
    from shakeproof.store import Judgement, judged

    found = judged(store, campaign)
    if not quiet:
        say_judged(found)
    if junit is not None:
        cases = JunitFile(junit, [(one.model.name, one.requirement.id) for one in found])
        for number, one in enumerate(found):
            cases.judge(number, one)
        cases.write()
    if code == EXIT_BAD_INPUT:
        return code
    outcomes = {one.outcome for one in found}
    return EXIT_UNSAFE if Judgement.NOT_MET in outcomes else EXIT_UNDECIDED if Judgement.NOT_SHOWN in outcomes else 0


def _summary(writer: StoreWriter, stored: StoredCampaign, run: TaskScheduler, quiet: bool) -> int:
    if not quiet:
        in_run, where = run.statuses.total(), f"{writer.path} ({writer.size / 2**20:.1f} MiB)"
        say(f"{stored.answered} of {stored.asked} queries answered ({in_run} in this run); wrote {where}")
        say(f"next: shakeproof table {writer.path}, or shakeproof report {writer.path}")
    for message in run.unusable.values():
        complain(message)
    without, why = writer.without_certificates(stored.id)
    if without:
        complain(f"{_several(without, 'answer')} without a certificate; first: {why} (--retry tries again)")
    if stored.missing:
        complain(f"{_several(stored.missing, 'query')} not answered; run the same command to continue")
        return EXIT_BAD_INPUT
    if stored.failed:
        first = next(writer.errors(stored.id))
        what = f"{Path(first.image.name).name} under {first.perturbation}: {first.message}"
        complain(f"{_several(stored.failed, 'query')} ended in an error; first: {what} (--retry tries again)")
        return EXIT_UNDECIDED
    return 0


def _counts(standing: Standing) -> str:
    """The answers so far, the speed, and the time remaining."""
    counts = ", ".join(f"{count} {status}" for status, count in standing.statuses.items())
    left = (standing.total - standing.settled) / standing.rate if standing.rate > 0 else None
    eta = "" if left is None or not counts else f", {standing.rate:.3g}/s, {_duration(left)} left"
    return f"{standing.settled} of {standing.total}{': ' * bool(counts)}{counts}{eta}"


def _several(count: int, what: str) -> str:
    plural = {"query": "queries"}.get(what, f"{what}s")
    return f"{count} {what if count == 1 else plural}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"


@contextmanager
def _progress(title: str, quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """Shows the share done and a text: a live bar on a terminal, else an occasional line."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from shakeproof.budget import now

    console = terminal(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
    bar = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    told = now()

    def tell(share: float, words: str) -> None:
        nonlocal told
        bar.update(task, completed=share, words=words)
        if not (quiet or console.is_terminal) and words and now() - told > SAID_EVERY:
            told = now()
            say(words, sys.stderr)

    with bar:
        task = bar.add_task(title, total=1.0, words="")
        yield tell
