"""Pictures of another size: interpolation as exporters mean it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any

import torch

from shakeproof.network.build import Builder, Unsupported, Value

HALF = Fraction(1, 2)
# By coordinate mode, where output i of an axis lies among its inputs, given both sizes and the scale between them; in
# steps that are as exact as the kind of number.
PLACES: dict[str, Callable[[Any, int, int, Any], Any]] = {
    "half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2,
    "pytorch_half_pixel": lambda i, size, wanted, scale: ((2 * i + 1) / scale - 1) / 2 if wanted > 1 else 0 * i,
    "align_corners": lambda i, size, wanted, scale: i * (size - 1) / (wanted - 1) if wanted > 1 else 0 * i,
    "asymmetric": lambda i, size, wanted, scale: i / scale,
}
ROUNDED: dict[str, Callable[[Fraction], int]] = {
    "round_prefer_floor": lambda place: ceil(place - HALF),
    "round_prefer_ceil": lambda place: floor(place + HALF),
    "floor": floor,
    "ceil": ceil,
}
# Of the entries around a place that is so far beyond one of them, the weights: as many before it as after.
Weights = Callable[[Fraction], list[Fraction]]


def places(
    size: int, wanted: int, scale: Fraction, mode: str, number: Callable[[Any], Any] = Fraction
) -> list[Fraction]:
    """Where each of the wanted entries lies among the given ones, worked out in some kind of numbers."""
    if mode not in PLACES:
        raise Unsupported(f"the coordinate transformation {mode}")
    if scale <= 0 or wanted < 1:
        raise Unsupported(f"{size} entries resized to {wanted}")
    found = (PLACES[mode](number(i), size, wanted, number(scale)) for i in range(wanted))
    return [place if isinstance(place, Fraction) else Fraction(float(place)) for place in found]


def nearest(b: Builder, x: Value, axis: int, where: Sequence[Fraction], rounding: str) -> Value:
    """Along an axis, the entry nearest to each place."""
    if rounding not in ROUNDED:
        raise Unsupported(f"the nearest mode {rounding}")
    size = x.shape[x.axis(axis)]
    return b.take(x, axis, [min(max(ROUNDED[rounding](place), 0), size - 1) for place in where])


def interpolated(b: Builder, x: Value, axis: int, where: Sequence[Fraction], weights: Weights) -> Value:
    """Along an axis, at each place the weighted sum of the entries around it; the last ones go on beyond the ends.

    Weights that float64 rounds are noted as rounded.
    """
    size = x.shape[x.axis(axis)]
    shares = [weights(place - floor(place)) for place in where]
    taps = len(shares[0])
    sources = [[min(max(floor(place) + 1 - taps // 2 + t, 0), size - 1) for place in where] for t in range(taps)]
    rounded = any(Fraction(float(share)) != share for row in shares for share in row)
    weight = torch.tensor([[float(row[t]) for row in shares] for t in range(taps)], dtype=torch.float64)
    return b.resample(x, axis, sources, weight, roundings=int(rounded))


def linear(share: Fraction) -> list[Fraction]:
    return [1 - share, share]


def cubic(share: Fraction, bend: Fraction = Fraction(-3, 4)) -> list[Fraction]:
    """Keys' convolution: R. G. Keys, Cubic Convolution Interpolation for Digital Image Processing. IEEE 1981."""

    def near(t: Fraction) -> Fraction:
        return (bend + 2) * t**3 - (bend + 3) * t**2 + 1

    def far(t: Fraction) -> Fraction:
        return bend * (t**3 - 5 * t**2 + 8 * t - 4)

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]
