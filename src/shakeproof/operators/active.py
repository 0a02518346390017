"""Products without what is 0: of neurons that are off all along a stretch, there is nothing to multiply.

Behind a ReLU that is half of them, or most. Left out are only inputs that are 0 in every row, so sums have fewer terms
and are otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor

from shakeproof.operators.window import BLOCK_BYTES, SlidingWindow

# Whether most inputs are on is seen from the first rows already.
FIRST_ROWS = 32
# A product for each position pays from such a number of channels on, or for a smaller share of them.
FEW_CHANNELS = 24


def active(x: Tensor, share: float) -> Tensor | None:
    """The numbers of those of the inputs `x` (rows, inputs) that are not 0 in some row; None if they are more than such
    a share of all.
    """
    most = share * x.shape[1]
    for some in (x[:FIRST_ROWS], x) if len(x) > FIRST_ROWS else (x,):
        found = some.any(0).nonzero().squeeze(1)
        if len(found) > most:
            return None
    return found


class Term(NamedTuple):
    """Of a position's output (y, x), what a line of the kernel adds to it: a product of some of the active inputs with
    some of the weights that belong to them.
    """

    y: int
    x: int
    inputs: slice
    weights: slice
    is_first: bool


def multiply_positions(
    window: SlidingWindow, weight: Tensor, bias: Tensor, pictures: Tensor, out: Tensor, on: Tensor
) -> None:
    """A convolution, one position after another, of the entries (n) of pictures that are active: those that a line of
    the kernel sees are neighbours among them.

    weight (kernel entries * channels, outputs), pictures (n, height, width, channels), out (n, down, across, outputs).
    """
    mask = torch.zeros(pictures[0].numel(), dtype=torch.bool, device=on.device)
    mask[on] = True
    mask = mask.view(1, *pictures.shape[1:])
    seen = window.patches(window.padded(mask, False), (out.shape[1], out.shape[2])).flatten(4).flatten(0, 2)
    weights = weight.index_select(0, seen.flatten(1).nonzero()[:, 1])
    terms = list(_terms(window, mask[0], seen.sum(2)))
    step = max(1, BLOCK_BYTES // (max(1, len(on)) * out.element_size()))
    for some, target in zip(pictures.split(step), out.split(step), strict=True):
        inputs = some.flatten(1).index_select(1, on)
        for term in terms:
            made, matrix = target[:, term.y, term.x], inputs[:, term.inputs]
            if term.is_first:
                torch.addmm(bias, matrix, weights[term.weights], out=made)
            else:
                made.addmm_(matrix, weights[term.weights])


def _terms(window: SlidingWindow, mask: Tensor, counts: Tensor) -> Iterator[Term]:
    """What is added up where, given how many entries each line of the kernel sees at each position (positions, lines);
    of what sees nothing, only the first.
    """
    (height, width, _), lines = mask.shape, window.kernel[0]
    before = [0, *mask.sum(2).flatten().cumsum(0).tolist()]
    ends = pairwise([0, *counts.flatten().cumsum(0).tolist()])
    (down, across), (top, left) = window.output_size(height, width), window.pads[:2]
    for y, x in product(range(down), range(across)):
        column, is_first = max(x * window.strides[1] - left, 0), True
        for line, (start, end) in enumerate(islice(ends, lines)):
            if end > start or (is_first and line == lines - 1):
                above = y * window.strides[0] - top + line * window.dilations[0]
                first = before[above * width + column] if end > start else 0
                yield Term(y, x, slice(first, first + end - start), slice(start, end), is_first)
                is_first = False
