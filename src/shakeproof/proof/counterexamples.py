"""Where labels lose, as the reference runtime shows it, or as a proof without rounding does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import OutOfTimeError
from shakeproof.exact import Curve, Least, Piece
from shakeproof.model import Comparison
from shakeproof.proof.brackets import SweptLine, first_proved
from shakeproof.proof.context import SweepContext
from shakeproof.proof.evidence import Counterexample
from shakeproof.proof.leads import ExactTerms, as_float, leads, least_lead, provably_loses
from shakeproof.proof.replay import compared, fails, places, witnessed
from shakeproof.question import margins

# How many strengths are tried in the reference runtime before an early answer is worked for.
PROBES = 32
# A label is not looked for to lose any closer than this to where it does so on a curve.
CLOSE = 1e-6
# In how many stretches that lose a counterexample is looked for, one after another.
REPLAYED = 8


class Probe(NamedTuple):
    """A counterexample that was found before the sweep, and all strengths at which the runtime showed one."""

    witness: Counterexample
    strengths: tuple[float, ...]


def compare_with_runtime(context: SweepContext) -> list[Comparison]:
    """Each query compared with the runtime, at strengths spread over its path."""
    obligations = [query.obligations[0] for query in context.queries]
    more = (PROBES + 1,) if context.settings.stop_early else ()
    return compared(context.network, [(own, places(own, *more)) for own in obligations], context.budget)


def probe(context: SweepContext, comparisons: Sequence[Comparison]) -> dict[int, Probe]:
    """Counterexamples among the strengths that were compared."""
    found = {}
    for number, comparison in enumerate(comparisons):
        failing = np.flatnonzero(comparison.fails & (comparison.margin < 0))
        if len(failing) and comparison.margin[0] > 0:
            worst = failing[comparison.margin[failing].argmin()]
            witness = witness_at(context, number, float(comparison.strength[worst]))
            if witness.replayed and witness.margin < 0:
                found[number] = Probe(witness, tuple(comparison.strength[failing].tolist()))
    return found


def shown_in(context: SweepContext, piece: Piece) -> Iterator[tuple[int, Counterexample]]:
    """The lines on which a piece holds a counterexample that the reference runtime confirms."""
    line, z, scores = (column.cpu().numpy() for column in piece[:3])
    margin = margins(scores, context.labels[line])
    for number in dict.fromkeys(line[margin < 0].tolist()):
        rows = np.flatnonzero(line == number)
        witness = witness_at(context, number, float(z[rows[margin[rows].argmin()]]))
        if witness.replayed and witness.margin < 0:
            yield number, witness


def witness_at(context: SweepContext, number: int, z: float, terms: ExactTerms | None = None) -> Counterexample:
    """What runtime and network say at a strength; if only the network loses there, whether that is proved."""
    at = torch.tensor([z], dtype=torch.float64)
    found = witnessed(context.network, context.network.graph, context.obligation(number), at)
    if found.replayed or not found.margin < 0 or context.settings.arithmetic != "real":
        return found
    ahead = leads(context, np.array([number]), [(z, z)], np.array([found.winner]), terms)
    return replace(found, proved=bool(ahead.bounds[0] > 0))


def witness_without_rounding(context: SweepContext, number: int, least: Least, terms: ExactTerms) -> Counterexample:
    """Where the label loses without rounding, though float64 does not show it: at the nearest number, if there."""
    z, label = float(least.place), int(context.labels[number])
    at = torch.tensor([z], dtype=torch.float64)
    found = witnessed(context.network, context.network.graph, context.obligation(number), at)
    there = least_lead(context, number, (z, z), label, least.rival, terms)
    if there is None or there.lead > 0 or found.replayed:
        return found
    return replace(found, margin=as_float(there.lead), winner=least.rival, proved=True)


def find_witnesses(
    context: SweepContext,
    lines: Sequence[SweptLine],
    confirmed: Mapping[int, Counterexample],
    exact_losses: Sequence[tuple[int, Least]],
    terms: ExactTerms,
) -> dict[int, Counterexample]:
    """Of the lines whose label loses: where it does so most clearly and the runtime shows it, or else what is known
    without rounding.
    """
    found = dict(confirmed)
    for line in lines:
        rows = deepest(line.curve.margin(line.label)) if line.loss is not None else []
        for row in rows:
            if context.budget.closing.is_late():
                break
            witness = witness_at(context, line.number, float(line.curve.z[row]), terms)
            best = found.get(line.number)
            if best is None or witness.replayed or (witness.proved and not best.proved):
                found[line.number] = witness
            if witness.replayed:
                break
    for number, least in exact_losses:
        best = found.get(number)
        if best is None or not (best.replayed or best.proved):
            witness = witness_without_rounding(context, number, least, terms)
            if witness.proved or witness.replayed:
                found[number] = witness
    return found


def first_loss(
    context: SweepContext, line: SweptLine, proved: float | None, witness: Counterexample | None, probed: Probe | None
) -> float | None:
    """The smallest strength at which a label is known to lose, by a proof; None if it is not known to lose.

    Where nothing close to the loss on the curve is `proved`, proofs are tried in between, unless only a verdict is
    asked for. What the runtime shows, and is not proved, may be lost in real numbers a little later.
    """
    loss, number = line.loss, line.number
    if loss == 0:  # misclassified, or nothing is known
        return None
    known = [] if proved is None else [proved]
    if witness is not None and not (proved is not None and loss is not None and proved - loss <= CLOSE):
        strengths = witness.strengths or ()
        tried = [*(() if probed is None else probed.strengths), *strengths] if witness.replayed else []
        known += [z for z, loses in zip(tried, _loses(context, number, np.array(tried)), strict=True) if loses]
        known += strengths if witness.proved else ()
    if not known:
        return context.end(number) if witness is not None and witness.replayed else None
    nearest = min(known)
    if loss is None or nearest - loss <= CLOSE or context.settings.stop_early:
        return nearest
    try:
        rows = line.curve.z[deepest(line.curve.margin(line.label))]
        return first_proved(lambda z: _loses(context, number, z), loss, nearest, rows)
    except OutOfTimeError:
        return nearest


def _loses(context: SweepContext, number: int, z: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the label provably loses at some strengths; in float32, one evaluation is enough: the runtime's."""
    if not len(z):
        return np.empty(0, bool)
    if context.settings.arithmetic == "float32":
        return fails(context.network, context.obligation(number), torch.from_numpy(z).view(-1, 1))
    return provably_loses(context, number, z)


def deepest(margin: NDArray[np.float64]) -> list[int]:
    """The row with the smallest margin in each stretch of rows that lose, the deepest first; a few at most."""
    losing = np.flatnonzero(margin <= 0)
    stretches = np.split(losing, np.flatnonzero(np.diff(losing) > 1) + 1) if len(losing) else []
    rows = [int(stretch[margin[stretch].argmin()]) for stretch in stretches]
    return sorted(rows, key=margin.__getitem__)[:REPLAYED]


def nothing_swept(classes: int) -> Curve:
    return Curve(np.empty(0), np.empty((0, classes)))
