"""What every kind of perturbation has: clipping, strengths, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from shakeproof.errors import InputError
from shakeproof.path import ClipRange


def check_clip(text: str, clip: ClipRange | None) -> None:
    try:
        possible = clip is None or (len(clip) == 2 and all(map(math.isfinite, clip)) and clip[0] < clip[1])
    except TypeError:
        possible = False
    if not possible:
        raise InputError(f"{text}: clip must be LOW..HIGH with LOW below HIGH, e.g. clip=0..1")


def clip_option(clip: ClipRange | None) -> list[tuple[str, str]]:
    return [] if clip is None else [("clip", "..".join(map(plain, clip)))]


def strengths(of: object, given: float | Sequence[float], parameters: int) -> tuple[float, ...]:
    """A strength for each parameter, checked."""
    try:
        is_one = not isinstance(given, Iterable) or isinstance(given, str) or getattr(given, "ndim", 1) == 0
        numbers: Any = (given,) if is_one else given
        several = tuple(map(float, numbers))
    except (TypeError, ValueError):
        raise InputError(f"a strength is a number, not {given!r}") from None
    for strength in several:
        if not 0 <= strength <= 1:
            raise InputError(f"the strength must be between 0 and 1, not {strength:g}")
    if len(several) not in (1, parameters):
        ways = "one strength" if parameters == 1 else f"{parameters} strengths, or one for all parts"
        raise InputError(f"{of}: takes {ways}, not {len(several)}")
    return several * (parameters // len(several))


def plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))
