"""Requirements beside dense sampling in onnxruntime, and beside exact fractions, by rules written here once more.

    python benchmarks/requirements.py [--networks 20] [--pictures 10] [--samples 257]

Small random networks are asked about small random pictures under three shakes, for each kind of requirement: those of
classifiers and regressors, of segmenters (three classes of four pixels), and of detectors (three boxes). What an answer
says is compared with what onnxruntime gives at evenly spread strengths; and at both ends of the critical
strength's bracket, the network is evaluated without any rounding: the requirement must hold at the first, and fail at
the second. Pictures, kernels, networks and requirements are worked out here by themselves. Prints a line for each
requirement; the exit code is 1 if an answer is contradicted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

import shakeproof as sp

SIDE, HIDDEN, OUTPUTS = 5, 8, 5
SHAKES = {
    "box-blur:size=3": [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)],
    "motion-blur:size=3,angle=0": [(i, 0) for i in (-1, 0, 1)],
    "motion-blur:size=3,angle=90": [(0, j) for j in (-1, 0, 1)],
}
Numbers = Sequence[Fraction]
Holds = Callable[[Numbers, int, Numbers], bool]
CLASSIFIED: dict[str, Holds] = {
    "label": lambda y, label, start: _beaten(y, label) == 0,
    "label:lead=0.25": lambda y, label, start: _beaten(y, label, Fraction(1, 4)) == 0,
    "top:k=2": lambda y, label, start: _beaten(y, label) < 2,
    "top:k=3": lambda y, label, start: _beaten(y, label) < 3,
    "among:classes=0,1,4": lambda y, label, start: max(y[0], y[1], y[4]) > max(y[2], y[3]),
    "never:classes=2,3": lambda y, label, start: max(y[0], y[1], y[4]) > max(y[2], y[3]),
    "score:class=1,above=-2": lambda y, label, start: y[1] > -2,
    "output:index=2,within=-3..3": lambda y, label, start: abs(y[2]) < 3,
    "drift:index=0,by=0.25": lambda y, label, start: abs(y[0] - start[0]) < Fraction(1, 4),
    "top:k=3 and drift:index=3,by=0.5": lambda y, label, start: (
        _beaten(y, label) < 3 and abs(y[3] - start[3]) < Fraction(1, 2)
    ),
}


SEGMENTED: dict[str, Holds] = {
    "pixels:share=0.75": lambda y, label, start: 4 * _kept(y, start) >= 3 * 4,
    "pixels:share=1": lambda y, label, start: _kept(y, start) == 4,
}
DETECTED: dict[str, Holds] = {
    "detection:box=1,score=-6,drift=2": lambda y, label, start: (
        y[max(2, 3, key=lambda place: start[place])] > -6
        and all(abs(y[place] - start[place]) < 2 for place in range(10, 14))
    ),
}


class Task(NamedTuple):
    """How many outputs a network has, of which shapes, and what is required of them."""

    outputs: int
    shapes: Sequence[tuple[int, ...]]
    requirements: dict[str, Holds]


TASKS = (
    Task(OUTPUTS, [(OUTPUTS,)], CLASSIFIED),
    Task(12, [(3, 2, 2)], SEGMENTED),
    Task(18, [(3, 2), (3, 4)], DETECTED),
)


class Shaped(nn.Module):
    """A network whose outputs have several shapes."""

    def __init__(self, inner: nn.Module, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.inner, self.shapes = inner, shapes

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = self.inner(x).split([prod(shape) for shape in self.shapes], 1)
        return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True))


def _kept(y: Numbers, start: Numbers) -> int:
    """How many of four pixels keep their class, of three."""
    classes = [max(range(3), key=lambda c, at=at: start[4 * c + at]) for at in range(4)]
    return sum(all(y[4 * own + at] > y[4 * c + at] for c in range(3) if c != own) for at, own in enumerate(classes))


def _beaten(y: Numbers, label: int, lead: Fraction = Fraction(0)) -> int:
    """How many others score as much as the label, less a lead."""
    return sum(other >= y[label] - lead for place, other in enumerate(y) if place != label)


def main(networks: int, pictures: int, samples: int) -> int:
    """Ask about everything, and print a line for each requirement."""
    counts = {text: Counter[str]() for task in TASKS for text in task.requirements}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(networks):
            for number, task in enumerate(TASKS):
                _ask(seed, task, pictures, samples, Path(folder) / f"{number}-{seed}.onnx", counts)
    for text, count in counts.items():
        print(f"{text:36}", ", ".join(f"{word} {number}" for word, number in sorted(count.items())), flush=True)
    contradictions = sum(count["contradicted"] for count in counts.values())
    print(f"{contradictions} contradictions in {sum(count['asked'] for count in counts.values())} answers")
    return int(contradictions > 0)


def _ask(seed: int, task: Task, pictures: int, samples: int, file: Path, counts: dict[str, Counter[str]]) -> None:
    torch.manual_seed(seed)
    first, last = nn.Linear(SIDE * SIDE, HIDDEN), nn.Linear(HIDDEN, task.outputs)
    with torch.no_grad():
        first.weight.mul_(12)
        last.weight.mul_(4)
        last.bias.mul_(2)
    module = Shaped(nn.Sequential(nn.Flatten(), first, nn.ReLU(), last), task.shapes).eval()
    sp.load(module, torch.zeros(1, 1, SIDE, SIDE), save=file, output_name="*")
    network = sp.load(file, output_name="*")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    layers = [[[Fraction(w) for w in row] for row in layer.weight.tolist()] for layer in (first, last)]
    biases = [[Fraction(b) for b in layer.bias.tolist()] for layer in (first, last)]

    def outputs(x: Numbers) -> Numbers:
        """The network without rounding."""
        hidden = [max(Fraction(0), sum(map(_product, row, x), b)) for row, b in zip(layers[0], biases[0], strict=True)]
        return [sum(map(_product, row, hidden), b) for row, b in zip(layers[1], biases[1], strict=True)]

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        name = session.get_inputs()[0].name
        rows = [session.run(None, {name: row.reshape(1, 1, SIDE, SIDE)}) for row in x]
        return np.array([np.concatenate([part.ravel() for part in row]) for row in rows])

    random = np.random.default_rng(seed)
    for _ in range(pictures):
        picture = random.integers(0, 257, (SIDE, SIDE)) / 256
        for shake, taps in SHAKES.items():
            base, slope = _line(picture, taps)
            z = np.linspace(0, 1, samples)
            along = (np.array(base, float) + z[:, None] * np.array(slope, float)).astype(np.float32)
            theirs = run(along)
            start = [Fraction(float(value)) for value in theirs[0]]
            label = int(outputs(base).index(max(outputs(base))))
            for text, holds in task.requirements.items():
                result = sp.profile(network, picture[None], shake, require=text)
                kept = [holds([Fraction(float(v)) for v in row], label, start) for row in theirs]
                exactly = partial(_exactly, holds, outputs, (base, slope), label, start)
                counts[text]["asked"] += 1
                counts[text][result.status.value] += 1
                counts[text]["contradicted"] += _is_contradicted(result, z, kept, exactly)


def _exactly(
    holds: Holds,
    outputs: Callable[[Numbers], Numbers],
    line: tuple[Numbers, Numbers],
    label: int,
    start: Numbers,
    z: float,
) -> bool:
    """Whether a requirement holds at a strength, without rounding."""
    return holds(outputs([base + Fraction(z) * slope for base, slope in zip(*line, strict=True)]), label, start)


def _product(w: Fraction, x: Fraction) -> Fraction:
    return w * x


def _line(picture: NDArray[np.float64], taps: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    """x(z) = base + z slope, in fractions: from the picture to the mean of its neighbours, its border reflected."""
    padded = np.pad(picture, 1, mode="reflect")
    base = [Fraction(value) for value in picture.ravel()]
    full = [
        sum((Fraction(padded[1 + i + di, 1 + j + dj]) for di, dj in taps), Fraction(0)) / len(taps)
        for i in range(SIDE)
        for j in range(SIDE)
    ]
    return base, [b - a for a, b in zip(base, full, strict=True)]


def _is_contradicted(
    result: sp.Result, z: NDArray[np.float64], kept: Sequence[bool], exactly: Callable[[float], bool]
) -> bool:
    """Whether the runtime, or an evaluation without rounding, says something else than an answer."""
    failing = z[~np.array(kept)]
    match result.status.value:
        case "safe":
            return len(failing) > 0 or not all(map(exactly, z[:: max(1, len(z) // 8)]))
        case "misclassified":
            return exactly(0.0)
        case "unsafe":
            assert result.critical_strength is not None
            low, high = result.critical_strength
            return bool((failing < low - 1e-6).any()) or not exactly(low) or exactly(high)
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=20)
    parser.add_argument("--pictures", type=int, default=10)
    parser.add_argument("--samples", type=int, default=257)
    sys.exit(main(**vars(parser.parse_args())))
