"""How the process handles memory: a matter for programs (the command, the benchmarks), not for library calls."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's names for what mallopt can set.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
# More than such a share of a budget is not kept.
MOST = 0.85


def keep_freed_memory() -> bool:
    """Let freed memory be used again instead of handing it back to the operating system; says whether it took effect.

    A sweep allocates and frees tensors of some megabytes all the time. By default, glibc gives all of them back time
    and again, and the page faults cost up to half of the time on networks with max pooling. Elsewhere than on glibc,
    nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, LARGEST))


def give_back(budget: float) -> bool:
    """Hand freed memory back after all if the process has most of so many bytes; says whether it did.

    Tensors of ever other sizes leave gaps between them, in which the next ones find no room.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        with open("/proc/self/statm", "rb") as sizes:
            resident = int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError):  # another system
        return False
    return resident > MOST * budget and bool(trim(0))
