"""Settings of an analysis, as plain data. Each setting has its help text, default and limits in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from shakeproof.errors import InputError

if TYPE_CHECKING:
    from shakeproof.enumeration import HalfRule

# Where an answer stays undecided, strengths drawn at random are run in such a share of its time.
TEST_SHARE = 0.05
Method = Literal["auto", "exact", "bounds"]
Arithmetic = Literal["real", "float32"]
Pixels = Literal["real", "8bit", "8bit,rounding=half-up"]


class Options(TypedDict, total=False):
    """The same as keyword arguments of `profile` and `verify`."""

    timeout: float | None
    memory: float
    stop_early: bool
    device: str
    method: Method
    tolerance: float
    whole_curve: bool
    arithmetic: Arithmetic
    pixels: Pixels


def _number(words: str, must_be: str, holds: Callable[[Any], bool]) -> dict[str, Any]:
    return {"help": words, "type": float, "must_be": must_be, "holds": holds}


def _choice(kind: Any, words: str) -> dict[str, Any]:
    choices = get_args(kind)
    must_be = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return {"help": words, "type": str, "choices": choices, "must_be": must_be, "holds": choices.__contains__}


@dataclass(frozen=True)
class Settings:
    """How to run. `stop_early` ends at a confirmed flip. `whole_curve` makes the exact method enumerate every piece,
    even where bounds settle who wins. What rounding may have done is part of every proof.
    """

    timeout: float | None = field(
        default=None,
        metadata=_number(
            "Time limit for each query, in seconds.", "a positive number of seconds", lambda value: value > 0
        ),
    )
    memory: float = field(
        default=2.0,
        metadata=_number("Working memory, in GiB.", "a positive number of GiB", lambda value: 0 < value < math.inf),
    )
    stop_early: bool = False
    device: str = field(default="cpu", metadata={"help": "Device to compute on: cpu, cuda, ...", "type": str})
    method: Method = field(
        default="auto",
        metadata=_choice(
            Method, "exact: one strength, piecewise-linear networks. bounds: any. auto: exact if possible."
        ),
    )
    tolerance: float = field(
        default=1e-4,
        metadata=_number(
            "Width to which bounds narrow the critical strength.", "between 0 and 1", lambda value: 0 < value < 1
        ),
    )
    whole_curve: bool = False
    arithmetic: Arithmetic = field(
        default="real",
        metadata=_choice(
            Arithmetic,
            "Prove it for the network in real numbers, or for every float32 evaluation in any order of summation (not"
            " Winograd convolution or TF32).",
        ),
    )
    pixels: Pixels = field(
        default="real",
        metadata=_choice(
            Pixels,
            "real: all pictures with real-valued pixels. 8bit: all pictures with 8-bit pixels (halves rounded to even,"
            " or up), each run in the model's own runtime; works for any model, at any size.",
        ),
    )

    @property
    def pixel_rounding(self) -> HalfRule | None:
        """Which way a pixel goes that is half way between two grey levels; None for pixels that are real numbers."""
        rules: dict[Pixels, HalfRule | None] = {"real": None, "8bit": "half-even", "8bit,rounding=half-up": "half-up"}
        return rules[self.pixels]

    @property
    def untested(self) -> Settings:
        """The same without the time that the test of an undecided answer is left."""
        return self if self.timeout is None else replace(self, timeout=(1 - TEST_SHARE) * self.timeout)

    def __post_init__(self) -> None:
        for name, setting in asked().items():
            value, must_be = getattr(self, name), setting.metadata.get("must_be")
            if must_be is None or (value is None and setting.default is None):
                continue
            if setting.metadata["type"] is float and not isinstance(value, Real):
                raise InputError(f"the {name} must be a number, not {value!r}")
            if not setting.metadata["holds"](value):
                raise InputError(f"the {name} must be {must_be}, not {value!r}")


def asked() -> dict[str, Field[Any]]:
    """The settings that users are asked for: options of commands, and keys of a campaign."""
    return {setting.name: setting for setting in fields(Settings) if setting.metadata}
