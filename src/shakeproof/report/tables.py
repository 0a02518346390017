"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor

from rich.table import Table

from shakeproof.result import Result

SENTENCES = {
    "nominal": "what rounding does in float64 was not looked at, as was asked for: no answer here is a proof",
    "not replayed": "in real numbers the label provably loses, by so little that the float32 runtime does not show it",
    "float32": "about every float32 evaluation of the network, in any order of summation; not about Winograd's method"
    " or TF32",
}
COLOURS = {"safe": "green", "unsafe": "red", "misclassified": "magenta", "undecided": "yellow"}


def plain_table(*headings: str) -> Table:
    """An empty table in the house style."""
    table = Table(header_style="bold", pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    return table


def results_table(results: Sequence[Result]) -> Table:
    table = plain_table("image", "perturbation", "label", "status")
    for heading in ("critical strength", "classes over strength", "min margin", "pieces", "seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        status = f"[{COLOURS[result.status]}]{result.status}[/]"
        table.add_row(
            _short(result.query.name),
            "-" if result.query.perturbation is None else str(result.query.perturbation),
            "-" if result.label is None else str(result.label),
            status + "".join(f" ({word})" for word in _qualified(result)),
            _critical(result),
            _journey(result),
            "-" if result.min_margin is None else f"{result.min_margin:.4g}",
            str(result.pieces),
            f"{result.seconds:.3f}",
        )
    return table


def _qualified(result: Result) -> Iterator[str]:
    """What must be said beside a verdict."""
    if result.reason is not None:
        yield result.reason
    if result.rounding == "nominal":
        yield "nominal"
    if result.arithmetic != "real":
        yield result.arithmetic
    found = result.counterexample
    if result.status == "unsafe" and found is not None and not found.replayed:
        yield "not replayed"


def _critical(result: Result) -> str:
    """The critical strength, or the most that an early answer knows of it."""
    if result.critical_strength is None:
        return "-"
    low, high = result.critical_strength
    if high - low < 1e-6:
        return f"{low:.9f}"
    return f"{low:.6f} to {high:.6f}" if low > 0 else f"at most {high:.6f}"


def _short(name: str) -> str:
    return name if len(name) <= 32 else "…" + name[-31:]


def _journey(result: Result) -> str:
    """`7 ▸0.43▸ 9`: the winning class, and the strength at which the next one takes over; or how much was proved."""
    if result.query.path is None:
        return ""
    if result.regions is not None:
        share = result.regions.share(result.regions.safe, result.query.strengths)
        return f"{result.label} on {floor(1000 * share) / 10:g}%"  # 100 % is all, not almost
    steps = [str(result.profile[0].winner)] if result.profile else []
    steps += [f"▸{interval.start:.3f}▸ {interval.winner}" for interval in result.profile[1:]]
    return " ".join(steps if len(steps) <= 5 else [*steps[:4], f"… {len(steps) - 4} more"])


def label_notes(results: Sequence[Result]) -> Iterator[str]:
    predicted = sorted({_short(result.query.name) for result in results if result.query.label_predicted})
    if predicted:
        yield f"no label came with {', '.join(predicted)}; the prediction at strength 0 is taken"


def explanations(results: Sequence[Result]) -> Iterator[str]:
    for reason in sorted({result.reason for result in results if result.reason is not None}):
        yield f"[yellow]{reason}[/]: {reason.sentence}"
    said = {word for result in results for word in _qualified(result)}
    for word in sorted(said & SENTENCES.keys()):
        yield f"[yellow]{word}[/]: {SENTENCES[word]}"


def demo_table(results: Sequence[Result]) -> Table:
    """Images down, perturbations across: the critical strength."""
    table = plain_table("image")
    names = list(dict.fromkeys(str(result.query.perturbation) for result in results))
    for name in names:
        table.add_column(name.replace("motion-blur", "motion").replace(":", "\n").replace(",", "\n"), justify="right")
    rows: dict[str, list[str]] = {}
    for result in results:
        critical = result.critical_strength
        text = f"[{COLOURS[result.status]}]{result.status if critical is None else f'{critical[0]:.4f}'}[/]"
        rows.setdefault(result.query.name, []).append(text)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table
