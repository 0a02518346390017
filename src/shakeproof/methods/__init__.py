"""The two ways to answer a query: exactly, along a line; or by bounds and splitting, for everything else."""

from shakeproof.methods.bounds import answer_by_bounds
from shakeproof.methods.exact import answer_by_sweep

__all__ = ["answer_by_bounds", "answer_by_sweep"]
