"""Which pictures a campaign asks which model about: words as on the command line, a list in CSV, or a benchmark."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from glob import glob, has_magic
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.files import read_text
from shakeproof.question import Source, one_source, sources

# The heading that a list may begin with.
HEADING = ("path", "label")


@dataclass(frozen=True, eq=False)
class PicturesAsked:
    """A model's file, and the pictures that it is asked about; `labels` has those that a list gives them."""

    model: str
    sources: Sequence[Source]
    labels: Sequence[int | str | None] = field(default_factory=list)


def asked_of_models(
    models: Sequence[str],
    paths: Sequence[str],
    listed: Path | None,
    only: str | None,
    array: str | None,
    labels: str | None,
) -> tuple[PicturesAsked, ...]:
    """Every model about the same pictures: all that some words stand for, or that a list names."""
    files = [file for word in models for file in _model_files(word)]
    rows = [] if listed is None else _rows(listed, array, labels)
    found = [(source, None) for source in sources(paths, array, labels)] if listed is None else rows
    chosen = [own for own in found if only is None or fnmatch(own[0].name, only)]
    if not chosen:
        raise InputError(f"{listed or ', '.join(paths)}: no picture there has a name like {only!r}")
    of_all = [source for source, _ in chosen]
    return tuple(PicturesAsked(file, of_all, [label for _, label in chosen]) for file in dict.fromkeys(files))


def asked_of_benchmark(folder: Path, only: str | None) -> tuple[PicturesAsked, ...]:
    """A VNN-COMP benchmark: a model and a query on each line of instances.csv, and the pictures that the queries hold;
    `only` those with such names.
    """
    instances = folder / "instances.csv"
    found: dict[str, dict[str, None]] = {}
    for number, row in enumerate(_table(instances), start=1):
        if len(row) < 2:
            raise InputError(f"{instances}: line {number} does not name a model and a query")
        if only is None or fnmatch(row[1], only):
            found.setdefault(_packed_or_not(folder / row[0]), {})[_packed_or_not(folder / row[1])] = None
    if not found:
        raise InputError(f"{instances}: lists nothing{'' if only is None else f' with a name like {only!r}'}")
    return tuple(PicturesAsked(model, [one_source(query) for query in queries]) for model, queries in found.items())


def _model_files(word: str) -> list[str]:
    if not has_magic(word) or Path(word).exists():
        return [word]
    found = sorted(glob(word, recursive=True))
    if not found:
        raise InputError(f"{word}: no model has such a name")
    return found


def _rows(file: Path, array: str | None, labels: str | None) -> list[tuple[Source, int | str | None]]:
    """The pictures of a list and their labels: a path on each line, relative to the list, and a class or its name."""
    found: list[tuple[Source, int | str | None]] = []
    for number, row in enumerate(_table(file), start=1):
        if number == 1 and tuple(word.strip().lower() for word in row[:2]) == HEADING:
            continue
        if not 1 <= len(row) <= 2 or not row[0]:
            raise InputError(f"{file}: line {number} is not a path and a label with a comma between them")
        label = row[1].strip() if len(row) > 1 else ""
        source = one_source(str(file.parent / row[0]), array, labels)
        found.append((source, int(label) if label.isdecimal() else label or None))
    return found


def _table(file: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(read_text(file))) if row]
    except csv.Error as error:
        raise InputError(f"{file}: is no CSV ({error})") from error


def _packed_or_not(path: Path) -> str:
    """The file itself, or its packed form."""
    packed = path.with_name(f"{path.name}.gz")
    return str(packed if packed.exists() and not path.exists() else path)
