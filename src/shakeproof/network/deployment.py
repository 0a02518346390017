"""What exactly computes a network's scores: part of every answer about deployed arithmetic."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Deployment:
    """A runtime and its version, on what it runs, how many pictures it is given at once, on how many threads."""

    runtime: str
    provider: str
    batch: int
    threads: int
    processor: str

    def __str__(self) -> str:
        batch = "one picture at a time" if self.batch == 1 else f"{self.batch} pictures at a time"
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.runtime} ({self.provider}), {batch}, on {threads} of {self.processor}"


def processor() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
