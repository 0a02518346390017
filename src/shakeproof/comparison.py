"""The network as it was read beside its runtime: do they agree, and could they have failed to?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from shakeproof.network import SHARE

Floats = NDArray[np.float64]


def telling(margin: Floats, noise: Floats, smallest: float = math.inf) -> NDArray[np.bool_]:
    """In which places (n) a claim may rest on a comparison: what is allowed for noise is a small share of the margin.

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
