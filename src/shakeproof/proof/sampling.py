"""Strengths drawn at random and run in the runtime, where an answer stays undecided: a test, and never a proof.

A loss among them is a counterexample. How few of all strengths can lose if none of these does, Clopper and Pearson
(1934) say.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from fractions import Fraction
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import UNLIMITED, Budget, now
from shakeproof.model import Comparison, Deployed, Network, stated
from shakeproof.proof.enumeration_method import Runner, judged, property_of
from shakeproof.proof.evidence import Counterexample, Enumerated
from shakeproof.proof.replay import compared, replayed_at
from shakeproof.proof.result import Result, Tested
from shakeproof.proof.verdict import Evidence, Status
from shakeproof.question import Query
from shakeproof.settings import TEST_SHARE, Settings

Floats = NDArray[np.float64]
# So many strengths are run, or as many as there is time for.
STRENGTHS = 512
# So many numbers of inputs are handed to the runtime at once: little, since the time may be short.
AT_ONCE = 2**16
# Strengths are multiples of this, so that 8-bit pictures are worked out in int64, unless they are all smaller.
GRID, LEAST = 2.0**25, 2.0**-10


def tested(network: Deployed, result: Result, settings: Settings, seed: str) -> Result:
    """An undecided answer with what became of strengths drawn at random; of a path that is more than one input.

    `seed` is a digest of the question: the same strengths are drawn whoever asks it.
    """
    query = result.query
    if result.status is not Status.UNDECIDED or query.path is None or not any(query.strengths):
        return result
    budget = Budget.starting(settings.timeout and TEST_SHARE * settings.timeout, settings.memory)
    started, at = now(), drawn(query, seed)
    runs = _picture_runs(network, result, at) if isinstance(result.proof, Enumerated) else _runs(network, query, at)
    lost = list[bool]()
    while len(lost) < len(at) and not budget.is_late():
        lost += next(runs).tolist()
    runs.close()
    if not lost:
        return result
    result = replace(result, tested=Tested.of(len(lost), sum(lost)), seconds=result.seconds + now() - started)
    if any(lost):
        first = min(np.flatnonzero(lost), key=lambda number: at[number].max())
        shown = _counterexample(network, result, at[first])
        if shown is not None and shown.replayed:
            return replace(result, evidence=_with_loss(network, result, shown, at[first]))
    return result


def _with_loss(network: Deployed, result: Result, shown: Counterexample, at: Floats) -> Evidence:
    """The evidence with a loss that the runtime shows. The network is compared with the runtime there as well: if it
    does not lose in the network as it was read, what was proved of that says less of the runtime, or nothing.
    """
    evidence = replace(result.evidence, counterexample=shown)
    if evidence.comparison is None or not isinstance(network, Network):
        return evidence
    (there,) = compared(network, [(result.query.obligations[0], torch.from_numpy(at)[None])], UNLIMITED)
    return replace(evidence, comparison=Comparison.joined([evidence.comparison, there]))


def drawn(query: Query, seed: str) -> Floats:
    """Strengths (n, m), each anywhere from 0 to the query's with the same chance."""
    random, ends = np.random.default_rng(int(seed[:16], 16)), np.array(query.strengths)
    at = random.random((STRENGTHS, len(ends))) * ends
    return np.asarray(at if ends.max() < LEAST else np.floor(at * GRID) / GRID)


def _runs(network: Deployed, query: Query, at: Floats) -> Generator[NDArray[np.bool_], None, None]:
    """Which strengths lose in the runtime, some at a time."""
    obligation, size = query.obligations[0], max(1, AT_ONCE // prod(network.input_shape))
    for start in range(0, len(at), size):
        inputs = obligation.inputs.runtime_inputs(torch.from_numpy(at[start : start + size]))
        yield obligation.property.fails(network.reference(inputs))


def _picture_runs(network: Deployed, result: Result, at: Floats) -> Generator[NDArray[np.bool_], None, None]:
    """The same of the 8-bit pictures that are to be seen there, each run alone."""
    assert isinstance(result.proof, Enumerated)
    pictures = result.proof.pictures
    shown = (pictures.at(Fraction(z))[None] for z in at[:, 0].tolist())
    for scores in Runner.alone(network, pictures, result.query.photograph).run_all(shown):
        yield ~(judged(scores, property_of(result.query))[0] > 0)


def _counterexample(network: Deployed, result: Result, at: Floats) -> Counterexample | None:
    """A strength that was lost, run once more."""
    if isinstance(result.proof, Enumerated):
        pictures = result.proof.pictures
        runner = Runner.alone(network, pictures, result.query.photograph)
        return runner.shown(pictures.at(Fraction(at[0])), at[0], property_of(result.query))
    if not isinstance(network, Network):
        return None
    (obligation,) = result.query.obligations
    return replayed_at(network, stated(network, obligation.property), obligation, torch.from_numpy(at))
