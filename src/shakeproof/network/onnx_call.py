"""One ONNX node, as its rule sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.network.build import Builder, Unsupported, Value
from shakeproof.network.compose import Operand

Array = NDArray[Any]
# Types that values may be turned into: others round them.
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


class Attributes(Mapping[str, Any]):
    """A node's attributes, which remember what a rule has looked at: the others it would silently ignore."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    @property
    def unread(self) -> frozenset[str]:
        return frozenset(self._given) - self._read


@dataclass(frozen=True)
class Call:
    """One ONNX node: its inputs (values, constants, or None where left out), attributes and number of outputs.

    Its constants were rounded so many times, at most, while they were computed.
    """

    builder: Builder
    opset: int
    inputs: tuple[Value | Array | None, ...]
    attributes: Attributes
    outputs: int
    roundings: int = 0

    def value(self, index: int = 0) -> Value:
        given = self._input(index)
        if not isinstance(given, Value):
            raise Unsupported(f"input {index} is a constant")
        return given

    def constant(self, index: int) -> Array:
        given = self._input(index)
        if not isinstance(given, np.ndarray):
            raise Unsupported(f"input {index} is computed by the network; only a constant is supported there")
        return given

    def operand(self, index: int) -> Operand:
        """An input that may be either."""
        given = self._input(index)
        return given if isinstance(given, Value) else tensor(self.constant(index))

    def operands(self) -> list[Operand]:
        return [self.operand(index) for index in range(len(self.inputs))]

    def optional(self, index: int) -> Array | None:
        return self.constant(index) if len(self.inputs) > index and self.inputs[index] is not None else None

    def integers(self, name: str, index: int) -> list[int] | None:
        """A list of integers that older opsets give as an attribute and newer ones as an input."""
        if name in self.attributes:
            return [int(i) for i in np.atleast_1d(self.attributes[name])]
        given = self.optional(index)
        return None if given is None else [int(i) for i in given.reshape(-1)]

    def number(self, name: str, index: int, default: float) -> float:
        """A number that older opsets give as an attribute and newer ones as an input."""
        given = self.attributes.get(name) if name in self.attributes else self.optional(index)
        return default if given is None else float(np.asarray(given).reshape(()))

    def _input(self, index: int) -> Value | Array:
        given = self.inputs[index] if index < len(self.inputs) else None
        if given is None:
            raise Unsupported(f"input {index} is missing")
        return given


def tensor(array: Array) -> Tensor:
    """A constant in float64."""
    return torch.from_numpy(np.array(array, dtype=np.float64))


def single(default: float) -> float:
    """What an attribute is if it is not given: attributes are float32 numbers."""
    return float(np.float32(default))
