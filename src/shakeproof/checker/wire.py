"""ONNX files, read by hand: protobuf's wire format, and of ONNX what a network of constants and operators needs.

Fields that are not known are passed over, as protobuf does. Refused is what would change the meaning of a network: a
single field given twice, weights in another file or in segments, sparse weights, functions, by which a model may have
its own version of an operator.
"""

import gzip
import io
import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_BYTES = 2**32
FLOATS = (1, 11)  # ONNX's numbers of float32 and float64
OPSETS = range(7, 29)  # before, broadcasting was another; after, nobody knows yet
OURS = ("", "ai.onnx")  # the domain of ONNX's own operators
# Of tensors, by ONNX's number: numpy's name, and the field where the entries are if they are not raw bytes (field 9).
TYPES = {1: ("<f4", 4), 3: ("|i1", 5), 6: ("<i4", 5), 7: ("<i8", 7), 9: ("?", 5), 10: ("<f2", 9), 11: ("<f8", 10)}
RAW, ENTRIES = 9, {4, 5, 6, 7, 9, 10, 11}


class Refused(Exception):  # noqa: N818 - a finding, not a failure
    """Why something was not accepted, in one sentence."""


class Unknown(Refused):
    """The checker has no rule for something in the network."""


def require(holds: Any, otherwise: str, finding: type[Refused] = Refused) -> None:
    if not holds:
        raise finding(otherwise)


def fields(data: Any, field: int, *inner: int, wire: tuple[int, ...] = (0, 2)) -> list[Any]:
    """All that a protobuf message gives for a field, or for a field of that one, and so on: numbers, or bytes."""
    found, place, end = list[Any](), 0, 0
    while place < len(data):
        key, place = varint(data, place)
        value, end = varint(data, place) if key % 8 in (0, 2) else (0, place + {1: 8, 5: 4}[key % 8])
        if key % 8 == 2:
            place, end = end, end + value
        require(key > 7 and place <= end <= len(data), "the model file is cut short")
        if key // 8 == field and key % 8 in wire:
            found.append(value if key % 8 == 0 else data[place:end])
        place = end
    return [value for message in found for value in fields(message, *inner)] if inner else found


def varint(data: Any, place: int) -> tuple[int, int]:
    """A whole number of 64 bits, which may be negative, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        byte, place = data[place], place + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number + 2**63) % 2**64 - 2**63, place
    raise Refused("the model is not an ONNX file: a number has no end")


def one(data: Any, *path: int, default: Any = 0) -> Any:
    found = fields(data, *path) or [default]
    require(len(found) == 1, "the model gives a single field twice")
    return found[0]


def text(data: Any, field: int) -> str:
    return str(one(data, field, default=b""), "utf-8")


def numbers(data: Any, field: int) -> list[int]:
    """Each by itself, or packed."""
    found = []
    for piece in fields(data, field):
        place = 0
        found += [piece] if isinstance(piece, int) else []
        while not isinstance(piece, int) and place < len(piece):
            number, place = varint(piece, place)
            found.append(number)
    return found


def _tensor(data: Any) -> Array:
    kind, shape = one(data, 2), numbers(data, 1)
    outside = fields(data, 3) or fields(data, 13) or one(data, 14)
    require(not outside, "the model keeps weights outside its file, which is not supported")
    require(kind in TYPES and min(shape, default=0) >= 0, f"a constant of ONNX type {kind}, shape {shape}", Unknown)
    dtype, own = TYPES[kind]
    held = [field for field in ENTRIES if fields(data, field, wire=(0, 1, 2, 5))] or [RAW]
    require(held in ([RAW], [own]), "the model gives a constant twice, or not as its type says")
    raw = b"" if held[0] in (5, 7) else b"".join(fields(data, *held))
    entries = np.array(numbers(data, own)) if held[0] in (5, 7) else np.frombuffer(raw, dtype)
    array = entries.astype(dtype)
    fits = array.size == math.prod(shape) and np.array_equal(array, entries, equal_nan=True)
    require(fits, "the model holds a constant with other entries than its type and shape say")
    return exact(array).reshape(shape)


def exact(array: Array) -> Array:
    """Floats widened to float64 (those of 16 bits are by a Cast), integers to int64."""
    if array.dtype == np.float16:
        return array
    return array.astype({"f": np.float64, "b": np.bool_}.get(array.dtype.kind, np.int64))


class Operation(NamedTuple):
    """A node of the graph."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


# What an attribute is, by the number of its type.
ATTRIBUTES: dict[int, Any] = {
    1: lambda data: struct.unpack("<f", b"".join(fields(data, 2, wire=(5,))))[0],
    2: lambda data: one(data, 3),
    3: lambda data: text(data, 4),
    4: lambda data: _tensor(one(data, 5)),
    7: lambda data: numbers(data, 8),
}


def _operation(node: Any) -> Operation:
    domain, kind, attributes = text(node, 7), text(node, 4), dict[str, Any]()
    for given in fields(node, 5):
        name, number = text(given, 1), one(given, 20)
        plain = number in ATTRIBUTES and not fields(given, 21) and name not in attributes
        require(plain, f"{kind} with an attribute {name} of a kind not known, or given twice", Unknown)
        attributes[name] = ATTRIBUTES[number](given)
    inputs, outputs = ([str(name, "utf-8") for name in fields(node, field)] for field in (1, 2))
    return Operation(kind if domain in OURS else f"{domain}::{kind}", inputs, outputs, attributes)


class Model(NamedTuple):
    """What an ONNX file says: constants by name, operations in order, one picture in, class scores out."""

    constants: dict[str, Array]
    operations: list[Operation]
    input: str
    input_shape: list[int]
    output: str


def unzipped(data: bytes) -> bytes:
    """The bytes of a .onnx file, or those in a .onnx.gz file."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    require(len(data) <= MOST_BYTES, "the model is larger than 4 GiB")
    return data


def read_model(data: bytes) -> Model:
    """The model in the bytes of a .onnx or .onnx.gz file."""
    model = memoryview(unzipped(data))
    graph = one(model, 7, default=b"")
    require(not fields(model, 25) and not fields(graph, 15), "a model with functions, or sparse weights", Unknown)
    opsets = {one(opset, 2) for opset in fields(model, 8) if text(opset, 1) in OURS}
    require(opsets <= {*OPSETS}, f"version {opsets} of ONNX's operators, which the checker does not know", Unknown)
    constants = {text(tensor, 8): _tensor(tensor) for tensor in fields(graph, 5)}
    inputs = [value for value in fields(graph, 11) if text(value, 1) not in constants]
    single = len(opsets) == len(inputs) == 1 and len(constants) == len(fields(graph, 5))
    require(single, "the model needs one version of ONNX's operators, one input, and a name for each constant")
    shape = [one(dimension, 1) for dimension in fields(inputs[0], 2, 1, 2, 1)]
    shape[:1] = [1] if shape[:1] == [0] and len(shape) > 1 else shape[:1]  # an open first axis counts pictures
    fits = one(inputs[0], 2, 1, 1) in FLOATS and min(shape, default=0) > 0
    require(fits, "the model's input is not a float32 or float64 array of known shape")
    operations = [_operation(node) for node in fields(graph, 1)]
    return Model(constants, operations, text(inputs[0], 1), shape, text(fields(graph, 12)[0], 1))
