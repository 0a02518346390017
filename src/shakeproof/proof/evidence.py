"""Evidence from the engines: frozen values that state what they prove, and check it.

A `Proof` is about one obligation. It holds if it is complete, finite and positive: a curve that reaches from 0 to the
strength, cells whose cuts leave nothing out, a tree of which every leaf was proved. None of them trusts its maker: what
is said here is worked out from rows, cuts and bounds. A `Counterexample` is the opposite of a proof.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError, ProofError
from shakeproof.exact import Curve
from shakeproof.model import Deployment
from shakeproof.question import InputBox, InputKernels, InputPath, Obligation, Property

if TYPE_CHECKING:
    from shakeproof.enumeration import EightBitPictures
    from shakeproof.search import SplitBox, SplitCells

Floats = NDArray[np.float64]
Bracket = tuple[float, float]
# Rows may lie a little beside their strengths, and what is interpolated between them is rounded: proofs end so much
# earlier, as a share of the strength.
SLACK = 2.0**-40
# A kept window begins with its seal.
SEAL_BYTES = 32


@dataclass(frozen=True)
class Interval:
    """Strengths over which one class wins. Where that is not `proved`, float64 says so, but rounding may explain it."""

    start: float
    end: float
    winner: int
    proved: bool = True


@dataclass(frozen=True)
class ExactInterval:
    """Strengths over which one class wins on 8-bit pictures; an end is part of them, or is not."""

    start: Fraction
    end: Fraction
    winner: int
    has_start: bool = True
    has_end: bool = True

    def __str__(self) -> str:
        return f"{'[' if self.has_start else '('}{self.start}, {self.end}{']' if self.has_end else ')'}"


def joined(start: Floats, end: Floats, winner: NDArray[np.int64]) -> tuple[Interval, ...]:
    """Proved intervals in order, those that touch and have the same winner made one; no two contradict."""
    order = np.lexsort((end, start))
    start, end, winner = start[order], end[order], winner[order]
    reached, changes = np.maximum.accumulate(end)[:-1], winner[1:] != winner[:-1]
    if (changes & (start[1:] < reached)).any():
        raise ProofError("two classes are proved to win at one strength")
    first = np.flatnonzero(np.append(True, changes | (start[1:] > reached)))[: len(start)]
    ends = np.maximum.reduceat(end, first) if len(first) else end
    return tuple(map(Interval, start[first].tolist(), ends.tolist(), winner[first].tolist()))


def with_unproved(proved: Sequence[Interval], shown: Sequence[Interval]) -> tuple[Interval, ...]:
    """A profile: proved intervals and, in the gaps, the curve's classes, marked as not proved."""
    shown = [replace(interval, proved=False) for interval in shown]
    cuts = np.unique([end for interval in (*shown, *proved) for end in (interval.start, interval.end)])
    if len(cuts) < 2:  # a path without extent, or no curve
        return tuple(proved or shown)
    winner, is_proved = np.full(len(cuts) - 1, -1), np.zeros(len(cuts) - 1, bool)
    for interval in (*shown, *proved):
        first, after = np.searchsorted(cuts, (interval.start, interval.end))
        winner[first:after], is_proved[first:after] = interval.winner, interval.proved
    changes = (np.diff(winner) != 0) | (is_proved[1:] != is_proved[:-1])
    starts = np.flatnonzero(np.append(True, changes)).tolist()
    return tuple(
        Interval(float(cuts[first]), float(cuts[after]), int(winner[first]), bool(is_proved[first]))
        for first, after in pairwise([*starts, len(winner)])
        if winner[first] >= 0
    )


def by_class(profile: Iterable[Interval]) -> tuple[Interval, ...]:
    """Neighbours with the same winner made one, proved if all of them are."""
    groups = (list(parts) for _, parts in groupby(profile, key=attrgetter("winner")))
    return tuple(replace(p[0], end=p[-1].end, proved=all(part.proved for part in p)) for p in groups)


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input that may be a counterexample, as the runtime was given it: (*input_shape) before normalisation.

    On a path, it is what is there at some `strengths`; of a set of kernels, at the `shares` of one. `outputs` are the
    runtime's; `margin` is how far the network in float64 is from failing there: not positive. Not `replayed`: the
    runtime does not show it. `proved`: in real numbers the property fails at the strengths, whatever rounding did.
    Where a range holds no float32 number, the input has the nearest one: the runtime takes no other.
    """

    strengths: tuple[float, ...] | None
    input: NDArray[np.float32]
    outputs: NDArray[np.float32]
    winner: int
    margin: float
    replayed: bool
    proved: bool = False
    shares: tuple[float, ...] | None = None

    def __repr__(self) -> str:
        strengths = ", ".join(f"{strength:.6g}" for strength in self.strengths or ())
        at = f" at strength {strengths}" if self.strengths else ""
        shown = "replayed" if self.replayed else "not replayed"
        return f"<Counterexample{at}: class {self.winner} wins, margin {self.margin:.4g}, {shown}>"


@dataclass(frozen=True, eq=False)
class Regions:
    """Boxes of strengths (n, low and high, m): the label provably wins on all of one, loses on all of one, or neither
    was settled.
    """

    safe: Floats
    violated: Floats
    open: Floats

    @staticmethod
    def share(boxes: NDArray[Any], strengths: Sequence[float]) -> float:
        """Which part of all strengths the boxes make up; an axis without extent does not count."""
        whole = np.array(strengths)
        sides = (boxes[:, 1] - boxes[:, 0])[:, whole > 0] / whole[whole > 0]
        return min(1.0, float(sides.prod(1).sum())) if whole.any() else float(len(boxes) > 0)


class Proof(ABC):
    """What is known of one obligation, complete or not; a property that says nothing here is one that few methods know.

    `is_deployed`: it is about what the runtime computes, so that no other reading has to be compared with it.
    """

    method: str
    is_deployed = False

    @property
    @abstractmethod
    def least(self) -> float:
        """By how much the property is proved to hold on the whole set of inputs; -inf if it is not."""

    @property
    def holds(self) -> bool:
        return math.isfinite(self.least) and self.least > 0

    @abstractmethod
    def is_about(self, obligation: Obligation) -> bool:
        """Whether it is a proof of this: for these inputs, and this property."""

    @property
    @abstractmethod
    def pieces(self) -> int:
        """How many linear pieces were enumerated, or parts bounded."""

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether nothing was left undone because the time was up."""

    @property
    def left(self) -> float | None:
        """The expected number of further pieces after a timeout; None if unknown."""
        return None

    @property
    def is_doubtful(self) -> bool:
        """Whether only rounding prevents a proof."""
        return False

    @property
    def smallest(self) -> float:
        """The smallest margin on the whole set of inputs, where it is known and not only bounded; else inf."""
        return math.inf

    @property
    def certified(self) -> float:
        """The largest strength up to which the property is proved to hold; 0 if nothing is proved."""
        return 0.0

    @property
    def critical(self) -> Bracket | None:
        """Between which strengths the property fails first, if that was found out."""
        return None

    @property
    def profile(self) -> tuple[Interval, ...]:
        """Which class wins where."""
        return ()


@dataclass(frozen=True, eq=False)
class Swept(Proof):
    """A curve of the scores along a path from 0 to `end`, and proved bounds on the label's margin.

    The scores are those of the graph in which the `label` wins where a property holds (`about`): the network's own,
    or those of the property's cases. `is_moved`: its margins are of scores before they are squashed to outputs.
    `outputs` (rows, outputs) are what the property is about at the curve's rows, for plots; nothing rests on them.

    `lower`, for each two neighbouring rows, is below the margin everywhere between them: the chord, less what rounding
    may have done; none where nobody looked. A curve of one row has one. Within a piece that is not proved, the label
    still wins up to `reached`. It has `lost` at a strength, if one was found. About so many pieces are `left` behind
    the curve. Its errors are about real numbers: where the question is about every `float32` evaluation, `lower` alone
    proves something.
    """

    curve: Curve
    about: Property
    label: int
    end: float
    lower: Floats
    reached: float = 0.0
    lost: float | None = None
    timed_out: bool = False
    left: float | None = None
    float32: bool = False
    is_moved: bool = False
    outputs: Floats | None = None

    method = "exact"
    is_doubtful = True

    def __post_init__(self) -> None:
        if len(self.lower) not in (0, max(len(self.curve.z) - 1, 1)):
            raise ProofError("the rows of a curve and what is proved between them do not fit together")

    def is_about(self, obligation: Obligation) -> bool:
        inputs = obligation.inputs
        return isinstance(inputs, InputPath) and inputs.end == (self.end,) and self.about is obligation.property

    @property
    def least(self) -> float:
        if not len(self.lower) or not self.curve.covers(0.0, self.end):
            return -math.inf
        least = float(min(self.lower.min(), self._smallest))
        return least if least > 0 else -math.inf

    @property
    def _smallest(self) -> float:
        return float(self.curve.margin(self.label).min(initial=math.inf))

    @property
    def smallest(self) -> float:
        return math.inf if self.is_moved else self._smallest

    @property
    def pieces(self) -> int:
        return self.curve.pieces

    @property
    def is_finished(self) -> bool:
        return not self.timed_out

    @property
    def certified(self) -> float:
        """How far the proved pieces reach from 0 without a gap, or a larger strength proved in another way."""
        if not len(self.lower) or self.curve.z[0] != 0:
            return 0.0
        unproved = np.flatnonzero(~(self.lower > 0))
        whole = float(self.curve.z[unproved[0]] if len(unproved) else self.curve.z[-1]) * (1 - SLACK)
        return max(whole, self.reached)

    @property
    def critical(self) -> Bracket | None:
        """Proved up to the first, lost at the second."""
        return None if self.lost is None else (min(self.certified, self.lost), self.lost)

    @cached_property
    def profile(self) -> tuple[Interval, ...]:
        """What is proved, narrowed by the slack at ends that are not those of the path; rounding leaves something open
        next to every flip. Of other properties than a label's, there is none.
        """
        if not self.about.is_label:
            return ()
        z, pieces, proved = self.curve.z, np.flatnonzero(self.lower > 0), list[Interval]()
        if len(pieces) and len(pieces) == len(self.lower):
            proved.append(Interval(float(z[0]), float(z[-1]), self.label))
        elif len(self.lower):
            label = z[pieces], z[np.minimum(pieces + 1, len(z) - 1)], np.full(len(pieces), self.label)
            parts = [label] if self.float32 else [label, self.curve.settled]
            for interval in joined(*map(np.concatenate, zip(*parts, strict=True))):
                start = interval.start if interval.start == z[0] else interval.start * (1 + SLACK)
                end = interval.end if interval.end == z[-1] else interval.end * (1 - SLACK)
                proved += [replace(interval, start=start, end=end)] if start < end else []
        return with_unproved(proved, [Interval(*shown) for shown in self.curve.classes()])


@dataclass(frozen=True, eq=False)
class SweptWindow:
    """The result on a part of a path, from `start` to `end`: the curve, as far as time allowed."""

    start: float
    end: float
    curve: Curve
    late: bool
    seconds: float

    def enumerated(self) -> SweptWindow:
        """The part before the first stretch that was not enumerated."""
        bridged = self.curve.bridged
        if not bridged.any():
            return self
        end = float(self.curve.z[bridged.argmax()])
        return replace(self, end=end, curve=self.curve.up_to(end))

    def packed(self, question: str) -> bytes:
        """As bytes, for a question that is known by its digest; one that begins at 0."""
        curve = self.curve
        columns: dict[str, Any] = {"seconds": np.array(self.seconds), "z": curve.z, "scores": curve.scores}
        columns |= {"error": curve.error, "bridged": curve.bridged}
        columns |= {} if curve.lead is None else {"lead": curve.lead}
        return _sealed(columns, question)

    @staticmethod
    def unpacked(data: bytes, question: str, name: str) -> SweptWindow:
        """What `packed` gave for the same question, byte by byte; an error about whatever has this name otherwise."""
        columns = _opened(data, question, name)
        seconds = float(columns.pop("seconds"))
        curve = Curve(**columns)  # which checks that rows are finite, increase, and fit what is known between them
        return SweptWindow(0.0, float(curve.z[-1]), curve, late=True, seconds=seconds)


@dataclass(frozen=True, eq=False)
class EnumeratedWindow:
    """What a runtime made of the 8-bit pictures that begin from one strength up to another one, from the first of them
    as far as the time let it come: by how much a property holds, and who wins.
    """

    start: float
    end: float
    margins: NDArray[np.float32]
    winners: NDArray[np.int64]
    deployment: Deployment
    late: bool
    seconds: float

    def packed(self, question: str) -> bytes:
        """As bytes, for a question that is known by its digest; one that begins at 0."""
        ran = json.dumps(asdict(self.deployment))
        numbers = {"end": self.end, "seconds": self.seconds, "deployment": ran}
        columns = {name: np.array(value) for name, value in numbers.items()}
        return _sealed(columns | {"margins": self.margins, "winners": self.winners}, question)

    @staticmethod
    def unpacked(data: bytes, question: str, name: str) -> EnumeratedWindow:
        """What `packed` gave for the same question, byte by byte; an error about whatever has this name otherwise."""
        columns = _opened(data, question, name)
        end, seconds = (float(columns.pop(key)) for key in ("end", "seconds"))
        deployment = Deployment(**json.loads(str(columns.pop("deployment"))))
        return EnumeratedWindow(0.0, end, **columns, deployment=deployment, late=True, seconds=seconds)


def _sealed(columns: dict[str, Any], question: str) -> bytes:
    data = BytesIO()
    np.savez(data, **columns)
    return _seal(data.getvalue(), question) + data.getvalue()


def _opened(data: bytes, question: str, name: str) -> dict[str, Any]:
    seal, packed = data[:SEAL_BYTES], data[SEAL_BYTES:]
    if seal != _seal(packed, question):
        raise InputError(f"{name}: is not a saved part of this query; remove it to start over")
    return dict(np.load(BytesIO(packed), allow_pickle=False))


def _seal(packed: bytes, question: str) -> bytes:
    return hashlib.sha256(question.encode() + packed).digest()


@dataclass(frozen=True, eq=False)
class BoundedCells(Proof):
    """Boxes of strengths, or of inputs, with a bound for each. Along a path, scores were evaluated in the graph of the
    property's cases, in which the `label` should win.
    """

    cells: SplitCells
    about: Property
    label: int = 0

    method = "bounds"

    def is_about(self, obligation: Obligation) -> bool:
        inputs = obligation.inputs
        if self.about is not obligation.property:
            return False
        total = None
        if isinstance(inputs, InputPath):
            low, high = np.zeros(len(inputs.end)), np.array(inputs.end)
        elif isinstance(inputs, InputKernels):
            low, high, total = (
                np.zeros(inputs.path.parameters),
                np.full(inputs.path.parameters, inputs.total),
                inputs.total,
            )
        else:
            low, high = (end.cpu().numpy() for end in inputs.as_path()[1:])
        same = np.array_equal(self.cells.low, low) and np.array_equal(self.cells.high, high)
        return same and self.cells.total == total

    @cached_property
    def least(self) -> float:
        (least,) = self.cells.tree.least()
        return float(least)

    @property
    def pieces(self) -> int:
        return self.cells.bounded

    @property
    def is_finished(self) -> bool:
        return self.cells.finished

    @property
    def is_doubtful(self) -> bool:
        return self.cells.doubtful

    @cached_property
    def certified(self) -> float:
        """Along one strength: how far the proved boxes reach from the left without a gap."""
        if len(self.cells.high) > 1:
            return 0.0
        boxes = self.cells.boxes(self.cells.safe)[:, :, 0]
        boxes = boxes[boxes[:, 0].argsort()]
        reached = np.maximum.accumulate(np.append(self.cells.low[:1], boxes[:, 1]))
        gaps = np.flatnonzero(boxes[:, 0] > reached[:-1])
        return float(reached[gaps[0] if len(gaps) else -1])

    @property
    def critical(self) -> Bracket | None:
        """Along one strength: proved up to the first, failed in the runtime at the second."""
        if len(self.cells.high) > 1 or not len(self.cells.replayed):
            return None
        lost = float(self.cells.replayed.min())
        return min(self.certified, lost), lost

    @property
    def regions(self) -> Regions:
        return Regions(*(self.cells.boxes(parts) for parts in (self.cells.safe, self.cells.violated, self.cells.open)))

    @property
    def curve(self) -> Curve:
        """The evaluations along one strength, in order; nothing is claimed between them."""
        if self.cells.points.shape[1] > 1:
            return Curve(np.empty(0), np.empty((0, self.cells.scores.shape[1])))
        z, first = np.unique(self.cells.points[:, 0], return_index=True)
        return Curve(z, self.cells.scores[first])


@dataclass(frozen=True, eq=False)
class BoundedTree(Proof):
    """Parts of a box of inputs, told apart by neurons, with what is proved of each."""

    box: SplitBox
    about: Property

    method = "bounds"

    def is_about(self, obligation: Obligation) -> bool:
        inputs = obligation.inputs
        if self.about is not obligation.property:
            return False
        if self.box.bounds is None:
            return True
        ends = (
            zip(self.box.bounds.proving.box, (inputs.low, inputs.high), strict=True)
            if isinstance(inputs, InputBox)
            else ()
        )
        same = [np.array_equal(mine[0].cpu().numpy(), theirs.cpu().numpy()) for mine, theirs in ends]
        return same == [True, True]

    @cached_property
    def least(self) -> float:
        return float(self.box.tree.least().min(initial=math.inf))

    @property
    def pieces(self) -> int:
        return 0 if self.box.bounds is None else len(self.box.tree)

    @property
    def is_finished(self) -> bool:
        return self.box.finished


@dataclass(frozen=True, eq=False)
class Enumerated(Proof):
    """The 8-bit pictures of a path, and what the deployed runtime makes of them, one after another from the first.

    For each, as far as they were looked at: by how much the property holds (NaN where a score is none), and the class
    that wins. Of the property that a label wins, that is how far its score exceeds all others.
    """

    pictures: EightBitPictures
    about: Property
    margins: NDArray[np.float32]
    winners: NDArray[np.int64]
    deployment: Deployment
    timed_out: bool = False

    method = "enumeration"
    is_deployed = True

    def __post_init__(self) -> None:
        if len(self.margins) != len(self.winners) or (
            len(self.margins) and not self.pictures.has(len(self.margins) - 1)
        ):
            raise ProofError("pictures and what was made of them do not fit together")

    def is_about(self, obligation: Obligation) -> bool:
        inputs, is_property = obligation.inputs, self.about is obligation.property
        return is_property and isinstance(inputs, InputPath) and inputs.end == (self.pictures.end,)

    @property
    def least(self) -> float:
        return float(self.margins.min()) if self.all_run and self.first_lost is None else -math.inf

    @property
    def pieces(self) -> int:
        return len(self.margins)

    @property
    def is_finished(self) -> bool:
        return not self.timed_out

    @property
    def left(self) -> float:
        return self.pictures.about - len(self.margins)

    @cached_property
    def _kept(self) -> int:
        """How many pictures keep the label, from the first on."""
        lost = np.flatnonzero(~(self.margins > 0))
        return int(lost[0]) if len(lost) else len(self.margins)

    @property
    def all_run(self) -> bool:
        """Whether every picture was run."""
        return not self.pictures.has(len(self.margins))

    @property
    def first_lost(self) -> int | None:
        """The number of the first picture that does not keep the label."""
        return self._kept if self._kept < len(self.margins) else None

    @property
    def certified(self) -> float:
        """The last float64 before the first picture whose label loses, or that was not run."""
        return self.pictures.last_before(self._kept) if self.pictures.has(self._kept) else self.pictures.end

    @property
    def critical(self) -> Bracket | None:
        """The last float64 before the first picture that is lost, and the first at which it is reached."""
        lost = self.first_lost
        return None if lost is None else (self.pictures.last_before(lost), self.pictures.first_of(lost))

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of each picture, as ArgMax has it: the first of those that score most; -1 where one is no number.

        That the label counts as lost where another scores as much is another matter.
        """
        tied = self.winners
        if self.about.is_label and self.about.label is not None:
            tied = np.where(self.margins == 0, np.minimum(tied, self.about.label), tied)
        return np.where(np.isnan(self.margins), -1, tied)

    @property
    def profile(self) -> tuple[Interval, ...]:
        """Which class wins at all float64 strengths from a start to an end, both included; of a label's query."""
        if not self.about.is_label:
            return ()
        first, last = self.pictures.first_of, self.pictures.last_before
        intervals = (Interval(first(start), last(stop), winner) for start, stop, winner in self._runs())
        return tuple(interval for interval in intervals if interval.start <= interval.end)

    def exact_profile(self, count: int | None = None) -> tuple[ExactInterval, ...]:
        """Which class wins where, without rounding: on all pictures that were looked at, or on the first of them."""
        return tuple(
            ExactInterval(
                start=self.pictures.begins(start),
                end=self.pictures.begins(stop),
                winner=winner,
                has_start=self.pictures.has_start(start),
                has_end=not self.pictures.has_start(stop),
            )
            for start, stop, winner in self._runs(count)
        )

    def _runs(self, count: int | None = None) -> Iterator[tuple[int, int, int]]:
        """From which picture up to which other one a class wins."""
        winners = self.winners[:count]
        starts = np.flatnonzero(np.append(True, np.diff(winners) != 0))[: len(winners)].tolist()
        yield from ((start, stop, int(winners[start])) for start, stop in pairwise([*starts, len(winners)]))
