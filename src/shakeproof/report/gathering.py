"""What a report is made of: a campaign's answers, what the checker says of their certificates, here and now, the rows
of the evidence, and perturbations in words and numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shakeproof.errors import InputError
from shakeproof.files import readable_name
from shakeproof.question import Degradation, Matrix, Part, Perturbation, Tone, written_kernels
from shakeproof.report import recheck
from shakeproof.settings import Settings
from shakeproof.store import (
    Judged,
    Store,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
    judged,
    read_perturbation,
)

Advance = Callable[[float], None]
# The option of a family that says how large a perturbation is, the usual one first.
SIZES = ("size", "radius", "max", "colour", "index")
NO_FILE = "not checked: the network's file is missing or has changed"
NOT_ASKED = "not checked, as was asked for"
# The strengths at which a report gives numbers if a campaign names none, as shares of the largest.
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
# What a row of the evidence says of an answer beside what it is about; an error has none of it.
CLAIMED = (
    *("strength", "verdict", "certified_strength", "violated_from", "critical_strength", "method", "arithmetic"),
    *("details_sha256", "certificate_sha256"),
)


@dataclass(frozen=True, eq=False)
class Reported:
    """A campaign with its answers, and its requirements, if these are all of its answers.

    `checks` has what the checker said of certificates, by the number of their query; `unchecked` says why it said
    nothing, by the same number.
    """

    campaign: StoredCampaign
    profiles: Sequence[StoredProfile]
    errors: Sequence[StoredError] = ()
    judged: Sequence[Judged] = ()
    checks: Mapping[int, recheck.Examined] = field(default_factory=dict)
    unchecked: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def asked(self) -> list[StoredProfile | StoredError]:
        """The answered items and the errors."""
        return [*self.profiles, *self.errors]

    @cached_property
    def models(self) -> list[StoredModel]:
        several = {id(one.model): one.model for one in self.asked}
        return list({model.digest: model for model in several.values()}.values())

    @cached_property
    def images(self) -> list[StoredImage]:
        several = {id(one.image): one.image for one in self.asked}
        return list({image_key(image): image for image in several.values()}.values())

    @cached_property
    def perturbations(self) -> list[Perturbation]:
        return list(dict.fromkeys(self.kinds.values()))

    @cached_property
    def kinds(self) -> Mapping[str, Perturbation]:
        """The perturbations by their definitions."""
        return {definition: read_perturbation(definition) for definition in {one.definition: 0 for one in self.asked}}

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths at which the report gives numbers: the campaign's, or some up to the largest that was asked."""
        end = max((min(one.claim.ends) for one in self.profiles), default=1.0)
        return self.campaign.strengths or tuple(share * end for share in SHARES)

    def checked(self, one: StoredProfile | StoredError) -> str | None:
        """The checker's outcome for an answer, or why there is none; None if there was nothing to check. For an
        error, its message.
        """
        if isinstance(one, StoredError):
            return readable_name(one.message)
        outcome = self.checks.get(one.query)
        return self.unchecked.get(one.query) if outcome is None else readable_name(str(outcome))


def image_key(image: StoredImage) -> tuple[str, str, int | None]:
    return image.digest, image.name, image.label


def gathered(store: Store, campaign: int | None, checks: bool, advance: Advance, **only: str | None) -> Reported:
    """The answers of a campaign; with `checks`, the checker is run on every certificate among them.

    `only` has patterns of models and perturbations, and a status, as `Store.profiles` takes them.
    """
    chosen = store.campaign(campaign)
    profiles = list(store.profiles(chosen.id, **only))
    about = {key: only.get(key) for key in ("model", "perturbation")}
    errors = [] if only.get("status") else list(store.errors(chosen.id, **about))
    if not profiles and not errors:
        raise InputError(f"{store.path}: has no matching answers; run the campaign, or change the selection")
    certified = {one.query: one for one in profiles if one.certificate is not None}
    outcomes: dict[int, recheck.Examined] = {}
    known: dict[Any, Any] = {}
    unchecked = {} if checks else dict.fromkeys(certified, NOT_ASKED)
    models = model_files(store, chosen, {id(one.model): one.model for one in certified.values()}.values())
    for number, (query, one) in enumerate(certified.items() if checks else ()):
        path = models.get(one.model.identity)
        if path is None:
            unchecked[query] = NO_FILE
        elif hashlib.sha256(certificate := store.certificate(query) or b"").hexdigest() != one.certificate:
            reason = "the store's certificate has another digest than the store says"
            outcomes[query] = recheck.Examined("REFUSED", reason)
        else:
            outcomes[query] = recheck.examined(_row(one, known), one.said, certificate, path.read_bytes())
        advance((number + 1) / len(certified))
    requirements = () if any(only.values()) else judged(store, chosen.id)
    return Reported(chosen, profiles, errors, requirements, outcomes, unchecked)


def model_files(store: Store, campaign: StoredCampaign, models: Iterable[StoredModel]) -> dict[str, Path]:
    """The files of networks by their digests, where they are unchanged: at the names they had, or nearby."""
    folders = (Path(), Path(campaign.file).parent, store.path.parent)
    files: dict[str, Path] = {}
    for model in models:
        for path in (folder / name for folder in folders for name in (model.name, Path(model.name).name)):
            if model.identity in files:
                break
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == model.identity:
                files[model.identity] = path
    return files


# -- the rows of the evidence -----------------------------------------------------------------------------------------


def evidence_rows(reported: Reported) -> Iterator[dict[str, Any]]:
    """One row for each item of a campaign: the query, the claim, and the checker's outcome."""
    known: dict[Any, Any] = {}
    for one in reported.asked:
        yield _row(one, known) | {"checker": reported.checked(one)}


def _row(one: StoredProfile | StoredError, known: dict[Any, Any]) -> dict[str, Any]:
    """The question and the claim of an item. Values that many items share are cached in `known`."""
    if one.definition not in known:
        known[one.definition] = readable_name(str(one.perturbation))
    about = {
        "item": one.number,
        "image": readable_name(one.image.name),
        "image_sha256": one.image.digest,
        "model_sha256": one.model.identity,
        "perturbation": known[one.definition],
    }
    if isinstance(one, StoredError):
        return about | {
            "requirement": one.asked,
            "label": one.image.label,
            **dict.fromkeys(CLAIMED),
            "verdict": f"error ({one.kind})",
        }
    values, claim, critical = one.values, one.claim, one.claim.critical
    key = id(one.model), one.definition, id(one.settings)
    if key not in known:  # a digest of what was asked beside the rest of the row, as it is in certificates
        known[key] = recheck.detailed(
            {
                "kernels": written_kernels(one.perturbation),
                "mean": [*map(float, one.model.mean or ())],
                "std": [*map(float, one.model.std or ())],
                "channels_last": one.model.channels_last,
                "rounding": Settings(pixels=one.settings["pixels"]).pixel_rounding,
            }
        )
    return about | {
        "requirement": values["requirement"],
        "label": values["label"],
        "strength": one.strength,
        "verdict": claim.verdict.value,
        "certified_strength": claim.proved,
        "violated_from": claim.lost,
        "critical_strength": critical and [*critical],
        "method": values["method"],
        "arithmetic": values["arithmetic"],
        "details_sha256": known[key],
        "certificate_sha256": one.certificate,
    }


# -- perturbations ----------------------------------------------------------------------------------------------------


def perturbation_words(perturbation: Perturbation) -> str:
    return ", ".join([" + ".join(map(_words, perturbation.parts)), *_clipping(perturbation)])


def described(perturbation: Perturbation) -> dict[str, Any]:
    """A perturbation as the page applies it, and its name."""
    start, changes = perturbation.start, None
    if not perturbation.degradations:
        start, changes = perturbation.kernel.bias, [*map(_floats, perturbation.kernel.coefficients)]
    return {
        "text": readable_name(str(perturbation)),
        "words": perturbation_words(perturbation),
        **_family(perturbation),
        "parts": [_part(part) for part in perturbation.parts],
        "clip": perturbation.clip,
        "kernel": {"start": _floats(start), "changes": changes},
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
    if isinstance(part.effect, Degradation):
        return {"words": _words(part), "linear": True}
    (change,) = part.effect.coefficients
    return {"words": _words(part), "padding": part.padding, "change": _floats(change)}


def _floats(matrix: Matrix) -> list[list[float]]:
    return [[float(entry) for entry in row] for row in matrix]
