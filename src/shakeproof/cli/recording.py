"""`--output FILE`: appends each answer as soon as it is known; `--resume` answers only the queries that are missing."""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof.cli.queries import Asked, Known
from shakeproof.errors import InputError, Refusal
from shakeproof.files import check_regular, write_whole

if TYPE_CHECKING:
    from shakeproof.analysis import Begun
    from shakeproof.cli.queries import Answer
    from shakeproof.model import Deployed
    from shakeproof.proof import Result
    from shakeproof.question import Query
    from shakeproof.settings import Settings

ENDINGS = (".jsonl", ".csv")
# How a line of JSON begins.
START = b'{"question": "'


class Recording:
    """A file of answers that grows by whole lines. Each has the digest of its question, by which it is found again."""

    def __init__(self, path: Path, settings: Settings) -> None:
        from shakeproof.store import COLUMNS

        self.path, self.settings, self.is_table = path, settings, path.suffix.lower() == ".csv"
        self.columns = ("question", *COLUMNS)
        self.header = ",".join(self.columns).encode()
        try:
            self.file = path.open("ab", buffering=0)
            self.known = dict(self._read())
            if self.is_table and not path.stat().st_size:
                self._append(self.header + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def left(self, asked: Asked) -> Asked:
        """The queries, with the known answer in place of a query that was answered."""
        return replace(asked, queries=(self._known(asked_query) for asked_query in asked.queries))

    def add(self, answer: Answer) -> None:
        """Write an answer down; a line is there as a whole or not at all."""
        from shakeproof.store import csv_lines, flat

        _, network, result = answer
        late = result.reason == "timeout"
        if late:
            self.keep(network, result)
        row = {"question": question(network, result.query, self.settings, late)} | result.to_json()
        line = next(csv_lines([flat(row, self.columns)])) if self.is_table else f"{json.dumps(row)}\n"
        self._append(line.encode(errors="surrogateescape"))
        part = self._part(network, result.query)
        if not late and part.exists():
            part.unlink()
            with suppress(OSError):  # there are others
                part.parent.rmdir()

    def keep(self, network: Deployed, result: Result) -> None:
        """Save the partial result of an answer that ran out of time."""
        from shakeproof.proof import begun_by

        part, begun = self._part(network, result.query), begun_by(result)
        if begun is not None:
            write_whole({part: begun.packed(part.stem)})

    def begun(self, network: Deployed, query: Query) -> Begun | None:
        """The saved partial result of a query that ran out of time."""
        from shakeproof.proof import EnumeratedWindow, SweptWindow

        part = self._part(network, query)
        if not part.exists():
            return None
        check_regular(part)
        try:
            kind = SweptWindow if self.settings.pixel_rounding is None else EnumeratedWindow
            return kind.unpacked(part.read_bytes(), part.stem, str(part))
        except OSError as error:
            raise InputError(f"{part}: cannot be read ({error.strerror})") from error

    def _known(self, asked_query: tuple[Deployed, Query] | Refusal | Known) -> tuple[Deployed, Query] | Refusal | Known:
        if not isinstance(asked_query, tuple):
            return asked_query
        begun = self._part(*asked_query).exists()
        asked = (question(*asked_query, self.settings, late) for late in ([False] if begun else [False, True]))
        return next((Known(self.known[digest]) for digest in asked if digest in self.known), asked_query)

    def _part(self, network: Deployed, query: Query) -> Path:
        """The file for the partial result of a query that ran out of time."""
        return self.path.with_name(f"{self.path.name}.parts") / f"{question(network, query, self.settings)}.sweep"

    def _read(self) -> Iterator[tuple[str, str]]:
        """The questions that are answered here, and how; a last line of ours that was torn off is dropped."""
        text = self.path.read_bytes()
        *lines, torn = text.split(b"\n")
        if self.is_table and lines and lines.pop(0) != self.header:
            raise self._strange(1)
        for number, line in enumerate(lines, start=1 + self.is_table):
            try:
                yield self._answer(line.decode(errors="surrogateescape"))
            except (KeyError, RecursionError, TypeError, ValueError, csv.Error):
                raise self._strange(number) from None
        start = b"" if self.is_table and b"\n" in text else self.header if self.is_table else START
        if not start.startswith(torn[: len(start)]):
            raise self._strange(len(lines) + 1)
        self.file.truncate(len(text) - len(torn))

    def _answer(self, line: str) -> tuple[str, str]:
        """A line's question, and how it was answered."""
        from shakeproof.proof import Status

        answer = dict(zip(self.columns, next(csv.reader([line])), strict=True)) if self.is_table else json.loads(line)
        return str(answer["question"]), Status(answer["status"])

    def _strange(self, number: int) -> InputError:
        return InputError(f"{self.path}: line {number} is not what shakeproof writes; choose another name")

    def _append(self, line: bytes) -> None:
        before = self.file.seek(0, os.SEEK_END)
        try:
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            self.file.truncate(before)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"{self.path}: cannot be written ({error.strerror}); free some space, or choose another folder"
        )


def question(network: Deployed, query: Query, settings: Settings, late: bool = False) -> str:
    """The key of an answer: the digest of its query, the names in its line, and the largest strength.

    How long one was willing to wait matters only to an answer for which that was not enough (`late`).
    """
    from shakeproof.digests import digest, query_digest

    waited = settings.timeout if late else None
    names = network.name, query.name
    return digest((query_digest(network, query, settings), names, query.strengths, waited))[:24]
