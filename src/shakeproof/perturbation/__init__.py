"""Perturbations: paths of images with a strength or several, and boxes of images."""

from shakeproof.perturbation.families import (
    FAMILIES,
    any_kernel,
    as_perturbation,
    box_blur,
    brightness,
    contrast,
    custom,
    defocus,
    gaussian_blur,
    haze,
    identity,
    motion_blur,
    parse,
    parse_path,
    psf,
    sharpen,
    unsharp,
)
from shakeproof.perturbation.neighbourhood import AnyKernel
from shakeproof.perturbation.path import MOST_PARTS, PADDINGS, Part, Perturbation, Tone

__all__ = [
    "FAMILIES",
    "MOST_PARTS",
    "PADDINGS",
    "AnyKernel",
    "Part",
    "Perturbation",
    "Tone",
    "any_kernel",
    "as_perturbation",
    "box_blur",
    "brightness",
    "contrast",
    "custom",
    "defocus",
    "gaussian_blur",
    "haze",
    "identity",
    "motion_blur",
    "parse",
    "parse_path",
    "psf",
    "sharpen",
    "unsharp",
]
