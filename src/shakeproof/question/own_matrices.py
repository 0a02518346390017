"""Matrices of the user's own: scipy's sparse files, and functions that become such files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError
from shakeproof.files import write_whole
from shakeproof.question.kernel_files import read_archive, readable
from shakeproof.question.linear_maps import Floats, LinearMap, Places, from_entries

# So many pixels are looked at one by one, and a function may miss its own sums by this share of their sizes.
MOST_PROBED, TOLERANCE = 2**16, 1e-6


def read_sparse(path: Path) -> LinearMap:
    """The matrix that `scipy.sparse.save_npz` wrote, in the format csr, csc or coo."""
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: a matrix's file is an .npz, as scipy.sparse.save_npz writes it")
    with readable(path, "a sparse matrix"):
        arrays = read_archive(path)
        kind = arrays["format"].item()
        kind = kind.decode() if isinstance(kind, bytes) else kind
        rows, columns = map(int, arrays["shape"])
        if rows != columns:
            raise ValueError(f"it has {rows} rows and {columns} columns; a matrix of a picture is square")
        if kind == "coo":
            return _by_rows(arrays["row"], arrays["col"], arrays["data"], rows)
        if kind not in ("csr", "csc"):
            raise ValueError(f"it has the format {kind}; save it as csr")
        if len(arrays["indptr"]) != rows + 1:
            raise ValueError("its rows do not fit its entries")
        matrix = LinearMap.checked(arrays["indptr"], arrays["indices"], arrays["data"])
        if kind == "csr":
            return matrix
        return _by_rows(matrix.sources, np.repeat(np.arange(rows), np.diff(matrix.starts)), matrix.weights, rows)


def _by_rows(row: NDArray[Any], column: NDArray[Any], weight: NDArray[Any], size: int) -> LinearMap:
    """From entries in any order."""
    if row.dtype.kind not in "iu" or row.shape != column.shape or not ((row >= 0) & (row < size)).all():
        raise ValueError("its rows do not fit its entries")
    order = np.argsort(row, kind="stable")
    starts = np.searchsorted(row[order], np.arange(size + 1))
    return LinearMap.checked(starts, column[order], weight[order])


def write_linear(function: Callable[[Floats], Any], image_shape: Sequence[int], file: str | Path) -> Path:
    """Write a linear function of pictures as a matrix, for `linear`: an `.npz` file that scipy.sparse reads, too.

    The function takes and returns an array (channels, height, width) in float64. It is asked what it makes of each
    pixel alone; random pictures show whether it is linear.
    """
    shape, path = tuple(map(int, image_shape)), Path(file)
    if len(shape) != 3 or min(shape) < 1 or math.prod(shape) > MOST_PROBED:
        raise InputError(f"a picture (channels, height, width) may have {MOST_PROBED:,} numbers, not {image_shape}")
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: a matrix is written to an .npz file")
    matrix = _probed(function, shape)
    _check_linear(function, matrix, shape)
    arrays: dict[str, Any] = {"indices": matrix.sources, "indptr": matrix.starts, "data": matrix.weights}
    np.savez_compressed(stream := BytesIO(), format=b"csr", shape=[matrix.size] * 2, **arrays)
    write_whole({path: stream.getvalue()})
    return path


def _probed(function: Callable[[Floats], Any], shape: tuple[int, ...]) -> LinearMap:
    """A column for each pixel."""
    size = math.prod(shape)
    rows, columns, weights = list[Places](), list[Places](), list[Floats]()
    for pixel in range(size):
        point = np.zeros(size)
        point[pixel] = 1
        spread = _applied(function, point.reshape(shape)).ravel()
        (places,) = spread.nonzero()
        rows.append(places)
        columns.append(np.full(len(places), pixel))
        weights.append(spread[places])
    return from_entries(size, size, np.concatenate(rows), np.concatenate(columns), np.concatenate(weights))


def _applied(function: Callable[[Floats], Any], picture: Floats) -> Floats:
    degraded = np.asarray(function(picture.copy()), np.float64)
    if degraded.shape != picture.shape or not np.isfinite(degraded).all():
        raise InputError(
            f"the function must return finite numbers of the shape {picture.shape}, not of {degraded.shape}"
        )
    return degraded


def _check_linear(function: Callable[[Floats], Any], matrix: LinearMap, shape: tuple[int, ...]) -> None:
    """Of pictures, the function must make what it makes of their pixels, added up."""
    import torch

    random = np.random.default_rng(0)
    pictures = [np.zeros(shape), random.uniform(0, 1, shape), random.uniform(0, 255, shape), random.normal(0, 9, shape)]
    for picture in (*pictures, -pictures[1]):
        expected, sizes = (
            each.applied(torch.from_numpy(values)).numpy()
            for each, values in ((matrix, picture), (matrix.magnitude, np.abs(picture)))
        )
        off = np.abs(_applied(function, picture) - expected)
        if (off > TOLERANCE * sizes).any():
            raise InputError(
                f"the function is not linear: what it makes of a picture of numbers from {picture.min():.3g} to"
                f" {picture.max():.3g} is {off.max():.3g} off the sum of what it makes of its pixels; leave clipping,"
                " rounding and constants out of it"
            )
