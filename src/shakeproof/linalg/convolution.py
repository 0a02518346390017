"""Convolution of pictures with channels last, by whichever way is the fastest: the same sums in other orders.

By matrix products, of columns of positions or of lines of the kernel, or by adding up shifted pictures where groups are
too thin for that (depthwise convolutions); all in blocks that stay in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.linalg.products import add_product, empty_products, is_by_rows
from shakeproof.linalg.windows import BLOCK_BYTES, SlidingWindow, blocks

# With no more channels than this in each group, a product is slower than adding up shifted pictures.
THIN_GROUP = 4
# With fewer outputs than this, a kernel is better applied in two neighbouring positions at once.
FEW_OUTPUTS = 16
# Of so many pictures at least, which fit into a block, columns of positions are worth products of their own.
MANY_PICTURES = 48
# Of no more weights than this a copy is kept, by rows.
LARGEST_COPIED = 2**18


@dataclass(frozen=True, eq=False)
class Convolution:
    """Cross-correlation; weight (groups, channels out, kernel height * kernel width * channels in), bias (channels)."""

    weight: Tensor
    bias: Tensor
    window: SlidingWindow

    def apply(self, pictures: Tensor) -> Tensor:
        """Pictures (n, height, width, channels) to (n, down, across, channels)."""
        size = self.window.output_size(pictures.shape[1], pictures.shape[2])
        out = pictures.new_empty(pictures.shape[0], *size, self.bias.numel())
        if self._is_thin:
            self._add_shifted(pictures, out)
        elif self.window.is_pointwise and len(self.weight) == 1:
            self._multiply_pixels(pictures, out)
        elif not self._has_long_columns(pictures, out):
            self._multiply_lines(pictures, out)
        elif self.weight.shape[1] < FEW_OUTPUTS and out.shape[2] % 2 == 0:
            by_pairs = out.view(*out.shape[:2], out.shape[2] // 2, 2 * self.bias.numel())
            self._doubled._multiply_columns(pictures, by_pairs)
        else:
            self._multiply_columns(pictures, out)
        return out

    def adjoint(self, coefficients: Tensor, size: torch.Size) -> Tensor:
        """Coefficients of pictures of a size (height, width, channels) from those of the output."""
        height, width, channels = size
        groups, outputs, depth = self.weight.shape
        if self._is_thin:
            pictures = coefficients.new_empty(len(coefficients), height, width, channels)
            self._scatter_shifted(coefficients, pictures)
            return pictures
        step = max(1, BLOCK_BYTES // (coefficients[0, ..., 0].numel() * groups * depth * coefficients.element_size()))
        parts = []
        for part in coefficients.split(step):
            by_group = part.flatten(0, 2).unflatten(-1, (groups, outputs)).transpose(0, 1)
            pulled = part.new_empty(groups, by_group.shape[1], depth)
            for target, of_group, weight in zip(pulled, by_group, self.weight, strict=True):
                add_product(target, of_group, weight, is_fresh=True)
            by_entry = pulled.view(groups, *part.shape[:3], -1, channels // groups).unbind(-2)
            entries = (entry.movedim(0, -2).flatten(-2) for entry in by_entry)
            parts.append(self.window.scattered(entries, height, width))
        return torch.cat(parts)

    @property
    def _is_thin(self) -> bool:
        return len(self.weight) > 1 and self.weight.shape[2] <= THIN_GROUP * prod(self.window.kernel)

    @cached_property
    def _doubled(self) -> Convolution:
        """The same for two neighbouring positions at once: a kernel one step wider, with twice as many outputs."""
        (tall, wide), (down, step) = self.window.kernel, self.window.strides
        by_entry = self.weight.unflatten(2, (tall, wide, -1))
        both = [functional.pad(by_entry, (0, 0, place * step, (1 - place) * step)).flatten(2) for place in (0, 1)]
        window = replace(self.window, kernel=(tall, wide + step), strides=(down, 2 * step))
        return Convolution(torch.cat(both, 1), self.bias.repeat(2), window)

    def _entry_weights(self) -> Tensor:
        """By channel of a group and kernel entry, the weight in each output: (channels, kernel entries, outputs)."""
        by_entry: Tensor = self.weight.unflatten(2, (prod(self.window.kernel), -1))
        return by_entry.permute(3, 2, 0, 1).flatten(2).contiguous()

    def _add_shifted(self, pictures: Tensor, out: Tensor) -> None:
        """One kernel entry after another, on the part of the picture that it is on: there is no border."""
        repeats, weights = self.weight.shape[1], self._entry_weights()
        line_bytes = max(prod(pictures.shape[1:]) * repeats, prod(out.shape[1:])) // out.shape[1] * out.element_size()
        for rows, lines in blocks(len(out), out.shape[1], line_bytes):
            seen, above = self.window.seen_lines(lines, pictures.shape[1])
            target = out[rows, lines]
            target.copy_(self.bias.expand_as(target))
            for channel, entries in enumerate(weights):
                part = pictures[rows, seen, :, channel :: len(weights)]
                part = part if repeats == 1 else part.repeat_interleave(repeats, 3)
                for (at, on), weight in zip(self.window.overlaps(part, target, above), entries, strict=True):
                    at.addcmul_(on, weight)

    def _scatter_shifted(self, coefficients: Tensor, pictures: Tensor) -> None:
        """The transpose of `_add_shifted`, without the bias."""
        repeats, weights = self.weight.shape[1], self._entry_weights()
        height, width = pictures.shape[1:3]
        step = max(1, BLOCK_BYTES // (height * width * coefficients.shape[3] * pictures.element_size()))
        for part, target in zip(coefficients.split(step), pictures.split(step), strict=True):
            for channel, entries in enumerate(weights):
                total = part.new_zeros(len(part), height, width, part.shape[3])
                places = self.window.overlaps(total, part, self.window.pads[0])
                for (at, on), weight in zip(places, entries, strict=True):
                    on.addcmul_(at, weight)
                target[..., channel :: len(weights)] = total.unflatten(3, (-1, repeats)).sum(4)

    def _multiply_pixels(self, pictures: Tensor, out: Tensor) -> None:
        down, across = self.window.strides
        pixels, target = pictures[:, ::down, ::across].flatten(0, 2), out.flatten(0, 2)
        pixel_bytes = (pixels.shape[1] + target.shape[1]) * out.element_size()
        for some, _ in blocks(len(pixels), 1, pixel_bytes):
            add_product(target[some].copy_(self.bias), pixels[some], self._by_entry[0])

    def _has_long_columns(self, pictures: Tensor, out: Tensor) -> bool:
        fitting = BLOCK_BYTES // (max(prod(pictures.shape[1:]), prod(out.shape[1:])) * out.element_size())
        is_whole = len(self.weight) == 1 and self.window.dilations[1] == 1
        return is_whole and min(len(pictures), fitting) >= MANY_PICTURES

    @property
    def _by_entry(self) -> Tensor:
        """The weights (groups, entries, outputs), as they are multiplied fastest."""
        is_copied = is_by_rows() and self.weight.numel() <= LARGEST_COPIED
        return self._copied_by_entry if is_copied else self.weight.transpose(1, 2)

    @cached_property
    def _copied_by_entry(self) -> Tensor:
        return self.weight.transpose(1, 2).contiguous()

    def _multiply_columns(self, pictures: Tensor, out: Tensor) -> None:
        """One column of positions after another: what a line of the kernel sees there lies side by side in the picture,
        so that nothing is put together for it, and nothing is multiplied with the border.
        """
        (_, height, width, channels), (_, tall, across, outputs) = pictures.shape, out.shape
        (lines, wide), (stride, step), left = self.window.kernel, self.window.strides, self.window.pads[1]
        seen, by_line = self.window.lines_seen(slice(0, tall), height), self._by_entry[0].unflatten(0, (lines, -1))
        many_first = sorted(range(lines), key=lambda line: seen[line][0].start - seen[line][0].stop)
        fitting = BLOCK_BYTES // (max(height * width * channels, tall * across * outputs) * out.element_size())
        some = (fitting - 1) | 1  # odd, or all outputs of a position would be in the same few lines of the cache
        for part, target in zip(pictures.split(some), out.split(some), strict=True):
            count = len(part)
            strips = [part[:, phase::stride].transpose(0, 1).flatten(2).flatten(0, 1) for phase in range(stride)]
            product = empty_products(part, across, tall * count, outputs)
            for column, made in enumerate(product):
                first, last = max(left - column * step, 0), min(wide, width + left - column * step)
                start = (column * step - left) * channels
                begun = first < last and seen[many_first[0]][0] == slice(0, tall)
                if not begun:
                    made.zero_()
                for line in many_first if first < last else ():
                    at, on = seen[line]
                    above, phase = divmod(on.start, stride)
                    rows = slice(above * count, (above + at.stop - at.start) * count)
                    matrix = strips[phase][rows, start + first * channels : start + last * channels]
                    weight = by_line[line, first * channels : last * channels]
                    is_fresh = begun and line == many_first[0]
                    add_product(made[at.start * count : at.stop * count], matrix, weight, is_fresh)
            by_position = product.unflatten(1, (tall, count))
            torch.add(by_position.permute(2, 1, 0, 3), self.bias, out=target)

    def _multiply_lines(self, pictures: Tensor, out: Tensor) -> None:
        """One line of the kernel after another: what it sees at every position is a matrix, times its weights.

        Lines come first in that matrix, so that what the next line of the kernel sees is the same, some lines on. (In
        steps of two, it is every other line.)
        """
        tall, stride, dilation = self.window.kernel[0], self.window.strides[0], self.window.dilations[0]
        parts = self._by_entry.unflatten(1, (tall, -1)).unbind(1)
        across, groups, outputs = out.shape[2], *self.weight.shape[:2]
        line_bytes = stride * across * parts[0].shape[1] * groups * out.element_size()
        for rows, lines in blocks(len(out), out.shape[1], line_bytes):
            count = lines.stop - lines.start
            needed = count + (tall - 1) * dilation // stride
            seen = self._line_patches(self._padded_strip(pictures[rows], lines, needed * stride), needed, across)
            width = seen.shape[3] * across
            product = empty_products(pictures, groups, count * width, outputs)
            on_picture = [at for at, _ in self.window.lines_seen(lines, pictures.shape[1])]  # the rest is border
            widest = max(range(tall), key=lambda number: on_picture[number].stop - on_picture[number].start)
            if on_picture[widest] != slice(0, count):
                product.zero_()
            for number in sorted(range(tall), key=lambda number: number != widest):
                at, (first, phase) = on_picture[number], divmod(number * dilation, stride)
                matrices = seen[:, phase, first + at.start : first + at.stop].flatten(1, 3)
                targets = product[:, at.start * width : at.stop * width]
                is_fresh = number == widest and at == slice(0, count)
                for target, matrix, weight in zip(targets, matrices, parts[number], strict=True):
                    add_product(target, matrix, weight, is_fresh)
            by_position = product.unflatten(1, (count, -1, across)).permute(2, 1, 3, 0, 4)
            by_group = out[rows, lines].unflatten(3, (groups, outputs))
            torch.add(by_position, self.bias.view(groups, outputs), out=by_group)

    def _padded_strip(self, pictures: Tensor, lines: slice, count: int) -> Tensor:
        """So many lines of pictures and border, from the first that some lines of the output see: (count, n, ...)."""
        seen, above = self.window.seen_lines(lines, pictures.shape[1])
        left, right, above = *self.window.pads[1::2], min(above, count)
        below = count - above - (seen.stop - seen.start)
        return functional.pad(pictures[:, seen].transpose(0, 1), (0, 0, left, right, 0, 0, above, below))

    def _line_patches(self, strip: Tensor, needed: int, across: int) -> Tensor:
        """What a line of the kernel sees of a strip (lines, n, width, channels).

        (groups, line % stride, line // stride, n, across, entries of a line and channels of a group)
        """
        wide, (down_step, step), gap = self.window.kernel[1], self.window.strides, self.window.dilations[1]
        line, picture, column, channel = strip.stride()
        channels = strip.shape[3] // len(self.weight)
        size = (len(self.weight), down_step, needed, strip.shape[1], across, wide, channels)
        strides = (channels * channel, line, down_step * line, picture, step * column, gap * column)
        return strip.as_strided(size, (*strides, channel)).flatten(5).contiguous()
