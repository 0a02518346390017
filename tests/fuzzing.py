"""Inputs broken at random, and what the command promises for all of them.

`broken(kind, seed)` is a file of a kind (KINDS) with something wrong in it, the same for the same seed. `promised(run)`
says what a run did that it must not: crash, hang, take too much memory, print a traceback or more than one line.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from models import model, random_module
from onnx import helper

Random = np.random.Generator
# What a number becomes: the ends of what its type holds, and what is no number.
WHOLE = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, math.inf, -math.inf, math.nan)
WORDS = ("", "x", "y", "w", "é", "a b", "Relu", "Conv", "Loop", "ai.onnx", "SAME_UPPER", "%s", "../../x", "z" * 300)


@dataclass(frozen=True)
class Broken:
    """A file that is to be written under `name`."""

    name: str
    data: bytes
    how: str


def broken(kind: str, seed: int) -> Broken:
    """A file of a kind, with one to three things wrong in it."""
    random = np.random.default_rng([seed, *kind.encode()])
    ending, make, changes = KINDS[kind]
    data, how = make(random), []
    for _ in range(random.integers(1, 4)):
        change = changes[random.integers(len(changes))]
        how.append(change.__name__)
        data = change(data, random)
    return Broken(f"broken.{ending}", data, "+".join(how))


def promised(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a run did that it must not; nothing, if all is well."""
    lines = done.stderr.splitlines()
    rules = {
        f"exit code {done.returncode}": done.returncode in (0, 1, 2, 3),
        "an internal error": "internal error" not in done.stderr,
        "a traceback": "Traceback" not in done.stderr + done.stdout,
        "no line of its own": done.returncode != 2 or bool(lines and lines[-1].startswith("shakeproof: ")),
        f"{len(lines)} lines": len(lines) <= (done.returncode == 2),
        "output beside an error": done.returncode != 2 or done.stdout == "",
    }
    return [f"{name}: {done.stderr[-300:]}" for name, kept in rules.items() if not kept]


# -- bytes ----------------------------------------------------------------------------------------------------------


def flipped(data: bytes, random: Random) -> bytes:
    held = bytearray(data)
    for place in random.integers(0, max(1, len(held)), random.integers(1, 9)):
        if held:
            held[place] ^= 1 << random.integers(8)
    return bytes(held)


def cut(data: bytes, random: Random) -> bytes:
    return data[: random.integers(0, len(data) + 1)]


def without_a_piece(data: bytes, random: Random) -> bytes:
    start, end = sorted(random.integers(0, len(data) + 1, 2))
    return data[:start] + data[min(end, start + 64) :]


def with_a_piece_twice(data: bytes, random: Random) -> bytes:
    start = random.integers(0, len(data) + 1)
    return data[:start] + data[start : start + 32] * 2 + data[start + 32 :]


def with_anything_inserted(data: bytes, random: Random) -> bytes:
    place = random.integers(0, len(data) + 1)
    return data[:place] + random.bytes(random.integers(1, 17)) + data[place:]


BYTES = (flipped, cut, without_a_piece, with_a_piece_twice, with_anything_inserted)


# -- ONNX -----------------------------------------------------------------------------------------------------------


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
            setattr(message, field.name, _another(getattr(message, field.name), random))
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
                entries[place] = _another(entries[place], random)
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


def _another(value: Any, random: Random) -> Any:
    if isinstance(value, float):
        return REAL[random.integers(len(REAL))]
    if isinstance(value, int):
        return WHOLE[random.integers(len(WHOLE))]
    if isinstance(value, str):
        return WORDS[random.integers(len(WORDS))]
    return BYTES[random.integers(len(BYTES))](value, random)


# -- programs of torch ----------------------------------------------------------------------------------------------


@cache
def _program() -> bytes:
    held = io.BytesIO()
    torch.export.save(torch.export.export(random_module(0), (torch.zeros(1, 1, 8, 8),)), held)
    return held.getvalue()


def small_program(random: Random) -> bytes:
    return _program()


def with_a_member_changed(data: bytes, random: Random) -> bytes:
    """A value in one of the JSON texts of the archive, or a member's bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # another change has made it unreadable
        return data
    texts = [name for name in members if name.endswith(".json")]
    if texts and random.integers(4):
        name = texts[random.integers(len(texts))]
        members[name] = with_json_changed(members[name], random)
    elif members:
        name = list(members)[random.integers(len(members))]
        members[name] = BYTES[random.integers(len(BYTES))](members[name], random)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return held.getvalue()


def with_json_changed(text: bytes, random: Random) -> bytes:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    places = list(_places(value))
    if not places:
        return text
    held, key = places[random.integers(len(places))]
    match random.integers(3):
        case 0:
            del held[key]
        case 1:
            held[key] = (None, [], {}, "", "torch.os.system", 2**40, -1, True)[random.integers(8)]
        case _ if isinstance(held[key], (str, int, float)):
            held[key] = _another(held[key], random)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


# -- VNN-LIB --------------------------------------------------------------------------------------------------------


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


def with_a_token_changed(data: bytes, random: Random) -> bytes:
    tokens = data.replace(b"(", b" ( ").replace(b")", b" ) ").split(b" ")
    others = (
        b"(",
        b")",
        b"",
        b"1e999",
        b"-1e308",
        b"nan",
        b"X_99",
        b"Y_0",
        b"or",
        b"and",
        b"0.1",
        b"\xff",
        b";",
        b"(" * 2000,
    )
    tokens[random.integers(len(tokens))] = others[random.integers(len(others))]
    return b" ".join(tokens)


def with_a_line_moved(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(random.integers(len(lines)))
    for _ in range(random.integers(0, 3)):
        lines.insert(random.integers(0, len(lines) + 1), line)
    return b"\n".join(lines)


# -- all of them ----------------------------------------------------------------------------------------------------


def packed(make: Callable[[Random], bytes]) -> Callable[[Random], bytes]:
    return lambda random: gzip.compress(make(random), mtime=0)


# By name: how its files end, what makes a good one, and what can go wrong with it.
KINDS: dict[str, tuple[str, Callable[[Random], bytes], tuple[Callable[[bytes, Random], bytes], ...]]] = {
    "onnx": ("onnx", small_model, (with_a_field_changed,) * 8 + BYTES),
    "onnx.gz": ("onnx.gz", packed(small_model), BYTES),
    "pt2": ("pt2", small_program, (with_a_member_changed,) * 5 + BYTES),
    "vnnlib": ("vnnlib", small_query, (with_a_token_changed, with_a_line_moved) * 3 + BYTES),
    "vnnlib.gz": ("vnnlib.gz", packed(small_query), BYTES),
}
# No run may take more seconds, or more GiB.
LIMITS = 60, 4


def words(kind: str, file: Path, model_file: Path, picture: Path, seed: int) -> list[str | Path]:
    """A command line for a broken file; the rest of it is in order."""
    if kind.startswith("vnnlib"):
        return ["verify", model_file, file, "--timeout", "2", "--json"]
    if seed % 2:
        return ["supports", file, "--json", "--trial", "0"]
    return ["profile", file, picture, "-p", "box-blur:size=3", "--max-strength", "0.2", "--timeout", "2", "--json"]
