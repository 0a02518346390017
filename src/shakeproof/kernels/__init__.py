"""Parameterised convolution kernels K(z) = sum_i A_i z_i + B, in exact fractions."""

from shakeproof.kernels.families import (
    box_blur,
    custom_target,
    defocus,
    gaussian_blur,
    identity,
    motion_blur,
    psf,
    reduced,
    sharpen,
    unsharp,
)
from shakeproof.kernels.files import LARGEST_ENTRY
from shakeproof.kernels.kernel import Matrix, ParameterisedKernel, absolute, between, combined, identity_matrix

__all__ = [
    "LARGEST_ENTRY",
    "Matrix",
    "ParameterisedKernel",
    "absolute",
    "between",
    "box_blur",
    "combined",
    "custom_target",
    "defocus",
    "gaussian_blur",
    "identity",
    "identity_matrix",
    "motion_blur",
    "psf",
    "reduced",
    "sharpen",
    "unsharp",
]
