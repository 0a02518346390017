"""Parameterised convolution kernels K(z) = sum_i A_i z_i + B, in exact fractions."""

from shakeproof.kernels.families import box_blur, custom_target, identity, motion_blur, reduced, sharpen
from shakeproof.kernels.kernel import Matrix, ParameterisedKernel, between, identity_matrix

__all__ = [
    "Matrix",
    "ParameterisedKernel",
    "between",
    "box_blur",
    "custom_target",
    "identity",
    "identity_matrix",
    "motion_blur",
    "reduced",
    "sharpen",
]
