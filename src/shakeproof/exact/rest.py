"""How many pieces a line has where the time did not let its sweep come."""

from __future__ import annotations

import torch

from shakeproof.budget import Budget
from shakeproof.exact.curve import Curve
from shakeproof.exact.sweep import Lines, count_breaks
from shakeproof.model import Graph

# Breaks are counted in so many places before the end of a curve, and behind it.
PLACES = 4


def pieces_left(graph: Graph, lines: Lines, number: int, curve: Curve, budget: Budget) -> float | None:
    """How many pieces are to be expected between the end of a curve and that of its line; None if there is no time.

    As many as there were so far, but for how much closer together, or farther apart, breaks are: counted on stretches
    of the same width here and there, since a count misses neurons that bend and bend back.
    """
    start, reached, end = float(curve.z[0]), float(curve.z[-1]), float(lines.end[number])
    width = min(reached - start, end - reached) / PLACES
    counts = []
    for low, high in ((start, reached), (reached, end)):
        for place in range(PLACES):
            if budget.is_late():
                return None
            counts.append(_breaks(graph, lines, number, low + (high - width - low) * place / (PLACES - 1), width))
    before, behind = sum(counts[:PLACES]), sum(counts[PLACES:])
    return curve.pieces * (end - reached) / (reached - start) * (behind / before if before else 1.0)


def _breaks(graph: Graph, lines: Lines, number: int, low: float, width: float) -> int:
    z = torch.tensor([low, low + width], dtype=torch.float64, device=lines.start.device)
    return int(count_breaks(graph, lines.at(torch.full_like(z, number, dtype=torch.int64), z))[1])
