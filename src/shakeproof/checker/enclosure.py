"""The rule: how a value of the network is enclosed on a whole leaf at once. docs/checker.md says why it holds.

On a leaf, a box of strengths written with t in [-1, 1]^m, a value of the network is

    value(t) = centre + sum_i t_i slope_i + error(t),   |error_j| <= radius_j for every entry j,   ||error||_2 <= norm.

Centre and slopes are float64 numbers, exact by decree: what rounding did to them is in the error. A bound of the error
that is too small would be a bug, one that is too large is only a loss. Bounds are rounded too: `up` repairs that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from shakeproof.checker.wire import Array, Unknown, require

U64, U32 = 2.0**-53, 2.0**-24
FOLDED = 16  # roundings that runtimes may add to each weight by folding batch norms and factors into it, 4 for each
USELESS = 4.0  # radii whose norm is this many times the known one are not worth a product
LARGEST_FLOAT32 = 2.0**100  # with room for factors that are folded: no partial sum comes near 2^128
LARGEST_VALUE = 10**8  # entries


def gamma(roundings: int, unit: float) -> float:
    """A sum of n products is off by at most gamma_n (sum of their absolute values), in any order (Higham, 3.1, 4.2)."""
    return roundings * unit / (1 - roundings * unit) if roundings * unit < 0.1 else math.inf


def up(bound: Array, terms: int = 0) -> Array:
    """A bound computed by up to `terms` + 28 roundings of non-negative numbers, made at least as large as was meant."""
    return bound * (1 + (terms + 32) * 2 * U64)


def norm(entries: Array) -> Array:
    """At least the 2-norm of each leaf's entries (leaves, ...); squares below 2^-1000 may have been lost."""
    order = sorted(range(1, entries.ndim), key=lambda axis: -entries.strides[axis])  # as in memory: no copy is made
    flat = entries.transpose(0, *order).reshape(len(entries), -1)
    return up(np.sqrt(np.einsum("li,li->l", flat, flat)) + math.sqrt(flat.shape[1]) * 2.0**-500, flat.shape[1])


@dataclass(frozen=True, eq=False)
class Tube:
    """A value on a batch of leaves. `float32`: the rounding of the network's runtime counts too, not only our own."""

    lines: Array  # (1 + m, leaves, *shape): the centre, then the slopes
    radius: Array  # (leaves, *shape)
    norm: Array  # (leaves,)
    float32: bool
    fused: int = 0  # roundings in the affine operators just before, with which an elementwise one may be fused

    @property
    def shape(self) -> tuple[int, ...]:
        return self.radius.shape[1:]

    @property
    def magnitude(self) -> Array:
        """At least the absolute value of each entry, anywhere on the leaf (its rounding is in `unit`)."""
        return np.asarray(np.abs(self.lines).sum(0) + self.radius)

    def unit(self, terms: int, fused: int = 0) -> float:
        """The relative error of a sum of `terms` products and a bias."""
        return gamma(terms + 8, U64) + (gamma(terms + FOLDED + fused, U32) if self.float32 else 0.0)

    def each(self, change: Callable[[Array], Array]) -> Self:
        """The same entries in another order or shape."""
        return replace(self, lines=change(self.lines), radius=change(self.radius))

    def settled(self, lines: Array, radius: Array, bound: Array, size: Any = 0.0, fused: int = 0) -> Self:
        """What was made of it; each error bound sharpens the other: |e_j| <= ||e||_2 and ||e||_2 <= ||radius||_2.

        NaN, which proves nothing, where lines are not finite, or where a runtime adds up too large a `size` in float32.
        """
        sound = np.isfinite(lines).all(axis=(0, *range(2, lines.ndim))) & (not self.float32 or size < LARGEST_FLOAT32)
        bound = np.where(sound, bound, np.nan)
        radius = np.minimum(radius, bound.reshape(-1, *(1,) * (radius.ndim - 1)))
        return replace(self, lines=lines, radius=radius, norm=np.minimum(bound, norm(radius)), fused=fused)


Linear = Callable[[Array, bool], Array]  # applies W, or |W| if asked to, to (k, leaves, *shape)
Norms = tuple[float, float]  # at least the 2-norms of W and |W|


def affine(
    x: Tube, linear: Linear, terms: int, sigma: Norms, bias: Any = 0.0, bias_size: Any = 0.0, elementwise: bool = False
) -> Tube:
    """W x + b = (W centre + b) + (W slopes) t + W e, and |W e| <= |W| |e|, ||W e|| <= ||W|| ||e||.

    Each computed entry is off by at most unit * (|W| magnitude + |b|), whose 2-norm is at most
    unit * (|| |W| || ||magnitude|| + ||b||). `bias_size` is |b|, or what it was computed from without cancellation.
    """
    fused, magnitude = x.fused if elementwise else 0, x.magnitude
    unit, size, lines = x.unit(terms, fused), norm(magnitude), linear(x.lines, False)
    lines[0] += bias
    tiny = 2.0**-1022 + (2.0**-126 if x.float32 else 0.0)  # what a product may lose by underflow, even flushed to zero
    lost = (terms + 2) * (len(lines) + 1) * tiny * (1 + size)
    summed = sigma[1] * size + norm(np.broadcast_to(bias_size, (1, *lines.shape[2:])))
    bound = up(sigma[0] * x.norm + unit * summed + lost * math.sqrt(math.prod(lines.shape[2:])))
    # Where next to nothing is known entry by entry, that no entry exceeds the norm will do: a product is saved. Leaf by
    # leaf, so that what is proved of one does not depend on which others are looked at along with it.
    useless, wide = (norm(x.radius) > USELESS * x.norm) & (not elementwise), (-1, *(1,) * (lines.ndim - 2))
    radius = np.broadcast_to(bound.reshape(wide), lines.shape[1:])
    if not useless.all():
        sharp = linear((x.radius + unit * magnitude)[None], True)[0]
        sharp = up(sharp + (unit * bias_size + lost.reshape(wide)), terms)
        radius = np.where(useless.reshape(wide), radius, sharp)
    return x.settled(lines, radius, bound, summed, fused + terms)


def scaled(x: Tube, factor: Array, terms: int, offset: Any = 0.0, offset_size: Any = 0.0) -> Tube:
    """factor * x + offset, entry by entry: a diagonal matrix's norm is its largest entry."""
    largest = float(np.abs(factor).max()) * (1 + 2.0**-45)
    linear: Linear = lambda array, absolute: array * (np.abs(factor) if absolute else factor)  # noqa: E731
    return affine(x, linear, terms, (largest, largest), offset, offset_size, elementwise=True)


def added(x: Tube, y: Tube) -> Tube:
    """x + y of one shape: errors add up, and the sum is rounded."""
    fused = max(x.fused, y.fused)
    local = up(x.unit(1, fused) * (x.magnitude + y.magnitude))
    rounding = norm(local)
    radius, bound = up(x.radius + y.radius + local), up(x.norm + y.norm + rounding)
    return x.settled(x.lines + y.lines, radius, bound, rounding / x.unit(1, fused), fused + 1)


def placing(places: Array, shape: tuple[int, ...], fill: float = 0.0) -> Callable[[Tube], Tube]:
    """Moves entries of values of this shape: entry k of the result is entry places[k], or `fill` where that is -1.

    In the 2-norm, the error of an entry that is there n times counts n times.
    """
    require(places.size <= LARGEST_VALUE, "a value repeated or padded to a very large one", Unknown)
    outside, entries = places < 0, math.prod(shape)
    often = int(np.bincount(places[~outside].ravel(), minlength=1).max())
    still = places.size == entries and bool((places.ravel() == np.arange(entries)).all())

    def move(x: Tube) -> Tube:
        flat = x.each(lambda array: array.reshape(*array.shape[: array.ndim - len(shape)], entries))
        if still:
            return flat.each(lambda array: array.reshape(*array.shape[:-1], *places.shape))
        made = flat.each(lambda array: array[..., places])
        if outside.any():
            made.lines[0][:, outside], made.lines[1:, :, outside], made.radius[:, outside] = fill, 0.0, 0.0
        return replace(made, norm=x.norm if often <= 1 else up(math.sqrt(often) * x.norm))

    return move


class Stretch(NamedTuple):
    """Where a piecewise-linear function is slope * x + offset: from `start` to `end`."""

    start: float
    end: float
    slope: Array | float
    offset: float = 0.0


def clipping(low: float, high: float) -> list[Stretch]:
    require(low <= high, f"Clip to [{low}, {high}]", Unknown)
    pieces = (Stretch(-math.inf, low, 0.0, low), Stretch(low, high, 1.0), Stretch(high, math.inf, 0.0, high))
    return [piece for piece in pieces if piece.start < piece.end]


def bent(x: Tube, stretches: Sequence[Stretch]) -> Tube:
    """A continuous piecewise-linear function f, entry by entry.

    For any number s, f(a) - s a on the range [low, high] of the affine part a has its extremes at the range's ends or
    at f's bends; so f(a) is s a + their middle, give or take half their difference. f is Lipschitz: the error adds at
    most |f(a + e) - f(a)| <= L |e|, with L the steepest slope, or the only one on [low - radius, high + radius].
    """
    spread = np.abs(x.lines[1:]).sum(0) * (1 + (len(x.lines) - 2) * 2 * U64)  # a sum of m terms is rounded m - 1 times
    low, high = x.lines[0] - spread, x.lines[0] + spread
    low, high = low - 2 * U64 * np.abs(low), high + 2 * U64 * np.abs(high)  # a difference is rounded once
    steepest = max(float(np.max(np.abs(piece.slope))) for piece in stretches)
    slope, offset, lipschitz = np.zeros_like(spread), np.zeros_like(spread), np.full_like(spread, steepest)
    crossing = np.ones(spread.shape, dtype=bool)
    for piece in stretches:
        inside = (low >= piece.start) & (high <= piece.end)
        crossing &= ~inside
        np.copyto(slope, piece.slope, where=inside)
        np.copyto(offset, piece.offset, where=inside)
        start = piece.start * (1 + math.copysign(4 * U64, piece.start))  # a little inside: sides below are rounded
        end = piece.end * (1 - math.copysign(4 * U64, piece.end))
        np.copyto(lipschitz, np.abs(piece.slope), where=(low - x.radius >= start) & (high + x.radius <= end))
    at = np.nonzero(crossing)
    bending = [piece._replace(slope=np.broadcast_to(piece.slope, spread.shape)[at]) for piece in stretches]
    slope[at], offset[at], gap = _chord(low[at], high[at], bending)
    lines, radius = slope * x.lines, lipschitz * x.radius
    lines[0] += offset
    radius[at] += gap
    gaps = up(np.sqrt(np.bincount(at[0], gap * gap, len(radius))), gap.size) + 2.0**-500 * gap.size  # their norm
    bound, size = up(steepest * x.norm) + gaps, np.zeros(1)
    if not all(set(np.unique(np.abs(piece.slope))) <= {0.0, 1.0} for piece in stretches):  # slope * x is rounded
        local = x.unit(2) * steepest * x.magnitude + (2.0**-125 if x.float32 else 2.0**-1021)  # and may underflow
        radius, bound, size = radius + local, bound + norm(local), norm(local) / x.unit(2)
    return x.settled(lines, up(radius), up(bound), size)


def _chord(low: Array, high: Array, stretches: list[Stretch]) -> tuple[Array, Array, Array]:
    """For entries that bend: the chord's slope, the middle of what f strays from it, and how far it strays."""

    def value(place: Array) -> Array:
        return np.select([place <= p.end for p in stretches], [p.slope * place + p.offset for p in stretches])

    slope = (value(high) - value(low)) / (high - low)
    slope = np.where(np.isfinite(slope), slope, 0.0)  # any number would be sound; a chord is good
    places = [low, high, *(np.clip(piece.end, low, high) for piece in stretches[:-1])]  # the ends, and bends between
    strays = np.stack([value(place) - slope * place for place in places])
    largest = np.maximum(np.abs(low), np.abs(high))
    sizes = np.stack([(np.abs(p.slope) + np.abs(slope)) * largest + abs(p.offset) for p in stretches])
    least, most = strays.min(0), strays.max(0)
    # Every number above is made by at most 8 roundings of numbers no larger than the sizes; so are centre and slopes.
    return slope, (least + most) / 2, (most - least) / 2 + 32 * U64 * sizes.max(0) + 2.0**-1000


def highest(x: Tube, lines: Array, radius: Array, overlap: int) -> Tube:
    """Max pooling of x, whose windows are along axis -2 of the lines and the radius.

    The entry p that is highest in the middle of the leaf stands for the window. How far another entry's affine part may
    exceed it anywhere on the leaf is the gap; the line is put in the middle of [0, gap]. The maximum itself is at least
    p - radius_p, and at most q + radius_q for some q. It moves by no more than its entries do, and in the 2-norm each
    entry's error counts in at most `overlap` windows.
    """
    top = lines[0].argmax(-2)[..., None, :]
    best, own = np.take_along_axis(lines, top[None], -2), np.take_along_axis(radius, top, -2)[..., 0, :]
    ahead, turned = lines[0] - best[0], np.abs(lines[1:] - best[1:]).sum(0)  # -inf for padding
    excess = ahead + turned + (len(lines) + 3) * 2 * U64 * (np.where(ahead > -np.inf, -ahead, 0.0) + turned)
    gap, most = np.maximum(excess.max(-2), 0.0), np.maximum((excess + radius * (1 + 8 * U64)).max(-2), own)
    made = best[..., 0, :]
    rounded = np.where(gap > 0, 4 * U64 * (np.abs(made[0]) + np.abs(most) + gap), 0.0)
    made[0] += gap / 2
    radius = np.maximum(most - gap / 2, own + gap / 2) + rounded
    return x.settled(made, up(radius), up(math.sqrt(overlap) * x.norm + norm(up(gap / 2 + rounded))))
