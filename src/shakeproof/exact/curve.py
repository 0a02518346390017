"""The class scores along one line, as chords between breakpoints: what a sweep hands over, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import NotFiniteError, ProofError
from shakeproof.operators import ABOVE, UNIT, envelope_breaks

Floats = NDArray[np.float64]
# Which class wins on a narrower stretch than this, beside a jump, is not asked.
NARROW = 1e-6
# A lead that is read off a chord within a piece is itself rounded, by so many units of the scores at most.
READ_OFF = 32


class Piece(NamedTuple):
    """A stretch of finished rows, sorted by line and z: scores (rows, classes) at z (rows) on line (rows).

    `error` (rows) bounds the norm of what is between the scores and the chord from a row to the next.
    """

    line: Tensor
    z: Tensor
    scores: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Curve:
    """Scores (rows, classes) at strictly increasing z (rows); exact chords in between, except over bridges.

    A bridge (`bridged`, for each two neighbouring rows) was not enumerated. It is proved that whoever leads at both of
    its ends leads on all of it, and that the label's smallest margin is at a row, not within a bridge.

    `error`, for each two neighbouring rows too, bounds the norm of what is between the network's scores and the chord;
    it is 0 over bridges, whose proof has allowed for it, NaN where nobody looked, and infinite over jumps, where there
    is no chord. For a network that jumps, `lead` (segments, classes) is what each class provably leads all others by
    between two rows, whatever may happen there.
    """

    z: Floats
    scores: Floats
    error: Floats = field(default_factory=lambda: np.empty(0))
    bridged: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    lead: Floats | None = None

    def __post_init__(self) -> None:
        segments = max(len(self.z) - 1, 0)
        if not len(self.bridged):
            object.__setattr__(self, "bridged", np.zeros(segments, bool))
        if not len(self.error):
            object.__setattr__(self, "error", np.full(segments, np.nan))
        lengths = {len(known) for known in (self.error, self.bridged, self.lead) if known is not None}
        if lengths != {segments}:
            raise ProofError("the rows of a curve and what is known between them do not fit together")
        if not np.isfinite(self.scores).all():
            raise NotFiniteError("the network's scores are not finite along this path; check its weights, mean and std")
        if not (np.diff(self.z) > 0).all() or not np.isfinite(self.z).all():
            raise ProofError("the rows of a curve do not increase")

    def covers(self, start: float, end: float) -> bool:
        """Whether the rows reach from `start` to `end`, both exactly."""
        return len(self.z) > 0 and bool(self.z[0] == start) and bool(self.z[-1] == end)

    def up_to(self, end: float) -> Curve:
        """The rows up to a strength; none beyond it."""
        count = int(np.searchsorted(self.z, end, side="right"))
        segments = max(count - 1, 0)
        lead = None if self.lead is None else self.lead[:segments]
        return Curve(self.z[:count], self.scores[:count], self.error[:segments], self.bridged[:segments], lead)

    @property
    def pieces(self) -> int:
        """How many linear pieces were enumerated."""
        return int((~self.bridged & ~self.jumps).sum())

    @property
    def jumps(self) -> NDArray[np.bool_]:
        """Between which rows there is a jump, or several."""
        return np.isinf(self.error)

    def leads(self, label: int) -> Floats:
        """By how much the label's score exceeds each class's: (rows, classes), infinite for the label itself."""
        leads: Floats = self.scores[:, [label]] - self.scores
        leads[:, label] = np.inf
        return leads

    def margin(self, label: int) -> Floats:
        """The label's lead over its best rival, at each row. Between rows it is never below the chord."""
        smallest: Floats = self.leads(label).min(1)
        return smallest

    @property
    def off(self) -> Floats:
        """A bound on the error of score differences between neighbouring rows; infinite if it was not computed."""
        size = np.abs(self.scores).max(1, initial=0.0)
        off = 2**0.5 * self.error + 4 * UNIT * np.maximum(size[:-1], size[1:])
        return np.where(np.isnan(off), np.inf, off * (1 + 4 * UNIT))

    def first_loss(self, label: int) -> float | None:
        """The smallest z at which the label no longer leads; None if it leads everywhere."""
        leads = self.leads(label)
        lost = np.flatnonzero(leads.min(1) <= 0)
        if not len(lost):
            return None
        row = int(lost[0])
        if row == 0:
            return float(self.z[0])
        before, after = leads[row - 1], leads[row]
        losing = after <= 0
        fraction = (before[losing] / (before[losing] - after[losing])).min()
        return float(self.z[row - 1] + fraction * (self.z[row] - self.z[row - 1]))

    def classes(self) -> Iterator[tuple[float, float, int]]:
        """Intervals (from, to, winning class), neighbours with different classes, from the first to the last z.

        Or to where a neuron is so close to a jump, for a while, that who wins is not known.
        """
        if self.lead is not None:
            unknown = self.jumps & (np.diff(self.z) > NARROW) & ~(self.lead > 0).any(1)
            if unknown.any():
                yield from replace(self.up_to(self.z[unknown.argmax()]), lead=None).classes()
                return
        if len(self.z) == 1:
            yield float(self.z[0]), float(self.z[0]), int(self.scores[0].argmax())
        ends, winners = self._cells()
        start = 0
        for stop in [*(np.flatnonzero(np.diff(winners)) + 1).tolist(), len(winners)]:
            if len(winners):
                yield float(ends[start]), float(ends[stop]), int(winners[start])
            start = stop

    @cached_property
    def settled(self) -> tuple[Floats, Floats, NDArray[np.int64]]:
        """Where a class leads all others by more than rounding: starts, ends and classes, in order.

        On a chord the leads are known up to what the sweep says that they are off by. Between these stretches the
        winner is not proved. Their ends are read off the chords, and rounded.
        """
        ends, winners = self._cut
        segment = np.searchsorted(self.z, ends[:-1], side="right") - 1
        cell = np.arange(len(winners))
        size = np.abs(self.scores).max(1, initial=0.0)
        doubt = self.off + READ_OFF * UNIT * np.maximum(size[:-1], size[1:])
        scores = self.at(ends)
        with np.errstate(divide="ignore", invalid="ignore"):
            before, after = (
                side[cell, winners][:, None] - side - doubt[segment][:, None] for side in (scores[:-1], scores[1:])
            )
            before[cell, winners] = after[cell, winners] = np.inf
            zero = before / (before - after)
        low = np.where((before <= 0) & (after > 0), zero, 0.0).max(1)
        high = np.where((before > 0) & (after <= 0), zero, 1.0).min(1)
        high[((before <= 0) & (after <= 0)).any(1)] = 0.0
        if self.lead is not None:
            lead = self.lead[segment]
            winners, low, high = lead.argmax(1), np.zeros(len(lead)), np.where((lead > 0).any(1), 1.0, 0.0)
        low, high = np.where(self.bridged[segment], 0.0, low), np.where(self.bridged[segment], 1.0, high)
        length = ends[1:] - ends[:-1]
        start, end = ends[:-1] + low * length, np.where(high < 1, ends[:-1] + high * length, ends[1:])
        proved = (low < high) & (start < end)
        return start[proved], end[proved], winners[proved]

    def _cells(self) -> tuple[Floats, NDArray[Any]]:
        """z cut at every change of leader, and who leads in each cell."""
        best = self.scores.argmax(1)
        if len(self.z) > 1 and (best == best[0]).all():  # whoever leads at both ends of a chord leads on all of it
            return self.z[[0, -1]], best[:1]
        return self._cut

    @cached_property
    def _cut(self) -> tuple[Floats, NDArray[Any]]:
        """z cut at every row and every change of leader, and who leads in each cell."""
        best = self.scores.argmax(1)
        mixed = np.flatnonzero(best[1:] != best[:-1])
        jumps, mixed = mixed[self.jumps[mixed]], mixed[~self.jumps[mixed]]
        left, right = torch.from_numpy(self.scores[mixed]), torch.from_numpy(self.scores[mixed + 1])
        breaks = envelope_breaks(left, right)
        segment = mixed[breaks.segment.numpy()]
        cuts = self.z[segment] + breaks.fraction.numpy() * (self.z[segment + 1] - self.z[segment])
        ends = np.unique(np.concatenate([self.z, cuts, (self.z[jumps] + self.z[jumps + 1]) / 2]))
        middles = (ends[1:] + ends[:-1]) / 2
        return ends, self.at(middles).argmax(1)

    def at(self, z: Floats) -> Floats:
        """Scores at any z in range, by interpolation; within a jump, those of the nearer row."""
        segment = (np.searchsorted(self.z, z, side="right") - 1).clip(0, max(len(self.z) - 2, 0))
        after = np.minimum(segment + 1, len(self.z) - 1)
        length = np.where(after > segment, self.z[after] - self.z[segment], 1.0)
        fraction = (z - self.z[segment]) / length
        if self.jumps.any():
            fraction = np.where(self.jumps[segment], np.round(fraction), fraction)
        fraction = fraction[:, None]
        values: Floats = self.scores[segment] * (1 - fraction) + self.scores[after] * fraction
        return values


def assemble(pieces: Iterable[Piece], lines: int, classes: int) -> Sequence[Curve]:
    """One curve per line from a sweep's pieces, the rows that neighbours share taken once.

    That they do share a row is checked: a piece lost in between would leave a chord over what was never analysed.
    """
    parts = list(pieces)
    for before, after in pairwise(parts):
        if before.line[-1] == after.line[0] and before.z[-1] != after.z[0]:
            raise ProofError("a piece of a line is missing")
    if not parts:
        return [Curve(np.empty(0), np.empty((0, classes)))] * lines
    line, z, scores, error = (torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True))
    last = np.ones(len(z), dtype=bool)  # of a row that two pieces share, the second's error is about what follows it
    last[:-1] = (z[1:] != z[:-1]) | (line[1:] != line[:-1])
    line, z, scores, error = line[last], z[last], scores[last], error[last]
    if (np.diff(line) < 0).any():
        raise ProofError("the pieces of a line are out of order")
    bounds = np.searchsorted(line, np.arange(lines + 1))
    return [_finite(z[a:b], scores[a:b], error[a:b]) for a, b in pairwise(bounds)]


def _finite(z: Floats, scores: Floats, error: Floats) -> Curve:
    """The curve up to the first scores that are not finite."""
    broken = np.flatnonzero(~np.isfinite(scores).all(1))
    end = int(broken[0]) if len(broken) else len(z)
    return Curve(z[:end], scores[:end], error[: max(end - 1, 0)])


@dataclass(frozen=True, eq=False)
class CertifiedCell:
    """A stretch of a line from `start` to `end` on which `leader` provably leads; scores (2, classes) at its ends."""

    start: float
    end: float
    leader: int
    scores: Floats

    def __post_init__(self) -> None:
        if not (self.scores.argmax(1) == self.leader).all():
            raise ProofError("a bound contradicts an evaluation")


def join(parts: Sequence[tuple[float, float, Curve | CertifiedCell]], classes: int) -> Curve:
    """One curve from stretches (start, end, what is known of it) that follow one another.

    Ends where a curve does not reach the end of its stretch, because the time was up or nobody asked for more.
    """
    if len(parts) == 1 and isinstance(only := parts[0][2], Curve) and len(only.z) and only.z[0] == parts[0][0]:
        return only
    z: list[Floats] = []
    scores: list[Floats] = []
    error: list[Floats] = []
    bridged: list[NDArray[np.bool_]] = []
    lead: list[Floats] = []
    last = np.empty(0)
    for start, end, part in parts:
        if z and z[-1][-1] != start:
            raise ProofError("a stretch of a line is missing")
        if isinstance(part, CertifiedCell):
            rows, values, off, flags = np.array([start, end]), part.scores, np.zeros(1), np.ones(1, bool)
        else:
            rows, values, off, flags = part.z, part.scores, part.error, part.bridged
            if not len(rows) or rows[0] != start:
                break
            lead += [] if part.lead is None else [part.lead]
        shared = 1 if z else 0
        if shared and not flags[:1].any():  # the chord begins at the row of the part before, which may be another
            off = np.concatenate([off[:1] + ABOVE * np.abs(values[0] - last).sum(), off[1:]])
        last = values[-1]
        z.append(rows[shared:])
        scores.append(values[shared:])
        error.append(off)
        bridged.append(flags)
        if rows[-1] != end:
            break
    if not z:
        return Curve(np.empty(0), np.empty((0, classes)))
    leads = np.concatenate(lead) if lead else None
    return Curve(np.concatenate(z), np.concatenate(scores), np.concatenate(error), np.concatenate(bridged), leads)
