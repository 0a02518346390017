"""What the page is made of: plain data, and the numbers that it only draws, packed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.campaign import DrawnCurve, StoredError, StoredImage, StoredModel, StoredProfile
from shakeproof.question import Matrix, Part, Perturbation, Tone
from shakeproof.report import recheck
from shakeproof.report.names import shown
from shakeproof.report.reported import Reported, checked, confidence, image_key

# A page takes 10 MB at most: so many characters are for its data, the rest is for its program.
ROOM = 9_800_000
# In a table of evidence on the page.
MOST_ROWS = 1000
# In a page of more answers than this, digests are cut to their first digits.
MANY, SHORT = 20_000, 16
# Characters of base64 for each byte, with some to spare; and what it takes to say where something is.
GROWTH, PLACE = 1.4, 150
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
    return base64.b64encode(zlib.compress(data)).decode()


def blocks(reported: Reported, evidence: Mapping[str, Any], room: int = ROOM) -> dict[str, str]:
    """The blocks of the page by their names: `contents` is JSON, and says where the numbers of the others are.

    Pictures and curves are kept as far as there is room: those of the answers that lose their label first.
    """
    images = {image_key(image): number for number, image in enumerate(reported.images)}
    models = {model.digest: number for number, model in enumerate(reported.models)}
    kinds = {perturbation: number for number, perturbation in enumerate(reported.perturbations)}
    known = {id(one.perturbation): one.perturbation for one in reported.asked}
    places = {own: kinds[perturbation] for own, perturbation in known.items()}
    digits = len(reported.asked) > MANY and SHORT

    def about(one: StoredProfile | StoredError) -> dict[str, int]:
        return {
            "model": models[one.model.digest],
            "image": images[image_key(one.image)],
            "perturbation": places[id(one.perturbation)],
        }

    sections = {section["heading"]: section["rows"] for section in evidence["sections"]}
    why = {row["item"]: row["why"] for row in sections["Undecided"]}
    answers = [_answer(one, reported, digits) | about(one) for one in reported.profiles]
    answers += [_error(one) | about(one) for one in reported.errors]
    answers = [answer | {"why": why.get(one.number)} for one, answer in zip(reported.asked, answers, strict=True)]
    covered = {row["what"]: row["count"] for row in sections["Coverage"]}
    said: dict[str, Any] = {
        "lead": recheck.lead(sections["Results"], answers),
        "notices": list(recheck.notices(covered, answers)),
        "strengths": list(reported.strengths),
        "models": [_model(model) for model in reported.models],
        "images": [_image(image, digits) for image in reported.images],
        "perturbations": [described(kind) for kind in reported.perturbations],
        "answers": _table(answers),
        "bands": _bands(answers),
        "evidence": shortened(evidence),
    }
    contents = _packed_json(said)
    return {"contents": contents, **_drawings(reported, [answer["image"] for answer in answers], room - len(contents))}


def _drawings(reported: Reported, images: Sequence[int], room: int) -> dict[str, str]:
    """What is only drawn: curves by the numbers of their answers, which have these `images`, and pictures by theirs."""
    pictures, curves = Blocks("pictures"), Blocks("curves")
    weakest = _weakest(reported)
    drawn = _drawn(reported, weakest, room / 2)
    shown_images = _shown(reported, [images[number] for number in weakest], room / 2)
    curved = sum(one.packed_curve is not None for one in reported.profiles)
    said = {
        "margins": {number: _margins(reported.profiles[number].curve, curves) for number in drawn},
        "pixels": {number: _pixels(reported.images[number], pictures) for number in shown_images},
        "notices": [
            *_left_out("curve", curved - len(drawn)),
            *_left_out("picture", len(reported.images) - len(shown_images)),
        ],
    }
    return {"drawings": _packed_json(said), **dict(pictures.packed()), **dict(curves.packed())}


def _packed_json(said: Mapping[str, Any]) -> str:
    return packed(json.dumps(said, separators=(",", ":"), allow_nan=False).encode())


def _table(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Answers without their keys, which are the same for all."""
    keys = list(answers[0]) if answers else []
    return {"keys": keys, "rows": [[*map(answer.__getitem__, keys)] for answer in answers]}


def shortened(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence as a page shows it: the first rows of long tables."""
    return {**evidence, "sections": [_shortened(section) for section in evidence["sections"]]}


def _shortened(section: Mapping[str, Any]) -> Mapping[str, Any]:
    left = len(section["rows"]) - MOST_ROWS
    if left <= 0:
        return section
    more = f"{left:,} more rows are in the evidence file."
    return {**section, "rows": section["rows"][:MOST_ROWS], "sentences": [*section["sentences"], more]}


def _weakest(reported: Reported) -> list[int]:
    """The numbers of the answers, in the order in which the page lists them at first."""

    def key(number: int) -> tuple[float, float]:
        claim = reported.profiles[number].claim
        return inf if claim.lost is None else claim.lost, claim.proved or 0.0

    return sorted(range(len(reported.profiles)), key=key)


def _drawn(reported: Reported, weakest: Iterable[int], room: float) -> list[int]:
    """The answers whose curves there is room for; both are deflated in the same way, in the store and in the page."""
    found = []
    for number in weakest:
        kept = reported.profiles[number].packed_curve
        if kept is None:
            continue
        room -= GROWTH * len(kept) + PLACE
        if room < 0:
            break
        found.append(number)
    return sorted(found)


def _shown(reported: Reported, wanted: Iterable[int], room: float) -> list[int]:
    """The images that there is room for, of those wanted first."""
    found = []
    for number in dict.fromkeys([*wanted, *range(len(reported.images))]):
        room -= GROWTH * len(reported.images[number].packed) + PLACE
        if room < 0:
            break
        found.append(number)
    return sorted(found)


def _left_out(what: str, count: int) -> list[str]:
    left = f"Left out, to keep the page small: {recheck.counted(count, what)}. The store has them."
    return [left] if count > 0 else []


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


def _image(image: StoredImage, digits: int) -> dict[str, Any]:
    return {
        "name": shown(image.name),
        "sha256": _digest(image.digest, digits),
        "shape": list(image.shape),
    }


def _pixels(image: StoredImage, pictures: Blocks) -> dict[str, Any]:
    """Grey levels where the pixels are some; else far finer ones."""
    pixels, whole = image.pixels, np.rint(image.pixels * 255)
    is_grey = bool((whole == pixels * 255).all()) and whole.min() >= 0 and whole.max() <= 255
    low, high = (0.0, 1.0) if is_grey else (float(pixels.min()), float(pixels.max()))
    return pictures.add(pixels, 8 if is_grey else 16, low, high)


def _digest(digest: str | None, digits: int) -> str | None:
    """All of it, or the first digits."""
    return digest if digest is None or not digits else f"{digest[:digits]}…"


def _answer(one: StoredProfile, reported: Reported, digits: int) -> dict[str, Any]:
    """What the page says of an answer: what it claims as numbers, and how it was found."""
    said, claim, witness = one.said, one.claim, one.said["counterexample"]
    return {
        "label": said["label"],
        "predicted": said["predicted"],
        "strength": said["strength"],
        "status": claim.verdict.value,
        "proved": claim.proved,
        "lost": claim.lost,
        "profile": said["profile"],
        "counterexample": witness and {**witness, "margin": _rounded(witness["margin"])},
        "min_margin": _rounded(said["min_margin"]),
        **{key: said[key] for key in ("method", "pieces", "rounding", "arithmetic", "seconds")},
        "label_predicted": one.label_predicted,
        "certificate": _digest(one.certificate, digits),
        "unproved": None if one.unproved is None else shown(one.unproved),
        "checked": checked(one, reported),
    }


def _rounded(number: float | None) -> float | None:
    """A number that is only shown, in as many digits as it is shown in."""
    return None if number is None else float(f"{number:.5g}")


def _error(one: StoredError) -> dict[str, Any]:
    nothing = ("predicted", "proved", "lost", "counterexample", "min_margin", "certificate", "unproved")
    return {
        **dict.fromkeys((*nothing, "checked")),
        "label": one.image.label,
        "strength": None,
        "status": "error",
        "profile": [],
        "method": one.kind,
        "pieces": 0,
        "rounding": "rigorous",
        "arithmetic": "-",
        "seconds": 0.0,
        "label_predicted": False,
    }


def _margins(curve: DrawnCurve | None, curves: Blocks) -> dict[str, Any] | None:
    if curve is None or len(curve.z) < 2:
        return None
    return {
        "rivals": [{"class": int(rival)} for rival in curve.rivals],
        "z": curves.add(curve.z, 16, 0.0, float(curve.z[-1])),
        "leads": curves.add(curve.leads, 16, float(curve.leads.min()), float(curve.leads.max())),
    }


def _bands(answers: Iterable[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """For each number of images that a curve is over: the confidence bounds for each count of them."""
    groups: dict[tuple[int, int], int] = {}
    for answer in answers:
        key = (answer["model"], answer["perturbation"])
        groups[key] = groups.get(key, 0) + 1
    return {
        str(all_): [[floor(low * 1e6) / 1e6, ceil(high * 1e6) / 1e6] for low, high in confidence(all_)]
        for all_ in sorted(set(groups.values()))
    }
