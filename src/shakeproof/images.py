"""Images from files: pictures, arrays, data sets, VNN-LIB boxes. Never resized, never silently reinterpreted."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL.Image import DecompressionBombError
from torch import Tensor

from shakeproof import vnnlib
from shakeproof.errors import InputError
from shakeproof.network import ImageLayout

Array = NDArray[Any]
ARRAY_FILES = (".npy",)


@dataclass(frozen=True, eq=False)
class Image:
    """A picture (channels, height, width) in float64 and, if it came with one, its label."""

    name: str
    pixels: Tensor
    label: int | None = None


@dataclass(frozen=True, eq=False)
class RawImage:
    """What a file holds, before a network says how to read it."""

    name: str
    array: Array | vnnlib.Specification
    label: int | None = None

    def own_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) if the array has the axes of a picture: it can then explain a flat input."""
        shape = self.array.shape if isinstance(self.array, np.ndarray) else ()
        inner = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
        if len(inner) == 2 and min(inner) > 1:
            return 1, inner[0], inner[1]
        if len(inner) == 3:
            return (inner[2], inner[0], inner[1]) if _channels_last(inner) else (inner[0], inner[1], inner[2])
        return None

    def fitted(self, layout: ImageLayout) -> Image:
        """The image as the network's picture; an error that names both sizes if it is another."""
        if isinstance(self.array, vnnlib.Specification):
            box = self.array.box
            if box is None:
                raise InputError(f"{self.name}: has several boxes, so no one image is meant; perturb another file")
            if box[0].size != int(np.prod(layout.image_shape)):
                raise InputError(
                    f"{self.name}: has {box[0].size} inputs, the network's picture is {_by(layout.image_shape)}"
                )
            lower, upper = (layout.from_input(torch.from_numpy(side)).numpy() for side in box)
            return Image(self.name, torch.from_numpy(vnnlib.centre(lower, upper)), self.label)
        if layout.channels_last and self.array.ndim == 1 and self.array.size == int(np.prod(layout.image_shape)):
            in_order = layout.from_input(torch.from_numpy(self.array)).numpy()
            return Image(self.name, as_picture(in_order, layout.image_shape, self.name), self.label)
        return Image(self.name, as_picture(self.array, layout.image_shape, self.name), self.label)


def read_image(source: str) -> RawImage:
    """The image that a command-line word names: FILE.png/.jpg/..., FILE.npy, FILE.npz@INDEX, FILE.vnnlib(.gz)."""
    in_archive = re.fullmatch(r"(.*\.npz)@(.*)", source)
    path = Path(in_archive[1] if in_archive else source)
    try:
        if in_archive:
            return _from_archive(source, path, in_archive[2])
        if path.name.endswith((".vnnlib", ".vnnlib.gz")):
            specification = vnnlib.read_specification(path)
            return RawImage(source, specification, specification.label)
        if path.suffix == ".npz":
            raise InputError(f"{source}: say which image of the archive is meant, e.g. {source}@0")
        return RawImage(source, np.load(path, allow_pickle=False) if path.suffix in ARRAY_FILES else _picture(path))
    except OSError as error:
        raise InputError(f"{source}: cannot read the image ({error.strerror or 'not a readable picture'})") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile, SyntaxError, DecompressionBombError) as error:
        raise InputError(
            f"{source}: not a readable image ({str(error).splitlines()[0] if str(error) else 'damaged'})"
        ) from error


def as_picture(array: Array, shape: tuple[int, int, int], name: str = "the image") -> Tensor:
    """An array as a picture (channels, height, width) in float64.

    Accepts channels first or last, a grey picture without channels, a flat array, and leading axes of length 1. Bytes
    are scaled to [0, 1].
    """
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: pixels of type {array.dtype} are not numbers")
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    channels, height, width = shape
    if array.shape == (height, width, channels) and array.shape != shape:
        array = array.transpose(2, 0, 1)
    if array.shape != shape and not (array.size == channels * height * width and _is_plain(array.shape, shape)):
        raise InputError(
            f"{name}: the image is {_by(array.shape)}, the network wants {_by(shape)} (channels x height x width);"
            " shakeproof never resizes"
        )
    scale = 255.0 if array.dtype == np.uint8 else 1.0
    pixels = torch.from_numpy(np.ascontiguousarray(array.reshape(shape), dtype=np.float64)) / scale
    if not bool(torch.isfinite(pixels).all()):
        raise InputError(f"{name}: has pixels that are NaN or infinite")
    return pixels


def _is_plain(given: Sequence[int], shape: Sequence[int]) -> bool:
    """Flat, or the same picture but for axes of length 1."""
    long = [size for size in given if size > 1]
    return len(long) <= 1 or long == [size for size in shape if size > 1]


def _from_archive(source: str, path: Path, index: str) -> RawImage:
    with np.load(path, allow_pickle=False) as archive:
        if "x" not in archive:
            raise InputError(
                f"{source}: the archive has no array 'x' of images, only {', '.join(archive) or 'nothing'}"
            )
        images = archive["x"]
        labels = archive.get("y")
    if images.ndim < 2:
        raise InputError(f"{source}: the archive's 'x' has shape {images.shape}, not a list of images")
    if not re.fullmatch(r"\d+", index) or int(index) >= len(images):
        raise InputError(f"{source}: there is no image {index!r}; the archive has images 0 to {len(images) - 1}")
    place = int(index)
    if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
        raise InputError(f"{source}: the archive's 'y' must hold one whole number for each image of 'x'")
    return RawImage(source, images[place], None if labels is None else int(labels[place]))


def _picture(path: Path) -> Array:
    """A picture's pixels: bytes (height, width[, 3]), or [0, 1] where it has 16 bits."""
    with Pillow.open(path) as picture:
        if picture.mode == "F":
            return np.asarray(picture, dtype=np.float64)
        if picture.mode.startswith("I"):
            return np.asarray(picture, dtype=np.float64) / 65535
        if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
            opacity = np.asarray(picture.convert("RGBA"))[..., 3]
            if opacity.min() < 255:
                raise InputError(f"{path}: the picture is partly transparent; save it without an alpha channel")
        grey = picture.mode in ("1", "L", "LA")
        return np.asarray(picture.convert("L" if grey else "RGB"))


def _channels_last(shape: Sequence[int]) -> bool:
    return shape[2] in (1, 3, 4) and shape[0] not in (1, 3, 4)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
