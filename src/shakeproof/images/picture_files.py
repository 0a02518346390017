"""Picture files: PNG, JPEG and the like, as arrays of bytes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, ImageOps
from PIL import Image as Pillow

from shakeproof.errors import InputError
from shakeproof.files import check_regular
from shakeproof.images.arrays import reading

# Formats of pixels only: others make Pillow start programs, or need a size to be drawn at.
FORMATS = {
    "AVIF": (".avif",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "JPEG2000": (".jp2",),
    "MPO": (),  # what some cameras write as .jpg
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "TGA": (".tga",),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)
TURNED = "pictures are turned upright where their EXIF orientation says so"
FIRST_FRAME = "of pictures with several frames, the first is taken"


def read_picture(path: Path) -> tuple[NDArray[Any], tuple[str, ...]]:
    """A picture's pixels (1 or 3, height, width), of 8 or 16 bits or in floats, and what should be said of it."""
    check_regular(path)
    Pillow.init()
    known = [name for name in FORMATS if name in Pillow.OPEN]
    with warnings.catch_warnings(), reading(str(path)):
        warnings.simplefilter("ignore")  # what libraries remark about files is no help to their user
        warnings.simplefilter("error", Pillow.DecompressionBombWarning)
        try:
            with Pillow.open(path, formats=known) as picture, _unsaid(picture.format == "TIFF"):
                pixels = _pixels(ImageOps.exif_transpose(picture), path)
                return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), _notes(picture)
        except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
            raise InputError(f"{path}: the picture is too large to be read; make it smaller first") from error


@contextmanager
def _unsaid(talks: bool) -> Iterator[None]:
    """Without what libtiff writes to the process's stderr, past Python, about files that are damaged."""
    if not talks:
        yield
        return
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _notes(picture: Pillow.Image) -> tuple[str, ...]:
    turned = picture.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    several = picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1
    return tuple(note for note, so in ((TURNED, turned), (FIRST_FRAME, several)) if so)


def _pixels(picture: Pillow.Image, path: Path) -> NDArray[Any]:
    if picture.mode == "F":
        return np.asarray(picture)
    if picture.mode.startswith("I"):
        deep = np.asarray(picture)
        if deep.min() < 0 or deep.max() > 65535:
            raise InputError(f"{path}: has pixels of more than 16 bits; save it with 8 or 16")
        return deep.astype(np.uint16)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        opacity = np.asarray(picture.convert("RGBA"))[..., 3]
        if opacity.min() < 255:
            raise InputError(f"{path}: the picture is partly transparent; save it without an alpha channel")
    grey = picture.mode in ("1", "L", "LA")
    return np.asarray(picture.convert("L" if grey else "RGB"))
