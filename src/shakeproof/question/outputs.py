"""A network's outputs as one flat vector with named parts, and the addresses of single outputs in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError, by

Indices = NDArray[np.int64]
_ADDRESS = re.compile(r"(?P<name>.*?)(?:\[(?P<index>[^\[\]]*)\])?")
_INDEX = re.compile(r"-?\d{1,9}|(?:-?\d{1,9})?:(?:-?\d{1,9})?")


@dataclass(frozen=True)
class OutputPart:
    """One of a network's outputs: its name and its shape for one image, without an axis for the batch."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name} [{', '.join(map(str, self.shape))}]"


def output_part(name: str, shape: Sequence[int]) -> OutputPart:
    """An output as the model gives it for one image: a first axis of length 1 is the batch's, unless it is alone."""
    return OutputPart(name, tuple(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape))


def listed(parts: Sequence[OutputPart]) -> str:
    return ", ".join(map(str, parts))


def places(parts: Sequence[OutputPart], address: str) -> Indices:
    """The places in the flat vector of the outputs that an address means, in the address's own shape.

    Addresses are `12` (a place), `steering` (a part), `boxes[3,1]`, `scores[:,0]` or, where there is one part, `[3,1]`.
    Indices count from 0, or backwards from -1; `:` stands for all, `2:5` for some. Axes that are left out are whole.
    """
    match = _ADDRESS.fullmatch(address.strip())
    name, index = (match["name"], match["index"]) if match else (address, None)
    ends = np.cumsum([0, *(part.size for part in parts)])
    if name.isdecimal() and index is None and name not in {part.name for part in parts}:
        if int(name) >= ends[-1]:
            raise InputError(f"{address}: the network's {ends[-1]} outputs are numbered from 0 to {ends[-1] - 1}")
        return np.array(int(name))
    matches = [number for number, part in enumerate(parts) if part.name == name or not (name or parts[1:])]
    if not matches:
        raise InputError(
            f"{address!r} is not among the analysed outputs: {listed(parts)}; name others", option="output_name"
        )
    part, start = parts[matches[0]], int(ends[matches[0]])
    numbers: Indices = start + np.arange(part.size).reshape(part.shape)
    if index is None:
        return numbers
    words = [word.strip() for word in index.split(",")]
    if len(words) > len(part.shape) or not all(_INDEX.fullmatch(word) for word in words):
        raise InputError(f"{address}: {part} takes up to {len(part.shape)} indices: numbers, or ranges such as 2:5")
    try:
        chosen: Indices = numbers[tuple(map(_index, words))]
    except IndexError:
        raise InputError(f"{address}: is outside of {part.name}, which is {by(part.shape)}") from None
    if not chosen.size:
        raise InputError(f"{address}: means none of the outputs of {part.name}, which is {by(part.shape)}")
    return chosen


def _index(word: str) -> int | slice:
    if ":" not in word:
        return int(word)
    first, _, last = word.partition(":")
    return slice(int(first) if first else None, int(last) if last else None)


def one_place(parts: Sequence[OutputPart], address: str) -> int:
    """The place of the only output that an address means."""
    indices = places(parts, address)
    if indices.size != 1:
        raise InputError(
            f"{address}: means {indices.size} outputs ({by(indices.shape)}); name one of them by its indices"
        )
    return int(indices.reshape(()))
