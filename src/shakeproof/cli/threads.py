"""How threads wait for one another: a matter for programs, to be settled before torch is imported."""

from __future__ import annotations

import os

# OpenMP's own word for it, and that of Intel's and LLVM's libraries, which torch brings on other systems.
PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def wait_passively() -> None:
    """Let threads sleep while they wait, unless the user says otherwise.

    By default they spin for a while. On a busy machine a spinning thread takes the core from the one it waits for, and
    everything becomes many times slower (docs/speed.md); sleeping costs a wake-up for each product.
    """
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
