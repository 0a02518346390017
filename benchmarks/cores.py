"""What a second core gives: the same profiles on one core and on two, in turn, in one run.

    python benchmarks/cores.py [--data DIR] [--only NAME,...] [--images 10] [--strength 1]

Each network's whole profiles, by the public interface: one picture alone, several together, and several under six
perturbations, as a command is given them. `first` is the first one of them on two cores, which begins the process that
works beside this one, if it is worth that; `speed-up` is seconds on one core over seconds on two, the best of some
tries each, and `ms` what a profile takes on one. See docs/speed.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from speed import NETWORKS

import shakeproof as sp
from shakeproof.budget import keep_freed_memory
from shakeproof.cli import PATIENCE
from shakeproof.question import Image, read_image

PERTURBATIONS = (
    "box-blur:size=9",
    "motion-blur:size=5,angle=45",
    "sharpen:size=3",
    "motion-blur:size=7,angle=0",
    "box-blur:size=3",
    "motion-blur:size=9,angle=90",
)
LONG, SHORT, TRIES = 5.0, 1.5, 4


def seconds(
    network: sp.Network, pictures: list[Image], perturbations: Sequence[str], strength: float, cores: int
) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    started = time.perf_counter()
    sp.profile(network, pictures, perturbations, max_strength=strength)
    spent = time.perf_counter() - started
    torch.set_num_threads(before)
    return spent


@click.command()
@click.option("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
@click.option("--only", default=",".join(NETWORKS), help="Networks, with commas between them.")
@click.option("--images", default=10, help="How many pictures are given together.")
@click.option("--strength", default=1.0, show_default=True, help="Up to which profiles go.")
def main(data: Path, only: str, images: int, strength: float) -> None:
    keep_freed_memory()
    headings = ("network", "pictures", "blurs", "pieces", "one core, s", "two cores, s", "first, s", "ms", "speed-up")
    table = Table(*headings, title=f"load {os.getloadavg()[0]:.1f}")
    for name in only.split(","):
        model, found = NETWORKS[name]
        pictures = [read_image(f"{data}/{image}") for image in found(data)[:images]]
        asked = {(1, 1): pictures[:1], (len(pictures), 1): pictures, (len(pictures), len(PERTURBATIONS)): pictures}
        for (count, blurs), some in asked.items():
            network, words = sp.load(data / model), PERTURBATIONS[:blurs]  # nobody works beside this process yet
            torch.set_num_threads(1)
            pieces = sum(result.pieces for result in sp.profile(network, some, words, max_strength=strength))
            first, best = seconds(network, some, words, strength, 2), [float("inf")] * 2
            started, tried = time.perf_counter(), 0
            while time.perf_counter() - started < (LONG if tried < TRIES else SHORT):
                timed = [seconds(network, some, words, strength, cores) for cores in (1, 2)]
                best = [*map(min, best, timed)]
                tried += 1
            one, two = best
            shown = (f"{number:.3f}" for number in (one, two, first))
            each = f"{1000 * one / (count * blurs):.1f}"
            table.add_row(name, str(count), str(blurs), str(pieces), *shown, each, f"{one / two:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    # threads wait as the command's do, and torch is told when it is loaded
    if not PATIENCE.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | PATIENCE)
    main()
