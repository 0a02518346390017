"""What a counterexample is: boxes of inputs, and linear inequalities that their outputs meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError

Floats = NDArray[np.float64]
Box = tuple[Floats, Floats]

ROUNDED = 1e-6


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs in the box from low to high whose outputs meet every row: coefficients @ outputs + constants >= 0.

    low and high (inputs,) are flat, in the network's order; coefficients (k, outputs), constants (k,). Where strict
    (k,), a row says > 0. Without rows, every input in the box is a counterexample.
    """

    low: Floats
    high: Floats
    coefficients: Floats
    constants: Floats
    strict: NDArray[np.bool_]

    def met_by(self, outputs: Floats) -> NDArray[np.bool_]:
        """Which outputs (n, outputs) meet every row."""
        rows = outputs @ self.coefficients.T + self.constants
        met: NDArray[np.bool_] = np.where(self.strict, rows > 0, rows >= 0)
        return np.asarray(met.all(1))


@dataclass(frozen=True, eq=False)
class Specification:
    """What a counterexample is: an input and its outputs that meet one of the cases.

    `directives` are what the file says to shakeproof. Of version 2.0, `network` is the name that it gives to the
    network, and `tensors` how it declares input and output: name, type and shape.
    """

    inputs: int
    outputs: int
    cases: tuple[Case, ...]
    directives: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    tensors: tuple[str, str] | None = None

    @cached_property
    def box(self) -> Box | None:
        """The box (low, high) that all cases share."""
        if not self.cases:
            return None
        first = self.cases[0]
        shared = all(
            same is mine or np.array_equal(same, mine)
            for case in self.cases
            for same, mine in ((first.low, case.low), (first.high, case.high))
        )
        return (first.low, first.high) if shared else None

    @cached_property
    def label(self) -> int | None:
        """The class that should win, if all the property says is that another one scores no less than it."""
        losers = {_loser(case) for case in self.cases}
        return losers.pop() if len(losers) == 1 and self.box is not None else None

    def check(self) -> None:
        """Refuse what is no specification: no case, a box that is none, numbers that are not finite."""
        if not self.cases:
            raise InputError("a specification needs a case that a counterexample could meet")
        for case in self.cases:
            rows = len(case.constants)
            shapes = (self.inputs,), (self.inputs,), (rows, self.outputs), (rows,), (rows,)
            numbers = case.low, case.high, case.coefficients, case.constants
            if tuple(array.shape for array in (*numbers, case.strict)) != shapes:
                raise InputError(f"the arrays of a case must have the shapes {', '.join(map(str, shapes))}")
            if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in numbers):
                raise InputError("the numbers of a case must be finite, in float64")
            if not (case.low <= case.high).all():
                raise InputError("a case's box has a lower end above its upper end")

    def is_counterexample(self, given: Floats, outputs: Floats) -> bool:
        """Whether an input (inputs,) with its outputs (outputs,) meets a case."""
        inside = (case for case in self.cases if (case.low <= given).all() and (given <= case.high).all())
        return any(bool(case.met_by(outputs[None])[0]) for case in inside)


def robustness(low: Floats, high: Floats, label: int, outputs: int) -> Specification:
    """Another class scores no less than `label`, somewhere in the box: one case for each rival."""
    difference = np.eye(outputs) - np.eye(outputs)[label]
    zero, closed = np.zeros(1), np.zeros(1, dtype=bool)
    rivals = (row[None] for rival, row in enumerate(difference) if rival != label)
    return Specification(low.size, outputs, tuple(Case(low, high, row, zero, closed) for row in rivals))


def centre(lower: Floats, upper: Floats) -> Floats:
    """The image a box was drawn around; all (channels, height, width).

    Boxes inside [0, 1] were clipped to it, and then the midpoint is not the centre: a side that begins at 0 is measured
    from its upper end, the others from their lower end, by half the widest side of the channel. A box that this rule
    does not explain (the result is outside, by more than rounded decimals are) gets its nearest point instead.
    """
    if lower.min() < 0 or upper.max() > 1:
        return np.asarray((lower + upper) / 2)
    radius = (upper - lower).max(axis=(1, 2), keepdims=True) / 2
    found = np.where(lower == 0, upper - radius, lower + radius)
    explained = (found >= lower - ROUNDED) & (found <= upper + ROUNDED)
    return np.asarray(np.where(explained, found, np.clip(found, lower, upper)))


def _loser(case: Case) -> int | None:
    """The class that a case says scores no more than another one, if that is all it says."""
    if len(case.constants) != 1 or case.constants[0] != 0:
        return None
    (row,) = case.coefficients
    return int(row.argmin()) if np.count_nonzero(row) == 2 and row.sum() == 0 else None
