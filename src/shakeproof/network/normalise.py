"""Normalisations, by constants or by a computed size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.compose import norm, power
from shakeproof.operators import CONSTANT_ROUNDINGS


def batch_norm(
    b: Builder, x: Value, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, epsilon: float
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, by channel."""
    b.note_computed()
    factor = weight / torch.sqrt(variance + epsilon)
    moved = mean * factor
    along = (-1,) + (1,) * (len(x.shape) - 2)
    constants = (factor, bias - moved, bias.abs() + moved.abs())
    factor, offset, terms = (constant.reshape(along) for constant in constants)
    return b.scale(x, factor, offset, CONSTANT_ROUNDINGS, terms)


def layer_norm(
    b: Builder, x: Value, axes: Sequence[int], epsilon: float, weight: Tensor | float, bias: Tensor | float
) -> Value:
    """(x - mean) / sqrt(variance + epsilon), scaled and shifted; mean and variance are over some axes."""
    return b.scale(b.normalise(x, axes, epsilon), weight, bias)


def group_norm(
    b: Builder, x: Value, groups: int, epsilon: float, weight: Tensor | float, bias: Tensor | float
) -> Value:
    """Channels (axis 1) in so many groups, each normalised on its own; weight and bias are by channel."""
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        raise Unsupported(f"{channels} channels in {groups} groups")
    grouped = b.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    even = b.reshape(b.normalise(grouped, range(2, len(grouped.shape)), epsilon), x.shape)
    along = (-1,) + (1,) * (len(x.shape) - 2)
    factor, offset = (torch.as_tensor(c, dtype=torch.float64).expand(channels).reshape(along) for c in (weight, bias))
    return b.scale(even, factor, offset)


def divided_by_norm(b: Builder, x: Value, axis: int, order: float) -> Value:
    return b.multiply(x, power(b, norm(b, x, [axis], True, order), -1.0))
