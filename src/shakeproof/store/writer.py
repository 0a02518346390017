"""Writing to a store: what a campaign asks, who works on it, and its answers. A write is there as a whole or not."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from shakeproof import __version__
from shakeproof.budget import now
from shakeproof.certificate import LateCertificateError, NoCertificateError, certificate, check_certifiable
from shakeproof.digests import decisive, digest, image_digest, network_digest
from shakeproof.model import Deployed
from shakeproof.proof import Reason, Result
from shakeproof.question import Image, Perturbation
from shakeproof.settings import Settings
from shakeproof.store.connection import closed, explained, opened_to_write, transaction
from shakeproof.store.curves import drawn
from shakeproof.store.reader import Store
from shakeproof.store.rows import (
    CampaignRequirement,
    NamedRequirement,
    model_facts,
    pack_pixels,
    write_perturbation,
    write_requirements,
)
from shakeproof.store.schema import add_answers

# Whoever works on queries counts up in `lease`, every now and then. Whoever else sees the same number for so many
# seconds, by a clock that is never set, may take them. The time of day does not matter on either side.
LEASE = 60
ITEM = "campaign, number, query, image, requirement"
NOW = "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')"
# The kind of error of an answer whose certificate takes too long.
CERTIFICATE = "certificate"
# Which queries have an answer, and which of them need no more work: certificates are not wanted (:certificates is how
# long one may take), or it is there, or cannot be made; or they ended in an error. What ran out of time is asked again
# where more time is given.
ANSWERED = """
    EXISTS (SELECT 1 FROM results WHERE results.query = queries.id
        AND (results.timeout IS NULL OR results.timeout >= :timeout))"""
SETTLED = f"""
    (({ANSWERED} AND (:certificates IS NULL
        OR EXISTS (SELECT 1 FROM results WHERE results.query = queries.id AND results.unproved IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM errors WHERE errors.query = queries.id AND errors.kind = '{CERTIFICATE}'))
        OR EXISTS (SELECT 1 FROM certificates WHERE certificates.query = queries.id)))
    OR EXISTS (SELECT 1 FROM errors WHERE errors.query = queries.id AND (errors.timeout IS NULL
        OR errors.timeout >= CASE errors.kind WHEN '{CERTIFICATE}' THEN :certificates ELSE :timeout END)))"""
WAITING = f"""
    SELECT DISTINCT queries.id, queries.model, queries.image, queries.perturbation, strengths ->> 0,
        queries.requirement, {ANSWERED}
    FROM items JOIN queries ON queries.id = items.query
    WHERE items.campaign = :campaign AND NOT {SETTLED} ORDER BY items.number"""
CLAIM = f"""
    UPDATE queries SET owner = :owner, lease = :beats
    WHERE id IN (SELECT value FROM json_each(:queries)) AND owner IS NULL AND NOT {SETTLED}
    RETURNING id"""
COMPLETE = "SELECT 1 FROM results WHERE query = ? AND timeout IS NULL"
# The widest answer to a question that reaches as far as is asked; of several strengths, only just as far.
KNOWN = """
    SELECT queries.id FROM queries JOIN results ON results.query = queries.id
    WHERE question = :question AND results.timeout IS NULL AND json_array_length(strengths) = 1
        AND strengths ->> 0 >= :strength ORDER BY strengths ->> 0 LIMIT 1"""


class RequirementTexts(NamedTuple):
    """What is required, with numbers for names, as it is asked; and as the campaign says it."""

    asked: str
    written: str


LABEL_WINS = RequirementTexts("label", "label")


@dataclass(frozen=True)
class Item:
    """One image under one perturbation, for one model: numbers of rows of the store, and what makes up the question."""

    model: int
    image: int
    perturbation: int
    question: str
    strengths: tuple[float, ...]
    requirement: RequirementTexts = LABEL_WINS


@dataclass(frozen=True)
class Waiting:
    """A query that has no answer yet, about strengths up to one for all parts, and the text of what is required.

    `is_answered`: it has one, without the certificate that is wanted.
    """

    query: int
    model: int
    image: int
    perturbation: int
    strength: float
    requirement: str
    is_answered: bool


@dataclass(frozen=True)
class Finding:
    """An answer as it is stored. If certificates are wanted, one `is_due`, or `unproved` says why there is none."""

    query: int
    record: dict[str, Any]
    label_predicted: bool
    curve: bytes | None
    is_due: bool = False
    unproved: str | None = None


@dataclass(frozen=True)
class Certified:
    """The certificate of a stored answer, or why there is none. `is_late`: it ran out of time."""

    query: int
    certificate: bytes | None
    unproved: str | None = None
    is_late: bool = False


def finding(query: int, network: Deployed, result: Result, model: str, certificates: bool) -> Finding:
    """The stored form of a result; `model` is the name of the network's file where the campaign runs."""
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


class StoreWriter(Store):
    """A store to be written, by any number of processes at once."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path, connection)
        self.owner, self.beats, self.notices = this_process(), 0, list[str]()
        # What was last seen of other owners: how far they have counted, and since when.
        self.seen: dict[str, tuple[int, float]] = {}

    @classmethod
    def open(cls, path: str | Path) -> Self:
        connection, lost = opened_to_write(Path(path))
        writer = cls(Path(path), connection)
        if lost:
            writer.notices.append(f"{path}-wal: is damaged; answers in {lost} pages of it are lost and are asked again")
        return writer

    def close(self) -> None:
        closed(self.connection)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def add_model(self, network: Deployed, settings: Settings) -> tuple[int, str]:
        """The number of a network's row, and its digest."""
        sha256 = network_digest(network, settings)
        values = {"digest": sha256, "identity": network.identity, "name": network.name, "facts": model_facts(network)}
        return self._added("models", values, "digest = :digest", renewed=("name", "facts")), sha256

    def add_image(self, image: Image) -> tuple[int, str]:
        sha256, (kind, pixels) = image_digest(image.pixels), pack_pixels(image.pixels)
        values = {
            "digest": sha256,
            "name": image.name,
            "label": image.label,
            "shape": json.dumps([*image.pixels.shape]),
        }
        unique = "digest = :digest AND name = :name AND label IS :label"
        return self._added("images", values | {"kind": kind, "pixels": pixels}, unique), sha256

    def add_perturbation(self, perturbation: Perturbation) -> int:
        perturbation.check_straight("answers are stored")
        perturbation.check_of_pictures("answers are stored")
        return self._added(
            "perturbations", {"definition": write_perturbation(perturbation)}, "definition = :definition"
        )

    def begin(
        self,
        name: str,
        file: str,
        toml: str,
        requirement: NamedRequirement,
        strengths: Sequence[float],
        settings: Settings,
        items: Iterable[Item],
        requirements: Iterable[CampaignRequirement] = (),
    ) -> int:
        """A campaign and all that it asks; the same file again is the same campaign. Returns its id."""
        columns = {
            "digest": digest(toml),
            "name": name,
            "file": file,
            "toml": toml,
            "requirement_id": requirement.id,
            "requirement_text": requirement.text,
            "strengths": json.dumps([*strengths]),
            "requirements": write_requirements(requirements),
            "tool": f"shakeproof {__version__}",
        }
        how = json.dumps(asdict(decisive(settings)))
        with self.writing() as connection:
            connection.execute(
                f"INSERT INTO campaigns ({', '.join(columns)}, started, last_run)"
                f" VALUES ({', '.join(map(':{}'.format, columns))}, {NOW}, {NOW})"
                f" ON CONFLICT (digest) DO UPDATE SET last_run = {NOW}, name = :name, file = :file,"
                " tool = :tool, requirements = :requirements",
                columns,
            )
            (campaign,) = connection.execute("SELECT id FROM campaigns WHERE digest = :digest", columns).fetchone()
            connection.execute("DELETE FROM items WHERE campaign = ?", (campaign,))
            for number, item in enumerate(items):
                query = self._query(connection, item, how)
                row = (campaign, number, query, item.image, item.requirement.written)
                connection.execute(f"INSERT INTO items ({ITEM}) VALUES (?, ?, ?, ?, ?)", row)
        return int(campaign)

    def _query(self, connection: sqlite3.Connection, item: Item, how: str) -> int:
        """The number of a query: one that is answered already and reaches as far, or its own."""
        if len(item.strengths) == 1:
            known = {"question": item.question, "strength": item.strengths[0]}
            if (row := connection.execute(KNOWN, known).fetchone()) is not None:
                return int(row[0])
        values = (item.question, json.dumps(item.strengths), item.model, item.image, item.perturbation, how)
        connection.execute(
            "INSERT OR IGNORE INTO queries (question, strengths, model, image, perturbation, settings, requirement)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*values, item.requirement.asked),
        )
        asked = "SELECT id FROM queries WHERE question = ? AND strengths = ?"
        return int(connection.execute(asked, values[:2]).fetchone()[0])

    def forget_errors(self, campaign: int) -> None:
        """Let queries that ended in an error be asked again."""
        of_campaign = "(SELECT query FROM items WHERE campaign = ?)"
        late = f"(SELECT query FROM errors WHERE kind = '{CERTIFICATE}' AND query IN {of_campaign})"
        with self.writing() as connection:
            connection.execute(f"UPDATE results SET unproved = NULL WHERE query IN {late}", (campaign,))
            connection.execute(f"DELETE FROM errors WHERE query IN {of_campaign}", (campaign,))

    # -- who works on it ----------------------------------------------------------------------------------------------

    def waiting(self, campaign: int, timeout: float | None, certificates: float | None) -> list[Waiting]:
        """The queries that a campaign still needs. If certificates are wanted, each may take so long."""
        wanted = {"campaign": campaign, "timeout": timeout, "certificates": certificates}
        return [Waiting(*row) for row in self._rows(WAITING, wanted)]

    def claim(self, queries: Sequence[int], timeout: float | None, certificates: float | None) -> list[int]:
        """Claim, for a while, those of some queries that no process has claimed."""
        wanted = {"queries": json.dumps([*queries]), "timeout": timeout, "certificates": certificates}
        with self.writing() as connection:
            mine = {**wanted, "owner": self.owner, "beats": self.beats}
            taken = {row[0] for row in connection.execute(CLAIM, mine)}
        return [query for query in queries if query in taken]

    def renew(self) -> None:
        """Say that this process is still at work; and what dead or silent ones have left, anybody may take."""
        with self.writing() as connection:
            self.beats += 1
            connection.execute("UPDATE queries SET lease = ? WHERE owner = ?", (self.beats, self.owner))
            others = connection.execute(
                "SELECT owner, max(lease) FROM queries WHERE owner <> ? GROUP BY owner", (self.owner,)
            ).fetchall()
            for owner, beats in others:
                before = self.seen.get(owner)
                if before is None or before[0] != beats:
                    self.seen[owner] = (beats, now())
                if has_ended(owner) or now() - self.seen[owner][1] > LEASE:
                    connection.execute("UPDATE queries SET owner = NULL WHERE owner = ?", (owner,))

    def release(self, queries: Sequence[int] | None = None) -> None:
        """Let others take what this process does not work on any more: some queries, or all."""
        with self.writing() as connection:
            if queries is None:
                connection.execute("UPDATE queries SET owner = NULL WHERE owner = ?", (self.owner,))
            else:
                connection.executemany(
                    "UPDATE queries SET owner = NULL WHERE id = ? AND owner = ?",
                    [(query, self.owner) for query in queries],
                )

    # -- what was found -----------------------------------------------------------------------------------------------

    def add(self, findings: Sequence[Finding], timeout: float | None) -> None:
        """Keep some answers; but one that ran out of time takes no other's place that did not.

        Whose certificate is due stays this process's.
        """
        with self.writing() as connection:
            for answer in findings:
                late = timeout if answer.record["reason"] == "timeout" else None
                if late is not None and connection.execute(COMPLETE, (answer.query,)).fetchone() is not None:
                    self._end(connection, answer.query, "timeout", "the time was up before it was certified", late)
                    continue
                self._keep(connection, answer, late)
                if not answer.is_due:
                    connection.execute("UPDATE queries SET owner = NULL WHERE id = ?", (answer.query,))

    def certify(self, outcomes: Sequence[Certified], timeout: float) -> None:
        """Keep the certificates of answers that are there, or why there are none in so many seconds."""
        with self.writing() as connection:
            for outcome in outcomes:
                connection.execute("DELETE FROM errors WHERE query = ?", (outcome.query,))
                connection.execute("UPDATE queries SET owner = NULL WHERE id = ?", (outcome.query,))
                connection.execute("UPDATE results SET unproved = ? WHERE query = ?", (outcome.unproved, outcome.query))
                if outcome.is_late:
                    assert outcome.unproved is not None
                    self._end(connection, outcome.query, CERTIFICATE, outcome.unproved, timeout)
                if outcome.certificate is not None:
                    connection.execute(
                        "INSERT OR REPLACE INTO certificates (query, sha256, certificate) VALUES (?, ?, ?)",
                        (outcome.query, hashlib.sha256(outcome.certificate).hexdigest(), outcome.certificate),
                    )

    def _keep(self, connection: sqlite3.Connection, answer: Finding, late: float | None) -> None:
        record = answer.record
        connection.execute(
            "INSERT OR REPLACE INTO results (query, timeout, label_predicted, record, curve, unproved, finished)"
            f" VALUES (?, ?, ?, ?, ?, ?, {NOW})",
            (answer.query, late, answer.label_predicted, json.dumps(record), answer.curve, answer.unproved),
        )
        add_answers(connection, [(answer.query, record)])
        connection.execute("DELETE FROM certificates WHERE query = ?", (answer.query,))  # of another answer
        connection.execute("DELETE FROM errors WHERE query = ?", (answer.query,))

    def without_certificates(self, campaign: int) -> tuple[int, str]:
        """How many answers lack a certificate that might be made with more time, and why the first does."""
        without = (
            "SELECT errors.message FROM items JOIN results USING (query) JOIN errors USING (query) WHERE campaign = ?"
        )
        messages = [message for (message,) in self._rows(f"{without} ORDER BY number", (campaign,))]
        return len(messages), next(iter(messages), "")

    def fail(self, query: int, kind: str, message: str, timeout: float | None = None) -> None:
        """A query ends without an answer."""
        with self.writing() as connection:
            self._end(connection, query, kind, message, timeout)

    def _end(self, connection: sqlite3.Connection, query: int, kind: str, message: str, timeout: float | None) -> None:
        connection.execute(
            f"INSERT OR REPLACE INTO errors (query, kind, message, timeout, finished) VALUES (?, ?, ?, ?, {NOW})",
            (query, kind, message, timeout),
        )
        connection.execute("UPDATE queries SET owner = NULL WHERE id = ?", (query,))

    # -- how it is written --------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, its errors explained."""
        with explained(self.path), transaction(self.connection) as connection:
            yield connection

    def _added(self, table: str, values: dict[str, Any], unique: str, renewed: Sequence[str] = ()) -> int:
        """The number of a row, which is made if it is not there."""
        with self.writing() as connection:
            known = connection.execute(f"SELECT id FROM {table} WHERE {unique}", values).fetchone()
            if known is None:
                columns, places = ", ".join(values), ", ".join(map(":{}".format, values))
                row = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({places}) RETURNING id", values)
                return int(row.fetchone()[0])
            if renewed:
                changes = ", ".join(f"{column} = :{column}" for column in renewed)
                connection.execute(f"UPDATE {table} SET {changes} WHERE {unique}", values)
            return int(known[0])


def this_process() -> str:
    """Names a process among all of all machines, also those that have ended."""
    return f"{socket.gethostname()} {os.getpid()} {_started(os.getpid()) or '-'}"


def has_ended(owner: str) -> bool:
    """Whether a process of this machine has ended; of other machines that is not known."""
    host, number, started = owner.rsplit(" ", 2)
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # somebody else's, so it is there
        pass
    return _started(int(number)) not in (started, "")


def _started(process: int) -> str:
    """When a process was started, since another one may have its number later; nothing if the system does not say."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return next(iter(facts[19:]), "")
