"""A store's file: opened, made or brought up to date; and what goes wrong with it, in one line each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.files import check_regular
from shakeproof.store.schema import (
    ANSWERS,
    APPLICATION,
    DAMAGED,
    STEPS,
    TABLES,
    VERSION,
    WITH_CHECKSUMS,
    add_checksum_function,
    add_checksums,
    fill_answers,
    has_answers,
    is_intact,
    keep_checksums,
    lost_frames,
    show_added,
)

# Another program may keep the file to itself for so many seconds.
PATIENCE = 20.0
# What SQLite's errors mean to whoever reads them; {} is the file.
SENTENCES = {
    "SQLITE_FULL": "{}: the disk is full; make room and start again: what was answered is kept",
    "SQLITE_IOERR": "{}: cannot be read or written ({}); see to the disk and start again: what was answered is kept",
    "SQLITE_READONLY": "{}: cannot be written; choose a store that you may write to",
    "SQLITE_CANTOPEN": "{}: cannot be opened; choose a folder that you may write to",
    "SQLITE_BUSY": "{}: another program has locked it; wait for it to end, or end it, and start again",
    "SQLITE_LOCKED": "{}: another program has locked it; wait for it to end, or end it, and start again",
    "SQLITE_NOTADB": "{}: is not a shakeproof store; choose another name",
    "SQLITE_CORRUPT": f"{{}}: {DAMAGED}",
}


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except UnicodeDecodeError as error:  # in what SQLite says of it
        raise InputError(f"{path}: {DAMAGED}") from error
    except sqlite3.Error as error:
        name = str(getattr(error, "sqlite_errorname", ""))
        sentence = next((words for begin, words in SENTENCES.items() if name.startswith(begin)), None)
        raise InputError((sentence or "{}: cannot be used as a store ({})").format(path, error)) from error


def opened(path: Path) -> tuple[sqlite3.Connection, Iterable[str]]:
    """A connection for reading a store, and the tables whose checksums are still to be checked."""
    check_regular(path)
    if not path.exists():
        raise InputError(f"{path}: no such store; shakeproof campaign creates one")
    with explained(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
        version = _version(connection, path)
        if not version:
            raise InputError(f"{path}: is empty; shakeproof campaign creates a store")
        add_checksum_function(connection)
        unchecked = {*TABLES} if version >= WITH_CHECKSUMS else set()
        if version < VERSION:
            show_added(connection)
        if not has_answers(connection):
            connection.execute(ANSWERS.replace("TABLE", "TEMP TABLE", 1))
            fill_answers(connection)
            unchecked -= {"answers"}
        return connection, unchecked


def opened_to_write(path: Path) -> tuple[sqlite3.Connection, int]:
    """A connection to a store of this version, or a new one; and how many pages of its log were lost."""
    check_regular(path)
    with explained(path):
        connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        lost = lost_frames(connection, path)
        version = _version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a kill loses nothing; a power cut the last moments
        add_checksum_function(connection)
        if version < VERSION or not has_answers(connection):
            with transaction(connection):
                _bring_up_to_date(connection, path)
        if connection.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise InputError(f"{path}: {DAMAGED}")
        check_intact(connection, path, TABLES)
        keep_checksums(connection)
        return connection, lost


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection, path)  # another program may have been quicker
    if version >= WITH_CHECKSUMS:
        check_intact(connection, path, TABLES.keys() - {"answers"})
    for step in STEPS[version:]:
        for statement in step.split(";\n"):
            connection.execute(statement)
    connection.execute("DROP TABLE IF EXISTS answers")
    connection.execute(ANSWERS)
    fill_answers(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    add_checksums(connection, TABLES if version < VERSION else ["answers"])


def check_intact(connection: sqlite3.Connection, path: Path, tables: Iterable[str]) -> None:
    """An error if some rows of these tables are not as they were written."""
    if not is_intact(connection, tables):
        raise InputError(f"{path}: {DAMAGED}")


def closed(connection: sqlite3.Connection) -> None:
    """Leave one file that can be copied, and read where nothing can be written; unless others are at work on it."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Of a store; 0 for a file that is empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise InputError(f"{path}: is not a shakeproof store; choose another name")
    if version > VERSION:
        raise InputError(
            f"{path}: was written by a newer shakeproof (version {version} of the store, this one knows {VERSION});"
            " install that, or choose another name"
        )
    return int(version)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
