"""Matrices of degradations: each pixel of L x as a weighted sum of pixels of x.

A function here makes the matrix for a picture's sizes (channels, height, width). `around` gives the number, from 1, of
the pixel that each place of the padded picture shows, for how far a kernel (rows, columns) reaches; 0 is none. Weights
are multiples of 2^-40 and those of a pixel sum to 1, unless something else is said: what is flat stays as it is.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from shakeproof.errors import InputError
from shakeproof.question.kernel_matrices import gaussian, motion_line
from shakeproof.question.perturbation import LARGEST_ENTRY, Matrix, identity_matrix

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Shape = tuple[int, int, int]
Around = Callable[[tuple[int, int]], Places]
# Weights are whole multiples of 1 / UNITS.
UNITS = 2.0**40
# How many weights a matrix may have while it is made: about a gigabyte.
MOST_WEIGHTS = 2**25


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A sparse square matrix: row i is the sum of `weights` times the pixels `sources` from starts[i] to starts[i + 1].

    It has a row for each pixel of a channel and acts on every channel, or for each of the whole picture. The weights
    are taken as they are, without any error.
    """

    starts: Places
    sources: Places
    weights: Floats

    @staticmethod
    def checked(starts: NDArray[Any], sources: NDArray[Any], weights: NDArray[Any]) -> LinearMap:
        """Of numbers from elsewhere: ValueError where they are no such matrix. Entries at one place are added."""
        if any(part.ndim != 1 or part.dtype.kind not in kinds for part, kinds in
               ((starts, "iu"), (sources, "iu"), (weights, "fiub"))):  # fmt: skip
            raise ValueError("not the arrays of a sparse matrix of numbers")
        starts, sources, size = starts.astype(np.int64), sources.astype(np.int64), len(starts) - 1
        if size < 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] != len(sources) != len(weights):
            raise ValueError("its rows do not fit its entries")
        if len(sources) and not 0 <= sources.min() <= sources.max() < size:
            raise ValueError("a matrix of a picture is square")
        entries = weights.astype(np.float64)
        if not (np.abs(entries) <= LARGEST_ENTRY).all():
            raise ValueError(f"an entry is not a number of at most {LARGEST_ENTRY:g} either way")
        return from_entries(size, size, np.repeat(np.arange(size), np.diff(starts)), sources, entries)

    @staticmethod
    def unpacked(texts: Sequence[str]) -> LinearMap:
        """What `packed` wrote."""
        parts = [zlib.decompress(base64.b64decode(text)) for text in texts]
        return LinearMap.checked(*map(np.frombuffer, parts, ("<i8", "<i8", "<f8")))

    def packed(self) -> list[str]:
        """As texts, to be kept."""
        parts = zip((self.starts, self.sources, self.weights), ("<i8", "<i8", "<f8"), strict=True)
        return [base64.b64encode(zlib.compress(part.astype(kind).tobytes())).decode() for part, kind in parts]

    def __repr__(self) -> str:
        parts = (part.tobytes() for part in (self.starts, self.sources, self.weights))
        return f"<LinearMap {hashlib.sha256(b''.join(parts)).hexdigest()}>"

    @property
    def size(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def taps(self) -> int:
        """How many weights a row has at most."""
        return int(np.diff(self.starts).max(initial=0))

    @property
    def magnitude(self) -> LinearMap:
        """The absolute values of the weights."""
        return LinearMap(self.starts, self.sources, np.abs(self.weights))

    @cached_property
    def extremes(self) -> list[Fraction]:
        """The smallest weight, and what all of them are multiples of."""
        weights = np.unique(np.abs(self.weights[self.weights != 0]))
        units = [number.as_integer_ratio()[1] for number in weights.tolist()]  # all are powers of 2
        return [Fraction(weights[0]) if len(weights) else Fraction(1), Fraction(1, max(units, default=1))]

    def applied(self, images: Tensor) -> Tensor:
        """L x of images (..., height, width)."""
        import torch

        columns = images.reshape(-1, self.size).T
        rows = torch.from_numpy(np.repeat(np.arange(self.size), np.diff(self.starts)))
        places, weights = torch.stack([rows, torch.from_numpy(self.sources)]), torch.from_numpy(self.weights)
        size = (self.size, self.size)
        matrix = torch.sparse_coo_tensor(places, weights, size, is_coalesced=True, check_invariants=False)
        products: Tensor = torch.sparse.mm(matrix.to(images.device), columns)
        return products.T.reshape(images.shape)

    def summed(self, pixels: NDArray[Any], units: int) -> NDArray[Any]:
        """`units` L x of one image of whole numbers (channels, height, width), without rounding."""
        ratios = (weight.as_integer_ratio() for weight in self.weights.tolist())
        whole = np.array([numerator * (units // denominator) for numerator, denominator in ratios], object)
        columns = pixels.reshape(-1, self.size)
        terms = np.concatenate([whole * columns[:, self.sources], np.zeros((len(columns), 1), object)], 1)
        sums = np.add.reduceat(terms, self.starts[:-1], axis=1)
        return np.where(np.diff(self.starts) > 0, sums, 0).reshape(pixels.shape)


def as_floats(matrix: Matrix) -> Floats:
    return np.array([[float(entry) for entry in row] for row in matrix])


# -- making them ------------------------------------------------------------------------------------------------------


def from_entries(rows: int, columns: int, row: Places, column: Places, weight: Floats) -> LinearMap:
    """A matrix of entries in any order; those at one place are added."""
    keys, place = np.unique(row * columns + column, return_inverse=True)
    summed = np.bincount(place.reshape(-1), weight, len(keys))
    keys, summed = keys[summed != 0], summed[summed != 0]
    return LinearMap(np.searchsorted(keys, columns * np.arange(rows + 1)), keys % columns, summed)


def shared(matrix: LinearMap) -> LinearMap:
    """The weights of each row divided by their sum, as multiples of 1 / UNITS that sum to 1 exactly."""
    rows, heads = np.repeat(np.arange(matrix.size), np.diff(matrix.starts)), matrix.starts[:-1]
    units = np.rint(matrix.weights / np.add.reduceat(matrix.weights, heads)[rows] * UNITS)
    largest = np.lexsort([-units, rows])[heads]
    units[largest] += UNITS - np.add.reduceat(units, heads)
    return LinearMap(matrix.starts, matrix.sources, units / UNITS)


def _gathered(places: Places, weights: Floats) -> LinearMap:
    """Each pixel as the mean of pixels with these numbers, from 1 (taps, height, width); 0 stands for black."""
    _check_weights(places.size)
    height, width = places.shape[1:]
    rows = np.broadcast_to(np.arange(height * width).reshape(height, width), places.shape)
    pixels = height * width
    whole = shared(from_entries(pixels, pixels + 1, rows.ravel(), places.ravel(), weights.ravel()))
    inside = whole.sources > 0
    starts = np.append(0, np.cumsum(inside))[whole.starts]
    return LinearMap(starts, whole.sources[inside] - 1, whole.weights[inside])


def _check_weights(count: int) -> None:
    if count > MOST_WEIGHTS:
        raise InputError(f"its matrix would have {count:,} weights; take a smaller picture, or less of it")


def _by_kernels(shape: Shape, around: Around, kernels: Floats) -> LinearMap:
    """Each pixel by a kernel of its own, or of its row: (rows, columns, height or 1, width or 1); cross-correlation."""
    (tall, wide), (height, width) = kernels.shape[:2], shape[1:]
    (padded,), taps = around((tall, wide)), np.argwhere(kernels.any((2, 3)))
    _check_weights(len(taps) * height * width)
    places = np.stack([padded[i : i + height, j : j + width] for i, j in taps])
    return _gathered(places, np.broadcast_to(kernels[taps[:, 0], taps[:, 1]], places.shape))


def _moved(shape: Shape, around: Around, down: Floats, right: Floats) -> LinearMap:
    """The mean over copies (copies, height, width) whose pixels lie at these places, between pixels bilinearly."""
    ends = [(place.min(), place.max() - size + 1) for place, size in zip((down, right), shape[1:], strict=True)]
    reach = max(0, *(math.ceil(max(-low, high)) for low, high in ends))
    (padded,) = around((2 * reach + 1,) * 2)
    corners = np.floor([down, right]).astype(np.int64)
    places, weights = [], []
    for below in (0, 1):
        for beside in (0, 1):
            sides = zip((down, right), corners, (below, beside), strict=True)
            share = math.prod(1 - np.abs(place - corner - step) for place, corner, step in sides)
            last = np.array(padded.shape) - 1
            row, column = (np.minimum(corners[k] + reach + step, last[k]) for k, step in enumerate((below, beside)))
            places.append(padded[row, column])
            weights.append(share)
    return _gathered(np.concatenate(places), np.concatenate(weights))


def _from_middle(shape: Shape) -> tuple[Floats, Floats]:
    """How far below and to the right of the middle each pixel is, (height, 1) and (1, width)."""
    down, right = (np.arange(size, dtype=float) - (size - 1) / 2 for size in shape[1:])
    return down[:, None], right[None, :]


def _back(shape: Shape, down: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Places from the middle as places in the picture."""
    return down + (shape[1] - 1) / 2, right + (shape[2] - 1) / 2


def _copies(shape: Shape, farthest: float) -> int:
    """How many copies, so that what moves `farthest` pixels moves half a pixel from one to the next at most; an error,
    before any memory is taken, if their corners are too many weights.
    """
    count = math.ceil(2 * farthest) + 1
    _check_weights(4 * count * math.prod(shape[1:]))
    return count


# -- one for each family ----------------------------------------------------------------------------------------------


def zooming(shape: Shape, around: Around, by: float) -> LinearMap:
    """The mean over magnifications from 1 to `by`, in equal steps."""
    down, right = _from_middle(shape)
    farthest = float(np.hypot(down, right).max() * (1 - 1 / by))
    factors = np.linspace(1, by, _copies(shape, farthest)).reshape(-1, 1, 1)
    flat = np.zeros((len(factors), *shape[1:]))
    return _moved(shape, around, *_back(shape, flat + down / factors, flat + right / factors))


def turning(shape: Shape, around: Around, angle: float) -> LinearMap:
    """The mean over turns by -angle / 2 to angle / 2 degrees, in equal steps."""
    down, right = _from_middle(shape)
    farthest = float(np.hypot(down, right).max() * math.radians(angle))
    turns = np.radians(np.linspace(-angle / 2, angle / 2, _copies(shape, farthest))).reshape(-1, 1, 1)
    cos, sin = np.cos(turns), np.sin(turns)
    return _moved(shape, around, *_back(shape, cos * down - sin * right, sin * down + cos * right))


def by_rows(shape: Shape, around: Around, size: int, top: float, bottom: float) -> LinearMap:
    """Motion along a line whose angle goes from `top` in the first row to `bottom` in the last, in equal steps."""
    lines = [as_floats(motion_line(size, angle)) for angle in np.linspace(top, bottom, shape[1]).tolist()]
    return _by_kernels(shape, around, np.stack(lines, -1)[..., None])


def by_channels(shape: Shape, around: Around, size: int, *sigmas: float) -> LinearMap:
    """A Gaussian for each channel; sigma 0 leaves it as it is."""
    if shape[0] != len(sigmas):
        raise InputError(f"is about red, green and blue, and the picture has {shape[0]} channels")
    kernels = (gaussian(size, sigma) if sigma else identity_matrix(size, size) for sigma in sigmas)
    maps = [_by_kernels(shape, around, as_floats(kernel)[..., None, None]) for kernel in kernels]
    starts = np.concatenate([[0], *(np.diff(one.starts) for one in maps)]).cumsum()
    sources = [one.sources + number * one.size for number, one in enumerate(maps)]
    return LinearMap(starts, np.concatenate(sources), np.concatenate([one.weights for one in maps]))


def by_regions(shape: Shape, around: Around, kernels: Sequence[Sequence[Sequence[float]]], across: int) -> LinearMap:
    """A kernel at the middle of each region, `across` of them side by side, and in between their bilinear mixture."""
    rows = len(kernels) // across
    down, right = (
        np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        for size, count in zip(shape[1:], (rows, across), strict=True)
    )
    vertical, horizontal = (
        np.maximum(0, 1 - np.abs(places - np.arange(count)[:, None]))
        for places, count in ((down, rows), (right, across))
    )
    tall, wide = (max(len(kernel[0]) if side else len(kernel) for kernel in kernels) for side in (0, 1))
    _check_weights(tall * wide * shape[1] * shape[2])
    mixed = np.zeros((tall, wide, *shape[1:]))
    for number, kernel in enumerate(kernels):
        share = np.outer(vertical[number // across], horizontal[number % across])
        above, left = (tall - len(kernel)) // 2, (wide - len(kernel[0])) // 2
        inner = mixed[above : tall - above, left : wide - left]
        inner += np.multiply.outer(np.array(kernel), share)
    return _by_kernels(shape, around, mixed)


def as_it_is(shape: Shape, around: Around, matrix: LinearMap) -> LinearMap:
    """A matrix of the user's, for each channel or for the whole picture."""
    if matrix.size not in (shape[1] * shape[2], math.prod(shape)):
        picture = " x ".join(map(str, shape))
        raise InputError(f"the matrix has {matrix.size} rows, which is not the number of pixels of a {picture} picture")
    return matrix


def vignette(shape: Shape, around: Around, corner: float) -> LinearMap:
    """The fourth power of a cosine: what falls on a pixel of what falls on the middle, and `corner` in the corners."""
    down, right = _from_middle(shape)
    away = down**2 + right**2
    light = (1 + (corner**-0.5 - 1) * away / max(float(away.max()), 1.0)) ** -2
    places = np.arange(light.size + 1)
    return LinearMap(places, places[:-1], np.rint(light.ravel() * UNITS) / UNITS)


def resampled(shape: Shape, around: Around, factor: float, method: str) -> LinearMap:
    """Made smaller by a factor and as large again, as Pillow resizes."""
    sides = []
    for size in shape[1:]:
        fewer = max(1, round(size / factor))
        sides.append(resizing(fewer, size, method) @ resizing(size, fewer, method))
    (to_row, from_row), (to_column, from_column) = (np.nonzero(side) for side in sides)
    _check_weights(len(to_row) * len(to_column))
    size, width = shape[1] * shape[2], shape[2]
    row, source = np.add.outer(width * to_row, to_column), np.add.outer(width * from_row, from_column)
    weights = np.outer(sides[0][to_row, from_row], sides[1][to_column, from_column])
    return shared(from_entries(size, size, row.ravel(), source.ravel(), weights.ravel()))


def resizing(before: int, after: int, method: str) -> Floats:
    """Pillow's weights (after, before) for one side: a filter that is stretched where the picture gets smaller.

    Which pixel is nearest, Pillow says itself: where two are equally near, its own rounding decides.
    """
    if method == "nearest" or before == after:
        numbers = Pillow.fromarray(np.arange(before, dtype=np.float32)[None])
        chosen: Floats = np.eye(before)[
            np.asarray(numbers.resize((after, 1), Pillow.Resampling.NEAREST))[0].astype(int)
        ]
        return chosen
    reach, weight = _FILTERS[method]
    scale = before / after
    stretched = max(scale, 1.0)
    centre = (np.arange(after)[:, None] + 0.5) * scale
    first = np.maximum(np.floor(centre - reach * stretched + 0.5), 0)
    last = np.minimum(np.floor(centre + reach * stretched + 0.5), before)
    pixel = np.arange(before)
    inside = (pixel >= first) & (pixel < last)
    weights: Floats = np.where(inside, weight((pixel - centre + 0.5) / stretched), 0.0)
    weights /= weights.sum(1, keepdims=True)
    return weights


def _box(x: Floats) -> Floats:
    return np.where((x > -0.5) & (x <= 0.5), 1.0, 0.0)


def _triangle(x: Floats) -> Floats:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0.0)


def _hamming(x: Floats) -> Floats:
    return np.where(np.abs(x) < 1, np.sinc(x) * (0.54 + 0.46 * np.cos(np.pi * x)), 0.0)


def _cubic(x: Floats) -> Floats:
    x = np.abs(x)
    inner, outer = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, inner, np.where(x < 2, outer, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0.0)


# A filter of Pillow's: how far it reaches, and its weight at a distance.
_FILTERS: Mapping[str, tuple[float, Callable[[Floats], Floats]]] = {
    "box": (0.5, _box),
    "bilinear": (1.0, _triangle),
    "hamming": (1.0, _hamming),
    "bicubic": (2.0, _cubic),
    "lanczos": (3.0, _lanczos),
}
# By the names that degradations have for them.
MATRICES: Mapping[str, Callable[..., LinearMap]] = {
    make.__name__: make for make in (zooming, turning, by_rows, by_channels, by_regions, vignette, resampled, as_it_is)
}
