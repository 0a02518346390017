"""Better slopes and shares by gradient ascent (Adam), for many rows at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shakeproof.bounds.tilted import Rows, Tilted

# Steps: of a slope, in units of what it may be; of a share, in units of its row's coefficients; and how they shrink.
SLOPE_STEP, SHARE_STEP, DECAY = 0.25, 1.0, 0.96
MEAN, SPREAD = 0.9, 0.999
# Rows that have reached what was wanted are left out as soon as they are this share of all.
WORTH_LEAVING_OUT = 0.3


def ascend(
    tilted: Tilted, coefficients: Tensor, rows: Rows, steps: int, wanted: Tensor, deadline: float
) -> tuple[Rows, Tensor]:
    """Rows with better slopes and shares, and the bounds (rows) that they gave, in the precision of `tilted`.

    Ends for rows whose bound exceeds what is wanted, (rows). One row of ranges may serve all coefficients.
    """
    count, lines, allowed = len(coefficients), tilted.on(rows), _Allowed.of(tilted, rows)
    slope, share = rows.slope.expand(count, -1), rows.share.expand(count, -1)
    best, best_slope, best_share = coefficients.new_full((count,), -torch.inf), slope.clone(), share.clone()
    active = torch.arange(count, device=slope.device)
    by_slope, by_share = _Moments.none(slope), _Moments.none(share)
    for step in range(1, steps + 1):
        relaxations = lines.relaxations(slope, share)
        found = lines.lowest(relaxations, coefficients)
        better = found.value > best[active]
        best[active[better]] = found.value[better]
        best_slope[active[better]], best_share[active[better]] = slope[better], share[better]
        done = best[active] > wanted[active]
        if step == steps or bool(done.all()) or time.perf_counter() > deadline:
            break
        slopes, shares, size = lines.slopes_of(found, lines.walked(relaxations, found), share)
        rate = DECAY ** (step - 1)
        by_slope, by_share = by_slope.after(slopes), by_share.after(shares)
        slope = allowed.slopes(slope, rate * SLOPE_STEP * by_slope.direction(step))
        share = allowed.shares(share + rate * SHARE_STEP * size * by_share.direction(step))
        if float(done.double().mean()) > WORTH_LEAVING_OUT:
            kept = ~done
            active, slope, share, coefficients = active[kept], slope[kept], share[kept], coefficients[kept]
            by_slope, by_share = by_slope[kept], by_share[kept]
            if len(rows) == count:
                lines, allowed = lines[kept], allowed[kept]
    return replace(rows, slope=best_slope, share=best_share), best


@dataclass(frozen=True, eq=False)
class _Allowed:
    """What slopes (n) and shares (rows, n) may be: a share has the sign of a cut, and is 0 where nothing was cut."""

    least: Tensor
    greatest: Tensor
    cut_below: Tensor
    cut_above: Tensor

    @staticmethod
    def of(tilted: Tilted, rows: Rows) -> _Allowed:
        whole = tilted.start()
        none = [bend.within.low.new_zeros(len(bend.place)) for bend in tilted.bends]
        tilts = [bend.tilts or (zero, zero) for bend, zero in zip(tilted.bends, none, strict=True)]
        least, greatest = (torch.cat([whole.low.new_empty(0), *(tilt[end] for tilt in tilts)]) for end in (0, 1))
        return _Allowed(least, greatest, rows.low > whole.low, rows.high < whole.high)

    def __getitem__(self, chosen: Tensor) -> _Allowed:
        return replace(self, cut_below=self.cut_below[chosen], cut_above=self.cut_above[chosen])

    def slopes(self, slope: Tensor, move: Tensor) -> Tensor:
        moved = torch.addcmul(slope, self.greatest - self.least, move)
        return torch.minimum(torch.maximum(moved, self.least), self.greatest)

    def shares(self, share: Tensor) -> Tensor:
        share = torch.where(self.cut_above, share, share.clamp(min=0))
        return torch.where(self.cut_below, share, share.clamp(max=0))


@dataclass(frozen=True, eq=False)
class _Moments:
    """Adam's running means of gradients and their squares."""

    mean: Tensor
    spread: Tensor

    @staticmethod
    def none(like: Tensor) -> _Moments:
        return _Moments(torch.zeros_like(like), torch.zeros_like(like))

    def after(self, gradient: Tensor) -> _Moments:
        spread = torch.addcmul(self.spread * SPREAD, gradient, gradient, value=1 - SPREAD)
        return _Moments(self.mean.lerp(gradient, 1 - MEAN), spread)

    def direction(self, step: int) -> Tensor:
        return (self.mean / (1 - MEAN**step)) / ((self.spread / (1 - SPREAD**step)).sqrt() + 1e-12)

    def __getitem__(self, chosen: Tensor) -> _Moments:
        return _Moments(self.mean[chosen], self.spread[chosen])
