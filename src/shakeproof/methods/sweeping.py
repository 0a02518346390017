"""The exact method: paths swept together, and for each a curve, where it was compared, and what it loses by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import Budget, now
from shakeproof.evidence import Bracket, Comparison, Swept, Witness
from shakeproof.exact import Curve, Lines, Piece, longest_window, swept_curves
from shakeproof.inputs import InputPath
from shakeproof.network import Network
from shakeproof.path import Path
from shakeproof.property import margins
from shakeproof.query import Query
from shakeproof.replay import compared, places, witnessed
from shakeproof.result import Result
from shakeproof.rounding import Rounding
from shakeproof.settings import Settings
from shakeproof.verdict import Evidence

# Half widths at which a critical strength is tried to be confirmed; what limits it is float64 evaluation. Where none
# will do, halving between rows finds it: so many steps, or until it is known this closely.
HALF_WIDTHS = (1e-12, 1e-11, 1e-10, 4e-10)
HALVINGS, NARROW = 60, 5e-10
# A row wins for certain where its margin is above this share of its scores.
CLEARLY = 1e-12
# Rounding is looked at in every row whose margin is below this share of its scores.
DWARFED = 1e-9
# How many strengths are tried in the reference runtime before an early answer is worked for.
PROBES = 32
# In how many stretches that lose a counterexample is looked for, one after another.
REPLAYED = 8
# In the middle of how many pieces a curve is compared with direct evaluation and its errors; a shorter one in all.
SPOTS = 12
# Lines that share a sweep: as many as this, and as their inputs fit into so many bytes; more gain nothing.
LINES_AT_ONCE, LINE_BYTES = 1024, 64 * 2**20
# Evaluating with errors takes about so many times the memory of a row of the sweep.
ERROR_ROWS = 6


def answer_by_sweep(
    network: Network, queries: Sequence[Query], settings: Settings, progress: Callable[[float], None]
) -> list[Result]:
    """Answer queries about paths of one strength, with the same clipping, many to a sweep."""
    fitting = max(1, min(LINES_AT_ONCE, LINE_BYTES // (16 * network.graph.input_shape.numel())))
    at_once = fitting if settings.timeout is None else 1  # a clock for each query
    results: list[Result] = []
    for start in range(0, len(queries), at_once):
        end = min(start + at_once, len(queries))
        budget = Budget.starting(settings.timeout, settings.memory, progress)
        batch = Batch(network, queries[start:end], settings, budget.part(start / len(queries), end / len(queries)))
        results.extend(batch.results())
    return results


class Batch:
    """Queries that share a sweep: one line each."""

    def __init__(self, network: Network, queries: Sequence[Query], settings: Settings, budget: Budget) -> None:
        self.network, self.queries, self.settings, self.budget = network, queries, settings, budget
        self.started = now()
        device = torch.device(settings.device)
        paths = [self.path(number) for number in range(len(queries))]
        self.graph = paths[0].within(network.graph).to(device)
        self.lines = Lines(
            paths=Path.stacked([path.path for path in paths]).to(device),
            start=torch.zeros(len(paths), dtype=torch.float64, device=device),
            end=torch.tensor([path.end[0] for path in paths], dtype=torch.float64, device=device),
            path=torch.arange(len(paths), device=device),
        )
        self.labels = np.array([query.label for query in queries], dtype=np.int64)
        self.first = self.scores(np.arange(len(queries)), np.zeros(len(queries)))
        # Counterexamples that the reference runtime has confirmed, so that their lines need no further work.
        self.confirmed: dict[int, Witness] = {}

    def path(self, number: int) -> InputPath:
        path = self.queries[number].path
        assert path is not None
        return path

    def results(self) -> list[Result]:
        comparisons = self.comparisons()
        probed = self.probe(comparisons) if self.settings.stop_early else {}
        hopeless = np.flatnonzero(~np.isfinite(self.first).all(1)).tolist()
        look = self.confirm if self.settings.stop_early else None
        closed, whole = [*self.confirmed, *hopeless], self.settings.whole_curve
        curves = swept_curves(self.graph, self.lines, self.labels, self.budget, closed, whole, look)
        timed_out = self.budget.is_late()
        losses = [curve.first_loss(int(label)) for curve, label in zip(curves, self.labels, strict=True)]
        brackets = {**probed, **self.brackets(curves, losses)}
        witnesses = self.witnesses(curves, losses)
        trust = {} if timed_out else self.trust(curves, losses)
        seconds = now() - self.started
        pieces = sum(curve.pieces + 1 for curve in curves)
        found = []
        for number, curve in enumerate(curves):
            end = self.path(number).end[0]
            complete = curve.covers(0.0, end)
            error, deviation = trust.get(number, (None, None))
            label = int(self.labels[number])
            proof = Swept(curve, label, end, error, deviation, brackets.get(number), timed_out)
            stopped = timed_out or number in self.confirmed
            evidence = Evidence(
                needed=1,
                proofs=(proof,),
                witness=witnesses.get(number),
                comparison=comparisons[number],
                start=float(margins(self.first[[number]], [label])[0]),
                finite=complete or (stopped and number not in hopeless),
            )
            predicted = None if number in hopeless else int(self.first[number].argmax())
            query, share = self.queries[number], seconds * (curve.pieces + 1) / pieces
            found.append(Result(self.network.name, self.network.identity, query, evidence, predicted, share))
        return found

    # -- the reference runtime ----------------------------------------------------------------------------------------

    def comparisons(self) -> list[Comparison]:
        """Each query compared with the runtime, at strengths spread over its path."""
        count = PROBES + 1 if self.settings.stop_early else None
        obligations = [query.obligations[0] for query in self.queries]
        asked = [(own, places(own) if count is None else places(own, count)) for own in obligations]
        return compared(self.network, asked, self.budget)

    def probe(self, comparisons: Sequence[Comparison]) -> dict[int, Bracket]:
        """Counterexamples among the strengths that were compared, before the real work.

        Confirms what it finds, and returns what that says of the critical strength: it is in (0, z].
        """
        brackets = {}
        won = margins(self.first, self.labels) > 0
        for number in np.flatnonzero(won).tolist():
            comparison, tried = comparisons[number], places(self.queries[number].obligations[0], PROBES + 1)
            lost = np.flatnonzero(comparison.fails & (comparison.margin < 0))
            if len(lost):
                worst = int(lost[comparison.margin[lost].argmin()])
                witness = self.witness(number, float(tried[worst, 0]))
                if witness.replayed and witness.margin < 0:
                    self.confirmed[number] = witness
                    brackets[number] = (0.0, float(tried[lost[0], 0]))
        return brackets

    def confirm(self, piece: Piece) -> Iterator[int]:
        """The lines on which this piece holds a counterexample that the reference runtime confirms."""
        line, z, scores = (column.cpu().numpy() for column in piece)
        margin = margins(scores, self.labels[line])
        for number in np.unique(line[margin < 0]).tolist():
            rows = np.flatnonzero(line == number)
            worst = rows[margin[rows].argmin()]
            witness = self.witness(number, float(z[worst]))
            if witness.replayed:
                self.confirmed[number] = witness
                yield number

    def witness(self, number: int, z: float) -> Witness:
        at = torch.tensor([z], dtype=torch.float64)
        obligation = self.queries[number].obligations[0]
        return witnessed(self.network, self.network.graph, obligation, at)

    def witnesses(self, curves: Sequence[Curve], losses: Sequence[float | None]) -> dict[int, Witness]:
        """For each line whose label loses: where it does so most clearly, and the reference runtime shows it."""
        found = dict(self.confirmed)
        for number, (curve, loss) in enumerate(zip(curves, losses, strict=True)):
            if loss is not None:
                for row in deepest(curve.margin(int(self.labels[number]))):
                    witness = self.witness(number, float(curve.z[row]))
                    if witness.replayed or number not in found:
                        found[number] = witness
                    if witness.replayed:
                        break
        return found

    # -- where the label loses ----------------------------------------------------------------------------------------

    def brackets(self, curves: Sequence[Curve], losses: Sequence[float | None]) -> dict[int, Bracket]:
        """For each line whose label loses: the loss between two strengths that direct evaluation confirms."""
        found = {number: (0.0, 0.0) for number, z in enumerate(losses) if z == 0}
        waiting = {number: z for number, z in enumerate(losses) if z}
        for half_width in HALF_WIDTHS:
            numbers = np.array(list(waiting), dtype=np.int64)
            if not len(numbers):
                break
            z = np.array(list(waiting.values()))
            limit = self.lines.end.cpu().numpy()[numbers]
            low, high = np.maximum(z - half_width, 0.0), np.minimum(z + half_width, limit)
            before, after = np.split(self.margins(np.tile(numbers, 2), np.concatenate([low, high])), 2)
            for i in np.flatnonzero((before > 0) & (after <= 0)).tolist():
                found[int(numbers[i])] = (float(low[i]), float(high[i]))
                del waiting[int(numbers[i])]
        for number in waiting:
            bracket = self.halved(number, curves[number])
            if bracket is not None:
                found[number] = bracket
        return found

    def halved(self, number: int, curve: Curve) -> Bracket | None:
        """The loss between two strengths, by halving from the last row that wins above rounding to the first that,
        evaluated directly, loses: near a tie, rows and evaluations differ by rounding.
        """
        scale = CLEARLY * np.abs(curve.scores).max(1)
        doubtful = np.flatnonzero(curve.margin(int(self.labels[number])) <= scale)
        direct = self.margins(np.full(len(curve.z), number), curve.z)
        winning = np.flatnonzero(direct[: doubtful[0]] > scale[: doubtful[0]])
        losing = np.flatnonzero(direct[doubtful[0] :] <= 0) + doubtful[0]
        if not len(winning) or not len(losing):
            return None
        low, high = float(curve.z[winning[-1]]), float(curve.z[losing[0]])
        confirmed = high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if high - low <= NARROW or not low < middle < high:
                break
            (lead,) = self.margins(np.array([number]), np.array([middle]))
            if lead > scale.max():
                low = middle
            else:
                high, confirmed = middle, middle if lead <= 0 else confirmed
        return low, confirmed

    # -- how far a curve can be trusted -------------------------------------------------------------------------------

    def trust(self, curves: Sequence[Curve], losses: Sequence[float | None]) -> dict[int, tuple[float, float]]:
        """For each curve, up to where its label loses: what rounding may have done to a margin, and how far it is from
        direct evaluation; both the most at its smallest margin, at its end, and in the middle of pieces.
        """
        before = {
            number: curve if loss is None else curve.up_to(loss)
            for number, (curve, loss) in enumerate(zip(curves, losses, strict=True))
        }
        spots = {n: doubtful(curve, int(self.labels[n])) for n, curve in before.items() if len(curve.z)}
        if not spots:
            return {}
        errors = self.errors(spots, by_norms=False)
        close = [n for n in spots if not errors[n] < before[n].margin(int(self.labels[n])).min()]
        if close:
            deep = self.errors({n: spots[n] for n in close}, by_norms=True)
            errors |= {n: min(errors[n], error) for n, error in deep.items()}
        owner = np.repeat([*spots], [len(z) for z in spots.values()])
        direct = self.margins(owner, np.concatenate(list(spots.values())))
        expected = np.concatenate([margins(before[n].at(z), [self.labels[n]] * len(z)) for n, z in spots.items()])
        apart = np.abs(direct - expected)
        return {number: (errors[number], float(apart[owner == number].max())) for number in spots}

    def errors(self, places: dict[int, NDArray[np.float64]], by_norms: bool) -> dict[int, float]:
        """What rounding may have done to each line's margin, at most, wherever it is asked for."""
        rounding = Rounding(self.graph)
        owner = np.repeat([*places], [len(z) for z in places.values()])
        every = np.concatenate([np.empty(0), *places.values()])
        step = max(1, longest_window(self.graph, self.budget) // ERROR_ROWS)
        found = dict.fromkeys(places, 0.0)
        for start in range(0, len(every), step):
            some = owner[start : start + step]
            rows = self.inputs(some, every[start : start + step])
            scale = self.lines.paths.scales[torch.from_numpy(some).to(rows.device)]
            error = rounding.evaluated(rows, by_norms, scale).error.cpu().numpy()
            place, label = np.arange(len(some)), self.labels[some]
            own = error[place, label].copy()
            error[place, label] = 0.0
            for number, off in zip(some.tolist(), (own + error.max(1)).tolist(), strict=True):
                found[number] = max(found[number], off if off == off else np.inf)
        return found

    # -- direct evaluation --------------------------------------------------------------------------------------------

    def inputs(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> Tensor:
        """What the graph takes on given lines at given strengths, (n, *input_shape)."""
        device = self.lines.start.device
        line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
        return self.lines.at(line, torch.as_tensor(z, dtype=torch.float64, device=device))

    def scores(self, numbers: NDArray[Any], z: NDArray[Any]) -> NDArray[np.float64]:
        """Class scores on given lines at given strengths, evaluated directly."""
        step = longest_window(self.graph, self.budget)
        found = [np.empty((0, self.graph.classes))]
        for start in range(0, len(z), step):
            rows = self.inputs(numbers[start : start + step], z[start : start + step])
            found.append(self.graph.run(rows).cpu().numpy())
        return np.concatenate(found)

    def margins(self, numbers: NDArray[Any], z: NDArray[Any]) -> NDArray[np.float64]:
        return margins(self.scores(numbers, z), self.labels[numbers])


def deepest(margin: NDArray[np.float64]) -> list[int]:
    """The row with the smallest margin in each stretch of rows that lose, the deepest first; a few at most."""
    losing = np.flatnonzero(margin <= 0)
    stretches = np.split(losing, np.flatnonzero(np.diff(losing) > 1) + 1)
    rows = [int(stretch[margin[stretch].argmin()]) for stretch in stretches]
    return sorted(rows, key=margin.__getitem__)[:REPLAYED]


def doubtful(curve: Curve, label: int) -> NDArray[np.float64]:
    """Where rounding is looked at: at the smallest margin, at the end, in the middle of pieces, and wherever scores
    dwarf the margin.
    """
    margin, own = curve.margin(label), curve.scores[:, label]
    size = np.maximum(np.abs(own), np.abs(own - margin))
    rows = np.unique([margin.argmin(), len(margin) - 1, *np.flatnonzero(margin <= DWARFED * size)])
    return np.concatenate([curve.z[rows], middles(curve)])


def middles(curve: Curve) -> NDArray[np.float64]:
    """The middles of a curve's enumerated pieces: of all, or of some that are spread over it."""
    pieces = np.flatnonzero(~curve.bridged)
    if len(pieces) > SPOTS:
        pieces = pieces[np.linspace(0, len(pieces) - 1, SPOTS).astype(int)]
    middle: NDArray[np.float64] = (curve.z[pieces] + curve.z[pieces + 1]) / 2
    return middle
