"""Sums of products with more digits than float64 has, by products of matrices in float64 that are free of rounding.

Numbers are cut into slices of so few digits that sums of products of two slices are exact, in whatever order they are
added up (Ozaki, Ogita, Oishi, Rump: Error-free transformations of matrix multiplication, 2012).
With weights W = W_1 + W_2 + ... and values x = x_1 + x_2 + ..., each slice so many digits below the one before it, what
`depth` slices make of one another is exact. What is left of W x is smaller than it by all of their digits, and computed
as usual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, floor, log2

import torch
from torch import Tensor

from shakeproof.exact.twofold import Twofold
from shakeproof.operators import UNIT, Conv, Linear, Unrolled

Products = Conv | Linear | Unrolled
# Float64 has so many digits; and what is smaller than this is left to underflow.
DIGITS, LEAST = 53, 2.0**-400
# Rows are worked on in parts of about so many bytes, which stay in the cache.
PART_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class Sliced:
    """An operator on twofold values, its weights cut into slices of so many `digits`, as far as there is anything.

    `scale` (as the bias) is a power of 2 above each output's weights. Absolute weights of an output in one slice add up
    to at most `sums` times that, less the digits of the slices before.
    """

    slices: tuple[Products, ...]
    bias: Tensor
    scale: Tensor
    digits: int
    depth: int
    sums: float

    @staticmethod
    def of(operator: Products, depth: int) -> Sliced:
        """With room for all that is added up exactly: depth products of slices at once, and the bias."""
        operator = operator.laid_out() if isinstance(operator, Conv) else operator
        weight = operator.weight
        # an output that is little more than its bias has the bias's scale, or all values would have to be below that
        largest = torch.maximum(weight.abs().amax(-1, keepdim=True), operator.bias.abs().view_as(weight[..., :1]) / 64)
        scale = torch.exp2(torch.ceil(torch.log2(largest.clamp(min=LEAST))))
        digits = floor((DIGITS - log2(depth + 1)) / 2)
        while True:
            parts = _cut_weights(weight, scale, digits, depth)
            sums = max(
                float((part.abs().sum(-1, keepdim=True) / scale).max()) * 2.0 ** (digits * i) for i, part in parts
            )
            if (depth + 1) * sums * 2.0 ** (2 * digits) <= 2.0**DIGITS:
                break
            digits -= 1
        nothing = torch.zeros_like(operator.bias)
        slices = tuple(replace(operator, weight=part, bias=nothing) for _, part in parts)
        return Sliced(slices, operator.bias, scale.flatten(), digits, depth, sums)

    @property
    def share(self) -> float:
        """What an output of scale 1 is off by, for values of up to 1, beside 5 UNIT^2 of itself."""
        terms = self.slices[0].weight.shape[-1] + len(self.slices) + 8
        sums = self.sums + 2.0**-self.digits  # what is left of a bias takes part in the last sum, too
        return terms * UNIT * len(self.slices) * sums * 2.0 ** (-self.digits * self.depth)

    def above(self, x: Tensor) -> float:
        """A power of 2 above all values, and high enough for the biases to fit in with them."""
        top = max(abs(float(end)) for end in torch.aminmax(x)) if x.numel() else 0.0
        biases = float((self.bias.abs() / self.scale).max()) / self.sums if self.sums else 0.0
        return 2.0 ** ceil(log2(max(top, biases, LEAST)))

    def apply(self, x: Twofold, above: float) -> Twofold:
        """For all rows, whose values are below a power of 2: off by at most 5 UNIT^2 of the output, and by `share` of
        scale and that.
        """
        step = max(1, PART_BYTES // (8 * x.high[:1].numel()))
        parts = [
            self._of_part(Twofold(*part), above) for part in zip(x.high.split(step), x.low.split(step), strict=True)
        ]
        return parts[0] if len(parts) == 1 else Twofold(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _of_part(self, x: Twofold, above: float) -> Twofold:
        values, rests = _cut_values(x, above, self.digits, self.depth)
        *biases, left = self._cut_bias(above)
        total = self._products([(0, values[0])], biases[0])
        rest = self._products([(i, rests[self.depth - i]) for i in range(len(self.slices))], left)
        for level in range(1, self.depth):
            pairs = [(i, values[level - i]) for i in range(min(level + 1, len(self.slices)))]
            total, error = _with_less(total, self._products(pairs, biases[level]))
            rest.add_(error)
        return _with_less(total, rest)

    def _cut_bias(self, above: float) -> Iterator[Tensor]:
        """What of the bias is added to each level of products, and to what is left."""
        left = self.bias
        for level in range(self.depth):
            grid = self.scale * (above * 2.0 ** (-self.digits * (level + 2)))
            part = torch.round(left / grid) * grid
            yield part
            left = left - part
        yield left

    def _products(self, pairs: list[tuple[int, Tensor]], bias: Tensor) -> Tensor:
        """The sum of slices of the weights, by number, with values, and a bias; all exact, or none."""
        (first, x), *others = pairs
        operator = replace(self.slices[first], bias=bias)
        return reduce(Tensor.add_, (self.slices[i].apply(own) for i, own in others), operator.apply(x))


def _cut_weights(weight: Tensor, scale: Tensor, digits: int, depth: int) -> list[tuple[int, Tensor]]:
    """`depth` slices, and what is left; with their numbers, as far as there is anything."""
    parts = list[Tensor]()
    for number in range(depth):
        grid = scale * 2.0 ** (-digits * (number + 1))
        parts.append(torch.round(weight / grid) * grid)  # exact: the grid is a power of 2
        weight = weight - parts[-1]
    parts.append(weight)
    while len(parts) > 1 and not bool(parts[-1].any()):  # one of nothing in between is kept: places are numbers
        parts.pop()
    return list(enumerate(parts))


def _cut_values(x: Twofold, above: float, digits: int, depth: int) -> tuple[list[Tensor], list[Tensor]]:
    """`depth` slices, and what is left before the first of them, after the first, and so on."""
    rest, slices, rests = x.high, [], [x.high]
    for number in range(depth):
        shift = 1.5 * 2.0 ** (DIGITS - 1 - digits * (number + 1)) * above
        slices.append((rests[-1] + shift).sub_(shift))  # to the nearest number on the grid
        rest = rest - slices[-1]
        rests.append(rest + x.low)
    return slices, rests


def _with_less(a: Tensor, b: Tensor) -> Twofold:
    """a + b, exactly, where a is a whole multiple of the last digit of b; b is overwritten.

    Then so is their sum, and either it needs no rounding, or it is rounded by one such digit and no more.
    """
    total = a + b
    return Twofold(total, b.sub_(total - a))
