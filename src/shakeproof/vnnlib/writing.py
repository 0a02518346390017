"""Writes 'another class scores no less than the label' as VNN-LIB 1.0."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shakeproof.errors import InputError
from shakeproof.vnnlib.directives import PREFIX
from shakeproof.vnnlib.specification import Specification

PERTURBED = (
    "X is an image, Y are class scores. What shakeproof should do to the image is in the comments;",
    "to other tools, unsat means that the label wins on the image as it is.",
)


def written(specification: Specification, comments: Iterable[str]) -> str:
    """The text of a specification that has a label, below comments and its directives."""
    box, label = specification.box, specification.label
    if box is None or label is None:
        raise InputError("only 'another class scores no less than the label', in one box, can be written")
    notes = (*comments, *(f"{PREFIX}{key}: {value}" for key, value in specification.directives.items()))
    bounds = zip(*([decimal(value) for value in side] for side in box), strict=True)
    cases = specification.parts[0][1].cases
    rivals = ((case.coefficients[0].argmax(), ">" if case.strict[0] else ">=") for case in cases)
    return "\n".join(
        (
            *(f"; {note}" for note in notes),
            "",
            *(f"(declare-const X_{i} Real)" for i in range(specification.inputs)),
            *(f"(declare-const Y_{i} Real)" for i in range(specification.outputs)),
            "",
            *(f"(assert (>= X_{i} {low}))\n(assert (<= X_{i} {high}))" for i, (low, high) in enumerate(bounds)),
            "",
            "(assert (or",
            *(f"  (and ({sign} Y_{rival} Y_{label}))" for rival, sign in rivals),
            "))\n",
        )
    )


def written_perturbed(specification: Specification) -> str:
    """The text of a perturbed query; reading it gives the specification again, and that the same text."""
    return written(specification, PERTURBED)


def decimal(number: float) -> str:
    """All digits of a number, without an exponent: VNN-LIB has none."""
    return np.format_float_positional(number + 0.0, trim="0")  # never -0.0
