"""The bundled networks that look at roads: what is required of each, the answer, and its time beside a forward pass.

    python benchmarks/road.py [--pictures DIR] [--passes 200]

A U-Net, a detector head, a steering regressor and a binary classifier are asked about one picture each. Seconds are of
one thread, in one run: of a forward pass in onnxruntime (the median of some), of the exact answer at all strengths, and
of its certificate, where there is one. `--pictures` writes the plots that docs/road.md shows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from math import prod
from pathlib import Path

import onnx
import torch

import shakeproof as sp
from shakeproof import demo
from shakeproof.certificate import NoCertificateError, certificate

# A network, a picture, a perturbation, and what is required; and the plot that shows it.
ASKED = {
    "segmentation": ("segmenter", "crossing", "motion-blur:size=9,angle=90", "pixels:share=0.97"),
    "detection": ("detector", "crossing", "motion-blur:size=9,angle=90", "detection:box=44,score=0.5,drift=4"),
    "steering": ("steering", "road", "motion-blur:size=11,angle=90", "drift:index=angle,by=2"),
    "pedestrian": ("pedestrian", "pedestrian", "box-blur:size=9", "score:class=0,above=0.5"),
}


def main(pictures: Path | None, passes: int) -> None:
    """Print a line for each network."""
    torch.set_num_threads(1)
    for name, (model, image, perturbation, required) in ASKED.items():
        network = sp.load(demo.ROAD / f"{model}.onnx", output_name="*")
        picture = replace(next(sp.read_images(network, str(demo.ROAD / f"{image}.png"))), name=f"{image}.png")
        once = forward_seconds(network, picture, passes)
        sp.profile(network, picture, perturbation, require=required)  # what is worked out once for a network
        began = time.perf_counter()
        result = sp.profile(network, picture, perturbation, require=required)
        answer = time.perf_counter() - began
        print(f"{model}: {weights(Path(network.name)):,} weights, {result.summary}")
        print(f"  forward pass {1e3 * once:.3f} ms, answer {1e3 * answer:.0f} ms = {answer / once:.0f} passes", end="")
        print(f", {result.pieces} pieces, {certified(network, result)}", flush=True)
        if pictures is not None:
            whole = sp.profile(network, picture, perturbation, require=required, whole_curve=True)
            whole.plot().savefig(pictures / f"{name}.png", dpi=100)


def weights(file: Path) -> int:
    """How many numbers a model's file has."""
    return sum(prod(tensor.dims) for tensor in onnx.load(file).graph.initializer)


def forward_seconds(network: sp.Network, picture: sp.Image, passes: int) -> float:
    """The median time of a forward pass in onnxruntime."""
    x = network.picture().to_input(picture.pixels)[None].float().numpy()
    network.reference(x)
    times = []
    for _ in range(passes):
        began = time.perf_counter()
        network.reference(x)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def certified(network: sp.Network, result: sp.Result) -> str:
    """How long its certificate takes, and how large it is; or that there is none."""
    began = time.perf_counter()
    try:
        made = certificate(network, result)
    except NoCertificateError as error:
        return f"no certificate ({error})"
    return f"certificate {time.perf_counter() - began:.1f} s, {len(made):,} bytes"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="a folder for the plots")
    parser.add_argument("--passes", type=int, default=200)
    main(**vars(parser.parse_args()))
