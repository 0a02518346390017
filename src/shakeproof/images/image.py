"""Pictures as networks take them: channels first, in float64, in [0, 1]. Nothing is reinterpreted silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof import vnnlib
from shakeproof.errors import InputError, by
from shakeproof.network import ImageLayout
from shakeproof.preprocessing import Preprocessing

Array = NDArray[Any]
# What resizing, sharpening and noise add beyond black and white; more is another range of numbers.
OVERSHOOT = 0.1


@dataclass(frozen=True, eq=False)
class Image:
    """A picture (channels, height, width) in float64, its label if it came with one, and what its user should know."""

    name: str
    pixels: Tensor
    label: int | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        label = "" if self.label is None else f", label {self.label}"
        return f"<Image {self.name}: {by(self.pixels.shape)}{label}>"


@dataclass(frozen=True, eq=False)
class RawImage:
    """What a file holds, before a network says how to read it."""

    name: str
    array: Array | vnnlib.Specification
    label: int | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<RawImage {self.name}>"

    def own_shape(self, preprocessing: Preprocessing | None = None) -> tuple[int, int, int] | None:
        """(channels, height, width) if the array has the axes of a picture: it can then explain a flat input."""
        own = self._own_shape()
        return own if own is None or preprocessing is None else preprocessing.shape(own)

    def _own_shape(self) -> tuple[int, int, int] | None:
        shape = self.array.shape if isinstance(self.array, np.ndarray) else ()
        inner = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
        if 0 in inner:
            return None
        if len(inner) == 2 and min(inner) > 1:
            return 1, inner[0], inner[1]
        if len(inner) == 3:
            return (inner[2], inner[0], inner[1]) if _channels_last(inner) else (inner[0], inner[1], inner[2])
        return None

    def fitted(self, layout: ImageLayout, preprocessing: Preprocessing | None = None) -> Image:
        """The image, preprocessed, as the network's picture; an error that names both sizes if it is another."""
        return Image(self.name, self._pixels(layout, preprocessing or Preprocessing()), self.label, self.notes)

    def _pixels(self, layout: ImageLayout, preprocessing: Preprocessing) -> Tensor:
        if isinstance(self.array, vnnlib.Specification):
            return self._centre(self.array, layout)
        array, scale = _numeric(self.array, self.name), preprocessing.scale
        if preprocessing.moves:
            if array.dtype != np.uint8 or scale not in (None, (0, 255)):  # bytes are resized as bytes
                array, scale = in_unit_range(array, self.name, scale), (0.0, 1.0)
            array = preprocessing.moved(self._channels_first(array), self.name)
        if layout.channels_last and array.ndim == 1 and array.size == int(np.prod(layout.image_shape)):
            array = array.reshape(layout.input_shape)
        pixels = in_unit_range(arranged(array, layout.image_shape, self.name), self.name, scale)
        low, high = pixels.min(), pixels.max()
        if preprocessing.scale is None and (low < -OVERSHOOT or high > 1 + OVERSHOOT):
            raise InputError(
                f"{self.name}: has pixels from {low:.4g} to {high:.4g}, and 0 is black and 1 is white;"
                " divide them, or say which numbers are",
                option="scale",
            )
        return torch.from_numpy(pixels)

    def _channels_first(self, array: Array) -> Array:
        own = self._own_shape()
        if own is None:
            raise InputError(f"{self.name}: is {by(array.shape)}; only what is high and wide can be resized or cropped")
        channels, height, width = own
        if array.shape[-3:] == (height, width, channels) and (height, width, channels) != own:
            return array.reshape(height, width, channels).transpose(2, 0, 1)
        return array.reshape(own)

    def _centre(self, specification: vnnlib.Specification, layout: ImageLayout) -> Tensor:
        box = specification.box
        if box is None:
            raise InputError(f"{self.name}: has several boxes, so no one image is meant; perturb another file")
        if box[0].size != int(np.prod(layout.image_shape)):
            wanted = by(layout.image_shape)
            raise InputError(f"{self.name}: has {box[0].size} inputs, the network's picture is {wanted}")
        lower, upper = (layout.from_input(torch.from_numpy(side)).numpy() for side in box)
        return torch.from_numpy(vnnlib.centre(lower, upper))


def as_picture(array: Array, shape: tuple[int, int, int], name: str = "the image") -> Tensor:
    """An array as a picture (channels, height, width) in float64.

    Accepts channels first or last, a grey picture without channels, a flat array, and leading axes of length 1.
    Unsigned numbers of 8 or 16 bits are scaled to [0, 1].
    """
    return torch.from_numpy(in_unit_range(arranged(_numeric(np.asarray(array), name), shape, name), name))


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
    if array.ndim == 3 and array.shape[1:] == (height, width) and len(array) > 4:
        raise InputError(f"{name}: {wants}; of a stack of pictures, say which is meant: {name}@0")
    if {*array.shape} - {1, 3} == {height, width} - {1, 3}:
        raise InputError(f"{name}: {wants}; turn it into one of {channels} channels first", option="colour")
    raise InputError(f"{name}: {wants}; resize or crop it", option="resize")


def in_unit_range(array: Array, name: str, scale: tuple[float, float] | None = None) -> NDArray[np.float64]:
    """Pixels in float64, from 0 to 1: `scale` says which numbers are black and white, or else their type does."""
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
        raise InputError(
            f"{name}: has pixels from {array.min()} to {array.max()}, which are not from {low:g} to {high:g}"
        )
    return (np.ascontiguousarray(array, dtype=np.float64) - low) / (high - low)


def _is_plain(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Flat, or the same picture but for axes of length 1."""
    long = [size for size in given if size > 1]
    return len(long) <= 1 or long == [size for size in shape if size > 1]


def _channels_last(shape: Sequence[int]) -> bool:
    return shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)
