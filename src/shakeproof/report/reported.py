"""A campaign as it is reported: its answers, what each of them supports, and what the checker says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shakeproof.campaign import StoredCampaign, StoredError, StoredImage, StoredModel, StoredProfile
from shakeproof.question import Perturbation
from shakeproof.report.names import shown
from shakeproof.report.recheck import Examined

CONFIDENCE = 0.95
# Strengths at which numbers are told where a campaign names none, as shares of the largest.
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, eq=False)
class Reported:
    """A campaign with its answers; `checks` has what the checker said of certificates, by the number of their query.

    `unchecked` says why it said nothing, by the same number.
    """

    campaign: StoredCampaign
    profiles: Sequence[StoredProfile]
    errors: Sequence[StoredError] = ()
    checks: Mapping[int, Examined] = field(default_factory=dict)
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
        """The strengths at which numbers are told: the campaign's own, or some up to the largest that was asked."""
        end = max((min(one.claim.ends) for one in self.profiles), default=1.0)
        return self.campaign.strengths or tuple(share * end for share in SHARES)


def checked(one: StoredProfile, reported: Reported) -> str | None:
    """What the checker said of an answer, in words; why it said nothing; None where there was nothing to check."""
    outcome = reported.checks.get(one.query)
    if outcome is None:
        return reported.unchecked.get(one.query)
    return shown(str(outcome))


def confidence(samples: int) -> list[tuple[float, float]]:
    """Clopper and Pearson's bounds for a share, for 0, 1, ... hits among so many: they hold at least that often."""
    from scipy.special import betaincinv

    hits, tail = np.arange(samples + 1), (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low = np.nan_to_num(betaincinv(hits, samples - hits + 1, tail), nan=0.0)
        high = np.nan_to_num(betaincinv(hits + 1, samples - hits, 1 - tail), nan=1.0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def image_key(image: StoredImage) -> tuple[str, str, int | None]:
    return image.digest, image.name, image.label
