"""Changes to the bytes of an ONNX file that keep its structure: fields moved, repeated, hidden, written otherwise."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from fuzzing.changes import Random

NUMBERS = (0, 1, 2, 3, -1, -2, 4, 7, 127, 128, 255, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**31), -(2**63))


@dataclass
class Field:
    """A field as it is written: its number, its wire type, and a number, bytes, or the fields of a message.

    `key` is added to the key; `key_longer` and `longer` are how many bytes more than needed key and number take.
    """

    number: int
    wire: int
    value: Any
    kind: Any = None  # protobuf's descriptor of the field, if it is known
    key: int = 0
    key_longer: int = 0
    longer: int = 0


def varint(number: int, longer: int = 0) -> bytes:
    number, made = number + 2**64 if number < 0 else number, bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    for _ in range(longer):
        made[-1] |= 128
        made.append(0)
    return bytes(made)


def parsed(data: bytes, message: Any) -> list[Field]:
    """The fields of a message that protobuf itself wrote."""
    found, place = list[Field](), 0

    def number() -> int:
        nonlocal place
        made = shift = 0
        while True:
            byte, place = data[place], place + 1
            made |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return made

    while place < len(data):
        key = number()
        kind, wire = message.fields_by_number.get(key >> 3), key & 7
        if wire == 0:
            found.append(Field(key >> 3, wire, number(), kind))
            continue
        length = {1: 8, 5: 4}.get(wire) or number()
        piece, place = data[place : place + length], place + length
        inner = kind is not None and kind.message_type is not None
        found.append(Field(key >> 3, wire, parsed(piece, kind.message_type) if inner else piece, kind))
    return found


def written(fields: list[Field]) -> bytes:
    made = b""
    for field in fields:
        value = written(field.value) if isinstance(field.value, list) else field.value
        made += varint((field.number << 3 | field.wire) + field.key, field.key_longer)
        if isinstance(value, int):
            made += varint(value, field.longer)
        else:
            made += (varint(len(value)) if field.wire == 2 else b"") + value
    return made


def messages(fields: list[Field]) -> Iterator[list[Field]]:
    yield fields
    for field in fields:
        if isinstance(field.value, list):
            yield from messages(field.value)


def _copied(field: Field) -> Field:
    return replace(field, value=[*map(_copied, field.value)] if isinstance(field.value, list) else field.value)


def moved(fields: list[Field], place: int, random: Random) -> None:
    fields.insert(int(random.integers(len(fields))), fields.pop(place))


def shuffled(fields: list[Field], place: int, random: Random) -> None:
    fields[:] = [fields[i] for i in random.permutation(len(fields))]


def dropped(fields: list[Field], place: int, random: Random) -> None:
    del fields[place]


def repeated(fields: list[Field], place: int, random: Random) -> None:
    """Again, as it is or a little changed, behind or before."""
    again = _copied(fields[place])
    if random.random() < 0.5:
        _changed_value(again, random)
    fields.insert(int(random.integers(len(fields) + 1)), again)


def hidden(fields: list[Field], place: int, random: Random) -> None:
    """Once more, changed, with a key of more than 32 bits, which some readers cut and others do not know."""
    again = _copied(fields[place])
    _changed_value(again, random)
    again.key = int(random.choice([2**32, 2**33, 2**35]))
    fields.insert(place + int(random.integers(2)), again)


def numbered(fields: list[Field], place: int, random: Random) -> None:
    """Of another number, known or not."""
    fields[place].number = int(random.choice([0, *range(1, 30), 100, 2**29 - 1]))


def rewired(fields: list[Field], place: int, random: Random) -> None:
    field = fields[place]
    data = written(field.value) if isinstance(field.value, list) else field.value
    field.wire = int(random.choice([0, 1, 2, 2, 2, 3, 4, 5]))
    number = data if isinstance(data, int) else int.from_bytes(data[:8], "little")
    field.value = {
        0: number,
        1: struct.pack("<Q", number % 2**64),
        2: varint(data) if isinstance(data, int) else data,
        5: struct.pack("<I", number % 2**32),
    }.get(field.wire, b"")


def longer(fields: list[Field], place: int, random: Random) -> None:
    """Numbers and keys in more bytes than they need, or with bits beyond those that fit."""
    field = fields[place]
    if not isinstance(field.value, int) or random.random() < 0.3:
        field.key_longer = int(random.integers(1, 4))
    elif random.random() < 0.5:
        field.longer = int(random.integers(1, 4))
    else:
        field.value = field.value % 2**64 + int(random.choice([2**32, 2**40])) + 2**64 * int(random.integers(2))


def packed(fields: list[Field], place: int, random: Random) -> None:
    """Numbers side by side in one field, or each in its own."""
    field = fields[place]
    kind = field.kind
    if kind is None or not kind.is_repeated or kind.message_type is not None:
        return
    same = [other for other in fields if other.number == field.number]
    width = {kind.CPPTYPE_FLOAT: (5, 4), kind.CPPTYPE_DOUBLE: (1, 8)}.get(kind.cpp_type)
    numbers = kind.cpp_type in (kind.CPPTYPE_INT32, kind.CPPTYPE_INT64, kind.CPPTYPE_UINT64)
    if numbers and field.wire == 0:
        fields[:] = [other for other in fields if other.number != field.number]
        fields.append(replace(field, wire=2, value=b"".join(varint(other.value) for other in same)))
    elif field.wire == 2 and width and isinstance(field.value, bytes):
        wire, size = width
        pieces = [field.value[i : i + size] for i in range(0, len(field.value), size)]
        fields[place : place + 1] = [replace(field, wire=wire, value=piece) for piece in pieces]


def changed(fields: list[Field], place: int, random: Random) -> None:
    _changed_value(fields[place], random)


def _changed_value(field: Field, random: Random) -> None:
    if isinstance(field.value, int):
        field.value = int(random.choice(NUMBERS)) if random.random() < 0.6 else field.value ^ 1
    elif isinstance(field.value, list):
        if field.value:
            _changed_value(field.value[random.integers(len(field.value))], random)
    elif field.value and field.wire == 2:
        words = np.frombuffer(field.value, np.uint8).copy()
        words[random.integers(len(words))] ^= 1 << random.integers(8)
        cut = [words.tobytes(), field.value[:-1], b"", field.value[::-1], field.value[4:] + field.value[:4]]
        field.value = cut[random.integers(len(cut))]


def exchanged(fields: list[Field], place: int, random: Random) -> None:
    """Two of one kind change places: nodes, inputs, sizes."""
    same = [i for i, other in enumerate(fields) if other.number == fields[place].number]
    other = same[random.integers(len(same))]
    fields[place], fields[other] = fields[other], fields[place]


CHANGES: tuple[Callable[[list[Field], int, Random], None], ...] = (
    moved, shuffled, dropped, repeated, hidden, numbered, rewired, longer, packed, changed, exchanged,
)  # fmt: skip


def with_a_field_written_otherwise(data: bytes, random: Random) -> bytes:
    """One change to one message of a model that protobuf wrote."""
    tree = parsed(data, onnx.ModelProto.DESCRIPTOR)
    places = [(fields, place) for fields in messages(tree) for place in range(len(fields))]
    fields, place = places[random.integers(len(places))]
    CHANGES[random.integers(len(CHANGES))](fields, place, random)
    return written(tree)
