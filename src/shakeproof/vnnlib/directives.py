"""Comments that speak to shakeproof: a perturbation to go with the image that the box holds.

`; shakeproof-KEY: VALUE`. To everyone else the file is about the image alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from shakeproof.errors import InputError
from shakeproof.vnnlib.formula import NUMBER, shortened
from shakeproof.vnnlib.specification import Specification

PREFIX = "shakeproof-"
_NUMBERS = rf"{NUMBER.pattern}(?:,{NUMBER.pattern})*"
# What each key takes. The perturbation's own words are checked where it is made.
FORMS = {
    "perturbation": r"\S(?:.*\S)?",
    "strength": _NUMBERS,
    "mean": _NUMBERS,
    "std": _NUMBERS,
    "image-shape": r"[1-9][0-9]{0,8}(?:,[1-9][0-9]{0,8}){2}",
}
NEEDED = ("perturbation", "strength")
_COMMENT = re.compile(rf"^[^;\n]*;[; \t]*{PREFIX}([^\n]*)", re.MULTILINE)


def read_directives(text: str) -> dict[str, str]:
    """The values of a text's directives, in their order."""
    found: dict[str, str] = {}
    for words in _COMMENT.findall(text) if PREFIX in text else ():
        key, _, value = (word.strip() for word in words.partition(":"))
        form = FORMS.get(key)
        if form is None:
            known = ", ".join(PREFIX + key for key in FORMS)
            raise InputError(f"unknown directive {shortened(PREFIX + words)}; the directives are {known}")
        if key in found or not re.fullmatch(form, value):
            problem = "is given twice" if key in found else f"cannot be {shortened(value)}"
            raise InputError(f"{PREFIX}{key} {problem}; correct the comment")
        found[key] = value
    return found


def check_perturbed(specification: Specification) -> None:
    """Refuse directives that do not make a perturbed query together with the rest of the file."""
    for key in NEEDED:
        if key not in specification.directives:
            raise InputError(f"has directives, but not {PREFIX}{key}; a perturbed query needs it")
    rivals = len(specification.parts[0][1].cases)
    if specification.label is None or rivals != specification.outputs - 1:
        raise InputError("names no label to keep under the perturbation; assert that any other class scores no less")
    if specification.box is None or not np.array_equal(*specification.box):
        raise InputError("has a perturbation, so its box must be one image: equal lower and upper bounds")


def perturbed_directives(
    perturbation: str,
    strengths: Sequence[float],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_shape: Sequence[int],
) -> Mapping[str, str]:
    """The directives of a perturbed query."""
    if not perturbation.isprintable() or perturbation != perturbation.strip():
        raise InputError(f"{perturbation!r}: cannot stand in a comment; rename the kernel's file")
    lists = {"strength": strengths, "mean": mean, "std": std}
    written = {
        key: ",".join(repr(float(value)) for value in values) for key, values in lists.items() if values is not None
    }
    return {"perturbation": perturbation, **written, "image-shape": ",".join(map(str, image_shape))}
