"""A photograph as it was taken, and what becomes of its pixels on their way to a network's picture.

Changing colours, resizing and cropping are linear: what happens to a photograph along a path gives a path of pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.question.perturbation import SMALL
from shakeproof.question.preprocessing import Preprocessing

if TYPE_CHECKING:
    from shakeproof.question.inputs import Path


@dataclass(frozen=True, eq=False)
class Photograph:
    """Pixels (channels, height, width) in [0, 1], with the bytes `levels` that they were, if they were bytes."""

    name: str
    pixels: Tensor
    levels: NDArray[np.uint8] | None
    preprocessing: Preprocessing

    @cached_property
    def resizing(self) -> Resizing:
        """What the preprocessing is in real numbers."""
        channels, height, width = self.pixels.shape
        return Resizing(*map(torch.from_numpy, self.preprocessing.matrices((channels, height, width), self.name)))

    def bytes(self) -> NDArray[np.uint8]:
        """The photograph's bytes, for questions about 8-bit pictures."""
        if self.levels is None:
            raise InputError(
                f"{self.name}: is no photograph of 8 bits; ask about real-valued pixels, or save it as one"
            )
        return self.levels

    def developed(self, photographs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Photographs (n, channels, height, width) of 8 bits as the network's pictures: what Pillow makes of each."""
        return np.stack([self.preprocessing.moved(one, self.name) for one in photographs])


@dataclass(frozen=True, eq=False)
class Resizing:
    """Pictures as weighted sums of a photograph's pixels: over its channels, its rows and its columns.

    `channels` (c', c), `rows` (h', h) and `columns` (w', w) are taken as they are, without any error.
    """

    channels: Tensor
    rows: Tensor
    columns: Tensor

    def applied(self, photographs: Tensor) -> Tensor:
        """Pictures (..., c', h', w') of photographs (..., c, h, w)."""
        resized = self.rows @ photographs @ self.columns.T
        return torch.einsum("dc,...chw->...dhw", self.channels, resized)

    @cached_property
    def magnitude(self) -> Resizing:
        """The absolute values of the weights."""
        return Resizing(self.channels.abs(), self.rows.abs(), self.columns.abs())

    @property
    def taps(self) -> int:
        """How many pixels a sum has at most, along one side after the other."""
        return sum(int((side != 0).sum(1).max()) for side in (self.channels, self.rows, self.columns))

    def path(self, photographs: Path) -> Path:
        """The path of pictures. Errors of photographs are added up, and each product and sum is rounded."""
        from shakeproof.question.inputs import UNIT

        base, slopes = self.applied(photographs.base), self.applied(photographs.slopes)
        sizes = photographs.base.abs() + photographs.slopes.abs().sum(0)
        roundings = 2 * (self.taps + len(photographs.slopes) + 8)
        faintest = torch.where(sizes == 0, 1.0, sizes).amin().item()
        lost = SMALL if faintest < SMALL else 0.0  # products of smaller numbers may be lost altogether
        error = self.magnitude.applied(photographs.error + roundings * UNIT * (sizes + lost))
        return replace(photographs, base=base, slopes=slopes, error=1.01 * error)
