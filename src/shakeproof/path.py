"""Images, or inputs of a network, that are affine in some strengths: the one place that knows x(z) and its clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ClipRange = tuple[float, float]
UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Path:
    """x(z) = sum_i slopes[i] z_i + base, then clipped, if it is; slopes (m, *shape), base (*shape).

    Before clipping, `at` is off by at most `error` (*shape) for strengths from 0 to 1: by its own rounding, unless
    something else is said.
    """

    slopes: Tensor
    base: Tensor
    clip: ClipRange | None = None
    error: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.error is None:
            size = self.slopes.abs().sum(0) + self.base.abs()
            object.__setattr__(self, "error", (self.parameters + 2) * UNIT * size)

    @property
    def parameters(self) -> int:
        """The number m of strengths."""
        return len(self.slopes)

    def at(self, z: Tensor) -> Tensor:
        """x (..., *shape) at z (..., m), before clipping: affine in z."""
        import torch

        moved: Tensor = torch.tensordot(z, self.slopes, dims=1)
        return moved.add_(self.base)

    def rows(self, which: Tensor, z: Tensor) -> Tensor:
        """Of a stack of paths with one strength, (1, paths, *shape): number which[i] at z[i], before clipping."""
        import torch

        return torch.addcmul(self.base[which], self.slopes[0, which], z.view(-1, *(1,) * (self.base.dim() - 1)))

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(*self.clip)

    def image(self, *strengths: float) -> Tensor:
        """x (*shape) at some strengths, clipped."""
        import torch

        return self.clipped(self.at(torch.tensor(strengths, dtype=self.base.dtype, device=self.base.device)))

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Path:
        """The path with its entries moved about, or to another device."""
        return replace(self, slopes=move(self.slopes), base=move(self.base), error=move(self.error))

    def to(self, device: torch.device) -> Path:
        return self.mapped(lambda x: x.to(device))

    def numbered(self, number: int) -> Path:
        """One path of a stack (m, paths, *shape)."""
        return replace(self, slopes=self.slopes[:, number], base=self.base[number], error=self.error[number])

    @staticmethod
    def stacked(paths: Sequence[Path]) -> Path:
        """Paths with the same number of strengths and the same clipping as one stack."""
        import torch

        return replace(
            paths[0],
            slopes=torch.stack([p.slopes for p in paths], 1),
            base=torch.stack([p.base for p in paths]),
            error=torch.stack([p.error for p in paths]),
        )
