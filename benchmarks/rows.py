"""What a row costs: one forward pass in float64, against onnxruntime's in float32, and what sweeping takes.

    python benchmarks/rows.py [--data DIR] [--only NAME,...] [--against SRC] [--threads N] [--minute] [--json FILE]

Each network in fresh processes. `ms row` is a row's forward pass at the best of some batch sizes, `ms ort` is
onnxruntime's, in turn and by the processor's clock, and `ratio ort` the one over the other. `ms piece` is what a piece
costs along a box blur, for some seconds from the left, and `peak MiB` the peak resident memory of the process then,
interpreter and weights included, to be compared with `--memory`. `--against` measures another source tree in the same
run, in turn. `--minute` asks the command what strength of a box blur of size 5 it certifies of EfficientNet-Lite0 in a
minute. See docs/speed.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from camera_networks import MAKERS, write
from rich.console import Console
from rich.table import Table
from speed import DATA, peak_mib

EFFICIENTNET = "networks/efficientnet_lite0_in01.onnx"
FILES = {
    "efficientnet_lite0": EFFICIENTNET,
    "cifar10_resnet56": "networks/cifar10_resnet56.onnx",
    "cifar10_resnet20": "networks/cifar10_resnet20.onnx",
    "cifar10_resnet18": "networks/cifar10_resnet18.onnx",
    "gtsrb_cnn": "networks/gtsrb_cnn.onnx",
    **{f"oval21_{name}": f"benchmarks/oval21/onnx/cifar_{name}_kw.onnx" for name in ("base", "wide", "deep")},
    **{f"mnist_fc_256x{n}": f"benchmarks/mnist_fc/onnx/mnist-net_256x{n}.onnx" for n in (2, 4, 6)},
}
NAMES = [*FILES, *MAKERS]
BATCHES = (1, 4, 16, 64, 256)
# A batch of more bytes than this, in its largest value, is not tried.
MOST_BYTES = 2**28
# So long is each thing measured, at least twice.
SECONDS = 1.5
SHORTEST = 0.01
COLUMNS = ("ms_row", "ms_ort", "ratio_ort", "pieces", "ms_piece", "peak_mib", "longest")


def measure(model: Path, memory: float, seconds: float) -> dict[str, float]:
    """All about one network, in this process."""
    import torch

    import shakeproof as sp
    from shakeproof.budget import keep_freed_memory

    keep_freed_memory()
    network = sp.load(model)
    with torch.inference_mode():
        swept = sweeping(network, memory, seconds) if network.graph.is_piecewise_linear else {}
        return swept | forward(network, model)


def forward(network, model: Path) -> dict[str, float]:
    """Milliseconds of a row, ours and onnxruntime's, in turn."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given, *_), widest = session.get_inputs(), max(node.shape.numel() for node in network.graph.nodes)
    batches = [n for n in BATCHES if n == 1 or 8 * n * widest <= MOST_BYTES]
    rows = torch.rand(batches[-1], *network.graph.input_shape, dtype=torch.float64)
    shape = [size if isinstance(size, int) else 1 for size in given.shape]
    runs: list[tuple[str, int, Callable[[], object]]] = []
    for batch in batches:
        runs.append(("ms_row", batch, lambda batch=batch: network.graph.run(rows[:batch])))
        if batch == 1 or not isinstance(given.shape[0], int):
            x = torch.rand(batch if len(shape) > 1 else shape[0], *shape[1:]).numpy()
            runs.append(("ms_ort", batch, lambda x=x: session.run(None, {given.name: x})))
    best = {"ms_row": float("inf"), "ms_ort": float("inf")}
    started = time.perf_counter()
    for turn in range(50):
        for name, batch, run in runs:
            best[name] = min(best[name], milliseconds(run) / batch)
        if turn and time.perf_counter() - started > SECONDS * len(batches):
            break
    return best | {"ratio_ort": best["ms_row"] / best["ms_ort"]}


def milliseconds(run: Callable[[], object]) -> float:
    """Of the processor's time; what is short is done several times."""
    began, count = time.process_time(), 0
    while not count or time.process_time() - began < SHORTEST:
        run()
        count += 1
    return 1000 * (time.process_time() - began) / count


def sweeping(network, memory: float, seconds: float) -> dict[str, float]:
    """What pieces cost along a box blur, from the left, and the peak of memory beyond what there was before."""
    import torch
    from speed import lines_of

    from shakeproof.budget import GIB, Budget
    from shakeproof.exact import sweep
    from shakeproof.exact.sweep import longest_window
    from shakeproof.question import Image
    from shakeproof.rounding import RunningError

    generator = torch.Generator().manual_seed(0)
    picture = torch.rand(network.picture().image_shape, generator=generator, dtype=torch.float64)
    lines = lines_of(network, [Image("random", picture)], "box-blur:size=5")
    running_error, budget = RunningError(network.graph), Budget(memory=memory * GIB)
    assert running_error.coefficients
    began, pieces = time.process_time(), 0
    for piece in sweep(network.graph, lines, budget, running_error=running_error):
        pieces += len(piece.z) - 1
        if time.process_time() - began > seconds:
            break
    spent = time.process_time() - began
    longest = longest_window(network.graph, budget)
    return {"pieces": pieces, "ms_piece": 1000 * spent / pieces, "peak_mib": peak_mib(), "longest": longest}


def asked(source: Path, threads: int, *words: str) -> dict[str, float]:
    """What a fresh process says that runs this file, or the command, on a source tree."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise click.ClickException(f"{' '.join(words)}: {done.stderr.strip()[-400:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def tried(source: Path, threads: int, *words: str) -> dict[str, float]:
    """The same; nothing where that fails: another version may not load every network, or have memory enough."""
    try:
        return asked(source, threads, *words)
    except click.ClickException as error:
        print(error.message.splitlines()[-1], file=sys.stderr)
        return {}


def in_a_minute(source: Path, data: Path, memory: float) -> dict[str, float]:
    """What the command certifies in a minute: EfficientNet-Lite0, a box blur of size 5, the first picture."""
    picture = str(sorted((data / "data/imagenet").glob("*.jpg"))[0])
    words = ["-p", "box-blur:size=5", "--resize", "256", "--crop", "224", "--timeout", "60", "--threads", "1"]
    command = ["-m", "shakeproof", "profile", str(data / EFFICIENTNET), picture, *words, "--memory", str(memory)]
    answer = tried(source, 1, *command, "--json")
    return {"certified_per_minute": answer["certified_strength"], "pieces": answer["pieces"]} if answer else {}


def print_rows(console: Console, rows: list[dict[str, float | str]]) -> None:
    table = Table(title=f"a row on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for heading in (
        "network",
        "source",
        "ms row",
        "ms ort",
        "ratio ort",
        "pieces",
        "ms piece",
        "MiB",
        "longest window",
    ):
        table.add_column(heading, justify="left" if heading in ("network", "source") else "right")
    for row in rows:
        numbers = (f"{row[name]:.4g}" if name in row else "-" for name in COLUMNS)
        table.add_row(str(row["network"]), str(row["source"]), *numbers)
    console.print(table)


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, help="Benchmarks, networks, data.")
@click.option("--only", default=",".join(NAMES), help="Networks, comma-separated.")
@click.option("--against", type=click.Path(exists=True, path_type=Path), help="Another `src`, measured in turn.")
@click.option("--threads", default=1, show_default=True)
@click.option("--memory", default=2.0, show_default=True, help="Working memory of the sweep in GiB.")
@click.option("--seconds", default=5.0, show_default=True, help="How long to sweep.")
@click.option("--rounds", default=1, show_default=True, help="How often each is measured; the best counts.")
@click.option("--minute", is_flag=True, help="Also ask what is certified in a minute.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option("--model", type=click.Path(path_type=Path), hidden=True)
def main(
    data: Path, only: str, against: Path | None, threads: int, memory: float, seconds: float, rounds: int, minute: bool,
    file: Path | None, model: Path | None,
) -> None:  # fmt: skip
    """Measure rows, each network in processes of its own."""
    if model is not None:
        print(json.dumps(measure(model, memory, seconds)))
        return
    unknown = [name for name in only.split(",") if name not in NAMES]
    if unknown:
        raise click.BadParameter(f"unknown networks {', '.join(unknown)}; choose from {', '.join(NAMES)}")
    sources = {"this": Path(__file__).resolve().parents[1] / "src", **({"against": against} if against else {})}
    console, found = Console(width=130), []
    with tempfile.TemporaryDirectory() as folder:
        for name in only.split(","):
            path = data / FILES[name] if name in FILES else write(name, Path(folder))
            words = [__file__, "--model", str(path), "--memory", str(memory), "--seconds", str(seconds)]
            runs = [(label, tried(source, threads, *words)) for _ in range(rounds) for label, source in sources.items()]
            for label in sources:
                best = min(
                    (run for own, run in runs if own == label and run), key=lambda run: run["ratio_ort"], default={}
                )
                found.append({"network": name, "source": label} | best)
            console.print(f"[dim]{name} done[/]")
    print_rows(console, found)
    if minute:
        for label, source in sources.items():
            found.append({"network": "efficientnet_lite0", "source": label} | in_a_minute(source, data, memory))
            console.print(found[-1])
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
