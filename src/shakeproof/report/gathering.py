"""A report from a store: its answers, and what the checker says of their certificates, here and now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from shakeproof.campaign import Store, StoredCampaign, StoredModel, StoredProfile
from shakeproof.errors import InputError
from shakeproof.report import recheck
from shakeproof.report.reported import Reported
from shakeproof.report.safety import item_row

Advance = Callable[[float], None]
NO_FILE = "not checked: the network's file is not where it was, or not what it was"
NOT_ASKED = "not checked, as was asked for"


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
    found: dict[int, recheck.Examined] = {}
    unchecked = {} if checks else dict.fromkeys(certified, NOT_ASKED)
    models = model_files(store, chosen, {id(one.model): one.model for one in certified.values()}.values())
    for number, (query, one) in enumerate(certified.items() if checks else ()):
        path = models.get(one.model.identity)
        if path is None:
            unchecked[query] = NO_FILE
        else:
            found[query] = _examined(one, store.certificate(query) or b"", path)
        advance((number + 1) / len(certified))
    return Reported(chosen, profiles, errors, found, unchecked)


def _examined(one: StoredProfile, certificate: bytes, model: Path) -> recheck.Examined:
    if hashlib.sha256(certificate).hexdigest() != one.certificate:
        return recheck.Examined("REFUSED", "the store's certificate has another digest than the store says")
    return recheck.examined(item_row(one), one.said, certificate, model.read_bytes())


def model_files(store: Store, campaign: StoredCampaign, models: Iterable[StoredModel]) -> dict[str, Path]:
    """The files of networks by their digests, as far as they are what they were: where they were named, or nearby."""
    folders = (Path(), Path(campaign.file).parent, store.path.parent)
    names = {model.identity: (Path(model.name), Path(Path(model.name).name)) for model in models}
    return {
        identity: path
        for identity, own in names.items()
        for path in [next((f / n for f in folders for n in own if _is_file(f / n, identity)), None)]
        if path is not None
    }


def _is_file(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
