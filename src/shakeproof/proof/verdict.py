"""The one judge: which verdict evidence supports. None is what is left over; each is built from evidence of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shakeproof.model import Comparison
    from shakeproof.proof.evidence import Counterexample, Proof


class Status(StrEnum):
    """The verdict about a query."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    UNDECIDED = "undecided"
    MISCLASSIFIED = "misclassified"


class Reason(StrEnum):
    """Why there is no verdict."""

    sentence: str

    def __new__(cls, word: str, sentence: str) -> Reason:
        reason = str.__new__(cls, word)
        reason._value_ = word
        reason.sentence = sentence
        return reason

    TIMEOUT = "timeout", "the time was up before everything was settled"
    NOT_REPLAYED = "not-replayed", "the label loses by so little that the float32 runtime does not show it"
    ROUNDING = "rounding", "the smallest margin is no larger than float64 rounding might explain"
    FLOAT32 = "float32", "float32 rounding, in some order of summation, might explain the smallest margin"
    RUNTIME_DISAGREES = "runtime-disagrees", "the float32 runtime gives other outputs than the network as it was read"
    COMPARISON = (
        "comparison",
        "float32 noise is too large a share of the margin: the runtime would agree with another network as well",
    )
    BOUNDS = "bounds", "the bounds are too loose somewhere, and nothing is left to split there"
    NOT_FINITE = (
        "not-finite",
        "some of the network's scores are infinite or no numbers; check its weights, mean and std",
    )


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was found out about a query.

    `start` is the margin at the image itself, of a query about one: NaN where its scores are not finite. There is a
    proof for each of the obligations, `needed` of them, that was worked on; a `comparison` where nothing was found.
    `arithmetic` is what the proofs are about. `start_fails`: at the image itself, the property fails in the runtime.
    """

    needed: int
    proofs: tuple[Proof, ...]
    witness: Counterexample | None
    comparison: Comparison | None
    start: float | None = None
    finite: bool = True
    arithmetic: str = "real"
    start_fails: bool = False

    @cached_property
    def smallest(self) -> float:
        """The smallest margin that a proof of everything rests on; inf where there is none, or only a bound of it."""
        holds = all(proof.holds for proof in self.proofs)
        return min((proof.smallest for proof in self.proofs if holds), default=math.inf)

    @property
    def is_compared(self) -> bool:
        """Whether the runtime's outputs agree with the network's as it was read, in a way that could have failed."""
        compared = self.comparison
        return compared is not None and compared.outputs_agree and compared.tells(self.smallest)

    @property
    def told_up_to(self) -> float:
        """Up to which strength what was proved is about the network that is deployed: by the comparison with it, or as
        the runtime did all the work; 0 where that is not known.
        """
        if not self.finite:
            return 0.0
        if self.comparison is None:
            return math.inf if all(proof.is_deployed for proof in self.proofs) else 0.0
        return self.comparison.told_up_to(self.smallest)

    @property
    def winners_told_up_to(self) -> float:
        """The same of which class wins."""
        return self.told_up_to if self.comparison is None else min(self.told_up_to, self.comparison.winners_told_up_to)

    @property
    def is_proof(self) -> bool:
        """Whether everything is proved, nothing speaks against it, and the runtime was asked, or did all the work."""
        complete = 0 < self.needed == len(self.proofs) and all(proof.holds for proof in self.proofs)
        agreed = self.runtime_agrees and (self.comparison is None or (self.is_compared and self.comparison.holds))
        return complete and agreed and self.finite and self.witness is None and not self.is_misclassified

    @property
    def is_misclassified(self) -> bool:
        return self.start is not None and self.start <= 0

    @property
    def runtime_agrees(self) -> bool:
        """Whether the runtime was asked, and computes what was analysed; or did all the work itself."""
        if self.comparison is None:
            return bool(self.proofs) and all(proof.is_deployed for proof in self.proofs)
        return len(self.comparison.margin) > 0 and self.comparison.is_consistent


def judge(evidence: Evidence) -> tuple[Status, Reason | None]:
    """The verdict that the evidence supports, and if it is none, why."""
    witness, comparison = evidence.witness, evidence.comparison
    if not evidence.finite or (evidence.start is not None and math.isnan(evidence.start)):
        return Status.UNDECIDED, Reason.NOT_FINITE
    if evidence.is_misclassified:
        return (Status.MISCLASSIFIED, None) if evidence.start_fails else (Status.UNDECIDED, Reason.NOT_REPLAYED)
    if witness is not None:
        shown = witness.replayed or (witness.proved and evidence.is_compared)
        return (Status.UNSAFE, None) if shown else (Status.UNDECIDED, _not_shown(evidence))
    if comparison is not None and not comparison.outputs_agree:
        return Status.UNDECIDED, Reason.RUNTIME_DISAGREES
    if comparison is not None and not evidence.is_compared:
        return Status.UNDECIDED, Reason.COMPARISON
    if comparison is not None and not comparison.agrees:
        return Status.UNDECIDED, Reason.RUNTIME_DISAGREES
    if evidence.is_proof:
        return Status.SAFE, None
    return Status.UNDECIDED, _missing(evidence)


def _not_shown(evidence: Evidence) -> Reason:
    """Why a witness that the runtime does not show counts for nothing."""
    if evidence.comparison is None:
        return Reason.NOT_REPLAYED
    if not evidence.comparison.outputs_agree:
        return Reason.RUNTIME_DISAGREES
    return Reason.NOT_REPLAYED if evidence.is_compared else Reason.COMPARISON


def _missing(evidence: Evidence) -> Reason:
    """What the proofs lack."""
    if not all(proof.is_finished for proof in evidence.proofs):
        return Reason.TIMEOUT
    if evidence.arithmetic == "float32":
        return Reason.FLOAT32
    # where all is proved, the property does not hold of a picture on the path whose pixels were rounded
    doubtful = any(proof.is_doubtful for proof in evidence.proofs) or all(proof.holds for proof in evidence.proofs)
    return Reason.ROUNDING if doubtful else Reason.BOUNDS
