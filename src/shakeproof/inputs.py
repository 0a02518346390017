"""Where a query's inputs come from, and the exact arrays that a deployed network is given of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network import Graph, ImageLayout, once_for_each
from shakeproof.operators import Clip, Range
from shakeproof.path import ClipRange, Path

Array32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class InputPath:
    """Inputs x(z) for strengths z from 0 to `end` (m): a path of one strength, or a box of several.

    `path` is in the network's input shape; `layout` says how an input is a picture.
    """

    path: Path
    end: tuple[float, ...]
    layout: ImageLayout

    @staticmethod
    def of_pictures(pictures: Path, end: Sequence[float], layout: ImageLayout) -> InputPath:
        """From a path of pictures (channels, height, width)."""
        return InputPath(pictures.mapped(layout.to_input), tuple(end), layout)

    @property
    def start(self) -> Tensor:
        """The input at z = 0."""
        return self.path.clipped(self.path.base)

    def within(self, graph: Graph) -> Graph:
        """The network that takes x(z) as it is before clipping."""
        clip = self.path.clip
        if clip is None:
            return graph
        if clip not in (known := _behind_clips(graph)):
            known[clip] = graph.after(Clip(*clip))
        return known[clip]

    def given(self, z: Tensor) -> Array32:
        """What the deployed network is given at z (n, m): float32, clipped if the path is."""
        return self.path.clipped(self.path.at(z.to(self.path.base))).float().numpy()

    def __contains__(self, z: Sequence[float]) -> bool:
        return len(z) == len(self.end) and all(0 <= place <= end for place, end in zip(z, self.end, strict=True))


@once_for_each
def _behind_clips(graph: Graph) -> dict[ClipRange, Graph]:
    """The network behind clips, as they were asked for: so what is worked out once for a network is, there too."""
    return {}


@dataclass(frozen=True, eq=False)
class InputBox:
    """Inputs between low and high, (*input_shape) in float64; `layout` says how an input is a picture, if it is."""

    low: Tensor
    high: Tensor
    layout: ImageLayout | None = None

    @property
    def middle(self) -> Tensor:
        return (self.low + self.high) / 2

    @cached_property
    def varying(self) -> Tensor:
        """The places (n) among all inputs of those that are not fixed."""
        return (self.high > self.low).flatten().nonzero().squeeze(1)

    @cached_property
    def float32(self) -> Range:
        """The float32 numbers of the box; the nearest one to the middle of a range that holds none."""
        infinity = torch.full_like(self.low, torch.inf, dtype=torch.float32)
        low, high = self.low.float(), self.high.float()
        low = torch.where(low.double() < self.low, torch.nextafter(low, infinity), low)
        high = torch.where(high.double() > self.high, torch.nextafter(high, -infinity), high)
        empty, nearest = low > high, self.middle.float()
        return Range(torch.where(empty, nearest, low), torch.where(empty, nearest, high))

    def given(self, x: Tensor) -> Array32:
        """What the deployed network is given of inputs (n, *input_shape): the nearest float32 numbers in the box."""
        return torch.clamp(x.to(self.low.device).float(), *self.float32).numpy()

    def as_path(self) -> tuple[Path, Tensor, Tensor]:
        """The inputs that vary as the parameters of a path, and what they lie between (m) each."""
        place = self.varying
        if not len(place):
            place = torch.zeros(1, dtype=torch.int64, device=self.low.device)  # one point: a path of no length
        flat = self.low.flatten()
        slopes = flat.new_zeros(len(place), len(flat)).scatter_(1, place.unsqueeze(1), 1.0)
        slopes, base = slopes.view(-1, *self.low.shape), flat.scatter(0, place, 0.0).view(self.low.shape)
        path = Path(slopes, base, error=torch.zeros_like(base))  # sums of one number and zeros are not rounded
        return path, flat[place], self.high.flatten()[place]

    def to(self, device: torch.device) -> InputBox:
        return InputBox(self.low.to(device), self.high.to(device), self.layout)


InputSet = InputPath | InputBox
