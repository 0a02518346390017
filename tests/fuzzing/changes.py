"""What can go wrong with a file: its bytes, the tokens and lines of a text, values in JSON, members of an archive."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

Random = np.random.Generator
Change = Callable[[bytes, Random], bytes]
T = TypeVar("T")
# What a number becomes: the ends of what its type holds, and what is no number.
WHOLE = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
REAL = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, math.inf, -math.inf, math.nan)
WORDS = ("", "x", "y", "w", "é", "a b", "Relu", "Conv", "Loop", "ai.onnx", "SAME_UPPER", "%s", "../../x", "z" * 300)


def one_of(choices: Sequence[T], random: Random) -> T:
    return choices[random.integers(len(choices))]


def another(value: Any, random: Random) -> Any:
    """Something else of the same type."""
    if isinstance(value, float):
        return one_of(REAL, random)
    if isinstance(value, int):
        return one_of(WHOLE, random)
    if isinstance(value, str):
        return one_of(WORDS, random)
    return one_of(BYTES, random)(value, random)


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


# -- texts ----------------------------------------------------------------------------------------------------------

TOKENS = (b"(", b")", b"", b"1e999", b"-1e308", b"nan", b"X_99", b"Y_0", b"or", b"and", b"0.1", b"\xff", b";")


def with_a_token_changed(data: bytes, random: Random) -> bytes:
    tokens = data.replace(b"(", b" ( ").replace(b")", b" ) ").split(b" ")
    tokens[random.integers(len(tokens))] = one_of((*TOKENS, b"(" * 2000), random)
    return b" ".join(tokens)


def with_a_line_moved(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    line = lines.pop(random.integers(len(lines)))
    for _ in range(random.integers(0, 3)):
        lines.insert(random.integers(0, len(lines) + 1), line)
    return b"\n".join(lines)


CELLS = (b"", b" ", b"0", b"-1", b"1e400", b"1/0", b"1/3", b"nan", b"\xff", b'"', b"9" * 5000, b"x" * 300, b"\r", b"\0")


def with_a_cell_changed(data: bytes, random: Random) -> bytes:
    """One of the values between commas or ends of lines."""
    lines = [line.split(b",") for line in data.split(b"\n")]
    line = one_of(lines, random)
    line[random.integers(len(line))] = one_of(CELLS, random)
    return b"\n".join(b",".join(line) for line in lines)


def with_json_changed(text: bytes, random: Random) -> bytes:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # another change has made it unreadable
        return text
    places = list(_places(value))
    if not places:
        return text
    held, key = one_of(places, random)
    match random.integers(3):
        case 0:
            del held[key]
        case 1:
            held[key] = one_of((None, [], {}, "", "torch.os.system", 2**40, -1, True), random)
        case _ if isinstance(held[key], (str, int, float)):
            held[key] = another(held[key], random)
    return json.dumps(value).encode()


def with_a_key_more(text: bytes, random: Random) -> bytes:
    """A name that nobody expects, or one of those there again, or brackets without end."""
    extra = one_of((b'"": 0', b'"do_pad": true', b'"size": 1e400', b'"0": "zero"', b'"x": ' + b"[" * 5000), random)
    return text.replace(b"{", b"{" + extra + b", ", 1)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


# -- archives -------------------------------------------------------------------------------------------------------


def with_members_changed(change: Change, ending: str) -> Change:
    """What changes one member whose name ends so, or sometimes any member's bytes or its name."""

    def with_a_member_changed(data: bytes, random: Random) -> bytes:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
        except Exception:  # another change has made it unreadable
            return data
        fitting = [name for name in members if name.endswith(ending)]
        if fitting and random.integers(4):
            name = one_of(fitting, random)
            members[name] = change(members[name], random)
        elif members:
            name = one_of(list(members), random)
            content = members.pop(name)
            members[one_of((name, name, name, *WORDS[1:]), random)] = one_of(BYTES, random)(content, random)
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return held.getvalue()

    return with_a_member_changed
