"""What an analysis of a network will cost, from a short trial."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from shakeproof.analysis import profile
from shakeproof.budget import now
from shakeproof.model import Deployed, Network, Runtime
from shakeproof.proof import expected
from shakeproof.question import LABEL, Image, Requirement, perturbed
from shakeproof.settings import Settings

# What is tried, on which share of the strengths first: pieces and seconds grow with the strength.
TRIED, LEAST_SHARE, FIRST_SHARE, NEXT_TIMES = "box-blur:size=3", 2.0**-10, 2.0**-6, 8
# What is worked out once about a network (norms of its layers) may take so many times as long as the trial.
PATIENCE = 4
# What is tried with networks that do not classify: it holds, whatever the outputs.
HOLDS = "output:index=0,within=-1e30..1e30"
# A picture with soft shapes in it, like photographs, is made from so many random numbers a side.
BLOBS = 4


@dataclass(frozen=True)
class Estimate:
    """Of one profile from strength 0 to 1: pieces, and seconds here; measured, or expected from a part of it.

    Bounds may take far longer than a part of the strengths suggests: `seconds` is None if they did not get that far.
    """

    perturbation: str
    pieces: int | None
    seconds: float | None
    measured: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.seconds is None:
            return f"a profile ({self.perturbation}) was not finished in a short trial"
        about = "" if self.measured else "about "
        pieces = "" if self.pieces is None else f"{about}{self.pieces} pieces, "
        return f"a profile ({self.perturbation}): {pieces}{about}{self.seconds:.2g} s"


def soft_picture(network: Network) -> Image:
    """A random picture of the network's size, the same every time."""
    channels, height, width = network.picture().image_shape
    small = torch.rand(1, channels, BLOBS, BLOBS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grown = torch.nn.functional.interpolate(small, (height, width), mode="bilinear", align_corners=True)
    return Image("a random picture", grown[0].clamp(0, 1))


def estimated(network: Network, picture: Image | None = None, seconds: float = 3.0) -> Estimate | None:
    """Estimate from a trial of about so many seconds; None without time, or if the network takes no pictures."""
    if seconds <= 0 or network.layout is None:
        return None
    picture, require = picture or soft_picture(network), _required(network)
    prepared = profile(network, picture, TRIED, max_strength=LEAST_SHARE, timeout=PATIENCE * seconds, require=require)
    measured_shares = [
        (LEAST_SHARE, prepared.seconds, prepared.pieces)
    ]  # what is worked out once about a network is in this
    deadline, share = now() + seconds, FIRST_SHARE
    while measured_shares[-1][0] < 1 and prepared.reason != "timeout" and (left := deadline - now()) > 0:
        result = profile(network, picture, TRIED, max_strength=share, timeout=left, require=require)
        if result.reason == "timeout":
            break
        measured_shares.append((share, result.seconds, result.pieces))
        share = 1.0 if _whole(measured_shares) < deadline - now() else min(1.0, share * NEXT_TIMES)
    measured = measured_shares[-1][0] == 1
    exact = network.graph.is_piecewise_linear
    if len(measured_shares) == 1 or not (exact or measured):
        return Estimate(TRIED, None, None, measured=False)
    share, _, pieces = measured_shares[-1]
    return Estimate(TRIED, round(pieces / share) if exact else None, _whole(measured_shares), measured)


def enumeration_estimated(network: Deployed, picture: Image) -> dict[str, Any] | None:
    """The same for running every 8-bit picture; None if no runtime does. Without a picture there is no saying: they may
    have a hundred times as many or as few.
    """
    if not isinstance(network.runtime, Runtime):
        return None
    (query,) = perturbed(network, [picture], TRIED, requirement=_required(network))
    costs = expected(network, query, Settings(pixels="8bit"))
    return {"perturbation": TRIED, **asdict(costs), "text": f"every 8-bit picture ({TRIED}): {costs}: --pixels 8bit"}


def _required(network: Deployed) -> Requirement | str:
    """The requirement of a trial: that the label wins or, if the network does not classify, one that always holds."""
    return LABEL if network.classifies else HOLDS


def _whole(known: list[tuple[float, float, int]]) -> float:
    """Seconds for all strengths, as a line through the last two shares has them."""
    (before, faster, _), (share, seconds, _) = known[-2:]
    return seconds + max(0.0, seconds - faster if before > LEAST_SHARE else seconds) / (share - before) * (1 - share)
