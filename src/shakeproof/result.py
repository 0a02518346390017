"""What an analysis answers: verdict, evidence, and the one object a line that `--json` prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shakeproof.exact import Curve
from shakeproof.images import Image
from shakeproof.perturbation import Perturbation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Status(StrEnum):
    """The verdict about a label over all strengths in [0, strength]."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    UNDECIDED = "undecided"
    MISCLASSIFIED = "misclassified"


class Reason(StrEnum):
    """Why there is no verdict."""

    TIMEOUT = "timeout"
    NOT_REPLAYED = "not-replayed"
    ROUNDING = "rounding"

    @property
    def sentence(self) -> str:
        return {
            Reason.TIMEOUT: "the time was up before all strengths were settled",
            Reason.NOT_REPLAYED: "the label loses by so little that the float32 runtime does not show it",
            Reason.ROUNDING: "the smallest margin is no larger than float64 rounding might explain",
        }[self]


@dataclass(frozen=True)
class Interval:
    """Strengths over which one class wins."""

    start: float
    end: float
    winner: int


@dataclass(frozen=True)
class Counterexample:
    """The strength at which the label loses most clearly, who wins there, and whether the runtime agrees."""

    strength: float
    winner: int
    margin: float
    replayed: bool


@dataclass(frozen=True, eq=False)
class Query:
    """Does `label` win for every strength in [0, strength] of a perturbation of an image?"""

    image: Image
    perturbation: Perturbation
    label: int | None = None
    strength: float = 1.0


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to a query. `critical_strength` brackets the smallest strength at which the label loses.

    `curve` holds the exact scores at every breakpoint that was reached.
    """

    model: str
    query: Query
    label: int
    predicted: int
    status: Status
    critical_strength: tuple[float, float] | None
    profile: tuple[Interval, ...]
    counterexample: Counterexample | None
    min_margin: float | None
    pieces: int
    reason: Reason | None
    seconds: float
    curve: Curve
    method: str = "exact"
    rounding: str = "nominal"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        counterexample = self.counterexample and {
            "strength": self.counterexample.strength,
            "class": self.counterexample.winner,
            "margin": self.counterexample.margin,
            "replayed": self.counterexample.replayed,
        }
        return {
            "model": self.model,
            "image": self.query.image.name,
            "label": self.label,
            "predicted": self.predicted,
            "perturbation": str(self.query.perturbation),
            "strength": self.query.strength,
            "status": self.status.value,
            "critical_strength": self.critical_strength and list(self.critical_strength),
            "profile": [{"from": i.start, "to": i.end, "class": i.winner} for i in self.profile],
            "counterexample": counterexample,
            "min_margin": self.min_margin,
            "method": self.method,
            "pieces": self.pieces,
            "rounding": self.rounding,
            "reason": self.reason and self.reason.value,
            "seconds": round(self.seconds, 6),
        }

    def plot(self) -> Figure:
        """The label's margin over each rival against the strength, as a matplotlib figure."""
        from shakeproof.report.plot import margin_figure

        return margin_figure(self)
