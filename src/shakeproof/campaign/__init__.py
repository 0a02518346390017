"""Campaigns: a data set against every shake. A file says what is asked, a store keeps what was found."""

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
from shakeproof.campaign.tables import PaperTable, flat, paper_table
from shakeproof.campaign.trial import Forecast, forecast
from shakeproof.campaign.working import Workbench

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
    "workers",
]
