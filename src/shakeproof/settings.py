"""How to run an analysis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from shakeproof.errors import InputError

GIB = 2.0**30
Method = Literal["auto", "exact", "bounds"]


@dataclass(frozen=True)
class Settings:
    """How to run. `timeout` is in seconds for each query; `memory` in GiB; `stop_early` ends at a confirmed flip.

    `tolerance` is how closely bounds pin down a critical strength; the exact method needs none. `whole_curve` makes it
    enumerate every piece, even where bounds settle who wins.
    """

    timeout: float | None = None
    memory: float = 2.0
    stop_early: bool = False
    device: str = "cpu"
    method: Method = "auto"
    tolerance: float = 1e-4
    whole_curve: bool = False
    progress: Callable[[float], None] = field(default=lambda fraction: None)

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"the timeout must be a positive number of seconds, not {self.timeout}")
        if not (self.memory > 0 and math.isfinite(self.memory)):
            raise InputError(f"the memory budget must be a positive number of GiB, not {self.memory}")
        if not 0 < self.tolerance < 1:
            raise InputError(f"the tolerance must be between 0 and 1, not {self.tolerance}")
        if self.method not in ("auto", "exact", "bounds"):
            raise InputError(f"the method must be auto, exact or bounds, not {self.method!r}")
