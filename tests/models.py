"""Random networks for tests, as torch modules and as ONNX models written node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn


class Branching(nn.Module):
    """A small network with a residual branch, a concatenation, max pooling and every kind of bend."""

    def __init__(self, channels: int = 4, classes: int = 3, side: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.slope = nn.PReLU(channels)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.left = nn.Conv2d(channels, 2, 1)
        self.last = nn.Linear((2 + channels) * ((side + 1) // 2) ** 2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.slope(self.second(x) + x)
        x = self.pool(x)
        x = torch.cat([torch.clamp(self.left(x), -0.3, 0.3), torch.abs(x - 0.2)], 1)
        return self.last(x.flatten(1))


def random_module(seed: int, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return Branching(**options).eval()


def model(
    nodes: Sequence[onnx.NodeProto],
    input_shape: Sequence[int | str],
    weights: dict[str, np.ndarray] | None = None,
    output_shape: Sequence[int | str] | None = None,
    opset: int = 13,
) -> onnx.ModelProto:
    """An ONNX model from its nodes; the input is `x`, the output `y`."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output_shape)],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
