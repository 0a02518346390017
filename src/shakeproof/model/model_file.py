"""Model files: their bytes, the model with all its weights, and what the file is if it is not a model."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import TensorProto

from shakeproof.errors import InputError
from shakeproof.model.onnx_model import check_complete, chosen, first_line, with_outputs

# What a packed file may unpack to. (A protobuf message ends at 2 GiB; a few bytes can be made to unpack to any number.)
MOST_UNPACKED = 2**30
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
FROM_TORCH = 'export the module to ONNX: torch.onnx.export(module, (example,), dynamo=True).save("model.onnx")'
# Loading one unpickles, which runs whatever code is in it: that is for who trusts it, and not for us.
PROGRAM = (
    "a torch.export file, and loading it can run code",
    "if you trust it, turn it into ONNX: program = torch.export.load({program!r});"
    " torch.onnx.export(program, dynamo=True).save({model!r})",
)
FROM_KERAS = "convert it to ONNX with model.export(..., format='onnx') or tf2onnx"
# How files begin that people take for models, what they are, and what to do.
BEGINNINGS = {
    b"\x89PNG": ("a PNG picture", "give the model first, then the images"),
    b"\xff\xd8\xff": ("a JPEG picture", "give the model first, then the images"),
    b"GIF8": ("a GIF picture", "give the model first, then the images"),
    b"\x93NUMPY": ("a numpy array", "give the model first, then the images"),
    b"\x89HDF\r\n": ("an HDF5 file, as Keras writes", FROM_KERAS),
    b"GGUF": ("a GGUF file", "export the network to ONNX from its original"),
    b"\x80\x02": ("a Python pickle", FROM_TORCH),
    b"\x80\x04": ("a Python pickle", FROM_TORCH),
    b"version https://git-lfs": ("a pointer to a file in Git LFS", "fetch the file itself with git lfs pull"),
    b"<!DOCTYPE": ("a web page", "download the file itself"),
    b"<html": ("a web page", "download the file itself"),
    b"<?xml": ("an XML file, as OpenVINO writes", "take the ONNX file that it was made from"),
}
# What a zip archive is, by how the names in it end.
ARCHIVES = {
    "models/model.json": PROGRAM,
    "constants.pkl": ("a TorchScript file", FROM_TORCH),
    "data.pkl": ("a PyTorch checkpoint, weights without their network", FROM_TORCH),
    "model.weights.h5": ("a Keras file", FROM_KERAS),
    ".npy": ("an archive of numpy arrays", "give the model first, then the images"),
}
# What gives itself away by its name only.
ENDINGS = {
    ".safetensors": ("weights without their network", FROM_TORCH),
    ".pb": ("a TensorFlow graph", "convert it with tf2onnx"),
    ".mlmodel": ("a Core ML model", "take the ONNX file or the module that it was made from"),
    ".vnnlib": ("a query", "give the model first, then the query"),
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin"), ("a file of PyTorch's", FROM_TORCH)),
    **dict.fromkeys((".h5", ".keras"), ("a Keras file", FROM_KERAS)),
}
SPECIAL = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A complete model with the outputs that are meant, and its bytes as onnxruntime takes them.

    `identity` is a digest of what lies on disk, and of which outputs are meant if not the first. `notes` say which were
    chosen. `ranks_only`: the output that is meant has other values than the scores, in the same order.
    """

    proto: onnx.ModelProto
    data: bytes
    identity: str
    notes: tuple[str, ...]
    ranks_only: bool


def open_model(path: Path, on_disk: bytes, output_name: str | None) -> OpenedModel:
    """The model in a file whose bytes were read; its weights may be in files next to it."""
    with explained(path):
        data = unpacked(on_disk)
        model = onnx.load_from_string(data)
        if not model.graph.node:
            raise ValueError("it holds no operators")
        external = with_external_data(model, path.parent)
        check_complete(model, str(path))
        outputs = chosen(model, str(path), output_name)
        parts = [on_disk, *external.values()]
        if outputs.values != (model.graph.output[0].name,):
            parts += [value.encode() for value in outputs.values]
        is_changed = bool(external)
        if outputs.values != tuple(output.name for output in model.graph.output):
            model, is_changed = with_outputs(model, outputs.values), True
        if is_changed:
            data = model.SerializeToString()
    return OpenedModel(model, data, _digest(parts), (outputs.note,) if outputs.note else (), outputs.ranks_only)


def model_files(path: Path) -> list[Path]:
    """A model's file, and those beside it that hold some of its weights."""
    with explained(path):
        model = onnx.load_from_string(unpacked(stored(path)))
        return [path, *(path.parent / name for name in external_files(model))]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a model is read into one sentence about its file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot read the network ({error.strerror or error})") from error
    except (DecodeError, EncodeError, ValueError, onnx.checker.ValidationError) as error:
        known_ending = ENDINGS.get(path.suffix.lower())
        if known_ending is not None:
            raise InputError(f"{path}: is {known_ending[0]}; {known_ending[1]}") from error
        why = "it is damaged, or something else" if isinstance(error, DecodeError) else first_line(error)
        raise InputError(f"{path}: not a complete ONNX model ({why})") from error


def _digest(parts: Sequence[bytes]) -> str:
    """The SHA-256 of one part as it is; of several, that of their digests, so that their borders count."""
    if len(parts) == 1:
        return hashlib.sha256(parts[0]).hexdigest()
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


# -- bytes ------------------------------------------------------------------------------------------------------------


def stored(path: Path) -> bytes:
    """The bytes of a model file; an error that names the format if it is plainly something else."""
    data = contents(path)
    kind = known(data) or (PROGRAM if path.suffix.lower() == ".pt2" else None)
    if kind is not None:
        what, advice = kind
        names = {"program": str(path), "model": str(path.with_suffix(".onnx"))}
        raise InputError(f"{path}: is {what}; {advice.format(**names) if kind is PROGRAM else advice}")
    return data


def contents(path: Path) -> bytes:
    """A file's bytes; an error if it is no file: a pipe might never end."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in SPECIAL:
            raise InputError(f"{path}: is {SPECIAL[kind]}, not a model file; write the model to a file first")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a zero byte in it is a ValueError
        raise InputError(f"{path}: cannot read the network ({getattr(error, 'strerror', None) or error})") from error


def known(data: bytes) -> tuple[str, str] | None:
    """What a file is by its bytes, and what to do about it, if it is something that cannot be read as ONNX."""
    if data.startswith(ZIP):
        try:
            names = zipfile.ZipFile(io.BytesIO(data)).namelist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
            return "a broken zip archive", "export or download it again"
        kinds = (kind for ending, kind in ARCHIVES.items() if any(name.endswith(ending) for name in names))
        return next(kinds, ("a zip archive", "unpack it, and give the .onnx file in it"))
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite file", "convert its original with tf2onnx"
    return next((kind for beginning, kind in BEGINNINGS.items() if data.startswith(beginning)), None)


def unpacked(data: bytes) -> bytes:
    """The bytes of a model that may be packed by gzip."""
    if not data.startswith(GZIP):
        return data
    try:
        whole = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_UNPACKED + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"the packed file is damaged: {error}") from error
    if len(whole) > MOST_UNPACKED:
        raise ValueError(f"it unpacks to more than {MOST_UNPACKED >> 30} GiB; unpack it yourself if that is intended")
    return whole


# -- weights in files beside a model ----------------------------------------------------------------------------------


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
        raise ValueError(f"the weight {tensor.name!r} gives its location twice")
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
