"""Where a query's inputs come from, and the exact arrays that a deployed network is given of them.

Inputs are a path, x(z) affine in some strengths z (of one strength, segment by segment) and then clipped, or a box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import ProofError
from shakeproof.question.images import ImageLayout
from shakeproof.question.perturbation import ClipRange
from shakeproof.question.scale import STRENGTH

if TYPE_CHECKING:
    from shakeproof.graph import Graph

Array32 = NDArray[np.float32]
# float64's unit of rounding
UNIT = 2.0**-53


@dataclass(frozen=True, eq=False)
class Path:
    """x(z) = sum_i slopes[i] z_i + base, then clipped, if it is; slopes (m, *shape), base (*shape).

    A path of one strength may be a chain of segments that meet at the strengths `nodes`: slopes[i] is what x changes by
    on the i-th of them, from one node to the next. So neighbours meet, whatever rounding did.

    Before clipping, `at` is off by at most `error` (*shape) for strengths from 0 to 1: by its own rounding, unless
    something else is said.
    """

    slopes: Tensor
    base: Tensor
    clip: ClipRange | None = None
    error: Tensor = None  # type: ignore[assignment]
    nodes: tuple[float, ...] = STRENGTH.nodes

    def __post_init__(self) -> None:
        if self.is_chain and len(self.slopes) != len(self.nodes) - 1:
            raise ProofError("a path has other segments than its scale")
        if self.error is None:
            size = self.slopes.abs().sum(0) + self.base.abs()
            object.__setattr__(self, "error", (len(self.slopes) + (5 if self.is_chain else 2)) * UNIT * size)

    @property
    def is_chain(self) -> bool:
        """Whether it has several segments."""
        return len(self.nodes) > 2

    @property
    def parameters(self) -> int:
        """The number m of strengths."""
        return 1 if self.is_chain else len(self.slopes)

    @cached_property
    def starts(self) -> Tensor:
        """Where each segment of a path of one strength begins (segments, *shape)."""
        return torch.cat([self.base[None], self.base + self.slopes[:-1].cumsum(0)])

    def place(self, z: Tensor) -> tuple[Tensor | int, Tensor]:
        """On which segment each strength is, and which share of it lies before."""
        if not self.is_chain:
            return 0, z
        nodes = torch.tensor(self.nodes, dtype=z.dtype, device=z.device)
        segment = (torch.searchsorted(nodes, z.contiguous(), right=True) - 1).clamp(0, len(nodes) - 2)
        return segment, (z - nodes[segment]) / (nodes[segment + 1] - nodes[segment])

    def at(self, z: Tensor) -> Tensor:
        """x (..., *shape) at z (..., m), before clipping: affine in z, on each segment."""
        if self.is_chain:
            segment, share = self.place(z[..., 0])
            return torch.addcmul(self.starts[segment], self.slopes[segment], _beside(share, self.base.dim()))
        moved: Tensor = torch.tensordot(z, self.slopes, dims=1)
        return moved.add_(self.base)

    def rows(self, which: Tensor, z: Tensor) -> Tensor:
        """Of a stack of paths of one strength, (segments, paths, *shape): number which[i] at z[i], before clipping."""
        segment, share = self.place(z)
        return torch.addcmul(
            self.starts[segment, which], self.slopes[segment, which], _beside(share, self.base.dim() - 1)
        )

    def check_straight(self, low: Tensor, high: Tensor) -> None:
        """That x is affine from each of some strengths to the one beside it; else nothing may be proved there."""
        if self.is_chain:
            segment, _ = self.place(low)
            ends = torch.tensor(self.nodes, dtype=high.dtype, device=high.device)[1:][segment]
            if not bool((high <= ends).all()):
                raise ProofError("a stretch of a path reaches over the end of its segment")

    def within(self, start: float, end: float) -> list[float]:
        """A stretch's ends, and the nodes between them: from one of these to the next, x is affine."""
        return [start, *(node for node in self.nodes if start < node < end), end]

    def clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(*self.clip)

    def image(self, *strengths: float) -> Tensor:
        """x (*shape) at some strengths, clipped."""
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
        return replace(
            paths[0],
            slopes=torch.stack([p.slopes for p in paths], 1),
            base=torch.stack([p.base for p in paths]),
            error=torch.stack([p.error for p in paths]),
        )


def _beside(z: Tensor, dimensions: int) -> Tensor:
    """A number for each row, to be multiplied with rows of so many dimensions."""
    return z.view(*z.shape, *(1,) * dimensions)


@dataclass(frozen=True, eq=False)
class InputPath:
    """Inputs x(z) for strengths z from 0 to `end` (m): a path of one strength, or a box of several.

    `path` is in the network's input shape; `layout` says how an input is a picture. Where a `curve` is what is meant,
    it gives the inputs (n, *shape) at strengths (n), before clipping; `path` is as near to it as its error says.
    """

    path: Path
    end: tuple[float, ...]
    layout: ImageLayout
    curve: Callable[[Tensor], Tensor] | None = None

    @staticmethod
    def of_pictures(pictures: Path, end: Sequence[float], layout: ImageLayout) -> InputPath:
        """From a path of pictures (channels, height, width)."""
        return InputPath(pictures.mapped(layout.to_input), tuple(end), layout)

    def at(self, z: Tensor) -> Tensor:
        """The inputs at z (n, m), clipped if the path is."""
        return self.path.clipped(self.path.at(z) if self.curve is None else self.curve(z[:, 0]))

    @property
    def start(self) -> Tensor:
        """The input at z = 0."""
        return self.path.clipped(self.path.base)

    def within(self, graph: Graph) -> Graph:
        """The network that takes x(z) as it is before clipping."""
        return graph if self.path.clip is None else graph.behind_clip(self.path.clip)

    def runtime_inputs(self, z: Tensor) -> Array32:
        """The float32 inputs of the deployed network at z (n, m), clipped if the path is."""
        return self.at(z.to(self.path.base)).float().numpy()

    def __contains__(self, z: Sequence[float]) -> bool:
        return len(z) == len(self.end) and all(0 <= place <= end for place, end in zip(z, self.end, strict=True))


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
    def float32(self) -> tuple[Tensor, Tensor]:
        """The float32 numbers of the box, least and largest; the nearest one to the middle of a range without any."""
        infinity = torch.full_like(self.low, torch.inf, dtype=torch.float32)
        low, high = self.low.float(), self.high.float()
        low = torch.where(low.double() < self.low, torch.nextafter(low, infinity), low)
        high = torch.where(high.double() > self.high, torch.nextafter(high, -infinity), high)
        empty, nearest = low > high, self.middle.float()
        return torch.where(empty, nearest, low), torch.where(empty, nearest, high)

    def samples(self, count: int, seed: int) -> Tensor:
        """Float32 places (count, *input_shape) of the box: its centre, random corners, and random points."""
        random = torch.Generator().manual_seed(seed)
        low, high = self.float32
        shares = torch.rand((count, *low.shape), generator=random, dtype=low.dtype)
        corners = torch.rand(count, generator=random) < 0.5
        shares = torch.where(corners.view(-1, *(1,) * low.dim()), shares.round(), shares)
        shares[:1] = 0.5
        return torch.clamp(low + shares.to(low.device) * (high - low), low, high)

    def runtime_inputs(self, x: Tensor) -> Array32:
        """The deployed network's inputs for (n, *input_shape): the nearest float32 numbers in the box."""
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


@dataclass(frozen=True, eq=False)
class InputKernels:
    """Inputs x(w) for shares w (m) that are not negative, all together at most `total`: a simplex of kernels."""

    path: Path
    total: float
    layout: ImageLayout

    @property
    def corners(self) -> Tensor:
        """The shares at the corners (m + 1, m): none, or all of one."""
        full = torch.eye(self.path.parameters, dtype=torch.float64) * self.total
        return torch.cat([torch.zeros_like(full[:1]), full])

    def within(self, graph: Graph) -> Graph:
        """The network that takes x(w) as it is before clipping."""
        return graph if self.path.clip is None else graph.behind_clip(self.path.clip)

    def runtime_inputs(self, w: Tensor) -> Array32:
        """The float32 inputs of the deployed network at w (n, m), clipped if the path is."""
        return self.path.clipped(self.path.at(w.to(self.path.base))).float().numpy()

    def __contains__(self, w: Sequence[float]) -> bool:
        shares = [Fraction(share) for share in w]
        return len(shares) == self.path.parameters and min(shares) >= 0 and sum(shares) <= Fraction(self.total)


InputSet = InputPath | InputBox | InputKernels
