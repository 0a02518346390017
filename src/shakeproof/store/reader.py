"""One file of answers, by content: what was asked of which model, image and perturbation, and what was found.

    with Store.open("campaign.db") as store:              # nothing is written
        for profile in store.profiles():                  # of the campaign that ran last
            profile.model, profile.image, profile.perturbation, profile.record, profile.curve
        store.campaigns(), store.errors(), store.certificate(profile.query)

`profiles` are `StoredProfile`s: see there, and `StoredModel`, `StoredImage` and `DrawnCurve`, for what they hold. One
profile answers all strengths up to its own: `profile.record.status_at(0.4)`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shakeproof.errors import InputError
from shakeproof.store.connection import explained, opened
from shakeproof.store.rows import (
    NamedRequirement,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
    read_model,
    read_perturbation,
)

if TYPE_CHECKING:
    from shakeproof.question import Perturbation

CAMPAIGNS = """
    SELECT id, name, file, toml, requirement_id, requirement_text, strengths, tool, started, last_run,
        (SELECT count(*) FROM items WHERE campaign = campaigns.id),
        (SELECT count(*) FROM items JOIN results USING (query) WHERE campaign = campaigns.id),
        (SELECT count(*) FROM items JOIN errors USING (query) LEFT JOIN results USING (query)
            WHERE campaign = campaigns.id AND results.query IS NULL)
    FROM campaigns ORDER BY last_run, id"""
# What answers and errors have in common: where they stand in a campaign, and what they are about.
ABOUT = """
    SELECT queries.id, items.number, queries.model, items.image, queries.perturbation, {columns}
    FROM items JOIN queries ON queries.id = items.query JOIN perturbations ON perturbations.id = queries.perturbation
        JOIN models ON models.id = queries.model {joined}
    WHERE items.campaign = :campaign AND (:model IS NULL OR models.name GLOB :model)
        AND (:perturbation IS NULL OR perturbations.definition ->> 'text' GLOB :perturbation) {only}
    ORDER BY items.number"""
PROFILES = ABOUT.format(
    columns="record, curve, label_predicted, settings, certificates.sha256, unproved, results.finished",
    joined="JOIN results ON results.query = queries.id LEFT JOIN certificates ON certificates.query = queries.id",
    only="",
)
RECORDS = ABOUT.format(columns="record", joined="JOIN results ON results.query = queries.id", only="")
ERRORS = ABOUT.format(
    columns="errors.kind, errors.message, errors.finished",
    joined="JOIN errors ON errors.query = queries.id LEFT JOIN results ON results.query = queries.id",
    only="AND results.query IS NULL",
)


class Store:
    """A file of answers, to be read. Open it with `Store.open`, and close it, or use it in a `with` statement."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self.connection = path, connection
        self._model, self._image = cache(self._read_model), cache(self.image)
        self._definition = cache(self._read_definition)

    @classmethod
    def open(cls, path: str | Path) -> Self:
        return cls(Path(path), opened(Path(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    @property
    def size(self) -> int:
        """In bytes."""
        pages, each = (next(self._rows(f"PRAGMA {of}"))[0] for of in ("page_count", "page_size"))
        return int(pages) * int(each)

    def campaigns(self) -> list[StoredCampaign]:
        """All that were run here, the last one at the end."""
        found = []
        for row in self._rows(CAMPAIGNS):
            (number, name, file, toml, requirement, text, strengths, tool, started, last_run, *counts) = row
            about = (number, name, file, toml, NamedRequirement(requirement, text), tuple(json.loads(strengths)))
            found.append(StoredCampaign(*about, tool, started, last_run, *counts))
        return found

    def campaign(self, number: int | None = None) -> StoredCampaign:
        """One by its id, or the last one that was run."""
        found = {campaign.id: campaign for campaign in self.campaigns()}
        if not found:
            raise InputError(f"{self.path}: no campaign was run here yet")
        if number is not None and number not in found:
            raise InputError(f"{self.path}: has no campaign {number}, but {', '.join(map(str, found))}")
        return found[next(reversed(found)) if number is None else number]

    def profiles(
        self,
        campaign: int | None = None,
        model: str | None = None,
        perturbation: str | None = None,
        status: str | None = None,
    ) -> Iterator[StoredProfile]:
        """The answers of a campaign, in its order; of those models and perturbations (patterns with *) only, and only
        with that verdict: an answer that ignores rounding is undecided, whatever it found.
        """
        settings = cache(json.loads)
        for row in self._asked(PROFILES, campaign, model=model, perturbation=perturbation):
            (query, number, own, picture, kernel, record, curve, predicted, how, sha256, unproved, finished) = row
            network, image, said = self._model(own), self._image(picture), _read_record(record)
            said["model"], said["image"] = network.name, image.name
            found = StoredProfile(
                query=query,
                number=number,
                model=network,
                image=image,
                definition=self._definition(kernel),
                said=said,
                packed_curve=curve,
                label_predicted=bool(predicted),
                settings=settings(how),
                certificate=sha256,
                unproved=unproved,
                finished=finished,
            )
            if status is None or found.claim.verdict == status:
                yield found

    def records(self, campaign: int | None = None) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
        """Of each answer of a campaign, all that a table needs: its number, model, perturbation, and its JSON."""
        texts = cache(lambda number: str(json.loads(self._definition(number))["text"]))
        for _, number, own, _, kernel, record in self._asked(RECORDS, campaign, model=None, perturbation=None):
            yield number, self._model(own).name, texts(kernel), _read_record(record)

    def errors(
        self, campaign: int | None = None, model: str | None = None, perturbation: str | None = None
    ) -> Iterator[StoredError]:
        """The queries of a campaign that ended without an answer."""
        for row in self._asked(ERRORS, campaign, model=model, perturbation=perturbation):
            (query, number, own, image, kernel, kind, message, finished) = row
            about = (self._model(own), self._image(image), self._definition(kernel))
            yield StoredError(query, number, *about, kind, message, finished)

    def certificate(self, query: int) -> bytes | None:
        """The certificate of an answer, by `StoredProfile.query`."""
        found = list(self._rows("SELECT certificate FROM certificates WHERE query = ?", (query,)))
        return found[0][0] if found else None

    def image(self, number: int) -> StoredImage:
        """A picture by the number of its row."""
        (row,) = self._rows("SELECT digest, name, label, shape, kind, pixels FROM images WHERE id = ?", (number,))
        digest, name, label, shape, kind, pixels = row
        return StoredImage(digest, name, label, tuple(json.loads(shape)), kind, pixels)

    def perturbation(self, number: int) -> Perturbation:
        """A perturbation by the number of its row."""
        return read_perturbation(self._definition(number))

    def _asked(self, statement: str, campaign: int | None, **only: str | None) -> Iterator[tuple[Any, ...]]:
        return self._rows(statement, {"campaign": self.campaign(campaign).id, **only})

    def _rows(self, statement: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with explained(self.path):
            # through `map`, since `yield from` closes a cursor, perhaps after its connection
            yield from map(tuple, self.connection.execute(statement, values))

    def _read_model(self, number: int) -> StoredModel:
        (row,) = self._rows("SELECT digest, identity, name, facts FROM models WHERE id = ?", (number,))
        return read_model(*row)

    def _read_definition(self, number: int) -> str:
        ((definition,),) = self._rows("SELECT definition FROM perturbations WHERE id = ?", (number,))
        return str(definition)


def _read_record(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise InputError(f"not a result as shakeproof writes it ({type(error).__name__}: {error})") from error
