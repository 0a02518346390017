"""Convolutions in blocks, by products or by shifts, are plain convolutions: exactly, where nothing is rounded."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from shakeproof import convolution
from shakeproof.operators import UNIT, Conv, SlidingWindow

pytestmark = pytest.mark.usefixtures("whoever_multiplies")

HEIGHT, WIDTH = 7, 6
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
sliding_windows = st.builds(SlidingWindow, pairs, pairs, pairs, st.tuples(*[st.integers(0, 3)] * 4)).filter(
    lambda window: min(window.output_size(HEIGHT, WIDTH)) > 0
)
# Groups, channels in and out of each: plain, depthwise, with a multiplier, thin, and wide enough for products.
channels = st.sampled_from(
    [(1, 3, 4), (1, 12, 4), (1, 12, 5), (6, 1, 1), (4, 1, 3), (3, 2, 2), (2, 4, 3), (2, 5, 4), (3, 11, 2)]
)
block_sizes = st.sampled_from([1, 1000, 3000, 10_000, 2**21])


def drawn(window: SlidingWindow, sizes: tuple[int, int, int], seed: int, rows: int, whole: bool):
    """A convolution and pictures for it, of small whole numbers or of any."""
    groups, inputs, outputs = sizes
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (4 * made).round() if whole else made

    weight = numbers(groups, outputs, window.kernel[0] * window.kernel[1] * inputs)
    return Conv(weight, numbers(groups * outputs), window), numbers(rows, 2, HEIGHT, WIDTH, groups * inputs)


def in_blocks(size: int):
    """By lines, or by columns where five pictures fit into a block, and there are so many; two with few outputs."""
    return patch.multiple(convolution, BLOCK_BYTES=size, FEW_OUTPUTS=5, MANY_PICTURES=5)


def plain(conv: Conv, x: torch.Tensor) -> torch.Tensor:
    """torch's own convolution, channels first."""
    window, (groups, outputs, _) = conv.window, conv.weight.shape
    top, left, bottom, right = window.pads
    pictures = functional.pad(x.flatten(0, 1).permute(0, 3, 1, 2), (left, right, top, bottom))
    kernel = conv.weight.view(groups * outputs, *window.kernel, -1).permute(0, 3, 1, 2)
    found = functional.conv2d(pictures, kernel, conv.bias, window.strides, 0, window.dilations, groups)
    return found.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


@given(sliding_windows, channels, st.integers(0, 2**32), st.integers(1, 5), block_sizes)
def test_whole_numbers_are_convolved_exactly(window, sizes, seed, rows, block):
    conv, x = drawn(window, sizes, seed, rows, whole=True)
    with in_blocks(block):
        found = conv.apply(x)
        pulled = conv.adjoint(found, [x.shape[1:]])[0]
    assert torch.equal(found, plain(conv, x))
    constant = plain(conv, torch.zeros_like(x))
    assert pulled.shape == x.shape
    assert torch.equal((found * (found - constant)).flatten(1).sum(1), (pulled * x).flatten(1).sum(1))


@settings(max_examples=50)
@given(sliding_windows, channels, st.integers(0, 2**32), block_sizes)
def test_rounding_is_within_what_terms_allow(window, sizes, seed, block):
    conv, x = drawn(window, sizes, seed, 1, whole=False)
    with in_blocks(block):
        found, size = conv.apply(x), conv._magnitude.apply(x.abs()) + conv.bias.abs()
    share = conv.terms() * UNIT / (1 - conv.terms() * UNIT)
    for place in list(product(*map(range, found.shape)))[:: max(1, found.numel() // 20)]:
        off = abs(Fraction(float(found[place])) - exact(conv, x, place))
        assert off <= Fraction(share * float(size[place]) * (1 + 1e-9))


def exact(conv: Conv, x: torch.Tensor, place: tuple[int, ...]) -> Fraction:
    """One entry of the output in fractions."""
    row, batch, down, across, channel = place
    (groups, outputs, _), window = conv.weight.shape, conv.window
    group, inputs = channel // outputs, x.shape[4] // groups
    kernel = conv.weight[group, channel % outputs].view(*window.kernel, inputs)
    total = Fraction(float(conv.bias[channel]))
    for i, j, c in product(*map(range, kernel.shape)):
        line = down * window.strides[0] + i * window.dilations[0] - window.pads[0]
        column = across * window.strides[1] + j * window.dilations[1] - window.pads[1]
        if 0 <= line < HEIGHT and 0 <= column < WIDTH:
            total += Fraction(float(kernel[i, j, c])) * Fraction(float(x[row, batch, line, column, group * inputs + c]))
    return total


@pytest.mark.parametrize("sizes", [(1, 12, 5), (6, 1, 1)])
def test_blocks_of_nothing_but_border(sizes):
    conv, x = drawn(SlidingWindow((1, 3), pads=(3, 0, 3, 1)), sizes, 0, 2, whole=True)
    with in_blocks(1):
        assert torch.equal(conv.apply(x), plain(conv, x))


@pytest.mark.parametrize("sizes", [(1, 3, 4), (1, 12, 5), (6, 1, 1), (2, 5, 4)])
def test_no_rows_at_all(sizes):
    conv, x = drawn(SlidingWindow((3, 3), pads=(1, 1, 1, 1)), sizes, 0, 0, whole=True)
    assert conv.apply(x).shape == (0, 2, HEIGHT, WIDTH, sizes[0] * sizes[2])
