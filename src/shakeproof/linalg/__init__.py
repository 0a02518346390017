"""How numbers are multiplied, and by how much that may stretch them: convolutions, choice of library, proved norms.

Tuning only: what a network computes is said by `operators`, and nothing that is proved depends on the order of sums.
"""

from shakeproof.linalg.convolution import Convolution
from shakeproof.linalg.norms import (
    ABOVE,
    UNIT,
    Check,
    always,
    norm_of_convolution,
    norm_of_matrix,
    norm_of_positive,
)
from shakeproof.linalg.products import multiply, wants_one_thread, with_bias
from shakeproof.linalg.windows import BLOCK_BYTES, Pair, SlidingWindow

__all__ = [
    "ABOVE",
    "BLOCK_BYTES",
    "UNIT",
    "Check",
    "Convolution",
    "Pair",
    "SlidingWindow",
    "always",
    "multiply",
    "norm_of_convolution",
    "norm_of_matrix",
    "norm_of_positive",
    "wants_one_thread",
    "with_bias",
]
