"""Kernels from files: arrays, tables, pictures, Matlab's variables, and archives of several."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shakeproof.errors import InputError
from shakeproof.files import check_regular
from shakeproof.question.perturbation import LARGEST_ENTRY, LARGEST_SIZE, Matrix

# Unpacked, all kernels of a file: a hundred of the largest.
MOST_BYTES = 10**9
# What numpy, zipfile, Pillow and others raise when they meet a damaged file, beyond what the system says.
DAMAGED = (
    ArithmeticError,
    EOFError,
    LZMAError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    csv.Error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_matrix(path: Path, index: str | None = None) -> Matrix:
    """The kernel in a file, or of several the one with that name or, counted from 0, that number."""
    (matrix,) = _read(path, lambda several: [_chosen(path, several, index)])
    return matrix


def read_matrices(path: Path) -> list[Matrix]:
    """All kernels in a file, in its order."""
    return _read(path, lambda several: [*several.values()])


def _read(path: Path, choose: Callable[[Mapping[str, Any]], list[Any]]) -> list[Matrix]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: a kernel file is one of {', '.join(READERS)}, not {path.suffix or 'without ending'}")
    with readable(path, "a kernel"):
        matrices = [_exact(array) for array in choose(reader(path))]
        magnitude = float(max((abs(entry) for rows in matrices for row in rows for entry in row), default=0))
    if magnitude > LARGEST_ENTRY:
        raise InputError(f"{path}: an entry of {magnitude:.3g} is too large for a kernel")
    for rows in matrices:
        if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
            raise InputError(f"{path}: a kernel is a matrix; its rows must be of one length, and not empty")
        if max(len(rows), len(rows[0])) > LARGEST_SIZE:
            raise InputError(
                f"{path}: a kernel has at most {LARGEST_SIZE} rows and columns, not {len(rows)} x {len(rows[0])}"
            )
    return matrices


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Context for reading a file: turns any failure into one line."""
    check_regular(path)
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot read {what} ({error.strerror or 'not a readable file'})") from error
    except DAMAGED as error:
        reason = next(iter(str(error).splitlines()), "damaged")
        raise InputError(f"{path}: not {what} of finite numbers ({reason})") from error


def _chosen(path: Path, several: Mapping[str, Any], index: str | None) -> Any:
    names = list(several)
    if index is None and len(names) == 1:
        return several[names[0]]
    if index is not None and index in several:
        return several[index]
    if index is not None and re.fullmatch(r"\d{1,9}", index) and int(index) < len(names):
        return several[names[int(index)]]
    there = ", ".join(names[:5]) + (f", ... {names[-1]}" if len(names) > 5 else "") if names else "nothing"
    problem = "say which kernel is meant by index=" if index is None else f"there is no kernel {index!r}"
    raise InputError(f"{path}: {problem}; the file has {there}")


def _exact(matrix: Any) -> Matrix:
    """An array with two axes, or rows that are fractions already."""
    if isinstance(matrix, tuple):
        return matrix
    if getattr(matrix, "ndim", None) != 2 or matrix.dtype.kind not in "fiub":
        raise ValueError("not an array of numbers with two axes")
    return tuple(tuple(map(Fraction, row)) for row in matrix.tolist())


def _read_npy(path: Path) -> Mapping[str, Any]:
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive that is named like an array")
    return _layers({"0": array})


def _read_npz(path: Path) -> Mapping[str, Any]:
    return _layers(read_archive(path))


def read_archive(path: Path) -> dict[str, Any]:
    """The arrays in an .npz file, by name."""
    archive = np.load(path, allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise ValueError("an array that is named like an archive")
    with archive:
        if sum(member.file_size for member in archive.zip.infolist()) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes are too many")
        return _arrays(archive)


def _arrays(archive: Any) -> dict[str, Any]:
    """The arrays of an archive by the names of its members: numpy calls `x.npy` `x`."""
    members = archive.zip.namelist()
    if len({*archive.files}) < len(members):
        raise ValueError("it contains one name twice")
    return {name: archive[member] for name, member in zip(archive.files, members, strict=True)}


def _layers(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arrays by name; of a single one with three axes, its layers by number."""
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    return arrays if only is None or only.ndim != 3 else {str(number): each for number, each in enumerate(only)}


# scipy's reader crashes on some damaged files, so it runs in a process of its own, which writes an .npz archive: the
# variables by name, or the cells of a single one by number.
MATLAB_READER = """
import io, resource, sys, zipfile
import numpy as np
from scipy.io import loadmat

most_bytes = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_DATA, (most_bytes + 2**30,) * 2)
too_many = f"more than {most_bytes} bytes are too many"
try:
    variables = loadmat(io.BytesIO(sys.stdin.buffer.read()))
except NotImplementedError:
    sys.exit("a Matlab file of another version; save it with -v7")
except MemoryError:
    sys.exit(too_many)
except Exception as error:
    sys.exit(f"scipy cannot read it: {error}")
arrays = {name: np.asarray(value) for name, value in variables.items() if not name.startswith("__")}
if len(arrays) == 1:
    (only,) = arrays.values()
    cells = only.ravel("F") if only.dtype == object else np.moveaxis(only, -1, 0) if only.ndim == 3 else None
    arrays = arrays if cells is None else {str(number): np.asarray(cell) for number, cell in enumerate(cells)}
if sum(array.nbytes for array in arrays.values()) > most_bytes:
    sys.exit(too_many)
with zipfile.ZipFile(sys.stdout.buffer, "w") as archive:
    for name, array in arrays.items():
        with archive.open(name + ".npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, np.empty(0) if array.dtype.hasobject else array)
"""
MATLAB_SECONDS = 60.0


def _read_mat(path: Path) -> Mapping[str, Any]:
    command = [sys.executable, "-P", "-c", MATLAB_READER, str(MOST_BYTES)]
    try:
        done = subprocess.run(
            command, input=path.read_bytes(), capture_output=True, timeout=MATLAB_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading it takes more than {MATLAB_SECONDS:g} seconds") from None
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace") if done.returncode == 1 else "damaged")
    with np.load(BytesIO(done.stdout), allow_pickle=False) as archive:
        return _arrays(archive)


def _read_csv(path: Path) -> Mapping[str, Any]:
    with path.open(newline="", encoding="utf-8") as file:
        return {"0": tuple(tuple(Fraction(cell.strip()) for cell in row) for row in csv.reader(file) if row)}


def _read_picture(path: Path) -> Mapping[str, Any]:
    try:
        opened = Image.open(path, formats=["PNG"])  # for other formats, Pillow may start programs
    except Image.DecompressionBombError as error:
        raise ValueError("a picture as large as that") from error
    with opened as picture:
        if max(picture.size) > LARGEST_SIZE:
            raise ValueError(f"{picture.height} x {picture.width} pixels, of {LARGEST_SIZE} at most each way")
        if picture.mode not in ("L", "1") and not picture.mode.startswith("I"):
            raise ValueError(f"a picture of mode {picture.mode}: save it as grey")
        white = 65535 if picture.mode.startswith("I") else 255
        grey = np.asarray(picture if white > 255 else picture.convert("L")).tolist()
    return {"0": tuple(tuple(Fraction(value, white) for value in row) for row in grey)}


READERS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".mat": _read_mat,
    ".csv": _read_csv,
    ".png": _read_picture,
}
