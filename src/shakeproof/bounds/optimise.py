"""Better alphas and betas by gradient ascent (Adam), for many parts at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Parts
from shakeproof.budget import Budget

# Steps: of an alpha, in units of what it may be; of a beta, in units of its row's coefficients; and how they shrink.
ALPHA_STEP, BETA_STEP, DECAY = 0.25, 1.0, 0.96
MEAN, SPREAD = 0.9, 0.999
# Parts that have reached what was wanted are left out as soon as they are this share of all.
WORTH_LEAVING_OUT = 0.3


def ascend(
    crown: AlphaBetaCrown, coefficients: Tensor, parts: Parts, steps: int, wanted: Tensor, budget: Budget
) -> Parts:
    """Parts with the best alphas and betas found, in the precision of `crown`.

    Ends for parts whose bound exceeds what is wanted, (rows). One part's ranges may serve all coefficients.
    """
    count, lines, allowed = len(coefficients), crown.on(parts), _Allowed.of(crown, parts)
    alpha, beta = parts.alpha.expand(count, -1), parts.beta.expand(count, -1)
    best, best_alpha, best_beta = coefficients.new_full((count,), -torch.inf), alpha.clone(), beta.clone()
    active = torch.arange(count, device=alpha.device)
    by_alpha, by_beta = _Moments.none(alpha), _Moments.none(beta)
    for step in range(1, steps + 1):
        relaxations = lines.relaxations(alpha, beta)
        found = lines.lowest(relaxations, coefficients)
        better = found.value > best[active]
        best[active[better]] = found.value[better]
        best_alpha[active[better]], best_beta[active[better]] = alpha[better], beta[better]
        done = best[active] > wanted[active]
        if step == steps or bool(done.all()) or budget.is_late():
            break
        of_alpha, of_beta, size = lines.derivatives(found, lines.walked(relaxations, found), beta)
        rate = DECAY ** (step - 1)
        by_alpha, by_beta = by_alpha.after(of_alpha), by_beta.after(of_beta)
        alpha = allowed.alphas(alpha, rate * ALPHA_STEP * by_alpha.direction(step))
        beta = allowed.betas(beta + rate * BETA_STEP * size * by_beta.direction(step))
        if float(done.double().mean()) > WORTH_LEAVING_OUT:
            kept = ~done
            active, alpha, beta, coefficients = active[kept], alpha[kept], beta[kept], coefficients[kept]
            by_alpha, by_beta = by_alpha[kept], by_beta[kept]
            if len(parts) == count:
                lines, allowed = lines[kept], allowed[kept]
    return replace(parts, alpha=best_alpha, beta=best_beta)


@dataclass(frozen=True, eq=False)
class _Allowed:
    """What alphas (n) and betas (rows, n) may be: a beta has the sign of a cut, and is 0 where nothing was cut."""

    least: Tensor
    greatest: Tensor
    cut_below: Tensor
    cut_above: Tensor

    @staticmethod
    def of(crown: AlphaBetaCrown, parts: Parts) -> _Allowed:
        whole = crown.start()
        none = [bend.within.low.new_zeros(len(bend.place)) for bend in crown.bends]
        tilts = [bend.tilts or (zero, zero) for bend, zero in zip(crown.bends, none, strict=True)]
        least, greatest = (torch.cat([whole.low.new_empty(0), *(tilt[end] for tilt in tilts)]) for end in (0, 1))
        return _Allowed(least, greatest, parts.low > whole.low, parts.high < whole.high)

    def __getitem__(self, chosen: Tensor) -> _Allowed:
        return replace(self, cut_below=self.cut_below[chosen], cut_above=self.cut_above[chosen])

    def alphas(self, alpha: Tensor, move: Tensor) -> Tensor:
        moved = torch.addcmul(alpha, self.greatest - self.least, move)
        return torch.minimum(torch.maximum(moved, self.least), self.greatest)

    def betas(self, beta: Tensor) -> Tensor:
        beta = torch.where(self.cut_above, beta, beta.clamp(min=0))
        return torch.where(self.cut_below, beta, beta.clamp(max=0))


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
