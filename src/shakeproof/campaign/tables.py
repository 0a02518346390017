"""What a store holds as tables: the paper's, of how many are verified; and a row for each answer, for programs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shakeproof.campaign.store import Store
from shakeproof.campaign.stored import StoredError, StoredProfile
from shakeproof.verdict import Status

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
    rows: dict[tuple[str, str], dict[float, TableCell]] = defaultdict(lambda: {z: TableCell() for z in found.strengths})
    asked: Iterable[StoredProfile | StoredError] = sorted(
        [*store.profiles(found.id), *store.errors(found.id)], key=lambda own: own.number
    )
    for own in asked:
        row = rows[own.model.name if by_model else "", str(own.perturbation)]
        for strength, cell in row.items():
            if isinstance(own, StoredError):
                cell.counts["undecided"] += 1
                continue
            cell.counts[KINDS[own.record.status_at(strength)]] += 1
            cell.seconds += own.record.seconds
    return PaperTable(found.strengths, dict(rows))


def flat(profile: StoredProfile) -> dict[str, Any]:
    """An answer as one value for each column."""
    said = profile.record.to_json()
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
