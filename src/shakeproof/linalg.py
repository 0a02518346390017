"""Matrix products by the library that uses all of the processor, and proved bounds on norms. Tuning, not semantics.

torch multiplies float64 by MKL, which leaves half of an AMD processor with AVX-512 unused. OpenBLAS takes 0.6 to 0.8 of
the time there (docs/speed.md). It is loaded as a separate library, so numpy's own copy is not affected. torch
multiplies on other processors, on several threads, and where OpenBLAS is missing. The two add up the terms of a product
in different orders. No proof depends on the order.

The norms are proved, not estimated. A matrix M stretches no vector by more than s if s^2 I - M^H M is positive
definite. Floating point finds a Cholesky factorisation of it only in that case, up to a known error (S. M. Rump:
Verification of positive definiteness. BIT 46, 2006).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

UNIT = 2.0**-53
# Sums of a few positive numbers, and norms of up to 10^9 of them, come out too small by less than this factor.
ABOVE = 1 + 2.0**-20

# -- products ----------------------------------------------------------------------------------------------------------

# OpenBLAS's name for its AVX-512 kernels, and the processor features that they need.
KERNELS, NEEDED = "SkylakeX", {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "fma"}
# Constants of C's interface to BLAS: the order of the result in memory, and whether a factor has the same order.
BY_ROWS, BY_COLUMNS, SAME_ORDER, TRANSPOSED = 101, 102, 111, 112
# Up to this many multiplications OpenBLAS does not copy matrices that lie by rows, which is faster. Larger products are
# split into parts of that size, unless a part would have fewer rows than this.
MOST_WITHOUT_COPY, LEAST_ROWS = 10**6, 64
# With fewer multiplications than this, the call costs more than it saves.
LEAST_MULTIPLICATIONS = 10**5


def multiply(first: Tensor, second: Tensor) -> Tensor:
    """first @ second, two matrices."""
    return add_product(first.new_empty(first.shape[0], second.shape[1]), first, second, is_fresh=True)


def with_bias(first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """first @ second + bias, two matrices and a row."""
    if not _is_worth_it(first, second) or bias.dtype is not first.dtype:
        return torch.addmm(bias, first, second)
    return add_product(first.new_empty(len(first), len(bias)).copy_(bias), first, second)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Run torch's products on so many threads, and restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def wants_one_thread() -> bool:
    """Whether one thread multiplies about as fast as torch does on two."""
    return _openblas() is not None


def is_by_rows() -> bool:
    """Whether products are faster with matrices that lie by rows: with OpenBLAS, which does not copy small ones.

    MKL is faster with a second factor by columns, and with a result by columns if it has few of them.
    """
    return torch.get_num_threads() == 1 and _openblas() is not None


def empty_products(like: Tensor, count: int, rows: int, columns: int) -> Tensor:
    """Uninitialised results of products (count, rows, columns), in the faster memory order."""
    if is_by_rows():
        return like.new_empty(count, rows, columns)
    return like.new_empty(count, columns, rows).transpose(1, 2)


def add_product(out: Tensor, first: Tensor, second: Tensor, is_fresh: bool = False) -> Tensor:
    """out += first @ second for matrices; `out` shares no memory with them. `is_fresh`: `out` is uninitialised."""
    if not _multiplied_by_openblas(out, first, second, 0.0 if is_fresh else 1.0):
        out.addmm_(first, second, beta=0 if is_fresh else 1)
    return out


def _multiplied_by_openblas(out: Tensor, first: Tensor, second: Tensor, kept: float) -> bool:
    """Write kept * out + first @ second into `out`; False if OpenBLAS cannot do that."""
    dgemm = _openblas() if _is_worth_it(first, second) else None
    (rows, terms), columns = first.shape, second.shape[1]
    if dgemm is None or len(second) != terms or out.shape != (rows, columns):
        return False
    layouts = []
    for matrix in (out, first, second):
        is_plain = matrix.dtype is torch.float64 and matrix.is_cpu and not matrix.is_neg()
        if not is_plain or matrix.requires_grad or (layout := _layout(matrix)) is None:
            return False
        layouts.append(layout)
    (order, out_step), (first_order, first_step), (second_order, second_step) = layouts
    transposed = tuple(SAME_ORDER if o == order else TRANSPOSED for o in (first_order, second_order))
    part = MOST_WITHOUT_COPY // (terms * columns)
    if (order, *transposed) != (BY_ROWS, SAME_ORDER, SAME_ORDER) or part < LEAST_ROWS:
        part = rows
    for start in range(0, rows, part):
        source, target = first.data_ptr() + 8 * first_step * start, out.data_ptr() + 8 * out_step * start
        sizes = min(part, rows - start), columns, terms
        factors = 1.0, source, first_step, second.data_ptr(), second_step
        dgemm(order, *transposed, *sizes, *factors, kept, target, out_step)
    return True


def _is_worth_it(first: Tensor, second: Tensor) -> bool:
    return is_by_rows() and first.numel() * second.shape[1] >= LEAST_MULTIPLICATIONS


def _layout(matrix: Tensor) -> tuple[int, int] | None:
    """Whether a matrix lies by rows or by columns, and the distance between them; None if it does neither."""
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if (across == 1 or columns == 1) and (rows == 1 or down >= columns):
        return BY_ROWS, down if rows > 1 else columns
    if (down == 1 or rows == 1) and across >= rows:
        return BY_COLUMNS, across
    return None


@cache
def _openblas() -> Callable[..., None] | None:
    """OpenBLAS's matrix product on one thread; None if torch's is as good on this processor, or it is missing."""
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
    """Whether the system may refuse memory: OpenBLAS would then end the process, where torch raises an error."""
    import resource  # missing on other systems

    try:
        is_counted = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
    except OSError:  # a container may hide it
        return True
    return is_counted or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


# -- masks -------------------------------------------------------------------------------------------------------------


def places_of(mask: Tensor) -> Tensor:
    """The numbers of the entries of a mask (n) that are set, in order. numpy takes a fifth of torch's time for it."""
    return torch.from_numpy(np.flatnonzero(mask.numpy())) if mask.is_cpu else mask.nonzero().squeeze(1)


# -- norms -------------------------------------------------------------------------------------------------------------

POWER_STEPS = 20
# Power iteration ends when a step lowers the bound by less than this.
ENOUGH = 0.999
# A guess of a norm is raised by this factor before each of so many trials.
RAISED, TRIALS = 1.02, 40
# More multiplications than this are not worth a norm.
MOST_WORK = 2e12
# No processor does more multiplications in a second: work that would take longer than the time left is not started.
A_SECOND = 4e10

Check = Callable[[float], None]
"""Raises an error if fewer seconds are left than it is given."""


def always(seconds: float) -> None:
    """A check without a time limit."""


def norm_of_matrix(weight: Tensor, check: Check = always) -> float:
    """An upper bound of the norm of a matrix (outputs, inputs)."""
    return largest_singular_value([weight.unsqueeze(0)], weight.shape, 1, check)


def norm_of_positive(twice: Callable[[Tensor], Tensor], x: Tensor, check: Check = always) -> float:
    """An upper bound of the norm of a matrix A without negative entries; `twice` is A^T A, `x` all ones.

    For any positive x, the norm of A^T A is at most the largest of (A^T A x)_i / x_i (Collatz and Wielandt). A few
    steps of power iteration find a good x.
    """
    best = torch.inf
    for _ in range(POWER_STEPS):
        check(0.0)
        y = twice(x)
        before, best = best, min(best, float((y / x).max()))
        largest = float(y.max())
        if largest == 0 or best == torch.inf or best > ENOUGH * before:
            break
        x = torch.maximum(y / largest, torch.full_like(y, 1e-6))
    return sqrt(best) * ABOVE


def largest_singular_value(matrices: Iterable[Tensor], shape: torch.Size, count: int, check: Check) -> float:
    """An upper bound of the norms of `count` matrices of one shape, which come in batches (n, rows, columns)."""
    small, large = min(shape), max(shape)
    proved = 0.0
    if 4.0 * count * small * small * large > MOST_WORK:
        return float("inf")
    for batch in matrices:
        wide = batch if batch.shape[1] <= batch.shape[2] else batch.mH
        frobenius = float(torch.linalg.vector_norm(wide.flatten(1), dim=1).max()) * ABOVE
        if frobenius <= proved:
            continue
        if not frobenius < float("inf"):
            return float("inf")
        check(4.0 * len(batch) * small * small * large / A_SECOND)
        gram = wide @ wide.mH
        guess = proved**2  # often enough, since the matrices of one convolution differ little
        unit = torch.eye(small, dtype=gram.dtype, device=gram.device)
        for _ in range(TRIALS):
            if guess >= frobenius**2:
                break
            check(0.0)
            # Rounding of the product above, of the factorisation, and of this difference: gamma times traces.
            slack = 16 * (large + small + 8) * UNIT * (frobenius**2 + small * guess)
            if not bool(torch.linalg.cholesky_ex(guess * unit - gram).info.any()):
                guess += slack
                break
            guess = RAISED * max(guess, _largest_eigenvalue(gram))
        else:
            guess = frobenius**2
        proved = max(proved, min(sqrt(guess) * ABOVE, frobenius))
    return proved


def _largest_eigenvalue(gram: Tensor) -> float:
    """A lower estimate of the largest eigenvalue of all matrices (n, rows, rows), by power iteration."""
    x = torch.ones_like(gram[:, :, :1])
    x[:, ::2] *= -0.5  # unlikely to be orthogonal to the eigenvector
    size = torch.zeros(())
    for _ in range(POWER_STEPS):
        x = gram @ x
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        x = x / size.clamp(min=1e-300)
    return float(size.max())
