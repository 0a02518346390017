"""VNN-LIB: what a counterexample is, read from files of version 1.0 and 2.0."""

from shakeproof.vnnlib.reading import read_specification
from shakeproof.vnnlib.specification import Case, Specification, centre, robustness

__all__ = ["Case", "Specification", "centre", "read_specification", "robustness"]
