"""What programs (the command, the benchmarks) set for their own process: no library call does any of it."""

from __future__ import annotations

import ctypes
import os
import sys
from itertools import takewhile

# How OpenMP's threads wait for one another, unless the user says otherwise; the second is the word of Intel's and
# LLVM's libraries, which torch brings on other systems. By default they spin for a while. On a busy machine a spinning
# thread takes the core from the one it waits for, and everything becomes many times slower (docs/speed.md); sleeping
# costs a wake-up for each product.
PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
# OpenBLAS's name for its AVX-512 kernels, and the processor features that they need.
KERNELS, NEEDED = "SkylakeX", {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "fma"}
# glibc's names for what mallopt can set.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
# More than such a share of a budget is not kept.
MOST = 0.85


def environment() -> dict[str, str]:
    """What is set, unless the user has set it, before torch is imported."""
    return PATIENCE | ({"OPENBLAS_CORETYPE": KERNELS} if is_amd_with_avx512() else {})


def prepare() -> None:
    """Set how threads wait, which kernels OpenBLAS uses, and that freed memory is kept."""
    for name, value in environment().items():
        os.environ.setdefault(name, value)
    keep_freed_memory()


def is_amd_with_avx512() -> bool:
    """Whether OpenBLAS multiplies faster than torch on this processor.

    On the newest ones, OpenBLAS (0.3.34) does not find its fastest kernels by itself.
    """
    try:
        with open("/proc/cpuinfo") as lines:
            first = takewhile(str.strip, lines)  # the first core is like the others, of which there may be hundreds
            facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in first)}
    except OSError:  # another system
        return False
    return facts.get("vendor_id") == ["AuthenticAMD"] and set(facts.get("flags", ())) >= NEEDED


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
