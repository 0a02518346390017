"""Printing, in any encoding: rows or JSON lines as answers come, progress, refusals; the exit code."""

from __future__ import annotations

import codecs
import gc
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

from shakeproof.errors import Refusal, ShakeproofError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from shakeproof.cli.queries import Known
    from shakeproof.comparing import Compared
    from shakeproof.proof import Expected, Result
    from shakeproof.question import Query
    from shakeproof.store import Judged

EXIT_UNSAFE, EXIT_BAD_INPUT, EXIT_UNDECIDED, EXIT_INTERRUPTED = 1, 2, 3, 130
EXIT_NO = 1  # to a question of yes or no
# How the arguments that errors speak of are typed here.
FLAGS = {
    "memory": "--memory GIB",
    "image_shape": "--image-shape C,H,W",
    "output_name": "--output-name NAME",
    "require": "--require TEXT",
    "method": "--method bounds",
    "arithmetic": "--arithmetic real",
    "pixels": "--pixels 8bit",
    "array": "--array NAME --labels NAME",
    "classes": "--classes FILE",
    "colour": "--colour rgb or --colour grey",
    "resize": "--resize H,W and --crop H,W",
    "mean": "--mean and --std",
    "scale": "--scale 0..255; --scale 0..1 takes them as they are",
}
# How the files of several queries are numbered.
NUMBER = re.compile(r"-\d+$")
# What our own tables and messages use beyond ASCII, and what stands for it where that cannot be printed.
PLAIN = str.maketrans({"▸": ">", "×": "x", "…": "...", "–": "-", "≥": ">=", "≤": "<="})


def print_anywhere() -> None:
    """Let stdout and stderr take any text in any encoding, without errors or losses."""
    codecs.register_error("shakeproof-readable", _readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="shakeproof-readable")


def _readable(error: UnicodeError) -> tuple[str, int]:
    """Replace what cannot be encoded: our own symbols by ASCII, undecodable bytes and everything else by codes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(PLAIN)
    # A byte that is no UTF-8 is a code from DC80 to DCFF, as Python keeps those of file names.
    shown = (f"\\x{ord(char) - 0xDC00:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in text)
    return "".join(shown).encode("ascii", "backslashreplace").decode(), error.end


def printable(text: str, encoding: str) -> str:
    """The text as it will look in an encoding: tables are laid out by that."""
    return text.encode(encoding, "shakeproof-readable").decode(encoding)


def complain(problem: str | ShakeproofError) -> int:
    """One line on stderr, and the exit code of a mistake."""
    flag = FLAGS.get(problem.option or "") if isinstance(problem, ShakeproofError) else None
    message = f"{problem} ({flag})" if flag else str(problem)
    say(f"shakeproof: {' '.join(message.split())}", sys.stderr)
    return EXIT_BAD_INPUT


def say(line: str, stream: TextIO | None = None) -> None:
    """A line for people or programs, at once."""
    stream = stream or sys.stdout
    stream.write(f"{line}\n")
    stream.flush()


def say_judged(found: Sequence[Judged]) -> None:
    """Whether each requirement is met, in a line, with its network if there are several."""
    several = len({one.model.digest for one in found}) > 1
    for one in found:
        network = f" {Path(one.model.name).name}" if several else ""
        say(f"{one.outcome} {one.requirement.id}{network}: {one.sentence}")


@contextmanager
def many_values() -> Iterator[None]:
    """Where millions of small values are made, none of them in a circle, looking for circles takes half of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def terminal(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    # A table squeezed into a pipe's assumed 80 columns is no use to anyone.
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 160
    return console


def plain_table(*headings: str) -> Table:
    """An empty table in the style of all tables here."""
    from rich.table import Table

    table = Table(header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


class Bar(NamedTuple):
    """A live bar: takes how far it got, and what else there is to say of it; whether it is to be seen."""

    advance: Callable[[float], None]
    entitle: Callable[[str], None]
    is_seen: bool


@contextmanager
def progress_bar(title: str, silent: bool, total: float = 1.0, printing: Console | None = None) -> Iterator[Bar]:
    """A live progress bar if stdout or stderr is a terminal; rows are printed above it."""
    from rich.progress import Progress, TimeElapsedColumn

    printing = printing or terminal()
    here = printing.is_terminal
    console = printing if here else terminal(stderr=True)
    bar = Progress(
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=here,
        redirect_stderr=sys.stderr.isatty(),
        disable=silent or not console.is_terminal,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield Bar(
            advance=lambda done: bar.update(task, completed=done),
            entitle=lambda more: bar.update(task, description=f"{title}: {more}"),
            is_seen=not bar.disable,
        )


class Drawing(Protocol):
    """Draws answers, and explains the words beside them."""

    def drawn(self, answer: Any, /) -> RenderableType: ...

    def remarks(self, answer: Any, /) -> dict[str, str]: ...


class Screen:
    """Shows answers as they come, and keeps count; `names` has the image and the perturbation of each query.

    Answers are `Result`s, drawn as rows of a table, or comparisons, drawn in their own way; or they are lines for
    programs, which `line` makes of them.
    """

    def __init__(
        self,
        names: Sequence[tuple[str, str]],
        line: Callable[[Any], str] | None,
        quiet: bool,
        compares: bool = False,
    ) -> None:
        self.names, self.line, self.quiet = names, line, quiet
        self.console = terminal()
        self.rows: Drawing | None = None
        if line is None and not quiet:
            from shakeproof.report import ComparedRows, ResultRows

            width, shown = self.console.width, partial(printable, encoding=self.console.encoding)
            self.rows = ComparedRows(width, shown) if compares else ResultRows(names, width, shown)
        self.doing = "comparing" if compares else "certifying"
        self.missing = dict.fromkeys(range(len(names)))
        self.statuses: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.refused = self.settled = 0
        self.notes: set[str] = set()
        self.remarks: dict[str, str] = {}

    @contextmanager
    def progress(self) -> Iterator[Callable[[float], None]]:
        """Takes how many queries are answered; below the answers, unless these are for programs."""
        silent = self.quiet or (self.line is not None and self.console.is_terminal)
        with progress_bar(self.doing, silent, len(self.names), self.console) as self.bar:
            yield lambda done: self.bar.advance(self.settled + done)

    def expect(self, query: Query, expected: Expected, certified: float) -> None:
        """What running a query's pictures will take, and how much is certified: beside the bar, or where there is none
        on a line of its own, before they are run.
        """
        if self.bar.is_seen:
            self.bar.entitle(f"{expected}, certified up to {certified:.4f}" if certified else str(expected))
        elif not certified:
            say(f"{query.name}, {query.perturbation}: {expected}", sys.stderr)

    def show(self, number: int, answer: Result | Compared, notes: Sequence[str]) -> None:
        """The answer to a query, and what the user should know that was not said before."""
        del self.missing[number]
        self.statuses[answer.status.value] += 1
        if self.line is not None:
            say(self.line(answer))
        elif self.rows is not None:
            for note in dict.fromkeys(note for note in notes if note not in self.notes):
                self.console.print(f"note: {note}", style="dim", markup=False)
            self.notes.update(notes)
            self.console.print(self.rows.drawn(answer))
            self.remarks |= self.rows.remarks(answer)

    def settle(self, numbers: range, outcome: Known | Refusal) -> None:
        """Handle queries that need no answer: report unusable images, count answers that are known already."""
        self.settled += len(numbers)
        for number in numbers:
            del self.missing[number]
        if isinstance(outcome, Refusal):
            self.refused += 1
            complain(outcome.error)
        else:
            self.known[outcome.status] += 1

    def close(self) -> None:
        """Explain the words beside answers and, if there are several, count each kind."""
        if self.rows is None:
            return
        for word, sentence in sorted(self.remarks.items()):
            self.console.print(f"[yellow]{word}[/]: {sentence}")
        if self.statuses.total() > 1:
            counts = ", ".join(f"{count} {status}" for status, count in self.statuses.most_common())
            self.console.print(f"{self.statuses.total()} answers: {counts}")
        if self.known:
            self.console.print(f"{self.known.total()} already in the output file")

    def wrote(self, paths: Iterable[Path | None]) -> None:
        """Name the written files (of many, the first and the last); on stderr if stdout has JSON."""
        kinds: dict[tuple[str, str], list[Path]] = {}
        for path in filter(None, paths):
            kinds.setdefault((NUMBER.sub("", path.stem), path.suffix), []).append(path)
        for files in () if self.quiet else kinds.values():
            last = f" to {files[-1]} ({len(files)} files)" if len(files) > 1 else ""
            say(f"wrote {files[0]}{last}", sys.stderr if self.line is not None else None)

    def interrupted(self, more: str = "") -> int:
        """Say how many queries are missing and which is next, and `more`."""
        if self.missing:
            first = " ".join(part for part in self.names[next(iter(self.missing))] if part != "-")
            answered = f"{len(self.names) - len(self.missing)} of {len(self.names)} answered"
            complain(f"interrupted; {answered}; next: {first}{more}")
        return EXIT_INTERRUPTED

    def exit_code(self) -> int:
        """2 if something was refused; else 0 all safe, 1 some unsafe (or misclassified), 3 some undecided and none
        unsafe; or of two networks, 0 that they agree, 1 that they disagree somewhere.
        """
        statuses = self.statuses + self.known
        if self.refused:
            return EXIT_BAD_INPUT
        if {"unsafe", "misclassified", "disagree"} & {*statuses}:
            return EXIT_UNSAFE
        return EXIT_UNDECIDED if "undecided" in statuses else 0


def json_line(answer: Result | Compared) -> str:
    """What `--json` prints."""
    return json.dumps(answer.to_json())
