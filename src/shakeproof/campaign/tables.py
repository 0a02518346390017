"""What a store holds as tables: the paper's, of how many are verified; and a row for each answer, for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from operator import itemgetter
from typing import Any

from shakeproof.campaign.store import Store
from shakeproof.campaign.stored import StoredProfile
from shakeproof.proof import CLAIMED, Status, claim_of

BRACKET = ("critical_strength_low", "critical_strength_high")
WITNESS = ("strength", "class", "margin", "replayed")
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


def flat(profile: StoredProfile) -> dict[str, Any]:
    """The same as one value for each column."""
    said = results_line(profile)
    low, high = said.pop("critical_strength") or (None, None)
    witness = said.pop("counterexample") or {}
    return {
        "model": said.pop("model"),
        "model_sha256": profile.model.identity,
        "image": said.pop("image"),
        "image_sha256": profile.image.digest,
        **said,
        **dict(zip(BRACKET, (low, high), strict=True)),
        **{f"counterexample_{key}": witness.get(key) for key in WITNESS},
        "certificate_sha256": profile.certificate,
        "finished": profile.finished,
    }
