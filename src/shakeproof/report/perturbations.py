"""How a report speaks of perturbations: in words, by families and sizes, and in the numbers that the page applies."""

from __future__ import annotations

from typing import Any

from shakeproof.files import readable_name
from shakeproof.question import Matrix, Part, Perturbation, Tone

# The option of a family that says how large a perturbation is, the usual one first.
SIZES = ("size", "radius", "max", "colour", "index")


def perturbation_words(perturbation: Perturbation) -> str:
    return ", ".join([" + ".join(map(_words, perturbation.parts)), *_clipping(perturbation)])


def described(perturbation: Perturbation) -> dict[str, Any]:
    """A perturbation as the page applies it, and what it is called."""
    kernel = perturbation.kernel
    return {
        "text": readable_name(str(perturbation)),
        "words": perturbation_words(perturbation),
        **_family(perturbation),
        "parts": [_part(part) for part in perturbation.parts],
        "clip": perturbation.clip,
        "kernel": {"start": _floats(kernel.bias), "changes": [_floats(change) for change in kernel.coefficients]},
    }


def _family(perturbation: Perturbation) -> dict[str, Any]:
    """The family of several sizes that it belongs to, its size, and the direction of motion, if there is one."""
    if len(perturbation.parts) > 1:
        return {"family": perturbation_words(perturbation), "size": None, "sizeWords": "", "motion": None}
    (part,) = perturbation.parts
    options = dict(part.options)
    key = next((key for key in SIZES if key in options and _number(options[key]) is not None), None)
    size = "" if key is None else f"{key} {options[key]}"
    rest = [_option(*option) for option in part.options if option[0] not in (key, "angle")]
    rest += _padding(part) + _clipping(perturbation)
    turned = [_option("angle", options["angle"])] if "angle" in options else []
    motion = {"angle": float(options["angle"]), "words": ", ".join([size, *rest])} if turned and key else None
    return {
        "family": readable_name(", ".join([" ".join([part.family.replace("-", " "), *turned]), *rest])),
        "size": None if key is None else _number(options[key]),
        "sizeWords": size,
        "motion": motion,
    }


def _words(part: Part) -> str:
    options = [_option(*option) for option in part.options]
    return readable_name(", ".join([part.family.replace("-", " "), *options, *_padding(part)]))


def _option(key: str, value: str) -> str:
    return f"{value}°" if key == "angle" else f"{key} {value}"


def _padding(part: Part) -> list[str]:
    return [] if part.padding == "reflect" else [f"{part.padding} padding"]


def _clipping(perturbation: Perturbation) -> list[str]:
    return [] if perturbation.clip is None else ["clipped to {:g}..{:g}".format(*perturbation.clip)]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part.effect, Tone):
        return {"words": _words(part), "gain": float(part.effect.gain), "offset": float(part.effect.offset)}
    (change,) = part.effect.coefficients
    return {"words": _words(part), "padding": part.padding, "change": _floats(change)}


def _floats(matrix: Matrix) -> list[list[float]]:
    return [[float(entry) for entry in row] for row in matrix]
