"""Parts of a box on which every neuron is straight: the best betas there are the duals of a linear program.

Ascent comes close to them, but only a solver gets there. Its answer is not taken on trust: the bound is worked out
again from the betas, and any betas are sound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shakeproof.bounds import AlphaBetaCrown, Parts, pulled_back

# What a constraint may cost, in units of the claim's largest change over the box: enough to show that a part is empty.
PENALTIES = (1e2, 1e5)


def solved(crown: AlphaBetaCrown, part: Parts, coefficients: Tensor, penalty: float) -> tuple[Parts, Tensor] | None:
    """The part with the best betas, and the input at which the claim is least; None if the solver fails.

    minimise claim(x) + penalty * t for x in the box, where every cut range holds up to t >= 0. The dual of a range is
    the neuron's beta. With t, the program has a solution even if the part is empty; its bound is then as large as the
    penalty allows.
    """
    from scipy.optimize import linprog  # half a second, which few queries need

    root, lines = crown.start(), crown.on(part)
    relaxations = lines.relaxations(part.alpha, torch.zeros_like(part.beta))
    claim, _ = pulled_back(crown.graph, relaxations, crown.top, coefficients, slice(None))
    low, high = (end.flatten().cpu().numpy() for end in crown.box)
    objective = claim.flatten().cpu().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        change = float(np.abs(objective) @ (high - low)) or 1.0
    sides, limits, places = [], [], []
    for bend, place in zip(crown.bends, crown.slices, strict=True):
        value = crown.graph.nodes[bend.node].inputs[0]
        for sign, cut, ends in ((1, part.low > root.low, part.low), (-1, part.high < root.high, part.high)):
            neuron = cut[0, place].nonzero().squeeze(1)
            if not len(neuron):
                continue
            units = claim.new_zeros(len(neuron), crown.graph.shape(value).numel())
            units.scatter_(1, bend.place[neuron].unsqueeze(1), 1.0)
            slopes, offset = pulled_back(
                crown.graph, relaxations, value, units.view(-1, *crown.graph.shape(value)), slice(None)
            )
            # sign * (slopes . x + offset) + t >= sign * end, as the solver wants it
            sides.append(np.hstack([-sign * slopes.flatten(1).cpu().numpy(), np.full((len(neuron), 1), -1.0)]))
            limits.append(sign * (offset - ends[0, place][neuron]).cpu().numpy())
            places.append((sign, place.start + neuron))
    if not sides:
        return None
    goal, matrix, limit = np.append(objective, penalty * change), np.concatenate(sides), np.concatenate(limits)
    if not all(np.isfinite(numbers).all() for numbers in (goal, matrix, limit)):
        return None
    found = linprog(
        goal,
        A_ub=matrix,
        b_ub=limit,
        bounds=[*zip(low, high, strict=True), (0, None)],
        method="highs",
    )
    if found.status != 0:
        return None
    beta, start = torch.zeros_like(part.beta), 0
    for sign, neuron in places:
        dual = -found.ineqlin.marginals[start : start + len(neuron)]
        beta[0, neuron] += sign * torch.from_numpy(np.maximum(dual, 0)).to(beta)
        start += len(neuron)
    return replace(part, beta=beta), torch.from_numpy(found.x[:-1]).to(claim).view(1, *crown.box.low.shape[1:])
