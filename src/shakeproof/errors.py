"""The errors a user can meet. Each message is one line: what is wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class ShakeproofError(Exception):
    """Root of everything shakeproof raises on purpose; the command turns it into exit code 2.

    `option` names the argument that would help, as Python spells it; the command adds how it is typed.
    """

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class InputError(ShakeproofError):
    """A file, an image, a perturbation or an option that cannot be used as given."""


class UnsupportedNetworkError(ShakeproofError):
    """A network with operators that no method here can analyse; lists all of them."""


class NetworkMismatchError(ShakeproofError):
    """The network as read disagrees with the reference runtime, so nothing may be concluded from it."""


class MemoryBudgetError(ShakeproofError):
    """The network is too large for the memory budget."""


class ProofError(ShakeproofError):
    """A proof that does not hold together, or that an evaluation contradicts: a bug here, and never a verdict."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}: this is a bug in shakeproof, please report it")


class NotFiniteError(ShakeproofError):
    """Scores are infinite or NaN, so the query has no answer."""


def by(shape: Sequence[int]) -> str:
    """A shape, as people write it: 3 x 32 x 32."""
    return " x ".join(map(str, shape))


def kind_of(thing: object) -> str:
    """What something is, for an error about it: its type, and its shape if it has one."""
    shape = getattr(thing, "shape", None)
    size = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.") + size


@dataclass(frozen=True)
class Refusal:
    """What is wrong with one of several images or files; the others are analysed."""

    name: str
    error: InputError


def strictly(items: Iterable[T | Refusal]) -> Iterator[T]:
    """The same; the first refusal is an error."""
    for item in items:
        if isinstance(item, Refusal):
            raise item.error
        yield item
