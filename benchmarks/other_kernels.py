"""Are blurs of other libraries ours? The same random picture through theirs and through ours, if they are installed.

    python benchmarks/other_kernels.py

Prints the largest difference of a pixel in [0, 1], away from the edges and at them. Libraries that work on bytes cannot
be closer than half a level, 0.002. docs/other-libraries.md is about the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from shakeproof.question import parse_path

SIDE, INNER = 72, 30
Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[str, str, Callable[[Array], Array]]  # theirs, ours, theirs as a function of (height, width) in [0, 1]


def ours(text: str, picture: Array) -> Array:
    """The picture at strength 1."""
    path = parse_path(text).apply(torch.from_numpy(picture)[None])
    return path.clipped(path.at(torch.tensor([[1.0]], dtype=torch.float64)))[0, 0].numpy()


def in_bytes(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(function((x * 255).round().astype(np.uint8)), dtype=np.float64) / 255


def of_kornia() -> Iterator[Pair]:
    from kornia import filters

    def through(function: Callable[..., Any], *options: Any) -> Callable[[Array], Array]:
        return lambda x: function(torch.from_numpy(x)[None, None], *options)[0, 0].numpy()

    sigma = torch.tensor([[1.5, 1.5]], dtype=torch.float64)
    yield "kornia box_blur(x, 5)", "box-blur:size=5", through(filters.box_blur, (5, 5))
    yield (
        "kornia gaussian_blur2d(x, 7, 1.5)",
        "gaussian-blur:size=7,sigma=1.5",
        through(filters.gaussian_blur2d, 7, sigma),
    )
    yield "kornia unsharp_mask(x, 5, 1)", "unsharp:size=5,sigma=1", through(filters.unsharp_mask, (5, 5), (1.0, 1.0))
    for theirs, bearing in ((0.0, 90), (90.0, 0), (45.0, 45), (135.0, 135)):
        blur = through(filters.motion_blur, 9, theirs, 0.0, "reflect")
        taps = 9 if bearing in (0, 90) else 7
        yield f"kornia motion_blur(x, 9, {theirs:g}, 0, 'reflect')", f"motion-blur:size={taps},angle={bearing}", blur


def of_albumentations() -> Iterator[Pair]:
    import albumentations as a

    def through(transform: Any) -> Callable[[Array], Array]:
        return lambda x: transform(image=x.astype(np.float32))["image"].astype(np.float64)

    yield "albumentations Blur((5, 5))", "box-blur:size=5", through(a.Blur((5, 5), p=1))
    gaussian = a.GaussianBlur(blur_limit=(7, 7), sigma_limit=(1.5, 1.5), p=1)
    yield (
        "albumentations GaussianBlur(7, 1.5)",
        "gaussian-blur:size=7,sigma=1.5",
        in_bytes(lambda x: gaussian(image=x)["image"]),
    )
    for angle, bearing in ((0, 90), (90, 0), (45, 135), (135, 45)):
        motion = a.MotionBlur((9, 9), angle_range=(angle, angle), direction_range=(0, 0), allow_shifted=False, p=1)
        taps = 9 if bearing in (0, 90) else 7
        yield (
            f"albumentations MotionBlur(9, angle={angle})",
            f"motion-blur:size={taps},angle={bearing}",
            through(motion),
        )
    for radius in (3, 6):
        defocus = a.Defocus(radius=(radius, radius), alias_blur=(0.1, 0.1), p=1)
        yield f"albumentations Defocus({radius}, 0.1)", f"defocus:radius={radius}", through(defocus)


def of_opencv() -> Iterator[Pair]:
    import cv2

    blur = partial(cv2.GaussianBlur, ksize=(7, 7), sigmaX=1.5)
    yield "OpenCV GaussianBlur(x, (7, 7), 1.5)", "gaussian-blur:size=7,sigma=1.5", blur


def of_scipy() -> Iterator[Pair]:
    from scipy.ndimage import gaussian_filter

    blur = partial(gaussian_filter, sigma=1.5, mode="mirror")
    yield "scipy gaussian_filter(x, 1.5, mode='mirror')", "gaussian-blur:size=13,sigma=1.5", blur


def of_pillow() -> Iterator[Pair]:
    from PIL import Image, ImageFilter

    def through(effect: Any) -> Callable[[Array], Array]:
        return in_bytes(lambda x: Image.fromarray(x).filter(effect))

    yield "Pillow BoxBlur(2)", "box-blur:size=5,padding=replicate", through(ImageFilter.BoxBlur(2))
    yield (
        "Pillow GaussianBlur(1.5)",
        "gaussian-blur:size=13,sigma=1.5,padding=replicate",
        through(ImageFilter.GaussianBlur(1.5)),
    )
    unsharp = ImageFilter.UnsharpMask(radius=1, percent=100, threshold=0)
    yield "Pillow UnsharpMask(1, 100, 0)", "unsharp:size=9,sigma=1,padding=replicate,clip=0..1", through(unsharp)


def of_imagenet_c() -> Iterator[Pair]:
    """Through the package imagecorruptions; its Gaussian is scikit-image's, called as newer versions want it."""
    from imagecorruptions import corruptions
    from skimage.filters import gaussian

    def coloured(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
        return in_bytes(lambda x: np.clip(function(np.stack([x] * 3, 2)), 0, 255)[:, :, 0].round())

    for sigma in (1, 3):
        text = f"gaussian-blur:size={2 * int(4 * sigma + 0.5) + 1},sigma={sigma},padding=replicate"
        yield f"ImageNet-C gaussian_blur, sigma {sigma}", text, lambda x, s=sigma: gaussian(x, s)
    for severity, radius in ((1, 3), (2, 4), (3, 6)):
        defocus = coloured(lambda x, s=severity: corruptions.defocus_blur(x, s))
        yield f"ImageNet-C defocus_blur, severity {severity}", f"defocus:radius={radius}", defocus
    with TemporaryDirectory() as folder:
        kernel = Path(folder) / "motion.npy"
        spot = np.zeros((61, 61, 3))
        spot[30, 30] = 1
        motion = partial(corruptions._motion_blur, radius=10, sigma=3, angle=30)
        np.save(kernel, np.flip(motion(spot)[:, :, 0]))
        yield (
            "ImageNet-C motion_blur, severity 1, at 30 degrees",
            f"custom:file={kernel},padding=replicate",
            lambda x: motion(x),
        )


LIBRARIES = {
    "OpenCV": of_opencv,
    "scipy": of_scipy,
    "kornia": of_kornia,
    "albumentations": of_albumentations,
    "Pillow": of_pillow,
    "ImageNet-C": of_imagenet_c,
}


@click.command()
def main() -> None:
    """Compare what is installed."""
    picture = np.random.default_rng(0).random((SIDE, SIDE))
    table = Table("theirs", "ours", "inside", "at the edges")
    console = Console(width=160)
    for name, pairs in LIBRARIES.items():
        try:
            for theirs, text, function in pairs():
                difference = np.abs(function(picture) - ours(text, picture))
                inside = difference[INNER:-INNER, INNER:-INNER].max()
                table.add_row(theirs, re.sub(r"file=.*/", "file=", text), f"{inside:.1e}", f"{difference.max():.1e}")
        except ImportError as error:
            console.print(f"{name}: skipped, {error.name} is not installed")
    console.print(table)


if __name__ == "__main__":
    main()
