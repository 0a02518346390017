"""Reads VNN-LIB 1.0 robustness queries: a box of inputs, and an output property that names the label."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError

BOUND = re.compile(r"\(assert\s+\((<=|>=)\s+X_(\d+)\s+([^\s()]+)\s*\)\s*\)")
ROUNDED = 1e-6
COMPARISON = re.compile(r"\((<=|>=)\s+Y_(\d+)\s+Y_(\d+)\s*\)")


@dataclass(frozen=True, eq=False)
class RobustnessQuery:
    """A box of inputs (flat, in the network's order) on which `label` must win."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    label: int


def centre(lower: NDArray[np.float64], upper: NDArray[np.float64]) -> NDArray[np.float64]:
    """The image a box was drawn around; all (channels, height, width).

    Boxes inside [0, 1] were clipped to it, and then the midpoint is not the centre: a side that begins at 0 is measured
    from its upper end, the others from their lower end, by half the widest side of the channel. A box that this rule
    does not explain (the result is outside, by more than rounded decimals are) gets its nearest point instead.
    """
    if lower.min() < 0 or upper.max() > 1:
        return np.asarray((lower + upper) / 2)
    radius = (upper - lower).max(axis=(1, 2), keepdims=True) / 2
    found = np.where(lower == 0, upper - radius, lower + radius)
    explained = (found >= lower - ROUNDED) & (found <= upper + ROUNDED)
    return np.asarray(np.where(explained, found, np.clip(found, lower, upper)))


def read_query(path: Path) -> RobustnessQuery:
    """The query in a .vnnlib or .vnnlib.gz file."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except OSError as error:
        raise InputError(f"{path}: cannot read the query ({error.strerror or error})") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a VNN-LIB file ({error})") from error
    text = re.sub(r";[^\n]*", "", text)
    bounds = {"<=": dict[int, float](), ">=": dict[int, float]()}
    try:
        for relation, index, number in BOUND.findall(text):
            bounds[relation][int(index)] = float(number)
    except ValueError as error:
        raise InputError(f"{path}: a bound of an input is not a number ({error})") from error
    size = text.count("declare-const X_")
    if not size or any(set(side) != set(range(size)) for side in bounds.values()):
        raise InputError(f"{path}: not a box: each of the {size} inputs X_i needs one lower and one upper bound")
    lower, upper = (np.array([bounds[side][i] for i in range(size)]) for side in (">=", "<="))
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower <= upper).all()):
        raise InputError(f"{path}: a bound of an input is not finite, or a lower bound exceeds an upper one")
    labels = set(_losers(text))
    if len(labels) != 1:
        raise InputError(f"{path}: the output property is not 'another class wins', so it names no label")
    return RobustnessQuery(lower, upper, labels.pop())


def _losers(text: str) -> Iterator[int]:
    """The class that each comparison of two outputs says is not above the other."""
    for relation, first, second in COMPARISON.findall(text):
        yield int(first if relation == "<=" else second)
