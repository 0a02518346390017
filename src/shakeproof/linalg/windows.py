"""How a kernel walks over pictures with channels last, and the blocks in which that is worked through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]
# Work goes on in blocks of this many bytes, so that what one step writes the next one reads from the cache.
BLOCK_BYTES = 2 * 2**20


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

    def seen_lines(self, lines: slice, height: int) -> tuple[slice, int]:
        """The lines of a picture that some lines of positions see, and how many lines of the border are above them."""
        first = lines.start * self.strides[0] - self.pads[0]
        last = first + (lines.stop - lines.start - 1) * self.strides[0] + (self.kernel[0] - 1) * self.dilations[0] + 1
        begin = max(first, 0)
        return slice(begin, max(begin, min(last, height))), begin - first

    def lines_seen(self, lines: slice, height: int) -> list[tuple[slice, slice]]:
        """For each line of the kernel: at which of some lines of positions, counted from the first, it is on a picture,
        and the lines of the picture that it is on there.
        """
        first = lines.start * self.strides[0] - self.pads[0]
        starts = (first + number * self.dilations[0] for number in range(self.kernel[0]))
        return [_overlap(start, self.strides[0], height, lines.stop - lines.start) for start in starts]

    def seeing(self, place: Tensor, axis: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which of `count` positions see places (n) of a picture along an axis, by which of the kernel's entries.

        Both (n, k); and whether there is such a position. Of kernels without gaps.
        """
        kernel, stride = self.kernel[axis], self.strides[axis]
        shifted = (place + self.pads[axis]).unsqueeze(1)
        position = shifted // stride - torch.arange(-(-kernel // stride), device=place.device)
        entry = shifted - position * stride
        return position, entry, (position >= 0) & (position < count) & (entry < kernel)

    def overlaps(self, picture: Tensor, positions: Tensor, above: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each kernel entry: the positions at which it is on the picture, and what it is on there.

        Views of both, (n, height, width, channels) and (n, down, across, channels), whose lines begin `above` lines
        below the border's.
        """
        for i in range(self.kernel[0]):
            down, lines = _overlap(i * self.dilations[0] - above, self.strides[0], picture.shape[1], positions.shape[1])
            for j in range(self.kernel[1]):
                start = j * self.dilations[1] - self.pads[1]
                across, columns = _overlap(start, self.strides[1], picture.shape[2], positions.shape[2])
                yield positions[:, down, across], picture[:, lines, columns]


def _overlap(start: int, stride: int, size: int, count: int) -> tuple[slice, slice]:
    """Which of `count` positions, `stride` apart from `start` on, are among `size` entries; and which entries."""
    first = max(0, -(start // stride))
    last = max(first, min(count, (size - 1 - start) // stride + 1))
    begin = start + first * stride
    return slice(first, last), slice(begin, max(begin, start + (last - 1) * stride + 1), stride)


def blocks(pictures: int, lines: int, line_bytes: int) -> Iterator[tuple[slice, slice]]:
    """Some pictures at a time, or some lines of one, of no more than a block's bytes."""
    fitting = max(1, BLOCK_BYTES // line_bytes)
    step, lines_each = max(1, fitting // lines), min(fitting, lines)
    for start in range(0, pictures, step):
        for first in range(0, lines, lines_each):
            yield slice(start, min(start + step, pictures)), slice(first, min(first + lines_each, lines))
