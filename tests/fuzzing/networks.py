"""Models and queries, and what can be wrong inside of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from models import model
from onnx import helper

from fuzzing.changes import Random, another


def small_model(random: Random) -> bytes:
    """A convolutional classifier with shapes computed from shapes, as exporters write them."""
    weights: dict[str, Any] = {
        "k": random.normal(size=(2, 1, 3, 3)).astype(np.float32),
        "b": random.normal(size=2).astype(np.float32),
        "w": random.normal(size=(8, 3)).astype(np.float32),
        "first": np.array([0]),
        "rest": np.array([-1]),
        "half": np.array([0.5], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("LeakyRelu", ["c"], ["l"], alpha=0.1),
        helper.make_node("MaxPool", ["l"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Pad", ["m", "pads"], ["p"]),
        helper.make_node("ConstantOfShape", ["first"], ["nothing"]),
        helper.make_node("Clip", ["p", "", "half"], ["q"]),
        helper.make_node("Shape", ["q"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["q", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    weights["pads"] = np.zeros(8, np.int64)
    return model(nodes, ("N", 1, 4, 4), weights).SerializeToString()


def with_a_field_changed(data: bytes, random: Random) -> bytes:
    """Any field of the message, or of one inside it, set to something that its type allows."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # another change has made it unreadable
        return data
    places = list(_fields(proto))
    message, field = places[random.integers(len(places))]
    if field.is_repeated:
        _change_list(getattr(message, field.name), random)
    elif field.cpp_type == field.CPPTYPE_MESSAGE:
        message.ClearField(field.name)
    else:
        try:
            setattr(message, field.name, another(getattr(message, field.name), random))
        except (ValueError, TypeError):  # out of the range of its type
            message.ClearField(field.name)
    return proto.SerializeToString()


def _fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        yield message, field
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _fields(inner)


def _change_list(held: Any, random: Random) -> None:
    """One entry lost, twice, moved to the end, or, if it is a number or a word, another."""
    place, entries = random.integers(len(held)), list(held)
    match random.integers(4):
        case 0:
            del entries[place]
        case 1:
            entries.append(entries[place])
        case 2:
            entries.append(entries.pop(place))
        case _:
            if isinstance(entries[place], (int, float, str, bytes)):
                entries[place] = another(entries[place], random)
    copies = [_copied(entry) for entry in entries]
    del held[:]
    with suppress(ValueError, TypeError):  # out of the range of its type
        held.extend(copies)


def _copied(entry: Any) -> Any:
    if isinstance(entry, (int, float, str, bytes)):
        return entry
    made = type(entry)()
    made.CopyFrom(entry)
    return made


def plain_model(random: Random) -> bytes:
    """A network that all methods know, and the checker too."""
    weights = {
        "k": random.normal(size=(2, 1, 3, 3)).astype(np.float32),
        "w": random.normal(size=(32, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"]),
    ]
    return model(nodes, (1, 1, 4, 4), weights).SerializeToString()


def small_query(random: Random) -> bytes:
    """A box of inputs for the model above, and what must hold of its outputs; of either version of the standard."""
    names = [f"X_{i}" for i in range(16)] + [f"Y_{i}" for i in range(3)]
    lines = [f"(declare-const {name} Real)" for name in names]
    for name in names[:16]:
        lines += [
            f"(assert (>= {name} {random.uniform(0, 0.5):.3f}))",
            f"(assert (<= {name} {random.uniform(0.5, 1):.3f}))",
        ]
    lines.append("(assert (or (and (>= Y_1 Y_0)) (and (>= Y_2 (+ Y_0 0.5)))))")
    return "\n".join(lines).encode()


def packed(make: Callable[[Random], bytes]) -> Callable[[Random], bytes]:
    return lambda random: gzip.compress(make(random), mtime=0)
