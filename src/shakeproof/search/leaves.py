"""Parts of a box on which every neuron is straight: the best shares there are the duals of a linear program.

Ascent comes close to them, but only a solver gets there. Its answer is not taken on trust: the bound is worked out
again from the shares, and any shares are sound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from shakeproof.bounds import Rows, Tilted
from shakeproof.bounds.backward import pulled_back

# What a constraint may cost, in units of the claim's largest change over the box: enough to show that a part is empty.
PENALTIES = (1e2, 1e5)


def solved(tilted: Tilted, row: Rows, coefficients: Tensor, penalty: float) -> tuple[Rows, Tensor] | None:
    """The row with the best shares, and the input at which the claim is least; None if the solver fails.

    minimise claim(x) + penalty * t for x in the box, where every cut range holds up to t >= 0. The dual of a range is
    the neuron's share. With t, the program has a solution even if the part is empty; its bound is then as large as the
    penalty allows.
    """
    root, lines = tilted.start(), tilted.on(row)
    relaxations = lines.relaxations(row.slope, torch.zeros_like(row.share))
    claim, _ = pulled_back(tilted.graph, relaxations, tilted.top, coefficients, slice(None))
    low, high = (end.flatten().cpu().numpy() for end in tilted.box)
    objective = claim.flatten().cpu().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        change = float(np.abs(objective) @ (high - low)) or 1.0
    sides, limits, places = [], [], []
    for bend, part in zip(tilted.bends, tilted.slices, strict=True):
        value = tilted.graph.nodes[bend.node].inputs[0]
        for sign, cut, ends in ((1, row.low > root.low, row.low), (-1, row.high < root.high, row.high)):
            neuron = cut[0, part].nonzero().squeeze(1)
            if not len(neuron):
                continue
            units = claim.new_zeros(len(neuron), tilted.graph.shape(value).numel())
            units.scatter_(1, bend.place[neuron].unsqueeze(1), 1.0)
            slopes, offset = pulled_back(
                tilted.graph, relaxations, value, units.view(-1, *tilted.graph.shape(value)), slice(None)
            )
            # sign * (slopes . x + offset) + t >= sign * end, as the solver wants it
            sides.append(np.hstack([-sign * slopes.flatten(1).cpu().numpy(), np.full((len(neuron), 1), -1.0)]))
            limits.append(sign * (offset - ends[0, part][neuron]).cpu().numpy())
            places.append((sign, part.start + neuron))
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
    share, start = torch.zeros_like(row.share), 0
    for sign, neuron in places:
        dual = -found.ineqlin.marginals[start : start + len(neuron)]
        share[0, neuron] += sign * torch.from_numpy(np.maximum(dual, 0)).to(share)
        start += len(neuron)
    return replace(row, share=share), torch.from_numpy(found.x[:-1]).to(claim).view(1, *tilted.box.low.shape[1:])
