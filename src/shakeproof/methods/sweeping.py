"""The exact method: paths swept together, and for each a curve, where it was compared, and what it loses by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import UNLIMITED, Budget, OutOfTimeError, no_progress, now
from shakeproof.errors import ProofError
from shakeproof.evidence import Swept, Witness
from shakeproof.exact import (
    Curve,
    Helpers,
    Least,
    Lines,
    Piece,
    Precise,
    join,
    pieces_left,
    swept_curves,
    threads_for,
)
from shakeproof.methods.edges import SIDES, Edges, Side
from shakeproof.methods.nearest import first_proved
from shakeproof.methods.proving import Proving, as_float
from shakeproof.methods.sharing import Brackets, LinesFound, bracketed, found_by_lines, session
from shakeproof.methods.windows import SweptWindow
from shakeproof.model import Comparison, Network
from shakeproof.question import Query, margins
from shakeproof.replay import compared, fails, places, witnessed
from shakeproof.result import Result
from shakeproof.settings import Settings
from shakeproof.verdict import Evidence

# How many strengths are tried in the reference runtime before an early answer is worked for.
PROBES = 32
# A label is not looked for to lose any closer than this to where it does so on a curve: float32 would not show it.
CLOSE = 1e-6
# In how many stretches that lose a counterexample is looked for, one after another.
REPLAYED = 8
# Lines that share a sweep: as many as this, as their inputs fit into so many bytes, and as their networks have so many
# values in all for each core. More gain nothing; and the answers to some come before the others are worked on.
LINES_AT_ONCE, LINE_BYTES, VALUES_AT_ONCE = 1024, 64 * 2**20, 2**20


def lines_at_once(network: Network) -> int:
    """How many queries should share a sweep; counted, not timed, so that the same queries give the same pieces."""
    graph = network.graph
    values = VALUES_AT_ONCE * torch.get_num_threads()
    return max(1, min(LINES_AT_ONCE, LINE_BYTES // (16 * graph.input_shape.numel()), values // graph.entries))


def answer_by_sweep(
    network: Network,
    queries: Sequence[Query],
    settings: Settings,
    progress: Callable[[float], None],
    begun: Sequence[SweptWindow | None] | None = None,
) -> list[Result]:
    """Answer queries about paths of one strength, with the same clipping, in one sweep.

    Where one was `begun` before, it goes on; all that follows from a curve is worked out from the whole of it.
    """
    with _batch(network, queries, settings, progress) as batch:
        batch.go_on(begun or [None] * len(queries))
        return batch.results()


def sweep_window(network: Network, query: Query, settings: Settings, start: float, end: float) -> SweptWindow:
    """Sweep a part of a query's path; of a network without jumps."""
    with _batch(network, [query], settings) as batch:
        part = replace(batch.lines, start=batch.lines.start + start, end=torch.full_like(batch.lines.end, end))
        (curve,) = batch.curves(part)
        return SweptWindow(start, end, curve, batch.budget.is_late(), now() - batch.started)


def answer_by_windows(network: Network, query: Query, settings: Settings, windows: Sequence[SweptWindow]) -> Result:
    """Answer a query by windows that follow one another, wherever they were swept.

    That none is missing in between is checked as they are joined, and that they reach from 0 to the strength by the
    proof itself: what follows from the curve is worked out here, as it is for one that was swept at once.
    """
    in_order = sorted(windows, key=lambda window: window.start)
    curve = join([(window.start, window.end, window.curve) for window in in_order], network.graph.classes)
    late, spent = any(window.late for window in windows), sum(window.seconds for window in windows)
    with _batch(network, [query], settings) as batch:
        (result,) = batch.results([curve], late, spent)
    return result


@contextmanager
def _batch(
    network: Network, queries: Sequence[Query], settings: Settings, progress: Callable[[float], None] = no_progress
) -> Iterator[Batch]:
    """Queries to be worked on from now on, on as many cores as torch has threads."""
    cores = torch.get_num_threads()
    with threads_for(network.graph, cores):
        yield Batch(network, queries, settings, Budget.starting(settings.timeout, settings.memory, progress, cores))


class Batch(Proving):
    """Queries that share a sweep: one line each."""

    def __init__(self, network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> None:
        super().__init__(network, queries, settings, budget)
        self.started = now()
        # What was swept before, from 0; lines start where it ends.
        self.begun: dict[int, SweptWindow] = {}
        # Counterexamples that the reference runtime has confirmed, so that their lines need no further work.
        self.confirmed: dict[int, Witness] = {}
        # All strengths at which it was seen to fail before the sweep.
        self.probed: dict[int, tuple[float, ...]] = {}

    def go_on(self, begun: Sequence[SweptWindow | None]) -> None:
        """Let lines start where those that were begun before have ended."""
        self.begun = {number: own for number, own in enumerate(begun) if own is not None}
        if self.begun and self.enumerates:
            self.begun = {number: own.enumerated() for number, own in self.begun.items()}
        start = self.lines.start.clone()
        for number, own in self.begun.items():
            if not own.curve.covers(0.0, own.end) or not own.end <= float(self.lines.end[number]):
                raise ProofError("what was swept before is not the beginning of this path")
            start[number] = self.going_on_from(number)
        self.lines = replace(self.lines, start=start)

    def going_on_from(self, number: int) -> float:
        """Where a sweep goes on that was begun before: at its last row, where a neuron bends; or, with more digits than
        float64's, within the last piece. They see how far a bend is from the number next to it, and what that may do
        to the scores is more than can be proved.
        """
        own = self.begun[number]
        return own.within_a_piece().end if isinstance(self.chords, Precise) else own.end

    @property
    def enumerates(self) -> bool:
        """Whether every piece is wanted: bounds that spare some are about real numbers, and of float64's precision."""
        return self.settings.whole_curve or self.settings.arithmetic != "real" or isinstance(self.chords, Precise)

    def curves(self, lines: Lines, closed: Sequence[int] = (), helpers: Helpers | None = None) -> list[Curve]:
        """The scores along lines, but for those that are closed, behind what was swept of them before."""
        if len(set(closed)) < len(lines):
            look = self.confirm if self.settings.stop_early else None
            chords = self.chords  # which may end the time
            asked = self.labels, self.budget, closed, self.enumerates, chords, look, helpers
            found = swept_curves(self.graph, lines, *asked)
        else:  # and it need not be known which digits a sweep takes, which may take long
            found = [Curve(np.empty(0), np.empty((0, self.graph.classes)))] * len(lines)
        for number, own in self.begun.items():
            before = own if float(lines.start[number]) == own.end else own.within_a_piece()
            parts = [(0.0, before.end, before.curve), (before.end, float(lines.end[number]), found[number])]
            joined = join(parts, self.graph.classes)
            found[number] = joined if joined.z[-1] >= own.end else own.curve
        return found

    def results(self, swept: Sequence[Curve] | None = None, late: bool = False, spent: float = 0.0) -> list[Result]:
        """What follows from the curves: they are swept, unless they were before, which took so many seconds."""
        if self.settings.stop_early:
            self.probe()
        with session(self, [*self.confirmed]) if swept is None else nullcontext() as helpers:
            if helpers is not None and helpers.takes_lines:
                found, brackets, shown = found_by_lines(helpers)
            else:
                if helpers is None and not self.compares_late:
                    self.compare()  # before anything that takes time; others can begin meanwhile
                found = self.found([*self.confirmed, *self.hopeless()], helpers, swept, late)
                brackets, shown = bracketed(self, found, helpers)
                self.distrust(found, brackets, range(len(self.queries)))
        curves, first = found.curves, self.first(found)
        hopeless = np.flatnonzero(~np.isfinite(first).all(1)).tolist()
        witnesses = self.witnesses(shown, [*self.sunk, *brackets.sunk])
        seconds = now() - self.started + spent
        before = [self.begun[number].curve.pieces if number in self.begun else 0 for number in range(len(curves))]
        work = np.array([curve.pieces + 1 - old for curve, old in zip(curves, before, strict=True)])
        results = []
        for number, curve in enumerate(curves):
            end = self.path(number).end[0]
            complete = curve.covers(0.0, end)
            label = int(self.labels[number])
            nominal = self.settings.rounding == "nominal"
            witness = witnesses.get(number)
            lost = self.lost(number, curve, found.losses[number], brackets.loses.get(number), witness)
            unseen = witness is None and found.losses[number] is not None and self.budget.is_late()
            timed_out = found.late[number] or unseen
            is_open = timed_out and witness is None and not complete and curve.pieces > 0
            left = pieces_left(self.graph, self.lines, number, curve, self.budget.closing) if is_open else None
            wins, lower = brackets.wins.get(number, 0.0), found.proved[number]
            in_float32 = self.settings.arithmetic == "float32"
            proof = Swept(curve, label, end, lower, wins, lost, timed_out, nominal, left, in_float32)
            stopped = timed_out or number in self.confirmed
            evidence = Evidence(
                needed=1,
                proofs=(proof,),
                witness=witness,
                comparison=self.comparisons[number],
                start=float(margins(first[[number]], [label])[0]),
                finite=complete or (stopped and number not in hopeless),
                arithmetic=self.settings.arithmetic,
                start_fails=bool(self.comparisons[number].fails[:1].any()),
            )
            predicted = None if number in hopeless else int(first[number].argmax())
            share = seconds * float(work[number] / work.sum())
            share += self.begun[number].seconds if number in self.begun else 0.0
            query = self.queries[number]
            results.append(Result(self.network.name, self.network.identity, query, evidence, predicted, share))
        return results

    def found(
        self,
        closed: Sequence[int],
        helpers: Helpers | None = None,
        swept: Sequence[Curve] | None = None,
        late: bool = False,
    ) -> LinesFound:
        """Sweep the lines, unless they were before, and work out where labels win."""
        curves = self.curves(self.lines, closed, helpers) if swept is None else [*swept]
        timed_out = late or self.budget.is_late()
        losses = [curve.first_loss(int(label)) for curve, label in zip(curves, self.labels, strict=True)]
        proved = self.proved(curves, losses)
        is_late = self.budget.is_late()  # for what takes bounds to be proved
        return LinesFound(curves, [timed_out or (is_late and not (p > 0).all()) for p in proved], losses, proved)

    def distrust(self, found: LinesFound, brackets: Brackets, numbers: Sequence[int]) -> None:
        """Let nothing rest on curves that direct evaluation contradicts, whoever has swept them."""
        for number in self.contradicted({number: found.curves[number] for number in numbers}):
            found.proved[number] = np.empty(0)
            brackets.wins.pop(number, None)
            brackets.loses.pop(number, None)

    def brackets(self, found: LinesFound, sides: Sequence[Side] = SIDES) -> Brackets:
        """Where labels stop winning, or one side of that."""
        known, self.sunk = self.sunk, []
        try:
            wins, loses = Edges(self, found.curves, found.losses, found.proved, sides).found()
            return Brackets(wins, loses, self.sunk)
        finally:
            self.sunk = known

    # -- the reference runtime ----------------------------------------------------------------------------------------

    def compare(self) -> list[Comparison]:
        """See that the comparisons are made."""
        return self.comparisons

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Each query compared with the runtime, at strengths spread over its path."""
        return self.compared_by(self.network.scores)

    def compared_by(self, evaluate: Callable[[Tensor], Tensor]) -> list[Comparison]:
        """The same, with the network's scores evaluated in some way."""
        count = PROBES + 1 if self.settings.stop_early else None
        obligations = [query.obligations[0] for query in self.queries]
        asked = [(own, places(own) if count is None else places(own, count)) for own in obligations]
        return compared(self.network, asked, self.budget, evaluate)

    @property
    def compares_late(self) -> bool:
        """Whether the only query is compared behind the sweep, in one run with its spots: the weights of a small
        network are read as fast for all of these as for some. (If its scores are not finite, no other line is spoilt.)
        """
        return len(self.queries) == 1 and not self.budget.is_timed and self.graph is self.network.graph

    def spot_scores(self, numbers: NDArray[np.int64], z: NDArray[np.float64]) -> NDArray[np.float64]:
        if "comparisons" in vars(self) or not self.compares_late:
            return super().spot_scores(numbers, z)
        beside: list[Tensor] = []

        def evaluate(inputs: Tensor) -> Tensor:
            if beside:
                return self.network.scores(inputs)
            both = self.network.scores(torch.cat([inputs, self.inputs(numbers, z)]))
            beside.append(both[len(inputs) :])
            return both[: len(inputs)]

        self.comparisons = self.compared_by(evaluate)
        return beside[0].numpy() if beside else super().spot_scores(numbers, z)

    def probe(self) -> None:
        """Confirm counterexamples among the strengths that were compared, before the real work."""
        for number, comparison in enumerate(self.comparisons):
            failing = np.flatnonzero(comparison.fails & (comparison.margin < 0))
            if len(failing) and comparison.margin[0] > 0:
                tried = places(self.queries[number].obligations[0], PROBES + 1)
                worst = int(failing[comparison.margin[failing].argmin()])
                witness = self.witness(number, float(tried[worst, 0]))
                if witness.replayed and witness.margin < 0:
                    self.confirmed[number] = witness
                    self.probed[number] = tuple(tried[failing, 0].tolist())

    def confirm(self, piece: Piece) -> Iterator[int]:
        """The lines on which this piece holds a counterexample that the reference runtime confirms."""
        line, z, scores = (column.cpu().numpy() for column in piece[:3])
        margin = margins(scores, self.labels[line])
        for number in dict.fromkeys(line[margin < 0].tolist()):
            rows = np.flatnonzero(line == number)
            worst = rows[margin[rows].argmin()]
            witness = self.witness(number, float(z[worst]))
            if witness.replayed and witness.margin < 0:
                self.confirmed[number] = witness
                yield number

    def witness(self, number: int, z: float) -> Witness:
        at = torch.tensor([z], dtype=torch.float64)
        obligation = self.queries[number].obligations[0]
        found = witnessed(self.network, self.network.graph, obligation, at)
        if found.replayed or not found.margin < 0 or self.settings.arithmetic != "real":
            return found
        ahead = self.leads(np.array([number]), [(z, z)], np.array([found.winner]))
        return replace(found, proved=bool(ahead[0] > 0))

    def sunken(self, number: int, least: Least) -> Witness:
        """Where the label loses without rounding, though float64 does not show it: at the nearest number, if there."""
        z, label = float(least.place), int(self.labels[number])
        at = torch.tensor([z], dtype=torch.float64)
        found = witnessed(self.network, self.network.graph, self.queries[number].obligations[0], at)
        there = self.least(number, (z, z), label, least.rival)
        if there is None or there.lead > 0 or found.replayed:
            return found
        return replace(found, margin=as_float(there.lead), winner=least.rival, proved=True)

    def shown(self, found: LinesFound, numbers: Sequence[int]) -> dict[int, Witness]:
        """Of some lines, those whose label loses: where it does so most clearly, and the reference runtime shows it."""
        shown = dict(self.confirmed)
        for number in numbers:
            curve = found.curves[number]
            if found.losses[number] is not None:
                for row in deepest(curve.margin(int(self.labels[number]))):
                    if self.budget.closing.is_late():
                        return shown
                    witness = self.witness(number, float(curve.z[row]))
                    best = shown.get(number)
                    if best is None or witness.replayed or (witness.proved and not best.proved):
                        shown[number] = witness
                    if witness.replayed:
                        break
        return shown

    def lost(
        self, number: int, curve: Curve, loss: float | None, proved: float | None, witness: Witness | None
    ) -> float | None:
        """The smallest strength at which a label is known to lose, by a proof; None if it is not known to lose.

        `loss` is where it first loses on the curve. Where nothing close to that is `proved`, proofs are tried in
        between. What the runtime shows, and is not proved, may be lost in real numbers a little later.
        """
        if loss == 0:  # misclassified, or nothing is known
            return None
        known = [] if proved is None else [proved]
        if witness is not None and not (proved is not None and loss is not None and proved - loss <= CLOSE):
            strengths = witness.strengths or ()
            tried = [*self.probed.get(number, ()), *strengths] if witness.replayed else []
            known += [z for z, loses in zip(tried, self.loses(number, tried), strict=True) if loses]
            known += strengths if witness.proved else ()
        if not known:
            return self.path(number).end[0] if witness is not None and witness.replayed else None
        nearest = min(known)
        if loss is None or nearest - loss <= CLOSE or number in self.confirmed:
            return nearest
        try:
            rows = curve.z[deepest(curve.margin(int(self.labels[number])))]
            return first_proved(lambda z: self.loses(number, z), loss, nearest, rows)
        except OutOfTimeError:
            return nearest

    def loses(self, number: int, z: Sequence[float] | NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the label provably loses at some strengths; in float32, one evaluation is enough: the runtime's."""
        if not len(z):
            return np.empty(0, bool)
        if self.settings.arithmetic == "float32":
            at = torch.tensor(z, dtype=torch.float64).view(-1, 1)
            return fails(self.network, self.queries[number].obligations[0], at)
        numbers, strengths = np.full(len(z), number), np.asarray(z, dtype=np.float64)
        scores = self.scores(numbers, strengths, self.budget if len(z) > 1 else UNLIMITED)
        scores[:, self.labels[number]] = -np.inf
        return self.leads(numbers, [(own, own) for own in strengths.tolist()], scores.argmax(1), exact=False) > 0

    def witnesses(self, shown: Mapping[int, Witness], sunk: Sequence[tuple[int, Least]]) -> dict[int, Witness]:
        """What the runtime shows, or else what is known without rounding."""
        found = dict(shown)
        for number, least in sunk:
            best = found.get(number)
            if best is None or not (best.replayed or best.proved):
                witness = self.sunken(number, least)
                if witness.proved or witness.replayed:
                    found[number] = witness
        return found

    # -- direct evaluation --------------------------------------------------------------------------------------------

    def hopeless(self) -> list[int]:
        """The lines whose scores are not finite even at strength 0; asked where no comparison was finite there."""
        if "comparisons" not in vars(self) and self.compares_late:
            return []
        known = self.comparisons if "comparisons" in vars(self) else [Comparison.of_nothing()] * len(self.queries)
        begun = [np.append(own.margin[:1], own.disagreement[:1]) for own in known]
        doubtful = np.flatnonzero([not (len(own) and np.isfinite(own).all()) for own in begun])
        scores = self.scores(doubtful, np.zeros(len(doubtful)))
        return [int(number) for number in doubtful[~np.isfinite(scores).all(1)]]

    def first(self, found: LinesFound) -> NDArray[np.float64]:
        """Class scores at strength 0 (queries, classes): rows of curves, or evaluated where none is to be trusted."""
        known = zip(found.curves, found.proved, strict=True)
        has_row = np.array([len(lower) > 0 and curve.z[0] == 0 and curve.lead is None for curve, lower in known])
        scores = np.empty((len(has_row), self.graph.classes))
        scores[~has_row] = self.scores(np.flatnonzero(~has_row), np.zeros(np.count_nonzero(~has_row)))
        for number in np.flatnonzero(has_row).tolist():
            scores[number] = found.curves[number].scores[0]
        return scores


def deepest(margin: NDArray[np.float64]) -> list[int]:
    """The row with the smallest margin in each stretch of rows that lose, the deepest first; a few at most."""
    losing = np.flatnonzero(margin <= 0)
    stretches = np.split(losing, np.flatnonzero(np.diff(losing) > 1) + 1)
    rows = [int(stretch[margin[stretch].argmin()]) for stretch in stretches]
    return sorted(rows, key=margin.__getitem__)[:REPLAYED]
