"""A file of answers, addressed by content: model, image, perturbation and answer.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shakeproof.errors import InputError
from shakeproof.proof import CLAIMED, Claim, Status, strengths_of
from shakeproof.store.connection import check_intact, explained, opened
from shakeproof.store.flat import STORED_COLUMNS, TYPES
from shakeproof.store.rows import (
    NamedRequirement,
    StoredCampaign,
    StoredError,
    StoredImage,
    StoredModel,
    StoredProfile,
    read_image,
    read_model,
    read_perturbation,
    read_requirements,
)

if TYPE_CHECKING:
    from shakeproof.question import Perturbation

CAMPAIGNS = """
    SELECT id, name, file, toml, requirement_id, requirement_text, strengths, requirements, tool, started, last_run,
        count(items.number), count(answers.query), count(errors.query) FILTER (WHERE answers.query IS NULL)
    FROM campaigns LEFT JOIN items ON items.campaign = id LEFT JOIN answers USING (query) LEFT JOIN errors USING (query)
    WHERE :campaign IS NULL OR id = :campaign GROUP BY id ORDER BY last_run, id"""
# What answers and errors have in common: where they stand in a campaign, and what they are about. SQLite keeps the
# order of cross joins, which is that of the items.
ABOUT = """
    SELECT {columns}
    FROM items CROSS JOIN queries ON queries.id = items.query {joined}
    WHERE items.campaign = :campaign
        AND (:model IS NULL OR queries.model IN (SELECT id FROM models WHERE name GLOB :model))
        AND (:perturbation IS NULL OR queries.perturbation IN
            (SELECT id FROM perturbations WHERE definition ->> 'text' GLOB :perturbation)) {only}"""
ANSWERED = "CROSS JOIN answers ON answers.query = items.query"
KEPT = f"{ANSWERED} CROSS JOIN results ON results.query = items.query"
CERTIFIED = "LEFT JOIN certificates ON certificates.query = items.query"
NAMED = "CROSS JOIN models ON models.id = queries.model CROSS JOIN images ON images.id = items.image"
IN_ORDER = "AND (:status IS NULL OR verdict = :status) ORDER BY items.number"
PROFILES = ABOUT.format(
    columns="queries.id, items.number, queries.model, items.image, queries.perturbation,"
    " record, curve, label_predicted, settings, certificates.sha256, unproved, results.finished, items.requirement,"
    f" {', '.join(f'answers.{column}' for column in TYPES)}",
    joined=f"{KEPT} {CERTIFIED}",
    only=IN_ORDER,
)
PLACES = {column: f"answers.{column}" for column in TYPES} | {
    "model": "models.name",
    "image": "images.name",
    "perturbation": "kinds.text",
    "model_sha256": "models.identity",
    "image_sha256": "images.digest",
    "certificate_sha256": "certificates.sha256",
    "finished": "results.finished",
}
FLAT = "WITH kinds AS MATERIALIZED (SELECT id, definition ->> 'text' AS text FROM perturbations)" + ABOUT.format(
    columns=", ".join(map(PLACES.__getitem__, STORED_COLUMNS)),
    joined=f"{KEPT} {CERTIFIED} {NAMED} CROSS JOIN kinds ON kinds.id = queries.perturbation",
    only=IN_ORDER,
)
LINES = ABOUT.format(
    columns=f"record, models.name, images.name, {', '.join(CLAIMED)}", joined=f"{KEPT} {NAMED}", only=IN_ORDER
)
# Answers about a model and a perturbation that count the same at some strengths: the comparisons that tell them apart.
TALLY = ABOUT.format(
    columns="min(items.number), queries.model, queries.perturbation, items.requirement, verdict, min(proved_up_to),"
    " min(lost_from), count(*), sum(seconds)",
    joined=ANSWERED,
    only="GROUP BY queries.model, queries.perturbation, items.requirement, verdict, {proved}, {lost}",
)
# What is asked of every picture, and what is claimed of it, if there is an answer.
CLAIMS = ABOUT.format(
    columns="queries.model, images.digest, queries.perturbation, items.requirement, queries.requirement, strength,"
    " verdict, proved_up_to, lost_from",
    joined="CROSS JOIN images ON images.id = items.image LEFT JOIN answers ON answers.query = items.query",
    only="ORDER BY items.number",
)
PICTURE = "SELECT id, digest, name, label, shape, kind, pixels FROM images"
PICTURES = f"{PICTURE} WHERE id IN ({ABOUT.format(columns='items.image', joined=ANSWERED, only=IN_ORDER)})"
ERRORS = ABOUT.format(
    columns="queries.id, items.number, queries.model, items.image, queries.perturbation,"
    " errors.kind, errors.message, errors.finished, items.requirement, queries.requirement",
    joined="CROSS JOIN errors ON errors.query = items.query LEFT JOIN answers ON answers.query = items.query",
    only="AND answers.query IS NULL ORDER BY items.number",
)
# Where what is about the model and the image of an answer stands in its JSON; inside a text, a quote is never bare.
BEFORE_NAMES, BEHIND_NAMES = ', "model": ', ', "label": '
# No pattern, and any verdict.
UNFILTERED: dict[str, str | None] = {"model": None, "perturbation": None, "status": None}


@dataclass(frozen=True)
class AskedClaim:
    """What is claimed of a picture, by the digest of its pixels; None where there is no answer.

    `requirement` is what the campaign requires, in its words; `asked` has numbers for the names of classes.
    """

    model: StoredModel
    image: str
    perturbation: str
    requirement: str
    asked: str
    claim: Claim | None


class Store:
    """A file of answers, to be read. Open it with `Store.open`, and close it, or use it in a `with` statement."""

    def __init__(self, path: Path, connection: sqlite3.Connection, unchecked: Iterable[str] = ()) -> None:
        self.path, self.connection, self.unchecked = path, connection, {*unchecked}
        self._model, self._image = cache(self._read_model), cache(self.image)
        self._definition = cache(self._read_definition)
        self._text = cache(lambda number: str(json.loads(self._definition(number))["text"]))

    @classmethod
    def open(cls, path: str | Path) -> Self:
        return cls(Path(path), *opened(Path(path)))

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
        return [*self._campaigns(None)]

    def campaign(self, number: int | None = None) -> StoredCampaign:
        """One by its id, or the last one that was run."""
        return next(self._campaigns(self._known(number)))

    def _campaigns(self, campaign: int | None) -> Iterator[StoredCampaign]:
        for row in self._rows(CAMPAIGNS, {"campaign": campaign}):
            (number, name, file, toml, requirement, text, strengths, judged, *run) = row
            about = (number, name, file, toml, NamedRequirement(requirement, text), tuple(json.loads(strengths)))
            yield StoredCampaign(*about, read_requirements(judged), *run)

    def _known(self, number: int | None) -> int:
        """The id of a campaign, or of the last one that was run."""
        known = [row[0] for row in self._rows("SELECT id FROM campaigns ORDER BY last_run, id")]
        if not known:
            raise InputError(f"{self.path}: holds no campaign yet")
        if number is not None and number not in known:
            raise InputError(f"{self.path}: has no campaign {number}, but {', '.join(map(str, known))}")
        return known[-1] if number is None else number

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
        settings, only = cache(json.loads), {"model": model, "perturbation": perturbation, "status": status}
        images = {row[0]: read_image(*row[1:]) for row in self._asked(PICTURES, campaign, **only)}
        for row in self._asked(PROFILES, campaign, **only):
            about, columns = row[:13], row[13:]
            (query, number, network, picture, kernel, record, curve, predicted, how, sha256, unproved, *rest) = about
            finished, requirement = rest
            yield StoredProfile(
                query=query,
                number=number,
                model=self._model(network),
                image=images[picture],
                definition=self._definition(kernel),
                text=record,
                values=dict(zip(TYPES, columns, strict=True)),
                packed_curve=curve,
                label_predicted=bool(predicted),
                settings=settings(how),
                certificate=sha256,
                unproved=unproved,
                finished=finished,
                requirement=requirement,
            )

    def rows(self, campaign: int | None = None, **only: str | None) -> Iterator[tuple[Any, ...]]:
        """The same as flat rows, in the `STORED_COLUMNS`."""
        return self._asked(FLAT, campaign, **{**UNFILTERED, **only})

    def lines(self, campaign: int | None = None, **only: str | None) -> Iterator[str]:
        """The same as lines of JSON, with the claims."""
        quoted = cache(json.dumps)
        verdict_key, proved_key, lost_key = (f', "{key}": ' for key in CLAIMED)
        for record, model, image, verdict, *numbers in self._asked(LINES, campaign, **{**UNFILTERED, **only}):
            names, behind = record.find(BEFORE_NAMES), record.find(BEHIND_NAMES)
            if names < 0 or behind < 0:
                raise InputError("not a result as shakeproof writes it")
            proved, lost = ("null" if number is None else repr(number) for number in numbers)
            yield (
                f'{record[:names]}{BEFORE_NAMES}{quoted(model)}, "image": {quoted(image)}{record[behind:-1]}'
                f'{verdict_key}"{verdict}"{proved_key}{proved}{lost_key}{lost}}}\n'
            )

    def claims(self, campaign: int | None = None) -> Iterator[AskedClaim]:
        """What is claimed of everything that a campaign asks, in its order."""
        for row in self._asked(CLAIMS, campaign, **UNFILTERED):
            model, digest, perturbation, requirement, asked, strength, verdict, proved, lost = row
            ends = strengths_of(json.loads(strength) if isinstance(strength, str) else strength)
            claim = None if verdict is None else Claim(Status(verdict), ends, proved, lost)
            yield AskedClaim(self._model(model), digest, self._text(perturbation), requirement, asked, claim)

    def tally(self, campaign: StoredCampaign) -> Iterator[tuple[int, str, str, str, Claim, int, float]]:
        """How many answers about a model, a perturbation and a requirement claim the same at the campaign's strengths
        as one of them, and the seconds they took; the number of the first comes first.
        """
        places = {f"z{number}": strength for number, strength in enumerate(campaign.strengths)}
        proved_sides, lost_sides = (
            " + ".join([f"({side} :{z})" for z in places]) or "NULL" for side in ("proved_up_to >=", "lost_from <=")
        )
        statement = TALLY.format(proved=proved_sides, lost=lost_sides)
        for row in self._asked(statement, campaign.id, **{**UNFILTERED, **places}):
            number, model, perturbation, requirement, verdict, proved, lost, count, seconds = row
            claim = Claim(Status(verdict), (), proved, lost)
            yield number, self._model(model).name, self._text(perturbation), requirement, claim, count, seconds

    def errors(
        self, campaign: int | None = None, model: str | None = None, perturbation: str | None = None
    ) -> Iterator[StoredError]:
        """The queries of a campaign that ended without an answer."""
        for row in self._asked(ERRORS, campaign, model=model, perturbation=perturbation):
            (query, number, network, image, kernel, *ended) = row
            yield StoredError(query, number, self._model(network), self._image(image), self._definition(kernel), *ended)

    def certificate(self, query: int) -> bytes | None:
        """The certificate of an answer, by `StoredProfile.query`."""
        rows = list(self._rows("SELECT certificate FROM certificates WHERE query = ?", (query,)))
        return rows[0][0] if rows else None

    def image(self, number: int) -> StoredImage:
        """A picture by the number of its row."""
        ((_, *facts),) = self._rows(f"{PICTURE} WHERE id = ?", (number,))
        return read_image(*facts)

    def perturbation(self, number: int) -> Perturbation:
        """A perturbation by the number of its row."""
        return read_perturbation(self._definition(number))

    def _asked(self, statement: str, campaign: int | None, **only: float | str | None) -> Iterator[tuple[Any, ...]]:
        return self._rows(statement, {"campaign": self._known(campaign), **only})

    def _rows(self, statement: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with explained(self.path):
            tables = {table for table in self.unchecked if table in statement}
            if tables:
                self.unchecked -= tables
                check_intact(self.connection, self.path, tables)
            # through `map`, since `yield from` closes a cursor, perhaps after its connection
            yield from map(tuple, self.connection.execute(statement, values))

    def _read_model(self, number: int) -> StoredModel:
        (row,) = self._rows("SELECT digest, identity, name, facts FROM models WHERE id = ?", (number,))
        return read_model(*row)

    def _read_definition(self, number: int) -> str:
        ((definition,),) = self._rows("SELECT definition FROM perturbations WHERE id = ?", (number,))
        return str(definition)
