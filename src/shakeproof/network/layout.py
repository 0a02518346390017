"""How a network's input is a picture: which axes are channels, height and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from shakeproof.errors import InputError, by

# The only sensible reading of some flat inputs: MNIST's and CIFAR's.
USUAL_SHAPES = {784: (1, 28, 28), 3072: (3, 32, 32)}


@dataclass(frozen=True)
class ImageLayout:
    """Pictures are (channels, height, width) = `image_shape`; the network wants `input_shape`, maybe channels last."""

    image_shape: tuple[int, int, int]
    input_shape: tuple[int, ...]
    channels_last: bool = False
    note: str | None = None

    def to_input(self, images: Tensor) -> Tensor:
        """Pictures (..., channels, height, width) as network inputs (..., *input_shape)."""
        moved = images.movedim(-3, -1) if self.channels_last else images
        return moved.reshape(*images.shape[:-3], *self.input_shape)

    def from_input(self, inputs: Tensor) -> Tensor:
        """The inverse of `to_input`, for one input of any shape with the right number of entries."""
        channels, height, width = self.image_shape
        if self.channels_last:
            return inputs.reshape(height, width, channels).movedim(-1, 0).contiguous()
        return inputs.reshape(self.image_shape)


def image_layout(input_shape: Sequence[int], wanted: tuple[int, int, int] | None = None) -> ImageLayout | None:
    """The layout of an input shape; None if it is flat and nothing says how to read it.

    `wanted` (channels, height, width) decides for flat inputs and is checked for the others.
    """
    if wanted is not None and (len(wanted) != 3 or min(wanted) < 1):
        raise InputError(f"an image shape is channels, height and width, not {by(wanted)}")
    shape = tuple(input_shape)
    inner = shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
    sides = tuple(size for size in inner if size > 1)
    layout = None
    if len(inner) == 3 and len(sides) >= 2:
        last = inner[2] in (1, 3, 4) and inner[0] not in (1, 3, 4)
        image = (inner[2], inner[0], inner[1]) if last else (inner[0], inner[1], inner[2])
        layout = ImageLayout(image, shape, last)
    elif len(inner) == 2 and len(sides) == 2:
        layout = ImageLayout((1, inner[0], inner[1]), shape)
    elif wanted is None and prod(shape) in USUAL_SHAPES:
        image = USUAL_SHAPES[prod(shape)]
        note = f"the flat input of {prod(shape)} values is read as a {by(image)} picture"
        layout = ImageLayout(image, shape, note=note)
    elif wanted is not None and prod(wanted) == prod(shape):
        layout = ImageLayout(wanted, shape)
    if wanted is not None and (layout is None or layout.image_shape != tuple(wanted)):
        raise InputError(f"an image of {by(wanted)} does not fit the network's input of {by(shape)}")
    return layout
