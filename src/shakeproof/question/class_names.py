"""What classes are called: names from a file, from a model's metadata, or from folders."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from shakeproof.errors import InputError
from shakeproof.files import read_text

MALFORMED = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
# Keys under which models and their configurations keep names, the usual ones first.
KEYS = ("names", "id2label", "classes", "labels", "class_names")


@dataclass(frozen=True)
class ClassNames:
    """The names of each class, the one to show first. Without names, classes are numbers."""

    words: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(entries: Iterable[Any]) -> ClassNames:
        """One entry for each class: its name, or several; `tench, Tinca tinca` is two, and shown as the first.

        What would be shown for two classes is shown with its number.
        """
        words = [_words(entry) for entry in entries]
        often = Counter(first for first, *_ in words)
        return ClassNames(
            tuple((f"{each[0]} ({n})", *each) if often[each[0]] > 1 else each for n, each in enumerate(words))
        )

    def __len__(self) -> int:
        return len(self.words)

    def shown(self, number: int, otherwise: str = "{}") -> str:
        """A class where it is shown; by its number in words of `otherwise` if it has no name."""
        return self.words[number][0] if 0 <= number < len(self.words) else otherwise.format(number)

    def find(self, name: str) -> int | None:
        """The one class that goes by a name; case, spaces, hyphens and underscores do not matter."""
        places = self._places.get(_plain(name), set())
        return next(iter(places)) if len(places) == 1 else None

    def number(self, name: str) -> int:
        """The number of the class with this name; an error that lists the names if there is none."""
        number = self.find(name)
        if number is not None:
            return number
        if not self.words:
            raise InputError(f"label {name!r}: the network's classes have no names, only numbers", option="classes")
        near = [self.words[n][0] for key in get_close_matches(_plain(name), self._places) for n in self._places[key]]
        meant = ", ".join(dict.fromkeys(near)) or ", ".join(first for first, *_ in self.words[:10])
        raise InputError(f"label {name!r} names no class, or several; the classes are {meant}")

    @cached_property
    def _places(self) -> dict[str, set[int]]:
        places: dict[str, set[int]] = {}
        for number, synonyms in enumerate(self.words):
            for word in synonyms:
                places.setdefault(_plain(word), set()).add(number)
        return places


def read_class_names(path: Path | str) -> ClassNames:
    """Names in a file: one on each line, or JSON: [...], {"0": "cat"}, {"cat": 0} or {"0": ["n02123045", "tabby"]}."""
    try:
        return parse_class_names(read_text(Path(path)))
    except MALFORMED as error:
        raise InputError(f"{path}: not a list of class names ({error})") from error


def names_in_metadata(metadata: Mapping[str, str]) -> ClassNames:
    """Class names in a model's metadata, as many exporters write them; empty if there are none."""
    for key in KEYS:
        try:
            return parse_class_names(metadata[key])
        except (KeyError, *MALFORMED):
            continue
    return ClassNames()


def parse_class_names(text: str) -> ClassNames:
    """Names in a text: JSON, the same as Python writes it, or lines. A ValueError if it is none of these."""
    if text.lstrip().startswith(("{", "[")):
        try:
            entries = json.loads(text)
        except ValueError:
            entries = ast.literal_eval(text.strip())
        return ClassNames.of(_listed(entries))
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if len(lines) < 2:  # no network has one class
        lines = [word.strip() for word in text.split(",")]
    numbered = [re.fullmatch(r"(\d{1,9})\s*[:,\s]\s*(\S.*)", line) for line in lines]
    by_number = {int(line[1]): line[2] for line in numbered if line}
    if by_number.keys() == {*range(len(lines))}:
        return ClassNames.of(_listed(by_number))
    return ClassNames.of(lines)


def _listed(entries: Any) -> list[Any]:
    """Entries in the order of their classes."""
    if isinstance(entries, list):
        return entries
    if not isinstance(entries, Mapping):
        raise ValueError(f"a {type(entries).__name__}")
    for key in KEYS:
        if isinstance(entries.get(key), (list, Mapping)):
            return _listed(entries[key])
    if all(isinstance(value, int) for value in entries.values()):
        entries = {number: name for name, number in entries.items()}
    by_number = {int(number): entry for number, entry in entries.items()}
    if sorted(by_number) != [*range(len(by_number))]:
        raise ValueError("its numbers are not 0, 1, 2, ... without gaps")
    return [by_number[number] for number in range(len(by_number))]


def _words(entry: Any) -> tuple[str, ...]:
    """The words for one class: of `["n02123045", "tabby"]` the last is shown, of `tabby, tabby cat` the first."""
    names = [*reversed(entry)] if isinstance(entry, (list, tuple)) else [entry]
    if not names or not all(isinstance(name, (str, int)) for name in names):
        raise ValueError(f"a name that is {entry!r}")
    texts = ["".join(c if c.isprintable() else " " for c in str(name)).strip() for name in names]
    identified = re.fullmatch(r"(n\d{8})\s+(.+)", texts[0])  # as in lists of ImageNet's synsets
    texts = [identified[2], identified[1], *texts[1:]] if identified else texts
    if not all(texts):
        raise ValueError("an empty name")
    words = [part.strip() for text in texts for part in (*text.split(","), text) if part.strip()]
    return tuple(dict.fromkeys(words))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
