"""How to run an analysis: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypedDict

from shakeproof.enumeration import HalfRule
from shakeproof.errors import InputError

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


@dataclass(frozen=True)
class Settings:
    """How to run. `timeout` is in seconds for each query; `memory` in GiB; `stop_early` ends at a confirmed flip.

    `tolerance` is how closely bounds pin down a critical strength; the exact method needs none. `whole_curve` makes it
    enumerate every piece, even where bounds settle who wins.

    `arithmetic` is what a proof is about: the network in real numbers, or every float32 evaluation of it, in any order
    of summation. What rounding may have done is part of every proof.

    `pixels` that have 8 bits are run picture by picture.
    """

    timeout: float | None = None
    memory: float = 2.0
    stop_early: bool = False
    device: str = "cpu"
    method: Method = "auto"
    tolerance: float = 1e-4
    whole_curve: bool = False
    arithmetic: Arithmetic = "real"
    pixels: Pixels = "real"

    @property
    def halves(self) -> HalfRule | None:
        """Which way a pixel goes that is half way between two grey levels; None for pixels that are real numbers."""
        rules: dict[Pixels, HalfRule | None] = {"real": None, "8bit": "half-even", "8bit,rounding=half-up": "half-up"}
        return rules[self.pixels]

    def __post_init__(self) -> None:
        for name, value in (("timeout", self.timeout), ("memory", self.memory), ("tolerance", self.tolerance)):
            if value is not None and not isinstance(value, Real):
                raise InputError(f"the {name} must be a number, not {value!r}")
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"the timeout must be a positive number of seconds, not {self.timeout}")
        if not (self.memory > 0 and math.isfinite(self.memory)):
            raise InputError(f"the memory budget must be a positive number of GiB, not {self.memory}")
        if not 0 < self.tolerance < 1:
            raise InputError(f"the tolerance must be between 0 and 1, not {self.tolerance}")
        if self.method not in ("auto", "exact", "bounds"):
            raise InputError(f"the method must be auto, exact or bounds, not {self.method!r}")
        if self.arithmetic not in ("real", "float32"):
            raise InputError(f"the arithmetic must be real or float32, not {self.arithmetic!r}")
        if self.pixels not in ("real", "8bit", "8bit,rounding=half-up"):
            raise InputError(f"pixels must be real, 8bit or 8bit,rounding=half-up, not {self.pixels!r}")
