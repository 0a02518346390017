"""Exact analysis along lines: every breakpoint of a piecewise-linear network, none left out."""

from shakeproof.exact.curve import Curve
from shakeproof.exact.sweep import Lines, Piece, sweep

__all__ = ["Curve", "Lines", "Piece", "sweep"]
