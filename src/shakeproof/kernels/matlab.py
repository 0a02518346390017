"""Matrices in Matlab files, version 5 (saved with -v6 or -v7): arrays of numbers and cells of them, nothing else.

Reference: The MathWorks, "MAT-File Format". (scipy's reader ends the whole process on some damaged files.)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

HEADER = 128
BYTE_ORDERS = {b"IM": "<", b"MI": ">"}
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, COMPRESSED = 14, 15
CELLS, NUMERIC, COMPLEX = 1, range(6, 16), 0x800


def read_variables(data: bytes, most_bytes: int) -> Mapping[str, Any]:
    """Each variable's value by its name: an array, the sequence of its cells, or None if it is something else."""
    order = BYTE_ORDERS.get(data[HEADER - 2 : HEADER])
    if order is None or data[:10] == b"MATLAB 7.3":
        raise ValueError("a Matlab file of another version; save it with -v7")
    found = {}
    for kind, body in _elements(data[HEADER:], order):
        if kind == COMPRESSED:
            ((kind, body),) = _elements(_unpacked(body, most_bytes), order)
        if kind == MATRIX:
            name, value = _matrix(body, order)
            found[name] = value
    return found


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """The type and the bytes of each element; up to four bytes may stand in the tag itself."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, place)
        start, step = place + 8, 8 + size
        if kind >> 16:
            start, size, kind, step = place + 4, kind >> 16, kind & 0xFFFF, 8
        elif kind != COMPRESSED:
            step += -size % 8
        place += step
        if start + size > len(data):
            raise ValueError("it ends too early")
        yield kind, data[start : start + size]


def _unpacked(body: bytes, most_bytes: int) -> bytes:
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(body, most_bytes)
    if unpacking.unconsumed_tail:
        raise ValueError(f"more than {most_bytes} bytes are too many")
    return data


def _matrix(body: bytes, order: str) -> tuple[str, Sequence[Any] | np.ndarray[Any, Any] | None]:
    (_, flags), (_, sizes), (_, name), *rest = _elements(body, order)
    (flag,) = struct.unpack_from(f"{order}I", flags)
    value: Sequence[Any] | np.ndarray[Any, Any] | None = None
    if flag & 0xFF == CELLS:
        value = [_matrix(cell, order)[1] for _, cell in rest]
    elif flag & 0xFF in NUMERIC and not flag & COMPLEX:
        ((kind, numbers),) = rest
        shape = np.frombuffer(sizes, f"{order}i4").tolist()
        value = np.frombuffer(numbers, order + NUMBERS[kind]).reshape(shape, order="F")
    return name.decode("ascii", "replace"), value
