"""VNN-LIB: what a counterexample is, read from files of version 1.0 and 2.0."""

from shakeproof.vnnlib.directives import perturbed_directives
from shakeproof.vnnlib.reading import read_specification
from shakeproof.vnnlib.specification import Specification, by_boxes, centre, robustness
from shakeproof.vnnlib.writing import written, written_perturbed

__all__ = [
    "Specification",
    "by_boxes",
    "centre",
    "perturbed_directives",
    "read_specification",
    "robustness",
    "written",
    "written_perturbed",
]
