"""Every family beside the runtime: does any of many strengths, drawn from [0, z], contradict the answer?

    python benchmarks/families.py [--data DIR] [--pictures N] [--strength Z] [--samples K] [--only FAMILY] [--seconds S]

DIR has networks/ and data/ with signs, digits and small photographs. Prints, for each network and family that gives a
path, the verdicts, how many strengths were run in onnxruntime, and how many of them contradict a proof (none may).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch

import shakeproof as sp
from shakeproof.question import FAMILIES, Perturbation

DATA = Path(__file__).resolve().parents[2] / "shared"
NETWORKS = {
    "networks/gtsrb_cnn.onnx": "data/gtsrb_test_first1000.npz",
    "benchmarks/oval21/onnx/cifar_deep_kw.onnx": "data/cifar10_test_first2000.npz",
    "networks/cifar10_resnet20.onnx": "data/cifar10_test_first2000.npz",
    "benchmarks/mnist_fc/onnx/mnist-net_256x4.onnx": "data/mnist_test.npz",
}
# oval21's networks take pictures that were normalised so.
NORMALISED = {"mean": (0.485, 0.456, 0.406), "std": (0.225, 0.225, 0.225)}


def texts(folder: Path, shape: tuple[int, ...]) -> list[str]:
    """The examples of the families, as far as the picture has the channels, with files that are made up here."""
    random, time = np.random.default_rng(0), np.linspace(0, 0.1, 21)
    files = {name: folder / f"{shape[1]}-{name}" for name in ("shakes.npz", "matrix.npz", "kernel.npy", "shake.csv")}
    np.savez(files["shakes.npz"], *[random.uniform(0, 1, (5, 5)) ** 4 for _ in range(4)])
    np.save(files["kernel.npy"], random.uniform(0, 1, (3, 5)))
    sp.write_linear(lambda x: 0.75 * x + 0.25 * x[:, ::-1, ::-1], shape, files["matrix.npz"])
    walk = np.cumsum(random.normal(0, 0.5, (2, 21)), axis=1)
    rows = "".join(f"{t},{x},{y}\n" for t, x, y in zip(time, *walk, strict=True))
    files["shake.csv"].write_text("time,x,y\n" + rows)
    made = []
    for name, family in FAMILIES.items():
        text = family.example
        for file, path in files.items():
            text = text.replace(f"={file}", f"={path}")
        if (shape[0] == 3 or name != "chromatic-blur") and isinstance(sp.parse(text), Perturbation):
            made.append(text)
    return made


def contradictions(network: sp.Network, result: sp.Result, samples: int) -> int:
    """How many of some strengths up to the certified one lose the label in the runtime."""
    path = result.query.path
    assert path is not None
    z = torch.from_numpy(np.random.default_rng(1).uniform(0, result.certified_strength, (samples, 1)))
    winners = np.concatenate([network.reference(path.runtime_inputs(some)).argmax(1) for some in z.split(256)])
    return int((winners != result.label).sum())


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--pictures", default=20, show_default=True)
@click.option("--strength", default=1.0, show_default=True)
@click.option("--samples", default=1000, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Time limit for each answer.")
@click.option("--only", multiple=True, help="These families [default: all].")
def main(data: Path, pictures: int, strength: float, samples: int, seconds: float, only: tuple[str, ...]) -> None:
    """Print what was answered, and what contradicts it."""
    with TemporaryDirectory() as folder:
        for model, archive in NETWORKS.items():
            images = [sp.read_image(f"{data / archive}@{number}") for number in range(pictures)]
            steps = NORMALISED if "oval21" in model else {}
            network = sp.load(data / model, picture=images[0].own_shape() or (1, 28, 28), **steps)
            for text in texts(Path(folder), network.picture().image_shape):
                if only and text.partition(":")[0] not in only:
                    continue
                results = [sp.profile(network, image, text, max_strength=strength, timeout=seconds) for image in images]
                verdicts = Counter(str(result.status) for result in results)
                proved = [result for result in results if result.certified_strength > 0]
                against = sum(contradictions(network, result, samples) for result in proved)
                seen = f"{against} of {samples * len(proved):,} samples contradict"
                print(f"{Path(model).name:22} {text.partition(':')[0]:16} {dict(verdicts)}, {seen}", flush=True)


if __name__ == "__main__":
    main()
