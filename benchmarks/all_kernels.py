"""Every kernel of size 3 at once, `all-kernels:size=3`: at how many pictures it is certified, up to which strength.

    python benchmarks/all_kernels.py [--data DIR] [--seconds S] [--most N] [--steps K] [--only NAME] [--json FILE]

DIR has benchmarks/oval21 and benchmarks/mnist_fc, whose pictures are those of their VNN-LIB files, and the signs:
networks/gtsrb_cnn.onnx and data/gtsrb_test_first1000.npz. Beside it is the min/max baseline, `any-kernel:size=3`, which
lets every pixel have a kernel of its own. Seconds are those of the processor, and S of the clock is what one question
may take at most.
"""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import shakeproof as sp

DATA = Path(__file__).resolve().parents[2] / "shared"
STRENGTHS = (0.02, 0.05, 0.1)
BENCHMARKS = ("oval21", "mnist_fc", "gtsrb")
SIGNS = "data/gtsrb_test_first1000.npz"


def instances(data: Path, benchmark: str) -> Iterator[tuple[Path, str]]:
    """Networks and pictures, each pair once: of several radii of one picture, the first."""
    if benchmark == "gtsrb":
        yield from ((data / "networks/gtsrb_cnn.onnx", f"{data / SIGNS}@{number}") for number in range(20))
        return
    folder, seen = data / "benchmarks" / benchmark, set()
    for model, query, _ in csv.reader((folder / "instances.csv").read_text().splitlines()):
        pair = model, query.rpartition("_")[0] if benchmark == "mnist_fc" else query
        if pair not in seen:
            seen.add(pair)
            packed = folder / f"{query}.gz"
            yield folder / model, str(packed if packed.exists() else folder / query)


def asked(network: Any, picture: str, text: str, strength: float, seconds: float) -> tuple[str, bool, float]:
    """The verdict, whether a counterexample was replayed, and the processor's seconds."""
    began = time.process_time()
    result = sp.verify(network, picture, text, strength, timeout=seconds)
    counterexample = result.counterexample
    return str(result.status), counterexample is not None and counterexample.replayed, time.process_time() - began


def largest(network: Any, picture: str, steps: int, seconds: float) -> float:
    """The largest strength that is certified for every kernel, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(steps):
        middle = (low + high) / 2
        if asked(network, picture, "all-kernels:size=3", middle, seconds)[0] == "safe":
            low = middle
        else:
            high = middle
    return low


def report(name: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{name}: {len(rows)} instances")
    for text in ("all-kernels", "any-kernel"):
        for strength in STRENGTHS:
            answers = [row[f"{text} {strength}"] for row in rows]
            counts = {word: sum(answer[0] == word for answer in answers) for word in ("safe", "unsafe", "undecided")}
            replayed, seconds = sum(answer[1] for answer in answers), [answer[2] for answer in answers]
            print(
                f"  {text:12} z = {strength:<5} {counts}, {replayed} replayed;"
                f" seconds: median {statistics.median(seconds):.3f}, most {max(seconds):.2f}"
            )
    bisected = [row["largest"] for row in rows]
    least, middle, most = min(bisected), statistics.median(bisected), max(bisected)
    print(f"  largest certified z: median {middle:.4f}, from {least:.4f} to {most:.4f}")


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--seconds", default=10.0, show_default=True)
@click.option("--most", default=1000, help="Instances of each benchmark.")
@click.option("--steps", default=7, show_default=True, help="Of the bisection.")
@click.option("--only", "names", type=click.Choice(BENCHMARKS), multiple=True, help="These benchmarks [default: all].")
@click.option("--json", "output", type=click.Path(path_type=Path))
def main(data: Path, seconds: float, most: int, steps: int, names: tuple[str, ...], output: Path | None) -> None:
    """Print how many instances are certified, and how strongly."""
    found: dict[str, list[dict[str, Any]]] = {}
    for benchmark in names or BENCHMARKS:
        rows, networks = found.setdefault(benchmark, []), dict[Path, Any]()
        for model, picture in list(instances(data, benchmark))[:most]:
            if model not in networks:
                networks[model] = sp.load(model, picture=sp.read_image(picture).own_shape() or (1, 28, 28))
            network = networks[model]
            row: dict[str, Any] = {"model": model.name, "picture": Path(picture).name}
            for text in ("all-kernels", "any-kernel"):
                for strength in STRENGTHS:
                    row[f"{text} {strength}"] = asked(network, picture, f"{text}:size=3", strength, seconds)
            row["largest"] = largest(network, picture, steps, seconds)
            rows.append(row)
        report(benchmark, rows)
        if output is not None:
            output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
