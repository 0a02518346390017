"""Where a value is no number, by constants alone: minus infinity under a mask, and what a softmax makes of only that.

Some write the lowest float32 number instead, which is as good as minus infinity beside numbers of any usual size
(`Softmax` looks whether they are). What a node stores there is never used: a softmax leaves such entries out, and a
guard puts something else in their place. Anything else that reads them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shakeproof.operators import Affine, Combine, Operator, Scale

# Numbers below this are as good as minus infinity.
LOWEST = -1e30
REFUSED = "minus infinity, or a number as low as a mask's, other than under a softmax"


class NoNumbers:
    """By the number of a stored value, what its entries (*shape) are: -inf, as low, NaN, or 0 for usual numbers."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._known

    def note(self, index: int, entries: Tensor) -> None:
        if bool((entries != 0).any()):
            self._known[index] = entries

    def of(self, index: int, shape: torch.Size) -> Tensor:
        return self._known.get(index, torch.zeros(shape, dtype=torch.float64))


def carried(operator: Operator, given: Sequence[Tensor]) -> Tensor | None:
    """What an operator makes of such entries, by the rules of floating point; None if that may not be read."""
    linear: Operator | None = None
    if isinstance(operator, Affine) and operator.only_moves:
        linear = operator.magnitude()
    elif isinstance(operator, Scale):
        linear = replace(operator, offset=torch.zeros_like(operator.offset))
    elif isinstance(operator, Combine):
        linear = operator
    if linear is None:
        return None
    found = linear.apply(*(entries.unsqueeze(0) for entries in given)).squeeze(0)
    return found if bool(((found == 0) | (found < LOWEST) | found.isnan()).all()) else None


def after_softmax(entries: Tensor, axis: int) -> Tensor | None:
    """NaN along an axis on which nothing but minus infinity is left, or NaN already; elsewhere numbers.

    None where nothing but low numbers are left: floats have forgotten what they were added to, and real numbers not.
    """
    nothing = (entries == -torch.inf).all(axis, keepdim=True) | entries.isnan().any(axis, keepdim=True)
    if bool((~nothing & (entries != 0).all(axis, keepdim=True)).any()):
        return None
    return torch.where(nothing, torch.nan, 0.0).expand_as(entries).double()
