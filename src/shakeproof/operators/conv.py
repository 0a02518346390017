"""Convolution and average pooling on pictures with channels last: (rows, batch, height, width, channels)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.operators.base import Affine

Pair = tuple[int, int]
# Patches are laid out for this many bytes at a time, so that the product reads them from the cache.
PATCH_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Window:
    """How a kernel walks over a picture: kernel size, strides, dilations; pads are (top, left, bottom, right)."""

    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    def padded(self, x: Tensor, value: float) -> Tensor:
        """`x` (n, height, width, channels) with its border added."""
        top, left, bottom, right = self.pads
        if not any(self.pads):
            return x.contiguous()
        return functional.pad(x, (0, 0, left, right, top, bottom), value=value)

    def output_size(self, height: int, width: int) -> Pair:
        """The number of positions, down and across, for an unpadded picture size."""
        top, left, bottom, right = self.pads
        sizes = (height + top + bottom, width + left + right)
        down, across = (
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation in zip(sizes, self.kernel, self.strides, self.dilations, strict=True)
        )
        return down, across

    def padded_entries(self, shape: torch.Size) -> int:
        """How many entries a padded value has; `shape` (batch, height, width, channels)."""
        top, left, bottom, right = self.pads
        return shape[0] * (shape[1] + top + bottom) * (shape[2] + left + right) * shape[3]

    def patch_entries(self, shape: torch.Size) -> int:
        """How many entries all patches have together; `shape` (batch, height, width, channels)."""
        down, across = self.output_size(shape[1], shape[2])
        return shape[0] * down * across * self.kernel[0] * self.kernel[1] * shape[3]

    def patches(self, x: Tensor, size: Pair) -> Tensor:
        """A view of an already padded `x`: (n, down, across, kernel height, kernel width, channels)."""
        n, down, across, channels = x.stride()
        return x.as_strided(
            (x.shape[0], *size, *self.kernel, x.shape[3]),
            (
                n,
                down * self.strides[0],
                across * self.strides[1],
                down * self.dilations[0],
                across * self.dilations[1],
                channels,
            ),
        )

    def shifted(self, x: Tensor, size: Pair) -> list[Tensor]:
        """Views of an already padded `x`, one per kernel entry: each (n, down, across, channels)."""
        patches = self.patches(x, size)
        return [patches[:, :, :, i, j] for i in range(self.kernel[0]) for j in range(self.kernel[1])]


@dataclass(frozen=True, eq=False)
class Conv(Affine):
    """Cross-correlation; weight (groups, kernel height * kernel width * channels in, channels out), bias (channels)."""

    weight: Tensor
    bias: Tensor
    window: Window

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        n, (height, width, channels) = x.shape[0] * x.shape[1], x.shape[2:]
        groups, depth, outputs = self.weight.shape
        size = self.window.output_size(height, width)
        padded = self.window.padded(x.reshape(n, height, width, channels), 0.0)
        out = x.new_empty(n, *size, groups * outputs)
        step = max(1, PATCH_BYTES // (size[0] * size[1] * depth * groups * x.element_size()))
        for start in range(0, n, step):
            part = self.window.patches(padded[start : start + step], size)
            for group in range(groups):
                inputs_of_group = part[..., group * channels // groups : (group + 1) * channels // groups]
                outputs_of_group = slice(group * outputs, (group + 1) * outputs)
                product = torch.addmm(
                    self.bias[outputs_of_group], inputs_of_group.reshape(-1, depth), self.weight[group]
                )
                out[start : start + step, :, :, outputs_of_group] = product.view(-1, *size, outputs)
        return out.view(*x.shape[:2], *size, groups * outputs)

    def workspace(self, *inputs: torch.Size) -> int:
        return 8 * self.window.padded_entries(inputs[0])


@dataclass(frozen=True, eq=False)
class AveragePool(Affine):
    """The mean under a window; `divisor` (down, across, 1) is how many entries count at each position."""

    window: Window
    divisor: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        flat = x.flatten(0, 1)
        size = (self.divisor.shape[0], self.divisor.shape[1])
        total = torch.stack(self.window.shifted(self.window.padded(flat, 0.0), size)).sum(0)
        return (total / self.divisor).view(*x.shape[:2], *total.shape[1:])

    def workspace(self, *inputs: torch.Size) -> int:
        return 8 * (self.window.padded_entries(inputs[0]) + self.window.patch_entries(inputs[0]))
