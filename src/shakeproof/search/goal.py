"""What a search is for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AnyFailure:
    """Prove that nothing fails, or find one failure, wherever it is."""


@dataclass(frozen=True)
class FirstFailure:
    """Along one strength: pin down the smallest one at which something fails, this closely."""

    tolerance: float


@dataclass(frozen=True)
class Map:
    """Find out what holds and what fails everywhere, down to parts of this share of each side of the domain."""

    resolution: float


Goal = AnyFailure | FirstFailure | Map
