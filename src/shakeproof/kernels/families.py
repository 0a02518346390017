"""The end kernels of each family. A family is its two ends; everything between is derived from them.

Reference: Brückner & Lomuscio, "Verification of Neural Networks Against Convolutional Perturbations via
Parameterised Kernels", AAAI 2025, Section 3 and appendix (even sizes included).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.kernels.kernel import Matrix, ParameterisedKernel, between, identity_matrix

LARGEST_SIZE = 999
LARGEST_ENTRY = 1e100


def identity() -> ParameterisedKernel:
    """The kernel that changes nothing at any strength."""
    return between(identity_matrix(1, 1), identity_matrix(1, 1))


def box_blur(size: int) -> ParameterisedKernel:
    """From the identity to the mean over a size x size square."""
    _check_size(size)
    return _from_identity(tuple((Fraction(1, size * size),) * size for _ in range(size)))


def sharpen(size: int) -> ParameterisedKernel:
    """From the identity to twice the identity minus the mean over the diamond around the centre.

    At an even size the diamond surrounds the four centre entries (the drawing in the paper's appendix).
    """
    _check_size(size)
    centre = identity_matrix(size, size)
    reach = (size - 1) // 2

    def outside(i: int) -> int:
        """How far a row or column is from the middle (from the nearer of two middles at an even size)."""
        return max(reach - i, i - size // 2, 0)

    diamond = [[outside(i) + outside(j) <= reach and not centre[i][j] for j in range(size)] for i in range(size)]
    weight = Fraction(1, sum(map(sum, diamond)))
    return _from_identity(
        tuple(tuple(2 * centre[i][j] - weight * diamond[i][j] for j in range(size)) for i in range(size))
    )


def motion_blur(size: int, angle: float) -> ParameterisedKernel:
    """From the identity to the mean along a line through the centre.

    `angle` is a bearing in degrees: 0 is up, growing clockwise. Each entry of the end kernel is proportional to the
    line's length inside that pixel, the line being clipped to the size x size square.
    """
    _check_size(size)
    if not math.isfinite(angle):
        raise InputError(f"motion-blur: angle must be a finite number of degrees, not {angle}")
    right, down = _direction(angle)
    entries = [[Fraction(0)] * size for _ in range(size)]
    for row, column, share in _pixels_on_ray(size, right, down):
        entries[row][column] += share / 2
        entries[size - 1 - row][size - 1 - column] += share / 2
    return _from_identity(tuple(map(tuple, entries)))


def custom_target(path: Path, normalise: bool) -> ParameterisedKernel:
    """From the identity to the kernel in a file: .npy, .csv (decimals or fractions) or a grey image."""
    end = _read_matrix(path)
    if normalise:
        total = sum(map(sum, end), Fraction(0))
        if total == 0:
            raise InputError(f"{path}: the kernel sums to 0, so it cannot be normalised")
        end = tuple(tuple(entry / total for entry in row) for row in end)
    return _from_identity(end)


def _from_identity(end: Matrix) -> ParameterisedKernel:
    return between(identity_matrix(len(end), len(end[0])), end)


def _check_size(size: int) -> None:
    if not isinstance(size, int) or not 3 <= size <= LARGEST_SIZE:
        raise InputError(
            f"kernel size {size} is not possible: use an odd size from 3 or an even size from 4, up to {LARGEST_SIZE}"
        )


def reduced(angle: float) -> float:
    """The same line's angle in [0, 180). (A tiny negative angle modulo 180 rounds to 180 itself, hence twice.)"""
    return angle % 180 % 180


def _direction(angle: float) -> tuple[Fraction, Fraction]:
    """The bearing as (right, down); exact for the multiples of 45 degrees."""
    eighth, rest = divmod(reduced(angle), 45)
    if rest == 0:
        compass = ((0, -1), (1, -1), (1, 0), (1, 1))
        right, down = compass[int(eighth)]
        return Fraction(right), Fraction(down)
    return Fraction(math.sin(math.radians(angle))), Fraction(-math.cos(math.radians(angle)))


def _pixels_on_ray(size: int, right: Fraction, down: Fraction) -> Iterator[tuple[int, int, Fraction]]:
    """(row, column, share of the ray's length) of each pixel met from the centre to the square's border.

    A ray that runs along the border between two pixels is shared equally by both.
    """
    half = Fraction(size, 2)
    end = half / max(abs(right), abs(down))
    cuts = {Fraction(0), end}
    for component in (right, down):
        if component:
            lines = (half - k for k in range(size + 1))
            cuts.update(t for t in (line / component for line in lines) if 0 < t < end)
    for before, after in pairwise(sorted(cuts)):
        middle = (before + after) / 2
        rows, columns = _cells(half + middle * down), _cells(half + middle * right)
        for row in rows:
            for column in columns:
                yield row, column, (after - before) / end / (len(rows) * len(columns))


def _cells(position: Fraction) -> list[int]:
    """The unit cell(s) holding a coordinate: two of them when it lies on a grid line."""
    cell = math.floor(position)
    return [cell - 1, cell] if cell == position else [cell]


def _read_matrix(path: Path) -> Matrix:
    readers = {".npy": _read_npy, ".csv": _read_csv, ".png": _read_picture}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: a kernel file is .npy, .csv or a grey .png, not {path.suffix or 'without ending'}")
    try:
        rows = reader(path)
        magnitude = float(max((abs(entry) for row in rows for entry in row), default=0))
    except OSError as error:
        raise InputError(f"{path}: cannot read the kernel ({error.strerror or 'not a readable file'})") from error
    except (ValueError, TypeError, ArithmeticError, csv.Error) as error:
        raise InputError(f"{path}: not a kernel of finite numbers ({error})") from error
    if magnitude > LARGEST_ENTRY:
        raise InputError(f"{path}: an entry of {magnitude:.3g} is too large for a kernel")
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{path}: a kernel is a matrix; its rows must be of one length, and not empty")
    if max(len(rows), len(rows[0])) > LARGEST_SIZE:
        raise InputError(
            f"{path}: a kernel has at most {LARGEST_SIZE} rows and columns, not {len(rows)} x {len(rows[0])}"
        )
    return rows


def _read_npy(path: Path) -> Matrix:
    import numpy as np

    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        raise ValueError("not an array with two axes")
    return _fractions(array.tolist())


def _read_csv(path: Path) -> Matrix:
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(tuple(Fraction(cell.strip()) for cell in row) for row in csv.reader(file) if row)


def _read_picture(path: Path) -> Matrix:
    import numpy as np
    from PIL import Image

    with Image.open(path) as picture:
        if picture.mode not in ("L", "1"):
            raise ValueError(f"a picture of mode {picture.mode}: save it as 8-bit grey")
        grey = np.asarray(picture.convert("L")).tolist()
    return tuple(tuple(Fraction(value, 255) for value in row) for row in grey)


def _fractions(rows: list[list[float]]) -> Matrix:
    return tuple(tuple(Fraction(value) for value in row) for row in rows)
