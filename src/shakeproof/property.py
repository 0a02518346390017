"""What must hold of a network's outputs: linear inequalities, whichever file or label they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Case:
    """Outputs that must not be: those that meet every row, coefficients @ outputs + constants >= 0.

    Coefficients (k, outputs), constants (k,). Where strict (k,), a row says > 0. Without rows, all outputs meet it.
    """

    coefficients: Floats
    constants: Floats
    strict: NDArray[np.bool_]

    def met_by(self, outputs: Floats) -> NDArray[np.bool_]:
        """Which outputs (n, outputs) meet every row."""
        rows = outputs @ self.coefficients.T + self.constants
        met: NDArray[np.bool_] = np.where(self.strict, rows > 0, rows >= 0)
        return np.asarray(met.all(1))

    @property
    def compares(self) -> tuple[int, int] | None:
        """(rival, label) if all it says is that a rival's output is no less than a label's."""
        if len(self.constants) != 1 or self.constants[0] != 0:
            return None
        (row,) = self.coefficients
        compared = np.count_nonzero(row) == 2 and row.sum() == 0
        return (int(row.argmax()), int(row.argmin())) if compared else None


@dataclass(frozen=True, eq=False)
class Property:
    """Holds of outputs that meet none of the cases."""

    outputs: int
    cases: tuple[Case, ...]

    def fails(self, outputs: NDArray[Any]) -> NDArray[np.bool_]:
        """For which outputs (n, outputs) it does not hold, all of them being finite."""
        wide = np.asarray(outputs, dtype=np.float64)
        if self._every_rival:
            lost: NDArray[np.bool_] = self.margin(wide) <= 0
            return lost & np.isfinite(wide).all(1)
        met: NDArray[np.bool_] = np.any([case.met_by(wide) for case in self.cases], axis=0)
        return met & np.isfinite(wide).all(1)

    def margin(self, outputs: Floats, within: Floats | None = None) -> Floats:
        """How far outputs (n, outputs) are from meeting a case: positive where the property holds. NaN if one is.

        With `within` (n, outputs), the least that it can be if every output may be off by so much.
        """
        if self._every_rival:  # no need for a product each
            if within is not None:
                is_label = np.arange(self.outputs) == self.label
                outputs = outputs + np.where(is_label, -within, within)
            return margins(outputs, np.full(len(outputs), self.label))
        rows = [-(outputs @ case.coefficients.T + case.constants) for case in self.cases]
        if within is not None:
            rows = [row - within @ np.abs(case.coefficients.T) for row, case in zip(rows, self.cases, strict=True)]
        found: Floats = np.min([row.max(1, initial=-np.inf) for row in rows], axis=0)
        return found

    @cached_property
    def label(self) -> int | None:
        """The class that should win, if all the property says is that others do not score as much as it."""
        compared = [case.compares for case in self.cases]
        labels = {pair[1] if pair else None for pair in compared}
        return labels.pop() if len(labels) == 1 else None

    @cached_property
    def _every_rival(self) -> bool:
        """Whether all that is said is that no other class scores as much as the label."""
        rivals = {case.compares for case in self.cases if not case.strict.any()}
        return self.label is not None and len(rivals) == self.outputs - 1 == len(self.cases)

    @cached_property
    def compares_only(self) -> bool:
        """Whether it is about the order of the outputs alone."""
        rows = np.concatenate([case.coefficients for case in self.cases])
        constants = np.concatenate([case.constants for case in self.cases])
        return bool(((np.count_nonzero(rows, axis=1) == 2) & (rows.sum(1) == 0) & (constants == 0)).all())

    @property
    def claims(self) -> tuple[Floats, Floats]:
        """Coefficients (cases, rows, outputs) and constants (cases, rows): it holds where each case has a positive row.

        Cases with fewer rows than others repeat their own.
        """
        rows = max(len(case.constants) for case in self.cases)
        chosen = [np.resize(np.arange(len(case.constants)), rows) for case in self.cases]
        pairs = list(zip(self.cases, chosen, strict=True))
        return np.stack([-c.coefficients[at] for c, at in pairs]), np.stack([-c.constants[at] for c, at in pairs])

    def check(self) -> None:
        """Refuse what is no property: no case, arrays that do not fit, numbers that are not finite."""
        if not self.cases:
            raise InputError("a property needs a case that a counterexample could meet")
        for case in self.cases:
            rows = len(case.constants)
            if case.coefficients.shape != (rows, self.outputs) or case.strict.shape != (rows,):
                raise InputError(f"the coefficients of a case must be for {self.outputs} outputs, with a row each")
            if not (np.isfinite(case.coefficients).all() and np.isfinite(case.constants).all()):
                raise InputError("the numbers of a case must be finite")


def wins(label: int, outputs: int) -> Property:
    """The label scores more than every other class."""
    difference = np.eye(outputs) - np.eye(outputs)[label]
    zero, closed = np.zeros(1), np.zeros(1, dtype=bool)
    rivals = (row[None] for rival, row in enumerate(difference) if rival != label)
    return Property(outputs, tuple(Case(row, zero, closed) for row in rivals))


def margins(scores: Floats, labels: NDArray[Any] | Sequence[int]) -> Floats:
    """The lead of each row's label over its best rival; scores (rows, classes), labels (rows)."""
    rows = np.arange(len(scores))
    rivals = scores.copy()
    rivals[rows, labels] = -np.inf
    lead: Floats = scores[rows, labels] - rivals.max(1)
    return lead
