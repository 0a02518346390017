"""Random networks for tests, as torch modules and as ONNX models written node by node, and boxes of their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

import shakeproof as sp
from shakeproof.graph import Graph

TESTS = Path(__file__).parent


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


# -- dense networks, and boxes of many inputs -------------------------------------------------------------------------

WIDE = (12, 10, 8, 3)


def dense(seed: int, *sizes: int, activation: Callable[[], nn.Module] = nn.ReLU, scale: float = 2.0) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data *= scale
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])


def network_of(module: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> sp.Network:
    """A module's network by PyTorch's older exporter, which is fifty times as fast as the one that `sp.load` uses."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{type(module).__name__}.onnx"
        with warnings.catch_warnings(), _disable_current_modes():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, (torch.zeros(1, *shape, dtype=dtype),), path, dynamo=False, opset_version=17)
        return sp.load(path)


NETWORKS: dict[str, Callable[[int], sp.Network]] = {
    "relu": lambda seed: network_of(dense(seed, *WIDE), 12),
    "leaky": lambda seed: network_of(dense(seed, *WIDE, activation=lambda: nn.LeakyReLU(0.2)), 12),
    "hardtanh": lambda seed: network_of(dense(seed, *WIDE, activation=lambda: nn.Hardtanh(-0.5, 0.7)), 12),
    "sigmoid": lambda seed: network_of(dense(seed, *WIDE, activation=nn.Sigmoid), 12),
    "branching": lambda seed: network_of(random_module(seed), 1, 8, 8),
}


def box_around(graph: Graph, seed: int, radius: float = 0.3) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    centre = torch.rand(tuple(graph.input_shape), generator=random, dtype=torch.float64) * 2 - 1
    return centre - radius, centre + radius


def samples(low: Tensor, high: Tensor, count: int, seed: int) -> Tensor:
    """Points of a box, half of them corners."""
    random = torch.Generator().manual_seed(seed)
    shares = torch.rand((count, *low.shape), generator=random, dtype=torch.float64)
    corner = torch.rand((count, *(1,) * low.dim()), generator=random) < 0.5
    return low + torch.where(corner, shares.round(), shares) * (high - low)


def narrow_flip_network(centre: float, width: float) -> tuple[sp.Network, np.ndarray]:
    """The label loses on an interval of strengths, and nowhere else: margin |z - centre| - width / 2."""
    image = np.zeros((1, 3, 3))
    image[0, 1, 1] = 1.0
    pick, out = nn.Linear(9, 1), nn.Linear(1, 2)
    with torch.no_grad():
        pick.weight.zero_()
        pick.weight[0, 4] = -9 / 8  # (1 - pixel) 9/8 is the strength
        pick.bias.fill_(9 / 8 - centre)
        out.weight.copy_(torch.tensor([[1.0], [0.0]]))
        out.bias.copy_(torch.tensor([0.0, width / 2]))

    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.pick, self.out = pick, out

        def forward(self, x):
            return self.out(torch.abs(self.pick(x.flatten(1))))

    return network_of(Narrow(), 1, 3, 3), image
