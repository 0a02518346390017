"""What an answer depends on, by content: digests that are equal if, and only if, the same is asked of the same."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from torch import Tensor

from shakeproof import __version__
from shakeproof.network import Deployed, Runtime
from shakeproof.perturbation import AnyKernel, Perturbation
from shakeproof.settings import Settings


def network_digest(network: Deployed, settings: Settings) -> str:
    """The model's file, which output is meant, how its input is a picture, and what that goes through first.

    Of 8-bit pictures the answer is about what runs the model, so that counts as well.
    """
    layout = network.layout and (network.layout.image_shape, network.layout.input_shape, network.layout.channels_last)
    about: tuple[object, ...] = (network.identity, network.normalisation, layout)
    if settings.halves is not None and isinstance(network.runtime, Runtime):
        about = (*about, network.runtime.deployment(1).runtime)
    return digest(about)


def image_digest(pixels: Tensor) -> str:
    """The pixels' own, as in certificates."""
    return hashlib.sha256(pixels.numpy().astype("<f8").tobytes()).hexdigest()


def question_digest(
    network: str, image: str, label: int | None, perturbation: Perturbation | AnyKernel, settings: Settings
) -> str:
    """All that an answer depends on but how far the strengths go: network and image by their digests, the kernel by its
    entries, the settings, our version. Without a label, the class that is predicted is meant.
    """
    kernel = (str(perturbation), getattr(perturbation, "kernel", None))
    return digest((__version__, network, image, label, kernel, decisive(settings)))


def decisive(settings: Settings) -> Settings:
    """The settings but for those that change how long it takes to find an answer, and not what it is."""
    return replace(settings, memory=1.0, device="cpu", whole_curve=False, timeout=None)


def digest(values: object) -> str:
    """The SHA-256 of plain values, as they are written."""
    return hashlib.sha256(repr(values).encode(errors="surrogateescape")).hexdigest()
