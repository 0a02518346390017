"""Starts processes that tests interrupt, and waits for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as a condition holds."""
    end = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
