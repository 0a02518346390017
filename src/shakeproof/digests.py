"""What an answer depends on, by content: digests that are equal if, and only if, the same is asked of the same."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from torch import Tensor

from shakeproof import __version__
from shakeproof.model import Deployed, Runtime
from shakeproof.question import AnyPerturbation, Query, output_context
from shakeproof.settings import Settings


def network_digest(network: Deployed, settings: Settings) -> str:
    """The model's file, which output is meant, how its input is a picture, and what that goes through first.

    Of 8-bit pictures the answer is about what runs the model, so that counts as well.
    """
    layout = network.layout and (network.layout.image_shape, network.layout.input_shape, network.layout.channels_last)
    about: tuple[object, ...] = (network.identity, network.normalisation, layout)
    if settings.pixel_rounding is not None and isinstance(network.runtime, Runtime):
        about = (*about, network.runtime.deployment(1).runtime)
    return digest(about)


def image_digest(pixels: Tensor) -> str:
    """The pixels' own, as in certificates."""
    return hashlib.sha256(pixels.numpy().astype("<f8").tobytes()).hexdigest()


def question_digest(
    network: str,
    image: str,
    label: int | None,
    perturbation: AnyPerturbation | None,
    settings: Settings,
    required: tuple[object, ...] = (),
) -> str:
    """All that an answer depends on but how far the strengths go: network and image by their digests, the kernel by its
    entries, the settings, our version, and what is `required` if not the label. Without a label, the class that is
    predicted is meant.
    """
    kernel = (str(perturbation), getattr(perturbation, "content", None))
    return digest((__version__, network, image, label, kernel, decisive(settings), *required))


def query_digest(network: Deployed, query: Query, settings: Settings) -> str:
    """The same of a query: without a perturbation, by its boxes and what must hold on them."""
    label = None if query.label_predicted else query.label
    about = network_digest(network, settings), content_digest(query), label, query.perturbation
    return question_digest(*about, settings, required_of(network, query))


def required_of(network: Deployed, query: Query) -> tuple[object, ...]:
    """What a requirement depends on, unless it is that the label wins: its text with numbers for the names of classes,
    which may be others tomorrow, and the outputs at strength 0, if it takes any.
    """
    requirement = query.requirement
    if requirement is None or requirement.is_label:
        return ()
    start = () if query.start is None else tuple(query.start.tolist())
    return str(requirement.numbered(output_context(network))), *start


def content_digest(query: Query) -> str:
    """What a query is about: an image's pixels, or boxes of inputs and what must hold of their outputs."""
    if query.perturbation is not None and query.image is not None:
        if (photograph := query.photograph) is not None:
            return digest((image_digest(photograph.pixels), tuple(photograph.pixels.shape), photograph.preprocessing))
        return image_digest(query.image.pixels)
    parts = []
    for obligation in query.obligations:
        sides = (getattr(obligation.inputs, name, None) for name in ("low", "high"))
        parts += [side.numpy() for side in sides if side is not None]
        for case in obligation.property.cases:
            parts += [case.coefficients, case.constants, case.strict]
    return digest([(part.dtype.str, part.shape, hashlib.sha256(part.tobytes()).hexdigest()) for part in parts])


def decisive(settings: Settings) -> Settings:
    """The settings that can change an answer, not only the time that it takes."""
    return replace(settings, memory=1.0, device="cpu", whole_curve=False, timeout=None)


def digest(values: object) -> str:
    """The SHA-256 of plain values, as they are written."""
    return hashlib.sha256(repr(values).encode(errors="surrogateescape")).hexdigest()
