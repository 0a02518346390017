"""Makes the pictures of docs/perturbations.md: each family's kernel, and what it does to a bundled picture.

Where pixels have kernels of their own, what points become stands for the kernel.

    python tools/make_pictures.py [--output docs/pictures/families]

The measured shakes, the custom kernel and the matrix are made up here: a hand that trembles, a double image, and a
reflection in the lens.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shakeproof import demo
from shakeproof.question import (
    FAMILIES,
    AnyKernel,
    AnyPerturbation,
    KernelSet,
    as_picture,
    parse,
    read_image,
    write_linear,
)
from shakeproof.report.plots import families_figure, save, show_image, show_kernel

SIGN = next(path for path, _ in demo.images() if path.name == "warning.1.png")
STRENGTHS = (0.0, 0.5, 1.0)


def shake(seed: int, size: int = 15, steps: int = 400) -> NDArray[np.float64]:
    """The time that a trembling hand spends over each pixel."""
    random = np.random.default_rng(seed)
    place, speed = np.zeros(2), random.normal(size=2)
    time = np.zeros((size, size))
    for _ in range(steps):
        speed += 0.35 * random.normal(size=2) - 0.02 * place
        speed *= 2.5 / max(2.5, float(np.hypot(*speed)))
        place += 0.06 * speed
        row, column = np.clip(place + size // 2, 0, size - 1.001)
        for i, down in ((int(row), 1 - row % 1), (int(row) + 1, row % 1)):
            for j, right in ((int(column), 1 - column % 1), (int(column) + 1, column % 1)):
                time[i, j] += down * right
    return time


def trajectory(seed: int, samples: int = 60, seconds: float = 0.12) -> str:
    """A trembling hand's motion, as a table."""
    random = np.random.default_rng(seed)
    places = 0.06 * np.cumsum(np.cumsum(random.normal(size=(samples, 2)), 0), 0)
    rows = zip(np.linspace(0, seconds, samples), *places.T, strict=True)
    return "\n".join(["time,x,y", *(f"{time:.4f},{x:.3f},{y:.3f}" for time, x, y in rows)])


def picture_of(perturbation: AnyPerturbation) -> Figure:
    """The kernel at full strength, and the picture at several."""
    raw = read_image(str(SIGN))
    pixels = as_picture(raw.array, (3, 32, 32))
    figure = Figure(figsize=(8, 2.2), layout="constrained")
    if isinstance(perturbation, KernelSet):
        count = len(perturbation.ends)
        mixtures = np.random.default_rng(3).dirichlet(np.full(count + 1, 0.2), 4)[:, :count]
        for axes, shares in zip(figure.subplots(1, 4), mixtures, strict=True):
            show_image(axes, perturbation.apply(pixels).image(*shares), "under one kernel")
        return figure
    kernel, *others = figure.subplots(1, 1 + len(STRENGTHS))
    if isinstance(perturbation, AnyKernel):
        kernel.set_axis_off()
        low, high = perturbation.box(pixels, 1.0)
        for axes, shown, title in zip(others, (low, pixels, high), ("lowest", "z = 0", "highest"), strict=True):
            show_image(axes, shown, title if shown is pixels else f"{title} at z = 1")
        return figure
    show_kernel(kernel, perturbation, perturbation.strengths(1.0), pixels.shape)
    for number in kernel.texts if perturbation.degradations or max(perturbation.kernel.shape) > 5 else ():
        number.set_visible(False)  # they would overlap
    path = perturbation.apply(pixels)
    for axes, strength in zip(others, STRENGTHS, strict=True):
        show_image(axes, path.image(*[strength] * perturbation.parameters), f"z = {strength:g}")
    return figure


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/pictures/families"), show_default=True)
def main(output: Path) -> None:
    """Write a picture for each family."""
    output = output.absolute()
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # the examples name files
        np.savez("shakes.npz", *[shake(seed) for seed in range(14, 18)])
        Path("shake.csv").write_text(trajectory(3), encoding="utf-8")
        np.save("kernel.npy", np.pad([[1.0, 0, 0, 0, 1.0]], ((2, 2), (0, 0))))
        write_linear(lambda x: 0.75 * x + 0.25 * x[:, ::-1, ::-1], (3, 32, 32), "matrix.npz")
        save(families_figure(as_picture(read_image(str(SIGN)).array, (3, 32, 32))), output / "all.png")
        for name, family in FAMILIES.items():
            if name != "identity":
                save(picture_of(parse(family.example)), output / f"{name}.png")


if __name__ == "__main__":
    main()
