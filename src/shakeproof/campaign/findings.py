"""An answer as it is kept, in plain values, so that it can come from another process or machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shakeproof.campaign.curves import drawn
from shakeproof.certificate import LateCertificateError, NoCertificateError, certificate, check_certifiable
from shakeproof.model import Deployed
from shakeproof.proof import Reason, Result


@dataclass(frozen=True)
class Finding:
    """What is kept of an answer. If certificates are wanted, one `is_due`, or `unproved` says why there is none."""

    query: int
    record: dict[str, Any]
    label_predicted: bool
    curve: bytes | None
    is_due: bool = False
    unproved: str | None = None


@dataclass(frozen=True)
class Certified:
    """The certificate of an answer that is kept already, or why there is none. `is_late`: the time was too short."""

    query: int
    certificate: bytes | None
    unproved: str | None = None
    is_late: bool = False


def finding(query: int, network: Deployed, result: Result, model: str, certificates: bool) -> Finding:
    """What is kept of a result; `model` is what the network's file is called where the campaign runs."""
    record = result.record
    curve = drawn(result, record.profile)
    unproved = None
    if certificates:
        try:
            check_certifiable(network, result)
        except NoCertificateError as error:
            unproved = str(error)
    return Finding(
        query=query,
        record=replace(record, model=model).to_json(),
        label_predicted=result.query.label_predicted,
        curve=None if curve is None else curve.packed(),
        is_due=certificates and unproved is None,
        unproved=unproved,
    )


def certified(query: int, network: Deployed, result: Result, timeout: float) -> Certified:
    """The certificate of a result, if it is made in so many seconds."""
    try:
        return Certified(query, certificate(network, result, profile=True, timeout=timeout))
    except NoCertificateError as error:
        late = isinstance(error, LateCertificateError) or result.reason is Reason.TIMEOUT
        return Certified(query, None, str(error), late)
