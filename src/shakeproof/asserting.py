"""For test suites: an image keeps its label, or the test fails with a sentence. Light to import, for the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from shakeproof.analysis import Kernel, Model
    from shakeproof.proof import Result
    from shakeproof.question import Picture, Strength
    from shakeproof.settings import Options

# Who is told of every answer, before it passes or fails.
listeners: list[Callable[[Result], None]] = []


def assert_safe(
    network: Model,
    image: Picture,
    perturbation: Kernel,
    strength: Strength,
    label: int | None = None,
    allow_undecided: bool = False,
    **options: Unpack[Options],
) -> Result:
    """Fail unless the label wins at every strength in [0, strength] of a perturbation of an image.

    Takes the same as `verify`. The error says at which strength the label loses, or why nothing was decided, which is a
    failure as well unless it is allowed.
    """
    from shakeproof.analysis import verify
    from shakeproof.errors import InputError
    from shakeproof.proof import Status

    __tracebackhide__ = True  # of a failing test, pytest shows the test
    if isinstance(image, (list, tuple)) or isinstance(perturbation, (list, tuple)):
        raise InputError("assert_safe is about one image and one perturbation; call it for each of them")
    whole: Options = {"stop_early": False}  # so that the critical strength is known
    result = verify(network, image, perturbation, strength, label, **(whole | options))
    for listener in listeners:
        listener(result)
    passes = (Status.SAFE, Status.UNDECIDED) if allow_undecided else (Status.SAFE,)
    if result.status not in passes:
        raise AssertionError(f"{result.summary}; asked for {strength}")
    return result
