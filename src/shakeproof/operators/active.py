"""Products without what is 0: of neurons that are off all along a stretch, there is nothing to multiply.

Behind a ReLU that is half of them, or most. Left out are only inputs that are 0 in every row, so sums have fewer terms
and are otherwise the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shakeproof.operators.window import BLOCK_BYTES, SlidingWindow
from shakeproof.products import add_product

# Whether most inputs are on is seen from the first rows already.
FIRST_ROWS = 32
# Of what a product takes for an entry in all positions together, one for single positions takes such a share, more if
# it has few channels: as measured. Picking its weights takes as long as so many rows; and all should be worth it.
OF_MANY_CHANNELS, OF_FEW_CHANNELS, ROWS_OF_WEIGHTS, WORTH_IT = 0.6, 45.0, 90.0, 0.9


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


def worthwhile_share(pictures: int, channels: int) -> float:
    """What share of their entries may be active for `multiply_positions` to be faster than a convolution of all."""
    return WORTH_IT / (OF_MANY_CHANNELS + OF_FEW_CHANNELS / channels + ROWS_OF_WEIGHTS / pictures)


def multiply_positions(
    window: SlidingWindow, weight: Tensor, bias: Tensor, pictures: Tensor, out: Tensor, on: Tensor
) -> None:
    """A convolution, one position after another, of the entries of pictures whose numbers are `on`: of these, the ones
    that a line of the kernel sees are neighbours, if it has no gaps.

    weight (kernel entries * channels, outputs), pictures (n, height, width, channels), out (n, down, across, outputs).
    """
    (_, height, width, channels), (_, down, across, _) = pictures.shape, out.shape
    mask = torch.zeros(height * width * channels, dtype=torch.bool, device=on.device)
    mask[on] = True
    before = [0, *mask.view(-1, channels).sum(1).cumsum(0).tolist()]  # how many are on before each pixel
    padded = window.padded(mask.view(1, height, width, channels), 0.0)
    seen = window.patches(padded, (down, across)).flatten(4).flatten(0, 2)  # (positions, lines, entries of a line)
    by_line = seen.sum(2)
    entries = seen.flatten(1).nonzero()[:, 1].split(by_line.sum(1).tolist())
    positions = list(zip(entries, by_line.tolist(), strict=True))
    step = max(1, BLOCK_BYTES // (max(1, len(on)) * out.element_size()))
    for some, target in zip(pictures.split(step), out.split(step), strict=True):
        inputs = some.flatten(1).index_select(1, on)
        for number, (kept, counts) in enumerate(positions):
            y, x = divmod(number, across)
            made, weights, start = target[:, y, x].copy_(bias), weight.index_select(0, kept), 0
            above, left = y * window.strides[0] - window.pads[0], max(x * window.strides[1] - window.pads[1], 0)
            for line, count in enumerate(counts):
                if count:
                    first = before[(above + line * window.dilations[0]) * width + left]
                    add_product(made, inputs[:, first : first + count], weights[start : start + count])
                    start += count
