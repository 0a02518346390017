"""Aten operators that divide by a computed size, or by that of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shakeproof.network import normalise
from shakeproof.network.build import Builder, Unsupported, Value


def batch_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    epsilon: float,
    cudnn_enabled: bool = False,
) -> Value:
    if training:
        raise Unsupported("training mode")
    weight = torch.ones_like(mean) if weight is None else weight
    bias = torch.zeros_like(mean) if bias is None else bias
    return normalise.batch_norm(b, x, weight, bias, mean, variance, epsilon)


def layer_norm(
    b: Builder,
    x: Value,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    cudnn_enable: bool = False,
) -> Value:
    axes = range(len(x.shape) - len(shape), len(x.shape))
    return normalise.layer_norm(b, x, axes, epsilon, 1.0 if weight is None else weight, 0.0 if bias is None else bias)


def rms_norm(
    b: Builder, x: Value, shape: Sequence[int], weight: Tensor | None = None, epsilon: float | None = None
) -> Value:
    axes = range(len(x.shape) - len(shape), len(x.shape))
    least = float(torch.finfo(torch.float32).eps) if epsilon is None else epsilon
    return normalise.rms_norm(b, x, axes, least, 1.0 if weight is None else weight)


def group_norm(
    b: Builder,
    x: Value,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    cudnn_enabled: bool = False,
) -> Value:
    return normalise.group_norm(b, x, groups, epsilon, 1.0 if weight is None else weight, 0.0 if bias is None else bias)


def instance_norm(
    b: Builder,
    x: Value,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    epsilon: float,
    cudnn_enabled: bool,
) -> Value:
    if use_input_stats or mean is None or variance is None:
        return group_norm(b, x, x.shape[1], weight, bias, epsilon)
    return batch_norm(b, x, weight, bias, mean, variance, False, momentum, epsilon)
