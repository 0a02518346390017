"""Checks certificates on its own: standard library and numpy, nothing else of shakeproof (docs/checker.md)."""

from shakeproof.checker.certificate import Outcome, Question, check, pack, unpack
from shakeproof.checker.wire import Refused, Unknown

__all__ = ["Outcome", "Question", "Refused", "Unknown", "check", "pack", "unpack"]
