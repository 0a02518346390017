"""Pictures (channels first, float64, in [0, 1]), and how an input of a network is one. Nothing is guessed silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError, by
from shakeproof.question.photographs import Photograph
from shakeproof.question.preprocessing import Preprocessing
from shakeproof.question.properties import Specification, centre

Array = NDArray[Any]
# What resizing, sharpening and noise add beyond black and white; more is another range of numbers.
OVERSHOOT = 0.1
AFTERWARDS = "with at=original, that happens after the perturbation: sizes are in pixels of the photograph"
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
        layout = ImageLayout(_channels_first(inner), shape, _channels_last(inner))
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


@dataclass(frozen=True, eq=False)
class Image:
    """A picture (channels, height, width) in float64, its label if it came with one, and what its user should know.

    `photograph` is what it was before it was resized, if that was asked for.
    """

    name: str
    pixels: Tensor
    label: int | None = None
    notes: tuple[str, ...] = ()
    photograph: Photograph | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", torch.as_tensor(self.pixels, dtype=torch.float64))

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {self.label}"
        return f"<Image {self.name}: {by(self.pixels.shape)}{label}>"


@dataclass(frozen=True, eq=False)
class RawImage:
    """The contents of a file, before a network determines how to read it."""

    name: str
    array: Array | Specification
    label: int | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RawImage {self.name}>"

    def own_shape(self, preprocessing: Preprocessing | None = None) -> tuple[int, int, int] | None:
        """(channels, height, width), preprocessed, if the array has a picture's axes: that explains a flat input."""
        shape = self.array.shape if isinstance(self.array, np.ndarray) else ()
        inner = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
        picture = None
        if len(inner) == 2 and min(inner) > 1:
            picture = 1, inner[0], inner[1]
        elif len(inner) == 3 and 0 not in inner:
            picture = _channels_first(inner)
        return picture if picture is None or preprocessing is None else preprocessing.shape(picture)

    def fitted(
        self, layout: ImageLayout, preprocessing: Preprocessing | None = None, with_photograph: bool = False
    ) -> Image:
        """The image, preprocessed, as the network's picture; an error that names both sizes if it is another.

        `with_photograph`: what it was before that is kept, too.
        """
        steps, photograph, notes = preprocessing or Preprocessing(), None, self.notes
        if isinstance(self.array, Specification):
            pixels = self._centre(self.array, layout)
        else:
            pixels = self._pixels(self.array, layout, steps)
            if with_photograph:
                photograph, notes = (
                    self._photograph(self.array, steps),
                    (*notes, *([AFTERWARDS] if steps.moves else [])),
                )
        return Image(self.name, torch.from_numpy(pixels), self.label, notes, photograph)

    def _photograph(self, array: Array, preprocessing: Preprocessing) -> Photograph:
        array, scale = self._channels_first(array), preprocessing.scale
        levels = array if array.dtype == np.uint8 and scale in (None, (0, 255)) else None
        pixels = torch.from_numpy(in_unit_range(array, self.name, scale))
        return Photograph(self.name, pixels, levels, preprocessing)

    def _channels_first(self, array: Array) -> Array:
        """The picture as (channels, height, width)."""
        shape = self.own_shape()
        if shape is None:
            raise InputError(f"{self.name}: is {by(array.shape)}; only what is high and wide can be resized or cropped")
        channels, height, width = shape
        last = array.shape[-3:] == (height, width, channels) != shape
        return array.reshape(height, width, channels).transpose(2, 0, 1) if last else array.reshape(shape)

    def _pixels(self, array: Array, layout: ImageLayout, preprocessing: Preprocessing) -> NDArray[np.float64]:
        array, scale = _numeric(array, self.name), preprocessing.scale
        if preprocessing.moves:
            if array.dtype != np.uint8 or scale not in (None, (0, 255)):  # bytes are resized as bytes
                array, scale = in_unit_range(array, self.name, scale), (0.0, 1.0)
            array = preprocessing.moved(self._channels_first(array), self.name)
        if layout.channels_last and array.ndim == 1 and array.size == prod(layout.image_shape):
            array = array.reshape(layout.input_shape)
        pixels = in_unit_range(arranged(array, layout.image_shape, self.name), self.name, scale)
        if preprocessing.scale is None:
            check_range(pixels, self.name, "divide them, or say which numbers are black and white")
        return pixels

    def _centre(self, specification: Specification, layout: ImageLayout) -> NDArray[np.float64]:
        box = specification.box
        if box is None:
            raise InputError(f"{self.name}: has several boxes, so it is not one image; choose another file")
        if box[0].size != prod(layout.image_shape):
            wanted = by(layout.image_shape)
            raise InputError(f"{self.name}: has {box[0].size} inputs, the network's picture is {wanted}")
        lower, upper = (layout.from_input(torch.from_numpy(side)).numpy() for side in box)
        return centre(lower, upper)


def as_picture(array: Array, shape: tuple[int, int, int], name: str = "the image") -> Tensor:
    """An array as a picture (channels, height, width) in float64.

    Accepts channels first or last, a grey picture without channels, a flat array, and leading axes of length 1.
    Unsigned numbers of 8 or 16 bits are scaled to [0, 1]; floats from 0 to 255 are refused.
    """
    pixels = in_unit_range(arranged(_numeric(np.asarray(array), name), shape, name), name)
    if pixels.min() >= -OVERSHOOT:  # negative ones were normalised on purpose
        check_range(pixels, name, "divide them by 255, or pass Image(name, pixels) to use them as they are")
    return torch.from_numpy(pixels)


def check_range(pixels: NDArray[np.float64], name: str, advice: str) -> None:
    """Refuse pixels that are far outside [0, 1]: most often they range from 0 to 255."""
    low, high = pixels.min(), pixels.max()
    if low < -OVERSHOOT or high > 1 + OVERSHOOT:
        raise InputError(
            f"{name}: has pixels from {low:.4g} to {high:.4g}; 0 is black and 1 is white; {advice}",
            option="scale",
        )


def _numeric(array: Array, name: str) -> Array:
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: pixels of type {array.dtype} are not numbers")
    return array


def arranged(array: Array, shape: tuple[int, int, int], name: str) -> Array:
    """The same pixels as (channels, height, width)."""
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    channels, height, width = shape
    if array.shape == (height, width, channels) and array.shape != shape:
        array = array.transpose(2, 0, 1)
    if array.shape == shape or (array.size == channels * height * width and _is_plain(array.shape, shape)):
        return array.reshape(shape)
    wants = f"the image is {by(array.shape)}, the network wants {by(shape)} (channels x height x width)"
    if array.ndim == 4:
        raise InputError(
            f"{name}: is a batch of {len(array)} pictures; pass one of them, or a list of all: list(images)"
        )
    if array.ndim == 3 and array.shape[1:] == (height, width) and len(array) > 4:
        raise InputError(f"{name}: {wants}; if it is a stack of pictures, choose one: {name}@0")
    if {*array.shape} - {1, 3} == {height, width} - {1, 3}:
        raise InputError(f"{name}: {wants}; convert it to {channels} channels first", option="colour")
    raise InputError(f"{name}: {wants}; resize or crop it", option="resize")


def in_unit_range(array: Array, name: str, scale: tuple[float, float] | None = None) -> NDArray[np.float64]:
    """Pixels as float64 in [0, 1]: `scale` gives the values of black and white; by default the type does."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{name}: has pixels that are NaN or infinite")
    if scale is None:
        white = {"uint8": 255.0, "uint16": 65535.0}.get(array.dtype.name, 1.0)
        if array.dtype.kind in "iu" and white == 1.0:
            raise InputError(
                f"{name}: numbers of type {array.dtype} do not say which of them is white; save them as uint8, or as"
                " floats from 0 to 1",
                option="scale",
            )
        return np.ascontiguousarray(array, dtype=np.float64) / white
    low, high = scale
    if array.dtype.kind in "iu" and array.size and not (array.min() >= low and array.max() <= high):
        raise InputError(f"{name}: has pixels from {array.min()} to {array.max()}, outside {low:g} to {high:g}")
    return (np.ascontiguousarray(array, dtype=np.float64) - low) / (high - low)


def _is_plain(array_shape: Sequence[int], shape: Sequence[int]) -> bool:
    """Flat, or the same picture but for axes of length 1."""
    long = [size for size in array_shape if size > 1]
    return len(long) <= 1 or long == [size for size in shape if size > 1]


def _channels_last(shape: Sequence[int]) -> bool:
    return shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)


def _channels_first(shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width) of an array with three axes."""
    return (shape[2], shape[0], shape[1]) if _channels_last(shape) else (shape[0], shape[1], shape[2])
