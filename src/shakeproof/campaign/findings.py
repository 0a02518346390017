"""An answer as it is kept, in plain values, so that it can come from another process or machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shakeproof.campaign.curves import drawn
from shakeproof.certificate import NoCertificateError, certificate
from shakeproof.network import Deployed
from shakeproof.result import Result


@dataclass(frozen=True)
class Finding:
    """What is kept of an answer. A certificate, if one is wanted, or why there is none."""

    query: int
    record: dict[str, Any]
    label_predicted: bool
    curve: bytes | None
    certificate: bytes | None = None
    unproved: str | None = None


def finding(query: int, network: Deployed, result: Result, model: str, certificates: bool) -> Finding:
    """What is kept of a result; `model` is what the network's file is called where the campaign runs."""
    record = result.record
    curve = drawn(result, record.profile)
    proof = unproved = None
    if certificates:
        try:
            proof = certificate(network, result, profile=True)
        except NoCertificateError as error:
            unproved = str(error)
    return Finding(
        query=query,
        record=replace(record, model=model).to_json(),
        label_predicted=result.query.label_predicted,
        curve=None if curve is None else curve.packed(),
        certificate=proof,
        unproved=unproved,
    )
