"""The two kinds of operator the exact analysis knows, and the breaks of a piecewise-linear one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor


class Breaks(NamedTuple):
    """Points strictly inside segments: segment i joins rows i and i + 1, fraction 0 < t < 1 says where. Unordered."""

    segment: Tensor
    fraction: Tensor


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """One layer; its fields are its parameters. Values have shape (rows, *shape)."""

    may_return_input: ClassVar[bool] = False
    """Whether the output may share its entries with the input."""

    @abstractmethod
    def apply(self, *inputs: Tensor) -> Tensor:
        """The operator's output for all rows at once."""

    def to(self, device: torch.device) -> Self:
        """The same operator with its parameters on a device."""
        moved = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved) if moved else self

    def workspace(self, *inputs: torch.Size) -> int:
        """Bytes a row needs beside inputs and output; `inputs` are shapes without the row axis."""
        return 0


class Affine(Operator):
    """Affine in its input(s) together: a chord stays a chord, nothing bends."""


class PiecewiseLinear(Operator):
    """Linear between breaks: it has one input, and tells where along a chain of segments it bends."""

    @abstractmethod
    def breaks(self, x: Tensor, joined: Tensor) -> Breaks:
        """Where the output bends between neighbouring rows of `x` (rows, *shape).

        `joined` (rows - 1) is False where two neighbours are ends of different lines, with no segment between them.
        Sound because on a segment every input is a chord: after the breaks are inserted as rows, every output is one.
        """

    def overwrite(self, x: Tensor) -> Tensor:
        """The same as `apply`, for an input that nobody needs any more."""
        return self.apply(x)
