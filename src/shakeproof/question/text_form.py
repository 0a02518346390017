"""The text form of perturbations and requirements, `NAME:key=value,...`: its options, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shakeproof.errors import InputError

BETWEEN_OPTIONS = re.compile(r",(?=[a-z]+=)")
Reader = Callable[[str], object]


class Key(NamedTuple):
    """How the value of a key is read, and whether it may be left out."""

    read: Reader
    optional: bool


def read_options(text: str, keys: Mapping[str, Key], example: str) -> dict[str, object]:
    """The values of a text's options, by their keys; an error that helps where they are others than `keys`."""
    _, colon, rest = text.partition(":")
    values: dict[str, object] = {}
    for option in BETWEEN_OPTIONS.split(rest) if colon else []:
        key, equals, value = option.partition("=")
        if key not in keys or not equals or key in values:
            problem = "is given twice" if key in values else f"is not one of {', '.join(keys)}"
            raise InputError(f"{text!r}: option {option!r} {problem}; write for example {example}")
        try:
            values[key] = keys[key].read(value)
        except ValueError as error:
            raise InputError(f"{text!r}: {key} {error}, not {value!r}; write for example {example}") from None
    missing = [key for key, known in keys.items() if not known.optional and key not in values]
    if missing:
        raise InputError(f"{text!r}: {' and '.join(missing)} missing; write for example {example}")
    return values


def read_whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise ValueError("must be a whole number")
    return int(text)


def read_number(text: str) -> float:
    try:
        return float(text) + 0.0  # never -0.0
    except ValueError:
        raise ValueError("must be a number") from None


def read_interval(text: str) -> tuple[float, float]:
    low, _, high = text.partition("..")
    try:
        return read_number(low), read_number(high)
    except ValueError:
        raise ValueError("must be LOW..HIGH") from None


def read_number_or_interval(text: str) -> float | tuple[float, float]:
    try:
        return read_interval(text) if ".." in text else read_number(text)
    except ValueError:
        raise ValueError("must be a number, or LOW..HIGH") from None


def read_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return text == "yes"
