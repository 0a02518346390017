"""The picture: how its pixels lie in the model's input and in an image file. docs/certificate.md states the rule.

A certificate has pixels (channels, height, width), and says whether the model takes channels last. Both must be what
the rule makes of the model's input; where that is flat, what it makes of the image file.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shakeproof.checker.budget import Array, Refused, require

CHANNELS = (1, 3, 4)  # how many a picture has, if its sizes leave that open
USUAL = {784: (1, 28, 28), 3072: (3, 32, 32)}  # what flat inputs and flat files of these sizes are
WHITE = {"uint8": 255.0, "uint16": 65535.0}  # of whole numbers in files; floats are from 0 to 1


class PictureLayout(NamedTuple):
    """A picture's sizes (channels, height, width), and whether channels come last."""

    sizes: tuple[int, ...]
    channels_last: bool = False

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.sizes))
        return f"{sizes} (channels x height x width), channels {'last' if self.channels_last else 'first'}"


def layout(sizes: Sequence[int]) -> PictureLayout | None:
    """How an array is a picture; None if it is flat. A first axis of 1 counts pictures."""
    inner = tuple(sizes[1:] if len(sizes) > 1 and sizes[0] == 1 else sizes)
    if len(inner) not in (2, 3) or sum(size > 1 for size in inner) < 2:
        return None
    *first, height, width = inner
    if first and width in CHANNELS and first[0] not in CHANNELS:
        return PictureLayout((width, first[0], height), True)
    return PictureLayout((*(first or [1]), height, width))


def input_shape(stated: Sequence[int | None], picture: Sequence[int]) -> list[int]:
    """A model's input for one picture: of the sizes that it leaves open, the first counts pictures."""
    sizes = [1, *stated[1:]] if len(stated) > 1 and stated[0] is None else [*stated]
    channels, height, width = picture
    ways = [[1, channels, height, width], [1, height, width, channels], [1, height, width], [1, math.prod(picture)]]
    known = [size for size in sizes if size is not None]
    for way in [known, *ways]:
        if len(way) == len(sizes) and all(size in (None, wanted) for size, wanted in zip(sizes, way, strict=True)):
            require(min(way) > 0 and math.prod(way) == math.prod(picture), "the image does not fit the model's input")
            return way
    raise Refused(f"the image does not fit the model's input {list(stated)}")


def require_layout(stated: PictureLayout, shape: Sequence[int]) -> None:
    """The certificate's layout is the one that the model's input has; a flat input is read channels first."""
    expected = layout(shape) or PictureLayout(stated.sizes)
    require(stated == expected, f"the certificate says that the picture is {stated}, the model's input is {expected}")


def arranged(array: Array, channels_last: bool, shape: Sequence[int]) -> Array:
    """Pictures (.., channels, height, width) as a model's input."""
    moved = np.moveaxis(array, -3, -1) if channels_last else array
    return moved.reshape(*array.shape[:-3], *shape)


def _read(array: Array, stated: PictureLayout, shape: Sequence[int]) -> tuple[Array, PictureLayout, str]:
    """The picture (channels, height, width) in a file's array, how it lies there, and what nothing but the certificate
    says of it.
    """
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    channels, height, width = stated.sizes
    flat, remark = layout(array.shape) is None, ""
    if layout(shape) is None:  # the file decides, then what is usual, then the certificate
        actual = layout(array.shape) or PictureLayout(USUAL.get(array.size, stated.sizes))
        require(actual.sizes == stated.sizes, f"the image file is a picture {actual}, the certificate's is {stated}")
        remark = "" if not flat or array.size in USUAL else "; that it is such a picture, only the certificate says"
    last = array.shape == (height, width, channels) != stated.sizes or (flat and stated.channels_last)
    long, wanted = ([size for size in sizes if size > 1] for sizes in (array.shape, stated.sizes))
    fits = last or ((flat or long == wanted) and array.size == math.prod(stated.sizes))
    require(fits, f"the image file has the sizes {array.shape}, the certificate's picture is {stated}")
    picture = np.moveaxis(array.reshape(height, width, channels), -1, 0) if last else array.reshape(stated.sizes)
    return picture, PictureLayout(stated.sizes, last), remark


def compared(image: Path | None, pixels: Array, header: Mapping[str, Any], shape: Sequence[int]) -> tuple[str, str]:
    """What of an image file was compared ("pixels", "digest" or "nothing"), and what should be said of it.

    Refused unless .npy and .npz@INDEX files hold the pixels, in float64 or float32, and others have the digest.
    """
    stated = PictureLayout(pixels.shape, header["channels_last"])
    require_layout(stated, shape)
    if image is None:
        return "nothing", f"image: the pixels in the certificate, {stated}"
    name, _, index = str(image).partition(".npz@")
    if image.suffix != ".npy" and not index.isdigit():
        digest = hashlib.sha256(image.read_bytes()).hexdigest()
        require(digest == header["file_sha256"], "the image file has another digest")
        return (
            "digest",
            f"the image file has the digest that the certificate gives; its pixels, {stated}, were not read",
        )
    file = np.load(f"{name}.npz" if index else image, allow_pickle=False)
    require(not index or len({*file.files}) == len(file.files), "the image file holds one name twice")
    picture, actual, remark = _read(file["x"][int(index)] if index else file, stated, shape)
    values = picture.astype(np.float64) / WHITE.get(picture.dtype.name, 1.0)
    same = any(np.array_equal(values.astype(kind), pixels) for kind in (np.float64, np.float32))
    require(same, f"the image has other pixels than the certificate, read as {actual}")
    return "pixels", f"the image file has these pixels, read as {actual}{remark}"
