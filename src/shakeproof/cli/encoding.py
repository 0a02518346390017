"""Text for terminals and pipes that cannot print all of it: nothing crashes, nothing is lost."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

HANDLER = "shakeproof-readable"
# What our own tables and messages use beyond ASCII, and what stands for it.
PLAIN = str.maketrans({"▸": ">", "×": "x", "…": "...", "–": "-", "≥": ">=", "≤": "<="})


def readable(error: UnicodeError) -> tuple[str, int]:
    """What cannot be encoded: our own signs by plain ones, bytes of file names and all else by their codes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_readable, error.object[error.start : error.end])), error.end


def _readable(character: str) -> str:
    plain, code = character.translate(PLAIN), ord(character)
    if plain != character:
        return plain
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as Python keeps those of file names
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("ascii", "backslashreplace").decode()


def printable(text: str, encoding: str) -> str:
    """The text as it will look in an encoding: tables are laid out by that."""
    return text.encode(encoding, HANDLER).decode(encoding)


def print_anywhere() -> None:
    """Let stdout and stderr take any text, whatever their encoding."""
    codecs.register_error(HANDLER, readable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=HANDLER)
