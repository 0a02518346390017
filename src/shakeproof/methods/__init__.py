"""The ways to answer queries: a sweep for paths of piecewise-linear networks, splitting for everything else, and every
picture run where pictures have 8 bits.
"""

from shakeproof.methods.enumerating import Runner, answer_by_enumeration, expected
from shakeproof.methods.splitting import answer_by_splitting
from shakeproof.methods.sweeping import answer_by_sweep, answer_by_windows, lines_at_once, sweep_window
from shakeproof.methods.windows import SweptWindow, begun_by

__all__ = [
    "Runner",
    "SweptWindow",
    "answer_by_enumeration",
    "answer_by_splitting",
    "answer_by_sweep",
    "answer_by_windows",
    "begun_by",
    "expected",
    "lines_at_once",
    "sweep_window",
]
