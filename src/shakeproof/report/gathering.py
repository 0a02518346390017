"""What a report is made of: a campaign's answers, and what the checker says of their certificates, here and now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from shakeproof.certificate import written_kernels
from shakeproof.errors import InputError
from shakeproof.files import readable_name
from shakeproof.question import Perturbation
from shakeproof.report import recheck
from shakeproof.settings import Settings
from shakeproof.store import (
    Store,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
)

Advance = Callable[[float], None]
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
    """A campaign with its answers. `checks` has what the checker said of certificates, by the number of their query.

    `unchecked` says why it said nothing, by the same number.
    """

    campaign: StoredCampaign
    profiles: Sequence[StoredProfile]
    errors: Sequence[StoredError] = ()
    checks: Mapping[int, recheck.Examined] = field(default_factory=dict)
    unchecked: Mapping[int, str] = field(default_factory=dict)

    @property
    def asked(self) -> list[StoredProfile | StoredError]:
        """What got an answer, and what did not."""
        return [*self.profiles, *self.errors]

    @cached_property
    def models(self) -> list[StoredModel]:
        return list({one.model.digest: one.model for one in self.asked}.values())

    @cached_property
    def images(self) -> list[StoredImage]:
        return list({image_key(one.image): one.image for one in self.asked}.values())

    @cached_property
    def perturbations(self) -> list[Perturbation]:
        several = {id(one.perturbation): one.perturbation for one in self.asked}  # hashing kernels takes long
        return list(dict.fromkeys(several.values()))

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths at which the report gives numbers: the campaign's, or some up to the largest that was asked."""
        end = max((min(one.claim.ends) for one in self.profiles), default=1.0)
        return self.campaign.strengths or tuple(share * end for share in SHARES)

    def checked(self, one: StoredProfile) -> str | None:
        """What the checker said of an answer, or why it said nothing; None where there was nothing to check."""
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
        raise InputError(f"{store.path}: has no such answers yet; run the campaign, or ask for others")
    certified = {one.query: one for one in profiles if one.certificate is not None}
    outcomes: dict[int, recheck.Examined] = {}
    known: dict[Any, Any] = {}
    unchecked = {} if checks else dict.fromkeys(certified, NOT_ASKED)
    models = model_files(store, chosen, {id(one.model): one.model for one in certified.values()}.values())
    for number, (query, one) in enumerate(certified.items() if checks else ()):
        path = models.get(one.model.identity)
        if path is None:
            unchecked[query] = NO_FILE
        else:
            outcomes[query] = _examined(one, store.certificate(query) or b"", path, known)
        advance((number + 1) / len(certified))
    return Reported(chosen, profiles, errors, outcomes, unchecked)


def _examined(one: StoredProfile, certificate: bytes, model: Path, known: dict[Any, Any]) -> recheck.Examined:
    if hashlib.sha256(certificate).hexdigest() != one.certificate:
        return recheck.Examined("REFUSED", "the store's certificate has another digest than the store says")
    return recheck.examined(_answer_row(one, known), one.said, certificate, model.read_bytes())


def model_files(store: Store, campaign: StoredCampaign, models: Iterable[StoredModel]) -> dict[str, Path]:
    """The files of networks by their digests, where they are unchanged: at the names they had, or nearby."""
    folders = (Path(), Path(campaign.file).parent, store.path.parent)
    places = {
        model.identity: [folder / name for folder in folders for name in (model.name, Path(model.name).name)]
        for model in models
    }
    files = {
        identity: next((path for path in paths if _is_file(path, identity)), None) for identity, paths in places.items()
    }
    return {identity: path for identity, path in files.items() if path is not None}


def _is_file(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


# -- the rows of the evidence -----------------------------------------------------------------------------------------


def evidence_rows(reported: Reported) -> Iterator[dict[str, Any]]:
    """A row for each item of a campaign: what it is about, what is claimed, and what the checker said."""
    known: dict[Any, Any] = {}
    for one in reported.profiles:
        yield _answer_row(one, known) | {"checker": reported.checked(one)}
    for failed in reported.errors:
        yield {
            "item": failed.number,
            **_about(failed, known),
            "label": failed.image.label,
            **dict.fromkeys(CLAIMED),
            "verdict": f"error ({failed.kind})",
            "checker": readable_name(failed.message),
        }


def _answer_row(one: StoredProfile, known: dict[Any, Any]) -> dict[str, Any]:
    """What the evidence says of an answer. What many answers share is worked out once, and kept in `known`."""
    record, claim = one.said, one.claim
    key = id(one.model), id(one.perturbation), id(one.settings)
    if key not in known:
        known[key] = _details_digest(one)
    return {
        "item": one.number,
        **_about(one, known),
        "label": record["label"],
        "strength": record["strength"],
        "verdict": claim.verdict.value,
        "certified_strength": claim.proved,
        "violated_from": claim.lost,
        "critical_strength": None if claim.critical is None else [*claim.critical],
        "method": record["method"],
        "arithmetic": record["arithmetic"],
        "details_sha256": known[key],
        "certificate_sha256": one.certificate,
    }


def _about(one: StoredProfile | StoredError, known: dict[Any, Any]) -> dict[str, Any]:
    """Which item a row is about."""
    if id(one.perturbation) not in known:
        known[id(one.perturbation)] = readable_name(str(one.perturbation))
    return {
        "image": readable_name(one.image.name),
        "image_sha256": one.image.digest,
        "model_sha256": one.model.identity,
        "perturbation": known[id(one.perturbation)],
    }


def _details_digest(one: StoredProfile) -> str:
    """A digest of what was asked beside all that, as it is in certificates."""
    model = one.model
    return recheck.detailed(
        {
            "kernels": written_kernels(one.perturbation),
            "mean": [*map(float, model.mean or ())],
            "std": [*map(float, model.std or ())],
            "channels_last": model.channels_last,
            "rounding": Settings(pixels=one.settings["pixels"]).pixel_rounding,
        }
    )
