"""Verdicts: which one evidence supports, and what an answer claims of each part [0, z] of its strengths.

No verdict is what is left over: each is built from evidence of its own. Nothing here needs torch: a table of 100,000
answers takes less time than importing that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shakeproof.errors import InputError

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

    TIMEOUT = "timeout", "the time limit was reached before everything was proved"
    NOT_REPLAYED = "not-replayed", "the label loses by so little that the float32 runtime does not show it"
    ROUNDING = "rounding", "float64 rounding might explain the smallest margin"
    FLOAT32 = "float32", "float32 rounding, in some order of summation, might explain the smallest margin"
    RUNTIME_DISAGREES = "runtime-disagrees", "onnxruntime gives other outputs than the network as it was read"
    COMPARISON = (
        "comparison",
        "float32 noise is too large for this margin: the runtime would agree with another network as well",
    )
    BOUNDS = "bounds", "the bounds are too loose, and nothing is left to split"
    NOT_FINITE = (
        "not-finite",
        "some scores are infinite or NaN; check the weights, mean and std",
    )


# The version of a record's JSON.
FORMAT = 2
# What `shakeproof results` adds to a record: its verdict, and the numbers that it claims.
CLAIMED = ("verdict", "proved_up_to", "lost_from")
# With these reasons, nothing that was proved of the network as it was read is claimed of the deployed one.
UNFOUNDED = {Reason.RUNTIME_DISAGREES, Reason.NOT_FINITE}
REASONS = {reason.value: reason for reason in Reason}
# What Python raises when JSON is no record.
MALFORMED = (KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was found out about a query.

    `start` is the margin at the image itself, of a query about one: NaN where its scores are not finite. There is a
    proof for each of the obligations, `needed` of them, that was worked on; a `comparison` where nothing was found.
    `arithmetic` is what the proofs are about. `start_fails`: at the image itself, the property fails in the runtime.
    """

    needed: int
    proofs: tuple[Proof, ...]
    counterexample: Counterexample | None
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
        return complete and agreed and self.finite and self.counterexample is None and not self.is_misclassified

    @property
    def is_misclassified(self) -> bool:
        return self.start is not None and self.start <= 0

    @property
    def runtime_agrees(self) -> bool:
        """Whether the runtime was compared and agrees, or did all the work itself."""
        if self.comparison is None:
            return bool(self.proofs) and all(proof.is_deployed for proof in self.proofs)
        return len(self.comparison.margin) > 0 and self.comparison.is_consistent


def judge(evidence: Evidence) -> tuple[Status, Reason | None]:
    """The verdict that the evidence supports, and the reason if it is undecided."""
    counterexample, comparison = evidence.counterexample, evidence.comparison
    if not evidence.finite or (evidence.start is not None and math.isnan(evidence.start)):
        return Status.UNDECIDED, Reason.NOT_FINITE
    if evidence.is_misclassified:
        return (Status.MISCLASSIFIED, None) if evidence.start_fails else (Status.UNDECIDED, Reason.NOT_REPLAYED)
    if counterexample is not None:
        shown = counterexample.replayed or (counterexample.proved and evidence.is_compared)
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
    """Why a counterexample that the runtime does not show counts for nothing."""
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


# -- what an answer claims ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """The verdict on all strengths up to `ends`, and two numbers that give the verdict on a part of them.

    The label is proved to win at all strengths from 0 to `proved`, and is shown to lose at a strength of at most
    `lost`; None where nothing is proved, or shown. Of several strengths, both are about the box in which each is at
    most that. Where both are the same, the loss counts: it was seen in the runtime.
    """

    verdict: Status
    ends: tuple[float, ...]
    proved: float | None
    lost: float | None

    def at(self, strength: float) -> Status:
        """The verdict on [0, `strength`]; of several strengths, on the box in which each is at most that.

        Beyond what was asked, it is undecided, unless the label was lost before.
        """
        if self.lost is not None and self.lost <= strength:
            return Status.MISCLASSIFIED if self.verdict is Status.MISCLASSIFIED else Status.UNSAFE
        return Status.SAFE if self.proved is not None and strength <= self.proved else Status.UNDECIDED

    @property
    def critical(self) -> tuple[float, float] | None:
        """Between which strengths the label loses first, of one strength; None where no loss was shown."""
        if self.lost is None or len(self.ends) != 1:
            return None
        return self.proved or 0.0, self.lost


def claim_of(record: Mapping[str, Any]) -> Claim:
    """What a record claims, from its JSON: one rule, for tables, results, reports and evidence.

    An answer that ignores rounding proves nothing: neither its certified nor its critical strength counts, only what
    the runtime showed.
    """
    try:
        check_version(record)
        status, reason, counterexample = Status(record["status"]), record["reason"], record["counterexample"]
        certified, critical = record["certified_strength"], record["critical_strength"]
        ends, is_rigorous = strengths_of(record["strength"]), record["rounding"] == "rigorous"
        if reason is not None and REASONS[reason] in UNFOUNDED:
            return Claim(Status.UNDECIDED, ends, None, None)
        if status is Status.MISCLASSIFIED:
            return Claim(status, ends, None, 0.0)
        if status is Status.SAFE:
            if not is_rigorous:
                return Claim(Status.UNDECIDED, ends, None, None)
            return Claim(status, ends, min(ends, default=None), None)
        proved = certified if is_rigorous and certified > 0 else None
        if status is Status.UNDECIDED:
            return Claim(status, ends, proved, None)
        shown = [max(ends)] if ends else []
        if counterexample is not None and counterexample["strength"] is not None:
            shown.append(max(strengths_of(counterexample["strength"])))
        if is_rigorous and critical is not None:
            shown.append(critical[1])
        lost = min(shown, default=None)
        return Claim(status, ends, proved if proved is None or lost is None else min(proved, lost), lost)
    except MALFORMED as error:
        raise malformed(error) from error


def check_version(record: Mapping[str, Any]) -> None:
    if record["version"] != FORMAT:
        raise InputError(f"a result of version {record['version']} cannot be read, only of version {FORMAT}")


def malformed(error: Exception) -> InputError:
    return InputError(f"not a result as shakeproof writes it ({type(error).__name__}: {error})")


def strengths_of(strength: float | Sequence[float] | None) -> tuple[float, ...]:
    """Strengths as a tuple, whether one, several or none are given."""
    if strength is None:
        return ()
    return (strength,) if isinstance(strength, (int, float)) else tuple(strength)
