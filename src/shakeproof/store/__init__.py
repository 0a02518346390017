"""Campaigns and their answers: a file says what is asked of a data set, a store keeps the answers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shakeproof.store.flat import COLUMNS, STORED_COLUMNS, csv_lines, flat
from shakeproof.store.reader import Store
from shakeproof.store.rows import (
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

# These need torch, which takes a second to import; a table does not.
_HOMES = {
    "campaign_file": "Campaign read_campaign",
    "curves": "DrawnCurve drawn",
    "registration": "ModelFile Registered keep register",
    "writer": "LEASE Certified Finding Item StoreWriter Waiting certified finding",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"shakeproof.store.{_HOME_OF[name]}"), name)
