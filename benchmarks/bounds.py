"""What bounds and input splitting cost, in forward passes, and what they decide.

    python benchmarks/bounds.py [--data DIR] [--only cells,decide,bridges] [--samples 10000]

cells     What one cell costs: bounds forward, and backward for each claim, against a float64 forward pass of one row.
decide    How many cells, seconds and verdicts: smooth networks with one strength, oval21 with two and three. With
          --samples, each verdict is compared with so many evaluations in the reference runtime.
bridges   Whole profiles with and without bridges (stretches that bounds settle before the sweep).

Ratios are measured within one run, the best of several, runs of both kinds in turn.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from speed import NETWORKS as PIECEWISE_LINEAR
from speed import PERTURBATIONS, first

import shakeproof as sp
from shakeproof.bounds import Boxes, Planes, enclose, planes_below
from shakeproof.budget import keep_freed_memory
from shakeproof.proof.evidence import by_class
from shakeproof.question import Image, read_image

CELLS = 32
FLOAT32_ROUNDING = 1e-5
CIFAR = "data/cifar10_test_first2000.npz"
SMOOTH = {
    "mnist_sigmoid_6x200": ("networks/mnist_sigmoid_6x200.onnx", first("data/mnist_test.npz", 20)),
    "cifar10_vit": ("networks/cifar10_vit_ibp_3_3_8.onnx", first(CIFAR, 20)),
}
# The ViT was trained on normalised pictures.
NORMALISED = {"cifar10_vit": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))}
OTHERS = {
    **{
        f"convnet_{kind}": (f"networks/Convnet_{kind}.onnx", first("data/mnist_test.npz", 4))
        for kind in ("maxpool", "avgpool")
    },
}
SLOW = {"cifar10_resnet20"}  # a minute a profile
DIRECTIONS = tuple(f"motion-blur:size=3,angle={angle}" for angle in (0, 90, 45))


def loaded(name: str, data: Path) -> tuple[sp.Network, list[Image]]:
    model, images = {**PIECEWISE_LINEAR, **SMOOTH, **OTHERS}[name]
    network = sp.load(data / model)
    if name in NORMALISED:
        network = network.normalised(*NORMALISED[name])
    return network, [read_image(f"{data}/{image}").fitted(network.picture()) for image in images(data)[:20]]


def best(run: Callable[[], object], repeats: int = 4) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def cells(console: Console, data: Path, samples: int) -> None:
    table = Table(title=f"a cell of [0, 1] in {CELLS}, in float64 forward passes of one row (box-blur:size=5)")
    for heading in ("network", "forward pass ms", "forward", "backward a claim", "cells a second", "settled"):
        table.add_column(heading, justify="right")
    for name in (*PIECEWISE_LINEAR, *SMOOTH, *OTHERS):
        if name in SLOW:
            continue
        with torch.inference_mode():
            table.add_row(name, *cell_costs(*loaded(name, data)))
    console.print(table)


def cell_costs(network: sp.Network, images: Sequence[Image]) -> tuple[str, ...]:
    """One row of the table, for the first image."""
    graph = network.graph
    (query,) = sp.perturbed(network, images[:1], sp.box_blur(5))
    path = query.path.path
    edges = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64).unsqueeze(1)
    boxes = Boxes(edges[:-1], edges[1:])
    inputs = path.at(boxes.points)
    rows = path.at(torch.rand(2 * CELLS, 1, dtype=torch.float64))
    passes = best(lambda: graph.run(rows)) / len(rows)
    error = path.error.expand(CELLS, *path.error.shape)
    forward = best(lambda: enclose(graph, inputs, boxes, error)) / CELLS
    enclosed = enclose(graph, inputs, boxes, error)
    claims = torch.from_numpy(query.obligations[0].property.claims[0][:, 0])
    cell = torch.arange(CELLS).repeat_interleave(len(claims))

    def back() -> Planes:
        return planes_below(graph, enclosed, claims.repeat(CELLS, 1), cell)

    backward = best(back) / len(cell)
    lowest = back().lowest(boxes.low[cell], boxes.high[cell]).view(CELLS, -1).amin(1)
    return (
        f"{1e3 * passes:.3f}",
        f"{forward / passes:.1f}",
        f"{backward / passes:.2f}",
        f"{1 / (forward + len(claims) * backward):.0f}",
        f"{int((lowest > 0).sum())} of {CELLS}",
    )


def decide(console: Console, data: Path, samples: int) -> None:
    table = Table(title="verdicts by bounds and splitting")
    for heading in ("network", "strengths", "queries", "verdicts", "cells (median, most)", "seconds (median, most)"):
        table.add_column(heading, justify="right")
    contradictions = checked = 0
    small = [text.format(size) for size in (3, 5) for text in
             ("motion-blur:size={},angle=45", "box-blur:size={}", "sharpen:size={}")]  # fmt: skip
    for name in SMOOTH:
        network, images = loaded(name, data)
        results = run(table, name, network, images, small, 0.4)
        for result in results:
            checked += samples > 0
            contradictions += samples > 0 and contradicted(network, result, samples)
    for name in ("oval21_base", "oval21_wide", "oval21_deep"):
        network, images = loaded(name, data)
        for parts in (2, 3):
            run(table, name, network, images[:10], ["+".join(DIRECTIONS[:parts])], 0.2)
    console.print(table)
    if samples:
        console.print(f"{checked} verdicts, {samples} samples each: {contradictions} contradictions")


def run(
    table: Table, name: str, network: sp.Network, images: Sequence[Image], texts: Sequence[str], strength: float
) -> list[sp.Result]:
    settings = sp.Settings(method="bounds", stop_early=True, timeout=60)
    queries = [query for text in texts for query in sp.perturbed(network, images, text, strength=strength)]
    results = sp.analyse(network, queries, settings)
    tally = Counter(str(result.status) for result in results)
    counts, seconds = [r.pieces for r in results], [r.seconds for r in results]
    table.add_row(
        name,
        str(queries[0].perturbation.parameters),
        str(len(queries)),
        ", ".join(f"{count} {status}" for status, count in tally.items()),
        f"{median(counts):.0f}, {max(counts)}",
        f"{median(seconds):.3f}, {max(seconds):.3f}",
    )
    return results


def contradicted(network: sp.Network, result: sp.Result, samples: int) -> bool:
    """Whether the reference runtime sees the label lose where it is said to be safe, or win at a counterexample.

    Next to a flip float32 may differ by its own rounding, which is no contradiction.
    """
    path = result.query.perturbation.apply(result.query.image.pixels)

    def lowest_margin(low: float, high: float, count: int) -> float:
        found = []
        for part in np.array_split(np.linspace(low, high, count), -(-count // 500)):
            images = path.clipped(path.at(torch.from_numpy(part).unsqueeze(1)))
            scores = network.reference(network.picture().to_input(images).float().numpy())
            own = scores[:, result.label].copy()
            scores[:, result.label] = -np.inf
            found.append((own - scores.max(1)).min() / np.abs(own).max())
        return float(min(found))

    if result.status is sp.Status.SAFE:
        return lowest_margin(0.0, result.query.strengths[0], samples) <= 0
    low, high = result.critical_strength or (0.0, 0.0)
    return lowest_margin(high, high, 1) > 0 or (low > 0 and lowest_margin(0.0, low, samples) < -FLOAT32_ROUNDING)


def bridges(console: Console, data: Path, samples: int) -> None:
    table = Table(title="whole profiles with bridges, against every piece enumerated (seconds, best of several)")
    for heading in ("network", "perturbation", "pieces", "left", "every piece", "bridges", "ratio"):
        table.add_column(heading, justify="right")
    for name in (*PIECEWISE_LINEAR, *OTHERS):
        if name in SLOW:
            continue
        network, images = loaded(name, data)
        for text in PERTURBATIONS:
            queries = sp.perturbed(network, images, text)
            kinds = (sp.Settings(whole_curve=True), sp.Settings())
            found, times = {}, {True: [], False: []}
            while not times[False] or (sum(times[True]) < 2 and len(times[True]) < 8):
                for settings in kinds:
                    started = time.perf_counter()
                    found[settings.whole_curve] = sp.analyse(network, queries, settings)
                    times[settings.whole_curve].append(time.perf_counter() - started)
            pieces = {kind: sum(result.pieces for result in results) for kind, results in found.items()}
            whole, bridged = min(times[True]), min(times[False])
            numbers = (f"{whole:.3f}", f"{bridged:.3f}", f"{bridged / whole:.2f}")
            table.add_row(name, text, str(pieces[True]), str(pieces[False]), *numbers)
            assert agree(found[True], found[False])
    console.print(table)


def agree(whole: Sequence[sp.Result], bridged: Sequence[sp.Result]) -> bool:
    return all(
        one.status is other.status
        and [interval.winner for interval in by_class(one.profile)]
        == [interval.winner for interval in by_class(other.profile)]
        and np.allclose(
            [i.start for i in by_class(one.profile)], [i.start for i in by_class(other.profile)], atol=1e-8, rtol=0
        )
        for one, other in zip(whole, bridged, strict=True)
    )


PARTS = {"cells": cells, "decide": decide, "bridges": bridges}
DATA = Path(__file__).resolve().parents[2] / "shared"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DATA)
@click.option("--only", default=",".join(PARTS), help="Which parts, comma-separated.")
@click.option("--samples", default=0, help="Compare each verdict with so many evaluations in the reference runtime.")
def main(data: Path, only: str, samples: int) -> None:
    """What bounds and input splitting cost, and what they decide."""
    keep_freed_memory()
    console = Console(width=160)
    console.print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    for part in only.split(","):
        PARTS[part](console, data, samples)


if __name__ == "__main__":
    main()
