"""VNN-COMP benchmarks as they stand: boxes of inputs around images, decided by activation splitting.

    python benchmarks/vnncomp.py mnist_fc --data DIR [--timeout 60] [--only 256x2]

DIR holds a folder for each benchmark: instances.csv, onnx/, vnnlib/. No verdict is taken on trust: each counterexample
is checked in onnxruntime, and each `unsat` attacked once more, with random inputs in onnxruntime and gradient descent.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np
import onnxruntime
import torch
from paper_tables import DATA, existing
from rich.console import Console

import shakeproof as sp
from shakeproof.budget import Budget, keep_freed_memory
from shakeproof.model import with_claims
from shakeproof.operators import Range
from shakeproof.question import InputBox
from shakeproof.search import descend

WORDS = {"safe": "unsat", "unsafe": "sat"}


class Judge:
    """The network in onnxruntime, and what a specification makes of its outputs."""

    def __init__(self, model: Path, specification: sp.Specification) -> None:
        self.session = onnxruntime.InferenceSession(sp.load_deployed(model).data, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0]
        self.shape = [size if isinstance(size, int) else 1 for size in self.input.shape]
        self.specification = specification

    def finds(self, x: np.ndarray) -> bool:
        """Whether one of these inputs (n, inputs), float32, is a counterexample."""
        for one in x:
            outputs = self.session.run(None, {self.input.name: one.reshape(self.shape)})[0]
            if self.specification.is_counterexample(one.astype(np.float64), outputs.flatten().astype(np.float64)):
                return True
        return False

    def attacked(self, network: sp.Network, samples: int, seed: int) -> bool:
        """Whether random inputs, or gradient descent from some of them, find a counterexample."""
        graph = network.graph.to(torch.float32)
        low, high = (torch.from_numpy(end).view(graph.input_shape) for end in self.specification.box)
        box = InputBox(low, high)
        ((_, about),) = self.specification.parts
        for batch in range(0, samples, 1000):
            x = box.samples(1000, seed + batch)
            if about.fails(network.reference(x.numpy())).any():  # many at once: onnxruntime in batches
                return True
        label = self.specification.label
        others = [c for c in range(graph.classes) if c != label]
        leads = with_claims(graph, *(t.float() for t in rivals(label, others, graph.classes)))
        with torch.inference_mode():
            claim = torch.arange(2000) % len(others)
            return any(
                self.finds(x.flatten(1).numpy())
                for x in descend(leads, Range(*box.float32), box.samples(2000, seed - 1), claim, 100, Budget())
            )


def rivals(label: int, others: Sequence[int], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    unit = torch.eye(classes, dtype=torch.float64)
    return (unit[label] - unit[list(others)]).unsqueeze(1), torch.zeros(len(others), 1, dtype=torch.float64)


@click.command()
@click.argument("benchmark")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DATA)
@click.option("--timeout", default=60.0, help="Seconds for each query.")
@click.option("--only", default="", help="Only instances whose line has this in it.")
@click.option("--samples", default=100_000, help="Random inputs that attack each `unsat`.")
def main(benchmark: str, data: Path, timeout: float, only: str, samples: int) -> None:
    """Decide every instance of BENCHMARK, a folder below --data."""
    keep_freed_memory()
    console = Console(width=160, highlight=False)
    with (data / benchmark / "instances.csv").open(newline="") as file:
        instances = [row for row in csv.reader(file) if len(row) >= 2 and only in ",".join(row)]
    if not instances:
        raise click.UsageError(f"no instance of {benchmark} has {only!r} in its line")
    found: Counter[str] = Counter()
    wrong, times = 0, []
    for number, (model, query, *_) in enumerate(instances):
        model_file, query_file = existing(data / benchmark / model), existing(data / benchmark / query)
        network, specification = sp.load(model_file), sp.read_specification(query_file)
        result = sp.verify_specification(network, specification, timeout=timeout)
        word = WORDS.get(result.status.value, str(result.reason))
        judge = Judge(model_file, specification)
        if word == "sat":
            wrong += not judge.finds(result.counterexample.input.reshape(1, -1))
        elif word == "unsat":
            wrong += judge.attacked(network, samples, seed=1 + number)
        found[word] += 1
        times.append(result.seconds)
        console.print(
            f"{Path(model).stem:>24} {Path(query).stem:<48} {word:>12} {result.seconds:7.2f} s {result.pieces:>8} parts"
        )
    decided = found["sat"] + found["unsat"]
    console.print(
        f"{benchmark}: {decided} of {len(instances)} decided within {timeout:g} s ({found['unsat']} unsat,"
        f" {found['sat']} sat), wrong verdicts: {wrong}; median {median(times):.3g} s, longest {max(times):.3g} s;"
        f" load {os.getloadavg()[0]:.1f}; {dict(found)}"
    )


if __name__ == "__main__":
    main()
