"""From queries to results: prepares the lines, keeps the clock, and builds each verdict from its evidence.

SAFE needs a finite curve that covers [0, strength] with a margin above rounding; UNSAFE needs a witness that the
reference runtime reproduces; everything else is UNDECIDED, with a reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.attack import loses, wins
from shakeproof.errors import InputError
from shakeproof.exact import Curve, Lines, Piece, sweep
from shakeproof.exact.curve import assemble
from shakeproof.exact.sweep import longest_window
from shakeproof.images import Image, as_picture, read_image
from shakeproof.network import Graph, Network
from shakeproof.operators import Clip
from shakeproof.perturbation import Perturbation, parse
from shakeproof.result import Counterexample, Interval, Query, Result
from shakeproof.rounding import OF_SCORES, OF_VALUES
from shakeproof.verdict import above_rounding, judge, margins, spots

GIB = 2.0**30
# Half widths at which a critical strength is tried to be confirmed; what limits it is float64 evaluation.
HALF_WIDTHS = (1e-12, 1e-11, 1e-10, 4e-10, 1e-8, 1e-6, 1e-4)
# How many strengths are tried in the reference runtime before an early answer is worked for.
PROBES = 32
# Lines that share a sweep: as many as this, and as their inputs fit into so many bytes; more gain nothing.
LINES_AT_ONCE, LINE_BYTES = 1024, 64 * 2**20


@dataclass(frozen=True)
class Settings:
    """How to run. `timeout` is in seconds for each query; `memory` in GiB; `stop_early` ends at a confirmed flip."""

    timeout: float | None = None
    memory: float = 2.0
    stop_early: bool = False
    device: str = "cpu"
    progress: Callable[[float], None] = field(default=lambda fraction: None)

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"the timeout must be a positive number of seconds, not {self.timeout}")
        if not (self.memory > 0 and math.isfinite(self.memory)):
            raise InputError(f"the memory budget must be a positive number of GiB, not {self.memory}")


def profile(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    label: int | None = None,
    max_strength: float = 1.0,
    **settings: Any,
) -> Result:
    """The class at every strength in [0, max_strength] of a perturbation of an image.

    `image` is a picture (channels, height, width), or a file. Without a `label`, the image's own or else the class
    predicted at strength 0 is taken.
    """
    query = make_query(network, image, perturbation, label, max_strength)
    return analyse(network, [query], Settings(**settings))[0]


def verify(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    strength: float,
    label: int | None = None,
    **settings: Any,
) -> Result:
    """Whether the label wins at every strength in [0, strength]; stops at the first confirmed counterexample.

    If a quick probe finds one, all that is known of the critical strength is that it is in (0, counterexample].
    """
    query = make_query(network, image, perturbation, label, strength)
    return analyse(network, [query], Settings(**{"stop_early": True, **settings}))[0]


def make_query(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    label: int | None,
    strength: float,
) -> Query:
    """A query from what users hold in their hands."""
    layout = network.picture()
    if isinstance(image, (str, Path)):
        image = read_image(str(image)).fitted(layout)
    elif not isinstance(image, Image):
        image = Image("array", as_picture(np.asarray(image), layout.image_shape))
    perturbation = parse(perturbation) if isinstance(perturbation, str) else perturbation
    return Query(image, perturbation, image.label if label is None else label, strength)


def analyse(network: Network, queries: Sequence[Query], settings: Settings) -> list[Result]:
    """Answer all queries about one network, in their order; many share a sweep."""
    for query in queries:
        check_query(network, query)
    fitting = max(1, min(LINES_AT_ONCE, LINE_BYTES // (16 * network.graph.input_shape.numel())))
    at_once = fitting if settings.timeout is None else 1  # a clock for each query
    order = sorted(range(len(queries)), key=lambda i: repr(queries[i].perturbation.clip))
    results: dict[int, Result] = {}
    for clip, same_clip in groupby(order, key=lambda i: queries[i].perturbation.clip):
        graph = (network.graph if clip is None else network.graph.after(Clip(*clip))).to(torch.device(settings.device))
        numbers = list(same_clip)
        for start in range(0, len(numbers), at_once):
            batch = numbers[start : start + at_once]

            def progress(fraction: float, count: int = len(batch)) -> None:
                settings.progress((len(results) + fraction * count) / len(queries))

            with torch.inference_mode():
                some = Batch(network, graph, [queries[i] for i in batch], replace(settings, progress=progress))
                results.update(zip(batch, some.results(), strict=True))
    return [results[i] for i in range(len(queries))]


def check_query(network: Network, query: Query) -> None:
    """Refuse what cannot be asked, before any work."""
    if not 0 <= query.strength <= 1:
        raise InputError(f"the strength must be between 0 and 1, not {query.strength}")
    if query.label is not None and query.label not in range(network.graph.classes):
        raise InputError(f"label {query.label} is not one of the network's classes 0 to {network.graph.classes - 1}")
    if not network.graph.is_piecewise_linear:
        kinds = ", ".join(network.graph.smooth_operators)
        raise InputError(f"{network.name}: has smooth operators ({kinds}): use --method bounds")
    if query.perturbation.kernel.parameters != 1:
        raise InputError(f"{query.perturbation}: the exact method takes one strength")
    if tuple(query.image.pixels.shape) != network.picture().image_shape:
        raise InputError(f"{query.image.name}: not a picture of the network's shape {network.picture().image_shape}")
    if not bool(torch.isfinite(query.image.pixels).all()):
        raise InputError(f"{query.image.name}: has pixels that are NaN or infinite")


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
        curves = assemble(self.swept(), len(self.queries), self.graph.classes)
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

    def swept(self) -> Iterable[Piece]:
        """The sweep's pieces, as far as the clock and the wish to stop early let it go."""
        total = float((self.lines.end - self.lines.start).sum()) or 1.0
        settled = 0.0
        is_open = torch.ones(len(self.queries), dtype=torch.bool, device=self.lines.start.device)
        is_open[list(self.confirmed)] = False
        deadline = math.inf if self.settings.timeout is None else self.started + self.settings.timeout

        def still_open() -> Tensor:
            if time.perf_counter() > deadline:
                is_open.fill_(False)
            return is_open

        for piece in sweep(self.graph, self.lines, self.settings.memory * GIB, still_open):
            yield piece
            joined = piece.line[1:] == piece.line[:-1]
            settled += float((piece.z[1:] - piece.z[:-1])[joined].sum())
            if self.settings.stop_early:
                self.close_flipped(piece, is_open)
            self.settings.progress(min(1.0, (settled + float(((~is_open) * self.lines.end).sum())) / total))
        self.settings.progress(1.0)

    def probe(self) -> dict[int, tuple[float, float]]:
        """Look for counterexamples at evenly spaced strengths in the reference runtime itself, before the real work.

        Confirms what it finds, and returns what that says of the critical strength: it is in (0, z].
        """
        bounds = {}
        for number in np.flatnonzero(self.wins_at_zero).tolist():
            tried = np.linspace(0, self.queries[number].strength, PROBES + 1)[1:]
            tried = tried[self.replayed([number] * PROBES, tried)]
            scores = self.scores(np.full(len(tried), number), tried)
            lead = margins(scores, np.full(len(tried), self.labels[number]))
            if len(tried) and lead.min() < 0:
                worst = int(lead.argmin())
                winner = int(scores[worst].argmax())
                self.confirmed[number] = Counterexample(float(tried[worst]), winner, float(lead[worst]), replayed=True)
                bounds[number] = (0.0, float(tried[lead < 0][0]))
        return bounds

    def close_flipped(self, piece: Piece, is_open: Tensor) -> None:
        """Close the lines on which this piece holds a counterexample that the reference runtime confirms."""
        line, z, scores = (column.cpu().numpy() for column in piece)
        margin = margins(scores, self.labels[line])
        for number in np.unique(line[margin < 0]).tolist():
            rows = np.flatnonzero(line == number)
            worst = rows[margin[rows].argmin()]
            if self.replayed([number], [z[worst]])[0]:
                winner, lead = int(scores[worst].argmax()), float(margin[worst])
                self.confirmed[number] = Counterexample(float(z[worst]), winner, lead, replayed=True)
                is_open[number] = False

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
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        kept = first[good[first]]
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
        status, reason = judge(curve, label, query.strength, witness, assured, bool(self.wins_at_zero[number]))
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
    end = torch.tensor([query.strength for query in queries], dtype=torch.float64)
    return Lines(slopes.to(device), bases.to(device), torch.zeros_like(end).to(device), end.to(device))
