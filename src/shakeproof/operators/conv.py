"""Convolution and average pooling on pictures with channels last: (rows, batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.operators.base import Affine, Operator

Pair = tuple[int, int]
# Patches are laid out for this many bytes at a time, so that the product reads them from the cache.
PATCH_BYTES = 4 * 2**20
LARGEST_UNROLLED = 2**24


@dataclass(frozen=True)
class SlidingWindow:
    """How a kernel walks over a picture: kernel size, strides, dilations; pads are (top, left, bottom, right)."""

    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == (1, 1) and not any(self.pads)

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

    def scattered(self, parts: Iterable[Tensor], height: int, width: int) -> Tensor:
        """The transpose of `padded` and `shifted`: a picture to which each kernel entry's part has been added.

        Each part is (n, down, across, channels).
        """
        top, left, bottom, right = self.pads
        picture: Tensor | None = None
        views: list[Tensor] = []
        for number, part in enumerate(parts):
            if picture is None:
                picture = part.new_zeros(part.shape[0], top + height + bottom, left + width + right, part.shape[3])
                views = self.shifted(picture, (part.shape[1], part.shape[2]))
            views[number].add_(part)
        assert picture is not None
        return picture[:, top : top + height, left : left + width]


@dataclass(frozen=True, eq=False)
class Conv(Affine):
    """Cross-correlation; weight (groups, channels out, kernel height * kernel width * channels in), bias (channels).

    Patches are laid out as the rows of a matrix, a few pictures at a time so that they stay in the cache, and
    multiplied by the weights. (A matrix product reads weights stored by output a quarter faster than stored by input.)
    """

    weight: Tensor
    bias: Tensor
    window: SlidingWindow

    def apply(self, *inputs: Tensor) -> Tensor:
        pictures = inputs[0].flatten(0, 1)
        size = self.window.output_size(pictures.shape[1], pictures.shape[2])
        out = pictures.new_empty(pictures.shape[0], *size, self.bias.numel())
        if self.window.is_pointwise and len(self.weight) == 1:
            rows = pictures[:, :: self.window.strides[0], :: self.window.strides[1]].flatten(0, 2)
            torch.mm(rows, self.weight[0].t(), out=out.flatten(0, 2))
        else:
            self._multiply_patches(pictures, out)
        return out.add_(self.bias).view(*inputs[0].shape[:2], *out.shape[1:])

    def terms(self, *inputs: torch.Size) -> int:
        return self.weight.shape[2] + 1

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs(), bias=torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        batch, height, width, channels = shapes[0]
        groups, outputs, depth = self.weight.shape
        rows = coefficients.flatten(0, 1)
        step = max(1, PATCH_BYTES // (rows[0, ..., 0].numel() * groups * depth * rows.element_size()))
        parts = []
        for part in rows.split(step):
            by_group = part.flatten(0, 2).unflatten(-1, (groups, outputs)).transpose(0, 1)
            pulled = torch.bmm(by_group, self.weight).view(groups, *part.shape[:3], -1, channels // groups)
            entries = (entry.movedim(0, -2).flatten(-2) for entry in pulled.unbind(-2))
            parts.append(self.window.scattered(entries, height, width))
        return (torch.cat(parts).view(len(coefficients), batch, height, width, channels),)

    def _multiply_patches(self, pictures: Tensor, out: Tensor) -> None:
        groups, outputs, depth = self.weight.shape
        n, down, across, _ = out.shape
        channels = pictures.shape[3]
        step = min(n, max(1, PATCH_BYTES // (down * across * groups * depth * pictures.element_size())))
        top, left, bottom, right = self.window.pads
        height, width = pictures.shape[1:3]
        border = pictures.new_zeros(step, top + height + bottom, left + width + right, channels)
        inner = border[:, top : top + height, left : left + width]
        patches = pictures.new_empty(groups, step * down * across, depth)
        for start in range(0, n, max(step, 1)):
            part = pictures[start : start + step]
            count = len(part) * down * across
            inner[: len(part)] = part
            seen = self.window.patches(border[: len(part)], (down, across))
            by_group = seen.unflatten(-1, (groups, channels // groups)).movedim(-2, 0)
            patches[:, :count].view(by_group.shape).copy_(by_group)
            target = out[start : start + step].flatten(0, 2)
            if groups == 1:
                torch.mm(patches[0, :count], self.weight[0].t(), out=target)
            else:
                products = torch.bmm(patches[:, :count], self.weight.transpose(1, 2))
                target.unflatten(-1, (groups, outputs)).copy_(products.transpose(0, 1))


@dataclass(frozen=True, eq=False)
class Unrolled(Affine):
    """A convolution on a picture so small that most of its patches are border, as one matrix: (outputs, inputs)."""

    weight: Tensor
    bias: Tensor
    shape: tuple[int, ...]

    def apply(self, *inputs: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, inputs[0].flatten(1), self.weight.t())
        return rows.view(-1, *self.shape)

    def terms(self, *inputs: torch.Size) -> int:
        return self.weight.shape[1] + 1

    def magnitude(self) -> Operator:
        return replace(self, weight=self.weight.abs(), bias=torch.zeros_like(self.bias))

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        return ((coefficients.flatten(1) @ self.weight).view(-1, *shapes[0]),)


def unrolled(conv: Conv, shape: torch.Size) -> Unrolled | None:
    """The convolution as a matrix, if that takes fewer multiplications; `shape` (batch, height, width, channels)."""
    down, across = conv.window.output_size(shape[1], shape[2])
    outputs = shape[0] * down * across * conv.bias.numel()
    if shape.numel() >= conv.weight.shape[2] or shape.numel() * outputs > LARGEST_UNROLLED:
        return None
    units = torch.eye(shape.numel(), dtype=conv.weight.dtype, device=conv.weight.device).view(-1, *shape)
    columns = replace(conv, bias=torch.zeros_like(conv.bias)).apply(units).reshape(-1, outputs)
    positions = outputs // conv.bias.numel()
    return Unrolled(
        columns.t().contiguous(),
        conv.bias.repeat(positions),
        (shape[0], down, across, conv.bias.numel()),
        roundings=conv.roundings,
        off=conv.off,
    )


@dataclass(frozen=True, eq=False)
class AveragePool(Affine):
    """The mean under a window; `divisor` (down, across, 1) is how many entries count at each position."""

    window: SlidingWindow
    divisor: Tensor

    def apply(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        flat = x.flatten(0, 1)
        size = (self.divisor.shape[0], self.divisor.shape[1])
        first, *others = self.window.shifted(self.window.padded(flat, 0.0), size)
        total = first.clone(memory_format=torch.contiguous_format)
        for view in others:
            total.add_(view)
        return total.div_(self.divisor).view(*x.shape[:2], *total.shape[1:])

    def terms(self, *inputs: torch.Size) -> int:
        return self.window.kernel[0] * self.window.kernel[1] + 1

    def magnitude(self) -> Operator:
        return self

    def adjoint(self, coefficients: Tensor, shapes: Sequence[torch.Size]) -> tuple[Tensor, ...]:
        batch, height, width, channels = shapes[0]
        share = coefficients.flatten(0, 1) / self.divisor
        picture = self.window.scattered([share] * (self.window.kernel[0] * self.window.kernel[1]), height, width)
        return (picture.reshape(len(coefficients), batch, height, width, channels),)

    def workspace(self, *inputs: torch.Size) -> int:
        return 8 * self.window.padded_entries(inputs[0])
