"""The paper's table of what a store holds: how many are verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from shakeproof.proof import Status
from shakeproof.store.reader import Store

KINDS = {
    Status.SAFE: "verified",
    Status.UNSAFE: "unsafe",
    Status.MISCLASSIFIED: "unsafe",
    Status.UNDECIDED: "undecided",
}


@dataclass
class TableCell:
    """How many images under one perturbation up to one strength are verified, unsafe, or neither; and the seconds that
    took. One profile answers all strengths: its seconds are in each cell of its row.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        return "/".join(str(self.counts[kind]) for kind in ("verified", "unsafe", "undecided"))


@dataclass(frozen=True)
class PaperTable:
    """A row for each perturbation, of each model or of all together (""), a column for each strength."""

    strengths: tuple[float, ...]
    rows: Mapping[tuple[str, str], Mapping[float, TableCell]]

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell on its own."""
        for (model, perturbation), row in self.rows.items():
            for strength, cell in row.items():
                counts = {kind: cell.counts[kind] for kind in ("verified", "unsafe", "undecided")}
                about = {"model": model} if model else {}
                yield {**about, "perturbation": perturbation, "strength": strength, **counts, "seconds": cell.seconds}


def paper_table(store: Store, campaign: int | None = None, by_model: bool = False) -> PaperTable:
    """The paper's table of a campaign. What ended in an error is neither verified nor unsafe."""
    chosen = store.campaign(campaign)
    rows: dict[tuple[str, str], dict[float, TableCell]] = {}
    failed = ((one.number, one.model.name, str(one.perturbation), None, 1, 0.0) for one in store.errors(chosen.id))
    tallied = sorted([*store.tally(chosen), *failed], key=itemgetter(0))
    for _, model, perturbation, claim, count, seconds in tallied:
        key = (model if by_model else "", perturbation)
        row = rows.setdefault(key, {strength: TableCell() for strength in chosen.strengths})
        for strength, cell in row.items():
            cell.counts["undecided" if claim is None else KINDS[claim.at(strength)]] += count
            cell.seconds += seconds
    return PaperTable(chosen.strengths, rows)
