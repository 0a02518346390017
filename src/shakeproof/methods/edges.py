"""Where labels stop winning: up to where each provably wins, and where it loses, as close to one another as can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shakeproof.budget import OutOfTimeError
from shakeproof.evidence import SLACK
from shakeproof.exact import Curve
from shakeproof.methods.nearest import Floats, Numbers, nearest
from shakeproof.operators import UNIT
from shakeproof.question import margins

if TYPE_CHECKING:
    from shakeproof.methods.proving import Proving

# How far from a turn a proof is tried: first near it, as near as float64 allows, and farther away where that fails.
NEAR = np.array([1e-12, 1e-11, 1e-10, 4e-10, 1e-9, 3e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
FAR = np.array([3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0])
Side = Literal["before", "after"]
SIDES: tuple[Side, ...] = ("before", "after")
# A lead of nothing is enough for a rival.
TIED = 2.0**-1074


class Edge(NamedTuple):
    """One side of a place where a line's label stops winning: `z` are strengths, the nearest first.

    It is claimed that the label wins from `start` to z, or loses to a `rival` at z. By how much that holds there is
    `margin`, as far as one knows, and where it is `sure` no proof is needed.
    """

    number: int
    z: Floats
    start: Floats
    rival: Numbers
    margin: Floats
    sure: NDArray[np.bool_]


class Edges:
    """Of the curves that a batch has swept, with what is proved between their rows, and where labels first lose: on
    both `sides` of that, or on one.
    """

    def __init__(
        self,
        batch: Proving,
        curves: Sequence[Curve],
        losses: Sequence[float | None],
        proved: Sequence[Floats],
        sides: Sequence[Side] = SIDES,
    ) -> None:
        self.batch, self.curves, self.losses, self.proved, self.sides = batch, curves, losses, proved, sides
        self.nominal = batch.settings.rounding == "nominal"

    @property
    def wanted(self) -> list[int]:
        """The lines that are not proved as a whole."""
        lines = enumerate(zip(self.curves, self.proved, strict=True))
        return [number for number, (curve, lower) in lines if len(curve.z) and not (lower > 0).all()]

    def found(self) -> tuple[dict[int, float], dict[int, float]]:
        """For each line that is not proved as a whole: up to where its label provably wins, and where it loses."""
        turns = {number: self.turn(number) for number in self.wanted}
        wins = {number: 0.0 for number, z in turns.items() if z == 0}
        loses: dict[int, float] = {}
        losing = {number: z for number in turns if (z := self.losses[number])}
        # a label that ties behind its turn loses there, though float64 shows it later; one that jumps may lose once
        ties = {n: turns[n] for n, loss in losing.items() if turns[n] < loss and self.curves[n].lead is None}
        for widths, after in ((NEAR, ties), (NEAR, losing), (FAR, losing)):
            late = self.batch.budget.is_late()
            before = {} if after is ties else turns
            try:
                edges = self.edges(before, after, wins, loses, widths[-1:] if late else widths)
                nearest_proved = self.proved_at(edges).tolist()
            except OutOfTimeError:
                break
            for edge, place in zip(edges, nearest_proved, strict=True):
                if place < len(edge.z):
                    wins_before = edge.rival[place] < 0
                    (wins if wins_before else loses)[edge.number] = float(edge.z[place] * (1 - SLACK * wins_before))
            if late:
                break
        return wins, loses

    def turn(self, number: int) -> float:
        """Where the margin comes down to nothing, or to what rounding might explain: in the first piece not proved."""
        curve, loss = self.curves[number], self.losses[number]
        piece = self.unproved(number)
        start, end = curve.z[piece], curve.z[min(piece + 1, len(curve.z) - 1)]
        if loss is not None and start <= loss <= end:
            return loss
        margin = curve.margin(self.label(number))
        return float(end if margin[piece] > margin[min(piece + 1, len(margin) - 1)] else start)

    def unproved(self, number: int) -> int:
        """The first piece that is not proved."""
        return int(np.flatnonzero(~(self.proved[number] > 0))[0])

    def unproved_from(self, number: int) -> float:
        """Where it begins."""
        return float(self.curves[number].z[self.unproved(number)])

    def edges(
        self,
        turns: dict[int, float],
        losing: dict[int, float],
        wins: dict[int, float],
        loses: dict[int, float],
        widths: Floats,
    ) -> list[Edge]:
        """Both sides, but for those that are known: so far before each turn, and so far after each loss."""
        before = [number for number in turns if number not in wins and "before" in self.sides]
        before = [number for number in before if turns[number] - widths[0] > self.unproved_from(number)]
        after = [number for number in losing if number not in loses and "after" in self.sides]
        low = [np.maximum(turns[number] - widths, 0.0) for number in before]
        high = [np.minimum(losing[number] + widths, self.batch.path(number).end[0]) for number in after]
        if not low + high:
            return []
        numbers = np.repeat([*before, *after], len(widths))
        scores, error = self.batch.evaluated(numbers, np.concatenate(low + high), self.batch.budget.closing)
        own = (2**0.5 * error + 4 * UNIT * np.abs(scores).max(1)).reshape(-1, len(widths))
        direct = margins(scores, self.batch.labels[numbers]).reshape(-1, len(widths))
        scores[np.arange(len(numbers)), self.batch.labels[numbers]] = -np.inf
        rivals = scores.argmax(1).reshape(direct.shape)
        count = len(before)
        return [
            *(self.before(*side) for side in zip(before, low, direct[:count], own[:count], strict=True)),
            *(self.after(*side) for side in zip(after, high, direct[count:], own[count:], rivals[count:], strict=True)),
        ]

    def before(self, number: int, z: Floats, direct: Floats, own: Floats) -> Edge:
        """That the label wins up to a strength: on the pieces before it, and on what is left of one.

        `own` is what direct evaluation may be off by itself, where the curve is known better than that.
        """
        curve = self.curves[number]
        piece = np.maximum(np.searchsorted(curve.z, z, side="left") - 1, 0)
        margin = np.minimum(direct, curve.margin(self.label(number))[piece])
        # before that piece it is known already, and behind it nothing is proved
        margin = np.where(piece == self.unproved(number), margin, -np.inf)
        # the chord is within one error of the margin at either end, and so is the margin of the chord in between
        sure = margin > (0.0 if self.nominal else 3 * np.maximum(self.off(curve, piece), own))
        return Edge(number, z, curve.z[piece] * (1 - SLACK), np.full(len(z), -1), margin, sure)

    def after(self, number: int, z: Floats, direct: Floats, own: Floats, rivals: Numbers) -> Edge:
        """That the label loses at a strength, or ties."""
        curve = self.curves[number]
        off = np.maximum(self.off(curve, np.searchsorted(curve.z, z) - 1), own)
        sure = direct <= 0 if self.nominal else direct < -off
        return Edge(number, z, z, rivals, np.where(direct == 0, TIED, -direct), sure)

    def off(self, curve: Curve, piece: NDArray[Any]) -> Floats:
        """What a margin, on a piece of a curve or evaluated there, is off by at most."""
        if self.batch.settings.arithmetic != "real" or not len(curve.error):
            return np.full(len(piece), np.inf)
        inside = np.clip(piece, 0, len(curve.error) - 1)
        return np.where((inside == piece) & ~curve.bridged[inside], curve.off[inside], np.inf)

    def proved_at(self, edges: Sequence[Edge]) -> Numbers:
        """For each edge, the number of the nearest strength at which it is proved."""
        if not edges:
            return np.empty(0, dtype=np.int64)
        margin, sure = np.stack([edge.margin for edge in edges]), np.stack([edge.sure for edge in edges])
        found = nearest(
            margin,
            sure,
            lambda rows, places: self.bounds([edges[row] for row in rows], places, False),
            self.guessed(margin, sure),
        )
        left = np.flatnonzero(found == margin.shape[1])
        if len(left) and self.batch.computes_exactly:  # that takes its time: only where nothing else will do
            found[left] = nearest(
                margin[left],
                sure[left],
                lambda rows, places: self.bounds([edges[left[row]] for row in rows], places, True),
            )
        return found

    def guessed(self, margin: Floats, sure: NDArray[np.bool_]) -> float:
        """What bounds will fall short of margins by; nothing where it is the first place or none."""
        if margin.shape[1] == 1 or not ((margin > 0) & ~sure)[:, 0].any():
            return 0.0
        return self.batch.usual_shortfall

    def bounds(self, edges: Sequence[Edge], places: Numbers, exact: bool) -> Floats:
        """Lower bounds of the margins of edges, at a place each."""
        at = list(zip(edges, places.tolist(), strict=True))
        numbers, rivals = (np.array(column) for column in zip(*((e.number, e.rival[p]) for e, p in at), strict=True))
        return self.batch.leads(numbers, [(float(e.start[p]), float(e.z[p])) for e, p in at], rivals, exact)

    def label(self, number: int) -> int:
        return int(self.batch.labels[number])
