"""Starts processes that tests interrupt, and waits for what they do; a clock that only a test moves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

# Only a process that hangs takes so many seconds, however busy the machine is.
HANGING = 600.0


def interruptible(words: Sequence[str | Path], **options: object) -> subprocess.Popen[str]:
    """A process that SIGINT interrupts. A shell's background jobs ignore SIGINT, and their children inherit that."""
    return subprocess.Popen(
        [*map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def processor_seconds(process: int) -> float:
    """How long a process has worked: unlike the clock, this says that it got somewhere."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class Clock:
    """Stands in for `now`: it moves only when a test says how long something took, however busy the machine is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        for module in ("budget", "search.loop"):
            monkeypatch.setattr(f"shakeproof.{module}.now", lambda: self.time)


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as a condition holds."""
    end = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
