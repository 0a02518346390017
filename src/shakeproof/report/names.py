"""How things are called, in tables and pictures alike."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from math import floor
from pathlib import Path
from textwrap import fill

from shakeproof.proof import Enumerated, Result, Swept, bracketed


def class_name(result: Result, number: int | None) -> str:
    """A class, in tables; "-" where there is none."""
    return "-" if number is None else result.query.class_names.shown(number)


def spoken_class(result: Result, number: int | None) -> str:
    """A class, in sentences and plots."""
    return "no class" if number is None else result.query.class_names.shown(number, "class {}")


def shown(name: str) -> str:
    """A name in pictures and pages: bytes that are no text, as file names may have them, by their codes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def image_and(image: str, words: str, letters: int = 85) -> str:
    """An image's name and what is said of it, in lines that fit above a plot."""
    return fill(f"{Path(image).name}   {words}", letters)


def margin_text(result: Result) -> str:
    """The smallest margin, or in which direction it is bounded by what was proved or found; rounded that way."""
    if result.min_margin is None:
        return "-"
    proof = result.proof
    swept = isinstance(proof, Swept) and proof.curve.covers(0.0, proof.end)
    if swept or (isinstance(proof, Enumerated) and proof.all_run):
        return f"{result.min_margin:.4g}"
    is_proved = result.status == "safe"
    rounded = Context(4, ROUND_FLOOR if is_proved else ROUND_CEILING).create_decimal_from_float(result.min_margin)
    return f"{'>=' if is_proved else '<='} {float(rounded):.4g}"


def critical_text(result: Result) -> str:
    """The critical strength, or the most that is known of it: where an undecided answer got to, it is beyond that."""
    if result.critical_strength is None:
        reached = result.certified_strength
        return f"> {floor(reached * 1e6) / 1e6:.6f}" if result.status == "undecided" and reached > 0 else "-"
    return bracketed(result.critical_strength)
