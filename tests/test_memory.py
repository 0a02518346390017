"""Freed memory is kept, and given back where that is too much: seen in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import os
import numpy as np
from shakeproof.budget import give_back, keep_freed_memory

def resident():
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

kept = keep_freed_memory()
blocks, pins = [], []
for _ in range(20):
    blocks.append(np.ones(2**20))  # 8 MB, with something behind it that stays
    pins.append(np.ones(2**14))
full = resident()
blocks.clear()
freed = resident()
nothing = give_back(1e12), resident()
given = give_back(freed * 2**20), resident()
print(json.dumps([kept, full, freed, nothing, given]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's ways with memory are Linux's")
def test_freed_memory_is_kept_until_it_is_too_much():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, full, freed, nothing, given = json.loads(done.stdout)
    if not kept:
        pytest.skip("another C library")
    assert freed > full - 20
    assert not nothing[0]
    assert nothing[1] > full - 20
    assert given[0]
    assert given[1] < full - 140
