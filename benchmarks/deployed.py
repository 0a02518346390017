"""Every 8-bit picture in the deployed runtime: what it costs beside the runtime itself, and whether it is true.

    python benchmarks/deployed.py FOLDER [--data DIR] [--only NAME,...] [--share 1.0] [--timed 2] [--replays 1000000]

200 (image, kernel) pairs are profiled up to strength 1: float networks, a transformer, an int8 export, and a network
with control flow, which the reader refuses (`read`: no); every picture is run. `ratio` is the processor time of whole
profiles over that of the runtime alone, for the same pictures in the same batches on as many threads, in turn in the
same run (`clock`: the same of seconds). The answers are written to FOLDER, and replayed at random strengths by
benchmarks/replayed.py in processes of their own. The exit code is 1 if an answer is undecided or contradicted. See
docs/howto/deployed.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from quantised import as_inputs, quantise
from rich.console import Console
from rich.table import Table

import shakeproof as sp
from shakeproof.budget import keep_freed_memory
from shakeproof.proof.enumeration_method import Runner

DATA = Path(__file__).resolve().parents[2] / "shared"
MNIST, CIFAR, GTSRB = "data/mnist_test.npz", "data/cifar10_test_first2000.npz", "data/gtsrb_test_first1000.npz"
KERNELS = (
    *("box-blur:size=3", "motion-blur:size=5,angle=45", "sharpen:size=3"),
    *("box-blur:size=5", "motion-blur:size=9,angle=90", "sharpen:size=5"),
    *("box-blur:size=9", "motion-blur:size=5,angle=0", "motion-blur:size=9,angle=135"),
)
# So many pictures are made ready for the runtime before its time is taken.
READY = 4096


def quantised(data: Path, folder: Path) -> Path:
    """The int8 twin of gtsrb_cnn, in the QDQ format."""
    made = folder / "gtsrb_cnn_int8.onnx"
    quantise(data / "networks/gtsrb_cnn.onnx", as_inputs(np.load(data / GTSRB)["x"][500:700]), made)
    return made


def exposed(data: Path, folder: Path) -> Path:
    """gtsrb_cnn behind an exposure control: if a picture is dark, its root is taken. An `If` is not analysed."""
    model = onnx.load(data / "networks/gtsrb_cnn.onnx")
    graph, (given,) = model.graph, model.graph.input
    for node in graph.node:
        node.input[:] = ["exposed" if name == given.name else name for name in node.input]
    branches = {
        f"{way}_branch": helper.make_graph(
            [helper.make_node(kind, [given.name], [way])],
            way,
            [],
            [helper.make_tensor_value_info(way, TensorProto.FLOAT, None)],
        )
        for way, kind in (("then", "Sqrt"), ("else", "Identity"))
    }
    graph.initializer.append(numpy_helper.from_array(np.array(0.3, np.float32), "darkness"))
    for place, node in enumerate(
        [
            helper.make_node("ReduceMean", [given.name], ["brightness"], keepdims=0),
            helper.make_node("Less", ["brightness", "darkness"], ["is_dark"]),
            helper.make_node("If", ["is_dark"], ["exposed"], **branches),
        ]
    ):
        graph.node.insert(place, node)
    onnx.save(model, made := folder / "gtsrb_cnn_exposed.onnx")
    return made


def stored(name: str) -> Callable[[Path, Path], Path]:
    return lambda data, folder: data / name


@dataclass(frozen=True)
class Case:
    """A network, and how many (image, kernel) pairs it is asked about."""

    model: Callable[[Path, Path], Path]
    archive: str
    pairs: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def share(self, share: float) -> int:
        return max(1, round(share * self.pairs))

    def network(self, file: Path) -> sp.Deployed:
        network = sp.load_deployed(file)
        return network if (self.mean, self.std) == ((0.0,), (1.0,)) else network.normalised(self.mean, self.std)


CASES = {
    **{
        f"mnist_fc_256x{n}": Case(stored(f"benchmarks/mnist_fc/onnx/mnist-net_256x{n}.onnx"), MNIST, 30)
        for n in (2, 4, 6)
    },
    "gtsrb_cnn": Case(stored("networks/gtsrb_cnn.onnx"), GTSRB, 30),
    "gtsrb_cnn_int8": Case(quantised, GTSRB, 30),
    "gtsrb_cnn_exposed": Case(exposed, GTSRB, 30),
    "cifar10_vit": Case(
        *(stored("networks/cifar10_vit_ibp_3_3_8.onnx"), CIFAR, 12),
        *((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ),
    "cifar10_resnet20": Case(stored("networks/cifar10_resnet20.onnx"), CIFAR, 8),
}


@dataclass
class Row:
    """What came of a network's pairs; times are of processors and of the clock: of profiles, and of the runtime."""

    name: str
    read: bool
    statuses: Counter[str] = field(default_factory=Counter)
    pictures: int = 0
    seconds: float = 0.0
    batch: int = 0
    times: list[tuple[float, float, float, float]] = field(default_factory=list)
    replays: int = 0
    contradicted: int = 0

    @property
    def ratios(self) -> tuple[str, str]:
        ours, clock, theirs, their_clock = np.sum(self.times, 0) if self.times else np.full(4, np.nan)
        return f"{ours / theirs:.2f}", f"{clock / their_clock:.2f}"

    @property
    def holds(self) -> bool:
        return not (self.contradicted or self.statuses["undecided"])


def pairs_of(case: Case, data: Path, count: int) -> Sequence[tuple[str, str]]:
    """Each image under three kernels, others for the next."""
    return [(f"{data / case.archive}@{number // 3}", KERNELS[number % len(KERNELS)]) for number in range(count)]


def profiled(name: str, data: Path, folder: Path, share: float, timed: int) -> tuple[Row, Path]:
    """All pairs of a network; their answers are in a file."""
    case = CASES[name]
    model = case.model(data, folder)
    network, row = case.network(model), Row(name, can_be_read(model))
    answers, pairs = folder / f"{name}.jsonl", pairs_of(case, data, case.share(share))
    with answers.open("w") as file:
        for number, (image, kernel) in enumerate(pairs):
            # whether the class that the network gives it stays, not whether it is right
            picture = replace(sp.read_image(image).fitted(network.picture()), label=None)
            processor, clock = time.process_time(), time.perf_counter()
            result = sp.profile(network, picture, kernel, pixels="8bit")
            spent = time.process_time() - processor, time.perf_counter() - clock
            row.statuses[result.status] += 1
            row.pictures += result.pieces
            row.seconds += spent[1]
            row.batch = result.proof.deployment.batch
            if number >= len(pairs) - timed:
                row.times.append(
                    (*spent, *own_time(Runner.of(network, result.proof.pictures, result.query.photograph)))
                )
            file.write(json.dumps(result.record.to_json() | {"model": str(model), "image": image}) + "\n")
    return row, answers


def can_be_read(model: Path) -> bool:
    try:
        sp.load(model)
    except sp.ShakeproofError:
        return False
    return True


def own_time(runner: Runner) -> tuple[float, float]:
    """What the runtime takes for the same pictures, ready made: processor time, and the clock's."""
    session = runner.runtime.session
    name, spent = session.get_inputs()[0].name, np.zeros(2)

    def run(inputs: Sequence[np.ndarray]) -> None:
        for given in inputs:
            session.run(None, {name: given})

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for levels in runner.pictures.batches(READY):
            ready = runner.network.prepared(runner.given(levels))
            if runner.batch > 1:
                ready = ready.reshape(len(ready), *ready.shape[2:])
                batches = [[ready[start : start + runner.batch]] for start in range(0, len(ready), runner.batch)]
            else:
                batches = [
                    list(ready[start : start + runner.at_once]) for start in range(0, len(ready), runner.at_once)
                ]
            processor, clock = time.process_time(), time.perf_counter()
            list(pool.map(run, batches))
            spent += time.process_time() - processor, time.perf_counter() - clock
    return float(spent[0]), float(spent[1])


def replay(row: Row, answers: Path, count: int, seed: int) -> None:
    """In a process of its own, with plain onnxruntime."""
    case, script = CASES[row.name], Path(__file__).with_name("replayed.py")
    words = ["--count", str(count), "--seed", str(seed), "--mean", *map(str, case.mean), "--std", *map(str, case.std)]
    done = subprocess.run([sys.executable, script, answers, *words], stdout=subprocess.PIPE, text=True, check=False)
    for answer in map(json.loads, done.stdout.splitlines()):
        row.replays += answer["replays"]
        row.contradicted += len(answer["contradicted"])
    if row.replays != count * row.statuses.total():
        raise SystemExit(f"{row.name}: not every answer was replayed")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, show_default=True)
@click.option("--only", default=",".join(CASES), help="Networks, with commas between them.")
@click.option("--share", default=1.0, show_default=True, help="Of the 200 pairs.")
@click.option("--timed", default=2, show_default=True, help="How many pairs of a network are timed beside the runtime.")
@click.option("--replays", default=1_000_000, show_default=True, help="Random strengths in total.")
def main(folder: Path, data: Path, only: str, share: float, timed: int, replays: int) -> None:
    """Profile, time, replay, and print the table."""
    keep_freed_memory()
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=150)
    chosen = [name for name in CASES if name in only.split(",")]
    pairs = sum(CASES[name].share(share) for name in chosen)
    columns = (
        "network",
        "read",
        "batch",
        "pairs",
        "safe",
        "unsafe",
        "misclassified",
        "undecided",
        "pictures",
        "seconds",
    )
    table = Table(*columns, "ratio", "clock", "replays", "contradicted")
    good = True
    for seed, name in enumerate(chosen):
        row, answers = profiled(name, data, folder, share, timed)
        replay(row, answers, -(-replays // pairs), seed)
        told = [row.statuses[status] for status in ("safe", "unsafe", "undecided")]
        cells = (row.name, "yes" if row.read else "no", row.batch, row.statuses.total(), *told, row.pictures)
        cells = (*cells, round(row.seconds), *row.ratios, row.replays, row.contradicted)
        table.add_row(*map(str, cells))
        console.print(*cells, f"load {os.getloadavg()[0]:.1f}")
        good &= row.holds
    console.print(table)
    sys.exit(not good)


if __name__ == "__main__":
    main()
