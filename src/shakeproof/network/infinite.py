"""Where a value is no number, by constants alone: minus infinity under a mask, and what a softmax makes of only that.

What a node stores there is never used: a softmax leaves such entries out, and a guard puts something else in their
place. Anything else that reads them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from shakeproof.operators import Affine, Combine, Operator, Scale


class NoNumbers:
    """By the number of a stored value, what its entries (*shape) are: -inf, NaN, or 0 for those that are numbers."""

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
    return None if bool((found == torch.inf).any()) else found


def after_softmax(entries: Tensor, axis: int) -> Tensor:
    """NaN along an axis on which nothing but minus infinity is left, or NaN already; elsewhere numbers."""
    nothing = (entries == -torch.inf).all(axis, keepdim=True) | entries.isnan().any(axis, keepdim=True)
    return torch.where(nothing, torch.nan, 0.0).expand_as(entries).double()
