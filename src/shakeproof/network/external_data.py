"""Weights that lie in files beside a model: read once, hashed, and put into the model that everybody is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from shakeproof.network.model_file import contents


def external_files(model: onnx.ModelProto) -> list[str]:
    """The files beside a model that hold some of its weights, in the order of their names."""
    return sorted({_entries(tensor).get("location", "") for tensor in _external(model)})


def with_external_data(model: onnx.ModelProto, folder: Path) -> dict[str, bytes]:
    """Put all weights from other files into the model; the files' bytes by their names."""
    files = {name: contents(folder / _checked(name)) for name in external_files(model)}
    for tensor in list(_external(model)):
        entries = _entries(tensor)
        data, start = files[entries.get("location", "")], _number(tensor, entries, "offset", 0)
        length = _number(tensor, entries, "length", len(data) - start)
        if start + length > len(data):
            raise ValueError(f"the weight {tensor.name!r} lies beyond the end of {entries['location']}")
        tensor.raw_data = data[start : start + length]
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return files


def _external(message: Message) -> Iterator[TensorProto]:
    """The tensors anywhere in a message whose data lie elsewhere: also in functions, and in graphs within a graph."""
    if isinstance(message, TensorProto):
        if message.data_location == TensorProto.EXTERNAL:
            yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                yield from _external(part)


def _entries(tensor: TensorProto) -> Mapping[str, str]:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if len(entries) != len(tensor.external_data):
        raise ValueError(f"the weight {tensor.name!r} says twice where it lies")
    return entries


def _checked(name: str) -> str:
    """A name of a file in the model's own folder, or below it."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name:
        raise ValueError(f"it has weights in {name!r}, which is not in the model's folder")
    return name


def _number(tensor: TensorProto, entries: Mapping[str, str], key: str, default: int) -> int:
    word = entries.get(key)
    if word is None:
        return default
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"the weight {tensor.name!r} has the {key} {word!r}")
    return int(word)
