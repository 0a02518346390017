"""From queries to results: what users hold in their hands, and which method answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.budget import nobody
from shakeproof.errors import InputError
from shakeproof.images import Image, as_picture, read_image
from shakeproof.methods import answer_by_splitting, answer_by_sweep, lines_at_once
from shakeproof.network import Graph, Network
from shakeproof.perturbation import AnyKernel, Perturbation, parse_path
from shakeproof.query import Query, Strength, perturbed, specified
from shakeproof.result import Result
from shakeproof.settings import Method, Options, Settings
from shakeproof.vnnlib import Specification, read_specification

Picture = Image | NDArray[Any] | Tensor | str | Path


def profile(
    network: Network,
    image: Picture,
    perturbation: Perturbation | str,
    label: int | None = None,
    max_strength: Strength = 1.0,
    progress: Callable[[float], None] = nobody,
    **options: Unpack[Options],
) -> Result:
    """The class at every strength in [0, max_strength] of a perturbation of an image.

    `image` is a picture (channels, height, width), or a file. Without a `label`, the image's own or else the class
    predicted at strength 0 is taken. The other arguments are those of `Settings`.
    """
    perturbation = parse_path(perturbation) if isinstance(perturbation, str) else perturbation
    queries = perturbed(network, [fitting(network, image)], perturbation, label, max_strength)
    return analyse(network, queries, Settings(**options), progress)[0]


def verify(
    network: Network,
    image: Picture,
    perturbation: Perturbation | AnyKernel | str,
    strength: Strength,
    label: int | None = None,
    progress: Callable[[float], None] = nobody,
    **options: Unpack[Options],
) -> Result:
    """Whether the label wins at every strength in [0, strength]; stops at the first confirmed counterexample.

    If a quick probe finds one, all that is known of the critical strength is that it is in (0, counterexample].
    """
    queries = perturbed(network, [fitting(network, image)], perturbation, label, strength)
    return analyse(network, queries, _early(options), progress)[0]


def verify_specification(
    network: Network,
    specification: Specification | str | Path,
    progress: Callable[[float], None] = nobody,
    **options: Unpack[Options],
) -> Result:
    """Whether a specification, or a VNN-LIB file, has no counterexample. One with a perturbation is `verify`'d."""
    name = "specification" if isinstance(specification, Specification) else str(specification)
    if not isinstance(specification, Specification):
        specification = read_specification(Path(specification))
    network, query = specified(network, name, specification)
    return analyse(network, [query], _early(options), progress)[0]


def _early(options: Options) -> Settings:
    early: Options = {"stop_early": True}
    return Settings(**(early | options))


def fitting(network: Network, image: Picture) -> Image:
    """An image, or what names one, as the network's picture."""
    layout = network.picture()
    if isinstance(image, (str, Path)):
        return read_image(str(image)).fitted(layout)
    return image if isinstance(image, Image) else Image("array", as_picture(np.asarray(image), layout.image_shape))


def analyse(
    network: Network,
    queries: Sequence[Query],
    settings: Settings | None = None,
    progress: Callable[[float], None] = nobody,
) -> list[Result]:
    """Answer all queries about one network, in their order; `progress` is told which share is done."""
    return list(answers(network, queries, settings, lambda done: progress(done / len(queries))))


def answers(
    network: Network,
    queries: Iterable[Query],
    settings: Settings | None = None,
    progress: Callable[[float], None] = nobody,
) -> Iterator[Result]:
    """Answer queries about one network, in their order, each as soon as it is known.

    Queries are taken as they are needed, so many at a time that a sweep is worth its while. `progress` is told how many
    are answered, those in work by their share.
    """
    settings = Settings() if settings is None else settings
    _check_arithmetic(network, settings)
    waiting, done = iter(queries), 0
    while some := list(islice(waiting, lines_at_once(network, settings))):
        yield from _answered_together(network, some, settings, _part(progress, done, 1))
        done += len(some)


def _answered_together(
    network: Network, queries: Sequence[Query], settings: Settings, progress: Callable[[float], None]
) -> Iterator[Result]:
    """Answer some queries in their order: those that can share a sweep in advance, the others as they come."""
    sweeps: dict[tuple[float, float] | None, list[int]] = {}
    for number, query in enumerate(queries):
        if method_for(network, query, settings.method) == "exact" and query.path is not None:
            sweeps.setdefault(query.path.path.clip, []).append(number)
    swept: dict[int, Result] = {}
    for numbers in sweeps.values():
        with torch.inference_mode():
            found = answer_by_sweep(
                network, [queries[number] for number in numbers], settings, _part(progress, len(swept), len(numbers))
            )
        swept.update(zip(numbers, found, strict=True))
    done = len(swept)
    for number, query in enumerate(queries):
        if number in swept:
            yield swept.pop(number)
        else:
            with torch.inference_mode():
                result = answer_by_splitting(network, query, settings, _part(progress, done, 1))
            done += 1
            yield result


def _part(progress: Callable[[float], None], done: int, count: int) -> Callable[[float], None]:
    return lambda share: progress(done + share * count)


def _check_arithmetic(network: Network, settings: Settings) -> None:
    if settings.arithmetic not in arithmetics(network.graph, network.dropped):
        kinds = ", ".join((*network.graph.unpredictable_operators, *filter(None, [network.dropped])))
        raise InputError(
            f"{network.name}: float32 is certified for piecewise-linear networks only, and this one has {kinds}",
            option="arithmetic",
        )


def arithmetics(graph: Graph, dropped: str | None) -> tuple[str, ...]:
    """What proofs about a network may be about: how float32 libraries round a curve, or weigh pixels between which
    they interpolate, none of them promises.

    That goes for a final softmax as well, which is otherwise left out. And float32 may be on either side of a jump.
    """
    return ("real",) if graph.unpredictable_operators or dropped else ("real", "float32")


def method_for(network: Network, query: Query, wanted: Method) -> str:
    """Exact where it applies, unless something else is asked for; an error where it does not and is."""
    if wanted == "exact":
        if query.path is None:
            raise InputError(f"{query.name}: the exact method takes a path of images, not a box", option="method")
        if query.parameters != 1:
            raise InputError(f"{query.perturbation}: the exact method takes one strength", option="method")
        if not network.graph.is_piecewise_linear:
            kinds = ", ".join(network.graph.smooth_operators)
            raise InputError(f"{network.name}: has smooth operators ({kinds}), so use bounds", option="method")
    if wanted != "auto":
        return wanted
    return "exact" if query.parameters == 1 and network.graph.is_piecewise_linear else "bounds"
