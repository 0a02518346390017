"""How close the exact sweep comes to the physical limit: about one forward pass of one row per breakpoint.

    python benchmarks/speed.py [--data DIR] [--only NAME,...] [--threads 1] [--json FILE]

For each network and perturbation: the number of linear pieces, seconds, peak memory, and two ratios measured in the
same run. `ratio_f64` is seconds / (pieces x seconds of one row's forward pass in float64, by the fastest batch size),
and `ratio_f32` the same against torch's float32 forward pass. `rounding` is what enclosing it adds to the sweep, in the
same run, and `norms` the seconds that the norms of the layers take once. Small networks are given many lines at once.
All of it is on one thread, as every process sweeps; what more cores give is `cores.py`'s. See docs/speed.md.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import shakeproof as sp
from shakeproof.budget import GIB, Budget, keep_freed_memory
from shakeproof.exact import Lines, sweep
from shakeproof.graph import Graph
from shakeproof.operators import Conv, MaxPool
from shakeproof.question import Image, read_image
from shakeproof.question import Path as InputPath
from shakeproof.rounding import RunningError

PERTURBATIONS = ("motion-blur:size=5,angle=45", "box-blur:size=9", "sharpen:size=3")
BATCHES = (16, 32, 64, 128, 256, 512)


def vnnlib(folder: str, pattern: str, count: int) -> Callable[[Path], tuple[str, ...]]:
    def find(data: Path) -> tuple[str, ...]:
        files = sorted((data / folder).glob(pattern))[:count]
        return tuple(str(file.relative_to(data)) for file in files)

    return find


def first(archive: str, count: int) -> Callable[[Path], tuple[str, ...]]:
    return lambda data: tuple(f"{archive}@{index}" for index in range(count))


CIFAR, GTSRB = "data/cifar10_test_first2000.npz", "data/gtsrb_test_first1000.npz"
MNIST = first("data/mnist_test.npz", 1000)
NETWORKS: dict[str, tuple[str, Callable[[Path], tuple[str, ...]]]] = {
    **{f"mnist_fc_256x{n}": (f"benchmarks/mnist_fc/onnx/mnist-net_256x{n}.onnx", MNIST) for n in (2, 4, 6)},
    **{
        f"oval21_{name}": (
            f"benchmarks/oval21/onnx/cifar_{name}_kw.onnx",
            vnnlib("benchmarks/oval21/vnnlib", f"cifar_{name}_kw*", 10),
        )
        for name in ("base", "wide", "deep")
    },
    "sri_resnet_b": (
        "benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx",
        vnnlib("benchmarks/sri_resnet_b/vnnlib", "*_eps_0.00350.vnnlib.gz", 4),
    ),
    "cifar10_resnet20": ("networks/cifar10_resnet20.onnx", first(CIFAR, 1)),
    "gtsrb_cnn": ("networks/gtsrb_cnn.onnx", first(GTSRB, 2)),
    "cifar10_resnet18": ("networks/cifar10_resnet18.onnx", first(CIFAR, 1)),
}


@dataclass(frozen=True)
class Row:
    """One line of the table, one object of the JSON."""

    network: str
    perturbation: str
    lines: int
    pieces: int
    seconds: float
    peak_mib: float
    ratio_f64: float
    ratio_f32: float
    rounding: float
    norms_seconds: float


def measure(name: str, data: Path, memory: float, threads: int) -> list[Row]:
    """All perturbations of one network."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    model, images = NETWORKS[name]
    network = sp.load(data / model)
    pictures = [read_image(f"{data}/{image}").fitted(network.picture()) for image in images(data)]
    rows = []
    with torch.inference_mode():
        for text in PERTURBATIONS:
            lines = lines_of(network, pictures, text)
            random_rows = torch.randint(len(pictures), (max(BATCHES),)), torch.rand(max(BATCHES), dtype=torch.float64)
            inputs = lines.at(*random_rows)
            f64 = seconds_per_row(network.graph.run, inputs)
            f32 = seconds_per_row(float32_forward(network.graph), inputs.float())
            forget_peak()
            running_error, started = RunningError(network.graph), time.perf_counter()
            assert running_error.coefficients  # the norms of the layers, once for a network
            norms = time.perf_counter() - started
            (pieces, seconds), (_, bare) = timed_sweeps(
                network.graph, lines, Budget(memory=memory * GIB), running_error
            )
            ratios = (seconds / (pieces * f64), seconds / (pieces * f32), seconds / bare - 1)
            rows.append(Row(name, text, len(pictures), pieces, seconds, peak_mib(), *ratios, norms))
    return rows


def lines_of(network: sp.Network, pictures: Sequence[Image], text: str) -> Lines:
    """One line for each picture."""
    queries = sp.perturbed(network, pictures, text)
    count = len(queries)
    ends = torch.zeros(count, dtype=torch.float64), torch.ones(count, dtype=torch.float64)
    return Lines(InputPath.stacked([query.path.path for query in queries]), *ends, torch.arange(count))


def timed_sweeps(graph: Graph, lines: Lines, budget: Budget, running_error: RunningError) -> list[tuple[int, float]]:
    """Pieces and seconds, with errors and without, in turn; short sweeps are repeated and the best taken."""
    found: list[tuple[int, float]] = [(0, float("inf"))] * 2
    spent, tries = 0.0, 0
    while not tries or (spent < 4 and tries < 7):
        for number, errors in enumerate((running_error, None)):
            started = time.perf_counter()
            pieces = sum(count_segments(piece.line) for piece in sweep(graph, lines, budget, running_error=errors))
            seconds = time.perf_counter() - started
            found[number] = min(found[number], (pieces, seconds), key=lambda run: run[1])
            spent += seconds
        tries += 1
    return found


def count_segments(line: Tensor) -> int:
    return int((line[1:] == line[:-1]).sum())


def seconds_per_row(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    """The best of all batch sizes, each tried a few times."""
    best = float("inf")
    for batch in BATCHES:
        tries = max(2, 512 // batch // 2)
        for _ in range(min(tries, 4)):
            started = time.perf_counter()
            forward(inputs[:batch])
            best = min(best, (time.perf_counter() - started) / batch)
            if best * batch > 2:
                return best
    return best


def float32_forward(graph: Graph) -> Callable[[Tensor], Tensor]:
    """The same network on torch's own float32 convolutions and pooling, channels last in memory."""
    parameters = {
        index: (node.operator.weight.float(), node.operator.bias.float())
        for index, node in enumerate(graph.nodes)
        if hasattr(node.operator, "weight")
    }

    def run(x: Tensor) -> Tensor:
        values = {0: x}
        for index, node in enumerate(graph.nodes):
            inputs = [values[i] for i in node.inputs]
            operator = node.operator
            if isinstance(operator, Conv):
                weight, bias = parameters[index]
                groups, outputs, _ = weight.shape
                kernel = weight.view(groups * outputs, *operator.window.kernel, -1).permute(0, 3, 1, 2)
                picture = padded(inputs[0].flatten(0, 1).permute(0, 3, 1, 2), operator.window.pads, 0.0)
                found = functional.conv2d(
                    picture, kernel, bias, operator.window.strides, 0, operator.window.dilations, groups
                )
                values[index + 1] = found.permute(0, 2, 3, 1).unflatten(0, inputs[0].shape[:2])
            elif isinstance(operator, MaxPool):
                picture = padded(inputs[0].flatten(0, 1).permute(0, 3, 1, 2), operator.window.pads, -torch.inf)
                found = functional.max_pool2d(picture, operator.window.kernel, operator.window.strides)
                found = found.clamp(min=operator.floor)
                values[index + 1] = found.permute(0, 2, 3, 1).unflatten(0, inputs[0].shape[:2])
            elif index in parameters:
                weight, bias = parameters[index]
                found = functional.linear(inputs[0].reshape(len(x), -1), weight, bias)
                values[index + 1] = found.view(len(x), *node.shape)
            else:
                values[index + 1] = operator.apply(*inputs).float()
            for dead in graph.last_uses[index]:
                del values[dead]
        return values[len(graph.nodes)]

    return run


def padded(picture: Tensor, pads: Sequence[int], value: float) -> Tensor:
    top, left, bottom, right = pads
    return functional.pad(picture, (left, right, top, bottom), value=value) if any(pads) else picture


def forget_peak() -> None:
    """Start the operating system's record of peak resident memory anew (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return float("nan")


def print_rows(console: Console, rows: Sequence[Row], threads: int) -> None:
    table = Table(title=f"the exact sweep, threads: {threads}, load {os.getloadavg()[0]:.1f}")
    for heading in ("network", "perturbation", "lines", "pieces", "seconds", "peak MiB", "ratio f64", "ratio f32",
                    "rounding", "norms"):  # fmt: skip
        table.add_column(heading, justify="left" if heading in ("network", "perturbation") else "right")
    for row in rows:
        table.add_row(
            row.network, row.perturbation, str(row.lines), f"{row.pieces:,}", f"{row.seconds:.2f}",
            f"{row.peak_mib:.0f}", f"{row.ratio_f64:.2f}", f"{row.ratio_f32:.2f}", f"{row.rounding:+.0%}",
            f"{row.norms_seconds:.1f}",
        )  # fmt: skip
    console.print(table)


DATA = Path(__file__).resolve().parents[2] / "shared"


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, help="Benchmarks, networks, data.")
@click.option("--only", default=",".join(NETWORKS), help="Networks, comma-separated.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--memory", default=1.0, show_default=True, help="Working memory in GiB.")
@click.option("--threads", default=1, show_default=True)
def main(data: Path, only: str, file: Path | None, memory: float, threads: int) -> None:
    """Measure the exact sweep, each network in a process of its own."""
    names = only.split(",")
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        raise click.BadParameter(f"unknown networks {', '.join(unknown)}; choose from {', '.join(NETWORKS)}")
    console, rows = Console(width=130), []
    context = multiprocessing.get_context("spawn")
    for name in names:
        with context.Pool(1) as pool:
            rows += pool.apply(measure, (name, data, memory, threads))
        console.print(f"[dim]{name} done[/]")
    print_rows(console, rows, threads)
    if file is not None:
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
