"""Binarised and quantised networks: how many queries are decided, and how long it takes.

    python benchmarks/binarised.py [--data DIR] [--count 50] [--only NAME,...]

Small networks are trained on the spot for some seconds, with MNIST from DIR, by straight-through estimators, exported
to ONNX with the weights binarised, and asked for profiles. Beside each time is how many forward passes onnxruntime
could have made meanwhile, one image at a time.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import shakeproof as sp

DATA = Path(__file__).resolve().parents[2] / "shared"
PERTURBATIONS = ("motion-blur:size=5,angle=45", "box-blur:size=3", "sharpen:size=3", "brightness:max=0.2")
EPOCHS, BATCH, TRAINED = 3, 100, 8000


class Through(torch.autograd.Function):
    """A function that jumps, with the derivative of the identity where its input is not too large."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor, name: str) -> Tensor:
        context.save_for_backward(x)
        return x.sign() if name == "sign" else x.round()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = context.saved_tensors
        return gradient * (x.abs() <= 4), None


class Sign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Through.apply(x, "sign") if self.training else x.sign()


class Quantised(nn.Module):
    """Two bits: 0, 1, 2 or 3."""

    def forward(self, x: Tensor) -> Tensor:
        x = (x + 1.5).clamp(0, 3)
        return Through.apply(x, "round") if self.training else x.round()


class BinaryLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, Through.apply(self.weight, "sign") if self.training else self.weight.sign())


class BinaryConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = Through.apply(self.weight, "sign") if self.training else self.weight.sign()
        return functional.conv2d(x, weight, None, self.stride, self.padding)


def dense(jump: Callable[[], nn.Module], width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, width, bias=False), nn.BatchNorm1d(width), jump()]
    for _ in range(depth - 1):
        layers += [BinaryLinear(width, width, bias=False), nn.BatchNorm1d(width), jump()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, 2, bias=False), nn.BatchNorm2d(8), Sign()),
        *(BinaryConv(8, 16, 3, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(16), Sign()),
        *(nn.Flatten(), nn.Linear(400, 10)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense, 2 x 64 signs": lambda: dense(Sign, 64, 2),
    "dense, 3 x 256 signs": lambda: dense(Sign, 256, 3),
    "dense, 2 x 64 two-bit": lambda: dense(Quantised, 64, 2),
    "convolutional, signs": convolutional,
}


def trained(module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimiser = torch.optim.Adam(module.parameters(), 2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
    return module.eval()


@click.command()
@click.option("--data", default=DATA, type=Path, show_default=True)
@click.option("--count", default=50, show_default=True, help="Queries for each network.")
@click.option("--only", default="", help="Names, separated by commas, that some of the networks' begin with.")
def main(data: Path, count: int, only: str) -> None:
    """Train, export and ask."""
    archive = np.load(data / "data/mnist_test.npz")
    x, y = torch.from_numpy(archive["x"]).float().view(-1, 1, 28, 28), torch.from_numpy(archive["y"]).long()
    x = x / 255 if x.max() > 1 else x
    table = Table("network", "accuracy", "safe", "unsafe", "undecided", "wrong at 0", "pieces", "s a query", "passes")
    for name, make in NETWORKS.items():
        if only and not name.startswith(tuple(only.split(","))):
            continue
        torch.manual_seed(0)
        module = trained(make(), x[:TRAINED], y[:TRAINED])
        accuracy = float((module(x[TRAINED:]).argmax(1) == y[TRAINED:]).float().mean())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            torch.onnx.export(module, (x[:1],), path, dynamo=False)
            network = sp.load(path)
        said: Counter[str] = Counter()
        pieces, began = 0, time.perf_counter()
        for number in range(count):
            at = TRAINED + number
            text = PERTURBATIONS[number % len(PERTURBATIONS)]
            result = sp.profile(network, x[at].double().numpy(), text, label=int(y[at]))
            said[str(result.status)] += 1
            pieces += result.pieces
        seconds = (time.perf_counter() - began) / count
        began = time.perf_counter()
        for at in range(count):
            network.reference(x[at].numpy()[None].reshape(1, *network.graph.input_shape))
        forward = (time.perf_counter() - began) / count
        verdicts = (str(said[status]) for status in ("safe", "unsafe", "undecided", "misclassified"))
        table.add_row(
            name, f"{accuracy:.3f}", *verdicts, f"{pieces / count:.0f}", f"{seconds:.3f}", f"{seconds / forward:.0f}"
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
