"""From a query to its answer: compare with the runtime, sweep, bound or run pictures, prove, bracket, judge.

`exact_method` sweeps paths of piecewise-linear networks, `bounds_method` splits everything else, and
`enumeration_method` runs every 8-bit picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shakeproof import names_on_first_use

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

# To read what an answer claims takes no torch.
__getattr__ = names_on_first_use(__name__, __file__)
