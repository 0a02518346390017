"""Arrays in .npy files and .npz archives, a picture at a time. What a header promises is checked, not believed."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from lzma import LZMAError
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError, by
from shakeproof.files import check_regular

Array = NDArray[Any]
LONGEST_HEADER = 2**14
# Of one picture.
MOST_BYTES = 2**30
# What numpy, zipfile and Pillow raise when they meet a file that is not what it seems.
DAMAGED = (
    EOFError,
    LZMAError,
    MemoryError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class StoredArray:
    """An array on disk: its shape and type at once, its rows when they are asked for, quickest in their order."""

    def __init__(self, path: Path, member: str | None = None) -> None:
        self.name = str(path) if member is None else f"{path}, array {member!r}"
        self._path, self._member = path, member
        self._stream: IO[bytes] | None = None
        check_regular(path)
        with reading(self.name), self._opened() as stream:
            beginning = BytesIO(stream.read(LONGEST_HEADER))  # a header may claim to be gigabytes long
            self.shape, self.dtype, self._columns_first = _header(beginning)
            self._start = beginning.tell()
            present = stream.seek(0, 2) if member is None else _unpacked_size(path, member)
        promised = self._start + prod(self.shape) * self.dtype.itemsize
        if promised > present:
            raise InputError(f"{self.name}: its header promises {promised} bytes, the file has {present}")

    def whole(self) -> Array:
        """All of it, as one picture."""
        found = self._read(0, self.shape)
        self._close()
        return found

    def row(self, index: int) -> Array:
        """One entry along the first axis."""
        if self._columns_first:
            picked: Array = self.whole()[index]
            return picked
        found = self._read(index, self.shape[1:])
        if index == len(self) - 1:
            self._close()
        return found

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __str__(self) -> str:
        return f"{by(self.shape) or 'one number'}, {self.dtype}"

    def _opened(self) -> IO[bytes]:
        if self._member is None:
            return self._path.open("rb")
        with zipfile.ZipFile(self._path) as archive:  # stays open until its member is closed
            return archive.open(f"{self._member}.npy")

    def _read(self, index: int, shape: tuple[int, ...]) -> Array:
        size = prod(shape) * self.dtype.itemsize
        if size > MOST_BYTES:
            raise InputError(f"{self.name}: a picture of {by(shape)} is larger than any that a network takes")
        with reading(self.name):
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


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array of format {version}")
    shape, columns_first, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, not numbers")
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, dtype, columns_first


def _unpacked_size(path: Path, member: str) -> int:
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo(f"{member}.npy").file_size


def array_names(path: Path) -> list[str]:
    """The arrays of an .npz archive."""
    check_regular(path)
    with reading(str(path)), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names):  # readers differ in which of both they take
            raise ValueError("it holds one name twice")
        return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]


def described(path: Path, names: Sequence[str]) -> str:
    """What an archive holds, in words."""

    def one(name: str) -> str:
        try:
            return f"{name} ({StoredArray(path, name)})"
        except InputError:
            return f"{name} (no array of numbers)"

    return ", ".join(map(one, names)) or "no arrays"


@contextmanager
def reading(name: str) -> Iterator[None]:
    """One line for whatever a broken file makes its reader meet."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{name}: cannot read the image ({error.strerror or 'not a readable picture'})") from error
    except DAMAGED as error:
        said = str(error).splitlines()[0] if str(error) else "damaged"
        raise InputError(f"{name}: not a readable image ({said})") from error
