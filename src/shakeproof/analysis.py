"""From queries to results: what users hold in their hands, and which method answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.images import Image, as_picture, read_image
from shakeproof.methods import answer_by_bounds, answer_by_sweep
from shakeproof.network import Network
from shakeproof.operators import Clip
from shakeproof.perturbation import Perturbation, parse
from shakeproof.result import Query, Result, Strength
from shakeproof.settings import Method, Settings


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
    perturbation: Perturbation | str,
    strength: Strength,
    label: int | None = None,
    **settings: Any,
) -> Result:
    """Whether the label wins at every strength in [0, strength]; stops at the first confirmed counterexample.

    If a quick probe finds one, all that is known of the critical strength is that it is in (0, counterexample].
    """
    query = make_query(network, image, perturbation, label, strength)
    return analyse(network, [query], Settings(**{"stop_early": True, **settings}))[0]


def make_query(
    network: Network,
    image: Image | NDArray[Any] | Tensor | str | Path,
    perturbation: Perturbation | str,
    label: int | None,
    strength: Strength,
) -> Query:
    """A query from what users hold in their hands."""
    layout = network.picture()
    if isinstance(image, (str, Path)):
        image = read_image(str(image)).fitted(layout)
    elif not isinstance(image, Image):
        image = Image("array", as_picture(np.asarray(image), layout.image_shape))
    perturbation = parse(perturbation) if isinstance(perturbation, str) else perturbation
    return Query(image, perturbation, image.label if label is None else label, strength)


def analyse(network: Network, queries: Sequence[Query], settings: Settings) -> list[Result]:
    """Answer all queries about one network, in their order."""
    for query in queries:
        check_query(network, query, settings.method)
    results: dict[int, Result] = {}
    kinds: dict[tuple[str, tuple[float, float] | None], list[int]] = {}
    for number, query in enumerate(queries):
        kinds.setdefault((method_for(network, query, settings.method), query.perturbation.clip), []).append(number)
    for (method, clip), numbers in kinds.items():
        graph = (network.graph if clip is None else network.graph.after(Clip(*clip))).to(torch.device(settings.device))

        def progress(fraction: float, count: int = len(numbers)) -> None:
            settings.progress((len(results) + fraction * count) / len(queries))

        answer = answer_by_sweep if method == "exact" else answer_by_bounds
        with torch.inference_mode():
            found = answer(network, graph, [queries[i] for i in numbers], replace(settings, progress=progress))
        results.update(zip(numbers, found, strict=True))
    return [results[i] for i in range(len(queries))]


def method_for(network: Network, query: Query, wanted: Method) -> str:
    """Exact where it applies, unless something else is asked for."""
    applies = network.graph.is_piecewise_linear and query.perturbation.parameters == 1
    return wanted if wanted != "auto" else "exact" if applies else "bounds"


def check_query(network: Network, query: Query, method: Method = "auto") -> None:
    """Refuse what cannot be asked, before any work."""
    query.perturbation.strengths(query.strength)
    if query.label is not None and query.label not in range(network.graph.classes):
        raise InputError(f"label {query.label} is not one of the network's classes 0 to {network.graph.classes - 1}")
    if method == "exact" and query.perturbation.parameters != 1:
        raise InputError(f"{query.perturbation}: the exact method takes one strength; use --method bounds")
    if method == "exact" and not network.graph.is_piecewise_linear:
        kinds = ", ".join(network.graph.smooth_operators)
        raise InputError(f"{network.name}: has smooth operators ({kinds}): use --method bounds")
    if tuple(query.image.pixels.shape) != network.picture().image_shape:
        raise InputError(f"{query.image.name}: not a picture of the network's shape {network.picture().image_shape}")
    if not bool(torch.isfinite(query.image.pixels).all()):
        raise InputError(f"{query.image.name}: has pixels that are NaN or infinite")
