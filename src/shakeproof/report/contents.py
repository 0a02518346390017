"""What the page is made of: plain data, and the numbers that it only draws, packed."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.campaign import DrawnCurve, StoredCampaign, StoredError, StoredImage, StoredModel, StoredProfile
from shakeproof.checker import Outcome
from shakeproof.kernels import Matrix
from shakeproof.perturbation import Part, Perturbation, Tone
from shakeproof.report.names import shown
from shakeproof.result import Record
from shakeproof.verdict import Reason, Status

# So many bytes are unpacked at once, when the first of them is needed.
BLOCK = 2**20
# The option of a family that says how large a perturbation is, the usual one first.
SIZES = ("size", "radius", "max", "colour", "index")
CONFIDENCE = 0.95
# Strengths at which a matrix is shown where a campaign names none, as shares of the largest.
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, eq=False)
class Reported:
    """A campaign with its answers; `checks` has what the checker said of certificates, by the number of their query.

    `unchecked` says why it said nothing, by the same number.
    """

    campaign: StoredCampaign
    profiles: Sequence[StoredProfile]
    errors: Sequence[StoredError] = ()
    checks: Mapping[int, Outcome] = field(default_factory=dict)
    unchecked: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def models(self) -> list[StoredModel]:
        return list({one.model.digest: one.model for one in (*self.profiles, *self.errors)}.values())

    @cached_property
    def images(self) -> list[StoredImage]:
        return list({_image_key(one.image): one.image for one in (*self.profiles, *self.errors)}.values())

    @cached_property
    def perturbations(self) -> list[Perturbation]:
        return list(dict.fromkeys(one.perturbation for one in (*self.profiles, *self.errors)))

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths at which numbers are told: the campaign's own, or some up to the largest that was asked."""
        end = max((min(_several(one.record.strength)) for one in self.profiles), default=1.0)
        return self.campaign.strengths or tuple(share * end for share in SHARES)


def proved_up_to(record: Record) -> float:
    """The strength up to which the label provably wins: 0 for what ignores rounding, or is about another network."""
    if record.rounding == "nominal" or record.reason in (Reason.RUNTIME_DISAGREES, Reason.NOT_FINITE):
        return 0.0
    return record.certified_strength


def lost_from(record: Record) -> float | None:
    """The strength from which on the label was shown to lose; None if it was not."""
    if record.status is Status.MISCLASSIFIED:
        return 0.0
    if record.status is not Status.UNSAFE:
        return None
    if record.critical_strength is not None:
        return record.critical_strength[1]
    return None if record.counterexample is None else max(_several(record.counterexample.strength), default=None)


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
    """The blocks of the page by their names; the one called `contents` is JSON, and says where the others' numbers are."""
    pictures, curves = Blocks("pictures"), Blocks("curves")
    places = {_image_key(image): number for number, image in enumerate(reported.images)}
    models = {model.digest: number for number, model in enumerate(reported.models)}
    kinds = {kind: number for number, kind in enumerate(reported.perturbations)}

    def about(one: StoredProfile | StoredError) -> dict[str, int]:
        return {
            "model": models[one.model.digest],
            "image": places[_image_key(one.image)],
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


def lead(reported: Reported) -> str:
    """The report in a sentence or two."""
    seconds, pieces = (sum(getattr(one.record, name) for one in reported.profiles) for name in ("seconds", "pieces"))
    counts = {"network": reported.models, "image": reported.images, "perturbation": reported.perturbations}
    many = ", ".join(f"{len(own):,} {word}{'' if len(own) == 1 else 's'}" for word, own in counts.items())
    times = f"{pieces:,} linear pieces or parts were worked out, in {seconds:,.1f} seconds of analysis"
    return f"{many}: {len(reported.profiles):,} answers, each for all strengths at once. {times}."


def notices(reported: Reported) -> Iterator[str]:
    """What nobody should overlook."""
    records = [one.record for one in reported.profiles]
    nominal = sum(record.rounding == "nominal" for record in records)
    refused = sum(not outcome.accepted for outcome in reported.checks.values())
    campaign = reported.campaign
    if refused:
        yield f"{refused} certificates were refused by the checker. See Evidence, and do not rely on these answers."
    if nominal:
        yield f"{nominal} answers ignore rounding, as was asked for: they are no proofs, and not counted as certified."
    if campaign.missing:
        yield f"{campaign.missing:,} of the campaign's {campaign.asked:,} queries have no answer yet; run it again."
    if reported.errors:
        yield f"{len(reported.errors):,} queries ended in an error: they are shown, and not counted as certified."
    if predicted := sum(one.label_predicted for one in reported.profiles):
        yield f"No label came with the image for {predicted:,} answers: what the network predicts is taken for it."


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


def _image_key(image: StoredImage) -> tuple[str, str, int | None]:
    return image.digest, image.name, image.label


def _image(image: StoredImage, pictures: Blocks) -> dict[str, Any]:
    """Grey levels where the pixels are some; else far finer ones."""
    pixels, whole = image.pixels, np.rint(image.pixels * 255)
    is_grey = bool((whole == pixels * 255).all()) and 0 <= whole.min() and whole.max() <= 255
    low, high = (0.0, 1.0) if is_grey else (float(pixels.min()), float(pixels.max()))
    place = pictures.add(pixels, 8 if is_grey else 16, low, high)
    return {"name": shown(image.name), "sha256": image.digest, "shape": list(pixels.shape), "pixels": place}


def _answer(one: StoredProfile, reported: Reported) -> dict[str, Any]:
    """The record, without what is said elsewhere, and what the page says of it."""
    record = one.record
    return {
        **{key: value for key, value in record.to_json().items() if key not in ("version", "image", "perturbation")},
        "told": shown(record.told(one.model.class_names)),
        "proved": proved_up_to(record),
        "lost": lost_from(record),
        "label_predicted": one.label_predicted,
        "certificate": one.certificate,
        "unproved": None if one.unproved is None else shown(one.unproved),
        "checked": checked(one, reported),
    }


def checked(one: StoredProfile, reported: Reported) -> str | None:
    """What the checker said of an answer, in words; why it said nothing; None where there was nothing to check."""
    outcome = reported.checks.get(one.query)
    if outcome is None:
        return reported.unchecked.get(one.query)
    return f"{'holds' if outcome.accepted else 'REFUSED'}: {shown(outcome.sentence)}"


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


def confidence(samples: int) -> list[tuple[float, float]]:
    """Clopper and Pearson's bounds for a share, for 0, 1, ... hits among so many: they hold at least that often."""
    from scipy.stats import beta

    hits, tail = np.arange(samples + 1), (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low = np.nan_to_num(beta.ppf(tail, hits, samples - hits + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(1 - tail, hits + 1, samples - hits), nan=1.0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _several(strength: float | tuple[float, ...] | None) -> tuple[float, ...]:
    return strength if isinstance(strength, tuple) else () if strength is None else (strength,)
