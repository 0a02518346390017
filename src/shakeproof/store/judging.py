"""Whether a campaign's requirements are met: the one rule, for the command, tables, test cases, reports and evidence.

A picture holds where the requirement is proved under each of its perturbations, up to its strength, and fails where a
counterexample was shown under one of them. A picture of which it does not hold at strength 0 says nothing about shake,
and is left out. Pictures with the same pixels are one.

A target is a share of all pictures that the campaign's were drawn from, with a confidence. It is met if that share is
at least the target even if every undecided picture fails, and not met if it is below the target even if all of them
hold; each by Clopper and Pearson's bound on one side. A target of 1 is about the campaign's own pictures.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from shakeproof.proof import Claim, Status
from shakeproof.store.reader import AskedClaim, Store
from shakeproof.store.rows import CampaignRequirement, StoredModel

# Bounds on shares are worked out to more digits than this, and verdicts leave so much to spare.
SLACK = 1e-9


class Judgement(StrEnum):
    """What a campaign shows about a requirement."""

    MET = "MET"
    NOT_MET = "NOT MET"
    NOT_SHOWN = "NOT SHOWN"


@dataclass(frozen=True)
class PictureCounts:
    """Of how many pictures a requirement holds, fails, is undecided, or already fails at strength 0."""

    hold: int = 0
    fail: int = 0
    undecided: int = 0
    misclassified: int = 0

    @property
    def population(self) -> int:
        """Those that count."""
        return self.hold + self.fail + self.undecided


@dataclass(frozen=True)
class Judged:
    """A requirement of one network: how many pictures, and between which bounds the share lies that holds.

    `asked` is what is required, with numbers for the names of classes. `at_least` takes undecided pictures as failing,
    `at_most` as holding.
    """

    requirement: CampaignRequirement
    model: StoredModel
    asked: str
    counts: PictureCounts
    at_least: float
    at_most: float
    outcome: Judgement

    @property
    def sentence(self) -> str:
        """The outcome's reason, with the numbers that decide it."""
        counts, share = self.counts, self.requirement.share
        if not counts.population:
            return f"no picture counts: {counts.misclassified} fail at strength 0"
        said = [f"{counts.hold} of {_pictures(counts.population)} hold", f"{counts.fail} fail"]
        said += [f"{counts.undecided} undecided"] * bool(counts.undecided)
        left_out = f" ({counts.misclassified} more fail at strength 0)" if counts.misclassified else ""
        return f"{', '.join(said)}{left_out}; {self._bounds}; required: {'all' if share == 1 else in_full(share)}"

    @property
    def _bounds(self) -> str:
        counts, wanted = self.counts, self.requirement
        if wanted.confidence is None:
            return f"{percent(self.at_least)} hold" + (
                f", or up to {percent(self.at_most, up=True)}" if counts.undecided else ""
            )
        sure = f"with confidence {in_full(wanted.confidence)}"
        if self.outcome is Judgement.MET:
            return f"{sure}, at least {percent(self.at_least)} of all hold"
        if self.outcome is Judgement.NOT_MET:
            return f"{sure}, at most {percent(self.at_most, up=True)} of all hold"
        low, high = percent(self.at_least), percent(self.at_most, up=True)
        between = f"at least {low} of all hold, and at most {high}, each with confidence {in_full(wanted.confidence)}"
        needed = pictures_needed(wanted.share, wanted.confidence)
        return f"{between}; at least {needed} pictures are needed" if counts.population < needed else between

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self.requirement),
            "perturbations": [*self.requirement.perturbations],
            "asked": self.asked,
            "model": self.model.name,
            "model_sha256": self.model.identity,
            "outcome": self.outcome.value,
            **asdict(self.counts),
            "share_at_least": self.at_least,
            "share_at_most": self.at_most,
            "sentence": self.sentence,
        }


def percent(share: float, up: bool = False) -> str:
    """A share with one digit behind the point, rounded down, or up: 100 % is all."""
    return f"{(math.ceil if up else math.floor)(round(1000 * share, 6)) / 10:g} %"


def in_full(share: float) -> str:
    """A share that was asked for, with all its digits."""
    return f"{100 * share:.12g} %"


def _pictures(count: int) -> str:
    return f"{count} picture{'' if count == 1 else 's'}"


# -- the rule ----------------------------------------------------------------------------------------------------------


def judge(requirement: CampaignRequirement, model: StoredModel, asked: str, counts: PictureCounts) -> Judged:
    """Whether a requirement is met, by the counts of a network's pictures."""
    at_least, at_most = bounds(counts, requirement.confidence)
    slack = 0.0 if requirement.confidence is None else SLACK
    outcome = Judgement.NOT_SHOWN
    if at_least - slack >= requirement.share:
        outcome = Judgement.MET
    elif at_most + slack < requirement.share:
        outcome = Judgement.NOT_MET
    return Judged(requirement, model, asked, counts, at_least, at_most, outcome)


def bounds(counts: PictureCounts, confidence: float | None) -> tuple[float, float]:
    """Between what the share of all pictures lies that hold; without a confidence, that of these pictures."""
    worst, best, count = counts.hold, counts.hold + counts.undecided, counts.population
    if not count:
        return 0.0, 1.0
    if confidence is None:
        return worst / count, best / count
    return share_at_least(worst, count, confidence), share_at_most(best, count, confidence)


def share_at_least(hits: int, samples: int, confidence: float) -> float:
    """Clopper and Pearson's lower bound of a share: with a smaller one, so many hits or more are too unlikely."""
    from scipy.special import betaincinv

    return float(betaincinv(hits, samples - hits + 1, 1 - confidence)) if hits else 0.0


def share_at_most(hits: int, samples: int, confidence: float) -> float:
    """Clopper and Pearson's upper bound of a share: with a larger one, so few hits are too unlikely."""
    return 1 - share_at_least(samples - hits, samples, confidence)


def pictures_needed(share: float, confidence: float) -> int:
    """How many pictures it takes, all of which hold, to meet a target."""
    return math.ceil(math.log(1 - confidence) / math.log(share) + SLACK)


def status_of(claims: Iterable[Claim | None], strength: float) -> Status:
    """What is shown of one picture, by the answers under each perturbation; None where there is none."""
    found = {Status.UNDECIDED if claim is None else claim.at(strength) for claim in claims}
    if len(found) == 1:
        return found.pop()
    if Status.UNSAFE in found or found == {Status.SAFE, Status.MISCLASSIFIED}:  # which blurs at strength 0
        return Status.UNSAFE
    return Status.UNDECIDED  # whether it fails, or is left out, depends on what is undecided


def counts_of(statuses: Iterable[Status]) -> PictureCounts:
    """How many pictures have which status."""
    found = Counter(statuses)
    return PictureCounts(
        *(found[kind] for kind in (Status.SAFE, Status.UNSAFE, Status.UNDECIDED, Status.MISCLASSIFIED))
    )


# -- a campaign --------------------------------------------------------------------------------------------------------


def judged(store: Store, campaign: int | None = None) -> list[Judged]:
    """Every requirement of a campaign, for each of its networks."""
    requirements = store.campaign(campaign).requirements
    if not requirements:
        return []
    by_question: dict[tuple[str, str], list[AskedClaim]] = defaultdict(list)
    for one in store.claims(campaign):
        by_question[one.model.digest, one.requirement].append(one)
    found = []
    for requirement in requirements:
        for (_, written), asked in by_question.items():
            if written == requirement.require:
                counts = counts_of(statuses(requirement, asked).values())
                found.append(judge(requirement, asked[0].model, asked[0].asked, counts))
    return found


def statuses(requirement: CampaignRequirement, asked: Sequence[AskedClaim]) -> dict[str, Status]:
    """What is shown of each of a network's pictures, by the digest of its pixels; a perturbation that nothing was asked
    about counts as one without an answer.
    """
    of_picture: dict[str, dict[str, list[Claim | None]]] = defaultdict(lambda: defaultdict(list))
    for one in asked:
        of_picture[one.image][one.perturbation].append(one.claim)
    return {
        image: status_of(
            [claim for one in requirement.perturbations for claim in own[one] or [None]], requirement.strength
        )
        for image, own in of_picture.items()
    }
