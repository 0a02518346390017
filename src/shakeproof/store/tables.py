"""The paper's table of what a store holds: how many are verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
COUNTED = ("verified", "unsafe", "undecided")


@dataclass
class TableRow:
    """How many images under one perturbation are verified, unsafe or undecided up to each strength.

    Misclassified images are among the unsafe ones. One profile answers all strengths, in so many seconds all together.
    """

    counts: Mapping[float, Counter[str]]
    misclassified: int = 0
    seconds: float = 0.0

    def cells(self) -> Iterator[str]:
        """The counts at each strength, as the paper writes them."""
        return ("/".join(str(count[kind]) for kind in COUNTED) for count in self.counts.values())


@dataclass(frozen=True)
class PaperTable:
    """A row for each perturbation, of each model or of all together (""), a column for each strength.

    What is required is behind the perturbation, if it is not that the label wins.
    """

    strengths: tuple[float, ...]
    rows: Mapping[tuple[str, str], TableRow]

    def cells(self) -> Iterator[dict[str, Any]]:
        """Every cell, with the values of its whole row."""
        for (model, perturbation), row in self.rows.items():
            about = {"model": model} if model else {}
            for strength, count in row.counts.items():
                counts = {kind: count[kind] for kind in COUNTED} | {"misclassified": row.misclassified}
                yield {**about, "perturbation": perturbation, "strength": strength, **counts, "seconds": row.seconds}


def paper_table(store: Store, campaign: int | None = None, by_model: bool = False) -> PaperTable:
    """The paper's table of a campaign. Queries that ended in an error are undecided."""
    chosen = store.campaign(campaign)
    rows: dict[tuple[str, str], TableRow] = {}
    failed = (
        (one.number, one.model.name, str(one.perturbation), one.requirement, None, 1, 0.0)
        for one in store.errors(chosen.id)
    )
    tallied = sorted([*store.tally(chosen), *failed], key=itemgetter(0))
    for _, model, perturbation, requirement, claim, count, seconds in tallied:
        asked = perturbation if requirement == "label" else f"{perturbation} ({requirement})"
        key = (model if by_model else "", asked)
        row = rows.setdefault(key, TableRow({strength: Counter() for strength in chosen.strengths}))
        for strength, counts in row.counts.items():
            counts["undecided" if claim is None else KINDS[claim.at(strength)]] += count
        row.misclassified += count if claim is not None and claim.verdict is Status.MISCLASSIFIED else 0
        row.seconds += seconds
    return PaperTable(chosen.strengths, rows)
