"""Campaigns and their answers: a campaign file lists the queries, a store keeps the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shakeproof import names_on_first_use
from shakeproof.store.flat import COLUMNS, STORED_COLUMNS, csv_lines, flat
from shakeproof.store.judging import Judged, Judgement, judged
from shakeproof.store.reader import Store
from shakeproof.store.rows import (
    CampaignRequirement,
    NamedRequirement,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
    read_perturbation,
)
from shakeproof.store.tables import PaperTable, paper_table

if TYPE_CHECKING:
    from shakeproof.store.campaign_file import Campaign, read_campaign
    from shakeproof.store.curves import DrawnCurve, drawn
    from shakeproof.store.registration import ModelFile, Registered, keep, register
    from shakeproof.store.writer import LEASE, Certified, Finding, Item, StoreWriter, Waiting, certified, finding

# Some need torch, which takes a second to import; a table does not.
__getattr__ = names_on_first_use(__name__, __file__)
