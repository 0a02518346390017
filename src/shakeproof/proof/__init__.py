"""From a query to its answer: compare with the runtime, sweep, bound or run pictures, prove, bracket, judge.

`exact_method` sweeps paths of piecewise-linear networks, `bounds_method` splits everything else, and
`enumeration_method` runs every 8-bit picture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.proof.bounds_method import answer_by_splitting
    from shakeproof.proof.enumeration_method import (
        Runner,
        Tell,
        answer_by_enumeration,
        answer_by_picture_windows,
        enumerate_window,
        expected,
    )
    from shakeproof.proof.evidence import (
        BoundedCells,
        Counterexample,
        Enumerated,
        EnumeratedWindow,
        Interval,
        Swept,
        SweptWindow,
        by_class,
    )
    from shakeproof.proof.exact_method import answer_by_sweep, answer_by_windows, lines_at_once, sweep_window
    from shakeproof.proof.result import (
        BLURS_AT_ZERO,
        LIKELY_CAUSE,
        Expected,
        Interrupted,
        Record,
        Result,
        begun_by,
        bracketed,
    )
    from shakeproof.proof.sampling import tested
    from shakeproof.proof.verdict import CLAIMED, FORMAT, Claim, Reason, Status, claim_of, strengths_of

# Where each name lives. They are imported on first use: to read what an answer claims takes no torch.
_HOMES = {
    "verdict": "CLAIMED FORMAT Claim Reason Status claim_of strengths_of",
    "evidence": "BoundedCells Counterexample Enumerated EnumeratedWindow Interval Swept SweptWindow by_class",
    "result": "BLURS_AT_ZERO LIKELY_CAUSE Expected Interrupted Record Result begun_by bracketed",
    "sampling": "tested",
    "bounds_method": "answer_by_splitting",
    "enumeration_method": "Runner Tell answer_by_enumeration answer_by_picture_windows enumerate_window expected",
    "exact_method": "answer_by_sweep answer_by_windows lines_at_once sweep_window",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
