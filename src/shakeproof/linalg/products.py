"""Products of matrices, by the library that uses all of the processor.

torch multiplies float64 by MKL, which leaves half of an AMD processor with AVX-512 unused. OpenBLAS does not: it takes
0.6 to 0.8 of the time there (docs/speed.md). It is loaded as a library of our own, so that nobody's numpy computes
differently for it. Elsewhere, on several threads, and without it, torch multiplies.

Both add up plain products in orders of their own, and nothing that is proved depends on the order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

# OpenBLAS's name for its kernels for AVX-512, and what a processor needs for them.
KERNELS, NEEDED = "SkylakeX", {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "fma"}
# In C's interface to BLAS: a result that lies in memory by rows, or by columns; and a matrix that lies alike, or not.
BY_ROWS, BY_COLUMNS, ALIKE, UNLIKE = 101, 102, 111, 112
# It multiplies matrices by rows faster, without copies, if no more numbers than this are multiplied. So larger ones are
# taken apart, unless parts would have fewer rows than this.
MOST_OF_A_SMALL_ONE, LEAST_ROWS = 10**6, 64
# With fewer multiplications than this, calling it takes longer than is gained.
LEAST = 10**5


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """first @ second, two matrices."""
    return add_product(first.new_empty(first.shape[0], second.shape[1]), first, second, is_fresh=True)


def with_bias(first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """first @ second + bias, two matrices and a row."""
    if not _is_worth_it(first, second) or bias.dtype is not first.dtype:
        return torch.addmm(bias, first, second)
    return add_product(first.new_empty(len(first), len(bias)).copy_(bias), first, second)


def wants_one_thread() -> bool:
    """Whether one thread multiplies about as fast as torch does on two."""
    return _openblas() is not None


def is_by_rows() -> bool:
    """Whether matrices by rows are multiplied faster: by OpenBLAS, since small ones are not copied then. MKL wants a
    second matrix by columns; and a result by columns if these are few.
    """
    return torch.get_num_threads() == 1 and _openblas() is not None


def empty_products(like: Tensor, count: int, rows: int, columns: int) -> Tensor:
    """So many matrices for products, laid out for whoever multiplies."""
    if is_by_rows():
        return like.new_empty(count, rows, columns)
    return like.new_empty(count, columns, rows).transpose(1, 2)


def add_product(out: Tensor, first: Tensor, second: Tensor, is_fresh: bool = False) -> Tensor:
    """out += first @ second, matrices; `out` shares no memory with the others. If fresh, it holds nothing so far."""
    if not _multiplied(out, first, second, 0.0 if is_fresh else 1.0):
        out.addmm_(first, second, beta=0 if is_fresh else 1)
    return out


def _multiplied(out: Tensor, first: Tensor, second: Tensor, kept: float) -> bool:
    """Let OpenBLAS put `kept` times `out`, and the product, into it; whether that could be done."""
    dgemm = _openblas() if _is_worth_it(first, second) else None
    (rows, terms), columns = first.shape, second.shape[1]
    if dgemm is None or len(second) != terms or out.shape != (rows, columns):
        return False
    steps = []
    for matrix in (out, first, second):
        is_plain = matrix.dtype is torch.float64 and matrix.is_cpu and not matrix.is_neg()
        if not is_plain or matrix.requires_grad or (step := _layout(matrix)) is None:
            return False
        steps.append(step)
    (order, below), (one, left), (other, right) = steps
    turned = (ALIKE if one == order else UNLIKE, ALIKE if other == order else UNLIKE)
    part = MOST_OF_A_SMALL_ONE // (terms * columns)
    if (order, *turned) != (BY_ROWS, ALIKE, ALIKE) or part < LEAST_ROWS:
        part = rows
    for start in range(0, rows, part):
        source, target = first.data_ptr() + 8 * left * start, out.data_ptr() + 8 * below * start
        sizes = min(part, rows - start), columns, terms
        dgemm(order, *turned, *sizes, 1.0, source, left, second.data_ptr(), right, kept, target, below)
    return True


def _is_worth_it(first: Tensor, second: Tensor) -> bool:
    return is_by_rows() and first.numel() * second.shape[1] >= LEAST


def _layout(matrix: Tensor) -> tuple[int, int] | None:
    """Whether a matrix lies by rows or by columns, and how far these are apart; None if neither."""
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
        return BY_ROWS, down if rows > 1 else columns
    if (down == 1 or rows == 1) and across >= rows:
        return BY_COLUMNS, across
    return None


@cache
def _openblas() -> Callable[..., None] | None:
    """OpenBLAS's product of matrices, on one thread; None if torch's is as good here, or it is not to be had."""
    package = find_spec("scipy_openblas64")
    if package is None or package.origin is None or not _is_amd_with_avx512() or _is_memory_limited():
        return None
    try:
        library = ctypes.CDLL(str(Path(package.origin).parent / "lib" / "libscipy_openblas64_.so"))
        dgemm, kernels = library.scipy_cblas_dgemm64_, library.scipy_openblas_get_corename64_
        set_threads = library.scipy_openblas_set_num_threads64_
    except (OSError, AttributeError):
        return None
    matrix, size = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    dgemm.argtypes = (*[ctypes.c_int] * 3, *[size] * 3, ctypes.c_double, *matrix * 2, ctypes.c_double, *matrix)
    dgemm.restype, kernels.restype = None, ctypes.c_char_p
    set_threads(1)
    return dgemm if kernels() == KERNELS.encode() else None


def _is_amd_with_avx512() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:  # another system
        return False
    facts = {name.strip(): value.split() for name, _, value in (line.partition(":") for line in lines)}
    return facts.get("vendor_id") == ["AuthenticAMD"] and set(facts.get("flags", ())) >= NEEDED


def _is_memory_limited() -> bool:
    """Whether the system may refuse memory that is asked for: OpenBLAS would end the process, where torch raises."""
    import resource  # which other systems do not have

    try:
        is_counted = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:  # a container may hide it
        return True
    return is_counted or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
