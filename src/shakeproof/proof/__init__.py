"""From a query to its answer: compare with the runtime, sweep, bound or run pictures, prove, bracket, judge.

`exact_method` sweeps paths of piecewise-linear networks, `bounds_method` splits everything else, and
`enumeration_method` runs every 8-bit picture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.proof.bounds_method import answer_by_splitting
    from shakeproof.proof.claim import CLAIMED, FORMAT, Claim, claim_of
    from shakeproof.proof.enumeration_method import Runner, answer_by_enumeration, expected
    from shakeproof.proof.evidence import BoundedCells, Counterexample, Enumerated, Interval, Swept, by_class
    from shakeproof.proof.exact_method import answer_by_sweep, answer_by_windows, lines_at_once, sweep_window
    from shakeproof.proof.result import Expected, Record, Result, bracketed
    from shakeproof.proof.verdict import Reason, Status
    from shakeproof.proof.windows import SweptWindow, begun_by

# Where each name lives. They are imported on first use: to read what an answer claims takes no torch.
_HOMES = {
    "bounds_method": "answer_by_splitting",
    "claim": "CLAIMED FORMAT Claim claim_of",
    "enumeration_method": "Runner answer_by_enumeration expected",
    "evidence": "BoundedCells Counterexample Enumerated Interval Swept by_class",
    "exact_method": "answer_by_sweep answer_by_windows lines_at_once sweep_window",
    "result": "Expected Record Result bracketed",
    "verdict": "Reason Status",
    "windows": "SweptWindow begun_by",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "CLAIMED",
    "FORMAT",
    "BoundedCells",
    "Claim",
    "Counterexample",
    "Enumerated",
    "Expected",
    "Interval",
    "Reason",
    "Record",
    "Result",
    "Runner",
    "Status",
    "Swept",
    "SweptWindow",
    "answer_by_enumeration",
    "answer_by_splitting",
    "answer_by_sweep",
    "answer_by_windows",
    "begun_by",
    "bracketed",
    "by_class",
    "claim_of",
    "expected",
    "lines_at_once",
    "sweep_window",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
