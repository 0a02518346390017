"""Whether the runtime, in float32, computes the network that was read, in float64: one rule, at load and for queries.

The two may differ by float32's noise, and by no more. `allowed` says how much that is: a few millionths of how far the
scores are apart, which is enough for most networks. Where it is not, float32's rounding is applied to the graph as it
was read, many times enlarged, and what that does to the scores is allowed.

An allowance that is as large as what it protects is worth nothing: any network agrees with any other within it. So a
claim may rest on the comparison in a place only if what is allowed takes at most `SHARE` of the claim's margin there
(`telling`). Then a misreading that was not noticed has not changed who wins in any place that was compared.
A misreading that moves the scores by less than what is allowed is not noticed; that is what the rule gives up.

Why a share of the margin, and not of how far all scores are apart: one class far below the others makes that as large
as one likes, and has no part in who wins. Where the label loses later on the path, the margin shrinks to 0 between two
places; each place before that has a margin of its own, and is judged by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.graph import Graph
from shakeproof.operators import Affine, Sigmoid

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

# What is allowed may take away this share of the margin that a claim rests on, and no more.
SHARE = 0.25
# This share of how far a place's scores are apart needs no explanation. (Real networks of up to 56 layers are off by a
# millionth of it.)
PLAIN = 4e-6
# Rounding is applied so many times, up and down, and enlarged so much. (Real networks are off by 5 times what a unit of
# float32 does, those with curves, which libraries approximate; by twice that, most of them.)
SAMPLES, TIMES, UNIT_FLOAT32 = 4, 16.0, 2.0**-24
# So many numbers are held at once while that is done, or what one input needs.
AT_ONCE = 2**24


def allowed(ours: Floats, theirs: Floats, sampled: Callable[[Rows], Floats], tells: Callable[[Floats], Rows]) -> Floats:
    """What each of the runtime's outputs, `theirs`, may differ by from `ours`, all (n, outputs).

    `sampled` gives float32's noise (k, outputs) in k of the n places: it is asked for only where outputs differ by more
    than the plain allowance, or where that is too large to tell anything (`tells`, of allowances).
    """
    apart = np.minimum(np.ptp(ours, axis=1, keepdims=True), np.ptp(theirs, axis=1, keepdims=True))
    within = np.broadcast_to(PLAIN * apart, ours.shape).copy()
    plain: Rows = np.all(np.abs(ours - theirs) <= within, axis=1)
    unclear = ~(plain & tells(within)) & np.isfinite(ours).all(1) & np.isfinite(theirs).all(1)
    if unclear.any():
        noise, limits = sampled(unclear), within[unclear]
        within[unclear] = np.where(plain[unclear, None], np.minimum(noise, limits), noise)
    return within


def disagreement(ours: Floats, theirs: Floats, within: Floats) -> Floats:
    """For each input, the largest difference as a share of the tolerance; above 1, or NaN, they disagree."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        difference = np.abs(ours - theirs)
        shares: Floats = np.where(difference == 0, 0.0, difference / within).max(1)
    return shares


def float32_noise(graph: Graph, inputs: Tensor, outputs: Callable[[Tensor], Tensor]) -> Floats:
    """How far float32 may take the outputs of inputs (n, *input_shape), in any order of summation: (n, outputs).

    The graph is run in float64, and each result is moved at random, up or down, by half of `TIMES` units of float32 of
    the numbers that it is the sum of, or up to all of it; every such run is repeated with all signs turned, so that a
    jump nearby is met. Inputs are moved alike. `outputs` makes outputs of scores. Infinite where it may be anything.
    """
    distances = []
    for batch in inputs.split(max(1, AT_ONCE // (2 * SAMPLES * graph.entries))):
        moved = outputs(_moved(graph, batch)).view(2 * SAMPLES, len(batch), -1)
        distances.append((moved - outputs(graph.run(batch))).abs().amax(0))
    noise: Floats = torch.cat(distances).numpy()
    return np.where(np.isfinite(noise), noise, np.inf)


def _moved(graph: Graph, inputs: Tensor) -> Tensor:
    """Scores of inputs (n, *input_shape) in all of the runs, one after another: (2 * SAMPLES * n, classes)."""
    random, offs = torch.Generator().manual_seed(0), graph.in_float32().offs
    values = {0: inputs.repeat(2 * SAMPLES, *[1] * (inputs.dim() - 1))}
    for index, node in enumerate(graph.nodes):
        operands = [values[i] for i in node.inputs]
        result = node.operator.apply(*operands)
        if not node.operator.only_moves:
            sizes = [value.abs() for value in operands]
            terms = result.abs()
            if isinstance(node.operator, Affine):
                shapes = [v.shape[1:] for v in operands]
                terms = node.operator.itself(shapes).spread(*sizes) + graph.constants[index]
                # constants that were put together may have cancelled: the bound of that counts every term of a sum
                terms = terms + offs[index] / (UNIT_FLOAT32 * node.operator.terms(*shapes))
            elif isinstance(node.operator, Sigmoid):  # which runtimes make of numbers near 1, however small it is
                terms = torch.ones_like(result)
            elif len(operands) > 1:  # a product, of which the parts may cancel
                terms = node.operator.apply(*sizes)
            share = 2 * torch.rand(SAMPLES, *result.shape[1:], generator=random, dtype=torch.float64) - 1
            share = (share + share.sign()) / 2  # at least a half, so that few of them cancel
            result = result + TIMES * UNIT_FLOAT32 * terms * torch.cat([share, -share]).repeat_interleave(
                len(inputs), 0
            )
        values[index + 1] = result
        for dead in graph.last_uses[index]:
            del values[dead]
    return values[len(graph.nodes)]


def telling(margin: Floats, noise: Floats, smallest: float = math.inf) -> NDArray[np.bool_]:
    """On which inputs (n) a claim may rest on the comparison: the tolerance is a small share of the margin.

    Where the property does not hold, nothing is claimed. The place with the least margin answers for the `smallest` one
    that is known, wherever that is.
    """
    enough: NDArray[np.bool_] = noise <= SHARE * _rests_on(margin, smallest)
    return enough | (margin <= 0)


def _rests_on(margin: Floats, smallest: float) -> Floats:
    """The margins (n) that claims rest on in each place; infinite where nothing is claimed."""
    claimed = np.where(margin <= 0, np.inf, margin)
    if len(claimed):
        least = int(claimed.argmin())
        claimed[least] = min(claimed[least], smallest)
    return claimed


@dataclass(frozen=True, eq=False)
class Comparison:
    """The network as read and its reference runtime, side by side in some places (n).

    `margin` is the graph's, which a claim rests on, `fails` whether the property does in the runtime. `disagreement` is
    how far their outputs are apart, as a share of what is allowed for float32's noise, and `noise` what that allowance
    can take from the margin. `knows_winner`: it is too small to make another class win. `strength` is where that is on
    a path of one strength, NaN elsewhere.
    """

    margin: Floats
    fails: NDArray[np.bool_]
    disagreement: Floats
    noise: Floats
    knows_winner: NDArray[np.bool_]
    strength: Floats

    @staticmethod
    def joined(several: Sequence[Comparison]) -> Comparison:
        names = [column.name for column in fields(Comparison)]
        return Comparison(*(np.concatenate([getattr(one, name) for one in several]) for name in names))

    @staticmethod
    def of_nothing() -> Comparison:
        nothing = np.empty(0)
        none = np.empty(0, bool)
        return Comparison(nothing, none, nothing, nothing, none, nothing)

    @property
    def outputs_agree(self) -> bool:
        return bool((self.disagreement <= 1).all())

    def tells(self, smallest: float = math.inf) -> bool:
        """Whether it could have failed in every place. `smallest`: the claim's smallest margin, where it is known."""
        return bool(telling(self.margin, self.noise, smallest).all())

    def told_up_to(self, smallest: float = math.inf) -> float:
        """Up to which strength claims may rest on it: the last place before the first in which it says nothing."""
        return self._up_to(telling(self.margin, self.noise, smallest))

    @property
    def winners_told_up_to(self) -> float:
        """The same of claims about the class that wins, whichever it is."""
        return self._up_to(self.knows_winner)

    def _up_to(self, tells: NDArray[np.bool_]) -> float:
        if not self.outputs_agree:
            return 0.0
        if tells.all():
            return math.inf
        before = self.strength[tells & (self.strength < self.strength[~tells].min())]
        return float(before.max(initial=0.0))

    def worst(self, smallest: float = math.inf) -> tuple[float, float]:
        """The noise that was allowed, and the margin, where the first is the largest share of the second."""
        rests = _rests_on(self.margin, smallest)
        with np.errstate(invalid="ignore"):
            place = int(np.nan_to_num(self.noise / rests, nan=np.inf).argmax())
        return float(self.noise[place]), float(rests[place])

    @property
    def holds(self) -> bool:
        """Whether the property holds of the graph in every place."""
        return bool((self.margin > 0).all())

    @property
    def is_consistent(self) -> bool:
        """Whether their outputs agree, and the runtime fails nowhere where the graph does not."""
        return self.outputs_agree and not bool((self.fails & ~(self.margin <= 0)).any())

    @property
    def agrees(self) -> bool:
        """Whether they are consistent, in a way that could have failed."""
        return self.is_consistent and self.tells()
