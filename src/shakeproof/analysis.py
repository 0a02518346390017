"""From queries to results: what users hold in their hands, and which method answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.images import Image, RawImage, as_picture, read_image
from shakeproof.methods import answer_box, answer_by_bounds, answer_by_sweep
from shakeproof.network import Network
from shakeproof.operators import Clip
from shakeproof.perturbation import AnyKernel, Perturbation, parse, parse_path
from shakeproof.result import BoxQuery, BoxResult, Query, Result, Strength
from shakeproof.settings import Method, Settings
from shakeproof.vnnlib import Specification, read_specification, robustness


def profile(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    label: int | None = None,
    max_strength: Strength = 1.0,
    **settings: Any,
) -> Result:
    """The class at every strength in [0, max_strength] of a perturbation of an image.

    `image` is a picture (channels, height, width), or a file. Without a `label`, the image's own or else the class
    predicted at strength 0 is taken.
    """
    query = make_query(network, image, perturbation, label, max_strength)
    return analyse(network, [query], Settings(**settings))[0]


def verify(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | AnyKernel | str,
    strength: Strength,
    label: int | None = None,
    **settings: Any,
) -> Result | BoxResult:
    """Whether the label wins at every strength in [0, strength]; stops at the first confirmed counterexample.

    If a quick probe finds one, all that is known of the critical strength is that it is in (0, counterexample].
    """
    perturbation = parse(perturbation) if isinstance(perturbation, str) else perturbation
    query = perturbed_query(network, fitting(network, image), perturbation, label, strength)
    return analyse(network, [query], Settings(**{"stop_early": True, **settings}))[0]


def verify_specification(
    network: Network, specification: Specification | str | Path, **settings: Any
) -> Result | BoxResult:
    """Whether a specification, or a VNN-LIB file, has no counterexample. One with a perturbation is `verify`'d."""
    name = "specification" if isinstance(specification, Specification) else str(specification)
    if not isinstance(specification, Specification):
        specification = read_specification(Path(specification))
    network, query = query_of(network, name, specification)
    return analyse(network, [query], Settings(**{"stop_early": True, **settings}))[0]


def make_query(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    label: int | None,
    strength: Strength,
) -> Query:
    """A query from what users hold in their hands."""
    image = fitting(network, image)
    perturbation = parse_path(perturbation) if isinstance(perturbation, str) else perturbation
    return Query(image, perturbation, image.label if label is None else label, strength)


def fitting(network: Network, image: Image | NDArray[Any] | Tensor | str | Path) -> Image:
    """An image, or what names one, as the network's picture."""
    layout = network.picture()
    if isinstance(image, (str, Path)):
        return read_image(str(image)).fitted(layout)
    return image if isinstance(image, Image) else Image("array", as_picture(np.asarray(image), layout.image_shape))


def perturbed_query(
    network: Network, image: Image, perturbation: Perturbation | AnyKernel, label: int | None, strength: Strength
) -> Query | BoxQuery:
    """The query about a perturbed picture; without a label, the image's own is meant."""
    label = image.label if label is None else label
    if isinstance(perturbation, AnyKernel):
        return box_query(network, image, perturbation, label, strength)
    return Query(image, perturbation, label, strength)


def box_query(
    network: Network, image: Image, perturbation: AnyKernel, label: int | None, strength: Strength
) -> BoxQuery:
    """Is the label safe when each pixel is anywhere in its neighbourhood's range?"""
    (z,) = perturbation.strengths(strength)
    layout = network.picture()
    _check_image(network, image, label)
    wanted = int(network.scores(layout.to_input(image.pixels).unsqueeze(0)).argmax()) if label is None else label
    low, high = (layout.to_input(end).flatten().numpy() for end in perturbation.box(image.pixels, z))
    specification = robustness(low, high, wanted, network.graph.classes)
    return BoxQuery(image.name, specification, image, perturbation, z, predicted=label is None)


def query_of(network: Network, name: str, specification: Specification) -> tuple[Network, Query | BoxQuery]:
    """The query that a specification is, and the network it is about: with the normalisation that it names, if any."""
    size, classes = network.graph.input_shape.numel(), network.graph.classes
    if (specification.inputs, specification.outputs) != (size, classes):
        raise InputError(
            f"{name}: is about {specification.inputs} inputs and {specification.outputs} outputs,"
            f" {network.name} has {size} and {classes}"
        )
    said = specification.directives
    if not said:
        has_picture = network.layout is not None and specification.box is not None
        image = RawImage(name, specification).fitted(network.picture()) if has_picture else None
        return network, BoxQuery(name, specification, image)
    numbers = {
        key: [float(word) for word in said[key].split(",")] for key in ("strength", "mean", "std") if key in said
    }
    if "image-shape" in said:
        channels, height, width = map(int, said["image-shape"].split(","))
        network = network.with_image_shape((channels, height, width))
    if "mean" in said or "std" in said:
        network = network.normalised(numbers.get("mean", [0.0]), numbers.get("std", [1.0]))
    image = RawImage(name, specification, specification.label).fitted(network.picture())
    return network, perturbed_query(network, image, parse(said["perturbation"]), None, tuple(numbers["strength"]))


@overload
def analyse(network: Network, queries: Sequence[Query], settings: Settings) -> list[Result]: ...


@overload
def analyse(network: Network, queries: Sequence[Query | BoxQuery], settings: Settings) -> list[Result | BoxResult]: ...


def analyse(network: Network, queries: Sequence[Query | BoxQuery], settings: Settings) -> Any:
    """Answer all queries about one network, in their order."""
    for query in queries:
        check_query(network, query, settings.method)
    results: dict[int, Result | BoxResult] = {}
    kinds: dict[tuple[str, tuple[float, float] | None], list[int]] = {}
    for number, query in enumerate(queries):
        if isinstance(query, Query):
            kinds.setdefault((method_for(network, query, settings.method), query.perturbation.clip), []).append(number)

    def progress(fraction: float, count: int = 1) -> None:
        settings.progress((len(results) + fraction * count) / len(queries))

    with torch.inference_mode():
        for (method, clip), numbers in kinds.items():
            device = torch.device(settings.device)
            graph = (network.graph if clip is None else network.graph.after(Clip(*clip))).to(device)
            answer = answer_by_sweep if method == "exact" else answer_by_bounds
            asked = [query for query in (queries[i] for i in numbers) if isinstance(query, Query)]
            advance = partial(progress, count=len(numbers))
            results.update(
                zip(numbers, answer(network, graph, asked, replace(settings, progress=advance)), strict=True)
            )
        for number, query in enumerate(queries):
            if isinstance(query, BoxQuery):
                results[number] = answer_box(network, query, replace(settings, progress=progress))
    return [results[i] for i in range(len(queries))]


def method_for(network: Network, query: Query, wanted: Method) -> str:
    """Exact where it applies, unless something else is asked for."""
    applies = network.graph.is_piecewise_linear and query.perturbation.parameters == 1
    return wanted if wanted != "auto" else "exact" if applies else "bounds"


def check_query(network: Network, query: Query | BoxQuery, method: Method = "auto") -> None:
    """Refuse what cannot be asked, before any work."""
    if isinstance(query, BoxQuery):
        if method == "exact":
            raise InputError(f"{query.name}: the exact method takes a path of images, not a box; use --method bounds")
        try:
            query.specification.check()
        except InputError as error:
            raise InputError(f"{query.name}: {error}") from None
        return
    query.perturbation.strengths(query.strength)
    if method == "exact" and query.perturbation.parameters != 1:
        raise InputError(f"{query.perturbation}: the exact method takes one strength; use --method bounds")
    if method == "exact" and not network.graph.is_piecewise_linear:
        kinds = ", ".join(network.graph.smooth_operators)
        raise InputError(f"{network.name}: has smooth operators ({kinds}): use --method bounds")
    _check_image(network, query.image, query.label)


def _check_image(network: Network, image: Image, label: int | None) -> None:
    network.check_classifies()
    if label is not None and label not in range(network.graph.classes):
        raise InputError(f"label {label} is not one of the network's classes 0 to {network.graph.classes - 1}")
    if tuple(image.pixels.shape) != network.picture().image_shape:
        raise InputError(f"{image.name}: not a picture of the network's shape {network.picture().image_shape}")
    if not bool(torch.isfinite(image.pixels).all()):
        raise InputError(f"{image.name}: has pixels that are NaN or infinite")
