"""Parts of a path that were swept: in another process, or before the time was up; kept, and read back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np

from shakeproof.errors import InputError
from shakeproof.exact import Curve
from shakeproof.proof.evidence import Swept
from shakeproof.proof.result import Result
from shakeproof.proof.verdict import Reason

SEAL_BYTES = 32


@dataclass(frozen=True, eq=False)
class SweptWindow:
    """What was found on a part of a path, from `start` to `end`: the curve, as far as the time let it come."""

    start: float
    end: float
    curve: Curve
    late: bool
    seconds: float

    def enumerated(self) -> SweptWindow:
        """The part before the first stretch that was not enumerated."""
        bridged = self.curve.bridged
        if not bridged.any():
            return self
        end = float(self.curve.z[bridged.argmax()])
        return replace(self, end=end, curve=self.curve.up_to(end))

    def packed(self, question: str) -> bytes:
        """As bytes, for a question that is known by its digest; one that begins at 0."""
        curve = self.curve
        columns: dict[str, Any] = {"seconds": np.array(self.seconds), "z": curve.z, "scores": curve.scores}
        columns |= {"error": curve.error, "bridged": curve.bridged}
        columns |= {} if curve.lead is None else {"lead": curve.lead}
        data = BytesIO()
        np.savez(data, **columns)
        return _seal(data.getvalue(), question) + data.getvalue()

    @staticmethod
    def unpacked(data: bytes, question: str, name: str) -> SweptWindow:
        """What `packed` gave for the same question, byte by byte; an error about whatever has this name otherwise."""
        seal, packed = data[:SEAL_BYTES], data[SEAL_BYTES:]
        if seal != _seal(packed, question):
            raise InputError(f"{name}: is not what was kept of this sweep; remove it, and the sweep begins anew")
        said = dict(np.load(BytesIO(packed), allow_pickle=False))
        seconds = float(said.pop("seconds"))
        curve = Curve(**said)  # which checks that rows are finite, increase, and fit what is known between them
        return SweptWindow(0.0, float(curve.z[-1]), curve, late=True, seconds=seconds)


def _seal(packed: bytes, question: str) -> bytes:
    return hashlib.sha256(question.encode() + packed).digest()


def begun_by(result: Result) -> SweptWindow | None:
    """What was swept for an answer, if its time was up: a sweep may go on from there."""
    proof = result.proof
    if result.reason is not Reason.TIMEOUT or not isinstance(proof, Swept) or len(proof.curve.z) < 2:
        return None
    return SweptWindow(0.0, float(proof.curve.z[-1]), proof.curve, late=True, seconds=result.seconds)
