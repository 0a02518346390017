"""What the page is made of: plain data, and the numbers that it only draws, packed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.campaign import DrawnCurve, StoredError, StoredImage, StoredModel, StoredProfile
from shakeproof.kernels import Matrix
from shakeproof.perturbation import Part, Perturbation, Tone
from shakeproof.report.names import shown
from shakeproof.report.reported import (
    Reported,
    checked,
    confidence,
    image_key,
    lead,
    lost_from,
    notices,
    proved_up_to,
    verdict,
)

# So many bytes are unpacked at once, when the first of them is needed.
BLOCK = 2**20
# The option of a family that says how large a perturbation is, the usual one first.
SIZES = ("size", "radius", "max", "colour", "index")


class Blocks:
    """Bytes that are put into the page, deflated, some at a time."""

    def __init__(self, prefix: str) -> None:
        self.prefix, self.parts = prefix, [bytearray()]

    def add(self, numbers: NDArray[np.float64], bits: int, low: float, high: float) -> dict[str, Any]:
        """Numbers between `low` and `high`, kept as whole numbers of so many bits; says where they are."""
        if len(self.parts[-1]) > BLOCK:
            self.parts.append(bytearray())
        levels = np.rint((numbers - low) / ((high - low) or 1.0) * (2**bits - 1))
        place = {"block": f"{self.prefix}{len(self.parts) - 1}", "at": len(self.parts[-1]), "count": numbers.size}
        self.parts[-1] += levels.astype("<u2" if bits == 16 else "u1").tobytes()
        return place | {"bits": bits, "low": low, "high": high}

    def packed(self) -> Iterator[tuple[str, str]]:
        for number, part in enumerate(self.parts):
            yield f"{self.prefix}{number}", packed(bytes(part))


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def blocks(reported: Reported, evidence: Mapping[str, Any]) -> dict[str, str]:
    """The blocks of the page by their names: `contents` is JSON, and says where the numbers of the others are."""
    pictures, curves = Blocks("pictures"), Blocks("curves")
    places = {image_key(image): number for number, image in enumerate(reported.images)}
    models = {model.digest: number for number, model in enumerate(reported.models)}
    kinds = {kind: number for number, kind in enumerate(reported.perturbations)}

    def about(one: StoredProfile | StoredError) -> dict[str, int]:
        return {
            "model": models[one.model.digest],
            "image": places[image_key(one.image)],
            "perturbation": kinds[one.perturbation],
        }

    answers = [_answer(one, reported) | _margins(one.curve, curves) | about(one) for one in reported.profiles]
    said = {
        "lead": lead(reported),
        "notices": list(notices(reported)),
        "strengths": list(reported.strengths),
        "strength": max(reported.strengths),
        "models": [_model(model) for model in reported.models],
        "images": [_image(image, pictures) for image in reported.images],
        "perturbations": [described(kind) for kind in reported.perturbations],
        "answers": answers + [_error(one) | about(one) for one in reported.errors],
        "bands": _bands(answers),
        "evidence": evidence,
    }
    text = json.dumps(said, separators=(",", ":"), allow_nan=False)
    return {"contents": packed(text.encode()), **dict(pictures.packed()), **dict(curves.packed())}


def described(perturbation: Perturbation) -> dict[str, Any]:
    """A perturbation as the page applies it, and what it is called."""
    kernel = perturbation.kernel
    return {
        "text": shown(str(perturbation)),
        **_called(perturbation),
        "parts": [_part(part) for part in perturbation.parts],
        "clip": perturbation.clip,
        "kernel": {"start": _floats(kernel.bias), "changes": [_floats(change) for change in kernel.coefficients]},
    }


def _called(perturbation: Perturbation) -> dict[str, Any]:
    """Words for it; which family of several sizes it belongs to; and where a camera moves, if one does."""
    clip = [] if perturbation.clip is None else [f"clipped to {perturbation.clip[0]:g}..{perturbation.clip[1]:g}"]
    if len(perturbation.parts) > 1:
        words = ", ".join([" + ".join(map(_words, perturbation.parts)), *clip])
        return {"words": words, "family": words, "size": None, "sizeWords": "", "motion": None}
    (part,) = perturbation.parts
    options = dict(part.options)
    key = next((key for key in SIZES if key in options and _number(options[key]) is not None), None)
    size = "" if key is None else f"{key} {options[key]}"
    rest = [_option(*pair) for pair in part.options if pair[0] not in (key, "angle")] + _padding(part) + clip
    turned = [_option("angle", options["angle"])] if "angle" in options else []
    motion = {"angle": float(options["angle"]), "words": ", ".join([size, *rest])} if turned and key else None
    family = ", ".join([" ".join([part.family.replace("-", " "), *turned]), *rest])
    return {
        "words": ", ".join([_words(part), *clip]),
        "family": shown(family),
        "size": None if key is None else _number(options[key]),
        "sizeWords": size,
        "motion": motion,
    }


def _words(part: Part) -> str:
    options = [_option(*pair) for pair in part.options]
    return shown(", ".join([part.family.replace("-", " "), *options, *_padding(part)]))


def _option(key: str, value: str) -> str:
    return f"{value}°" if key == "angle" else f"{key} {value}"


def _padding(part: Part) -> list[str]:
    return [] if part.padding == "reflect" else [f"{part.padding} padding"]


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


def _model(model: StoredModel) -> dict[str, Any]:
    names = [shown(model.class_names.shown(number)) for number in range(len(model.class_names))]
    return {"name": shown(model.name), "sha256": model.identity, "classes": names}


def _image(image: StoredImage, pictures: Blocks) -> dict[str, Any]:
    """Grey levels where the pixels are some; else far finer ones."""
    pixels, whole = image.pixels, np.rint(image.pixels * 255)
    is_grey = bool((whole == pixels * 255).all()) and whole.min() >= 0 and whole.max() <= 255
    low, high = (0.0, 1.0) if is_grey else (float(pixels.min()), float(pixels.max()))
    place = pictures.add(pixels, 8 if is_grey else 16, low, high)
    return {"name": shown(image.name), "sha256": image.digest, "shape": list(pixels.shape), "pixels": place}


def _answer(one: StoredProfile, reported: Reported) -> dict[str, Any]:
    """The record, without what is said elsewhere, and what the page says of it."""
    record = one.record
    return {
        **{key: value for key, value in record.to_json().items() if key not in ("version", "image", "perturbation")},
        "status": str(verdict(record)),
        "told": shown(record.told(one.model.class_names)),
        "proved": proved_up_to(record),
        "lost": lost_from(record),
        "label_predicted": one.label_predicted,
        "certificate": one.certificate,
        "unproved": None if one.unproved is None else shown(one.unproved),
        "checked": checked(one, reported),
    }


def _error(one: StoredError) -> dict[str, Any]:
    return {
        "label": one.image.label,
        "predicted": None,
        "strength": 1.0,
        "status": "error",
        "critical_strength": None,
        "profile": [],
        "counterexample": None,
        "min_margin": None,
        "method": one.kind,
        "pieces": 0,
        "rounding": "rigorous",
        "arithmetic": "-",
        "reason": one.kind,
        "seconds": 0.0,
        "told": shown(one.message),
        "proved": 0.0,
        "lost": None,
        "label_predicted": False,
        "certificate": None,
        "unproved": None,
        "checked": None,
        "margins": None,
    }


def _margins(curve: DrawnCurve | None, curves: Blocks) -> dict[str, Any]:
    if curve is None or len(curve.z) < 2:
        return {"margins": None}
    return {
        "margins": {
            "rivals": [{"class": int(rival)} for rival in curve.rivals],
            "z": curves.add(curve.z, 16, 0.0, float(curve.z[-1])),
            "leads": curves.add(curve.leads, 16, float(curve.leads.min()), float(curve.leads.max())),
        }
    }


def _bands(answers: Iterable[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """For each number of images that a curve is over: the confidence bounds for each count of them."""
    groups: dict[tuple[int, int], int] = {}
    for answer in answers:
        key = (answer["model"], answer["perturbation"])
        groups[key] = groups.get(key, 0) + 1
    return {str(all_): [list(band) for band in confidence(all_)] for all_ in sorted(set(groups.values()))}
