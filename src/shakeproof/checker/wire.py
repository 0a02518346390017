"""ONNX files, read by hand: protobuf's wire format, and of ONNX what a network of constants and operators needs.

Protobuf readers skip what they do not know, merge what is given twice and cut numbers that are too long, each in its
own way. Here all of that is refused, so that a file has one meaning. Every field is listed below; the model is read as
any other reader reads it, or not at all.
"""

import gzip
import io
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from shakeproof.checker.budget import Array, Refused, Unknown, require

MOST_BYTES = 2**31  # protobuf reads no larger file
MOST_PACKED = 100  # a packed model is at most so many times as large as its file, and 1 MiB
FLOATS = (1, 11)  # ONNX's numbers of float32 and float64
OPSETS = range(7, 29)  # before, broadcasting was another; after, nobody knows yet
OURS = ("", "ai.onnx")  # the domain of ONNX's own operators
# Of tensors, by ONNX's number: numpy's name, and the field where the entries are if they are not raw bytes.
TYPES = {1: ("<f4", "float_data"), 3: ("|i1", "int32_data"), 6: ("<i4", "int32_data"), 7: ("<i8", "int64_data"),
         9: ("?", "int32_data"), 10: ("<f2", "raw_data"), 11: ("<f8", "double_data")}  # fmt: skip
ENTRIES = ("float_data", "int32_data", "int64_data", "raw_data", "double_data")
ATTRIBUTES = {1: "f", 2: "i", 3: "s", 4: "t", 7: "ints"}  # where an attribute's value is, by the number of its type

# What each message may hold: number, name and kind of its fields, with a star if there may be several. Weights in other
# files or in segments, sparse weights, functions, subgraphs and all that is not listed are refused.
READ = {
    "model": "7 graph graph, 8 opset_import opset *",
    "opset": "1 domain text, 2 version int",
    "graph": "1 node node *, 5 initializer tensor *, 11 input value *, 12 output value *, 13 value_info value *",
    "node": "1 input text *, 2 output text *, 4 op_type text, 5 attribute attribute *, 7 domain text",
    "attribute": "1 name text, 2 f float, 3 i int, 4 s text, 5 t tensor, 8 ints int *, 20 type int",
    "tensor": "1 dims int *, 2 data_type int, 4 float_data float *, 5 int32_data int *, 7 int64_data int *,"
    "8 name text, 9 raw_data bytes, 10 double_data double *, 13 external_data bytes *, 14 data_location int",
    "value": "1 name text, 2 type type",
    "type": "1 tensor_type array",
    "array": "1 elem_type int, 2 shape shape",
    "shape": "1 dim dimension *",
    "dimension": "1 dim_value int, 2 dim_param text",
}
# Fields that do not change what a network computes.
WITHOUT_MEANING = {
    "model": "1 ir_version int, 2 producer_name bytes, 3 producer_version bytes, 4 domain bytes, 5 model_version int,"
    "6 doc_string bytes, 14 metadata_props bytes *",
    "graph": "2 name bytes, 10 doc_string bytes, 14 quantization_annotation bytes *, 16 metadata_props bytes *",
    "node": "3 name bytes, 6 doc_string bytes, 9 metadata_props bytes *",
    "attribute": "13 doc_string bytes",
    "tensor": "12 doc_string bytes, 16 metadata_props bytes *",
    "value": "3 doc_string bytes, 4 metadata_props bytes *",
    "type": "6 denotation bytes",
    "dimension": "3 denotation bytes",
}
WIRE = {"int": 0, "double": 1, "float": 5}  # protobuf's wire types; all else is 2, and so are packed numbers
WIDTH = {1: 8, 5: 4}


def _fields(message: str) -> dict[int, list[str]]:
    """By number: name, kind, and a star."""
    listed = f"{READ[message]},{WITHOUT_MEANING.get(message, '')}".split(",")
    return {int(words[0]): words[1:] for words in map(str.split, listed) if words}


FIELDS = {message: _fields(message) for message in READ}


def varint(data: Any, place: int) -> tuple[int, int]:
    """A number of 64 bits in its shortest form, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        byte, place = data[place], place + 1
        number |= (byte & 127) << shift
        if byte < 128:
            require((byte or not shift) and number < 2**64, "the model writes a number longer than it is")
            return number, place
    raise Refused("the model is not an ONNX file: a number has no end")


def _signed(number: int) -> int:
    return number - (number >> 63 << 64)


def _numbers(data: Any) -> Iterator[int]:
    place = 0
    while place < len(data):
        number, place = varint(data, place)
        yield _signed(number)


def parsed(data: Any, message: str) -> dict[str, Any]:
    """A message's fields by name. Of those that may be there several times a list, of numbers an array."""
    fields, place = dict[str, Any](), 0
    while place < len(data):
        key, start = varint(data, place)
        name, kind, *several = FIELDS[message].get(key >> 3, ("", ""))
        require(name, f"the model's {message} has a field {key >> 3}, which the checker does not know", Unknown)
        wire = key & 7
        fits = wire == WIRE.get(kind, 2) or (wire == 2 and several and kind in WIRE)
        require(fits, f"the model writes {message}.{name} with wire type {wire}")
        require(several or name not in fields, f"the model gives {message}.{name} twice")
        length, start = varint(data, start) if wire == 2 else (WIDTH.get(wire, 0), start)
        place = varint(data, start)[1] if wire == 0 else start + length
        require(place <= len(data), "the model file is cut short")
        fields.setdefault(name, []).append(data[start:place])
    return {name: _value(pieces, *of) for of in FIELDS[message].values() if (pieces := fields.get(name := of[0]))}


def _value(pieces: list[Any], name: str, kind: str, *several: str) -> Any:
    """Packed or not, several numbers are the same bytes."""
    if kind in WIRE:
        raw = b"".join(pieces)
        shapes = {"float": "<f4", "double": "<f8"}
        array = np.fromiter(_numbers(raw), np.int64) if kind == "int" else np.frombuffer(raw, shapes[kind])
        return array if several else array[0].item()
    values = [str(piece, "utf-8") if kind == "text" else piece for piece in pieces]
    values = [parsed(piece, kind) for piece in pieces] if kind in READ else values
    return values if several else values[0]


def _tensor(tensor: dict[str, Any]) -> Array:
    kind, shape = tensor.get("data_type", 0), tensor.get("dims", np.zeros(0, int)).tolist()
    outside = "external_data" in tensor or tensor.get("data_location")
    require(not outside, "the model keeps weights outside its file, which is not supported")
    require(kind in TYPES and min(shape, default=0) >= 0, f"a constant of ONNX type {kind}, shape {shape}", Unknown)
    dtype, field = TYPES[kind]
    held = [name for name in ENTRIES if name in tensor] or ["raw_data"]
    require(held in (["raw_data"], [field]), "the model gives a constant twice, or not as its type says")
    stored = tensor.get(held[0], b"")
    entries = np.frombuffer(stored, "|u1" if dtype == "?" else dtype) if held == ["raw_data"] else stored
    array = entries.astype(dtype)
    fits = array.size == math.prod(shape) and np.array_equal(array, entries, equal_nan=True)
    require(fits, "the model holds a constant with other entries than its type and shape say")
    return exact(array).reshape(shape)


def exact(array: Array) -> Array:
    """Floats widened to float64 (those of 16 bits are by a Cast); whole numbers have their own width."""
    return array.astype(np.float64) if array.dtype.kind == "f" and array.dtype != np.float16 else array


class Operation(NamedTuple):
    """A node of the graph."""

    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


def _operation(node: dict[str, Any]) -> Operation:
    domain, kind, attributes = node.get("domain", ""), node.get("op_type", ""), dict[str, Any]()
    for attribute in node.get("attribute", []):
        name, field = attribute.get("name", ""), ATTRIBUTES.get(attribute.get("type", 0), "")
        values = attribute.keys() - {"name", "type", "doc_string"}
        plain = values == {field} or (field == "ints" and not values)
        require(plain and name not in attributes, f"{kind} with an attribute {name!r} of a kind not known", Unknown)
        value = attribute.get(field, np.zeros(0, np.int64))
        attributes[name] = _tensor(value) if field == "t" else value.tolist() if field == "ints" else value
    name = kind if domain in OURS else f"{domain}::{kind}"
    return Operation(name, node.get("input", []), node.get("output", []), attributes)


class Model(NamedTuple):
    """What an ONNX file says: constants by name, operations in order, one picture in, class scores out."""

    constants: dict[str, Array]
    operations: list[Operation]
    input: str
    input_shape: list[int | None]  # None where a size is open
    output: str
    stated: list[tuple[str, list[int | None]]]  # shapes that the file states of values


def unzipped(data: bytes) -> bytes:
    """The bytes of a .onnx file, or those in a .onnx.gz file."""
    most = min(MOST_BYTES, MOST_PACKED * len(data) + 2**20)
    if data[:2] == b"\x1f\x8b":
        data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(most + 1)
    require(len(data) <= most, f"the model is larger than {most} bytes")
    return data


def _stated(value: dict[str, Any]) -> list[int | None] | None:
    """The shape that a file states of a value, if it does; like all readers, negative sizes are taken as open ones."""
    shape = value.get("type", {}).get("tensor_type", {}).get("shape")
    sizes = [] if shape is None else shape.get("dim", [])
    require(all(len(size.keys() & {"dim_value", "dim_param"}) < 2 for size in sizes), "a size is given twice")
    stated = [size.get("dim_value", -1) for size in sizes]
    return None if shape is None else [None if size < 0 else size for size in stated]


def read_model(data: bytes) -> Model:
    """The model in the bytes of a .onnx or .onnx.gz file."""
    model = parsed(memoryview(unzipped(data)), "model")
    graph = model.get("graph", {})
    opsets = {opset.get("version", 0) for opset in model.get("opset_import", []) if opset.get("domain", "") in OURS}
    require(opsets <= {*OPSETS}, f"version {opsets} of ONNX's operators, which the checker does not know", Unknown)
    tensors = graph.get("initializer", [])
    constants = {tensor.get("name", ""): _tensor(tensor) for tensor in tensors}
    inputs = [value for value in graph.get("input", []) if value.get("name", "") not in constants]
    single = len(opsets) == len(inputs) == 1 and len(constants) == len(tensors)
    require(single, "the model needs one version of ONNX's operators, one input, and a name for each constant")
    fits = inputs[0].get("type", {}).get("tensor_type", {}).get("elem_type") in FLOATS and _stated(inputs[0])
    require(fits, "the model's input is not a float32 or float64 array of a known number of axes")
    operations = [_operation(node) for node in graph.get("node", [])]
    outputs = graph.get("output", [])
    values = [*graph.get("input", []), *outputs, *graph.get("value_info", [])]
    stated = [(value.get("name", ""), sizes) for value in values if (sizes := _stated(value)) is not None]
    shape = _stated(inputs[0]) or []
    return Model(constants, operations, inputs[0].get("name", ""), shape, outputs[0].get("name", ""), stated)
