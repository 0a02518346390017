"""Pictures in files: folders, globs, archives and slices of them. Names first, pixels when they are asked for.

What a file's header promises is checked, not believed.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from glob import glob, has_magic
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, ImageOps
from PIL import Image as Pillow

from shakeproof.errors import InputError, by
from shakeproof.files import check_regular
from shakeproof.question.images import RawImage
from shakeproof.question.kernel_files import DAMAGED

Array = NDArray[Any]
QUERIES = (".vnnlib", ".vnnlib.gz")
# Names that arrays of pictures go by, and those of their labels.
PAIRS = {
    "x": "y",
    "x_test": "y_test",
    "images": "labels",
    "test_images": "test_labels",
    "data": "labels",
    "arr_0": "arr_1",
}
# So many pictures of one word are listed; a header can promise any number.
MOST_PICTURES = 250_000
LONGEST_HEADER = 2**14
# Of one picture.
MOST_BYTES = 2**30
# Readers of headers, by the version of the format.
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
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


@dataclass(frozen=True)
class Subfolder:
    """Where a picture lies in a folder of subfolders, one for each class."""

    name: str
    folder: str
    siblings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """One picture that a word stands for: its name now, what it holds when it is asked for."""

    name: str
    read: Callable[[], RawImage]
    subfolder: Subfolder | None = None


def sources(words: Sequence[str], array: str | None = None, labels: str | None = None) -> Iterator[Source]:
    """The pictures that words stand for, in order; those that cannot be found say so when they are read.

    A word is a picture, .npy, .npz or .vnnlib(.gz) file, one picture of an array (`FILE.npz@7`) or some (`FILE@0:50`),
    a folder, or a pattern of such names. `array` and `labels` name the arrays of archives that are meant.
    """
    finder = _Finder(array, labels)
    for word in words:
        try:
            yield from finder.find(word)
        except InputError as problem:
            yield Source(word, partial(_refuse, problem))


def one_source(word: str, array: str | None = None, labels: str | None = None) -> Source:
    """The one picture that a word names; an error if it names several."""
    pictures = sources([word], array, labels)
    first = next(pictures)
    if next(pictures, None) is not None:
        raise InputError(f"{word}: matches several images; choose one, e.g. {first.name}")
    return first


def read_image(word: str | Path, array: str | None = None, labels: str | None = None) -> RawImage:
    """The one image that a word stands for: a picture, FILE.npy, FILE.npy@INDEX, FILE.npz@INDEX or FILE.vnnlib(.gz)."""
    return one_source(os.fspath(word), array, labels).read()


def _refuse(problem: InputError) -> RawImage:
    raise problem


@dataclass(frozen=True)
class _Finder:
    """How words are read. Arrays are kept open, so that going through one picture by picture is one reading."""

    array: str | None
    labels: str | None
    stored: Callable[..., StoredArray] = field(default_factory=lambda: cache(StoredArray))

    def find(self, word: str) -> Iterator[Source]:
        part = re.fullmatch(r"(.*\.np[yz])@(.*)", word, re.DOTALL)
        if os.path.isdir(word):
            yield from _in_folder(word)
        elif part and not os.path.lexists(word):
            yield from self._rows(part[1], part[2])
        elif has_magic(word) and not os.path.lexists(word):
            endings = (*ENDINGS, ".npy", ".npz", *QUERIES)
            names = [name for name in sorted(glob(word, recursive=True)) if name.lower().endswith(endings)]
            if not names:
                raise InputError(f"{word}: no picture matches")
            for name in names:
                yield from self.find(name)
        elif word.endswith(".npz") or (word.endswith(".npy") and self.stored(Path(word)).is_stack):
            yield from self._rows(word, ":")
        else:
            yield Source(word, partial(_read_file, word))

    def _rows(self, file: str, places: str) -> Iterator[Source]:
        """Some pictures of an array, by their places along its first axis."""
        labels, notes = None, tuple[str, ...]()
        if file.endswith(".npz"):
            pictures, labels, notes = self._in_archive(file)
        else:
            pictures = self.stored(Path(file))
        if len(pictures.shape) < 2:
            raise InputError(f"{pictures.name}: has shape {pictures.shape}, not a list of images")
        chosen = _chosen(file, places, len(pictures))
        if len(chosen) > MOST_PICTURES:
            raise InputError(f"{file}: has {len(chosen)} images; choose some, e.g. {file}@0:1000")
        for place in chosen:
            yield Source(name := f"{file}@{place}", partial(_read_row, name, pictures, labels, place, notes))

    def _in_archive(self, file: str) -> tuple[StoredArray, Array | None, tuple[str, ...]]:
        """The pictures of an archive, their labels, and what should be said of the choice.

        They are the arrays asked for, or the only ones with a usual name.
        """
        path, names = Path(file), _array_names(Path(file))
        for wanted in filter(None, (self.array, self.labels)):
            if wanted not in names:
                raise InputError(f"{file}: has no array {wanted!r}, but {_described(path, names)}", option="array")
        by_lower = {name.lower(): name for name in names}
        usual = [by_lower[name] for name in PAIRS if name in by_lower]
        if self.array is None and len(usual) != 1:
            what = "several arrays that may be the images" if usual else "no array 'x' of images"
            raise InputError(f"{file}: has {what}; choose one of {_described(path, names)}", option="array")
        pictures = self.array or usual[0]
        labels = self.labels or by_lower.get(PAIRS.get(pictures.lower(), ""))
        note = f"{file}: the pictures are {pictures!r}" + (f", the labels {labels!r}" if labels else "")
        notes = () if (self.array, pictures, labels) in ((None, "x", "y"), (None, "x", None)) else (note,)
        images = self.stored(path, pictures)
        if labels is None:
            return images, None, notes
        stored = self.stored(path, labels)
        if stored.shape not in (images.shape[:1], (*images.shape[:1], 1)) or stored.dtype.kind not in "iu":
            raise InputError(f"{file}: {labels!r} ({stored}) must hold one whole number for each image of {pictures!r}")
        return images, stored.whole().reshape(-1), notes


def _chosen(file: str, places: str, count: int) -> range:
    number = r"\d{1,18}"
    if re.fullmatch(number, places) and int(places) < count:
        return range(int(places), int(places) + 1)
    part = re.fullmatch(rf"({number})?:({number})?(?::(0*[1-9]\d{{0,17}}))?", places)
    chosen = range(count)[slice(*(int(word) if word else None for word in part.groups()))] if part else range(0)
    if not chosen:
        there = f"it has images 0 to {count - 1}" if count else "it has no images"
        raise InputError(f"{file}@{places}: there is no image {places!r}; {there}")
    return chosen


def _in_folder(folder: str) -> Iterator[Source]:
    """All pictures of a folder; where they lie in subfolders, those are their classes."""
    entries = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    subfolders = tuple(name for name in entries if os.path.isdir(os.path.join(folder, name)))
    loose = [name for name in entries if _is_picture(name) and name not in subfolders]
    inside = {
        name: sorted(
            os.path.join(at, file)
            for at, _, files in os.walk(os.path.join(folder, name))
            for file in files
            if _is_picture(file)
        )
        for name in subfolders
    }
    if loose and any(inside.values()):
        raise InputError(
            f"{folder}: holds pictures and subfolders of pictures; choose one of them, or '{folder}/*.png'"
        )
    if not loose and not any(inside.values()):
        raise InputError(f"{folder}: is a folder without pictures ({', '.join(ENDINGS)}, .npy)")
    for name in loose:
        yield Source(path := os.path.join(folder, name), partial(_read_file, path))
    for name, paths in inside.items():
        for path in paths:
            yield Source(path, partial(_read_file, path), Subfolder(name, folder, subfolders))


def _is_picture(name: str) -> bool:
    return name.lower().endswith((*ENDINGS, ".npy")) and not name.startswith(".")


def _read_file(word: str) -> RawImage:
    path = Path(word)
    if word.endswith(QUERIES):
        from shakeproof.question.vnnlib import read_specification

        specification = read_specification(path)
        return RawImage(word, specification, specification.label)
    if word.endswith(".npy"):
        return RawImage(word, StoredArray(path).whole())
    pixels, notes = _read_picture(path)
    return RawImage(word, pixels, notes=notes)


def _read_row(name: str, pictures: StoredArray, labels: Array | None, place: int, notes: tuple[str, ...]) -> RawImage:
    return RawImage(name, pictures.row(place), None if labels is None else int(labels[place]), notes)


# -- arrays -----------------------------------------------------------------------------------------------------------


class StoredArray:
    """An array on disk: its shape and type at once, its rows when they are asked for, quickest in their order."""

    def __init__(self, path: Path, member: str | None = None) -> None:
        self.name = str(path) if member is None else f"{path}, array {member!r}"
        self._path, self._member = path, member
        self._stream: IO[bytes] | None = None
        check_regular(path)
        with _reading(self.name), self._opened() as stream:
            beginning = BytesIO(stream.read(LONGEST_HEADER))  # a header may claim to be gigabytes long
            version = np.lib.format.read_magic(beginning)
            if version not in HEADERS:
                raise ValueError(f"an array of format {version}")
            self.shape, self._columns_first, self.dtype = HEADERS[version](beginning)
            if self.dtype.hasobject:
                raise ValueError("it holds Python objects, not numbers")
            if any(size < 0 for size in self.shape):
                raise ValueError(f"its shape is {self.shape}")
            self._start = beginning.tell()
            present = stream.seek(0, 2) if member is None else self._archived_bytes
        promised = self._start + prod(self.shape) * self.dtype.itemsize
        if promised > present:
            raise InputError(f"{self.name}: its header promises {promised} bytes, the file has {present}")

    def whole(self) -> Array:
        """All of it, as one picture."""
        array = self._read(0, self.shape)
        self._close()
        return array

    def row(self, index: int) -> Array:
        """One entry along the first axis."""
        if self._columns_first:
            return np.asarray(self.whole()[index])
        array = self._read(index, self.shape[1:])
        if index == len(self) - 1:
            self._close()
        return array

    @property
    def is_stack(self) -> bool:
        """Whether it is several pictures, whatever their number of channels."""
        return len(self.shape) == 4 and self.shape[0] > 1

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __str__(self) -> str:
        return f"{by(self.shape) or 'one number'}, {self.dtype}"

    def _opened(self) -> IO[bytes]:
        if self._member is None:
            return self._path.open("rb")
        with zipfile.ZipFile(self._path) as archive:  # stays open until its member is closed
            self._archived_bytes = archive.getinfo(f"{self._member}.npy").file_size
            return archive.open(f"{self._member}.npy")

    def _read(self, index: int, shape: tuple[int, ...]) -> Array:
        size = prod(shape) * self.dtype.itemsize
        if size > MOST_BYTES:
            raise InputError(f"{self.name}: a picture of {by(shape)} is larger than any that a network takes")
        with _reading(self.name):
            self._stream = self._stream or self._opened()
            self._stream.seek(self._start + index * size)
            data = self._stream.read(size)
            if len(data) < size:
                raise EOFError("it ends too early")
            return np.ndarray(shape, self.dtype, data, order="F" if self._columns_first else "C")

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _array_names(path: Path) -> list[str]:
    """The arrays of an .npz archive."""
    check_regular(path)
    with _reading(str(path)), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len({name.removesuffix(".npy") for name in names}) < len(names):  # readers differ in which of both they take
            raise ValueError("it contains one name twice")
        return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


def _described(path: Path, names: Sequence[str]) -> str:
    """The contents of an archive, in words."""
    arrays = []
    for name in names:
        try:
            arrays.append(f"{name} ({StoredArray(path, name)})")
        except InputError:
            arrays.append(f"{name} (no array of numbers)")
    return ", ".join(arrays) or "no arrays"


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn any failure of reading a broken file into one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{name}: cannot read the image ({error.strerror or 'not a readable picture'})") from error
    except DAMAGED as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise InputError(f"{name}: not a readable image ({reason})") from error


# -- pictures ---------------------------------------------------------------------------------------------------------


def _read_picture(path: Path) -> tuple[Array, tuple[str, ...]]:
    """A picture's pixels (1 or 3, height, width), of 8 or 16 bits or in floats, and what should be said of it."""
    check_regular(path)
    Pillow.init()
    formats = [name for name in FORMATS if name in Pillow.OPEN]
    with warnings.catch_warnings(), _reading(str(path)):
        warnings.simplefilter("ignore")  # what libraries remark about files is no help to their user
        warnings.simplefilter("error", Pillow.DecompressionBombWarning)
        try:
            with Pillow.open(path, formats=formats) as picture, _without_stderr(picture.format == "TIFF"):
                pixels = _pixels(ImageOps.exif_transpose(picture), path)
                turned = picture.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
                several = picture.format != "MPO" and getattr(picture, "n_frames", 1) > 1
        except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
            raise InputError(f"{path}: the picture is too large to be read; make it smaller first") from error
    notes = (TURNED,) * turned + (FIRST_FRAME,) * several
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), notes


@contextmanager
def _without_stderr(silent: bool) -> Iterator[None]:
    """Without what libtiff writes to the process's stderr, past Python, about files that are damaged."""
    if not silent:
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


def _pixels(picture: Pillow.Image, path: Path) -> Array:
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
