"""What aten operators are given, as their rules see it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shakeproof.network.build import Unsupported, Value
from shakeproof.network.compose import Operand

# Types that values may be turned into: others round them.
FLOATS = (torch.float32, torch.float64)


def check_type(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in FLOATS:
        raise Unsupported(f"a result of type {dtype}, which rounds it")


def operand(x: Any) -> Operand:
    return x if isinstance(x, Value) else torch.as_tensor(x, dtype=torch.float64)


def widened(x: Any) -> Any:
    """A constant as it is, but floats in float64; and a copy, or whoever goes on training would change the graph."""
    if not isinstance(x, Tensor):
        return x
    return x.to(torch.float64 if x.is_floating_point() else x.dtype, copy=True)
