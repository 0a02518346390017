"""The exact method: compare with the runtime, sweep, bound, bracket, show counterexamples, judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import Budget, OutOfTimeError, now
from shakeproof.errors import ProofError
from shakeproof.exact import Curve, Lines, Piece, cores_for, join, pieces_left, swept_curves, threads_for, usual_breaks
from shakeproof.model import Comparison, Network
from shakeproof.proof.brackets import (
    counterexample_at,
    find_brackets,
    find_counterexamples,
    first_loss,
    probed,
    shown_in,
)
from shakeproof.proof.evidence import Counterexample, Swept, SweptWindow
from shakeproof.proof.leads import SweepContext, SweptLine, contradicted, leads, lower_bounds
from shakeproof.proof.replay import compared, places
from shakeproof.proof.result import Result
from shakeproof.proof.verdict import Evidence
from shakeproof.question import Query, margins
from shakeproof.rounding import RunningError, work_out_norms
from shakeproof.settings import Settings

# Errors that grow by less leave something proved in float64.
GREAT_EFFECT = 1e10
# Lines that share a sweep: as many as this, as their inputs fit into so many bytes, and as their networks have so many
# values in all for each core. More gain nothing; and the answers to some come before the others are worked on.
LINES_AT_ONCE, LINE_BYTES, VALUES_AT_ONCE = 1024, 64 * 2**20, 2**20
# So many strengths are tried in the reference runtime before an early answer is worked for, if the sweep may meet that
# many breaks. To try them in front of a shorter sweep takes longer than what they save, on average.
PROBES, MANY_BREAKS = 32, 2000

# Outputs are kept for plots as long as they are no more numbers than this.
DRAWN = 2**24


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
    """Answer queries about paths of one strength, with the same clipping, in one sweep; on several cores, one for each.

    Where one was `begun` before, it goes on; all that follows from a curve is worked out from the whole of it.
    """
    begun = begun or [None] * len(queries)
    budget = Budget.starting(settings.timeout, settings.memory, progress, torch.get_num_threads())
    cores = cores_for(network.graph, budget) if settings.device == "cpu" else 1
    if cores == 1 or len(queries) < cores:
        return answer_exactly(network, queries, settings, budget, begun)
    done = [0.0] * cores

    def answer_share(core: int) -> list[Result]:
        def tell(share: float) -> None:
            done[core] = share
            progress(sum(done) / cores)

        numbers = slice(core, None, cores)
        share = replace(budget.shared(cores), progress=tell)
        return answer_exactly(network, queries[numbers], settings, share, begun[numbers])

    with threads_for(network.graph, 1), ThreadPoolExecutor(cores) as pool:
        shares = list(pool.map(answer_share, range(cores)))
    return [shares[number % cores][number // cores] for number in range(len(queries))]


@torch.inference_mode()
def answer_exactly(
    network: Network,
    queries: Sequence[Query],
    settings: Settings,
    budget: Budget,
    begun: Sequence[SweptWindow | None],
) -> list[Result]:
    """The method, from top to bottom; in one thread, but for the sweep of a line that is cut."""
    with threads_for(network.graph, budget.cores):
        started, context = now(), SweepContext.of(network, queries, settings, budget)
        comparisons = compare(context)
        swept = sweep(context, comparisons, begun)
        return judge_curves(context, comparisons, swept, begun, started)


@torch.inference_mode()
def sweep_window(network: Network, query: Query, settings: Settings, start: float, end: float) -> SweptWindow:
    """Sweep a part of a query's path; of a network without jumps."""
    budget = Budget.starting(settings.timeout, settings.memory, cores=torch.get_num_threads())
    with threads_for(network.graph, budget.cores):
        started, context = now(), SweepContext.of(network, [query], settings, budget)
        part = replace(context.lines, start=context.lines.start + start, end=torch.full_like(context.lines.end, end))
        errors = running_error(context)
        (curve,), _ = sweep_lines(context, part, errors, () if errors is not None else [0])
        return SweptWindow(start, end, curve, errors is None or budget.is_late(), now() - started)


@torch.inference_mode()
def answer_by_windows(network: Network, query: Query, settings: Settings, windows: Sequence[SweptWindow]) -> Result:
    """Answer a query from consecutive windows, which may have been swept elsewhere.

    That none is missing in between is checked as they are joined, and that they reach from 0 to the strength by the
    proof itself: what follows from the curve is worked out here, as it is for one that was swept at once.
    """
    in_order = sorted(windows, key=lambda window: window.start)
    curve = join([(window.start, window.end, window.curve) for window in in_order], network.graph.classes)
    late, seconds = any(window.late for window in windows), sum(window.seconds for window in windows)
    budget = Budget.starting(settings.timeout, settings.memory, cores=torch.get_num_threads())
    with threads_for(network.graph, budget.cores):
        started, context = now(), SweepContext.of(network, [query], settings, budget)
        comparisons = compare(context)
        shown = probed(context, comparisons) if settings.stop_early else {}
        swept = SweptLines([curve], shown, set(), late or budget.is_late())
        whole = SweptWindow(0.0, query.strengths[0], curve, late, seconds)
        (result,) = judge_curves(context, comparisons, swept, [whole], started)
        return result


def outputs_to_draw(context: SweepContext, line: SweptLine) -> NDArray[np.float64] | None:
    """The outputs at the rows of a curve, where a plot of a requirement is wanted and they are not too many."""
    asked, z = context.asked[line.number], line.curve.z
    is_moved = asked.about is not context.obligation(line.number).property
    if asked.about.is_label or is_moved or not context.settings.whole_curve or len(z) * asked.about.outputs > DRAWN:
        return None
    return context.outputs(line.number, z)


# -- compare -----------------------------------------------------------------------------------------------------------


def compare(context: SweepContext) -> list[Comparison]:
    """Each query compared with the runtime, at strengths spread over its path; more of them if one may be enough."""
    obligations = [query.obligations[0] for query in context.queries]
    probes = context.settings.stop_early and usual_breaks(context.graph) > MANY_BREAKS
    at = [places(obligation, PROBES + 1) if probes else places(obligation) for obligation in obligations]
    return compared(context.network, list(zip(obligations, at, strict=True)), context.budget)


# -- sweep -------------------------------------------------------------------------------------------------------------


class SweptLines(NamedTuple):
    """Curves, counterexamples that the runtime showed on the way, lines that no sweep can prove anything about, and
    whether the time was up.
    """

    curves: list[Curve]
    shown: dict[int, Counterexample]
    too_deep: set[int]
    timed_out: bool


def sweep(context: SweepContext, comparisons: Sequence[Comparison], begun: Sequence[SweptWindow | None]) -> SweptLines:
    """The scores along all lines, behind what was swept of them before; but for those whose answer is known, or whose
    scores are not finite even at strength 0.
    """
    count, settings, lines = len(context.queries), context.settings, context.lines
    shown = probed(context, comparisons) if settings.stop_early else {}
    shown |= misclassified(context, comparisons)
    closed = set(shown)
    firsts = np.array([[*c.margin[:1], *c.disagreement[:1]] for c in comparisons if len(c.margin)])
    if len(firsts) < count or not np.isfinite(firsts).all():
        closed |= set(np.flatnonzero(~np.isfinite(context.start_scores).all(1)).tolist())
    if len(closed) == count and not any(begun):  # what rounding may do need not be known, which may take long
        nothing = Curve(np.empty(0), np.empty((0, context.graph.classes)))
        return SweptLines([nothing] * count, shown, set(), context.budget.is_late())
    errors = running_error(context)
    too_deep = _too_deep(context, errors) if errors is not None else set(range(count))
    if enumerates(settings):
        begun = [window and window.enumerated() for window in begun]
    start = lines.start.clone()
    for number, window in enumerate(begun):
        if window is not None:
            if not window.curve.covers(0.0, window.end) or not window.end <= context.end(number):
                raise ProofError("what was swept before is not the beginning of this path")
            start[number] = window.end
    curves, shown_on_the_way = sweep_lines(context, replace(lines, start=start), errors, closed | too_deep)
    for number, window in enumerate(begun):
        if window is not None:
            parts = [(0.0, window.end, window.curve), (window.end, context.end(number), curves[number])]
            joined = join(parts, context.graph.classes)
            curves[number] = joined if joined.z[-1] >= window.end else window.curve
    timed_out = errors is None or context.budget.is_late()
    return SweptLines(curves, shown | shown_on_the_way, too_deep, timed_out)


def misclassified(context: SweepContext, comparisons: Sequence[Comparison]) -> dict[int, Counterexample]:
    """The lines whose label loses at strength 0, in float64 and in the runtime: they need no sweep.

    A curve that was asked for is swept all the same, and so is one whose label is only what the network predicted.
    """
    if enumerates(context.settings):
        return {}
    return {
        number: counterexample_at(context, number, 0.0)
        for number, comparison in enumerate(comparisons)
        if comparison.fails[:1].any()
        and not context.queries[number].label_predicted
        and margins(context.start_scores, context.labels)[number] <= 0
    }


def running_error(context: SweepContext) -> RunningError | None:
    """What rounding may do along a sweep. None if there is no time to work out the norms that say so: without them no
    proof will come.
    """
    try:
        work_out_norms(context.graph, context.budget)
    except OutOfTimeError:
        return None
    return RunningError(context.graph)


def enumerates(settings: Settings) -> bool:
    """Whether every piece is wanted: bounds that spare some are about real numbers."""
    return settings.whole_curve or settings.arithmetic != "real"


def _too_deep(context: SweepContext, errors: RunningError) -> set[int]:
    """The lines that need no sweep if only a verdict is asked: at strength 0, float64 may be off by more than the
    label's lead, so that no proof will come.
    """
    is_usual = context.settings.stop_early and not context.graph.jumping_operators
    if not is_usual or max(errors.effects) < GREAT_EFFECT:
        return set()
    numbers = np.flatnonzero(margins(context.start_scores, context.labels) > 0)
    bounds = leads(context, numbers, [(0.0, 0.0)] * len(numbers), exactly=True).bounds
    return set(numbers[~(bounds > 0)].tolist())


def sweep_lines(
    context: SweepContext, lines: Lines, errors: RunningError | None, closed: set[int] | Sequence[int]
) -> tuple[list[Curve], dict[int, Counterexample]]:
    """A curve for each line, and the counterexamples that ended the work on some."""
    shown: dict[int, Counterexample] = {}

    def look(piece: Piece) -> Iterator[int]:
        for number, counterexample in shown_in(context, piece):
            shown[number] = counterexample
            yield number

    curves = swept_curves(
        context.graph,
        lines,
        context.labels,
        context.budget,
        list(closed),
        enumerates(context.settings),
        errors,
        look if context.settings.stop_early else None,
    )
    return curves, shown


# -- judge -------------------------------------------------------------------------------------------------------------


def judge_curves(
    context: SweepContext,
    comparisons: Sequence[Comparison],
    swept: SweptLines,
    begun: Sequence[SweptWindow | None],
    started: float,
) -> list[Result]:
    """What follows from curves: lower bounds between their rows, brackets, counterexamples, and so the evidence."""
    network, budget, in_float32 = context.network, context.budget, context.settings.arithmetic == "float32"
    lines, exact_losses = lower_bounds(context, swept.curves)
    late = budget.is_late()  # for what takes bounds to be proved
    brackets = find_brackets(context, lines)
    wrong = contradicted(context, lines)
    counterexamples = find_counterexamples(context, lines, swept.shown, [*exact_losses, *brackets.exact_losses])
    pieces_before = [0 if window is None else window.curve.pieces for window in begun]
    work = np.array([line.curve.pieces + 1 - before for line, before in zip(lines, pieces_before, strict=True)])
    seconds = (now() - started) * work / work.sum()
    results = []
    for line, query, comparison, window in zip(lines, context.queries, comparisons, begun, strict=True):
        number, curve, end, shown = line.number, line.curve, context.end(line.number), counterexamples.get(line.number)
        timed_out = swept.timed_out or (late and not (line.lower > 0).all())
        timed_out = timed_out or (shown is None and line.loss is not None and budget.is_late())
        wins, loses = (None if number in wrong else side.get(number) for side in (brackets.wins, brackets.loses))
        is_open = timed_out and shown is None and not curve.covers(0.0, end) and curve.pieces > 0
        proof = Swept(
            curve=curve,
            about=query.obligations[0].property,
            label=line.label,
            end=end,
            lower=np.empty(0) if number in wrong else line.lower,
            reached=wins or 0.0,
            lost=first_loss(context, line, loses, shown, comparison),
            timed_out=timed_out,
            left=pieces_left(context.graph, context.lines, number, curve, budget.closing) if is_open else None,
            float32=in_float32,
            is_moved=context.asked[number].about is not query.obligations[0].property,
            outputs=outputs_to_draw(context, line),
        )
        is_known = len(curve.z) > 0 and curve.z[0] == 0 and curve.lead is None and number not in wrong
        first = curve.scores[0] if is_known else context.start_scores[number]
        is_finite, stopped = bool(np.isfinite(first).all()), timed_out or number in {*swept.shown, *swept.too_deep}
        evidence = Evidence(
            needed=1,
            proofs=(proof,),
            counterexample=shown,
            comparison=comparison,
            start=float(margins(first[None], [line.label])[0]),
            finite=curve.covers(0.0, end) or (stopped and is_finite),
            arithmetic=context.settings.arithmetic,
            start_fails=bool(comparison.fails[:1].any()),
        )
        took = float(seconds[number]) + (0.0 if window is None else window.seconds)
        outputs = first if context.asked[number].about.is_label else context.outputs(number, np.zeros(1))[0]
        predicted = int(outputs.argmax()) if is_finite else None
        results.append(Result(network.name, network.identity, query, evidence, predicted, took))
    return results
