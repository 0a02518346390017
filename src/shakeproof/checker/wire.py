"""ONNX files, read by hand: protobuf's wire format, and of ONNX what a network of constants and operators needs.

Unknown fields are skipped, as protobuf does. What would change the meaning of a known one is refused: a single field
given twice, weights in another file or in segments, sparse weights, a model's own version of an operator.
"""

import gzip
import io
import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Schema = dict[int, tuple[str, Any]]
MOST_BYTES = 2**32
FLOATS = (1, 11)  # ONNX's numbers of float32 and float64
OURS = ("", "ai.onnx")  # the domain of ONNX's own operators


class Refused(Exception):  # noqa: N818 - a finding, not a failure
    """Why something was not accepted, in one sentence."""


class Unknown(Refused):
    """The checker has no rule for something in the network."""


def require(holds: Any, otherwise: str, finding: type[Refused] = Refused) -> None:
    if not holds:
        raise finding(otherwise)


# fmt: off
# Messages by field number: a name, and what it is; in a list, what may be given any number of times, as "<f4" may.
TENSOR: Schema = {
    1: ("shape", [int]), 2: ("type", int), 3: ("segment", bytes), 4: ("floats", "<f4"), 5: ("int32s", [int]),
    6: ("strings", [bytes]), 7: ("int64s", [int]), 8: ("name", str), 9: ("raw", bytes), 10: ("doubles", "<f8"),
    11: ("uint64s", [int]), 13: ("external", [bytes]), 14: ("location", int)}
ATTRIBUTE: Schema = {
    1: ("name", str), 2: ("float", float), 3: ("int", int), 4: ("string", str), 5: ("tensor", TENSOR),
    8: ("ints", [int]), 20: ("type", int), 21: ("reference", str)}
NODE: Schema = {
    1: ("inputs", [str]), 2: ("outputs", [str]), 4: ("kind", str), 5: ("attributes", [ATTRIBUTE]), 7: ("domain", str)}
SHAPE: Schema = {1: ("sizes", [{1: ("size", int)}])}
VALUE: Schema = {1: ("name", str), 2: ("type", {1: ("tensor", {1: ("type", int), 2: ("shape", SHAPE)})})}
GRAPH: Schema = {
    1: ("nodes", [NODE]), 5: ("constants", [TENSOR]), 11: ("inputs", [VALUE]), 12: ("outputs", [VALUE]),
    15: ("sparse", [bytes])}
MODEL: Schema = {
    7: ("graph", GRAPH), 8: ("opsets", [{1: ("domain", str), 2: ("version", int)}]),
    25: ("functions", [{10: ("domain", str)}])}
ATTRIBUTE_TYPES = {1: "float", 2: "int", 3: "string", 4: "tensor", 7: "ints"}
# Of tensors: numpy's name, and the field where the entries are if they are not raw bytes.
TYPES = {
    1: ("<f4", "floats"), 2: ("|u1", "int32s"), 3: ("|i1", "int32s"), 6: ("<i4", "int32s"), 7: ("<i8", "int64s"),
    9: ("?", "int32s"), 10: ("<f2", "raw"), 11: ("<f8", "doubles")}
# fmt: on


def _message(data: memoryview, schema: Schema) -> dict[str, Any]:
    """All fields of the schema by their names."""
    given: dict[int, list[int | memoryview]] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        if key & 7 == 0:
            value, place = _varint(data, place)
            given.setdefault(key >> 3, []).append(value)
        else:
            length, place = _varint(data, place) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], place)
            given.setdefault(key >> 3, []).append(data[place : place + length])
            place += length
    require(place == len(data), "the model file is cut short")
    return {name: _field(kind, given.get(number, [])) for number, (name, kind) in schema.items()}


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        number |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return number & (2**64 - 1), place
    raise Refused("the model is not an ONNX file: an integer has no end")


def _packed(piece: memoryview) -> list[int]:
    numbers, place = [], 0
    while place < len(piece):
        number, place = _varint(piece, place)
        numbers.append(number)
    return numbers


def _field(kind: Any, found: list[Any]) -> Any:
    if isinstance(kind, str):
        return np.frombuffer(b"".join(found), kind)
    if kind == [int]:
        found = [n for piece in found for n in ([piece] if isinstance(piece, int) else _packed(piece))]
    several, one = isinstance(kind, list), kind[0] if isinstance(kind, list) else kind
    fits = all(isinstance(piece, int) == (one is int) for piece in found) and (several or len(found) < 2)
    require(fits, "the model is not an ONNX file: a field is of another type, or given twice")
    made = [_one(one, piece) for piece in found]
    return made if several else made[0] if made else one() if one in (int, float, str) else None


def _one(kind: Any, piece: Any) -> Any:
    if kind is int:
        return piece - 2**64 if piece >= 2**63 else piece  # two's complement
    if kind is float:
        return struct.unpack("<f", piece)[0]
    return bytes(piece).decode() if kind is str else piece if kind is bytes else _message(piece, kind)


def _tensor(given: dict[str, Any]) -> Array:
    """A constant: floats widened to float64, which is exact; integers as int64."""
    kind, shape = given["type"], given["shape"]
    inside = given["segment"] is None and not given["external"] and not given["location"]
    require(inside, "the model keeps weights outside its file, which is not supported")
    require(kind in TYPES and min(shape, default=0) >= 0, f"a constant of ONNX type {kind}, shape {shape}", Unknown)
    fields = ("raw", "floats", "int32s", "strings", "int64s", "doubles", "uint64s")
    held = [name for name in fields if given[name] is not None and len(given[name])]
    dtype, field = TYPES[kind]
    entries = np.frombuffer(given["raw"], dtype) if held == ["raw"] else np.array(given[field] if held else [])
    array = entries.astype(dtype)
    fits = len(held) < 2 and array.size == math.prod(shape) and np.array_equal(array, entries, equal_nan=True)
    require(fits, "the model holds a constant given twice, or with other entries than its type and shape say")
    return array.astype({"f": np.float64, "b": np.bool_}.get(array.dtype.kind, np.int64)).reshape(shape)


class Operation(NamedTuple):
    """A node of the graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


class Model(NamedTuple):
    """What an ONNX file says: constants by name, operations in order, one picture in, class scores out."""

    opset: int
    constants: dict[str, Array]
    operations: list[Operation]
    input: str
    input_shape: list[int]
    output: str


def read_model(data: bytes) -> Model:
    """The model in the bytes of a .onnx or .onnx.gz file."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    model = _message(memoryview(data), MODEL)
    graph = model["graph"]
    require(graph is not None and len(data) <= MOST_BYTES, "the model is not an ONNX file, or a very large one")
    own = graph["sparse"] or any(function["domain"] in OURS for function in model["functions"])
    require(not own, "sparse weights, or a model's own version of an operator of ONNX", Unknown)
    opsets = {opset["version"] for opset in model["opsets"] if opset["domain"] in OURS}
    constants = {tensor["name"]: _tensor(tensor) for tensor in graph["constants"]}
    inputs = [value for value in graph["inputs"] if value["name"] not in constants]
    single = len(opsets) == len(inputs) == 1 <= len(graph["outputs"]) and len(constants) == len(graph["constants"])
    require(single, "the model needs one version of ONNX's operators, one input, an output, and a name per constant")
    tensor = inputs[0]["type"]["tensor"]
    sizes = [dimension["size"] for dimension in tensor["shape"]["sizes"]]
    shape = [1, *sizes[1:]] if len(sizes) > 1 and sizes[0] <= 0 else sizes  # an open first axis counts pictures
    fits = tensor["type"] in FLOATS and min(shape, default=0) > 0
    require(fits, "the model's input is not a float32 or float64 array of known shape")
    operations = [_operation(node) for node in graph["nodes"]]
    return Model(opsets.pop(), constants, operations, inputs[0]["name"], shape, graph["outputs"][0]["name"])


def _operation(node: dict[str, Any]) -> Operation:
    kind = node["kind"] if node["domain"] in OURS else f"{node['domain']}::{node['kind']}"
    attributes: dict[str, Any] = {}
    for given in node["attributes"]:
        value = given.get(ATTRIBUTE_TYPES.get(given["type"], ""))
        plain = value is not None and not given["reference"] and given["name"] not in attributes
        require(plain, f"{kind} with an attribute {given['name']} of a kind not known, or given twice", Unknown)
        attributes[given["name"]] = _tensor(value) if given["type"] == 4 else value
    return Operation(kind, tuple(node["inputs"]), tuple(node["outputs"]), attributes)
