"""Exported queries in other hands: do they get the verdict that shakeproof gives?

    python benchmarks/exported.py --data DIR [--queries 60] [--seconds 20]

Random images, kernels and strengths of mnist_fc and oval21. Each pair of files goes to Marabou; where that takes longer
than a few seconds, onnxruntime evaluates the exported network on a grid of 5,000 strengths. It is also the judge where
Marabou says otherwise: a counterexample on the grid refutes any `unsat`. Then shakeproof verifies the pair itself, as a
query about a box of inputs that it knows nothing of.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import numpy as np
import onnxruntime
from paper_tables import DATA, PERTURBATIONS, instances
from rich.console import Console

import shakeproof as sp

GRID = 5000
WORDS = {"safe": "unsat", "unsafe": "sat", "misclassified": "sat"}


def marabou(written: sp.Exported, seconds: int) -> str | None:
    """Marabou's verdict; None if it has none in time."""
    words = [sys.executable, "-m", "maraboupy", written.augmented, written.query, f"--timeout={seconds}"]
    try:
        done = subprocess.run(
            [*map(str, words), "--verbosity=0"], capture_output=True, text=True, timeout=seconds + 10, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return next((line for line in done.stdout.splitlines() if line in ("sat", "unsat")), None)


def on_grid(written: sp.Exported, strength: float) -> str:
    """Whether the label loses at one of many strengths, in onnxruntime."""
    session = onnxruntime.InferenceSession(str(written.augmented), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    for z in np.linspace(0, strength, GRID, dtype=np.float32):
        scores = session.run(None, {name: z.reshape(1, 1)})[0].flatten()
        if np.delete(scores, written.label).max() >= scores[written.label]:
            return "sat"
    return "unsat"


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DATA)
@click.option("--queries", default=60)
@click.option("--seconds", default=20, help="For Marabou, a query.")
@click.option("--seed", default=0)
def main(data: Path, queries: int, seconds: int, seed: int) -> None:
    """Compare verdicts on random exported queries."""
    console = Console(width=160, highlight=False)
    random = np.random.default_rng(seed)
    listed = [
        (model, file)
        for name in ("mnist_fc", "oval21")
        for model, files in instances(data / name, name).items()
        for file in files
    ]
    counts: Counter[str] = Counter()
    differing = refuted = 0
    for number in range(queries):
        model, file = listed[random.integers(len(listed))]
        kind = str(random.choice([*PERTURBATIONS.values()]))
        text, strength = kind.format(random.choice([3, 5, 7, 9])), float(random.choice([0.2, 0.4, 0.6, 0.8, 1.0]))
        ours = WORDS.get(sp.verify(sp.load(model), file, text, strength).status.value, "unknown")
        with tempfile.TemporaryDirectory() as folder:
            written = sp.export(model, file, text, strength, folder)
            theirs, judge = marabou(written, seconds), "Marabou"
            if theirs != ours:
                seen = on_grid(written, strength)
                refuted += theirs == "unsat" and seen == "sat"
                if theirs is None or (theirs, seen) == ("unsat", "sat"):
                    theirs, judge = seen, "onnxruntime"
            again = sp.verify_specification(sp.load(written.augmented), written.query, timeout=60).status.value
        same = ours == theirs == WORDS.get(again)
        differing += not same
        counts[f"{judge} {theirs}"] += 1
        console.print(
            f"{number:>3} {model.stem:<16} {text:<28} {strength:g}: {ours}, {judge} {theirs}, as a box {again}"
            + ("" if same else "   [red]differs[/]")
        )
    console.print(
        f"exported: {queries - differing} of {queries} agree; {dict(counts)};"
        f" Marabou's unsat refuted by onnxruntime: {refuted}"
    )


if __name__ == "__main__":
    main()
