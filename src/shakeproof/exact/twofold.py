"""Numbers with twice the digits of float64: a sum of two, high + low, that is not worked out.

Sums and products of float64 numbers are taken apart without error (Dekker 1971, Knuth). What is left out of results is
of the order of UNIT^2 of what goes in, with factors that each function states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The half of a product's digits that fits into one factor.
SPLITTER = 2.0**27 + 1


class Twofold(NamedTuple):
    """high + low; low is at most about half of the last digit of high."""

    high: Tensor
    low: Tensor

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Twofold:
        """Both parts with their entries moved about."""
        return Twofold(move(self.high), move(self.low))

    @staticmethod
    def of(x: Tensor | Twofold) -> Twofold:
        return x if isinstance(x, Twofold) else Twofold(x, torch.zeros_like(x))

    def __neg__(self) -> Twofold:
        return self.mapped(torch.neg)


def two_sum(a: Tensor, b: Tensor) -> Twofold:
    """a + b, exactly."""
    high = a + b
    other = high - a
    return Twofold(high, (a - (high - other)).add_(b - other))


def two_product(a: Tensor, b: Tensor) -> Twofold:
    """a b, exactly, unless it overflows or its last digits underflow."""
    high = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    low = ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low
    return Twofold(high, low)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of two numbers with half of its digits each."""
    scaled = x * SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def added(x: Twofold, y: Twofold) -> Twofold:
    """x + y, off by at most 4 UNIT^2 (|x| + |y|)."""
    total = two_sum(x.high, y.high)
    return two_sum(total.high, total.low.add_(x.low + y.low))


def moved(start: Twofold, way: Twofold, share: Twofold) -> Twofold:
    """start + share * way, off by at most 4 UNIT^2 |start| + 13 UNIT^2 |share * way|."""
    product = two_product(share.high, way.high)
    low = product.low.add_(share.high * way.low).add_(share.low * way.high)
    total = two_sum(start.high, product.high)
    return two_sum(total.high, total.low.add_(start.low).add_(low))


def divided(x: Twofold, y: Twofold) -> Twofold:
    """x / y, off by at most 24 UNIT^2 |x / y|."""
    first = x.high / y.high
    rest = moved(x, -y, Twofold(first, torch.zeros_like(first)))
    return two_sum(first, (rest.high + rest.low) / y.high)
