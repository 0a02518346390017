"""Parameterised convolution kernels K(z) = sum_i A_i z_i + B, in exact fractions."""

from shakeproof.kernels.families import LARGEST_ENTRY, box_blur, custom_target, identity, motion_blur, reduced, sharpen
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
    "identity",
    "identity_matrix",
    "motion_blur",
    "reduced",
    "sharpen",
]
