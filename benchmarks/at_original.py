"""Photographs that are blurred before they are resized: beside Pillow, byte for byte, and beside the runtime.

    python benchmarks/at_original.py [--data DIR] [--strengths N] [--blur TEXT]

DIR has networks/efficientnet_lite0_in01.onnx and data/imagenet/*.jpg. For each photograph, at so many strengths: the
photograph is blurred with fractions and rounded by loops of numpy's, resized, cropped and run by hand. `bytes` is how
many of these pictures are not the ones that the question has (none may); `real` how far, in grey levels, the picture of
the question about real numbers is from the bytes that Pillow gives.
"""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image

import shakeproof as sp
from shakeproof.enumeration import PixelChanges
from shakeproof.question import perturbed

DATA = Path(__file__).resolve().parents[2] / "shared"
SIDE, RESIZE = 224, 256


def blurred(photograph: NDArray[np.uint8], kernel: list[list[Fraction]]) -> NDArray[np.uint8]:
    """The photograph (channels, height, width) under a kernel, rounded half to even, in whole numbers."""
    unit = int(np.lcm.reduce([entry.denominator for row in kernel for entry in row]))
    reach = len(kernel) // 2
    padded = np.pad(photograph.astype(object), ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    height, width = photograph.shape[1:]
    total: Any = 0
    for i, row in enumerate(kernel):
        for j, entry in enumerate(row):
            if entry:
                total = total + int(entry * unit) * padded[:, i : i + height, j : j + width]
    below, rest = total // unit, 2 * (total % unit)
    up = (rest > unit) | ((rest == unit) & (below % 2 == 1))
    return np.clip(below + up, 0, 255).astype(np.uint8)


def resized(photograph: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """By Pillow, as a whole picture: the shorter side, and the middle."""
    picture = Image.fromarray(photograph.transpose(1, 2, 0))
    short = min(picture.size)
    picture = picture.resize(tuple(int(RESIZE * side / short) for side in picture.size), Image.Resampling.BILINEAR)
    left, top = (round((side - SIDE) / 2) for side in picture.size)
    return np.asarray(picture.crop((left, top, left + SIDE, top + SIDE))).transpose(2, 0, 1)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--strengths", default=20, show_default=True)
@click.option("--blur", default="motion-blur:size=15,angle=90", show_default=True)
def main(data: Path, strengths: int, blur: str) -> None:
    """Print how far the photographs of questions are from those made by hand."""
    steps = sp.Preprocessing(resize=RESIZE, crop=(SIDE, SIDE))
    network = sp.load(data / "networks/efficientnet_lite0_in01.onnx", preprocess=steps)
    plain = sp.parse(blur)
    for file in sorted((data / "data/imagenet").glob("*.jpg")):
        (query,) = perturbed(network, [str(file)], f"{blur},at=original")
        photograph = query.photograph
        assert photograph is not None
        levels = photograph.bytes()
        changes = PixelChanges.along(plain.exactly(levels.astype(object), 255), 1.0)
        began, wrong, farthest = time.process_time(), 0, 0.0
        for z in map(Fraction, np.random.default_rng(0).uniform(0, 1, strengths).tolist()):
            by_hand = blurred(levels, [list(row) for row in plain.kernel.at(z)])
            pictured = changes.levels(changes.until(z, behind=False)).reshape(levels.shape)
            wrong += not np.array_equal(photograph.developed(pictured[None])[0], resized(by_hand))
            picture = query.picture(float(z))
            assert picture is not None
            farthest = max(farthest, float(np.abs(picture.numpy() * 255 - resized(by_hand)).max()))
        seconds = time.process_time() - began
        sides = " x ".join(map(str, levels.shape[1:]))
        print(
            f"{file.name}: {sides}, {int(changes.count.sum()):,} changes of pixels on [0, 1]; of {strengths} pictures"
            f" {wrong} have other bytes; real {farthest:.2f} levels away at most; {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
