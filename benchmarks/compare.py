"""A traffic-sign network and its int8 twin: at which strengths of a motion blur they disagree, and is it true?

    python benchmarks/compare.py run [--data DIR] [--count 20] [--size 5] [--keep FOLDER]
    python benchmarks/compare.py replay FLOAT.onnx INT8.onnx PICTURES.npz ANSWERS.jsonl

`run` quantises the network (quantised.py), has the command compare both on 8-bit pictures, and starts `replay` in a
process of its own. That knows nothing of shakeproof: for every stretch of disagreement it blurs the picture at the
strength that the answer names, in fractions, rounds it to bytes, and runs both models in onnxruntime.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

DATA = Path(__file__).resolve().parents[2] / "shared"
# Of a stretch that is one point, the strength is a fraction with a smaller denominator than this.
DENOMINATOR = 10**6


@click.group()
def main() -> None:
    """Compare, or replay what was found."""


@main.command()
@click.option("--data", default=DATA, type=Path, show_default=True)
@click.option("--count", default=20, show_default=True, help="How many pictures, from the first.")
@click.option("--size", default=5, show_default=True, help="Of the motion blur.")
@click.option("--keep", type=Path, help="Keep the int8 network, the answers and plots of them in this folder.")
def run(data: Path, count: int, size: int, keep: Path | None) -> None:
    """Quantise, compare, replay, and print what was found of each picture."""
    from quantised import as_inputs, quantise

    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, pictures = data / "networks/gtsrb_cnn.onnx", data / "data/gtsrb_test_first1000.npz"
        int8, answers = folder / "gtsrb_cnn_int8.onnx", folder / "answers.jsonl"
        quantise(model, as_inputs(np.load(pictures)["x"][500:700]), int8)
        words = ["compare", model, int8, f"{pictures}@0:{count}", "-p", f"motion-blur:size={size},angle=90"]
        words += ["--pixels", "8bit", "--json", *(["--plot", folder / "plot.png"] if keep else [])]
        with answers.open("wb") as file:
            subprocess.run([sys.executable, "-m", "shakeproof", *words], stdout=file, check=False)
        again = [sys.executable, __file__, "replay", model, int8, pictures, answers]
        replayed = subprocess.run(again, capture_output=True, text=True, check=True).stdout.split()
        show([json.loads(line) for line in answers.read_text().splitlines()], [*map(int, replayed)])


def show(answers: list[dict], replayed: list[int]) -> None:
    """A row for each picture, and the sum of all."""
    table = Table(
        "picture", "float, int8", "status", "stretches", "shown again", "% of strengths", "first", "pictures", "s"
    )
    for own, again in zip(answers, replayed, strict=True):
        found = own["disagreements"]
        share = 100 * sum(part["to"] - part["from"] for part in found) / own["strength"]
        first = f"{found[0]['from']:.6f}" if found else "-"
        cells = (own["status"], len(found), again, f"{share:.3g}", first, own["pieces"][0], f"{own['seconds']:.1f}")
        table.add_row(own["image"].partition("@")[2], "{}, {}".format(*own["predicted"]), *map(str, cells))
    console = Console(width=120)
    console.print(table)
    stretches, seconds = sum(len(own["disagreements"]) for own in answers), sum(own["seconds"] for own in answers)
    apart = sum(own["status"] == "disagree" for own in answers)
    console.print(
        f"{len(answers)} pictures, {apart} with a disagreement; {stretches} stretches, {sum(replayed)} shown again in a"
        f" fresh process; {sum(sum(own['pieces']) for own in answers)} runs in {seconds:.0f} s"
    )


@main.command()
@click.argument("models", nargs=2, type=Path)
@click.argument("pictures", type=Path)
@click.argument("answers", type=Path)
def replay(models: tuple[Path, Path], pictures: Path, answers: Path) -> None:
    """Print for each answer how many of its disagreements show again."""
    import onnxruntime

    sessions = [onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]) for model in models]
    x = np.load(pictures)["x"]
    for own in map(json.loads, answers.read_text().splitlines()):
        number, size = int(own["image"].rpartition("@")[2]), int(re.search(r"size=(\d+)", own["perturbation"])[1])
        shown = 0
        for part in own["disagreements"]:
            z = Fraction(part["strength"])
            z = z.limit_denominator(DENOMINATOR) if part["from"] == part["to"] else z
            given = (blurred(x[number], size, z).transpose(2, 0, 1)[None] / 255).astype(np.float32)
            classes = [int(one.run(None, {one.get_inputs()[0].name: given})[0].argmax()) for one in sessions]
            shown += classes == part["classes"] and part["replayed"]
        print(shown)


def blurred(picture: NDArray[np.uint8], size: int, z: Fraction) -> NDArray[np.uint8]:
    """Bytes (height, width, channels) mixed with the mean of `size` neighbours in their row, and rounded to bytes."""
    levels, half = picture.astype(int), size // 2
    padded = np.pad(levels, ((0, 0), (half, half), (0, 0)), mode="reflect")
    sums = sum(padded[:, shift : shift + levels.shape[1]] for shift in range(size))
    # the mean is a fraction of `size`, and z one of its denominator: all are whole numbers of 1 / unit
    unit = size * z.denominator
    exact = levels.astype(object) * (size * (z.denominator - z.numerator)) + sums.astype(object) * z.numerator
    whole, rest = exact // unit, exact % unit
    up = (2 * rest > unit) | ((2 * rest == unit) & (whole % 2 == 1))
    return (whole + up).astype(np.uint8)


if __name__ == "__main__":
    main()
