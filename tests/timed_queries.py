# ruff: noqa: E402
"""Asks queries with short time limits, and prints by how many seconds each overran: run by test_time_limits.py.

    python timed_queries.py [--only overrun=NETWORK specification=FILE]

The one clock counts the processor's seconds here: a busy machine makes nothing late. Each query meets a network that
was loaded for it alone, so that nothing about it is known.
"""

from __future__ import annotations

import time

time.perf_counter = time.process_time  # before anything takes it for its clock

import json
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from models import dense, random_module
from torch import nn

import shakeproof as sp
from shakeproof.question import robustness

Question = Callable[[float], sp.Result]
BLUR, TWO = "box-blur:size=3", "box-blur:size=3 + sharpen:size=3"
SIDE = 16


class Jumps(nn.Module):
    """Layers of signs and of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.last = nn.Linear(SIDE * SIDE, 300), nn.Linear(300, 200), nn.Linear(200, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.floor(40 * self.first(x.flatten(1)))
        return self.last(torch.sign(self.second(x)))


def deep(layers: int, channels: int) -> nn.Module:
    """Convolutions in a row."""
    torch.manual_seed(2)
    body = [part for _ in range(layers) for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), *body, nn.Flatten(), nn.Linear(channels * SIDE**2, 10))


def picture(seed: int = 0, side: int = SIDE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1, side, side)).astype(np.float32) / np.float32(255)


def box(network: sp.Network, radius: float, label: int = 0) -> sp.Specification:
    middle = np.random.default_rng(3).random(int(np.prod(network.input_shape)))
    return robustness(middle - radius, middle + radius, label, network.graph.classes)


def loaded(module: nn.Module) -> sp.Network:
    return sp.load(module, torch.zeros(1, 1, SIDE, SIDE))


def questions(files: dict[str, str]) -> Iterator[tuple[str, float, Question]]:
    """Names, limits and questions."""
    if files:
        network = sp.load(files["overrun"])
        yield "overrun", 3.0, lambda limit: sp.verify_specification(network, files["specification"], timeout=limit)
        return
    branching, large = random_module(5, channels=16, side=SIDE, classes=10), deep(12, 24)
    wide = nn.Sequential(nn.Flatten(), dense(7, SIDE * SIDE, 5000, 5000, 10))
    smooth = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Sigmoid(), nn.Flatten(), dense(8, 16 * 14**2, 200, 10))
    modules = {"branching": branching, "deep": large, "jumps": Jumps(), "smooth": smooth, "wide": wide}

    def along(module: nn.Module, path: str = BLUR, strength: object = 1.0, **options: object) -> Question:
        network = loaded(module)
        return lambda limit: sp.profile(network, picture(), path, max_strength=strength, timeout=limit, **options)

    for name, module in modules.items():
        for limit in (0.2, 1.0):
            yield name, limit, along(module)
        yield f"{name}, bounds", 0.3, along(module, method="bounds")
        yield f"{name}, two strengths", 0.3, along(module, TWO, (1.0, 1.0))
        yield f"{name}, 8 bits", 0.3, along(module, pixels="8bit")
    for name in ("branching", "deep", "wide"):
        yield f"{name}, float32", 0.3, along(modules[name], arithmetic="float32")
        yield f"{name}, every piece", 0.3, along(modules[name], whole_curve=True)
    for name, module in modules.items():
        if name != "jumps":
            network = loaded(module)
            yield (
                f"{name}, a box",
                0.3,
                lambda limit, n=network: sp.verify_specification(n, box(n, 0.05), timeout=limit),
            )
    few = sp.load(dense(4, 5, 50, 50, 3), torch.zeros(1, 5))
    yield "few inputs", 0.5, lambda limit: sp.verify_specification(few, box(few, 0.5), timeout=limit)


def main() -> None:
    torch.set_num_threads(1)
    for name, limit, ask in questions(dict(word.split("=", 1) for word in sys.argv[2:])):
        started = time.process_time()
        result = ask(limit)
        taken = time.process_time() - started
        print(json.dumps([name, limit, taken, str(result.status), str(result.reason)]), flush=True)


if __name__ == "__main__":
    main()
