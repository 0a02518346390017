"""The pictures that a network is asked about: network and images explain what the other leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from math import prod

from shakeproof.errors import InputError, Refusal, strictly
from shakeproof.model.loading import load, load_deployed
from shakeproof.model.network import Deployed
from shakeproof.question import ClassNames, Image, Preprocessing, RawImage, Source, Specification, Subfolder, sources

# So many names are listed in a note.
LISTED = 8


def pictures_for(
    model: str,
    images: Sequence[Source],
    preprocessing: Preprocessing,
    names: ClassNames | None = None,
    *,
    image_shape: tuple[int, int, int] | None = None,
    output_name: str | None = None,
    deployed: bool = False,
) -> tuple[Deployed, Iterator[Image | Refusal]]:
    """The network, and the images as its pictures when their turn comes; an input that leaves its size open is of the
    first image's, and a flat one is explained by the first image that can. `deployed`: only the runtime is wanted.
    """
    raw = _raw_images(images)
    first = next(raw)
    size = None if isinstance(first, Refusal) else first.own_shape(preprocessing)
    loaded: Callable[..., Deployed] = load_deployed if deployed else load
    network = loaded(model, image_shape=image_shape, output_name=output_name, picture=size, classes=names)
    raw = chain([first], raw)
    if image_shape is None and (network.layout is None or network.layout.note is not None):
        network, raw = _explained(network, raw, preprocessing)
    if not network.class_names:
        network = network.named(subfolder_names(images, network.classes))
    network = network.preprocessed(preprocessing)
    network.picture()
    return network, (_fitted(network, own, source) for own, source in zip(raw, images, strict=True))


def _raw_images(images: Iterable[Source]) -> Iterator[RawImage | Refusal]:
    """What sources hold, each read when its turn comes."""
    for source in images:
        try:
            yield source.read()
        except InputError as error:
            yield Refusal(source.name, error)


def _explained(
    network: Deployed, raw: Iterator[RawImage | Refusal], preprocessing: Preprocessing
) -> tuple[Deployed, Iterator[RawImage | Refusal]]:
    """The network with its flat input read as a picture, and the images again."""
    seen: list[RawImage | Refusal] = []
    own = None
    while own is None and (more := next(raw, None)) is not None:
        seen.append(more)
        own = None if isinstance(more, Refusal) else more.own_shape(preprocessing)
    if own is None and all(isinstance(image, Refusal) for image in seen):
        list(strictly(seen))  # what is wrong with the first says more than that nothing explains the input
    if own is not None and prod(own) == prod(network.input_shape):
        network = network.with_image_shape(own)
    return network, chain(seen, raw)


def _fitted(network: Deployed, raw: RawImage | Refusal, source: Source) -> Image | Refusal:
    if isinstance(raw, Refusal):
        return raw
    said = raw.array.directives if isinstance(raw.array, Specification) else {}
    try:
        if network.normalisation is None and ("mean" in said or "std" in said):
            given = " and ".join(f"{key} {said[key]}" for key in ("mean", "std") if key in said)
            raise InputError(
                f"{raw.name}: holds the image before it is normalised; give the network {given}", option="mean"
            )
        return labelled(raw, source.subfolder, network).fitted(network.picture(), network.preprocessing)
    except InputError as error:
        return Refusal(raw.name, error)


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


def subfolder_names(images: Iterable[Source], classes: int) -> ClassNames:
    """What classes are called if one folder has a subfolder for each, and these are no numbers."""
    found = {source.subfolder.siblings for source in images if source.subfolder is not None}
    if len(found) == 1 and len(names := found.pop()) == classes and not all(name.isdecimal() for name in names):
        return ClassNames.of(names)
    return ClassNames()
