"""Chains: curves beside sampled kernels, exposures beside replays of the motion, and every angle of a shake on oval21.

    python benchmarks/chains.py [--data DIR] [--samples N] [--trajectories N] [--instances N] [--only PART]

curves     The stated distance between each chain of chords and its curve, and the largest of N sampled ones.
exposures  Random trajectories on signs (DIR/networks/gtsrb_cnn.onnx): at N exposure times each, the picture is made
           once more by moving it about, and run. Prints how many contradict the class that is proved there (none may).
angles     `motion-angle:size=5,from=0,to=180,strength=0.4` on the instances of DIR/benchmarks/oval21: verdicts,
           segments, pieces and seconds of the processor; and how many of 1,000 angles each contradict the profile.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from all_kernels import DATA, SIGNS, instances

import shakeproof as sp
from shakeproof.question import fitting, read_image

CURVES = (
    "gaussian-blur:size=9,sigma=0..3",
    "gaussian-blur:size=9,sigma=0..3,tolerance=0.001",
    "gaussian-blur:size=6,sigma=0.4..2",
    "defocus:size=9,radius=0..4",
    "defocus:radius=0.7..2,tolerance=0.005",
)
ANGLES = "motion-angle:size=5,from=0,to=180,strength=0.4"
ANGLES_SAMPLED = 1000


def floats(matrix: Any) -> np.ndarray:
    return np.array([[float(entry) for entry in row] for row in matrix])


def of_curve(text: str, value: float, side: int) -> np.ndarray:
    """The plain family's kernel, in the middle of a square."""
    if text.startswith("gaussian-blur"):
        matrix = floats(sp.gaussian_blur(size=side, sigma=value).kernel.at(1))
    else:
        matrix = floats(sp.defocus(radius=value).kernel.at(1)) if value > 0.5 else np.ones((1, 1))
    return np.pad(matrix, (side - len(matrix)) // 2)


def curves(samples: int) -> None:
    """Stated and sampled distances."""
    print(f"{'chain':50} segments   stated  largest of {samples}")
    for text in CURVES:
        perturbation, largest = sp.parse(text), 0.0
        scale, kernel = perturbation.scale, perturbation.kernel
        nodes = [floats(matrix) for matrix in _matrices(kernel)]
        for z in np.random.default_rng(0).uniform(0, 1, samples):
            segment, share = scale.place(z)
            chord = nodes[segment] * (1 - float(share)) + nodes[segment + 1] * float(share)
            largest = max(largest, np.abs(chord - of_curve(text, float(scale.value(z)), len(chord))).sum())
        print(f"{text:50} {scale.segments:8} {scale.distance:8} {largest:.6f}")
        assert largest <= scale.distance


def _matrices(kernel: Any) -> list[Any]:
    return [kernel.at(node) for node in kernel.scale.nodes]


def wandering(random: np.random.Generator, samples: int = 40) -> np.ndarray:
    """Time, x and y of a motion by some pixels within a tenth of a second."""
    time_of = np.sort(random.uniform(0, 0.1, samples - 2))
    places = np.cumsum(random.normal(0, random.uniform(0.2, 1.2), (samples, 2)), 0)
    return np.column_stack([np.round([0, *time_of, 0.1], 6) + 1e-7 * np.arange(samples), places])


def shifted(picture: np.ndarray, right: float, down: float) -> np.ndarray:
    """A picture that has moved: bilinear between pixels, reflected at the border."""
    (height, width), result = picture.shape[1:], np.zeros_like(picture)
    up, left = np.floor([-down, -right]).astype(int)
    for row, vertical in ((up, 1 - (-down - up)), (up + 1, -down - up)):
        for column, horizontal in ((left, 1 - (-right - left)), (left + 1, -right - left)):
            rows, columns = (_reflected(np.arange(size) + by, size) for size, by in ((height, row), (width, column)))
            result += vertical * horizontal * picture[:, rows][:, :, columns]
    return result


def _reflected(places: np.ndarray, size: int) -> np.ndarray:
    places = np.abs(places) % (2 * size - 2)
    return np.where(places >= size, 2 * size - 2 - places, places)


def exposures(data: Path, trajectories: int, samples: int) -> None:
    """Exact profiles beside replays."""
    network, random = sp.load(data / "networks/gtsrb_cnn.onnx"), np.random.default_rng(0)
    total, images = Counter[str](), recognised(network, data)
    with TemporaryDirectory() as folder:
        for number in range(trajectories):
            rows, file = wandering(random), Path(folder) / "shake.csv"
            file.write_text("time,x,y\n" + "\n".join(",".join(map(repr, row)) for row in rows.tolist()))
            image = next(images)
            began = time.process_time()
            result = sp.profile(network, image, f"exposure:trajectory={file},upto=0.1")
            took, scale = time.process_time() - began, result.query.perturbation.scale
            copies = np.stack([shifted(image.pixels.numpy(), *(row[1:] - rows[0, 1:])) for row in rows])

            def replay(z: np.ndarray, scale: Any = scale, rows: np.ndarray = rows, copies: np.ndarray = copies) -> Any:
                seconds = np.array([float(scale.value(at)) for at in z])
                ends = np.minimum(np.append(rows[1:, 0], np.inf), seconds[:, None])
                weights = np.maximum(ends - rows[:, 0], 0) / seconds[:, None]
                return torch.from_numpy(np.tensordot(weights, copies, 1))

            checked, wrong = contradicted(network, result, replay, samples)
            total += {"checked": checked, "wrong": wrong}
            what = f"{result.status}, {scale.segments} segments, {result.pieces} pieces, {took:.2f} s"
            print(f"trajectory {number}: {what}; {checked} replays, {wrong} contradict; {result.sentence}")
    print(f"{total['checked']} replays, {total['wrong']} contradict")


def recognised(network: Any, data: Path) -> Iterator[Any]:
    """The signs that the network takes for what they are: of others, there is nothing to ask."""
    for number in range(1000):
        image = fitting(network, read_image(f"{data / SIGNS}@{number}"))
        if network.predicted(network.picture().to_input(image.pixels)[None]) == [image.label]:
            yield image


def contradicted(
    network: Any, result: sp.Result, replay: Callable[[np.ndarray], torch.Tensor], samples: int
) -> tuple[int, int]:
    """How many strengths at which a class is proved were run, and how many of them gave another one."""
    z = np.random.default_rng(1).uniform(0, 1, samples)
    proved = np.full(samples, -1)
    for part in result.profile:
        if part.proved:
            proved[(z > part.start) & (z < part.end)] = part.winner
    z, proved, layout = z[proved >= 0], proved[proved >= 0], network.picture()
    if not len(z):  # misclassified
        return 0, 0
    winners = [
        network.reference(layout.to_input(replay(some)).float().numpy()).argmax(1)
        for some in np.array_split(z, max(1, len(z) // 500))
    ]
    return len(z), int((np.concatenate(winners) != proved).sum())


def angles(data: Path, most: int) -> None:
    """Every angle on oval21."""
    networks, verdicts, rows = dict[Path, Any](), Counter[str](), []
    for model, picture in list(instances(data, "oval21"))[:most]:
        if model not in networks:
            networks[model] = sp.load(model)
        network = networks[model]
        image = fitting(network, read_image(picture))
        began = time.process_time()
        result = sp.profile(network, image, ANGLES)
        took, scale = time.process_time() - began, result.query.perturbation.scale

        def blurred(z: np.ndarray, scale: Any = scale, image: Any = image) -> torch.Tensor:
            """By plain motion blur of that angle."""
            each = (sp.motion_blur(size=5, angle=float(scale.value(at))).apply(image.pixels).image(0.4) for at in z)
            return torch.stack([*each])

        checked, wrong = contradicted(network, result, blurred, ANGLES_SAMPLED)
        verdicts[str(result.status)] += 1
        rows.append((took, result.pieces, checked, wrong))
        about = f"{model.name} {Path(picture).name}: {result.status}, {result.pieces} pieces, {took:.2f} s"
        print(f"{about}; {result.sentence}")
    took, pieces, checked, wrong = zip(*rows, strict=True)
    print(f"{len(rows)} instances, {scale.segments} segments each: {dict(verdicts)}")
    print(f"seconds: median {statistics.median(took):.2f}, most {max(took):.2f}")
    print(f"pieces: median {statistics.median(pieces):.0f}, most {max(pieces)}")
    print(f"{sum(checked)} angles run, {sum(wrong)} contradict")


PARTS = ("curves", "exposures", "angles")


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--samples", default=10_000, show_default=True)
@click.option("--trajectories", default=10, show_default=True)
@click.option("--instances", "most", default=1000, help="Instances of oval21.")
@click.option("--only", "parts", type=click.Choice(PARTS), multiple=True, help="These parts [default: all].")
def main(data: Path, samples: int, trajectories: int, most: int, parts: tuple[str, ...]) -> None:
    """Print what was found."""
    parts = parts or PARTS
    if "curves" in parts:
        curves(samples)
    if "exposures" in parts:
        exposures(data, trajectories, samples)
    if "angles" in parts:
        angles(data, most)


if __name__ == "__main__":
    main()
