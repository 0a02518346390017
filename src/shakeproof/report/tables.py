"""Tables for the terminal. Each answer is drawn when it comes: in columns if they fit, else one line below another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import ceil, floor
from pathlib import Path
from typing import Literal

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shakeproof.comparing import Compared
from shakeproof.proof import BLURS_AT_ZERO, LIKELY_CAUSE, Enumerated, Reason, Result, Swept, bracketed, by_class
from shakeproof.question import ClassNames

SENTENCES = {
    "not replayed": "the label provably loses in real numbers, by so little that the float32 runtime does not show it",
    "8-bit": "every distinct 8-bit picture on the path was run in the model's own runtime",
    "float32": "proved for every float32 evaluation in any order of summation, except Winograd convolution and TF32",
    "?": "computed in float64, but not proved: rounding may explain this class",
    "*": "the image has no label; the prediction at strength 0 is used",
}
COLOURS = {"safe": "green", "unsafe": "red", "misclassified": "magenta", "undecided": "yellow"}
COLOURS |= {"agree": "green", "disagree": "red"}
# The columns after image and perturbation, with their widths. The last column takes the rest, but at least this width.
COLUMNS = {"label": 6, "status": 13, "critical strength": 20, "min margin": 10, "pieces": 7, "seconds": 8}
LAST, LAST_WIDTH, GAP = "classes over strength", 21, 2
# Longer names of classes are folded.
LABEL_WIDTH = 24
# Of two networks: how many stretches are listed, the longest ones (`--json` has all); and what rounding leaves open
# beside a flip, which is only of interest if nothing else is.
LISTED, NARROW = 6, 1e-6
# Intervals within this range are placed by one number.
NEAR = 1e-4
INDENT, STRENGTH = 4, 11
COMPARED_SENTENCES = {
    Reason.ROUNDING: "one network's lead is smaller there than the rounding error of float64",
    Reason.NOT_REPLAYED: "somewhere they differ by so little that the float32 runtimes do not show it",
}


def class_name(result: Result, number: int | None) -> str:
    """A class, in tables; "-" where there is none."""
    return "-" if number is None else result.query.class_names.shown(number)


def margin_text(result: Result) -> str:
    """The smallest margin. Where it is only bounded, the text says on which side, and is rounded to that side."""
    if result.min_margin is None:
        return "-"
    proof = result.proof
    swept = isinstance(proof, Swept) and proof.curve.covers(0.0, proof.end)
    if swept or (isinstance(proof, Enumerated) and proof.all_run):
        return f"{result.min_margin:.4g}"
    is_proved = result.status == "safe"
    rounded = Context(4, ROUND_FLOOR if is_proved else ROUND_CEILING).create_decimal_from_float(result.min_margin)
    return f"{'>=' if is_proved else '<='} {float(rounded):.4g}"


def critical_text(result: Result) -> str:
    """The critical strength; if it is not known, the strength that it exceeds, or at which only the runtime loses."""
    if result.critical_strength is not None:
        return bracketed(result.critical_strength)
    reached, shown = result.certified_strength, result.counterexample
    if result.status == "undecided" and reached > 0:
        return f"> {floor(reached * 1e6) / 1e6:.6f}"
    if result.status == "unsafe" and shown is not None and shown.strengths is not None and len(shown.strengths) == 1:
        return f"<= {ceil(shown.strengths[0] * 1e6) / 1e6:.6f}"
    return "-"


class ResultRows:
    """Draws results one by one, for a terminal of this `width`; `names` has the image and perturbation of each.

    `printable` gives a name as the terminal shows it.
    """

    def __init__(
        self, names: Sequence[tuple[str, str]], width: int, printable: Callable[[str], str] = lambda name: name
    ) -> None:
        self.printable, self.width, self.is_stacked = printable, width, False
        image, perturbation = (
            max((cell_len(printable(name)) for name in {pair[part] for pair in names}), default=0) for part in (0, 1)
        )
        self.widths = {"image": max(image, 5), "perturbation": max(perturbation, 12), **COLUMNS}
        self.image: str | None = None

    def drawn(self, result: Result) -> RenderableType:
        """The text of a result, to print below the earlier ones."""
        before, self.image = self.image, result.query.name
        if before is None:
            self._measure(result.query.class_names)
        words = [*filter(None, [_start(result), _journey(result)]), *(f"({word})" for word in _qualified(result))]
        cells: dict[str, str | Text] = {  # "-" where there is nothing to say
            "image": self.printable(self.image),
            "perturbation": "-" if result.query.perturbation is None else str(result.query.perturbation),
            "label": self.printable(class_name(result, result.label) + "*" * result.query.label_predicted),
            "status": Text(str(result.status), style=COLOURS[result.status]),
            "critical strength": critical_text(result),
            "min margin": margin_text(result),
            "pieces": str(result.pieces),
            "seconds": f"{result.seconds:.3f}",
            LAST: self.printable(" ".join(words)),
        }
        if self.is_stacked:
            heading = [] if before == self.image else [Text(self.printable(self.image), style="bold")]
            return Group(*heading, *self._stack(cells))
        return Group(*(_head(self.widths) if before is None else []), _row(self.widths, cells.values()))

    @staticmethod
    def remarks(result: Result) -> dict[str, str]:
        """The words beside an answer that are explained below the table, with their explanations."""
        remarks = {word: SENTENCES[word] for word in _qualified(result) if word in SENTENCES}
        if result.query.label_predicted:
            remarks["*"] = SENTENCES["*"]
        if result.status == "misclassified":
            remarks["misclassified"] = (
                f"the label does not win at strength 0; {LIKELY_CAUSE}"
                if result.record.is_about_label
                else "the requirement already fails at strength 0"
            )
        if result.unperturbed is not None:
            remarks["without blur"] = BLURS_AT_ZERO
        if any(step.endswith("?") for step in _journey(result).split()):
            remarks["?"] = SENTENCES["?"]
        return remarks if result.reason is None else remarks | {result.reason.value: result.reason.sentence}

    def _measure(self, names: ClassNames) -> None:
        """Fit the columns to the class names; the last column takes the remaining width, if that is enough."""
        longest = max((cell_len(self.printable(names.shown(number))) for number in range(len(names))), default=0)
        self.widths["label"] = min(max(longest + 1, COLUMNS["label"]), LABEL_WIDTH)
        self.widths[LAST] = self.width - sum(self.widths.values()) - GAP * len(self.widths)
        self.is_stacked = self.widths[LAST] < LAST_WIDTH

    def _stack(self, cells: Mapping[str, str | Text]) -> Iterator[RenderableType]:
        """The answer next to the perturbation, everything else below."""
        head = Text.assemble(f"  {cells['perturbation']:{min(self.widths['perturbation'], 45)}}  ", cells["status"])
        if cells["critical strength"] != "-":
            head.append(f"  critical strength {cells['critical strength']}")
        yield head
        details = [
            f"{name} {cells[name]}" for name in ("label", "min margin", "pieces", "seconds") if cells[name] != "-"
        ]
        yield from _filled([*filter(None, [str(cells[LAST])]), *details], self.width)


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


def _filled(parts: Iterable[str], width: int) -> Iterator[Text]:
    """Lines of as many parts as fit, indented."""
    line = ""
    for part in parts:
        if line and INDENT + cell_len(line) + 3 + cell_len(part) > width:
            yield Text(" " * INDENT + line)
            line = ""
        line += ("   " if line else "") + part
    yield Text(" " * INDENT + line)


def _qualified(result: Result) -> Iterator[str]:
    """Remarks to print beside a verdict."""
    if result.reason is not None:
        yield result.reason.value
    if result.parameter is not None and (measured := result.parameter.told(result.status)):
        yield measured
    if result.noise is not None:
        yield str(result.noise)
    if result.remaining is not None:
        yield str(result.remaining)
    if result.tested is not None and result.status == "undecided":
        yield f"tested: {result.tested.lost} of {result.tested.strengths} lose"
    if result.kernel is not None:
        yield str(result.kernel)
    if result.as_pictures is not None:
        yield f"with --pixels 8bit: {result.as_pictures}"
    if result.status == "undecided" and not result.certified_strength and result.profile:
        first = by_class(result.profile)[0]
        if first.winner == result.query.label and first.end > 0:
            yield f"in float64, not proved: wins up to {first.end:.2g}"
    if result.arithmetic != "real":
        yield "8-bit" if result.arithmetic == "deployed" else result.arithmetic
    counterexample = result.counterexample
    if result.status == "unsafe" and counterexample is not None and not counterexample.replayed:
        yield "not replayed"


def _start(result: Result) -> str:
    """The predicted class of a misclassified image."""
    if result.status != "misclassified" or not result.record.is_about_label:
        return ""
    predicted = f"predicted {class_name(result, result.predicted)}"
    if result.unperturbed is None:
        return predicted
    return f"{predicted}, without blur {class_name(result, result.unperturbed)}"


def _journey(result: Result) -> str:
    """`7 ▸0.43▸ 9`: the winning class, and the strength at which the next one takes over; or how much was proved.

    `9?` is a class that is not proved to win on more of its strengths than these digits show.
    """
    if result.query.path is not None and not result.record.is_about_label:
        return str(result.query.requirement)
    if result.query.path is None or (len(result.profile) < 2 and result.status == "misclassified"):
        return ""
    if result.regions is not None and result.status == "safe":
        return class_name(result, result.label)
    if result.regions is not None:
        share = result.regions.share(result.regions.safe, result.query.strengths)
        return f"{class_name(result, result.label)} on {floor(1000 * share) / 10:g}%"  # 100 % is all, not almost
    steps: list[str] = []
    for interval in by_class(result.profile):
        inside = (part for part in result.profile if interval.start <= part.start < interval.end)
        mark = "?" if sum(part.end - part.start for part in inside if not part.proved) > 5e-4 else ""
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
        """The row of an image under the perturbations of a table, to print below the earlier ones."""
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


class ComparedRows:
    """Draws comparisons one by one, for a terminal of this `width`; `printable` is as in `ResultRows`."""

    def __init__(self, width: int, printable: Callable[[str], str] = lambda name: name) -> None:
        self.width, self.printable = width, printable
        self.image: str | None = None

    def drawn(self, compared: Compared) -> RenderableType:
        """The text of a comparison, to print below the earlier ones."""
        before, self.image = self.image, compared.query.name
        heading = [] if before == self.image else [Text(self.printable(self.image), style="bold")]
        return Group(*heading, *self._lines(compared))

    def remarks(self, compared: Compared) -> dict[str, str]:
        """The word beside an answer that is explained below the table, with its explanation."""
        reason = compared.reason if _open_stretches(compared) else None
        return {} if reason is None else {reason.value: COMPARED_SENTENCES.get(reason, reason.sentence)}

    def _lines(self, compared: Compared) -> Iterator[RenderableType]:
        head = Text(f"  {compared.query.perturbation}  ")
        head.append(str(compared.status), style=COLOURS[compared.status])
        if compared.disagreements:
            count = len(compared.disagreements)
            intervals = "one interval" if count == 1 else f"{count} intervals"
            head.append(f" on {100 * compared.share:.3g}% of strengths, in {intervals}")
        yield head
        if compared.disagreements:
            yield self._stretches(compared)
        yield from _filled(self._details(compared), self.width)

    def _stretches(self, compared: Compared) -> Table:
        """The longest intervals, in their order."""
        left = self.width - INDENT - 3 * STRENGTH - 5 * GAP
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(width=INDENT - GAP)
        for width in (STRENGTH, STRENGTH, left // 2, left // 2, STRENGTH):
            table.add_column(max_width=width, overflow="fold")
        models = short_names(compared.first.model, compared.second.model)
        heads = ("from", "to", *map(self.printable, models), "replayed at")
        table.add_row("", *(Text(head, style="bold") for head in heads))
        longest = sorted(compared.disagreements, key=lambda part: part.start - part.end)[:LISTED]
        for part in sorted(longest, key=lambda part: part.start):
            classes = (self.printable(compared.class_names.shown(number)) for number in (part.first, part.second))
            replayed = f"{part.strength:.7f}" if part.replayed else "not shown"
            cells = (f"{part.start:.6f}", f"{part.end:.6f}", *classes, replayed)
            table.add_row("", *map(Text, cells))
        return table

    def _details(self, compared: Compared) -> Iterator[str]:
        more = len(compared.disagreements) - LISTED
        if more > 0:
            yield f"{more} shorter not shown"
        stretches = _open_stretches(compared)
        if stretches:
            yield f"{_where(stretches)} ({compared.reason})"
        elif compared.status == "undecided":
            yield f"({compared.reason})"
        first, second = compared.first.pieces, compared.second.pieces
        what = "pictures" if compared.first.method == "enumeration" else "pieces"
        yield f"{what} {first}" if first == second else f"{what} {first} and {second}"
        yield f"seconds {compared.seconds:.3f}"


def _where(intervals: Sequence[tuple[float, float]]) -> str:
    """How many intervals are unresolved, and where: by one number if they are too close together for two."""
    (start, _), (_, end) = intervals[0], intervals[-1]
    count = "1 unresolved interval" if len(intervals) == 1 else f"{len(intervals)} unresolved intervals"
    return f"{count} near {start:.6g}" if end - start < NEAR else f"{count} from {start:.6f} to {end:.6f}"


def _open_stretches(compared: Compared) -> list[tuple[float, float]]:
    """The open intervals, without those that are only the rounding at the ends of disagreements."""
    wanted = NARROW if compared.status == "disagree" else 0.0
    return [(start, end) for start, end in compared.open if end - start >= wanted]


def short_names(first: str, second: str) -> tuple[str, str]:
    """Names of two files without their folders, if these names differ."""
    names = Path(first).name, Path(second).name
    return names if names[0] != names[1] else (first, second)
