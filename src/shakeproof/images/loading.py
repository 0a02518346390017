"""A network together with the images it is asked about: each explains what the other leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import prod

from shakeproof.classes import ClassNames
from shakeproof.errors import InputError, Refusal, strictly
from shakeproof.images.image import Image, RawImage
from shakeproof.images.labelling import labelled, subfolder_names
from shakeproof.images.words import Source
from shakeproof.network import Deployed, load, load_deployed
from shakeproof.preprocessing import Preprocessing
from shakeproof.vnnlib import Specification


def pictures_for(
    model: str,
    sources: Sequence[Source],
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
    raw = _raw_images(sources)
    first = next(raw)
    size = None if isinstance(first, Refusal) else first.own_shape(preprocessing)
    loaded: Callable[..., Deployed] = load_deployed if deployed else load
    network = loaded(model, image_shape=image_shape, output_name=output_name, picture=size, classes=names)
    raw = chain([first], raw)
    if image_shape is None and (network.layout is None or network.layout.note is not None):
        network, raw = _explained(network, raw, preprocessing)
    if not network.class_names:
        network = network.named(subfolder_names(sources, network.classes))
    network = network.preprocessed(preprocessing)
    network.picture()
    return network, (_fitted(network, own, source) for own, source in zip(raw, sources, strict=True))


def _raw_images(sources: Iterable[Source]) -> Iterator[RawImage | Refusal]:
    """What sources hold, each read when its turn comes."""
    for source in sources:
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
