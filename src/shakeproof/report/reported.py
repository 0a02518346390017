"""A campaign as it is reported: its answers, what each of them supports, and what the checker says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from shakeproof.campaign import StoredCampaign, StoredError, StoredImage, StoredModel, StoredProfile
from shakeproof.checker import Outcome
from shakeproof.perturbation import Perturbation
from shakeproof.report.names import shown
from shakeproof.result import Record
from shakeproof.verdict import Reason, Status

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
    checks: Mapping[int, Outcome] = field(default_factory=dict)
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
        return list(dict.fromkeys(one.perturbation for one in self.asked))

    @cached_property
    def strengths(self) -> tuple[float, ...]:
        """The strengths at which numbers are told: the campaign's own, or some up to the largest that was asked."""
        end = max((min(_several(one.record.strength)) for one in self.profiles), default=1.0)
        return self.campaign.strengths or tuple(share * end for share in SHARES)


def verdict(record: Record) -> Status:
    """The verdict that a report repeats: what ignores rounding certifies nothing."""
    ignored = record.rounding == "nominal" and record.status is Status.SAFE
    return Status.UNDECIDED if ignored else record.status


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
    if record.critical_strength is not None and record.rounding == "rigorous":
        return record.critical_strength[1]
    return None if record.counterexample is None else max(_several(record.counterexample.strength), default=None)


def checked(one: StoredProfile, reported: Reported) -> str | None:
    """What the checker said of an answer, in words; why it said nothing; None where there was nothing to check."""
    outcome = reported.checks.get(one.query)
    if outcome is None:
        return reported.unchecked.get(one.query)
    return f"{'holds' if outcome.accepted else 'REFUSED'}: {shown(outcome.sentence)}"


def lead(reported: Reported) -> str:
    """The report in a sentence or two."""
    seconds, pieces = (sum(getattr(one.record, name) for one in reported.profiles) for name in ("seconds", "pieces"))
    counts = {
        "network": len(reported.models),
        "image": len(reported.images),
        "perturbation": len(reported.perturbations),
    }
    many = ", ".join(_counted(count, word) for word, count in counts.items())
    times = f"{pieces:,} linear pieces or parts were worked out, in {seconds:,.1f} seconds of analysis"
    return f"{many}: {_counted(len(reported.profiles), 'answer')}, each for all strengths at once. {times}."


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def notices(reported: Reported) -> Iterator[str]:
    """What nobody should overlook."""
    records = [one.record for one in reported.profiles]
    nominal = sum(record.rounding == "nominal" for record in records)
    refused = sum(not outcome.accepted for outcome in reported.checks.values())
    campaign = reported.campaign
    if refused:
        yield f"The checker refused {_counted(refused, 'certificate')}: see Evidence, and do not rely on them."
    if nominal:
        yield f"Ignored rounding, as was asked for: {_counted(nominal, 'answer')}: no proof, nor counted as one."
    if campaign.missing:
        yield f"Not run yet: {campaign.missing:,} of the campaign's {campaign.asked:,} queries. Run it again."
    if reported.errors:
        yield f"Ended in an error: {_counted(len(reported.errors), 'answer')}, shown here and not counted as certified."
    if predicted := sum(one.label_predicted for one in reported.profiles):
        yield f"No label came with the image: {_counted(predicted, 'answer')}, about what the network predicts for it."


def confidence(samples: int) -> list[tuple[float, float]]:
    """Clopper and Pearson's bounds for a share, for 0, 1, ... hits among so many: they hold at least that often."""
    from scipy.stats import beta

    hits, tail = np.arange(samples + 1), (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low = np.nan_to_num(beta.ppf(tail, hits, samples - hits + 1), nan=0.0)
        high = np.nan_to_num(beta.ppf(1 - tail, hits + 1, samples - hits), nan=1.0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def image_key(image: StoredImage) -> tuple[str, str, int | None]:
    return image.digest, image.name, image.label


def _several(strength: float | tuple[float, ...] | None) -> tuple[float, ...]:
    return strength if isinstance(strength, tuple) else () if strength is None else (strength,)
