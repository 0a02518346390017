"""The exact method: lines swept together, and each verdict built from its curve.

SAFE needs a finite curve that covers [0, strength] with a margin above rounding; UNSAFE needs a witness that the
reference runtime reproduces; everything else is UNDECIDED, with a reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.attack import loses, wins
from shakeproof.exact import Curve, Lines, Piece, sweep
from shakeproof.exact.curve import Bridge, assemble, join
from shakeproof.exact.sweep import longest_window
from shakeproof.methods.bridges import find_bridges
from shakeproof.network import Graph, Network
from shakeproof.result import Counterexample, Interval, Query, Result
from shakeproof.rounding import OF_SCORES, OF_VALUES
from shakeproof.settings import GIB, Settings
from shakeproof.verdict import above_rounding, judge, margins, spots

# Half widths at which a critical strength is tried to be confirmed; what limits it is float64 evaluation.
HALF_WIDTHS = (1e-12, 1e-11, 1e-10, 4e-10, 1e-8, 1e-6, 1e-4)
# The share of a timeout that may go into bridges.
BRIDGE_SHARE = 0.25
# How many strengths are tried in the reference runtime before an early answer is worked for.
PROBES = 32
# Lines that share a sweep: as many as this, and as their inputs fit into so many bytes; more gain nothing.
LINES_AT_ONCE, LINE_BYTES = 1024, 64 * 2**20


def answer_by_sweep(network: Network, graph: Graph, queries: Sequence[Query], settings: Settings) -> list[Result]:
    """Answer queries with one parameter each, many to a sweep; `graph` is the network with what comes before it."""
    fitting = max(1, min(LINES_AT_ONCE, LINE_BYTES // (16 * graph.input_shape.numel())))
    at_once = fitting if settings.timeout is None else 1  # a clock for each query
    results: list[Result] = []

    def progress(fraction: float) -> None:
        settings.progress((len(results) + fraction * min(at_once, len(queries) - len(results))) / len(queries))

    for start in range(0, len(queries), at_once):
        batch = Batch(network, graph, queries[start : start + at_once], replace(settings, progress=progress))
        results.extend(batch.results())
    return results


class Batch:
    """Queries that share a sweep: one line each."""

    def __init__(self, network: Network, graph: Graph, queries: Sequence[Query], settings: Settings) -> None:
        self.network, self.graph, self.queries, self.settings = network, graph, queries, settings
        self.started = time.perf_counter()
        self.lines = make_lines(network, queries, torch.device(settings.device))
        first = self.scores(np.arange(len(queries)), np.zeros(len(queries)))
        self.predicted = first.argmax(1)
        self.labels = np.array(
            [p if q.label is None else q.label for q, p in zip(queries, self.predicted, strict=True)]
        )
        self.wins_at_zero = margins(first, self.labels) > 0
        # Counterexamples that the reference runtime has confirmed, so that their lines need no further work.
        self.confirmed: dict[int, Counterexample] = {}

    def results(self) -> list[Result]:
        probed = self.probe() if self.settings.stop_early else {}
        curves = self.curves()
        losses = [curve.first_loss(int(label)) for curve, label in zip(curves, self.labels, strict=True)]
        brackets = {**probed, **self.brackets(losses)}
        witnesses = self.witnesses(curves, losses)
        assured = self.assured(curves)
        seconds = time.perf_counter() - self.started
        pieces = sum(curve.pieces + 1 for curve in curves)
        return [
            self.result(i, curve, brackets.get(i), witnesses.get(i), assured[i], seconds * (curve.pieces + 1) / pieces)
            for i, curve in enumerate(curves)
        ]

    def curves(self) -> list[Curve]:
        """A curve for each line: bridges where bounds settle who leads, everything else enumerated."""
        wanted = [n for n, query in enumerate(self.queries) if n not in self.confirmed and query.strengths[0] > 0]
        memory = self.settings.memory * GIB
        if self.settings.whole_curve:
            bridges: list[list[Bridge]] = [[]] * len(self.queries)
        else:
            timeout = self.settings.timeout  # most of which is the sweep's
            deadline = math.inf if timeout is None else self.started + BRIDGE_SHARE * timeout
            bridges = find_bridges(self.graph, self.lines, self.labels, wanted, memory, deadline)
        stretches = [self.stretches(number, found) for number, found in enumerate(bridges)]
        between = [(n, start, end) for n, line in enumerate(stretches) for start, end, bridge in line if not bridge]
        owner, start, end = zip(*between, strict=True) if between else ((), (), ())
        windows = replace(
            self.lines,
            start=torch.tensor(start, dtype=torch.float64, device=self.lines.start.device),
            end=torch.tensor(end, dtype=torch.float64, device=self.lines.start.device),
            path=torch.tensor(owner, dtype=torch.int64, device=self.lines.start.device),
        )
        swept = iter(assemble(self.swept(windows), len(windows), self.graph.classes))
        return [
            join([(start, end, bridge or next(swept)) for start, end, bridge in line], self.graph.classes)
            for line in stretches
        ]

    def stretches(self, number: int, bridges: Sequence[Bridge]) -> list[tuple[float, float, Bridge | None]]:
        """A line cut into bridges and what lies between them."""
        found: list[tuple[float, float, Bridge | None]] = []
        place, end = float(self.lines.start[number]), float(self.lines.end[number])
        for bridge in bridges:
            if bridge.start > place:
                found.append((place, bridge.start, None))
            found.append((bridge.start, bridge.end, bridge))
            place = bridge.end
        return found if found and place == end else [*found, (place, end, None)]

    def swept(self, windows: Lines) -> Iterable[Piece]:
        """The sweep's pieces on parts of lines, as far as the clock and the wish to stop early let it go."""
        total = float((windows.end - windows.start).sum()) or 1.0
        settled = 0.0
        is_open = torch.ones(len(windows), dtype=torch.bool, device=windows.start.device)
        for number in self.confirmed:
            is_open[windows.path == number] = False
        deadline = math.inf if self.settings.timeout is None else self.started + self.settings.timeout

        def still_open() -> Tensor:
            if time.perf_counter() > deadline:
                is_open.fill_(False)
            return is_open

        for piece in sweep(self.graph, windows, self.settings.memory * GIB, still_open):
            yield piece
            joined = piece.line[1:] == piece.line[:-1]
            settled += float((piece.z[1:] - piece.z[:-1])[joined].sum())
            if self.settings.stop_early:
                self.close_flipped(piece, windows, is_open)
            closed = float(((~is_open) * (windows.end - windows.start)).sum())
            self.settings.progress(min(1.0, (settled + closed) / total))
        self.settings.progress(1.0)

    def probe(self) -> dict[int, tuple[float, float]]:
        """Look for counterexamples at evenly spaced strengths in the reference runtime itself, before the real work.

        Confirms what it finds, and returns what that says of the critical strength: it is in (0, z].
        """
        bounds = {}
        for number in np.flatnonzero(self.wins_at_zero).tolist():
            tried = np.linspace(0, self.queries[number].strengths[0], PROBES + 1)[1:]
            tried = tried[self.replayed([number] * PROBES, tried)]
            scores = self.scores(np.full(len(tried), number), tried)
            lead = margins(scores, np.full(len(tried), self.labels[number]))
            if len(tried) and lead.min() < 0:
                worst = int(lead.argmin())
                winner = int(scores[worst].argmax())
                self.confirmed[number] = Counterexample(float(tried[worst]), winner, float(lead[worst]), replayed=True)
                bounds[number] = (0.0, float(tried[lead < 0][0]))
        return bounds

    def close_flipped(self, piece: Piece, windows: Lines, is_open: Tensor) -> None:
        """Close the lines on which this piece holds a counterexample that the reference runtime confirms."""
        on_line = piece._replace(line=windows.path[piece.line])
        line, z, scores = (column.cpu().numpy() for column in on_line)
        margin = margins(scores, self.labels[line])
        for number in np.unique(line[margin < 0]).tolist():
            rows = np.flatnonzero(line == number)
            worst = rows[margin[rows].argmin()]
            if self.replayed([number], [z[worst]])[0]:
                winner, lead = int(scores[worst].argmax()), float(margin[worst])
                self.confirmed[number] = Counterexample(float(z[worst]), winner, lead, replayed=True)
                is_open[windows.path == number] = False

    def brackets(self, losses: Sequence[float | None]) -> dict[int, tuple[float, float]]:
        """For each line whose label loses: the loss between two strengths that direct evaluation confirms."""
        brackets: dict[int, tuple[float, float]] = {}
        waiting = {i: z for i, z in enumerate(losses) if z is not None}
        for half_width in HALF_WIDTHS:
            numbers = np.array(list(waiting), dtype=np.int64)
            if not len(numbers):
                break
            z = np.array(list(waiting.values()))
            limit = self.lines.end.cpu().numpy()[numbers]
            low, high = np.maximum(z - half_width, 0.0), np.minimum(z + half_width, limit)
            scores = self.scores(np.tile(numbers, 2), np.concatenate([low, high]))
            before, after = np.split(margins(scores, np.tile(self.labels[numbers], 2)), 2)
            final = half_width == HALF_WIDTHS[-1]
            for i, number in enumerate(numbers.tolist()):
                if final or ((before[i] > 0 or z[i] == 0) and after[i] <= 0):
                    brackets[number] = (float(low[i]) if z[i] else 0.0, float(high[i]) if z[i] else 0.0)
                    del waiting[number]
        return brackets

    def witnesses(self, curves: Sequence[Curve], losses: Sequence[float | None]) -> dict[int, Counterexample]:
        """For each line whose label loses: where it does so most clearly, replayed in the reference runtime."""
        numbers = [i for i, loss in enumerate(losses) if loss is not None]
        rows = [int(curves[i].margin(int(self.labels[i])).argmin()) for i in numbers]
        strengths = [float(curves[i].z[row]) for i, row in zip(numbers, rows, strict=True)]
        found = dict(self.confirmed)
        for i, row, z, replayed in zip(numbers, rows, strengths, self.replayed(numbers, strengths), strict=True):
            leads = curves[i].leads(int(self.labels[i]))[row]
            if replayed or i not in found:
                found[i] = Counterexample(z, int(leads.argmin()), float(leads.min()), bool(replayed))
        return found

    def assured(self, curves: Sequence[Curve]) -> list[bool]:
        """Whether each curve's smallest margin is positive beyond rounding, and the curve what evaluation says it is.

        The network is evaluated at the smallest margin and in the middle of a few pieces. There it must agree with the
        curve, and the margin exceed what rounding could explain; and the reference runtime must not contradict it.
        """
        places = [spots(curve, int(label)) for curve, label in zip(curves, self.labels, strict=True)]
        numbers = np.repeat(np.arange(len(curves)), [len(z) for z in places])
        direct, largest = self.scores_and_sizes(numbers, np.concatenate(places))
        expected = np.concatenate([curve.at(z) for curve, z in zip(curves, places, strict=True)])
        labels = self.labels[numbers]
        lead, lead_expected = margins(direct, labels), margins(expected, labels)
        own = direct[np.arange(len(labels)), labels]
        guard = OF_SCORES * np.maximum(np.abs(own), np.abs(own - lead)) + OF_VALUES * largest
        good = (np.abs(lead - lead_expected) <= guard) & (np.minimum(lead, lead_expected) > guard)
        kept = np.flatnonzero(good)
        good[kept] &= wins(self.network, self.pictured(numbers[kept], np.concatenate(places)[kept]), labels[kept])
        return [
            bool(good[numbers == i].all()) and len(places[i]) > 0 and above_rounding(curve, int(self.labels[i]))
            for i, curve in enumerate(curves)
        ]

    def result(
        self,
        number: int,
        curve: Curve,
        bracket: tuple[float, float] | None,
        witness: Counterexample | None,
        assured: bool,
        seconds: float,
    ) -> Result:
        query, label = self.queries[number], int(self.labels[number])
        (strength,) = query.strengths
        status, reason = judge(curve, label, strength, witness, assured, bool(self.wins_at_zero[number]))
        lowest = [float(curve.margin(label).min())] if len(curve.z) else []
        lowest += [witness.margin] if witness is not None else []
        return Result(
            model=self.network.name,
            query=query,
            label=label,
            predicted=int(self.predicted[number]),
            status=status,
            critical_strength=bracket,
            profile=tuple(Interval(*interval) for interval in curve.classes()),
            counterexample=witness,
            min_margin=min(lowest, default=None),
            pieces=curve.pieces,
            reason=reason,
            seconds=seconds,
            curve=curve,
        )

    def inputs(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> Tensor:
        """Network inputs (n, *input_shape) on given lines at given strengths."""
        device = self.lines.start.device
        line = torch.as_tensor(numbers, dtype=torch.int64, device=device)
        return self.lines.at(line, torch.as_tensor(z, dtype=torch.float64, device=device))

    def scores(self, numbers: NDArray[Any], z: NDArray[Any]) -> NDArray[np.float64]:
        """Class scores on given lines at given strengths, evaluated directly."""
        return self.scores_and_sizes(numbers, z)[0]

    def scores_and_sizes(
        self, numbers: NDArray[Any], z: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Class scores on given lines at given strengths, and the size of the largest value that led to each."""
        step = longest_window(self.graph, self.settings.memory * GIB)
        scores, sizes = [torch.empty(0, self.graph.classes)], [torch.empty(0)]
        for start in range(0, len(z), step):
            rows = self.inputs(numbers[start : start + step], z[start : start + step])
            found, largest = self.graph.measured(rows)
            scores.append(found.cpu())
            sizes.append(largest.cpu())
        return torch.cat(scores).double().numpy(), torch.cat(sizes).double().numpy()

    def replayed(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the label loses in the reference runtime, on given lines at given strengths."""
        return loses(self.network, self.pictured(numbers, z), self.labels[numbers])

    def pictured(self, numbers: Sequence[int] | NDArray[Any], z: Sequence[float] | NDArray[Any]) -> Tensor:
        """What the deployed network is given on given lines at given strengths: clipped if the perturbation clips."""
        clip = self.queries[0].perturbation.clip
        inputs = self.inputs(numbers, z)
        return inputs if clip is None else inputs.clamp(*clip)


def make_lines(network: Network, queries: Sequence[Query], device: torch.device) -> Lines:
    """One line per query; images that share a perturbation are convolved together."""
    layout = network.picture()
    shape = (len(queries), *network.graph.input_shape)
    slopes, bases = torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
    same: dict[int, list[int]] = {}
    for i, query in enumerate(queries):
        same.setdefault(id(query.perturbation), []).append(i)
    for numbers in same.values():
        images = torch.stack([queries[i].image.pixels for i in numbers])
        path = queries[numbers[0]].perturbation.apply(images)
        slopes[numbers], bases[numbers] = layout.to_input(path.slopes[0]), layout.to_input(path.base)
    end = torch.tensor([query.strengths[0] for query in queries], dtype=torch.float64)
    parts = (slopes, bases, torch.zeros_like(end), end, torch.arange(len(queries)))
    return Lines(*(part.to(device) for part in parts))
