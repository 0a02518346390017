"""Labels from the names of subfolders, and class names from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from shakeproof.classes import ClassNames
from shakeproof.errors import InputError
from shakeproof.images.image import Image, RawImage
from shakeproof.images.words import Source, Subfolder, sources
from shakeproof.network import Deployed

# So many names are listed in a note.
LISTED = 8


def read_images(network: Deployed, *words: str, array: str | None = None, labels: str | None = None) -> Iterator[Image]:
    """The pictures that words stand for (see `sources`), preprocessed for a network, one after another."""
    for source in sources(words, array, labels):
        raw = labelled(source.read(), source.subfolder, network)
        yield raw.fitted(network.picture(), network.preprocessing)


def labelled(raw: RawImage, place: Subfolder | None, network: Deployed) -> RawImage:
    """An image with the label that its place says, if it has one."""
    if place is None:
        return raw
    label, note = subfolder_label(place, network.class_names, network.classes)
    return replace(raw, label=label, notes=(*raw.notes, note))


@cache
def subfolder_label(place: Subfolder, names: ClassNames, classes: int) -> tuple[int, str]:
    """The class that a subfolder stands for, and what its user should know of how that was found.

    By its name, if all go by names of classes; by its number, if all are numbers; else by its place in the order of the
    alphabet, as torchvision's ImageFolder counts them.
    """
    found = {name: names.find(name) for name in place.siblings}
    unknown = [name for name, number in found.items() if number is None]
    number = found[place.name]
    if number is not None and not unknown:
        return number, f"{place.folder}: labels are the classes that subfolders are named after"
    if len(unknown) < len(found):
        raise InputError(f"{place.folder}: no class is called {', '.join(unknown[:LISTED])}, as subfolders are")
    if all(name.isdecimal() for name in place.siblings):
        if (last := max(map(int, place.siblings))) >= classes:  # the others may be counted from 1 as well
            raise InputError(
                f"{place.folder}: subfolders are numbered up to {last}, the network's classes from 0 to {classes - 1};"
                " name them by the classes' numbers, or their names"
            )
        return int(place.name), f"{place.folder}: labels are the numbers that subfolders are named by"
    if len(place.siblings) > classes:
        raise InputError(f"{place.folder}: has {len(place.siblings)} subfolders, the network {classes} classes")
    listed = ", ".join(f"{n} {name}" for n, name in enumerate(place.siblings[:LISTED]))
    more = ", ..." if len(place.siblings) > LISTED else ""
    fewer = f"; the network has {classes} classes: to mean others, name them by number" * (len(found) < classes)
    return place.siblings.index(place.name), (
        f"{place.folder}: labels are the places of subfolders in the alphabet ({listed}{more}){fewer}"
    )


def subfolder_names(sources: Iterable[Source], classes: int) -> ClassNames:
    """What classes are called if one folder has a subfolder for each, and these are no numbers."""
    found = {source.subfolder.siblings for source in sources if source.subfolder is not None}
    if len(found) == 1 and len(names := found.pop()) == classes and not all(name.isdecimal() for name in names):
        return ClassNames.of(names)
    return ClassNames()
