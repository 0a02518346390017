"""What a second core gives: the same profiles on one core and on two, in turn, in one run.

    python benchmarks/cores.py [--data DIR] [--only NAME,...] [--images 8]

Each network's whole profiles, by the public interface: one picture alone, and several together, as a command is given
them. `first` is the first one of them on two cores, which begins the process that works beside this one, if it is worth
that; `speed-up` is seconds on one core over seconds on two, the best of some tries each. See docs/speed.md.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from speed import NETWORKS

import shakeproof as sp
from shakeproof.images import Image, read_image
from shakeproof.memory import keep_freed_memory

PERTURBATION = "box-blur:size=9"
LONG, SHORT, TRIES = 5.0, 1.5, 4


def seconds(network: sp.Network, pictures: list[Image], cores: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    started = time.perf_counter()
    sp.profile(network, pictures, PERTURBATION)
    spent = time.perf_counter() - started
    torch.set_num_threads(before)
    return spent


@click.command()
@click.option("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
@click.option("--only", default=",".join(NETWORKS), help="Networks, with commas between them.")
@click.option("--images", default=8, help="How many pictures are given together.")
def main(data: Path, only: str, images: int) -> None:
    keep_freed_memory()
    table = Table("network", "pictures", "pieces", "one core, s", "two cores, s", "first, s", "speed-up")
    for name in only.split(","):
        model, found = NETWORKS[name]
        pictures = [read_image(f"{data}/{image}") for image in found(data)[:images]]
        for some in (pictures[:1], pictures):
            network = sp.load(data / model)  # nobody works beside this process yet
            torch.set_num_threads(1)
            pieces = sum(result.pieces for result in sp.profile(network, some, PERTURBATION))
            first, best = seconds(network, some, 2), [float("inf")] * 2
            started, tried = time.perf_counter(), 0
            while time.perf_counter() - started < (LONG if tried < TRIES else SHORT):
                best = [min(own, seconds(network, some, cores)) for own, cores in zip(best, (1, 2), strict=True)]
                tried += 1
            one, two = best
            shown = (f"{number:.3f}" for number in (one, two, first))
            table.add_row(name, str(len(some)), str(pieces), *shown, f"{one / two:.2f}")
            if len(pictures) == 1:
                break
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
