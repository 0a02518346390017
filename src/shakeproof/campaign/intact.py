"""Whether a store says what was written: SQLite notices a page that makes no sense, but not a digit that has changed.

Every row has a checksum of its columns, which triggers of the writing connection keep. Certificates, which may be many
gigabytes, are left out: each ends with a digest of its own, which the checker compares.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from struct import Struct

# The columns that are left out, by table.
TABLES: Mapping[str, tuple[str, ...]] = {
    "models": (),
    "images": (),
    "perturbations": (),
    "campaigns": ("last_run",),
    "queries": ("owner", "lease", "deaths"),
    "items": (),
    "results": (),
    "certificates": ("certificate",),
    "errors": (),
}
DAMAGED = "is damaged; `sqlite3 FILE .recover` may save what is left, or choose another name"
# A write-ahead log has a header, and a header before each page: SQLite's file format, section 4.
LOG_HEADER, FRAME_HEADER = Struct(">8I"), Struct(">6I")


def checksum(*values: object) -> int:
    """Of plain values, in their order."""
    found = 0
    for value in values:
        found = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(errors="surrogateescape"), found)
    return found


def keep_checksums(connection: sqlite3.Connection) -> None:
    """From now on, whatever this connection writes."""
    connection.create_function("checksum", -1, checksum, deterministic=True)
    for table in TABLES:
        own = _key(connection, table)
        for event in ("INSERT", "UPDATE"):
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN"
                f" UPDATE {table} SET checksum = {_checksum(connection, table)} WHERE {own}; END"
            )


def add_checksums(connection: sqlite3.Connection) -> None:
    """To rows of an older version, which had none."""
    connection.create_function("checksum", -1, checksum, deterministic=True)
    for table in TABLES:
        connection.execute(f"UPDATE {table} SET checksum = {_checksum(connection, table)}")


def is_intact(connection: sqlite3.Connection) -> bool:
    """Whether all rows are as they were written."""
    connection.create_function("checksum", -1, checksum, deterministic=True)
    changed = (f"SELECT 1 FROM {table} WHERE checksum IS NOT {_checksum(connection, table)}" for table in TABLES)
    return not any(connection.execute(f"{statement} LIMIT 1").fetchone() for statement in changed)


def lost_frames(connection: sqlite3.Connection, path: Path) -> int:
    """How many pages of the write-ahead log, which a process has left that was killed, SQLite cannot use: damaged ones,
    and those behind them. Pages of a write that was not finished do not count.
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
        finished = max((n for n, own in enumerate(headers, start=1) if own[2:4] in salts and own[1]), default=0)
    (_, used, _) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return max(0, finished - max(int(used), 0))


def _checksum(connection: sqlite3.Connection, table: str) -> str:
    """The expression for a row's."""
    left_out = {"checksum", *TABLES[table]}
    facts = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return f"checksum({', '.join(name for _, name, *_ in facts if name not in left_out)})"


def _key(connection: sqlite3.Connection, table: str) -> str:
    """Which row a trigger is about."""
    facts = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return " AND ".join(f"{name} = NEW.{name}" for _, name, *_, key in facts if key)
