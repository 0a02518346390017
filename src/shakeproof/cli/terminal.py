"""What is shown in the terminal: progress, tables, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from shakeproof.network import Network
    from shakeproof.result import Result

EXIT_UNSAFE, EXIT_UNDECIDED = 1, 3


def terminal(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    # A table squeezed into a pipe's assumed 80 columns is no use to anyone.
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=160)


@contextmanager
def progress_bar(title: str, silent: bool) -> Iterator[Callable[[float], None]]:
    """A live bar on stderr, where that is a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = terminal(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=silent or not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


def print_results(networks: Sequence[Network], results: Sequence[Result]) -> None:
    from shakeproof.report import explanations, label_notes, results_table

    console = terminal()
    notes = dict.fromkeys(note for network in networks for note in network.notes)
    for note in (*notes, *label_notes(results)):
        console.print(f"[dim]note: {note}[/]")
    console.print(results_table(results))
    for explanation in explanations(results):
        console.print(explanation)


def exit_code(results: Sequence[Result]) -> int:
    """0 all safe, 1 some unsafe (or misclassified), 3 some undecided and none unsafe."""
    statuses = {result.status.value for result in results}
    if statuses & {"unsafe", "misclassified"}:
        return EXIT_UNSAFE
    return EXIT_UNDECIDED if "undecided" in statuses else 0
