"""The ways to answer queries: a sweep for paths of piecewise-linear networks, splitting for everything else, and every
picture run where pictures have 8 bits.
"""

from shakeproof.methods.enumerating import Expected, Runner, answer_by_enumeration, expected
from shakeproof.methods.splitting import answer_by_splitting
from shakeproof.methods.sweeping import answer_by_sweep, lines_at_once

__all__ = [
    "Expected",
    "Runner",
    "answer_by_enumeration",
    "answer_by_splitting",
    "answer_by_sweep",
    "expected",
    "lines_at_once",
]
