"""How things are called wherever they are shown."""

from __future__ import annotations

from shakeproof.result import Result


def class_name(result: Result, number: int | None) -> str:
    """A class, in tables and plots; "-" where there is none."""
    return "-" if number is None else str(number)
