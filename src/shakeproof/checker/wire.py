"""ONNX files, read by hand: protobuf's wire format, and of ONNX what a network of constants and operators needs.

Fields that are not known are passed over, as protobuf does. Refused is what would change the meaning of a network: a
single field given twice, weights in another file or in segments, sparse weights, functions, by which a model may have
its own version of an operator.
"""

import gzip
import io
import math
import struct
from operator import index
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


class Message(dict[int, list[Any]]):
    """A protobuf message: what was given for each field, numbers or bytes; what has 4 or 8 bytes, under -field."""

    def __init__(self, data: memoryview) -> None:
        place = 0
        while place < len(data):
            key, place = varint(data, place)
            field, kind = divmod(key, 8)
            values = self.setdefault(field if kind in (0, 2) else -field, [])
            if kind == 0:
                number, place = varint(data, place)
                values.append(number)
            else:
                length, place = varint(data, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
                require(field > 0 <= length <= len(data) - place, "the model file is cut short")
                values.append(data[place : place + length])
                place += length

    def one(self, field: int, default: Any = b"") -> Any:
        found = self.get(field, [default])
        require(len(found) == 1, "the model gives a single field twice")
        return found[0]

    def number(self, field: int) -> int:
        return index(self.one(field, 0))

    def numbers(self, field: int) -> list[int]:
        """Each by itself, or packed."""
        found = []
        for piece in self.get(field, []):
            packed = piece if isinstance(piece, memoryview) else None
            found += [] if packed else [piece]
            place = 0
            while packed and place < len(packed):
                number, place = varint(packed, place)
                found.append(number)
        return found

    def text(self, field: int) -> str:
        return str(self.one(field), "utf-8")

    def message(self, field: int) -> "Message":
        return Message(memoryview(self.one(field)))

    def messages(self, field: int) -> "list[Message]":
        return [Message(piece) for piece in self.get(field, [])]


def varint(data: memoryview, place: int) -> tuple[int, int]:
    """A whole number of 64 bits, which may be negative, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        byte, place = data[place], place + 1
        number |= (byte & 127) << shift
        if byte < 128:
            return (number + 2**63) % 2**64 - 2**63, place
    raise Refused("the model is not an ONNX file: a number has no end")


def _tensor(given: Message) -> Array:
    kind, shape = given.number(2), given.numbers(1)
    outside = 3 in given or 13 in given or given.number(14)
    require(not outside, "the model keeps weights outside its file, which is not supported")
    require(kind in TYPES and min(shape, default=0) >= 0, f"a constant of ONNX type {kind}, shape {shape}", Unknown)
    (dtype, field), held = TYPES[kind], {abs(number) for number in given} & ENTRIES
    require(held <= {RAW} or held == {field}, "the model gives a constant twice, or not as its type says")
    if held in ({5}, {7}):
        entries = np.array(given.numbers(field))
    else:
        entries = np.frombuffer(b"".join(given.get(field if held == {field} else RAW, [])), dtype)
    array = entries.astype(dtype)
    fits = array.size == math.prod(shape) and np.array_equal(array, entries, equal_nan=True)
    require(fits, "the model holds a constant with other entries than its type and shape say")
    return exact(array).reshape(shape)


def exact(array: Array) -> Array:
    """Floats widened to float64, integers to int64."""
    return array.astype({"f": np.float64, "b": np.bool_}.get(array.dtype.kind, np.int64))


class Operation(NamedTuple):
    """A node of the graph."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


# What an attribute is, by the number of its type.
ATTRIBUTES: dict[int, Any] = {
    1: lambda given: struct.unpack("<f", given.one(-2, bytes(4)))[0],
    2: lambda given: given.number(3),
    3: lambda given: given.text(4),
    4: lambda given: _tensor(given.message(5)),
    7: lambda given: given.numbers(8),
}


def _operation(node: Message) -> Operation:
    domain, kind, attributes = node.text(7), node.text(4), dict[str, Any]()
    for given in node.messages(5):
        name, number = given.text(1), given.number(20)
        plain = number in ATTRIBUTES and not given.text(21) and name not in attributes
        require(plain, f"{kind} with an attribute {name} of a kind not known, or given twice", Unknown)
        attributes[name] = ATTRIBUTES[number](given)
    inputs, outputs = ([str(name, "utf-8") for name in node.get(field, [])] for field in (1, 2))
    return Operation(kind if domain in OURS else f"{domain}::{kind}", inputs, outputs, attributes)


class Model(NamedTuple):
    """What an ONNX file says: constants by name, operations in order, one picture in, class scores out."""

    constants: dict[str, Array]
    operations: list[Operation]
    input: str
    input_shape: list[int]
    output: str


def read_model(data: bytes) -> Model:
    """The model in the bytes of a .onnx or .onnx.gz file."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    require(len(data) <= MOST_BYTES, "the model is larger than 4 GiB")
    model = Message(memoryview(data))
    graph = model.message(7)
    require(25 not in model and 15 not in graph, "a model with functions of its own, or sparse weights", Unknown)
    opsets = {opset.number(2) for opset in model.messages(8) if opset.text(1) in OURS}
    require(opsets <= {*OPSETS}, f"version {opsets} of ONNX's operators, which the checker does not know", Unknown)
    constants = {tensor.text(8): _tensor(tensor) for tensor in graph.messages(5)}
    inputs = [value for value in graph.messages(11) if value.text(1) not in constants]
    single = len(opsets) == len(inputs) == 1 and len(constants) == len(graph.get(5, []))
    require(single, "the model needs one version of ONNX's operators, one input, and a name for each constant")
    described = inputs[0].message(2).message(1)
    shape = [dimension.number(1) for dimension in described.message(2).messages(1)]
    shape[:1] = [1] if shape[:1] == [0] and len(shape) > 1 else shape[:1]  # an open first axis counts pictures
    fits = described.number(1) in FLOATS and min(shape, default=0) > 0
    require(fits, "the model's input is not a float32 or float64 array of known shape")
    operations = [_operation(node) for node in graph.messages(1)]
    return Model(constants, operations, inputs[0].text(1), shape, graph.messages(12)[0].text(1))
