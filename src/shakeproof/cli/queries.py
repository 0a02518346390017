"""From words on the command line to queries, and from queries to answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof.errors import InputError

if TYPE_CHECKING:
    from shakeproof.images import Image
    from shakeproof.network import Network
    from shakeproof.perturbation import AnyKernel, Perturbation
    from shakeproof.query import Query
    from shakeproof.result import Result
    from shakeproof.settings import Settings


def parsed(
    perturbations: Sequence[str], strength: Sequence[float], plot: Path | None
) -> list[Perturbation | AnyKernel]:
    """The perturbations, checked for whether they take such strengths and can be drawn if that is asked for."""
    from shakeproof.perturbation import AnyKernel, parse

    found = [parse(text) for text in perturbations]
    for perturbation in found:
        perturbation.strengths(strength)
        if plot is not None and (isinstance(perturbation, AnyKernel) or perturbation.parameters > 2):
            raise InputError(f"{perturbation}: --plot draws one or two strengths; leave it out, or take fewer parts")
    return found


def specified(
    model: str,
    files: Sequence[str],
    label: int | None,
    plot: Path | None,
    image_shape: tuple[int, int, int] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> list[tuple[Network, list[Query]]]:
    """Queries that stand in files, each with the network that it is about."""
    from shakeproof.network import load
    from shakeproof.query import specified as query_of
    from shakeproof.vnnlib import read_specification

    for file in files:
        if not file.endswith((".vnnlib", ".vnnlib.gz")):
            raise InputError(f"{file}: say what happens to the image: -p PERTURBATION --strength Z")
    if label is not None:
        raise InputError("--label: a query says itself which class should win; leave it out")
    specifications = [read_specification(Path(file)) for file in files]
    for file, specification in zip(files, specifications, strict=True):
        if specification.directives and (mean is not None or std is not None):
            raise InputError(f"{file}: says itself how its image is normalised; leave out --mean and --std")
    network = load(model, image_shape=image_shape, mean=mean, std=std)
    asked = []
    for file, specification in zip(files, specifications, strict=True):
        about, query = query_of(network, file, specification)
        if plot is not None and not specification.directives:
            raise InputError(f"{file}: --plot draws strengths, and this query has none; leave it out")
        asked.append((about, [query]))
    return asked


def load_pictures(
    model: str,
    images: Sequence[str],
    image_shape: tuple[int, int, int] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Network, list[Image]]:
    """The network and the images as its pictures; a flat input is explained by the first image that can."""
    from shakeproof.images import read_image
    from shakeproof.network import load
    from shakeproof.vnnlib import Specification

    raw = [read_image(name) for name in images]
    for image in raw:
        said = image.array.directives if isinstance(image.array, Specification) else {}
        if mean is None and std is None and ("mean" in said or "std" in said):
            given = " ".join(f"--{key} {said[key]}" for key in ("mean", "std") if key in said)
            raise InputError(f"{image.name}: holds the image before it is normalised; with -p, add {given}")
    network = load(model, image_shape=image_shape)
    flat = network.layout is None or network.layout.note is not None
    own = next((shape for shape in (image.own_shape() for image in raw) if shape), None)
    if image_shape is None and flat and own and prod(own) == network.graph.input_shape.numel():
        network = network.with_image_shape(own)
    if mean is not None or std is not None:
        network = network.normalised(mean or [0.0], std or [1.0])
    layout = network.picture()
    return network, [image.fitted(layout) for image in raw]


def answered(
    asked: Sequence[tuple[Network, Sequence[Query]]], settings: Settings, advance: Callable[[float], None]
) -> list[Result]:
    """All answers, in order; whoever asks is told how far it got."""
    from shakeproof.analysis import analyse

    found: list[Result] = []
    count = sum(len(queries) for _, queries in asked)
    for network, queries in asked:

        def progress(share: float, done: int = len(found), size: int = len(queries)) -> None:
            advance((done + share * size) / count)

        found.extend(analyse(network, queries, settings, progress))
    return found
