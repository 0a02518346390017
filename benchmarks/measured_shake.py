"""Measured camera shakes on traffic signs: at which strength each of them flips the class.

    python benchmarks/measured_shake.py [--data DIR] [--pictures N] [--scale S] [--most N]

DIR has networks/gtsrb_cnn.onnx, data/gtsrb_test_first1000.npz and the point spread functions of
data/camera_shake_levin09.npz (8) and data/camera_shake_pyblur100.npz (100), which may be larger than a sign: hence
padding=replicate. Prints, for each file, the verdicts and the median critical strength.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from pathlib import Path

import click
import numpy as np

import shakeproof as sp

DATA = Path(__file__).resolve().parents[2] / "shared"
FILES = ("data/camera_shake_levin09.npz", "data/camera_shake_pyblur100.npz")
SIGNS = "data/gtsrb_test_first1000.npz"


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--pictures", default=20, show_default=True)
@click.option("--scale", default=0.5, show_default=True, help="Of the shakes, which were measured in larger pictures.")
@click.option("--most", default=100, show_default=True, help="Shakes of each file.")
def main(data: Path, pictures: int, scale: float, most: int) -> None:
    """Print what the shakes do."""
    network = sp.load(data / "networks/gtsrb_cnn.onnx")
    images = [sp.read_image(f"{data / SIGNS}@{number}") for number in range(pictures)]
    for file in FILES:
        with np.load(data / file) as archive:
            count = min(most, len(archive.files))
        began, verdicts, critical, sizes = time.process_time(), Counter[str](), list[float](), list[int]()
        for index in range(count):
            shake = sp.psf(data / file, index, scale, padding="replicate")
            sizes.append(max(shake.kernel.shape))
            for result in sp.profile(network, images, shake, timeout=60):
                verdicts[str(result.status)] += 1
                if result.status == "unsafe" and result.critical_strength is not None:
                    critical.append(result.critical_strength[0])
        taken = time.process_time() - began
        median = f"{statistics.median(critical):.3f}" if critical else "none"
        print(f"{Path(file).name}: {count} shakes of {min(sizes)} to {max(sizes)} pixels, {pictures} signs")
        print(f"  {dict(verdicts)}")
        print(f"  median critical strength {median}, {taken / max(1, count * pictures):.2f} s a profile", flush=True)


if __name__ == "__main__":
    main()
