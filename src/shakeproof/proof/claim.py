"""What an answer says about each part [0, z] of its strengths: one rule, for tables, results, reports and evidence.

It needs no torch: a table of 100,000 answers takes less time than importing that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shakeproof.errors import InputError
from shakeproof.proof.verdict import Reason, Status

# The version of a record's JSON.
FORMAT = 2
REASONS = {reason.value: reason for reason in Reason}
# What `shakeproof results` adds to a record: its verdict, and the numbers that it claims.
CLAIMED = ("verdict", "proved_up_to", "lost_from")

# With these reasons, nothing that was proved of the network as it was read is claimed of the deployed one.
UNFOUNDED = {"runtime-disagrees", "not-finite"}

Strengths = float | Sequence[float] | None


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


def claim(
    status: Status,
    reason: Reason | None,
    rounding: str,
    strength: Strengths,
    certified: float,
    critical: Sequence[float] | None,
    witness: Strengths,
) -> Claim:
    """What the fields of a record claim; `witness` has the strengths of its counterexample.

    An answer that ignores rounding proves nothing: neither its certified nor its critical strength counts, only what
    the runtime showed.
    """
    ends, rigorous = several(strength), rounding == "rigorous"
    if reason in UNFOUNDED:
        return Claim(Status.UNDECIDED, ends, None, None)
    if status is Status.MISCLASSIFIED:
        return Claim(status, ends, None, 0.0)
    if status is Status.SAFE:
        return (
            Claim(status, ends, min(ends, default=None), None)
            if rigorous
            else Claim(Status.UNDECIDED, ends, None, None)
        )
    proved = certified if rigorous and certified > 0 else None
    if status is Status.UNDECIDED:
        return Claim(status, ends, proved, None)
    shown = [max(places) for places in (several(witness), ends) if places]
    if rigorous and critical is not None:
        shown.append(critical[1])
    lost = min(shown, default=None)
    return Claim(status, ends, proved if proved is None or lost is None else min(proved, lost), lost)


def claim_of(said: Mapping[str, Any]) -> Claim:
    """What a record claims, from its JSON: the same as `Record.from_json(said).claim`, in a fraction of the time."""
    with Explained():
        check_version(said)
        reason, witness = said["reason"], said["counterexample"]
        return claim(
            status=Status(said["status"]),
            reason=None if reason is None else REASONS[reason],
            rounding=said["rounding"],
            strength=said["strength"],
            certified=said["certified_strength"],
            critical=said["critical_strength"],
            witness=None if witness is None else witness["strength"],
        )


def check_version(said: Mapping[str, Any]) -> None:
    if said["version"] != FORMAT:
        raise InputError(f"a result of version {said['version']} cannot be read, only of version {FORMAT}")


class Explained:
    """What Python raises when JSON is no record, as one line; a class, since `contextmanager` is much slower."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, RecursionError, TypeError, ValueError)):
            raise InputError(f"not a result as shakeproof writes it ({type(error).__name__}: {error})") from error


def several(strength: Strengths) -> tuple[float, ...]:
    """Strengths as a tuple, whether one, several or none are given."""
    if strength is None:
        return ()
    return (strength,) if isinstance(strength, (int, float)) else tuple(strength)
