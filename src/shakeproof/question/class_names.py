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
    """For each class the words that it goes by, the one to be shown first. Without any, classes are numbers."""

    words: tuple[tuple[str, ...], ...] = ()

    @staticmethod
    def of(entries: Iterable[Any]) -> ClassNames:
        """One entry for each class: its name, or several; `tench, Tinca tinca` is two, and shown as the first.

        What would be shown for two classes is shown with its number.
        """
        words = [_words(entry) for entry in entries]
        shown = Counter(own[0] for own in words)
        numbered = ((f"{own[0]} ({n})", *own) if shown[own[0]] > 1 else own for n, own in enumerate(words))
        return ClassNames(tuple(numbered))

    def __len__(self) -> int:
        return len(self.words)

    def shown(self, number: int, otherwise: str = "{}") -> str:
        """A class where it is shown; by its number in words of `otherwise` if it has no name."""
        return self.words[number][0] if 0 <= number < len(self.words) else otherwise.format(number)

    def find(self, name: str) -> int | None:
        """The one class that goes by a name; case, spaces, hyphens and underscores do not matter."""
        found = self._places.get(_plain(name), set())
        return next(iter(found)) if len(found) == 1 else None

    def number(self, name: str) -> int:
        """The class that goes by a name; an error that helps if there is none."""
        found = self.find(name)
        if found is not None:
            return found
        if not self.words:
            raise InputError(f"label {name!r}: the network's classes have no names, only numbers", option="classes")
        near = [self.words[n][0] for key in get_close_matches(_plain(name), self._places) for n in self._places[key]]
        meant = ", ".join(dict.fromkeys(near)) or ", ".join(own[0] for own in self.words[:10])
        raise InputError(f"label {name!r} is the name of no class, or of several; there are {meant}")

    @cached_property
    def _places(self) -> dict[str, set[int]]:
        places: dict[str, set[int]] = {}
        for number, own in enumerate(self.words):
            for word in own:
                places.setdefault(_plain(word), set()).add(number)
        return places


def read_class_names(path: Path | str) -> ClassNames:
    """Names in a file: one on each line, or JSON: [...], {"0": "cat"}, {"cat": 0} or {"0": ["n02123045", "tabby"]}."""
    try:
        return parse_class_names(read_text(Path(path)))
    except MALFORMED as error:
        raise InputError(f"{path}: not a list of class names ({error})") from error


def names_in_metadata(metadata: Mapping[str, str]) -> ClassNames:
    """Names in a model's metadata, as many exporters write them; none if there are none that can be read."""
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
            said = json.loads(text)
        except ValueError:
            said = ast.literal_eval(text.strip())
        return ClassNames.of(_listed(said))
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if len(lines) < 2:  # no network has one class
        lines = [word.strip() for word in text.split(",")]
    numbered = [re.fullmatch(r"(\d{1,9})\s*[:,\s]\s*(\S.*)", line) for line in lines]
    if all(numbered) and {int(found[1]) for found in numbered if found} == {*range(len(lines))}:
        return ClassNames.of(_listed({found[1]: found[2] for found in numbered if found}))
    return ClassNames.of(lines)


def _listed(said: Any) -> list[Any]:
    """Entries in the order of their classes."""
    if isinstance(said, list):
        return said
    if not isinstance(said, Mapping):
        raise ValueError(f"a {type(said).__name__}")
    for key in KEYS:
        if isinstance(said.get(key), (list, Mapping)):
            return _listed(said[key])
    if all(isinstance(value, int) for value in said.values()):
        said = {number: name for name, number in said.items()}
    by_number = {int(number): entry for number, entry in said.items()}
    if sorted(by_number) != [*range(len(by_number))]:
        raise ValueError("its numbers are not 0, 1, 2, ... without gaps")
    return [by_number[number] for number in range(len(by_number))]


def _words(entry: Any) -> tuple[str, ...]:
    """The words for one class: of `["n02123045", "tabby"]` the last is shown, of `tabby, tabby cat` the first."""
    given = [*reversed(entry)] if isinstance(entry, (list, tuple)) else [entry]
    if not given or not all(isinstance(word, (str, int)) for word in given):
        raise ValueError(f"a name that is {entry!r}")
    texts = ["".join(c if c.isprintable() else " " for c in str(word)).strip() for word in given]
    identified = re.fullmatch(r"(n\d{8})\s+(.+)", texts[0])  # as in lists of ImageNet's synsets
    texts = [identified[2], identified[1], *texts[1:]] if identified else texts
    if not all(texts):
        raise ValueError("an empty name")
    words = [part.strip() for text in texts for part in (*text.split(","), text) if part.strip()]
    return tuple(dict.fromkeys(words))


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()
