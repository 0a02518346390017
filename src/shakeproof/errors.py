"""The errors a user can meet. Each message is one line: what is wrong, where, and what to do about it."""

from __future__ import annotations


class ShakeproofError(Exception):
    """Root of everything shakeproof raises on purpose; the command turns it into exit code 2."""


class InputError(ShakeproofError):
    """A file, an image, a perturbation or an option that cannot be used as given."""


class UnsupportedNetworkError(ShakeproofError):
    """A network with operators that no method here can analyse; lists all of them."""


class NetworkMismatchError(ShakeproofError):
    """The network as read disagrees with the reference runtime, so nothing may be concluded from it."""


class MemoryBudgetError(ShakeproofError):
    """The network is too large for the memory budget."""
