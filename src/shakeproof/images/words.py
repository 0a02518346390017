"""From words to pictures: folders, globs, archives and slices of them. Names first, pixels when they are asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shakeproof import vnnlib
from shakeproof.errors import InputError
from shakeproof.images.arrays import StoredArray, array_names, described
from shakeproof.images.image import RawImage
from shakeproof.images.picture_files import ENDINGS, read_picture

QUERIES = (".vnnlib", ".vnnlib.gz")
# Names that arrays of pictures go by, and those of their labels.
PAIRS = {
    "x": "y",
    "x_test": "y_test",
    "images": "labels",
    "test_images": "test_labels",
    "data": "labels",
    "arr_0": "arr_1",
}
# So many pictures of one word are listed; a header can promise any number.
MOST_PICTURES = 250_000


@dataclass(frozen=True)
class Subfolder:
    """Where a picture lies in a folder of subfolders, one for each class."""

    name: str
    folder: str
    siblings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Source:
    """One picture that a word stands for: its name now, what it holds when it is asked for."""

    name: str
    read: Callable[[], RawImage]
    subfolder: Subfolder | None = None


def sources(words: Sequence[str], array: str | None = None, labels: str | None = None) -> Iterator[Source]:
    """The pictures that words stand for, in order; those that cannot be found say so when they are read.

    A word is a picture, .npy, .npz or .vnnlib(.gz) file, one picture of an array (`FILE.npz@7`) or some (`FILE@0:50`),
    a folder, or a pattern of such names. `array` and `labels` name the arrays of archives that are meant.
    """
    finder = _Finder(array, labels)
    for word in words:
        try:
            yield from finder.find(word)
        except InputError as problem:
            yield Source(word, partial(_refuse, problem))


def one_source(word: str, array: str | None = None, labels: str | None = None) -> Source:
    """What a word stands for that must not stand for several pictures."""
    found = sources([word], array, labels)
    first, second = next(found), next(found, None)
    if second is not None:
        raise InputError(f"{word}: stands for several images; say which one is meant, e.g. {first.name}")
    return first


def read_image(word: str | Path, array: str | None = None, labels: str | None = None) -> RawImage:
    """The one image that a word stands for: a picture, FILE.npy, FILE.npy@INDEX, FILE.npz@INDEX or FILE.vnnlib(.gz)."""
    return one_source(os.fspath(word), array, labels).read()


def _refuse(problem: InputError) -> RawImage:
    raise problem


@dataclass(frozen=True)
class _Finder:
    """How words are read. Arrays are kept open, so that going through one picture by picture is one reading."""

    array: str | None
    labels: str | None
    stored: Callable[..., StoredArray] = field(default_factory=lambda: cache(StoredArray))

    def find(self, word: str) -> Iterator[Source]:
        part = re.fullmatch(r"(.*\.np[yz])@(.*)", word, re.DOTALL)
        if os.path.isdir(word):
            return _in_folder(word)
        if part and not os.path.lexists(word):
            return self._rows(part[1], part[2])
        if has_magic(word) and not os.path.lexists(word):
            return self._matching(word)
        if word.endswith(".npz") or (word.endswith(".npy") and self._is_stack(word)):
            return self._rows(word, ":")
        return iter([Source(word, partial(_read_file, word))])

    def _is_stack(self, word: str) -> bool:
        shape = self.stored(Path(word)).shape
        return len(shape) == 4 and shape[0] > 1

    def _matching(self, pattern: str) -> Iterator[Source]:
        wanted = (*ENDINGS, ".npy", ".npz", *QUERIES)
        found = [word for word in sorted(glob(pattern, recursive=True)) if word.lower().endswith(wanted)]
        if not found:
            raise InputError(f"{pattern}: no picture has such a name")
        for word in found:
            yield from self.find(word)

    def _rows(self, file: str, places: str) -> Iterator[Source]:
        """Some pictures of an array, by their places along its first axis."""
        pictures, labels, notes = self._in_archive(file) if file.endswith(".npz") else self._in_array(file)
        if len(pictures.shape) < 2:
            raise InputError(f"{pictures.name}: has shape {pictures.shape}, not a list of images")
        chosen = _chosen(file, places, len(pictures))
        if len(chosen) > MOST_PICTURES:
            raise InputError(f"{file}: has {len(chosen)} images; say which are meant, e.g. {file}@0:1000")
        for place in chosen:
            yield Source(name := f"{file}@{place}", partial(_read_row, name, pictures, labels, place, notes))

    def _in_array(self, file: str) -> tuple[StoredArray, None, tuple[str, ...]]:
        return self.stored(Path(file)), None, ()

    def _in_archive(self, file: str) -> tuple[StoredArray, NDArray[Any] | None, tuple[str, ...]]:
        """The pictures of an archive, their labels, and what should be said of the choice."""
        path, names = Path(file), array_names(Path(file))
        pictures, labels = _names(path, names, self.array, self.labels)
        said = f"{file}: the pictures are {pictures!r}" + (f", the labels {labels!r}" if labels else "")
        notes = () if (self.array, pictures, labels) in ((None, "x", "y"), (None, "x", None)) else (said,)
        images = self.stored(path, pictures)
        if labels is None:
            return images, None, notes
        stored = self.stored(path, labels)
        if stored.shape not in (images.shape[:1], (*images.shape[:1], 1)) or stored.dtype.kind not in "iu":
            raise InputError(f"{file}: {labels!r} ({stored}) must hold one whole number for each image of {pictures!r}")
        return images, stored.whole().reshape(-1), notes


def _names(path: Path, names: Sequence[str], array: str | None, labels: str | None) -> tuple[str, str | None]:
    """The arrays of pictures and of labels: those asked for, or the only ones with a usual name."""
    for wanted in filter(None, (array, labels)):
        if wanted not in names:
            raise InputError(f"{path}: has no array {wanted!r}, but {described(path, names)}", option="array")
    by_lower = {name.lower(): name for name in names}
    usual = [by_lower[name] for name in PAIRS if name in by_lower]
    if array is None and len(usual) != 1:
        what = "several arrays that may be the images" if usual else "no array 'x' of images"
        raise InputError(f"{path}: has {what}; say which is meant of {described(path, names)}", option="array")
    pictures = array or usual[0]
    return pictures, labels or by_lower.get(PAIRS.get(pictures.lower(), ""))


def _chosen(file: str, places: str, count: int) -> range:
    number = r"\d{1,18}"
    if re.fullmatch(number, places) and int(places) < count:
        return range(int(places), int(places) + 1)
    part = re.fullmatch(rf"({number})?:({number})?(?::(0*[1-9]\d{{0,17}}))?", places)
    chosen = range(count)[slice(*(int(word) if word else None for word in part.groups()))] if part else range(0)
    if not chosen:
        there = f"it has images 0 to {count - 1}" if count else "it has no images"
        raise InputError(f"{file}@{places}: there is no image {places!r}; {there}")
    return chosen


def _in_folder(folder: str) -> Iterator[Source]:
    """All pictures of a folder; where they lie in subfolders, those are their classes."""
    entries = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    subfolders = tuple(name for name in entries if os.path.isdir(os.path.join(folder, name)))
    loose = [name for name in entries if _is_picture(name) and name not in subfolders]
    inside = {name: _below(os.path.join(folder, name)) for name in subfolders}
    if loose and any(inside.values()):
        raise InputError(f"{folder}: has pictures beside subfolders of pictures; name one of them, or '{folder}/*.png'")
    if not loose and not any(inside.values()):
        raise InputError(f"{folder}: is a folder without pictures ({', '.join(ENDINGS)}, .npy)")
    for name in loose:
        yield Source(path := os.path.join(folder, name), partial(_read_file, path))
    for name, paths in inside.items():
        for path in paths:
            yield Source(path, partial(_read_file, path), Subfolder(name, folder, subfolders))


def _below(folder: str) -> list[str]:
    found = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if _is_picture(name))
    return sorted(found)


def _is_picture(name: str) -> bool:
    return name.lower().endswith((*ENDINGS, ".npy")) and not name.startswith(".")


def _read_file(word: str) -> RawImage:
    path = Path(word)
    if word.endswith(QUERIES):
        specification = vnnlib.read_specification(path)
        return RawImage(word, specification, specification.label)
    if word.endswith(".npy"):
        return RawImage(word, StoredArray(path).whole())
    pixels, notes = read_picture(path)
    return RawImage(word, pixels, notes=notes)


def _read_row(
    name: str, pictures: StoredArray, labels: NDArray[Any] | None, place: int, notes: tuple[str, ...]
) -> RawImage:
    return RawImage(name, pictures.row(place), None if labels is None else int(labels[place]), notes)
