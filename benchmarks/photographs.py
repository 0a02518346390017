"""Photographs of 224 x 224 pixels, every 8-bit picture of their blur, on one core and on two.

    python benchmarks/photographs.py FOLDER [--data DIR] [--only NAME,...] [--photographs 0,1] [--blurs 0,1]
        [--cores 1,2] [--strength 1] [--runtime 300]

EfficientNet-Lite0, its int8 twin (QDQ), and a vision transformer with random weights (ViT-Tiny: patches of 16, 12
blocks) stand for what is deployed. Photographs are resized and cropped to bytes before. `s` is the clock's seconds,
`cpu` the processor's; `ratio` is the processor time of a picture over that of the runtime alone, on so many ready made
pictures of the path on as many threads, before and after the profile; `faster` is the seconds on the first number of
cores over these. Answers on several numbers of cores must be the same to the last bit. They are written to FOLDER for
benchmarks/replayed.py.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import PIL.Image
import torch
from quantised import as_inputs, quantise
from rich.console import Console
from rich.table import Table
from speed import DATA
from torch import nn

import shakeproof as sp
from shakeproof.budget import keep_freed_memory
from shakeproof.proof.enumeration_method import Runner

EFFICIENTNET = "networks/efficientnet_lite0_in01.onnx"
BLURS = ("box-blur:size=5", "motion-blur:size=7,angle=45")
SIDE, RESIZE, CLASSES = 224, 256, 1000


class VisionTransformer(nn.Module):
    """ViT-Tiny, with random weights."""

    def __init__(self, width: int = 192, patch: int = 16, blocks: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(seen).mean(1))


def vision_transformer(data: Path, folder: Path) -> Path:
    torch.manual_seed(0)
    file = folder / "vit_tiny.onnx"
    torch.onnx.export(VisionTransformer().eval(), (torch.rand(1, 3, SIDE, SIDE),), file, dynamo=True, verbose=False)
    return file


def int8(data: Path, folder: Path) -> Path:
    file = folder / "efficientnet_lite0_int8.onnx"
    quantise(data / EFFICIENTNET, as_inputs(photographs(data)), file)
    return file


NETWORKS: dict[str, Callable[[Path, Path], Path]] = {
    "efficientnet": lambda data, folder: data / EFFICIENTNET,
    "int8": int8,
    "vit": vision_transformer,
}


def photographs(data: Path) -> np.ndarray:
    """Bytes (n, height, width, channels)."""
    found = []
    for path in sorted((data / "data/imagenet").glob("*.jpg")):
        image = PIL.Image.open(path).convert("RGB")
        scale = RESIZE / min(image.size)
        image = image.resize([round(side * scale) for side in image.size], PIL.Image.Resampling.BILINEAR)
        left, top = ((side - SIDE) // 2 for side in image.size)
        found.append(np.asarray(image.crop((left, top, left + SIDE, top + SIDE))))
    return np.stack(found)


def alone(runner: Runner, count: int, cores: int) -> float:
    """Processor seconds of the runtime itself for a picture, of so many that are ready made."""
    session, batch = runner.runtime.session, runner.batch
    name, ready = session.get_inputs()[0].name, []
    for levels in runner.pictures.batches(batch):
        ready.append(runner.network.prepared(runner.given(levels)))
        if len(ready) * batch >= count:
            break
    ready = [own.reshape(len(own), *own.shape[2:]) if batch > 1 else own[0] for own in ready]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(lambda given: session.run(None, {name: given}), ready[:8]))
        began = time.process_time()
        list(pool.map(lambda given: session.run(None, {name: given}), ready))
        return (time.process_time() - began) / (len(ready) * batch)


@dataclass
class Run:
    """One profile, with what it took."""

    result: sp.Result
    seconds: float
    processor: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.processor / self.result.pieces / self.theirs


def profiled(network: sp.Deployed, picture: str, blur: str, strength: float, cores: int, count: int) -> Run:
    torch.set_num_threads(cores)
    (query,) = sp.perturbed(network, [picture], blur, strength=strength)
    settings = sp.Settings(pixels="8bit")
    runner = Runner.of(network, sp.proof.enumeration_method.pictures_of(query, settings), query.photograph)
    before = alone(runner, count, cores)
    clock, processor = time.perf_counter(), time.process_time()
    (result,) = sp.analyse(network, [query], settings)
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    return Run(result, clock, processor, (before + alone(runner, count, cores)) / 2)


def same(one: sp.Result, other: sp.Result) -> bool:
    return bool(one.proof.margins.tobytes() == other.proof.margins.tobytes())


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, show_default=True)
@click.option("--only", default="efficientnet", show_default=True, help=f"Of {', '.join(NETWORKS)}.")
@click.option("--photographs", "numbers", default="0", show_default=True)
@click.option("--blurs", default="0", show_default=True, help=f"Of {', '.join(BLURS)}.")
@click.option("--cores", default="1,2", show_default=True)
@click.option("--strength", default=1.0, show_default=True)
@click.option("--runtime", default=300, show_default=True, help="Pictures that the runtime alone is timed on.")
def main(
    folder: Path, data: Path, only: str, numbers: str, blurs: str, cores: str, strength: float, runtime: int
) -> None:
    """Profile, compare, and print the table."""
    keep_freed_memory()
    folder.mkdir(parents=True, exist_ok=True)
    archive, good = folder / "photographs.npz", True
    np.savez(archive, x=photographs(data))
    headings = ("network", "photograph", "blur", "cores", "status", "certified", "critical", "pictures", "s", "cpu")
    table = Table(*headings, "ratio", "faster", "load")
    for name in only.split(","):
        model = NETWORKS[name](data, folder)
        network = sp.load_deployed(model)
        for picture in (f"{archive}@{number}" for number in numbers.split(",")):
            for blur in (BLURS[int(number)] for number in blurs.split(",")):
                first: Run | None = None
                for count in map(int, cores.split(",")):
                    run = profiled(network, picture, blur, strength, count, runtime)
                    first = first or run
                    good &= same(first.result, run.result)
                    row: list[Any] = [name, picture[-1], blur, count, run.result.status]
                    row += [f"{run.result.certified_strength:.6f}", run.result.critical_strength, run.result.pieces]
                    row += [f"{run.seconds:.1f}", f"{run.processor:.1f}", f"{run.ratio:.3f}"]
                    row += [f"{first.seconds / run.seconds:.2f}", f"{os.getloadavg()[0]:.1f}"]
                    table.add_row(*map(str, row))
                    print(*row, flush=True)
                assert first is not None
                line = json.dumps(first.result.record.to_json() | {"model": str(model), "image": picture})
                with (folder / "answers.jsonl").open("a") as file:
                    file.write(line + "\n")
    Console(width=170).print(table)
    print("the same on any number of cores" if good else "NOT the same on any number of cores")
    sys.exit(not good)


if __name__ == "__main__":
    main()
