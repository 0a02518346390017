"""Campaigns: a data set against every shake. A file says what is asked, a store keeps what was found."""

from shakeproof.campaign.curves import DrawnCurve, drawn
from shakeproof.campaign.findings import Finding, finding
from shakeproof.campaign.ledger import Item, Ledger
from shakeproof.campaign.store import Store
from shakeproof.campaign.stored import (
    Requirement,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
)

__all__ = [
    "DrawnCurve",
    "Finding",
    "Item",
    "Ledger",
    "Requirement",
    "Store",
    "StoredCampaign",
    "StoredError",
    "StoredImage",
    "StoredModel",
    "StoredProfile",
    "drawn",
    "finding",
]
