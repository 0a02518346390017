"""The ways to answer a query: exactly, along a line; by bounds and splitting, for any path; and for boxes of inputs."""

from shakeproof.methods.bounds import answer_by_bounds
from shakeproof.methods.boxes import answer_box
from shakeproof.methods.exact import answer_by_sweep

__all__ = ["answer_box", "answer_by_bounds", "answer_by_sweep"]
