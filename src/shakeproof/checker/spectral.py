"""Upper bounds of spectral norms that are proved, not estimated.

A guess g of the largest eigenvalue of G = M M^H is proved by a Cholesky factorisation of g I - G: if it runs to its end
in floating point, g I - G has no eigenvalue below -slack (Rump, Verification of positive definiteness, BIT 46, 2006).
"""

import math
from collections.abc import Sequence

import numpy as np

from shakeproof.checker.budget import Array, spend
from shakeproof.checker.enclosure import U64, Norms

MOST_WORK = 2e11  # floating-point operations on one operator's norm; beyond, a coarser bound does
CHUNK = 2**22  # entries of the matrices that are looked at together


def largest_square(matrices: Array, least: float = 0.0) -> float:
    """At least the largest squared 2-norm among matrices (count, rows, columns), and `least`."""
    short = matrices if matrices.shape[1] <= matrices.shape[2] else np.conj(matrices.transpose(0, 2, 1))
    size, length = short.shape[1:]
    gram = short @ np.conj(short.transpose(0, 2, 1))
    squares = float((np.abs(short) ** 2).sum((1, 2)).max()) * 1.01  # at least ||M||_F^2
    if not math.isfinite(squares):
        return math.inf
    guess: float = max(least, 1.01 * _estimate(gram), 1e-9 * squares, 1e-300)
    while not _is_positive_definite(guess, gram) and guess < 2 * squares:
        guess *= 1.03
    # Rounding of the Gram matrix: gamma_(2 length) ||M||_F^2, complex products included. Of the factorisation:
    # gamma_(2 size + 4) trace(guess I - G). All twice, for rounding in complex arithmetic and in this line.
    slack = 4 * U64 * ((2 * length + 16) * squares + (2 * size + 16) * (size * guess + squares))
    return float(max(least, guess + slack))  # where nothing was proved, guess >= 2 ||M||_F^2 is a bound by itself


def _estimate(gram: Array) -> float:
    """The largest eigenvalue by power iteration: only a guess."""
    vectors, length = np.random.default_rng(0).normal(size=(*gram.shape[:2], 1)).astype(gram.dtype), np.zeros(1)
    for _ in range(24):
        vectors = gram @ vectors
        length = np.sqrt((np.abs(vectors) ** 2).sum((1, 2), keepdims=True))
        vectors = vectors / np.maximum(length, 1e-300)
    return float(length.max())


def _is_positive_definite(guess: float, gram: Array) -> bool:
    try:
        return bool(np.isfinite(np.linalg.cholesky(guess * np.eye(gram.shape[1]) - gram)).all())
    except np.linalg.LinAlgError:
        return False


def _grid(sides: Sequence[int], first: int, last: int) -> Array:
    """Some points of a grid, in order (count, axes); one of no axes has one point."""
    return np.stack(np.unravel_index(np.arange(first, last), tuple(sides) or (1,)), 1)[:, : len(sides)]


def convolution_norms(weight: Array, strides: Sequence[int], dilations: Sequence[int], sides: Sequence[int]) -> Norms:
    """At least the 2-norms of a zero-padded convolution and of its absolute values, with (groups, out, in, *kernel).

    With stride s, pixels s n + p of phase p are channels of a smaller picture, and the convolution has stride 1 on it.
    A picture with zeros around it lies on a torus that is large enough for nothing to wrap around; the convolution is a
    part of the circular one there, which the Fourier transform turns into one (out x in) matrix for each frequency.
    For absolute values, frequency 0 has the largest norm: |W_hat(f)| <= W_hat(0) entry by entry.
    """
    taps = _grid(weight.shape[3:], 0, math.prod(weight.shape[3:])) * np.array(dilations, dtype=int)
    moves, phases = taps // strides, taps % strides
    by_tap = weight.reshape(*weight.shape[:3], -1).transpose(3, 0, 1, 2)
    blocks = [np.flatnonzero((phases == phase).all(1)) for phase in np.unique(phases, axis=0)]
    absolute = np.concatenate([np.abs(by_tap[block]).sum(0) for block in blocks], axis=2)
    # Waves are off by 64 u each, sums of len(taps) terms by gamma, weights that are products by less than 16 u.
    doubt = (2 * len(taps) + 96) * U64 * float(np.sqrt((absolute**2).sum((1, 2)).max())) * 1.01
    reaches = zip(sides, strides, moves.max(0), strict=True)  # an axis along which nothing moves needs one frequency
    torus = [1 if reach == 0 else -(-n // s) + reach + (s > 1) for n, s, reach in reaches]
    half = [*torus[:-1], *(n // 2 + 1 for n in torus[-1:])]  # the others are complex conjugates: the weights are real
    small, large = sorted(absolute.shape[1:])
    coarse = math.sqrt(float(absolute.sum(2).max()) * float(absolute.sum(1).max()))  # ||W||_2^2 <= ||W||_1 ||W||_inf
    coarse = coarse * (1 + (small + large + len(taps) + 64) * 2 * U64)
    # for each frequency: itself, a wave for each tap, the sum of all taps, a Gram matrix and its factorisation
    each = 1000 + len(taps) * (100 + by_tap[0].size) + len(weight) * 8 * small * small * (large + small)
    count, step, square = math.prod(half), max(1, CHUNK // max(absolute.size, len(taps))), 0.0
    if count * each > MOST_WORK:
        return coarse, coarse
    spend(count * each)
    for first in range(0, count, step):
        turns = (_grid(half, first, min(first + step, count))[:, None] * moves % torus / np.array(torus)).sum(2)
        wave = np.exp(-2j * np.pi * turns) if count > 1 else np.ones((1, len(taps)))
        parts = [np.tensordot(wave[:, block], by_tap[block], 1) for block in blocks]
        square = largest_square(np.concatenate(parts, axis=3).reshape(-1, *absolute.shape[1:]), square)
    sharp = [(math.sqrt(bound) + doubt) * (1 + 8 * U64) for bound in (square, largest_square(absolute))]
    return min(coarse, sharp[0]), min(coarse, sharp[1])
