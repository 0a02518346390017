"""What an analysis answers: verdict, evidence, and the one object a line that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
    RUNTIME_DISAGREES = "runtime-disagrees"

    @property
    def sentence(self) -> str:
        return {
            Reason.TIMEOUT: "the time was up before all strengths were settled",
            Reason.NOT_REPLAYED: "the label loses by so little that the float32 runtime does not show it",
            Reason.ROUNDING: "the smallest margin is no larger than float64 rounding might explain",
            Reason.RUNTIME_DISAGREES: "the label was proved to win where the float32 runtime gives another class",
        }[self]


@dataclass(frozen=True)
class Interval:
    """Strengths over which one class wins."""

    start: float
    end: float
    winner: int


Strength = float | tuple[float, ...]
"""One number for a perturbation with one parameter, a number each for one with several."""


@dataclass(frozen=True)
class Counterexample:
    """The strength at which the label loses most clearly, who wins there, and whether the runtime agrees."""

    strength: Strength
    winner: int
    margin: float
    replayed: bool


@dataclass(frozen=True, eq=False)
class Query:
    """Does `label` win for every strength in [0, strength] of a perturbation of an image?

    Where the perturbation has several parameters, one strength is meant for all of them.
    """

    image: Image
    perturbation: Perturbation
    label: int | None = None
    strength: Strength = 1.0

    @property
    def strengths(self) -> tuple[float, ...]:
        """A strength for each parameter."""
        return self.perturbation.strengths(self.strength)


@dataclass(frozen=True, eq=False)
class Regions:
    """Boxes of strengths (n, low and high, m): the label provably wins on all of one, loses on all of one, or neither
    was settled.
    """

    safe: NDArray[Any]
    violated: NDArray[Any]
    open: NDArray[Any]

    @staticmethod
    def share(boxes: NDArray[Any], strengths: Sequence[float]) -> float:
        """Which part of all strengths the boxes make up; an axis without extent does not count."""
        whole = np.array(strengths)
        sides = (boxes[:, 1] - boxes[:, 0])[:, whole > 0] / whole[whole > 0]
        return min(1.0, float(sides.prod(1).sum())) if whole.any() else float(len(boxes) > 0)


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to a query. `critical_strength` brackets the smallest strength at which the label loses.

    `curve` holds the exact scores at every breakpoint that was reached, or (by bounds, with one parameter) the scores
    wherever the network was evaluated; `regions` what bounds proved where. `pieces` counts pieces or boxes.
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
    regions: Regions | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        counterexample = self.counterexample and {
            "strength": _plain(self.counterexample.strength),
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
            "strength": _plain(self.query.strengths),
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
        """The label's margin over each rival against the strength, or a map of two strengths, in matplotlib."""
        from shakeproof.report.plot import result_figure

        return result_figure(self)


def _plain(strength: Strength) -> float | list[float]:
    several = (strength,) if isinstance(strength, (int, float)) else strength
    return several[0] if len(several) == 1 else list(several)
