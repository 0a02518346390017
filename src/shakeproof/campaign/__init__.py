"""Campaigns: a data set against every shake. A file says what is asked, a store keeps what was found."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.campaign.asking import ModelFile, Registered, register
    from shakeproof.campaign.curves import DrawnCurve, drawn
    from shakeproof.campaign.desk import Desk, Standing
    from shakeproof.campaign.engines import workers
    from shakeproof.campaign.file import Campaign, read_campaign
    from shakeproof.campaign.findings import Certified, Finding, certified, finding
    from shakeproof.campaign.keeping import keep
    from shakeproof.campaign.ledger import Item, Ledger
    from shakeproof.campaign.local import Pool, default_jobs
    from shakeproof.campaign.store import Store
    from shakeproof.campaign.stored import (
        Requirement,
        StoredCampaign,
        StoredError,
        StoredImage,
        StoredModel,
        StoredProfile,
    )
    from shakeproof.campaign.tables import PaperTable, flat, paper_table, results_line
    from shakeproof.campaign.trial import Forecast, forecast
    from shakeproof.campaign.working import Workbench

# torch takes a second to import, and a table does not need it.
_HOMES = {
    "asking": (
        "ModelFile",
        "Registered",
        "register",
    ),
    "curves": (
        "DrawnCurve",
        "drawn",
    ),
    "desk": (
        "Desk",
        "Standing",
    ),
    "engines": ("workers",),
    "file": (
        "Campaign",
        "read_campaign",
    ),
    "findings": (
        "Certified",
        "Finding",
        "certified",
        "finding",
    ),
    "keeping": ("keep",),
    "ledger": (
        "Item",
        "Ledger",
    ),
    "local": (
        "Pool",
        "default_jobs",
    ),
    "store": ("Store",),
    "stored": (
        "Requirement",
        "StoredCampaign",
        "StoredError",
        "StoredImage",
        "StoredModel",
        "StoredProfile",
    ),
    "tables": (
        "PaperTable",
        "flat",
        "paper_table",
        "results_line",
    ),
    "trial": (
        "Forecast",
        "forecast",
    ),
    "working": ("Workbench",),
}

__all__ = [
    "Campaign",
    "Certified",
    "Desk",
    "DrawnCurve",
    "Finding",
    "Forecast",
    "Item",
    "Ledger",
    "ModelFile",
    "PaperTable",
    "Pool",
    "Registered",
    "Requirement",
    "Standing",
    "Store",
    "StoredCampaign",
    "StoredError",
    "StoredImage",
    "StoredModel",
    "StoredProfile",
    "Workbench",
    "certified",
    "default_jobs",
    "drawn",
    "finding",
    "flat",
    "forecast",
    "keep",
    "paper_table",
    "read_campaign",
    "register",
    "results_line",
    "workers",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"shakeproof.campaign.{module}"), name)
    raise AttributeError(f"module 'shakeproof.campaign' has no attribute {name!r}")
