"""What a user waits for whose question is small: the command's start, and a single query. See docs/speed.md.

    python benchmarks/latency.py [--data DIR] [--before SRC] [--rounds N] [--json FILE]

The command is timed against a bare `import torch`; both are processes of their own, in turn. A query is a whole
profile, or is verified at strength 1, one at a time on one thread, in seconds of the processor. With `--before`, the
`src` of another version (`git worktree add DIR COMMIT`) answers the same queries in turn, and the ratios of the two are
printed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).resolve().parents[1]
DATA = HERE.parent / "shared"
MNIST = "benchmarks/mnist_fc/onnx/mnist-net_256x6.onnx"
RESNET = "benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx"
# Of each benchmark: a network, its queries' files, how many of them, and the perturbations.
BENCHMARKS = {
    "mnist_fc": (MNIST, "benchmarks/mnist_fc/vnnlib/*_0.03.vnnlib*", 6),
    "oval21": ("benchmarks/oval21/onnx/cifar_deep_kw.onnx", "benchmarks/oval21/vnnlib/cifar_deep_kw*", 3),
    "sri_resnet_b": (RESNET, "benchmarks/sri_resnet_b/vnnlib/*_eps_0.00350.vnnlib.gz", 2),
}
PERTURBATIONS = ("motion-blur:size=5,angle=45", "box-blur:size=9", "sharpen:size=3")
KINDS = ("profile", "verify")

# Answers one query after another, as it is told, with what that took and what it found.
WORKER = """
import json, sys, time
import torch
import shakeproof as sp
try:
    from shakeproof.budget import keep_freed_memory
except ImportError:  # an older version
    from shakeproof.memory import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory()
model, images, perturbations = json.loads(sys.stdin.readline())
network = None
queries = []
for image in images:
    raw = sp.read_image(image)
    if network is None:
        network = sp.load(model, picture=raw.own_shape() or (1, 28, 28))
    picture = raw.fitted(network.picture())
    queries += [sp.perturbed(network, [picture], text)[0] for text in perturbations]
settings = {"profile": sp.Settings(), "verify": sp.Settings(stop_early=True)}
for query in queries:  # what is worked out once for a network is no part of a query
    for asked in settings.values():
        sp.analyse(network, [query], asked)
print(len(queries), flush=True)
for line in sys.stdin:
    kind, number = line.split()
    started = time.process_time()
    (result,) = sp.analyse(network, [queries[int(number)]], settings[kind])
    taken = time.process_time() - started
    print(json.dumps([taken, result.pieces, result.status.value, result.critical_strength]), flush=True)
"""


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def seconds_of(words: Sequence[str], source: Path) -> float:
    """A process from its start to its end."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment(source), capture_output=True, text=True)
    if done.returncode > 1:
        raise click.ClickException(done.stderr)
    return time.perf_counter() - started


def start_ratios(data: Path, sources: Sequence[Path], rounds: int) -> list[float]:
    """A small query's whole command as a multiple of `import torch`, by each version."""
    query = (str(data / MNIST), f"{data}/data/mnist_test.npz@0", "-p", PERTURBATIONS[0], "--threads", "1")
    found: list[list[float]] = [[] for _ in sources]
    for number in range(rounds + 1):
        bare = seconds_of(("-c", "import torch"), sources[0])
        for own, source in zip(found, sources, strict=True):
            ratio = seconds_of(("-m", "shakeproof", "profile", *query), source) / bare
            if number:  # the first round fills the caches of files
                own.append(ratio)
    return [statistics.median(own) for own in found]


@contextmanager
def worker(source: Path, asked: tuple[str, list[str], Sequence[str]]) -> Iterator[subprocess.Popen[str]]:
    """A version that has loaded its network, and waits for numbers of queries."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        env=environment(source),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        print(json.dumps(asked), file=process.stdin, flush=True)
        yield process
    finally:
        process.stdin.close()
        process.wait()


def answer(process: subprocess.Popen[str], question: str | None = None) -> list[object]:
    assert process.stdin is not None
    assert process.stdout is not None
    if question is not None:
        print(question, file=process.stdin, flush=True)
    said: list[object] = json.loads(process.stdout.readline() or "null")
    return said


def queries(name: str, data: Path, sources: Sequence[Path], rounds: int) -> Iterator[dict[str, object]]:
    """Each query of a benchmark: the best seconds of each version, in turn, and what the first of them found."""
    model, pattern, count = BENCHMARKS[name]
    images = [str(path) for path in sorted(data.glob(pattern))[:count]]
    with ExitStack() as stack:
        asked = (str(data / model), images, PERTURBATIONS)
        versions = [stack.enter_context(worker(source, asked)) for source in sources]
        counts = [int(str(answer(process))) for process in versions]
        for number, kind in [(number, kind) for kind in KINDS for number in range(counts[0])]:
            runs = [[answer(process, f"{kind} {number}") for process in versions] for _ in range(rounds)]
            seconds = [min(float(str(run[i][0])) for run in runs) for i in range(len(versions))]
            for other in runs[0][1:]:
                if other[2] != runs[0][0][2]:
                    raise click.ClickException(f"{name}: the versions' answers differ: {runs[0]}")
            _, pieces, status, critical = runs[0][0]
            yield {
                "benchmark": name,
                "kind": kind,
                "image": Path(images[number // len(PERTURBATIONS)]).name,
                "perturbation": PERTURBATIONS[number % len(PERTURBATIONS)],
                "pieces": pieces,
                "status": status,
                "critical_strength": critical,
                "before": None if len(sources) == 1 else runs[0][1][3],
                "seconds": seconds,
            }


def told(seconds: Sequence[Any]) -> str:
    """The median of some queries' seconds, each those of one version or of two, and the ratios of the two."""
    mine, *others = zip(*seconds, strict=True)
    line = f"{1000 * statistics.median(mine):.1f} ms (median of {len(mine)})"
    for other in others:
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        line += f", {statistics.median(ratios):.2f} of before ({min(ratios):.2f} to {max(ratios):.2f})"
        line += f", {sum(mine) / sum(other):.2f} all together"
    return f"{line}; load {os.getloadavg()[0]:.1f}"


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, help="Benchmarks and data.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="The src folder of another version.")
@click.option("--only", default=",".join(["start", *BENCHMARKS]), help="What to measure, comma-separated.")
@click.option("--rounds", default=7, show_default=True, help="How often each is measured.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write what was measured here.")
def main(data: Path, before: Path | None, only: str, rounds: int, file: Path | None) -> None:
    """Measure the command's start and single queries."""
    sources = [HERE / "src", *([] if before is None else [before.resolve()])]
    found: list[dict[str, object]] = []
    if "start" in only.split(","):
        ratios = start_ratios(data, sources, rounds)
        found.append({"benchmark": "start", "times_import_torch": ratios})
        said = "" if before is None else f" (before: {ratios[1]:.2f})"
        click.echo(f"the command, a small query: {ratios[0]:.2f} times `import torch`{said}")
    for name in [name for name in BENCHMARKS if name in only.split(",")]:
        found += (rows := list(queries(name, data, sources, rounds)))
        for kind in KINDS:
            click.echo(f"{name}, {kind}: {told([row['seconds'] for row in rows if row['kind'] == kind])}")
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
