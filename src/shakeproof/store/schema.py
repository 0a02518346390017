"""The tables of a store, the migration of older files, and the check of their checksums.

SQLite notices a page that makes no sense, but not a digit that has changed. So every row has a checksum of its columns,
which triggers of the writing connection keep. Certificates, which may be many gigabytes, are left out: each ends with a
digest of its own, which the checker compares.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from shakeproof.proof import verdict
from shakeproof.store.flat import TYPES, flat, read_record, with_claim

DAMAGED = "is damaged; `sqlite3 FILE .recover` may save what is left, or choose another name"
# The tables, and their columns that are no part of the checksum.
TABLES: Mapping[str, tuple[str, ...]] = {
    "models": (),
    "images": (),
    "perturbations": (),
    "campaigns": ("last_run",),
    "queries": ("owner", "lease", "deaths"),
    "items": (),
    "results": (),
    "answers": (),
    "certificates": ("certificate",),
    "errors": (),
}
# Answers as flat rows, worked out from their JSON when that is written. What they claim is kept, too, so the statement
# names the rule: a store whose table was made by another statement gets it anew.
RULE = hashlib.sha256(Path(verdict.__file__).read_bytes()).hexdigest()
ANSWERS = f"""CREATE TABLE answers /* {RULE} */ (query INTEGER PRIMARY KEY REFERENCES results,
    {", ".join(f"{name} {kind}" for name, kind in TYPES.items())}, checksum INTEGER) STRICT"""
# Identifies the file as ours, among all that SQLite keeps; "shak" in ASCII.
APPLICATION = 0x7368616B
# Columns of the fourth version; in older stores, all have these values.
ADDED = {
    "queries": "requirement TEXT NOT NULL DEFAULT 'label'",
    "items": "requirement TEXT NOT NULL DEFAULT 'label'",
    "campaigns": "requirements TEXT NOT NULL DEFAULT '[]'",
}
# Every step leads from a version to the next one; a new store takes all of them.
STEPS = (
    """
    -- A network as it was asked about: `digest` is of all that its answers depend on, `identity` of its file.
    CREATE TABLE models (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, identity TEXT NOT NULL, name TEXT NOT NULL,
        facts TEXT NOT NULL) STRICT;
    -- Pixels as they were perturbed; `digest` is theirs alone.
    CREATE TABLE images (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL, name TEXT NOT NULL, label INTEGER, shape TEXT NOT NULL,
        kind TEXT NOT NULL, pixels BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX image_by_content ON images (digest, name, ifnull(label, -1));
    CREATE TABLE perturbations (id INTEGER PRIMARY KEY, definition TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE campaigns (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, file TEXT NOT NULL, toml TEXT NOT NULL,
        requirement_id TEXT NOT NULL, requirement_text TEXT NOT NULL, strengths TEXT NOT NULL, tool TEXT NOT NULL,
        started TEXT NOT NULL, last_run TEXT NOT NULL) STRICT;
    -- What is asked, once, whichever campaigns ask it. `owner` works on it and counts on in `lease`; `deaths` counts
    -- the workers that died of it.
    CREATE TABLE queries (
        id INTEGER PRIMARY KEY, question TEXT NOT NULL, strengths TEXT NOT NULL,
        model INTEGER NOT NULL REFERENCES models, image INTEGER NOT NULL REFERENCES images,
        perturbation INTEGER NOT NULL REFERENCES perturbations, settings TEXT NOT NULL, owner TEXT,
        lease INTEGER, deaths INTEGER NOT NULL DEFAULT 0, UNIQUE (question, strengths)) STRICT;
    CREATE TABLE items (
        campaign INTEGER NOT NULL REFERENCES campaigns, number INTEGER NOT NULL,
        query INTEGER NOT NULL REFERENCES queries, image INTEGER NOT NULL REFERENCES images,
        PRIMARY KEY (campaign, number)) STRICT, WITHOUT ROWID;
    CREATE INDEX item_by_query ON items (query);
    -- Answers. `timeout` is what was allowed, where it was not enough; `unproved` says why there is no certificate.
    CREATE TABLE results (
        query INTEGER PRIMARY KEY REFERENCES queries, status TEXT NOT NULL, reason TEXT, timeout REAL,
        label_predicted INTEGER NOT NULL, record TEXT NOT NULL, curve BLOB, unproved TEXT, finished TEXT NOT NULL)
        STRICT;
    CREATE TABLE certificates (
        query INTEGER PRIMARY KEY REFERENCES results, sha256 TEXT NOT NULL, certificate BLOB NOT NULL) STRICT;
    -- Queries that ended without an answer, and why.
    CREATE TABLE errors (
        query INTEGER PRIMARY KEY REFERENCES queries, kind TEXT NOT NULL, message TEXT NOT NULL, timeout REAL,
        finished TEXT NOT NULL) STRICT;
    """,
    # Checksums of rows.
    ";\n".join(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER" for table in TABLES if table != "answers"),
    # Flat rows hold the status and the reason.
    "ALTER TABLE results DROP COLUMN status;\nALTER TABLE results DROP COLUMN reason",
    # What is required: of a query with numbers for names, of an item as its campaign says it; and what that judges.
    ";\n".join(f"ALTER TABLE {table} ADD COLUMN {column}" for table, column in ADDED.items()),
)
# Checksums of the second version were made in another way: its rows count as rows without.
VERSION, WITH_CHECKSUMS = len(STEPS), 3
# A write-ahead log has a header, and a header before each page: SQLite's file format, section 4.
LOG_HEADER, FRAME_HEADER = Struct(">8I"), Struct(">6I")


def add_answers(connection: sqlite3.Connection, answers: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Keep answers, by the numbers of their queries, as flat rows."""
    connection.executemany(
        f"INSERT OR REPLACE INTO answers ({', '.join(('query', *TYPES))}) VALUES (?{', ?' * len(TYPES)})",
        ((query, *flat(with_claim(answer), TYPES)) for query, answer in answers),
    )


def fill_answers(connection: sqlite3.Connection) -> None:
    """Give every answer that has none its flat row."""
    missing = "SELECT query, record FROM results WHERE query NOT IN (SELECT query FROM answers)"
    add_answers(connection, ((query, read_record(record)) for query, record in connection.execute(missing).fetchall()))


def has_answers(connection: sqlite3.Connection) -> bool:
    """Whether the store has them as flat rows, with the columns and the claims of today."""
    statement = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'answers'").fetchone()
    return bool(statement == (ANSWERS,))


def show_added(connection: sqlite3.Connection) -> None:
    """Let an older store, which is only read, have the columns of today."""
    for table, column in ADDED.items():
        name, _, value = column.partition(" TEXT NOT NULL DEFAULT ")
        connection.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {value} AS {name} FROM main.{table}")


def add_checksum_function(connection: sqlite3.Connection) -> None:
    connection.create_function("crc32", -1, zlib.crc32, deterministic=True)


def keep_checksums(connection: sqlite3.Connection) -> None:
    """From now on, every row that this connection writes gets its checksum."""
    for table in TABLES:
        facts = connection.execute(f"PRAGMA table_info({table})").fetchall()
        row = " AND ".join(f"{name} = NEW.{name}" for _, name, *_, key in facts if key)
        for event in ("INSERT", "UPDATE"):
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN"
                f" UPDATE {table} SET checksum = {_checksum_of_row(connection, table)} WHERE {row}; END"
            )


def add_checksums(connection: sqlite3.Connection, tables: Iterable[str]) -> None:
    """To rows that have none."""
    for table in tables:
        connection.execute(f"UPDATE {table} SET checksum = {_checksum_of_row(connection, table)}")


def is_intact(connection: sqlite3.Connection, tables: Iterable[str]) -> bool:
    """Whether all rows are as they were written."""
    changed = (
        f"SELECT 1 FROM main.{table} WHERE checksum IS NOT {_checksum_of_row(connection, table)}" for table in tables
    )
    return not any(connection.execute(f"{statement} LIMIT 1").fetchone() for statement in changed)


def _checksum_of_row(connection: sqlite3.Connection, table: str) -> str:
    """The SQL expression for it: of all columns as text, then of those that are bytes."""
    facts = connection.execute(f"PRAGMA main.table_info({table})").fetchall()
    kinds = {name: kind for _, name, kind, *_ in facts if name not in {"checksum", *TABLES[table]}}
    exact = {"REAL", "ANY"}  # `quote` prints all digits of a number
    texts = [f"quote({name})" if kind in exact else name for name, kind in kinds.items() if kind != "BLOB"]
    expression = f"crc32(CAST(printf('{'%s,' * len(texts)}', {', '.join(texts)}) AS BLOB))"
    for name in (name for name, kind in kinds.items() if kind == "BLOB"):
        expression = f"crc32(ifnull({name}, x''), {expression})"
    return expression


def lost_frames(connection: sqlite3.Connection, path: Path) -> int:
    """How many pages of the write-ahead log, which a killed process has left, SQLite cannot use: damaged ones, and
    those behind them. Pages of a write that was not finished do not count.
    """
    log = Path(f"{path}-wal")
    data = log.read_bytes() if log.exists() else b""
    finished = 0
    if len(data) >= LOG_HEADER.size + FRAME_HEADER.size:
        size = LOG_HEADER.unpack_from(data)[2]
        step = FRAME_HEADER.size + size
        starts = range(LOG_HEADER.size, len(data) - step + 1, step) if 512 <= size <= 65536 else range(0)
        headers = [FRAME_HEADER.unpack_from(data, start) for start in starts]
        salts = {header[2:4] for header in headers[:1]} | {LOG_HEADER.unpack_from(data)[4:6]}
        # the last page of a write says how large the file is then
        finished = max(
            (n for n, header in enumerate(headers, start=1) if header[2:4] in salts and header[1]), default=0
        )
    (_, used, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return max(0, finished - max(int(used), 0))
