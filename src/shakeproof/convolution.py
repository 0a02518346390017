"""Convolution of pictures with channels last, in whichever order of sums is fastest, and a proved bound of its norm.

A convolution becomes matrix products: of columns of positions, or of lines of the kernel. Where groups are too thin for
that (depthwise convolutions), shifted pictures are added up. All of it works in blocks that stay in the cache.
docs/speed.md says what each of these gains. They are tuning: `operators` says what a network computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from shakeproof.linalg import (
    ABOVE,
    UNIT,
    Check,
    add_product,
    always,
    empty_products,
    is_by_rows,
    largest_singular_value,
)

Pair = tuple[int, int]
# A block has at most this many bytes, so that one step finds in the cache what the step before wrote.
BLOCK_BYTES = 2 * 2**20
# With at most this many channels in each group, adding up shifted pictures is faster than a product.
THIN_GROUP = 4
# A kernel with fewer outputs is applied in two neighbouring positions at once.
FEW_OUTPUTS = 16
# With at least this many pictures in a block, columns of positions are multiplied.
MANY_PICTURES = 48
# Weights up to this many numbers are also kept in the other memory order.
LARGEST_COPIED = 2**18


@dataclass(frozen=True)
class SlidingWindow:
    """How a kernel moves over a picture: kernel size, strides, dilations; pads are (top, left, bottom, right)."""

    kernel: Pair
    strides: Pair = (1, 1)
    dilations: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def is_pointwise(self) -> bool:
        return self.kernel == (1, 1) and not any(self.pads)

    @property
    def axes(self) -> tuple[SlidingWindow, SlidingWindow]:
        """The window across a padded picture, and the one down what the first one gives: both together are this one."""
        (down, across), (lower, right), (apart_down, apart_across) = self.kernel, self.strides, self.dilations
        return (
            SlidingWindow((1, across), (1, right), (1, apart_across)),
            SlidingWindow((down, 1), (lower, 1), (apart_down, 1)),
        )

    def padded(self, x: Tensor, value: float) -> Tensor:
        """`x` (n, height, width, channels) with its border."""
        top, left, bottom, right = self.pads
        if not any(self.pads):
            return x.contiguous()
        return functional.pad(x, (0, 0, left, right, top, bottom), value=value)

    def output_size(self, height: int, width: int) -> Pair:
        """The number of positions, down and across, on a picture of this size without its border."""
        top, left, bottom, right = self.pads
        sizes = (height + top + bottom, width + left + right)
        down, across = (
            (size - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, dilation in zip(sizes, self.kernel, self.strides, self.dilations, strict=True)
        )
        return down, across

    def padded_entries(self, shape: torch.Size) -> int:
        """The number of entries of a value of `shape` (batch, height, width, channels) with its border."""
        top, left, bottom, right = self.pads
        return shape[0] * (shape[1] + top + bottom) * (shape[2] + left + right) * shape[3]

    def shifted(self, x: Tensor) -> list[Tensor]:
        """Views of a padded `x`, one for each kernel entry: each (n, down, across, channels)."""
        rows, columns = (
            [slice(entry * dilation, size - (kernel - 1 - entry) * dilation, stride) for entry in range(kernel)]
            for size, kernel, stride, dilation in zip(
                x.shape[1:3], self.kernel, self.strides, self.dilations, strict=True
            )
        )
        return [x[:, row, column] for row in rows for column in columns]

    def scattered(self, parts: Iterable[Tensor], height: int, width: int) -> Tensor:
        """The transpose of `padded` and `shifted`: the picture to which the part of each kernel entry is added.

        Each part is (n, down, across, channels).
        """
        top, left, bottom, right = self.pads
        picture: Tensor | None = None
        views: list[Tensor] = []
        for number, part in enumerate(parts):
            if picture is None:
                picture = part.new_zeros(part.shape[0], top + height + bottom, left + width + right, part.shape[3])
                views = self.shifted(picture)
            views[number].add_(part)
        assert picture is not None
        return picture[:, top : top + height, left : left + width]

    def input_lines(self, lines: slice, height: int) -> tuple[slice, int]:
        """The picture lines under the kernel in some lines of positions, and the number of border lines above them."""
        first = lines.start * self.strides[0] - self.pads[0]
        last = first + (lines.stop - lines.start - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1
        begin = max(first, 0)
        return slice(begin, max(begin, min(last, height))), begin - first

    def lines_on_picture(self, lines: slice, height: int) -> list[tuple[slice, slice]]:
        """For each kernel line: at which lines of positions, counted from the first of `lines`, it is on the picture.

        And the picture lines that it is on there.
        """
        first = lines.start * self.strides[0] - self.pads[0]
        starts = (first + number * self.dilations[0] for number in range(self.kernel[0]))
        return [_overlap(start, self.strides[0], height, lines.stop - lines.start) for start in starts]

    def positions_over(self, place: Tensor, axis: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The positions from which a kernel without gaps sees places (n) along an axis, and with which of its entries.

        Both (n, k), and whether there is such a position among `count`.
        """
        kernel, stride = self.kernel[axis], self.strides[axis]
        shifted = (place + self.pads[axis]).unsqueeze(1)
        position = shifted // stride - torch.arange(-(-kernel // stride), device=place.device)
        entry = shifted - position * stride
        return position, entry, (position >= 0) & (position < count) & (entry < kernel)

    def overlaps(self, picture: Tensor, positions: Tensor, above: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each kernel entry: the positions at which it is on the picture, and the pixels that it is on there.

        Views of both, (n, height, width, channels) and (n, down, across, channels). `above` lines of the border lie
        above the picture's first line.
        """
        for i in range(self.kernel[0]):
            down, lines = _overlap(i * self.dilations[0] - above, self.strides[0], picture.shape[1], positions.shape[1])
            for j in range(self.kernel[1]):
                start = j * self.dilations[1] - self.pads[1]
                across, columns = _overlap(start, self.strides[1], picture.shape[2], positions.shape[2])
                yield positions[:, down, across], picture[:, lines, columns]


def _overlap(start: int, stride: int, size: int, count: int) -> tuple[slice, slice]:
    """Which of `count` places, `stride` apart from `start` on, are among `size` entries; and which entries."""
    first = max(0, -(start // stride))
    last = max(first, min(count, (size - 1 - start) // stride + 1))
    begin = start + first * stride
    return slice(first, last), slice(begin, max(begin, start + (last - 1) * stride + 1), stride)


def _blocks(pictures: int, lines: int, line_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Slices of pictures, or of lines of one picture, of no more than a block's bytes."""
    fitting = max(1, BLOCK_BYTES // line_bytes)
    step, lines_each = max(1, fitting // lines), min(fitting, lines)
    for start in range(0, pictures, step):
        for first in range(0, lines, lines_each):
            yield slice(start, min(start + step, pictures)), slice(first, min(first + lines_each, lines))


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

    # -- shifted pictures ----------------------------------------------------------------------------------------------

    @property
    def _is_thin(self) -> bool:
        return len(self.weight) > 1 and self.weight.shape[2] <= THIN_GROUP * prod(self.window.kernel)

    def _entry_weights(self) -> Tensor:
        """By channel of a group and kernel entry, the weight in each output: (channels, kernel entries, outputs)."""
        by_entry: Tensor = self.weight.unflatten(2, (prod(self.window.kernel), -1))
        return by_entry.permute(3, 2, 0, 1).flatten(2).contiguous()

    def _add_shifted(self, pictures: Tensor, out: Tensor) -> None:
        """Add one kernel entry after another, each on the part of the picture that it is on: no border is needed."""
        repeats, weights = self.weight.shape[1], self._entry_weights()
        line_bytes = max(prod(pictures.shape[1:]) * repeats, prod(out.shape[1:])) // out.shape[1] * out.element_size()
        for rows, lines in _blocks(len(out), out.shape[1], line_bytes):
            source_lines, above = self.window.input_lines(lines, pictures.shape[1])
            target = out[rows, lines]
            target.copy_(self.bias.expand_as(target))
            for channel, entries in enumerate(weights):
                part = pictures[rows, source_lines, :, channel :: len(weights)]
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

    # -- products ------------------------------------------------------------------------------------------------------

    @property
    def _by_entry(self) -> Tensor:
        """The weights (groups, kernel entries and channels, outputs), in the memory order that multiplies fastest."""
        is_copied = is_by_rows() and self.weight.numel() <= LARGEST_COPIED
        return self._copied_by_entry if is_copied else self.weight.transpose(1, 2)

    @cached_property
    def _copied_by_entry(self) -> Tensor:
        return self.weight.transpose(1, 2).contiguous()

    def _multiply_pixels(self, pictures: Tensor, out: Tensor) -> None:
        """A 1 x 1 kernel without border is one product."""
        down, across = self.window.strides
        pixels, target = pictures[:, ::down, ::across].flatten(0, 2), out.flatten(0, 2)
        pixel_bytes = (pixels.shape[1] + target.shape[1]) * out.element_size()
        for block, _ in _blocks(len(pixels), 1, pixel_bytes):
            add_product(target[block].copy_(self.bias), pixels[block], self._by_entry[0])

    def _has_long_columns(self, pictures: Tensor, out: Tensor) -> bool:
        fitting = BLOCK_BYTES // (max(prod(pictures.shape[1:]), prod(out.shape[1:])) * out.element_size())
        is_whole = len(self.weight) == 1 and self.window.dilations[1] == 1
        return is_whole and min(len(pictures), fitting) >= MANY_PICTURES

    @cached_property
    def _doubled(self) -> Convolution:
        """The same for two neighbouring positions at once: a kernel one step wider, with twice as many outputs."""
        (tall, wide), (down, step) = self.window.kernel, self.window.strides
        by_entry = self.weight.unflatten(2, (tall, wide, -1))
        both = [functional.pad(by_entry, (0, 0, place * step, (1 - place) * step)).flatten(2) for place in (0, 1)]
        window = replace(self.window, kernel=(tall, wide + step), strides=(down, 2 * step))
        return Convolution(torch.cat(both, 1), self.bias.repeat(2), window)

    def _multiply_columns(self, pictures: Tensor, out: Tensor) -> None:
        """Multiply one column of positions after another.

        What a kernel line sees from a column of positions lies side by side in the picture. So no patches are put
        together, and the border is not multiplied.
        """
        (_, height, width, channels), (_, tall, across, outputs) = pictures.shape, out.shape
        (lines, wide), (stride, step), left = self.window.kernel, self.window.strides, self.window.pads[1]
        on_picture = self.window.lines_on_picture(slice(0, tall), height)
        by_line = self._by_entry[0].unflatten(0, (lines, -1))
        many_first = sorted(range(lines), key=lambda line: on_picture[line][0].start - on_picture[line][0].stop)
        fitting = BLOCK_BYTES // (max(height * width * channels, tall * across * outputs) * out.element_size())
        step_pictures = (fitting - 1) | 1  # odd: else all outputs of a position fall into the same few cache lines
        for part, target in zip(pictures.split(step_pictures), out.split(step_pictures), strict=True):
            count = len(part)
            strips = [part[:, phase::stride].transpose(0, 1).flatten(2).flatten(0, 1) for phase in range(stride)]
            product = empty_products(part, across, tall * count, outputs)
            for column, column_product in enumerate(product):
                first, last = max(left - column * step, 0), min(wide, width + left - column * step)
                start = (column * step - left) * channels
                fills_first = first < last and on_picture[many_first[0]][0] == slice(0, tall)
                if not fills_first:
                    column_product.zero_()
                for line in many_first if first < last else ():
                    at, on = on_picture[line]
                    above, phase = divmod(on.start, stride)
                    rows = slice(above * count, (above + at.stop - at.start) * count)
                    matrix = strips[phase][rows, start + first * channels : start + last * channels]
                    weight = by_line[line, first * channels : last * channels]
                    is_fresh = fills_first and line == many_first[0]
                    add_product(column_product[at.start * count : at.stop * count], matrix, weight, is_fresh)
            by_position = product.unflatten(1, (tall, count))
            torch.add(by_position.permute(2, 1, 0, 3), self.bias, out=target)

    def _multiply_lines(self, pictures: Tensor, out: Tensor) -> None:
        """Multiply one kernel line after another: what it sees at every position is a matrix, times its weights.

        Picture lines come first in that matrix, so the next kernel line sees the same matrix, some lines further on.
        (With a stride of two, that is every other line.)
        """
        tall, stride, dilation = self.window.kernel[0], self.window.strides[0], self.window.dilations[0]
        line_weights = self._by_entry.unflatten(1, (tall, -1)).unbind(1)
        across, groups, outputs = out.shape[2], *self.weight.shape[:2]
        line_bytes = stride * across * line_weights[0].shape[1] * groups * out.element_size()
        for rows, lines in _blocks(len(out), out.shape[1], line_bytes):
            count = lines.stop - lines.start
            needed = count + (tall - 1) * dilation // stride
            patches = self._line_patches(self._padded_strip(pictures[rows], lines, needed * stride), needed, across)
            width = patches.shape[3] * across
            product = empty_products(pictures, groups, count * width, outputs)
            # The rest of a kernel line is on the border, and not multiplied.
            on_picture = [at for at, _ in self.window.lines_on_picture(lines, pictures.shape[1])]
            widest = max(range(tall), key=lambda number: on_picture[number].stop - on_picture[number].start)
            if on_picture[widest] != slice(0, count):
                product.zero_()
            for number in sorted(range(tall), key=lambda number: number != widest):
                at, (first, phase) = on_picture[number], divmod(number * dilation, stride)
                matrices = patches[:, phase, first + at.start : first + at.stop].flatten(1, 3)
                targets = product[:, at.start * width : at.stop * width]
                is_fresh = number == widest and at == slice(0, count)
                for group in range(groups):
                    add_product(targets[group], matrices[group], line_weights[number][group], is_fresh)
            by_position = product.unflatten(1, (count, -1, across)).permute(2, 1, 3, 0, 4)
            by_group = out[rows, lines].unflatten(3, (groups, outputs))
            torch.add(by_position, self.bias.view(groups, outputs), out=by_group)

    def _padded_strip(self, pictures: Tensor, lines: slice, count: int) -> Tensor:
        """`count` lines of pictures with border, from the first one under the kernel at `lines`: (count, n, ...)."""
        source_lines, above = self.window.input_lines(lines, pictures.shape[1])
        left, right, above = *self.window.pads[1::2], min(above, count)
        below = count - above - (source_lines.stop - source_lines.start)
        return functional.pad(pictures[:, source_lines].transpose(0, 1), (0, 0, left, right, 0, 0, above, below))

    def _line_patches(self, strip: Tensor, needed: int, across: int) -> Tensor:
        """What a kernel line sees of a strip (lines, n, width, channels).

        (groups, line % stride, line // stride, n, across, entries of a line and channels of a group)
        """
        wide, (down_step, step), gap = self.window.kernel[1], self.window.strides, self.window.dilations[1]
        line, picture, column, channel = strip.stride()
        channels = strip.shape[3] // len(self.weight)
        size = (len(self.weight), down_step, needed, strip.shape[1], across, wide, channels)
        strides = (channels * channel, line, down_step * line, picture, step * column, gap * column)
        return strip.as_strided(size, (*strides, channel)).flatten(5).contiguous()


# -- the norm of a convolution -----------------------------------------------------------------------------------------

# Matrices are made in batches of this many bytes.
BATCH_BYTES = 2**23


def norm_of_convolution(weight: Tensor, window: SlidingWindow, shape: torch.Size, check: Check = always) -> float:
    """An upper bound of the norm of a convolution of pictures of `shape` (batch, height, width, channels).

    A convolution with zero padding is a part of one on a torus that is so large that a kernel on the picture's last
    entry does not reach its first one around it. At each frequency that one is a matrix from channels to channels, so
    its norm is the largest of theirs.

    `weight` (groups, channels out, kernel height * kernel width * channels in)
    """
    groups, outputs, _ = weight.shape
    kernel = weight.view(groups, outputs, *window.kernel, -1)
    sides = [*shape[1:3]]
    if window.dilations == (1, 1) and window.kernel != (1, 1):
        kernel, sides = _in_phases(kernel, window, sides)
    sizes = [
        1 if taps == 1 else side + dilation * (taps - 1)
        for taps, side, dilation in zip(kernel.shape[2:4], sides, window.dilations, strict=True)
    ]
    # Rounding of the matrices: for each entry, a share of the sum of the taps' absolute values.
    taps = kernel.shape[2] * kernel.shape[3]
    rounding = (taps + 48) * UNIT * float(kernel.abs().sum((2, 3)).flatten(1).norm(dim=1).max()) * 2
    matrix_shape = torch.Size((outputs, kernel.shape[-1]))
    count = groups * (sizes[0] // 2 + 1) * sizes[1]
    matrices = _matrices_by_frequency(kernel, window.dilations, sizes)
    return (largest_singular_value(matrices, matrix_shape, count, check) + rounding) * ABOVE


def _in_phases(kernel: Tensor, window: SlidingWindow, sides: list[int]) -> tuple[Tensor, list[int]]:
    """A convolution with strides as one without, of the pictures that are made of every so many lines and columns."""
    groups, outputs, height, width, channels = kernel.shape
    strides = window.strides
    down, across = (-(-size // step) for size, step in zip((height, width), strides, strict=True))
    whole = kernel.new_zeros(groups, outputs, down * strides[0], across * strides[1], channels)
    whole[:, :, :height, :width] = kernel
    parts = whole.view(groups, outputs, down, strides[0], across, strides[1], channels).movedim(4, 3)
    ends = zip(window.pads[:2], sides, strides, strict=True)
    return parts.flatten(4), [(start + side - 1) // step - start // step + 1 for start, side, step in ends]


def _matrices_by_frequency(kernel: Tensor, dilations: tuple[int, int], sizes: list[int]) -> Iterator[Tensor]:
    """The matrices (n, outputs, inputs) of a convolution on a torus; those at opposite frequencies are conjugate."""
    groups, outputs, height, width, channels = kernel.shape
    if height == width == 1:  # the same at every frequency
        yield kernel.view(groups, outputs, channels)
        return
    rows, columns = (
        _waves(taps, dilation, size, kernel.device)
        for taps, dilation, size in zip((height, width), dilations, sizes, strict=True)
    )
    waves = torch.einsum("eh,fw->efhw", rows[: sizes[0] // 2 + 1], columns).flatten(2).flatten(0, 1)
    taps = kernel.flatten(2, 3).to(waves.dtype)
    for batch in waves.split(max(1, BATCH_BYTES // (16 * groups * outputs * channels))):
        yield torch.einsum("ft,gotc->gfoc", batch, taps).reshape(-1, outputs, channels)


def _waves(taps: int, dilation: int, size: int, device: torch.device) -> Tensor:
    """exp(2 pi i f k dilation / size), (size, taps): the angle's multiple is reduced in whole numbers first."""
    turns = torch.outer(torch.arange(size, device=device), torch.arange(taps, device=device) * dilation) % size
    angle = turns.double() * (2 * torch.pi / size)
    return torch.complex(angle.cos(), angle.sin())
