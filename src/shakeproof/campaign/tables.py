"""What a store holds as rows for other programs."""

from __future__ import annotations

from typing import Any

from shakeproof.campaign.stored import StoredProfile

BRACKET = ("critical_strength_low", "critical_strength_high")
WITNESS = ("strength", "class", "margin", "replayed")


def flat(profile: StoredProfile) -> dict[str, Any]:
    """An answer as one plain value for each column."""
    said = profile.record.to_json()
    low, high = said.pop("critical_strength") or (None, None)
    witness = said.pop("counterexample") or {}
    return {
        "model": said.pop("model"),
        "model_sha256": profile.model.identity,
        "image": said.pop("image"),
        "image_sha256": profile.image.digest,
        **said,
        **dict(zip(BRACKET, (low, high), strict=True)),
        **{f"counterexample_{key}": witness.get(key) for key in WITNESS},
        "certificate_sha256": profile.certificate,
        "finished": profile.finished,
    }
