"""What a store holds as tables: the paper's, of how many are verified; and a row for each answer, for programs."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from operator import itemgetter
from typing import Any

from shakeproof.proof import CLAIMED, Status, claim_of
from shakeproof.store.reader import Store
from shakeproof.store.rows import StoredProfile

# The columns of an answer: those of its JSON, its bracket and its counterexample spread over several.
BRACKET = ("critical_strength_low", "critical_strength_high")
COUNTEREXAMPLE = ("strength", "class", "margin", "replayed")
COLUMNS = (
    *("version", "model", "image", "label", "predicted", "perturbation", "strength", "status", *BRACKET),
    *("certified_strength", *(f"counterexample_{key}" for key in COUNTEREXAMPLE), "min_margin", "method", "pieces"),
    *("rounding", "arithmetic", "reason", "seconds", "profile"),
)
# And what a store adds: what few answers have, what is claimed, and by what its parts are found again.
STORED_COLUMNS = (
    *(*COLUMNS, "deployment", "rest", "comparison", "as_pictures", *CLAIMED),
    *("model_sha256", "image_sha256", "certificate_sha256", "finished"),
)
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
    found = store.campaign(campaign)
    failed = ((own.number, own.model.name, str(own.perturbation), None) for own in store.errors(found.id))
    rows: dict[tuple[str, str], dict[float, TableCell]] = {}
    kinds = cache(lambda claim: [KINDS[claim.at(strength)] for strength in found.strengths])
    nothing = ["undecided"] * len(found.strengths)
    for _, model, perturbation, said in merge(store.records(found.id), failed, key=itemgetter(0)):
        key = (model if by_model else "", perturbation)
        row = rows.get(key) or rows.setdefault(key, {strength: TableCell() for strength in found.strengths})
        shown, seconds = (nothing, 0.0) if said is None else (kinds(claim_of(said)), said["seconds"])
        for cell, kind in zip(row.values(), shown, strict=True):
            cell.counts[kind] += 1
            cell.seconds += seconds
    return PaperTable(found.strengths, rows)


def results_line(profile: StoredProfile) -> dict[str, Any]:
    """An answer's JSON, and what it claims."""
    claim = profile.claim
    return {**profile.said, **dict(zip(CLAIMED, (claim.verdict.value, claim.proved, claim.lost), strict=True))}


def flat(said: Mapping[str, Any], columns: Sequence[str] = COLUMNS) -> list[Any]:
    """An answer's JSON as one value for each column."""
    low, high = said["critical_strength"] or (None, None)
    counterexample = said["counterexample"] or {}
    spread = {f"counterexample_{key}": counterexample.get(key) for key in COUNTEREXAMPLE}
    return [*map({**said, **dict(zip(BRACKET, (low, high), strict=True)), **spread}.get, columns)]


def stored_row(profile: StoredProfile) -> list[Any]:
    """The same of an answer in a store, in the `STORED_COLUMNS`."""
    about = {
        "model_sha256": profile.model.identity,
        "image_sha256": profile.image.digest,
        "certificate_sha256": profile.certificate,
        "finished": profile.finished,
    }
    return flat(results_line(profile) | about, STORED_COLUMNS)


def csv_lines(rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """Rows of a table as text: lists as JSON, nothing for None, and one line each whatever is in a name."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        plain = ("" if v is None else v if isinstance(v, str) else json.dumps(v) for v in row)
        writer.writerow([value.replace("\r", "\\r").replace("\n", "\\n") for value in plain])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
