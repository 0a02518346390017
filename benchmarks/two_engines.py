"""Two engines, one truth: what is proved in real numbers, beside what the runtime makes of every 8-bit picture.

    python benchmarks/two_engines.py [--data DIR] [--only NAME,...]

Images whose class changes are profiled both ways under several kernels. Where the answers name different classes, the
picture must be half a grey level from the path at most, the real scores there must be on the one answer's side and the
runtime's scores of the picture on the other's, within float32 of the real ones; and no bound may prove, for all that is
half a grey level from the path, in float32, that this cannot be. The exit code is 1 if a disagreement is not explained.
`widest` is the longest stretch of strengths with two classes; `margin` the largest real margin there, and `enclosure`
the largest share that it is of what the bounds allow.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import shakeproof as sp
from shakeproof.bounds import Boxes, enclose, lowest_leads
from shakeproof.operators import Clip
from shakeproof.proof.evidence import Enumerated, Interval
from shakeproof.question import Image, Query

DATA = Path(__file__).resolve().parents[2] / "shared"
MNIST, CIFAR, GTSRB = "data/mnist_test.npz", "data/cifar10_test_first2000.npz", "data/gtsrb_test_first1000.npz"
KERNELS = ("motion-blur:size=5,angle=45", "box-blur:size=5", "sharpen:size=3,clip=0..1")
OVAL = ((0.485, 0.456, 0.406), (0.225, 0.225, 0.225))
TRAINED = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
# Real scores are float64's, which is off by less than this share of the largest.
FLOAT64 = 1e-7
# A picture is at most half a grey level from the path, and its pixels are float32 numbers.
HALF_LEVEL = 0.5 / 255 + 2.0**-24
# Of the pictures in a stretch, so many are looked at.
MOST = 50


@dataclass(frozen=True)
class Case:
    """A network, the pictures and the normalisation that it was trained with, and how far blur goes."""

    model: str
    archive: str
    strength: float = 1.0
    images: int = 4
    normalisation: tuple[Sequence[float], Sequence[float]] | None = None

    def network(self, data: Path) -> sp.Network:
        network = sp.load(data / self.model)
        return network if self.normalisation is None else network.normalised(*self.normalisation)

    def queries(self, network: sp.Network, data: Path) -> Iterator[Query]:
        """Of the first images whose class at full strength is another, for each kernel."""
        images = pictures(data / self.archive)
        for kernel in KERNELS:
            asked = (question(network, image, kernel, self.strength) for image in images)
            yield from islice((query for query in asked if changes(network, query)), self.images)


CASES = {
    **{f"mnist_fc_256x{n}": Case(f"benchmarks/mnist_fc/onnx/mnist-net_256x{n}.onnx", MNIST) for n in (2, 4, 6)},
    "Convnet_avgpool": Case("networks/Convnet_avgpool.onnx", MNIST),
    "Convnet_maxpool": Case("networks/Convnet_maxpool.onnx", MNIST),
    "mnist_sigmoid": Case("networks/mnist_sigmoid_6x200.onnx", MNIST),
    **{
        f"oval21_{kind}": Case(f"benchmarks/oval21/onnx/cifar_{kind}_kw.onnx", CIFAR, normalisation=OVAL)
        for kind in ("base", "wide", "deep")
    },
    "sri_resnet_b": Case(
        *("benchmarks/sri_resnet_b/onnx/resnet_3b2_bn_mixup_ssadv_4.0_bs128_lr-1_v2.onnx", CIFAR, 1.0, 2, TRAINED)
    ),
    "cifar10_vit": Case("networks/cifar10_vit_ibp_3_3_8.onnx", CIFAR, 0.3, 2, TRAINED),
    "gtsrb_cnn": Case("networks/gtsrb_cnn.onnx", GTSRB),
    "cifar10_resnet20": Case("networks/cifar10_resnet20.onnx", CIFAR, 0.05, 2),
    "cifar10_resnet18": Case("networks/cifar10_resnet18.onnx", CIFAR, 0.05, 1),
    "cifar10_resnet56": Case("networks/cifar10_resnet56.onnx", CIFAR, 0.02, 1),
}


def pictures(archive: Path) -> list[Image]:
    """The images of an archive of bytes, (n, height, width) or (n, height, width, channels)."""
    levels = np.load(archive)["x"]
    levels = levels[:, None] if levels.ndim == 3 else levels.transpose(0, 3, 1, 2)
    return [Image(f"{archive.name}@{index}", torch.from_numpy(x / 255)) for index, x in enumerate(levels)]


def changes(network: sp.Network, query: Query) -> bool:
    """Whether the class at full strength is another."""
    (end,), path = query.strengths, query.path.path
    inputs = torch.stack([path.image(z) for z in (0.0, end)])
    first, last = network.reference(inputs.float().numpy()).argmax(1)
    return bool(first != last)


def question(network: sp.Network, image: Image, kernel: str, strength: float) -> Query:
    """Whether the class that the network gives the image stays, and where it does not."""
    (query,) = sp.perturbed(network, [image], kernel, strength=strength)
    return query


@dataclass(frozen=True)
class Stretch:
    """Strengths at which the answer in real numbers names one class, and that about 8-bit pictures another."""

    start: float
    end: float
    real: int
    deployed: int


def both(network: sp.Network, query: Query) -> tuple[tuple[Interval, ...], Enumerated]:
    """What is claimed in real numbers, and of every 8-bit picture. Bounds say no more than where the label stays."""
    (real,) = sp.analyse(network, [query])
    (deployed,) = sp.analyse(network, [query], sp.Settings(pixels="8bit"))
    assert deployed.proof.all_run
    return real.profile or (Interval(0.0, real.certified_strength, real.label),), deployed.proof


def stretches(claims: Sequence[Interval], proof: Enumerated) -> list[Stretch]:
    """Where the two disagree."""
    found = []
    for one in claims:
        for other in proof.profile:
            start, end = max(one.start, other.start), min(one.end, other.end)
            if start < end and one.winner != other.winner:
                found.append(Stretch(start, end, one.winner, other.winner))
    return found


@dataclass(frozen=True)
class Explained:
    """How far a disagreement goes, and what is wrong with it, if anything."""

    margin: float
    enclosure: float
    problems: tuple[str, ...]


def explained(network: sp.Network, query: Query, proof: Enumerated, stretch: Stretch) -> Explained:
    """Look at every picture of a stretch, in the middle of its part of it."""
    z, levels = shown(proof, stretch)
    path = query.path.path
    real = path.clipped(path.at(torch.from_numpy(z)[:, None])).clamp(0, 1)
    pictures = torch.stack([network.picture().to_input(torch.from_numpy(p / np.float32(255))) for p in levels])
    away = float((real - pictures.double()).abs().max())
    margin = leads(network.scores(real), stretch)
    theirs, ours = network.reference(pictures.numpy()), network.scores(pictures.double())
    lowest = proved(network, query, z, stretch)
    off = FLOAT64 * float(network.scores(real).abs().max())
    wrong = {
        "a picture is more than half a grey level from the path": away > HALF_LEVEL,
        "the real scores are not on the real answer's side": (margin < -off).any(),
        "the runtime's scores are not on its answer's side": (leads(theirs, stretch) > 0).any(),
        "the runtime's scores are not the real ones in float32": (
            network.beside(ours, theirs, pictures.numpy())[0] > 1
        ).any(),
        "bounds prove that there is no disagreement": (lowest > 0).any(),
    }
    most = int(margin.argmax())
    return Explained(
        float(margin[most]),
        float((margin / (margin - lowest).clip(1e-300)).max()),
        tuple(sentence for sentence, is_so in wrong.items() if is_so),
    )


def shown(proof: Enumerated, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
    """Strengths within a stretch, and the pictures that are said to be there."""
    ends = proof.pictures.strengths(proof.pieces)
    first, last = (np.searchsorted(ends[:-1], z, side) for z, side in ((stretch.start, "right"), (stretch.end, "left")))
    numbers = np.arange(first - 1, last)
    numbers = numbers[np.unique(np.linspace(0, len(numbers) - 1, min(MOST, len(numbers))).astype(int))]
    z = (np.maximum(ends[numbers], stretch.start) + np.minimum(ends[numbers + 1], stretch.end)) / 2
    return z, np.stack([proof.pictures.picture(number) for number in numbers.tolist()])


def leads(scores: torch.Tensor | np.ndarray, stretch: Stretch) -> np.ndarray:
    """By how much the real answer's class leads that of the other."""
    rows = np.asarray(scores, np.float64)
    return rows[:, stretch.real] - rows[:, stretch.deployed]


def proved(network: sp.Network, query: Query, z: np.ndarray, stretch: Stretch) -> np.ndarray:
    """The same at least, for all inputs within half a grey level of the path at z, in any float32 evaluation."""
    graph, path = network.graph.after(Clip(0.0, 1.0)).in_float32(), query.path.path
    found = []
    for strength in z.tolist():  # one at a time: some networks are large
        here = torch.tensor([[strength]], dtype=torch.float64)
        boxes = Boxes(here, here)
        inputs = torch.stack([path.at(point) for point in boxes.points])
        enclosed = enclose(graph, inputs, boxes, (path.error + HALF_LEVEL).expand_as(inputs[0]))
        classes = (torch.tensor([number]) for number in (stretch.real, stretch.deployed))
        found.append(float(lowest_leads(graph, enclosed, *classes)))
    return np.array(found)


@dataclass
class Row:
    """What came of a network's queries."""

    pairs: int = 0
    methods: set[str] = field(default_factory=set)
    pictures: int = 0
    disagreements: int = 0
    widest: float = 0.0
    margin: float = 0.0
    enclosure: float = 0.0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def compared(name: str, data: Path) -> Row:
    """All queries of a network."""
    network, row, started = CASES[name].network(data), Row(), time.perf_counter()
    for query in CASES[name].queries(network, data):
        claims, proof = both(network, query)
        row.pairs += 1
        row.pictures += proof.pieces
        for stretch in stretches(claims, proof):
            found = explained(network, query, proof, stretch)
            row.disagreements += 1
            row.widest = max(row.widest, stretch.end - stretch.start)
            row.margin = max(row.margin, found.margin)
            row.enclosure = max(row.enclosure, found.enclosure)
            row.problems += [f"{query.image.name}, {query.perturbation}, {stretch}: {p}" for p in found.problems]
    row.seconds = time.perf_counter() - started
    return row


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), default=DATA, show_default=True)
@click.option("--only", default=",".join(CASES), help="Networks, with commas between them.")
def main(data: Path, only: str) -> None:
    """Compare, and print the table."""
    console = Console(width=140)
    columns = ("network", "pairs", "pictures", "disagreements", "widest", "margin", "enclosure", "not explained")
    table, unexplained = Table(*columns, "seconds"), 0
    with torch.inference_mode():
        for name in only.split(","):
            row = compared(name, data)
            cells = (name, row.pairs, row.pictures, row.disagreements, f"{row.widest:.1e}", f"{row.margin:.1e}")
            cells = (*cells, f"{row.enclosure:.2g}", len(row.problems), f"{row.seconds:.0f}")
            table.add_row(*map(str, cells))
            console.print(*cells, *row.problems)
            unexplained += len(row.problems)
    console.print(table)
    sys.exit(unexplained > 0)


if __name__ == "__main__":
    main()
