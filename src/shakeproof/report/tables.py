"""Tables for the terminal. Answers are drawn as they come, in columns where these fit, else one under another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import floor
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shakeproof.proof import Result, by_class
from shakeproof.question import ClassNames
from shakeproof.report.names import class_name, critical_text, margin_text

SENTENCES = {
    "not replayed": "in real numbers the label provably loses, by so little that the float32 runtime does not show it",
    "float32": "about every float32 evaluation of the network, in any order of summation; not about Winograd's method"
    " or TF32",
    "?": "this class is not proved to win: float64 shows it, but rounding may explain it",
    "*": "no label came with the image; the prediction at strength 0 is taken",
}
COLOURS = {"safe": "green", "unsafe": "red", "misclassified": "magenta", "undecided": "yellow"}
# What follows image and perturbation, and how many characters it takes. The last column has what is left, but this.
COLUMNS = {"label": 6, "status": 13, "critical strength": 20, "min margin": 10, "pieces": 7, "seconds": 8}
LAST, LAST_WIDTH, GAP = "classes over strength", 21, 2
# Longer names of classes are folded.
LABEL_WIDTH = 24


class Cells(NamedTuple):
    """A result in words; "-" where there is nothing to say."""

    image: str
    perturbation: str
    label: str
    status: Text
    critical: str
    margin: str
    pieces: str
    seconds: str
    classes: str

    @staticmethod
    def of(result: Result) -> Cells:
        return Cells(
            image=result.query.name,
            perturbation="-" if result.query.perturbation is None else str(result.query.perturbation),
            label=class_name(result, result.label) + "*" * result.query.label_predicted,
            status=Text(str(result.status), style=COLOURS[result.status]),
            critical=critical_text(result),
            margin=margin_text(result),
            pieces=str(result.pieces),
            seconds=f"{result.seconds:.3f}",
            classes=" ".join([*filter(None, [_journey(result)]), *(f"({word})" for word in _qualified(result))]),
        )


class ResultRows:
    """Draws results one by one; `names` has the image and the perturbation of each, `width` is the terminal's.

    `printable` says how a name will look there.
    """

    def __init__(
        self, names: Sequence[tuple[str, str]], width: int, printable: Callable[[str], str] = lambda name: name
    ) -> None:
        self.printable = printable
        image, perturbation = (
            max((cell_len(printable(own)) for own in {name[part] for name in names}), default=0) for part in (0, 1)
        )
        self.widths = {"image": max(image, 5), "perturbation": max(perturbation, 12), **COLUMNS}
        self.width, self.is_stacked = width, False
        self.image: str | None = None

    def drawn(self, result: Result) -> RenderableType:
        """What is to be printed of a result, below those before it."""
        before, self.image = self.image, result.query.name
        if before is None:
            self._measure(result.query.class_names)
        cells = Cells.of(result)
        cells = cells._replace(
            image=self.printable(cells.image), label=self.printable(cells.label), classes=self.printable(cells.classes)
        )
        if self.is_stacked:
            return Group(*([Text(cells.image, style="bold")] if before != cells.image else []), *self._stack(cells))
        return Group(*(_head(self.widths) if before is None else []), _row(self.widths, cells))

    @staticmethod
    def remarks(result: Result) -> dict[str, str]:
        """The words beside an answer that need a sentence below the table, and these."""
        said = {word: SENTENCES[word] for word in _qualified(result) if word in SENTENCES}
        if result.query.label_predicted:
            said["*"] = SENTENCES["*"]
        if any(step.endswith("?") for step in _journey(result).split()):
            said["?"] = SENTENCES["?"]
        return said if result.reason is None else said | {result.reason.value: result.reason.sentence}

    def _measure(self, names: ClassNames) -> None:
        """Room for the names of classes; what is left is for the last column, if that is enough."""
        longest = max((cell_len(self.printable(names.shown(number))) for number in range(len(names))), default=0)
        self.widths["label"] = min(max(longest + 1, COLUMNS["label"]), LABEL_WIDTH)
        self.widths[LAST] = self.width - sum(self.widths.values()) - GAP * len(self.widths)
        self.is_stacked = self.widths[LAST] < LAST_WIDTH

    def _stack(self, cells: Cells) -> Iterator[RenderableType]:
        """The answer behind the perturbation, everything else below it."""
        head = Text.assemble(f"  {cells.perturbation:{min(self.widths['perturbation'], 45)}}  ", cells.status)
        if cells.critical != "-":
            head.append(f"  critical strength {cells.critical}")
        yield head
        details = {"label": cells.label, "min margin": cells.margin, "pieces": cells.pieces, "seconds": cells.seconds}
        said = [cells.classes, *(f"{name} {value}" for name, value in details.items() if value != "-")]
        yield from (Text(f"    {line}") for line in filled([part for part in said if part], self.width - 4))


def _head(widths: Mapping[str, int]) -> Iterator[Table]:
    yield _row(widths, widths, "bold")
    yield _row(widths, ["-" * width for width in widths.values()])


def _row(widths: Mapping[str, int], cells: Iterable[str | Text], style: str = "") -> Table:
    """One row of a table whose columns have these names and widths."""
    row = Table.grid(padding=(0, GAP, 0, 0))
    for name, width in widths.items():
        side: Literal["left", "right"] = "left" if name in ("image", "perturbation", "status", LAST) else "right"
        row.add_column(width=width, justify=side, vertical="bottom" if style else "top", overflow="fold", style=style)
    row.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return row


def filled(parts: Iterable[str], width: int) -> Iterator[str]:
    """As many parts to a line as fit."""
    line = ""
    for part in parts:
        if line and cell_len(line) + 3 + cell_len(part) > width:
            yield line
            line = ""
        line += ("   " if line else "") + part
    yield line


def _qualified(result: Result) -> Iterator[str]:
    """What must be said beside a verdict."""
    if result.reason is not None:
        yield result.reason.value
    if result.rest is not None:
        yield str(result.rest)
    if result.as_pictures is not None:
        yield f"with --pixels 8bit: {result.as_pictures}"
    if result.status == "undecided" and not result.certified_strength and result.profile:
        first = by_class(result.profile)[0]
        if first.winner == result.query.label and first.end > 0:
            yield f"in float64, not proved: wins up to {first.end:.2g}"
    if result.arithmetic != "real":
        yield result.arithmetic
    found = result.counterexample
    if result.status == "unsafe" and found is not None and not found.replayed:
        yield "not replayed"


def _journey(result: Result) -> str:
    """`7 ▸0.43▸ 9`: the winning class, and the strength at which the next one takes over; or how much was proved.

    `9?` is a class that is not proved to win on more of its strengths than these digits show.
    """
    if result.query.path is None:
        return ""
    if result.regions is not None and result.status == "safe":
        return class_name(result, result.label)
    if result.regions is not None:
        share = result.regions.share(result.regions.safe, result.query.strengths)
        return f"{class_name(result, result.label)} on {floor(1000 * share) / 10:g}%"  # 100 % is all, not almost
    steps: list[str] = []
    for interval in by_class(result.profile):
        parts = (own for own in result.profile if interval.start <= own.start < interval.end and not own.proved)
        mark = "?" if sum(own.end - own.start for own in parts) > 5e-4 else ""
        steps.append(f"▸{interval.start:.3f}▸ " * bool(steps) + class_name(result, interval.winner) + mark)
    return " ".join(steps if len(steps) <= 5 else [*steps[:4], f"and {len(steps) - 4} more"])


class DemoRows:
    """Draws images one by one, perturbations across: the critical strength.

    `tables` has the perturbations of as many tables, one below another, as the width makes necessary.
    """

    def __init__(self, images: Sequence[str], perturbations: Sequence[str], width: int) -> None:
        self.first, self.images = images[0], max(map(cell_len, images))
        self.tables: list[list[str]] = []
        left = 0
        for text in perturbations:
            needed = GAP + _demo_width(_demo_heading(text))
            if not self.tables or left < needed:
                self.tables.append([])
                left = width - self.images
            self.tables[-1].append(text)
            left -= needed

    def drawn(self, row: Sequence[Result]) -> RenderableType:
        """What is to be printed of an image under the perturbations of a table, below those before it."""
        name, headings = row[0].query.name, [_demo_heading(str(result.query.perturbation)) for result in row]
        widths = {"image": self.images, **{heading: _demo_width(heading) for heading in headings}}
        return Group(*(_head(widths) if name == self.first else []), _row(widths, [name, *map(_demo_cell, row)]))


def _demo_heading(perturbation: str) -> str:
    return perturbation.replace("motion-blur", "motion").replace(":", "\n").replace(",", "\n")


def _demo_width(heading: str) -> int:
    return max(*map(len, heading.split("\n")), len("0.1234"))


def _demo_cell(result: Result) -> Text:
    critical = result.critical_strength
    return Text(str(result.status) if critical is None else f"{critical[0]:.4f}", style=COLOURS[result.status])
