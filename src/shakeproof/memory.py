"""How the process handles memory: a matter for programs (the command, the benchmarks), not for library calls."""

from __future__ import annotations

import ctypes
import sys

# glibc's names for what mallopt can set.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of handing it back to the operating system; says whether it took effect.

    A sweep allocates and frees tensors of some megabytes all the time. By default, glibc maps and unmaps each of them
    anew, and the page faults cost up to half of the time on networks with max pooling. Elsewhere than on glibc, nothing
    is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))
