"""Two networks side by side, for the terminal: where they disagree, stretch by stretch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shakeproof.comparing import Compared, Disagreement
from shakeproof.proof import Reason
from shakeproof.report.tables import GAP, filled

COLOURS = {"agree": "green", "disagree": "red", "undecided": "yellow"}
# So many stretches are listed, the longest ones; `--json` has all.
LISTED = 6
# What rounding leaves open beside a flip is narrower than this, and only of interest if nothing else is.
NARROW = 1e-6
INDENT, STRENGTH = 4, 11
SENTENCES = {
    Reason.ROUNDING: "who wins is closer there than float64 rounding might explain, by one network or both",
    Reason.NOT_REPLAYED: "they differ by so little somewhere that the float32 runtimes do not show it",
}


class ComparedRows:
    """Draws comparisons one by one, for a terminal that is so wide; `printable` says how a name will look there."""

    def __init__(self, width: int, printable: Callable[[str], str] = lambda name: name) -> None:
        self.width, self.printable = width, printable
        self.image: str | None = None

    def drawn(self, compared: Compared) -> RenderableType:
        """What is to be printed of a comparison, below those before it."""
        before, self.image = self.image, compared.query.name
        heading = [Text(self.printable(self.image), style="bold")] if before != self.image else []
        return Group(*heading, *self._lines(compared))

    def remarks(self, compared: Compared) -> dict[str, str]:
        """The word beside an answer that needs a sentence below the table, and this."""
        reason = compared.reason if _shown(compared) else None
        return {} if reason is None else {reason.value: SENTENCES.get(reason, reason.sentence)}

    def _lines(self, compared: Compared) -> Iterator[RenderableType]:
        head = Text(f"  {compared.query.perturbation}  ")
        head.append(str(compared.status), style=COLOURS[compared.status])
        if compared.disagreements:
            count = len(compared.disagreements)
            stretches = "one stretch" if count == 1 else f"{count} stretches"
            head.append(f" on {100 * compared.share:.3g}% of strengths, in {stretches}")
        yield head
        if compared.disagreements:
            yield self._stretches(compared)
        yield from (Text(f"{' ' * INDENT}{line}") for line in filled(self._details(compared), self.width - INDENT))

    def _stretches(self, compared: Compared) -> Table:
        """The longest stretches, in their order."""
        left = self.width - INDENT - 3 * STRENGTH - 5 * GAP
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(width=INDENT - GAP)
        for width in (STRENGTH, STRENGTH, left // 2, left // 2, STRENGTH):
            table.add_column(max_width=width, overflow="fold")
        models = told_apart(compared.first.model, compared.second.model)
        heads = ("from", "to", *map(self.printable, models), "replayed at")
        table.add_row("", *(Text(head, style="bold") for head in heads))
        longest = sorted(compared.disagreements, key=lambda own: own.start - own.end)[:LISTED]
        for own in sorted(longest, key=lambda own: own.start):
            table.add_row("", *(Text(cell) for cell in self._cells(compared, own)))
        return table

    def _cells(self, compared: Compared, own: Disagreement) -> Iterator[str]:
        yield from (f"{own.start:.6f}", f"{own.end:.6f}")
        yield from (self.printable(compared.class_names.shown(number)) for number in (own.first, own.second))
        yield f"{own.strength:.7f}" if own.replayed else "not shown"

    def _details(self, compared: Compared) -> Iterator[str]:
        more = len(compared.disagreements) - LISTED
        if more > 0:
            yield f"and {more} shorter" if more > 1 else "and a shorter one"
        open_stretches = _shown(compared)
        if open_stretches:
            start, end = open_stretches[0]
            others = f" and {len(open_stretches) - 1} more" if len(open_stretches) > 1 else ""
            yield f"not settled from {start:.6f} to {end:.6f}{others} ({compared.reason})"
        elif compared.status == "undecided":
            yield f"({compared.reason})"
        first, second = compared.first.pieces, compared.second.pieces
        what = "pictures" if compared.first.method == "enumeration" else "pieces"
        yield f"{what} {first}" if first == second else f"{what} {first} and {second}"
        yield f"seconds {compared.seconds:.3f}"


def _shown(compared: Compared) -> list[tuple[float, float]]:
    """What is open, but for how exactly the ends of disagreements are known."""
    wanted = NARROW if compared.status == "disagree" else 0.0
    return [(start, end) for start, end in compared.open if end - start >= wanted]


def told_apart(first: str, second: str) -> tuple[str, str]:
    """Names of files without their folders, if that tells them apart."""
    names = Path(first).name, Path(second).name
    return names if names[0] != names[1] else (first, second)
