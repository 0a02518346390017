"""Checks certificates on its own: standard library and numpy, nothing else of shakeproof (docs/checker.md).

Enumerations speak of onnxruntime, and are checked with it.
"""

from shakeproof.checker.budget import Refused, Unknown
from shakeproof.checker.certificate import MALFORMED, Outcome, check, unpack
from shakeproof.checker.enumeration import Pictures
from shakeproof.checker.question import Question

__all__ = ["MALFORMED", "Outcome", "Pictures", "Question", "Refused", "Unknown", "check", "unpack"]
