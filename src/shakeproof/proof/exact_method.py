"""The exact method: compare with the runtime, sweep, bound, bracket, replay, judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from shakeproof.budget import Budget, now
from shakeproof.errors import ProofError
from shakeproof.exact import Curve, Lines, Piece, cores_for, join, pieces_left, swept_curves, threads_for
from shakeproof.model import Comparison, Network
from shakeproof.proof.brackets import SweptLine, find_brackets
from shakeproof.proof.context import Floats, SweepContext
from shakeproof.proof.counterexamples import (
    Probe,
    compare_with_runtime,
    find_witnesses,
    first_loss,
    nothing_swept,
    probe,
    shown_in,
)
from shakeproof.proof.evidence import Counterexample, Swept
from shakeproof.proof.leads import ExactTerms, contradicted, leads, lower_bounds
from shakeproof.proof.result import Result
from shakeproof.proof.verdict import Evidence
from shakeproof.proof.windows import SweptWindow
from shakeproof.question import Query, margins
from shakeproof.rounding import RunningError
from shakeproof.settings import Settings

# Errors that grow by less leave something proved in float64.
GREAT_EFFECT = 1e10
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
    parts = begun or [None] * len(queries)
    budget = Budget.starting(settings.timeout, settings.memory, progress, torch.get_num_threads())
    cores = cores_for(network.graph, budget) if settings.device == "cpu" else 1
    if cores == 1 or len(queries) < cores:
        return _answered(network, queries, settings, budget, parts)
    with threads_for(network.graph, 1), ThreadPoolExecutor(cores) as pool:
        told = _Shares(progress, cores)
        groups = [
            pool.submit(
                _answered,
                network,
                queries[first::cores],
                settings,
                replace(budget.shared(cores), progress=told.of(first)),
                parts[first::cores],
            )
            for first in range(cores)
        ]
        found = [group.result() for group in groups]
    return [found[number % cores][number // cores] for number in range(len(queries))]


class _Shares:
    """How far each of some groups has come, told as one share."""

    def __init__(self, progress: Callable[[float], None], count: int) -> None:
        self.progress, self.done = progress, [0.0] * count

    def of(self, group: int) -> Callable[[float], None]:
        def told(share: float) -> None:
            self.done[group] = share
            self.progress(sum(self.done) / len(self.done))

        return told


@torch.inference_mode()
def _answered(
    network: Network,
    queries: Sequence[Query],
    settings: Settings,
    budget: Budget,
    begun: Sequence[SweptWindow | None],
) -> list[Result]:
    """The same in one thread, but for the sweep of a line that is cut."""
    with _context(network, queries, settings, budget) as context:
        parts = {number: own for number, own in enumerate(begun) if own is not None}
        started, comparisons = now(), compare_with_runtime(context)
        probed = probe(context, comparisons) if settings.stop_early else {}
        closed = [*probed, *_not_finite(context, comparisons)]
        context, found = _swept(context, parts, closed, comparisons)
        spent = {number: own.seconds for number, own in parts.items()}
        before = {number: own.curve.pieces for number, own in parts.items()}
        return _results(context, comparisons, probed, found, started, spent, before)


def sweep_window(network: Network, query: Query, settings: Settings, start: float, end: float) -> SweptWindow:
    """Sweep a part of a query's path; of a network without jumps."""
    with _context(network, [query], settings) as context:
        started, (context, running_error) = now(), context.with_running_error()
        part = replace(context.lines, start=context.lines.start + start, end=torch.full_like(context.lines.end, end))
        ((curve,), _) = _curves(context, part, running_error, [], {})
        return SweptWindow(start, end, curve, context.budget.is_late(), now() - started)


def answer_by_windows(network: Network, query: Query, settings: Settings, windows: Sequence[SweptWindow]) -> Result:
    """Answer a query by windows that follow one another, wherever they were swept.

    That none is missing in between is checked as they are joined, and that they reach from 0 to the strength by the
    proof itself: what follows from the curve is worked out here, as it is for one that was swept at once.
    """
    in_order = sorted(windows, key=lambda window: window.start)
    curve = join([(window.start, window.end, window.curve) for window in in_order], network.graph.classes)
    late = any(window.late for window in windows)
    with _context(network, [query], settings) as context:
        started, comparisons = now(), compare_with_runtime(context)
        probed = probe(context, comparisons) if settings.stop_early else {}
        found = _Sweep([curve], {}, [], late or context.budget.is_late())
        spent = {0: sum(window.seconds for window in windows)}
        (result,) = _results(context, comparisons, probed, found, started, spent, {})
    return result


@contextmanager
def _context(
    network: Network, queries: Sequence[Query], settings: Settings, budget: Budget | None = None
) -> Iterator[SweepContext]:
    """Queries to be worked on from now on; without a budget, on as many cores as torch has threads."""
    cores = torch.get_num_threads()
    budget = budget or Budget.starting(settings.timeout, settings.memory, cores=cores)
    with threads_for(network.graph, budget.cores):
        yield SweepContext.of(network, queries, settings, budget)


# -- curves ------------------------------------------------------------------------------------------------------------


class _Sweep(NamedTuple):
    """Curves, counterexamples that the runtime showed on the way, lines that no sweep can prove anything about, and
    whether the time was up.
    """

    curves: list[Curve]
    shown: dict[int, Counterexample]
    too_deep: list[int]
    timed_out: bool


def _swept(
    context: SweepContext,
    begun: Mapping[int, SweptWindow],
    closed: Sequence[int],
    comparisons: Sequence[Comparison],
) -> tuple[SweepContext, _Sweep]:
    """The scores along all lines but those that are closed, behind what was swept of them before."""
    count, classes = len(context.queries), context.graph.classes
    if len(set(closed)) == count and not begun:  # and it need not be known what rounding may do, which may take long
        return context, _Sweep([nothing_swept(classes)] * count, {}, [], context.budget.is_late())
    context, running_error = context.with_running_error()
    too_deep = [] if running_error is None else _too_deep(context, running_error, comparisons)
    if _enumerates(context.settings):
        begun = {number: own.enumerated() for number, own in begun.items()}
    start = context.lines.start.clone()
    for number, own in begun.items():
        if not own.curve.covers(0.0, own.end) or not own.end <= float(context.lines.end[number]):
            raise ProofError("what was swept before is not the beginning of this path")
        start[number] = own.end
    lines = replace(context.lines, start=start)
    curves, shown = _curves(context, lines, running_error, [*closed, *too_deep], begun)
    return context, _Sweep(curves, shown, too_deep, context.budget.is_late())


def _curves(
    context: SweepContext,
    lines: Lines,
    running_error: RunningError | None,
    closed: Sequence[int],
    begun: Mapping[int, SweptWindow],
) -> tuple[list[Curve], dict[int, Counterexample]]:
    """Curves from the lines' starts, put behind what was begun; and counterexamples, where one ended the work."""
    shown: dict[int, Counterexample] = {}

    def look(piece: Piece) -> Iterator[int]:
        for number, witness in shown_in(context, piece):
            shown[number] = witness
            yield number

    found = swept_curves(
        context.graph,
        lines,
        context.labels,
        context.budget,
        closed,
        _enumerates(context.settings),
        running_error,
        look if context.settings.stop_early else None,
    )
    for number, own in begun.items():
        parts = [(0.0, own.end, own.curve), (own.end, float(lines.end[number]), found[number])]
        joined = join(parts, context.graph.classes)
        found[number] = joined if joined.z[-1] >= own.end else own.curve
    return found, shown


def _enumerates(settings: Settings) -> bool:
    """Whether every piece is wanted: bounds that spare some are about real numbers."""
    return settings.whole_curve or settings.arithmetic != "real"


def _not_finite(context: SweepContext, comparisons: Sequence[Comparison]) -> list[int]:
    """The lines whose scores are not finite even at strength 0; asked where no comparison was finite there."""
    begun = [np.append(own.margin[:1], own.disagreement[:1]) for own in comparisons]
    doubtful = np.flatnonzero([not (len(own) and np.isfinite(own).all()) for own in begun])
    scores = context.scores(doubtful, np.zeros(len(doubtful)))
    return [int(number) for number in doubtful[~np.isfinite(scores).all(1)]]


def _too_deep(context: SweepContext, running_error: RunningError, comparisons: Sequence[Comparison]) -> list[int]:
    """The lines that need no sweep if only a verdict is asked: at strength 0, float64 may be off by more than the
    label's lead, so that no proof will come.
    """
    is_usual = context.settings.stop_early and not context.graph.jumping_operators
    if not is_usual or max(running_error.effects) < GREAT_EFFECT:
        return []
    lead = np.array([comparison.margin[:1].max(initial=-np.inf) for comparison in comparisons])
    numbers = np.flatnonzero(lead > 0)
    bounds = leads(context, numbers, [(0.0, 0.0)] * len(numbers), terms=ExactTerms()).bounds
    return [int(number) for number in numbers[~(bounds > 0)]]


# -- results -----------------------------------------------------------------------------------------------------------


def _results(
    context: SweepContext,
    comparisons: Sequence[Comparison],
    probed: Mapping[int, Probe],
    swept: _Sweep,
    started: float,
    spent: Mapping[int, float],
    pieces_before: Mapping[int, int],
) -> list[Result]:
    """What follows from curves; `spent` seconds and pieces are what was swept of some before."""
    terms, labels = ExactTerms(), context.labels.tolist()
    losses = [curve.first_loss(label) for curve, label in zip(swept.curves, labels, strict=True)]
    lower, exact_losses = lower_bounds(context, swept.curves, losses, terms)
    late = context.budget.is_late()  # for what takes bounds to be proved
    lines = [SweptLine(*own) for own in zip(range(len(labels)), labels, swept.curves, losses, lower, strict=True)]
    brackets = find_brackets(context, lines, terms)
    confirmed = {number: own.witness for number, own in probed.items()} | swept.shown
    wrong = contradicted(context, swept.curves)
    witnesses = find_witnesses(context, lines, confirmed, [*exact_losses, *brackets.exact_losses], terms)
    timed_out = [swept.timed_out or (late and not (line.lower > 0).all()) for line in lines]
    lines = [line._replace(lower=np.empty(0)) if line.number in wrong else line for line in lines]
    wins, loses = ({n: z for n, z in side.items() if n not in wrong} for side in brackets[:2])
    first = _at_start(context, lines)
    work = np.array([line.curve.pieces + 1 - pieces_before.get(line.number, 0) for line in lines])
    seconds = (now() - started) * work / work.sum()
    results = []
    for line in lines:
        number, witness = line.number, witnesses.get(line.number)
        unseen = witness is None and line.loss is not None and context.budget.is_late()
        is_late = timed_out[number] or unseen
        lost = first_loss(context, line, loses.get(number), witness, probed.get(number))
        proof = _proof(context, line, wins.get(number, 0.0), lost, is_late, witness)
        is_finite = bool(np.isfinite(first[number]).all())
        stopped = is_late or number in confirmed or number in swept.too_deep
        evidence = Evidence(
            needed=1,
            proofs=(proof,),
            witness=witness,
            comparison=comparisons[number],
            start=float(margins(first[[number]], [line.label])[0]),
            finite=line.curve.covers(0.0, proof.end) or (stopped and is_finite),
            arithmetic=context.settings.arithmetic,
            start_fails=bool(comparisons[number].fails[:1].any()),
        )
        network, query = context.network, context.queries[number]
        predicted = int(first[number].argmax()) if is_finite else None
        took = float(seconds[number]) + spent.get(number, 0.0)
        results.append(Result(network.name, network.identity, query, evidence, predicted, took))
    return results


def _proof(
    context: SweepContext, line: SweptLine, wins: float, lost: float | None, late: bool, witness: Counterexample | None
) -> Swept:
    curve, end = line.curve, context.end(line.number)
    is_open = late and witness is None and not curve.covers(0.0, end) and curve.pieces > 0
    closing = context.budget.closing
    left = pieces_left(context.graph, context.lines, line.number, curve, closing) if is_open else None
    in_float32 = context.settings.arithmetic == "float32"
    return Swept(curve, line.label, end, line.lower, wins, lost, late, left, in_float32)


def _at_start(context: SweepContext, lines: Sequence[SweptLine]) -> Floats:
    """Class scores at strength 0 (lines, classes): rows of curves, or evaluated where none is to be trusted."""
    known = {
        line.number: line.curve.scores[0]
        for line in lines
        if len(line.lower) and line.curve.z[0] == 0 and line.curve.lead is None
    }
    others = np.array([line.number for line in lines if line.number not in known], dtype=np.int64)
    known |= dict(zip(others.tolist(), context.scores(others, np.zeros(len(others))), strict=True))
    return np.stack([known[line.number] for line in lines])
