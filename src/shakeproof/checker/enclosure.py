"""The rule: how a value of the network is enclosed on a whole leaf at once. docs/checker.md says why it holds.

On a leaf, a box of strengths written with t in [-1, 1]^m, a value of the network is

    value(t) = centre + sum_i t_i slope_i + error(t),   |error_j| <= radius_j for every entry j,   ||error||_2 <= norm.

Centre and slopes are float64 numbers, exact by decree: what rounding did to them is in the error. A bound of the error
that is too small would be a bug, one that is too large is only a loss. Bounds are rounded too: `up` repairs that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from shakeproof.checker.budget import ELEMENTWISE, Array, Unknown, require, spend

U64, U32 = 2.0**-53, 2.0**-24
FOLDED = 16  # roundings that runtimes may add to each weight by folding batch norms and factors into it, 4 for each
USELESS = 4.0  # radii whose norm is this many times the known one are not worth a product
# Factors may be folded into weights before or behind them. With sums up to this, and factors that shrink by no more all
# together, no partial sum comes near 2^128 in any order; a weight that underflows then loses 2^-126 of as much at most.
LARGEST_FLOAT32, SHRUNK = 2.0**40, 2.0**-60


def gamma(roundings: int, unit: float) -> float:
    """A sum of n products is off by at most gamma_n (sum of their absolute values), in any order (Higham, 3.1, 4.2)."""
    return roundings * unit / (1 - roundings * unit) if roundings * unit < 0.1 else math.inf


def up(bound: Array, terms: int = 0) -> Array:
    """A bound computed by up to `terms` + 28 roundings of non-negative numbers, made at least as large as was meant."""
    return bound * (1 + (terms + 32) * 2 * U64)


def norm(entries: Array) -> Array:
    """At least the 2-norm of each leaf's entries (leaves, ...); squares below 2^-1000 may have been lost."""
    flat = entries.reshape(len(entries), -1)
    return up(np.sqrt(np.einsum("li,li->l", flat, flat)) + math.sqrt(flat.shape[1]) * 2.0**-500, flat.shape[1])


@dataclass(frozen=True, eq=False)
class Tube:
    """A value on a batch of leaves. `float32`: the rounding of the network's runtime counts too, not only our own."""

    lines: Array  # (1 + m, leaves, *shape): the centre, then the slopes
    radius: Array  # (leaves, *shape)
    norm: Array  # (leaves,)
    float32: bool
    fused: int = 0  # roundings in the affine operators just before, with which an elementwise one may be fused
    shrunk: float = 1.0  # by how much all factors before it shrink together

    @property
    def shape(self) -> tuple[int, ...]:
        return self.radius.shape[1:]

    @property
    def magnitude(self) -> Array:
        """At least the absolute value of each entry, anywhere on the leaf (its rounding is in `unit`)."""
        return np.asarray(np.abs(self.lines).sum(0) + self.radius)

    def room(self, entries: int) -> None:
        """Before a value of so many entries is made of it."""
        size = (len(self.lines) + 1) * len(self.radius) * entries
        spend(ELEMENTWISE * size, size)

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
        self.room(math.prod(radius.shape[1:]))
        sound = np.isfinite(lines).all(axis=(0, *range(2, lines.ndim))) & (not self.float32 or size < LARGEST_FLOAT32)
        bound = np.where(sound, bound, np.nan)
        radius = np.minimum(radius, bound.reshape(-1, *(1,) * (radius.ndim - 1)))
        return replace(self, lines=lines, radius=radius, norm=np.minimum(bound, norm(radius)), fused=fused)


Linear = Callable[[Array, bool], Array]  # applies W, or |W| if asked to, to (k, leaves, *shape)
Norms = tuple[float, float]  # at least the 2-norms of W and |W|


def affine(
    x: Tube, linear: Linear, terms: int, sigma: Norms, bias: Any = 0.0, bias_size: Any = None, fused: int = 0
) -> Tube:
    """W x + b = (W centre + b) + (W slopes) t + W e, and |W e| <= |W| |e|, ||W e|| <= ||W|| ||e||.

    Each computed entry is off by at most unit * (|W| magnitude + |b|), whose 2-norm is at most
    unit * (|| |W| || ||magnitude|| + ||b||). `bias_size` is |b|, or what it was computed from without cancellation.
    """
    bias_size = np.abs(bias) if bias_size is None else bias_size
    magnitude, unit, lines = x.magnitude, x.unit(terms, fused), linear(x.lines, False)
    lines[0] += bias
    size = norm(magnitude)
    lost = 2.0**-1022 * (1 + size)  # by underflow of a product, or of a weight; in a runtime, even flushed to zero
    if x.float32:
        lost = lost + 2.0**-126 * (1 + size + LARGEST_FLOAT32)  # or of a weight with factors that are folded into it
    lost = (terms + fused + FOLDED + 2) * (len(lines) + 1) * lost
    summed = sigma[1] * size + norm(np.broadcast_to(bias_size, (1, *lines.shape[2:])))
    bound = up(sigma[0] * x.norm + unit * summed + lost * math.sqrt(math.prod(lines.shape[2:])))
    # Where next to nothing is known entry by entry, that no entry exceeds the norm will do: a product is saved. Leaf by
    # leaf, so that what is proved of one does not depend on which others are looked at along with it.
    useless, wide = norm(x.radius) > USELESS * x.norm, (-1, *(1,) * (lines.ndim - 2))
    radius = np.broadcast_to(bound.reshape(wide), lines.shape[1:])
    if not useless.all():
        sharp = linear((x.radius + unit * magnitude)[None], True)[0] + (unit * bias_size + lost.reshape(wide))
        radius = np.where(useless.reshape(wide), radius, up(sharp, terms))
    return x.settled(lines, radius, bound, summed, fused + terms)


def scaled(x: Tube, factor: Array, terms: int, offset: Any = 0.0, offset_size: Any = None) -> Tube:
    """factor * x + offset, entry by entry: a diagonal matrix's norm is its largest entry."""
    largest = float(np.abs(factor).max()) * (1 + 2.0**-45)
    linear: Linear = lambda array, absolute: array * (np.abs(factor) if absolute else factor)  # noqa: E731
    sizes = np.abs(factor[factor != 0])
    shrunk = x.shrunk * min(1.0, float(sizes.min(initial=1.0)))
    require(not x.float32 or shrunk >= SHRUNK, "factors so small that float32 may lose what they are of", Unknown)
    wide = widened(replace(x, shrunk=shrunk), np.broadcast_shapes(x.shape, factor.shape, np.shape(offset)))
    return affine(wide, linear, terms, (largest, largest), offset, offset_size, x.fused)


def added(x: Tube, y: Tube) -> Tube:
    """x + y: errors add up, and the sum is rounded."""
    x, y = (widened(value, np.broadcast_shapes(x.shape, y.shape)) for value in (x, y))
    fused = max(x.fused, y.fused)
    local = up(x.unit(1, fused) * (x.magnitude + y.magnitude))
    rounding = norm(local)
    radius, bound = up(x.radius + y.radius + local), up(x.norm + y.norm + rounding)
    total = x.settled(x.lines + y.lines, radius, bound, rounding / x.unit(1, fused), fused + 1)
    return replace(total, shrunk=min(x.shrunk, y.shrunk))


def negated(x: Tube) -> Tube:
    return replace(x, lines=-x.lines)


def joined(tubes: Sequence[Tube], axis: int) -> Tube:
    """Values side by side along an axis."""
    axis = axis % len(tubes[0].shape) - len(tubes[0].shape)
    tubes[0].room(sum(math.prod(tube.shape) for tube in tubes))
    bound = up(np.sqrt(sum(tube.norm**2 for tube in tubes)) + 2.0**-500, len(tubes))
    lines, radius = (np.concatenate(side, axis) for side in zip(*((x.lines, x.radius) for x in tubes), strict=True))
    fused, shrunk = max(tube.fused for tube in tubes), min(tube.shrunk for tube in tubes)
    return Tube(lines, radius, bound, tubes[0].float32, fused, shrunk)


def placed(x: Tube, places: Array) -> Tube:
    """Entries that move: entry k of the result is entry places[k] of x, or 0 where that is -1.

    In the 2-norm, the error of an entry that is there n times counts n times.
    """
    x.room(places.size)
    entries = math.prod(x.shape)
    flat = x.each(lambda array: array.reshape(*array.shape[: array.ndim - len(x.shape)], entries))
    if places.size == entries and (places.ravel() == np.arange(entries)).all():
        return flat.each(lambda array: array.reshape(*array.shape[:-1], *places.shape))
    often = np.bincount(places[places >= 0], minlength=1).max()
    ended = flat.each(lambda array: np.concatenate([array, np.zeros_like(array[..., :1])], -1))  # -1 is the last: 0
    return replace(ended.each(lambda array: array[..., places]), norm=up(np.sqrt(max(often, 1)) * x.norm))


def widened(x: Tube, shape: tuple[int, ...]) -> Tube:
    """Repeated to a shape that it is broadcast to."""
    return placed(x, np.broadcast_to(np.arange(math.prod(x.shape)).reshape(x.shape), shape))


def rectified(x: Tube, below: Any) -> Tube:
    """f(x) = x where x is positive, `below` times x elsewhere: ReLU (0), leaky ReLU, PReLU, |x| (-1).

    Let a in [low, high] be the affine part: f(a) is slope * a + middle, give or take the gap. f is Lipschitz, so the
    error adds |f(a + e) - f(a)| <= L |e|, with L its steeper slope, or its only one on [low - radius, high + radius].
    """
    steep, lines, magnitude = np.maximum(1.0, np.abs(below)), x.lines, x.magnitude
    spread = np.abs(lines[1:]).sum(0) * (1 + (len(lines) - 2) * 2 * U64)  # a sum of m terms is rounded m - 1 times
    low, high = lines[0] - spread, lines[0] + spread
    low, high = low - 2 * U64 * np.abs(low), high + 2 * U64 * np.abs(high)  # outwards: a difference is rounded once
    slope, middle, gap = _chord(low, high, below)
    lipschitz = np.where(low - x.radius > 0, 1.0, np.where(high + x.radius < 0, np.abs(below), steep))
    middle_lines = slope * lines
    middle_lines[0] += middle
    # All of that is made by at most 8 roundings of numbers no larger than (1 + steep) * magnitude, where f bends.
    local = gap + np.where((low < 0) & (high > 0), 32 * U64 * steep * magnitude + 2.0**-1000, 0.0)
    size = np.zeros(1)
    if not np.isin(below, (-1.0, 0.0, 1.0)).all():  # then products are rounded everywhere, by a runtime too
        local = local + x.unit(2) * steep * magnitude + (2.0**-125 if x.float32 else 2.0**-1000)
        size = norm(steep * magnitude)
    bound = up(float(np.max(steep)) * x.norm + norm(up(local)))
    return x.settled(middle_lines, up(lipschitz * x.radius + local), bound, size)


def _chord(low: Array, high: Array, below: Any) -> tuple[Array, Array, Array]:
    """Slope, middle and gap: for any slope, f(a) - slope * a has its extremes at low, at 0 (where it is 0) or at high.

    Where a does not change its sign, the slope is f's, and nothing is lost; elsewhere the chord's, if it is a number.
    """
    crossing, chord = (low < 0) & (high > 0), (high - below * low) / (high - low)
    slope = np.where(crossing & np.isfinite(chord), chord, np.where(high <= 0, below, 1.0))
    ends = np.where(crossing, [(below - slope) * low, (1 - slope) * high], 0.0)
    least, most = np.minimum(ends.min(0), 0.0), np.maximum(ends.max(0), 0.0)
    return slope, (least + most) / 2, (most - least) / 2


def raised(x: Tube, floor: float) -> Tube:
    """max(x, floor) = floor + ReLU(x - floor), in real numbers: a runtime rounds nothing here."""
    return x if floor == -math.inf else _shifted(rectified(_shifted(x, -floor), 0.0), floor)


def clipped(x: Tube, low: float, high: float) -> Tube:
    return negated(raised(negated(raised(x, low)), -high))


def _shifted(x: Tube, by: float) -> Tube:
    lines = np.concatenate([x.lines[:1] + by, x.lines[1:]])
    local = 2 * U64 * np.abs(lines[0])
    return x.settled(lines, up(x.radius + local), up(x.norm + norm(local)))


def highest(x: Tube, centre: Array, slopes: Array, radius: Array, overlap: int) -> Tube:
    """Max pooling of x, whose windows are the last axis of centre (-inf for padding), slopes and radius.

    The entry p that is highest in the middle of the leaf stands for the window. How far another entry's affine part may
    exceed it anywhere on the leaf is the gap; the line is put in the middle of [0, gap]. The maximum itself is at least
    p - radius_p, and at most q + radius_q for some q. It moves by no more than its entries do, and in the 2-norm each
    entry's error counts in at most `overlap` windows.
    """
    top = centre.argmax(-1)[..., None]
    best, error = (np.take_along_axis(array, top, -1) for array in (centre, radius))
    turns = np.take_along_axis(slopes, top[None], -1)
    ahead, turned = centre - best, np.abs(slopes - turns).sum(0)  # -inf for padding
    excess = ahead + turned + (len(slopes) + 4) * 2 * U64 * (np.where(ahead > -np.inf, -ahead, 0.0) + turned)
    gap = np.maximum(excess.max(-1), 0.0)
    most = np.maximum((excess + radius * (1 + 8 * U64)).max(-1), error[..., 0])
    result = np.concatenate([best[None], turns])[..., 0]
    rounded = np.where(gap > 0, 4 * U64 * (np.abs(result[0]) + np.abs(most) + gap), 0.0)
    result[0] += gap / 2
    radius = np.maximum(most - gap / 2, error[..., 0] + gap / 2) + rounded
    return x.settled(result, up(radius), up(math.sqrt(overlap) * x.norm + norm(up(gap / 2 + rounded))))
