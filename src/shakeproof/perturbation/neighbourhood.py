"""Any kernel of a size: a box of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shakeproof.errors import InputError
from shakeproof.path import ClipRange
from shakeproof.perturbation.common import check_clip, clip_option, strengths

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_NEIGHBOURHOOD = 999


@dataclass(frozen=True)
class AnyKernel:
    """Every kernel of a size with entries from 0 to 1 that sum to 1, each pixel by one of its own.

    A box of images rather than a path: each pixel is anywhere between the least and the greatest of its neighbourhood
    (Mziou-Sallami & Adjed 2022). At strength z, it has gone the share z of the way there.
    """

    size: int
    clip: ClipRange | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1 or self.size % 2 == 0 or self.size > LARGEST_NEIGHBOURHOOD:
            raise InputError(
                f"any-kernel: size must be odd, so that a pixel is in the middle, and at most {LARGEST_NEIGHBOURHOOD},"
                f" not {self.size!r}"
            )
        check_clip(str(self), self.clip)

    def __str__(self) -> str:
        return f"any-kernel:size={self.size}" + "".join(f",{key}={value}" for key, value in clip_option(self.clip))

    def strengths(self, given: float | Sequence[float]) -> tuple[float, ...]:
        """The one strength."""
        return strengths(self, given, 1)

    def box(self, image: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        """The least and the greatest of each pixel of an image (channels, height, width); outside it is nothing."""
        import torch
        from torch.nn import functional

        def greatest(x: Tensor) -> Tensor:
            return functional.max_pool2d(x, self.size, stride=1, padding=self.size // 2)

        ends = (image * (1 - strength) + end * strength for end in (-greatest(-image), greatest(image)))
        # rounded outwards: nothing of the box is left out
        infinity = torch.full_like(image, torch.inf)
        ends = (
            torch.nextafter(torch.nextafter(end, side), side)
            for end, side in zip(ends, (-infinity, infinity), strict=True)
        )
        low, high = (end if self.clip is None else end.clamp(*self.clip) for end in ends)
        return low, high
