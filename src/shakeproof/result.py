"""What an analysis answers: verdict, evidence, and the one object a line that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.exact import Curve
from shakeproof.images import Image
from shakeproof.perturbation import AnyKernel, Perturbation
from shakeproof.vnnlib import Specification

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
    BOUNDS = "bounds"

    @property
    def sentence(self) -> str:
        return {
            Reason.TIMEOUT: "the time was up before everything was settled",
            Reason.NOT_REPLAYED: "the label loses by so little that the float32 runtime does not show it",
            Reason.ROUNDING: "the smallest margin is no larger than float64 rounding might explain",
            Reason.RUNTIME_DISAGREES: "the label was proved to win where the float32 runtime gives another class",
            Reason.BOUNDS: "the bounds are too loose somewhere, and nothing is left to split there",
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
    def name(self) -> str:
        return self.image.name

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
        return _json(self, str(self.query.perturbation), _plain(self.query.strengths))

    def plot(self) -> Figure:
        """The label's margin over each rival against the strength, or a map of two strengths, in matplotlib."""
        from shakeproof.report.plot import result_figure

        return result_figure(self)


@dataclass(frozen=True, eq=False)
class BoxQuery:
    """Is no input in the boxes of a specification a counterexample?

    It comes from a file, or from a perturbation that makes a box of an image; `predicted` says that the label is what
    the network made of that image.
    """

    name: str
    specification: Specification
    image: Image | None = None
    perturbation: AnyKernel | None = None
    strength: float | None = None
    predicted: bool = False

    @property
    def label(self) -> int | None:
        return self.specification.label


@dataclass(frozen=True, eq=False)
class Witness:
    """An input (*input_shape) that is a counterexample, and its outputs in the reference runtime (classes).

    `margin` is how far the network in float64 is from none there: not positive. Not `replayed`: the runtime disagrees.
    `picture` (channels, height, width) is the input, if it is one. Where a range holds no float32 number, the input has
    the nearest one: the runtime takes no other.
    """

    input: NDArray[np.float32]
    outputs: NDArray[np.float32]
    margin: float
    replayed: bool
    strength: float | None
    picture: Tensor | None

    @property
    def winner(self) -> int:
        return int(self.outputs.argmax())


@dataclass(frozen=True, eq=False)
class BoxResult:
    """The answer to a query about boxes. `min_margin` is what was proved, or a counterexample's margin; before a final
    softmax, where that is left out.

    `pieces` counts the parts of the boxes that were bounded.
    """

    model: str
    query: BoxQuery
    predicted: int
    status: Status
    counterexample: Witness | None
    min_margin: float | None
    pieces: int
    reason: Reason | None
    seconds: float
    method: str = "bounds"
    rounding: str = "nominal"
    critical_strength: None = None
    profile: tuple[()] = ()
    regions: None = None

    @property
    def label(self) -> int | None:
        return self.query.label

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints, with the keys of every result; what does not apply is null."""
        perturbation = self.query.perturbation
        return _json(self, None if perturbation is None else str(perturbation), self.query.strength)


def _plain(strength: Strength) -> float | list[float]:
    several = (strength,) if isinstance(strength, (int, float)) else strength
    return several[0] if len(several) == 1 else list(several)


def _json(result: Result | BoxResult, perturbation: str | None, strength: float | list[float] | None) -> dict[str, Any]:
    found = result.counterexample
    return {
        "model": result.model,
        "image": result.query.name,
        "label": result.label,
        "predicted": result.predicted,
        "perturbation": perturbation,
        "strength": strength,
        "status": result.status.value,
        "critical_strength": result.critical_strength and list(result.critical_strength),
        "profile": [{"from": i.start, "to": i.end, "class": i.winner} for i in result.profile],
        "counterexample": found
        and {
            "strength": None if found.strength is None else _plain(found.strength),
            "class": found.winner,
            "margin": found.margin,
            "replayed": found.replayed,
        },
        "min_margin": result.min_margin,
        "method": result.method,
        "pieces": result.pieces,
        "rounding": result.rounding,
        "reason": result.reason and result.reason.value,
        "seconds": round(result.seconds, 6),
    }
