"""By how much a linear map may stretch the Euclidean norm of its input: proved bounds, not estimates.

A convolution with zero padding is a part of one on a torus large enough that nothing meets itself around it, and that
one is, at each frequency, a matrix from channels to channels: no norm is larger than the largest of theirs. That a
matrix M stretches nothing by more than s follows from a Cholesky factorisation of s^2 I - M^H M, which floating point
can only find if that matrix is positive definite, up to an error that is known (S. M. Rump: Verification of positive
definiteness. BIT 46, 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt

import torch
from torch import Tensor

from shakeproof.linalg.windows import SlidingWindow

UNIT = 2.0**-53
# Sums of a few positive numbers, and norms of up to 10^9 of them, come out too small by less than this.
ABOVE = 1 + 2.0**-20

POWER_STEPS = 20
# A step that lowers a bound by less than this is the last.
ENOUGH = 0.999
# A guess of a norm is raised by so much before it is tried, and again after each failure.
RAISED, TRIALS = 1.02, 40
# Matrices are put together for so many bytes at a time; those that take more multiplications are not worth it.
BATCH_BYTES, MOST_WORK = 2**23, 2e12
# So many multiplications take a second at the least: what would take longer than there is time is not begun.
A_SECOND = 4e10

Check = Callable[[float], None]
"""Raises an error if there are not so many seconds left."""


def always(seconds: float) -> None:
    """There is time for everything."""


def norm_of_matrix(weight: Tensor, check: Check = always) -> float:
    """A bound on the norm of a matrix (outputs, inputs)."""
    return _largest_singular_value(iter([weight.unsqueeze(0)]), weight.shape, 1, check)


def norm_of_positive(twice: Callable[[Tensor], Tensor], x: Tensor, check: Check = always) -> float:
    """A bound on the norm of a matrix A without negative entries; `twice` is A^T A, and `x` all ones.

    For any positive x, the norm of A^T A is at most the largest of (A^T A x)_i / x_i (Collatz and Wielandt); a few
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


def norm_of_convolution(weight: Tensor, window: SlidingWindow, shape: torch.Size, check: Check = always) -> float:
    """A bound on the norm of a convolution of pictures of `shape` (batch, height, width, channels).

    `weight` (groups, channels out, kernel height * kernel width * channels in)
    """
    groups, outputs, _ = weight.shape
    kernel = weight.view(groups, outputs, *window.kernel, -1)
    top, left, bottom, right = window.pads
    sides = [shape[1] + top + bottom, shape[2] + left + right]
    if window.dilations == (1, 1) and window.kernel != (1, 1):
        kernel, sides = _in_phases(kernel, window.strides, sides)
    sizes = [
        1 if taps == 1 else side + dilation * (taps - 1)
        for taps, side, dilation in zip(kernel.shape[2:4], sides, window.dilations, strict=True)
    ]
    # Rounding of the matrices: of each entry, a share of the sum of the taps' absolute values.
    taps = kernel.shape[2] * kernel.shape[3]
    wrong = (taps + 48) * UNIT * float(kernel.abs().sum((2, 3)).flatten(1).norm(dim=1).max()) * 2
    shape_of_one = torch.Size((outputs, kernel.shape[-1]))
    count = groups * (sizes[0] // 2 + 1) * sizes[1]
    matrices = _at_frequencies(kernel, window.dilations, sizes)
    return (_largest_singular_value(matrices, shape_of_one, count, check) + wrong) * ABOVE


def _in_phases(kernel: Tensor, strides: tuple[int, int], sides: list[int]) -> tuple[Tensor, list[int]]:
    """A convolution that takes steps as one that takes none, of each of the pictures that a step apart makes one."""
    groups, outputs, height, width, channels = kernel.shape
    down, across = (-(-size // step) for size, step in zip((height, width), strides, strict=True))
    whole = kernel.new_zeros(groups, outputs, down * strides[0], across * strides[1], channels)
    whole[:, :, :height, :width] = kernel
    parts = whole.view(groups, outputs, down, strides[0], across, strides[1], channels).movedim(4, 3)
    return parts.flatten(4), [-(-side // step) for side, step in zip(sides, strides, strict=True)]


def _at_frequencies(kernel: Tensor, dilations: tuple[int, int], sizes: list[int]) -> Iterator[Tensor]:
    """The matrices (some, outputs, inputs) of a convolution on a torus; those at opposite frequencies are conjugate."""
    groups, outputs, height, width, channels = kernel.shape
    if height == width == 1:  # the same at every frequency
        yield kernel.view(groups, outputs, channels)
        return
    rows, columns = (
        _waves(taps, dilation, size, kernel.device)
        for taps, dilation, size in zip((height, width), dilations, sizes, strict=True)
    )
    waves = torch.einsum("eh,fw->efhw", rows[: sizes[0] // 2 + 1], columns).flatten(2).flatten(0, 1)
    taps = kernel.flatten(2, 3).to(waves.dtype)
    for some in waves.split(max(1, BATCH_BYTES // (16 * groups * outputs * channels))):
        yield torch.einsum("ft,gotc->gfoc", some, taps).reshape(-1, outputs, channels)


def _waves(taps: int, dilation: int, size: int, device: torch.device) -> Tensor:
    """exp(2 pi i f k dilation / size), (size, taps): the angle's multiple is reduced in whole numbers first."""
    turns = torch.outer(torch.arange(size, device=device), torch.arange(taps, device=device) * dilation) % size
    angle = turns.double() * (2 * torch.pi / size)
    return torch.complex(angle.cos(), angle.sin())


def _largest_singular_value(matrices: Iterator[Tensor], shape: torch.Size, count: int, check: Check) -> float:
    """A bound on the norms of all of the matrices (some, rows, columns)."""
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
        guess = proved**2  # mostly enough: frequencies do not differ much
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
            guess = RAISED * max(guess, _power(gram))
        else:
            guess = frobenius**2
        proved = max(proved, min(sqrt(guess) * ABOVE, frobenius))
    return proved


def _power(gram: Tensor) -> float:
    """The largest eigenvalue of any of the matrices, from below."""
    x = torch.ones_like(gram[:, :, :1])
    x[:, ::2] *= -0.5  # not orthogonal to what is likely
    size = torch.zeros(())
    for _ in range(POWER_STEPS):
        x = gram @ x
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        x = x / size.clamp(min=1e-300)
    return float(size.max())
