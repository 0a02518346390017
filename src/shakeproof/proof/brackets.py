"""Where labels stop winning: up to where each provably wins, where it provably loses, and inputs that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.bounds import cells_within, usual_shortfall
from shakeproof.budget import OutOfTimeError
from shakeproof.exact import Least, Piece
from shakeproof.model import Comparison
from shakeproof.operators import UNIT
from shakeproof.proof.evidence import SLACK, Counterexample
from shakeproof.proof.leads import (
    TIED,
    Floats,
    Numbers,
    SweepContext,
    SweptLine,
    as_float,
    leads,
    least_lead,
    provably_loses,
)
from shakeproof.proof.replay import fails, replayed_at
from shakeproof.question import margins

# How far from a turn a proof is tried: first near it, as near as float64 allows, and farther away where that fails.
NEAR = np.array([1e-12, 1e-11, 1e-10, 4e-10, 1e-9, 3e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
FAR = np.array([3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0])
# An end that the sweep itself shows, so near the nearest strength that is tried, is not proved any nearer.
NEAR_ENOUGH = 1e-8
# How many strengths are tried at once, and down to which share of a stretch.
TRIALS, FINEST = 16, 1e-8
# A label is not looked for to lose any closer than this to where it does so on a curve.
CLOSE = 1e-6
# A counterexample loses clearly by this share of the largest score, or by so many times float32's noise.
CLEARLY, TIMES_NOISE = 1e-3, 10
# In how many stretches that lose a counterexample is looked for, one after another.
REPLAYED = 8


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


class Brackets(NamedTuple):
    """By line: up to where labels provably win, where they lose, and where they do without rounding."""

    wins: dict[int, float]
    loses: dict[int, float]
    exact_losses: list[tuple[int, Least]]


def find_brackets(context: SweepContext, lines: Sequence[SweptLine]) -> Brackets:
    """For each line that is not proved as a whole: up to where its label provably wins, and where it loses."""
    wanted = {line.number: line for line in lines if len(line.curve.z) and not (line.lower > 0).all()}
    turns = {number: line.turn for number, line in wanted.items()}
    brackets = Brackets({number: 0.0 for number, z in turns.items() if z == 0}, {}, [])
    losing = {number: line.loss for number, line in wanted.items() if line.loss}
    # a label that ties behind its turn loses there, though float64 shows it later; one that jumps may lose once
    ties = {n: turns[n] for n, loss in losing.items() if turns[n] < loss and wanted[n].curve.lead is None}
    for widths, after in ((NEAR, ties), (NEAR, losing), (FAR, losing)):
        late = context.budget.is_late()
        before = {} if after is ties else turns
        try:
            edges = _edges(context, wanted, before, after, brackets, widths[-1:] if late else widths)
            nearest_proved = _proved_at(context, edges, brackets.exact_losses)
        except OutOfTimeError:
            break
        for edge, place in zip(edges, nearest_proved.tolist(), strict=True):
            if place < len(edge.z):
                wins = edge.rival[place] < 0
                (brackets.wins if wins else brackets.loses)[edge.number] = float(edge.z[place] * (1 - SLACK * wins))
        if late:
            break
    return brackets


def _edges(
    context: SweepContext,
    lines: Mapping[int, SweptLine],
    turns: Mapping[int, float],
    losing: Mapping[int, float],
    known: Brackets,
    widths: Floats,
) -> list[Edge]:
    """Both sides, but for those that are known: so far before each turn, and so far after each loss."""
    before = [line for number, line in lines.items() if number in turns and number not in known.wins]
    before = [line for line in before if turns[line.number] - widths[0] > line.curve.z[line.unproved]]
    after = [line for number, line in lines.items() if number in losing and number not in known.loses]
    low = [np.maximum(turns[line.number] - widths, 0.0) for line in before]
    high = [np.minimum(losing[line.number] + widths, context.end(line.number)) for line in after]
    if not low + high:
        return []
    numbers = np.repeat([line.number for line in (*before, *after)], len(widths))
    scores = context.scores(numbers, np.concatenate(low + high), context.budget.closing)
    # what taking the difference of two scores may be off by; of float32's rounding, nothing is sure
    is_real = context.settings.arithmetic == "real"
    rounding = (4 * UNIT * np.abs(scores).max(1) if is_real else np.full(len(scores), np.inf)).reshape(-1, len(widths))
    direct = margins(scores, context.labels[numbers]).reshape(-1, len(widths))
    scores[np.arange(len(numbers)), context.labels[numbers]] = -np.inf
    rivals = scores.argmax(1).reshape(direct.shape)
    count = len(before)
    return [
        *(wins_before(*side) for side in zip(before, low, direct[:count], rounding[:count], strict=True)),
        *(
            loses_after(*side)
            for side in zip(after, high, direct[count:], rounding[count:], rivals[count:], strict=True)
        ),
    ]


def wins_before(line: SweptLine, z: Floats, direct: Floats, rounding: Floats) -> Edge:
    """That the label wins up to a strength: on the pieces before it, and on what is left of one."""
    curve = line.curve
    piece = np.maximum(np.searchsorted(curve.z, z, side="left") - 1, 0)
    margin = np.minimum(direct, curve.margin(line.label)[piece])
    # before that piece it is known already, and behind it nothing is proved
    margin = np.where(piece == line.unproved, margin, -np.inf)
    # the chord is within one error of the margin at either end, and so is the margin of the chord in between
    sure = margin > 3 * np.maximum(line.off(piece), rounding)
    return Edge(line.number, z, curve.z[piece] * (1 - SLACK), np.full(len(z), -1), margin, sure)


def loses_after(line: SweptLine, z: Floats, direct: Floats, rounding: Floats, rivals: Numbers) -> Edge:
    """That the label loses at a strength, or ties."""
    off = np.maximum(line.off(np.searchsorted(line.curve.z, z) - 1), rounding)
    return Edge(line.number, z, z, rivals, np.where(direct == 0, TIED, -direct), direct < -off)


def _proved_at(context: SweepContext, edges: Sequence[Edge], exact_losses: list[tuple[int, Least]]) -> Numbers:
    """For each edge, the number of the nearest strength at which it is proved."""
    if not edges:
        return np.empty(0, dtype=np.int64)
    margin, sure, z = (np.stack(column) for column in zip(*((e.margin, e.sure, e.z) for e in edges), strict=True))
    is_shown = (sure & (np.abs(z - z[:, :1]) <= NEAR_ENOUGH)).any(1)
    margin[is_shown] = -np.inf  # so that no bound is asked for

    def bounds(chosen: Sequence[Edge], places: Numbers, exactly: bool) -> Floats:
        at = list(zip(chosen, places.tolist(), strict=True))
        numbers, rivals = (np.array(column) for column in zip(*((e.number, e.rival[p]) for e, p in at), strict=True))
        ahead = leads(context, numbers, [(float(e.start[p]), float(e.z[p])) for e, p in at], rivals, exactly)
        exact_losses.extend(ahead.exact_losses)
        return ahead.bounds

    is_open = margin.shape[1] > 1 and bool(((margin > 0) & ~sure)[:, 0].any())
    cells_within(context.graph, context.budget, 1)  # or an error
    guess = usual_shortfall(context.meant) if is_open else 0.0
    proved = nearest(margin, sure, lambda rows, places: bounds([edges[row] for row in rows], places, False), guess)
    left = np.flatnonzero(proved == margin.shape[1])
    if len(left) and context.rational is not None:  # that takes its time: only where nothing else will do
        proved[left] = nearest(
            margin[left], sure[left], lambda rows, places: bounds([edges[left[row]] for row in rows], places, True)
        )
    return proved


def nearest(
    margins: Floats,
    sure: NDArray[np.bool_],
    bound: Callable[[Numbers, Numbers], NDArray[Any]],
    guess: Floats | float = 0.0,
) -> Numbers:
    """For each claim (rows), the number of the first place (columns) at which it is proved; of no place if at none.

    `margins` (claims, places) say by how much a claim holds there as far as one knows, and where it is `sure` it needs
    no proof. `bound` gives proved lower bounds of margins, for some claims at a place each: above 0, a claim holds.

    A bound falls short of the margin by what rounding may do, and hardly by more in one place than in the next. So each
    says which place to try next: the first whose margin is larger than that. Before there is any, a `guess` does, for
    each claim; where it leaves no place, or the bound there says nothing, places are tried from the first on.
    """
    claims, places = margins.shape
    place = np.arange(places)
    proved: Numbers = np.where(sure.any(1), sure.argmax(1), places)
    left = place < proved[:, None]
    short = np.broadcast_to(guess, claims)[:, None].copy()
    short[~((margins > short) & left).any(1)] = 0.0
    is_guess = short[:, 0] > 0
    while True:
        hopeful = (margins > short) & left
        rows = np.flatnonzero(hopeful.any(1))
        if not len(rows):
            return proved
        columns = hopeful[rows].argmax(1)
        bounds = bound(rows, columns)
        with np.errstate(invalid="ignore"):  # infinite ones say nothing
            missing = margins[rows, columns] - bounds
        known, holds, here = np.isfinite(missing), bounds > 0, columns[:, None]
        misled = is_guess[rows] & ~known & ~holds
        proved[rows[holds]] = columns[holds]
        farther = np.where(misled[:, None], place != here, place > here)
        left[rows] &= np.where(holds[:, None], place < here, farther)
        short[rows, 0] = np.where(known, missing, np.where(is_guess[rows], 0.0, short[rows, 0]))
        is_guess[rows] = False


def first_proved(fails: Callable[[Floats], NDArray[np.bool_]], start: float, known: float, more: Floats) -> float:
    """The smallest strength proved to fail, behind one where failing begins, and up to one that is `known` to fail.

    Failing need not go on once it has begun. So `more` strengths are tried beside those that come closer and closer to
    the start; then those between the first that fails and the last one before it that does not.
    """
    shares = np.geomspace(FINEST, 1.0, TRIALS, endpoint=False)
    tried = np.unique(np.concatenate([start + shares * (known - start), more[(more > start) & (more < known)]]))
    for _ in range(2):
        failing = np.append(fails(tried), True)
        first = int(failing.argmax())
        known = float(tried[first]) if first < len(tried) else known
        tried = np.linspace(float(tried[first - 1]) if first else start, known, TRIALS + 2)[1:-1]
    return known


# -- counterexamples ---------------------------------------------------------------------------------------------------


def failing(comparison: Comparison) -> NDArray[np.int64]:
    """The places of a comparison in which the runtime fails, and the network does."""
    return np.flatnonzero(comparison.fails & (comparison.margin < 0))


def probed(context: SweepContext, comparisons: Sequence[Comparison]) -> dict[int, Counterexample]:
    """Counterexamples among the strengths that were compared, by line: the first one that is clear."""
    shown = {}
    for number, comparison in enumerate(comparisons):
        places = failing(comparison)
        if len(places) and comparison.margin[0] > 0:
            clear = places[-comparison.margin[places] > TIMES_NOISE * comparison.noise[places]]
            place = clear[0] if len(clear) else places[comparison.margin[places].argmin()]
            counterexample = counterexample_at(context, number, float(comparison.strength[place]))
            if counterexample.replayed and counterexample.margin < 0:
                shown[number] = counterexample
    return shown


def shown_in(context: SweepContext, piece: Piece) -> Iterator[tuple[int, Counterexample]]:
    """The lines on which a piece holds a counterexample that the reference runtime confirms."""
    line, z, scores = (column.cpu().numpy() for column in piece[:3])
    margin = margins(scores, context.labels[line])
    for number in dict.fromkeys(line[margin < 0].tolist()):
        rows = np.flatnonzero(line == number)
        counterexample = counterexample_at(context, number, float(z[rows[margin[rows].argmin()]]))
        if counterexample.replayed and counterexample.margin < 0:
            yield number, counterexample


def counterexample_at(context: SweepContext, number: int, z: float, exactly: bool = False) -> Counterexample:
    """What runtime and network say at a strength; if only the network loses there, whether that is proved."""
    at = torch.tensor([z], dtype=torch.float64)
    counterexample = replayed_at(context.network, context.asked[number], context.obligation(number), at)
    if counterexample.replayed or not counterexample.margin < 0 or context.settings.arithmetic != "real":
        return counterexample
    scores = context.scores(np.array([number]), np.array([z]))
    scores[0, context.labels[number]] = -np.inf
    ahead = leads(context, np.array([number]), [(z, z)], scores.argmax(1), exactly)
    return replace(counterexample, proved=bool(ahead.bounds[0] > 0))


def find_counterexamples(
    context: SweepContext,
    lines: Sequence[SweptLine],
    shown: Mapping[int, Counterexample],
    exact_losses: Sequence[tuple[int, Least]],
) -> dict[int, Counterexample]:
    """Of the lines whose label loses: close to the flip, where it loses clearly and the runtime shows it; else where it
    loses most clearly; or else what is known without rounding.
    """
    best = dict(shown)
    for line in lines:
        for z in (
            (*after_flip(line), *line.curve.z[deepest(line.curve.margin(line.label))]) if line.loss is not None else ()
        ):
            if context.budget.closing.is_late():
                break
            counterexample = counterexample_at(context, line.number, float(z), exactly=True)
            known = best.get(line.number)
            if known is None or counterexample.replayed or (counterexample.proved and not known.proved):
                best[line.number] = counterexample
            if counterexample.replayed:
                break
    for number, least in exact_losses:  # though float64 does not show it: at the nearest number, if it is lost there
        known, z, label = best.get(number), float(least.place), int(context.labels[number])
        if known is not None and (known.replayed or known.proved):
            continue
        at = torch.tensor([z], dtype=torch.float64)
        counterexample = replayed_at(context.network, context.asked[number], context.obligation(number), at)
        there = least_lead(context, number, (z, z), label, least.rival)
        if counterexample.replayed:
            best[number] = counterexample
        elif there is not None and there.lead <= 0:
            winner = least.rival if context.asked[number].about.is_label else counterexample.winner
            best[number] = replace(counterexample, margin=as_float(there.lead), winner=winner, proved=True)
    return best


def first_loss(
    context: SweepContext,
    line: SweptLine,
    proved: float | None,
    shown: Counterexample | None,
    comparison: Comparison,
) -> float | None:
    """The smallest strength at which a label is known to lose, by a proof; None if it is not known to lose.

    Where nothing close to the loss on the curve is `proved`, proofs are tried in between, unless only a verdict is
    asked for. What the runtime shows, and is not proved, may be lost in real numbers a little later.
    """
    loss, number, stops_early = line.loss, line.number, context.settings.stop_early
    if loss == 0:  # misclassified, or nothing is known
        return None

    def loses(z: Floats) -> NDArray[np.bool_]:
        """Provably; in float32, one evaluation is enough: the runtime's."""
        if context.settings.arithmetic == "float32":
            return fails(context.network, context.obligation(number), torch.from_numpy(z).view(-1, 1))
        return provably_loses(context, number, z)

    known = [] if proved is None else [proved]
    if shown is not None and not (proved is not None and loss is not None and proved - loss <= CLOSE):
        strengths = np.array(shown.strengths)
        if shown.replayed:
            compared = comparison.strength[failing(comparison)] if stops_early else strengths[:0]
            deep = strengths[:0] if loss is None else line.curve.z[deepest(line.curve.margin(line.label))]
            tried = np.unique(np.concatenate([compared, strengths, deep]))
            with suppress(OutOfTimeError):  # the runtime shows it all the same
                known += tried[:1].tolist() if loses(tried[:1]).all() else tried[loses(tried)].tolist()
        known += strengths.tolist() if shown.proved else ()
    if not known:
        return context.end(number) if shown is not None and shown.replayed else None
    nearest_known = min(known)
    if loss is None or nearest_known - loss <= CLOSE or stops_early:
        return nearest_known
    try:
        return first_proved(loses, loss, nearest_known, line.curve.z[deepest(line.curve.margin(line.label))])
    except OutOfTimeError:
        return nearest_known


def after_flip(line: SweptLine) -> Iterator[float]:
    """Where the label first loses clearly on a curve: on the chord, and at the row behind it."""
    curve = line.curve
    margin, clear = curve.margin(line.label), -CLEARLY * float(np.abs(curve.scores).max())
    rows = np.flatnonzero(margin <= clear)
    if not len(rows):
        return
    row = int(rows[0])
    if row > 0 and not curve.jumps[row - 1]:
        yield float(np.interp(clear, margin[[row, row - 1]], curve.z[[row, row - 1]]))
    yield float(curve.z[row])


def deepest(margin: NDArray[np.float64]) -> list[int]:
    """The row with the smallest margin in each stretch of rows that lose, the deepest first; a few at most."""
    losing = np.flatnonzero(margin <= 0)
    stretches = np.split(losing, np.flatnonzero(np.diff(losing) > 1) + 1) if len(losing) else []
    rows = [int(stretch[margin[stretch].argmin()]) for stretch in stretches]
    return sorted(rows, key=margin.__getitem__)[:REPLAYED]
