"""Products from slices against fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from shakeproof.exact.slices import Sliced
from shakeproof.exact.twofold import Twofold
from shakeproof.operators import UNIT, Conv, Linear, SlidingWindow, Unrolled
from shakeproof.operators.conv import unrolled

SQUARE = Fraction(UNIT) ** 2


def float32(*shape: int, generator: torch.Generator, spread: float = 4.0) -> torch.Tensor:
    """Numbers of float32, of very different sizes."""
    size = torch.exp2(-spread * torch.randn(shape, generator=generator).abs())
    return (torch.randn(shape, generator=generator) * size).double()


def conv(groups: int, outputs: int, channels: int, kernel: int, generator, **window) -> Conv:
    weight = float32(groups, outputs, kernel * kernel * channels, generator=generator)
    bias = float32(groups * outputs, generator=generator, spread=8.0) * 10
    return Conv(weight, bias, SlidingWindow((kernel, kernel), **window))


def operators(seed: int) -> dict[str, tuple[Conv | Linear | Unrolled, tuple[int, ...]]]:
    generator = torch.Generator().manual_seed(seed)
    padded = {"pads": (1, 1, 1, 1)}
    small = conv(1, 4, 3, 3, generator, **padded)
    matrix = unrolled(small, torch.Size((1, 2, 2, 3)))
    assert matrix is not None
    dead = conv(1, 4, 3, 1, generator)
    dead.weight[0, 1] = 0  # an output that is nothing but its bias
    return {
        "dense": (Linear(float32(5, 300, generator=generator), float32(5, generator=generator)), (300,)),
        "pointwise": (conv(1, 6, 40, 1, generator), (1, 3, 3, 40)),
        "steps": (conv(1, 4, 3, 3, generator, strides=(2, 2), pads=(0, 0, 1, 1)), (1, 6, 6, 3)),
        "depthwise": (conv(5, 1, 1, 3, generator, **padded), (1, 4, 4, 5)),
        "groups": (conv(2, 3, 4, 3, generator, **padded), (1, 3, 3, 8)),
        "matrix": (matrix, (1, 2, 2, 3)),
        "dead": (dead, (1, 2, 2, 3)),
    }


def values(shape: tuple[int, ...], seed: int) -> Twofold:
    generator = torch.Generator().manual_seed(seed)
    high = torch.randn(2, *shape, generator=generator, dtype=torch.float64) * (
        torch.rand(2, *shape, generator=generator) > 0.3
    )
    return Twofold(high, high * (torch.rand(2, *shape, generator=generator).double() - 0.5) * 2 * UNIT)


def fractions(x: torch.Tensor) -> list[Fraction]:
    return [Fraction(entry) for entry in x.flatten().tolist()]


def truth(operator, x: Twofold) -> list[Fraction]:
    """Its matrix, which is exact as each column is of one weight, times the numbers, plus the bias."""
    count = x.high[0].numel()
    units = torch.eye(count, dtype=torch.float64).view(count, *x.high.shape[1:])
    columns = replace(operator, bias=torch.zeros_like(operator.bias)).apply(units).flatten(1)
    bias = operator.apply(torch.zeros_like(x.high[:1])).flatten()
    found = []
    for row in range(len(x.high)):
        own = [a + b for a, b in zip(fractions(x.high[row]), fractions(x.low[row]), strict=True)]
        for output in range(columns.shape[1]):
            terms = zip(fractions(columns[:, output]), own, strict=True)
            found.append(sum((w * v for w, v in terms if w), start=Fraction(float(bias[output]))))
    return found


def worst(sliced: Sliced, operator, x: Twofold) -> float:
    """How far products are off, as a share of what they claim to be at most."""
    above = sliced.above(x.high)
    found = sliced.apply(x, above)
    scale = (
        torch.ones_like(found.high[:1]) * sliced.scale.view(-1)
        if not isinstance(operator, Unrolled)
        else sliced.scale.view(found.high[:1].shape)
    )
    scales = fractions(scale.expand_as(found.high))
    shares = []
    for high, low, true, scale in zip(
        fractions(found.high), fractions(found.low), truth(operator, x), scales, strict=True
    ):
        allowed = 5 * SQUARE * abs(true) + Fraction(sliced.share) * scale * Fraction(above)
        shares.append(float(abs(high + low - true) / allowed))
    return max(shares)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", list(operators(0)))
def test_products_are_as_good_as_they_say(name, depth):
    for seed in range(3):
        operator, shape = operators(seed)[name]
        assert worst(Sliced.of(operator, depth), operator, values(shape, seed)) <= 1


@pytest.mark.parametrize("name", list(operators(0)))
def test_more_slices_say_more(name):
    operator, _ = operators(0)[name]
    shares = [Sliced.of(operator, depth).share for depth in (1, 2, 3)]
    assert shares[2] < 2.0**-18 * shares[1] < 2.0**-36 * shares[0]
    assert shares[2] < 2.0**-95


@pytest.mark.parametrize("name", ["dense", "pointwise", "depthwise", "groups"])
def test_a_slice_that_is_lost_is_noticed(name):
    operator, shape = operators(1)[name]
    whole = Sliced.of(operator, 3)
    assert len(whole.slices) > 1
    assert worst(replace(whole, slices=whole.slices[:-1]), operator, values(shape, 1)) > 1


@pytest.mark.parametrize("name", ["dense", "pointwise"])
def test_slices_that_are_too_long_are_noticed(name):
    """With more digits than there is room for, what should be exact is not."""
    operator, shape = operators(2)[name]
    right = Sliced.of(operator, 3)
    worse = [worst(replace(right, digits=right.digits + more), operator, values(shape, 2)) for more in (3, 5)]
    assert max(worse) > 1


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("tiny", [2.0**-60, 2.0**-100])
def test_a_slice_of_nothing_keeps_its_place(depth, tiny):
    """Ones, and weights that only a later slice has: as of a network that was pruned to ternary weights."""
    generator = torch.Generator().manual_seed(depth)
    weight = torch.randint(-1, 2, (4, 40), generator=generator).double()
    weight[:, ::7] = tiny * (1 + torch.rand(4, 6, generator=generator)).double()
    operator = Linear(weight, torch.zeros(4, dtype=torch.float64))
    assert worst(Sliced.of(operator, depth), operator, values((40,), depth)) <= 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_biases_far_above_all_weights(depth):
    generator = torch.Generator().manual_seed(depth)
    weight = torch.randn(4, 6, generator=generator).double() * 2.0**-70
    operator = Linear(weight, torch.randn(4, generator=generator, dtype=torch.float64))
    assert worst(Sliced.of(operator, depth), operator, values((6,), depth)) <= 1
