"""What must hold of a network's outputs: linear inequalities, whichever file or label they come from.

A `Property` is about outputs; a `Specification` says in which boxes of inputs it must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shakeproof.errors import InputError

Floats = NDArray[np.float64]
Box = tuple[Floats, Floats]
# What decimals in files are rounded by, at most.
ROUNDED = 1e-6


@dataclass(frozen=True, eq=False)
class Case:
    """Forbidden outputs: those that meet every row, coefficients @ outputs + constants >= 0.

    Coefficients (k, outputs), constants (k,). Where strict (k,), a row says > 0. Without rows, all outputs meet it.

    Rows may come in groups: one begins at each of `starts`, and is met where any of its rows is. The case is met where
    at least `count` groups are. Without starts, each row is a group, and all of them count.
    """

    coefficients: Floats
    constants: Floats
    strict: NDArray[np.bool_]
    starts: NDArray[np.int64] | None = None
    count: int | None = None

    @property
    def groups(self) -> tuple[NDArray[np.int64], int]:
        """Where each group of rows begins, and how many of them have to be met."""
        starts = np.arange(len(self.constants)) if self.starts is None else self.starts
        return starts, len(starts) if self.count is None else self.count

    def met_by(self, outputs: Floats) -> NDArray[np.bool_]:
        """Which outputs (n, outputs) meet the case."""
        rows = outputs @ self.coefficients.T + self.constants
        met = np.where(self.strict, rows > 0, rows >= 0)
        starts, count = self.groups
        if len(starts) < len(self.constants):
            met = np.logical_or.reduceat(met, starts, axis=1)
        return np.asarray(met.sum(1) >= count)

    def margin(self, outputs: Floats, within: Floats | None = None) -> Floats:
        """How far outputs (n, outputs) are from meeting it: of each group the least row turned round, of these as many
        as count, the largest. It grows with every row, so lower bounds of these (`within`) give a lower bound.
        """
        if not len(self.constants):
            return np.full(len(outputs), -np.inf)
        rows = -(outputs @ self.coefficients.T + self.constants)
        if within is not None:
            rows = rows - within @ np.abs(self.coefficients.T)
        starts, count = self.groups
        if len(starts) < len(self.constants):
            rows = np.minimum.reduceat(rows, starts, axis=1)
        ordered: Floats = np.partition(rows, count - 1, axis=1)[:, count - 1]
        return np.where(np.isnan(rows).any(1), np.nan, ordered)

    @property
    def compares(self) -> tuple[int, int] | None:
        """(rival, label) if the case only says that the rival's output is at least the label's."""
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
        met = self.margin(wide) <= 0 if self.is_label else np.any([case.met_by(wide) for case in self.cases], axis=0)
        return np.asarray(met & np.isfinite(wide).all(1))

    def margin(self, outputs: Floats, within: Floats | None = None) -> Floats:
        """How far outputs (n, outputs) are from meeting a case: positive where the property holds. NaN if one is.

        With `within` (n, outputs), the least that it can be if every output may be off by so much.
        """
        if self.is_label:  # no need for a product each
            if within is not None:
                is_label = np.arange(self.outputs) == self.label
                outputs = outputs + np.where(is_label, -within, within)
            return margins(outputs, np.full(len(outputs), self.label))
        return np.asarray(np.min([case.margin(outputs, within) for case in self.cases], axis=0))

    @cached_property
    def label(self) -> int | None:
        """The class that should win, if all the property says is that others do not score as much as it."""
        compared = [case.compares for case in self.cases]
        labels = {pair[1] if pair else None for pair in compared}
        return labels.pop() if len(labels) == 1 else None

    @cached_property
    def is_label(self) -> bool:
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
    def is_plain(self) -> bool:
        """Whether each case is met by all of its rows together: none has groups, or counts them."""
        return all(case.groups[1] == len(case.groups[0]) == len(case.constants) for case in self.cases)

    @property
    def claims(self) -> tuple[Floats, Floats]:
        """Coefficients (cases, rows, outputs) and constants (cases, rows): it holds where each case has a positive row.

        Cases with fewer rows than others repeat their own. Of plain cases only.
        """
        assert self.is_plain
        rows = max(len(case.constants) for case in self.cases)
        chosen = [np.resize(np.arange(len(case.constants)), rows) for case in self.cases]
        pairs = list(zip(self.cases, chosen, strict=True))
        return np.stack([-c.coefficients[at] for c, at in pairs]), np.stack([-c.constants[at] for c, at in pairs])

    def check(self) -> None:
        """Check the property: at least one case, arrays that fit, finite numbers."""
        if not self.cases:
            raise InputError("a property needs a case that a counterexample could meet")
        for case in self.cases:
            rows = len(case.constants)
            starts, count = case.groups
            if len(starts) and not (starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < rows):
                raise InputError("the groups of a case must begin at rows of it, in order")
            if not (0 < count <= len(starts) or count == len(starts)):
                raise InputError("a case must be met by at least one of its groups, and at most all of them")
            if case.coefficients.shape != (rows, self.outputs) or case.strict.shape != (rows,):
                raise InputError(f"the coefficients of a case must be for {self.outputs} outputs, with a row each")
            if not (np.isfinite(case.coefficients).all() and np.isfinite(case.constants).all()):
                raise InputError("the numbers of a case must be finite")


@lru_cache(maxsize=16)
def wins(label: int, outputs: int) -> Property:
    """The label scores more than every other class; the same object for the next image with that label."""
    difference = np.eye(outputs) - np.eye(outputs)[label]
    zero, closed = np.zeros(1), np.zeros(1, dtype=bool)
    rivals = (row[None] for rival, row in enumerate(difference) if rival != label)
    return Property(outputs, tuple(Case(row, zero, closed) for row in rivals))


def margins(scores: Floats, labels: NDArray[Any] | Sequence[int]) -> Floats:
    """The lead of each row's label over its best rival; scores (rows, classes), labels (rows)."""
    rows = np.arange(len(scores))
    rivals = scores.copy()
    rivals[rows, labels] = -np.inf
    return np.asarray(scores[rows, labels] - rivals.max(1))


@dataclass(frozen=True, eq=False)
class Specification:
    """Defines counterexamples: an input in one of the boxes whose outputs violate the box's property.

    A part's box is (low, high), (inputs,) each, flat, in the network's order. `directives` are what the file says to
    shakeproof. Of version 2.0, `network` is the name that it gives to the network, and `tensors` how it declares input
    and output: name, type and shape.
    """

    inputs: int
    outputs: int
    parts: tuple[tuple[Box, Property], ...]
    directives: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None
    tensors: tuple[str, str] | None = None

    @property
    def box(self) -> Box | None:
        """The box (low, high), if there is one for all."""
        return self.parts[0][0] if len(self.parts) == 1 else None

    @property
    def label(self) -> int | None:
        """The class that should win, if all that is said is that another one scores no less than it, in one box."""
        return self.parts[0][1].label if len(self.parts) == 1 else None

    def check(self) -> None:
        """Check the specification: at least one part, valid boxes, finite numbers."""
        if not self.parts:
            raise InputError("a specification needs a case that a counterexample could meet")
        for (low, high), about in self.parts:
            if low.shape != (self.inputs,) or high.shape != (self.inputs,) or about.outputs != self.outputs:
                raise InputError(f"a box must have {self.inputs} inputs, and its property {self.outputs} outputs")
            if not all(end.dtype == np.float64 and np.isfinite(end).all() for end in (low, high)):
                raise InputError("the numbers of a case must be finite, in float64")
            if not (low <= high).all():
                raise InputError("a case's box has a lower end above its upper end")
            about.check()

    def is_counterexample(self, inputs: Floats, outputs: Floats) -> bool:
        """Whether an input (inputs,) with its outputs (outputs,) is one."""
        inside = (about for (low, high), about in self.parts if (low <= inputs).all() and (inputs <= high).all())
        return any(bool(about.fails(outputs[None])[0]) for about in inside)


def by_boxes(inputs: int, outputs: int, cases: Iterable[tuple[Box, Case]]) -> Specification:
    """From boxes and the case that must not be met in each: those that share a box make one property."""
    boxes: dict[tuple[bytes, bytes], tuple[Box, list[Case]]] = {}
    for box, case in cases:
        boxes.setdefault((box[0].tobytes(), box[1].tobytes()), (box, []))[1].append(case)
    return Specification(
        inputs, outputs, tuple((box, Property(outputs, tuple(together))) for box, together in boxes.values())
    )


def robustness(low: Floats, high: Floats, label: int, outputs: int) -> Specification:
    """Another class scores no less than `label`, somewhere in the box."""
    return Specification(low.size, outputs, (((low, high), wins(label, outputs)),))


def centre(lower: Floats, upper: Floats) -> Floats:
    """The image a box was drawn around; all (channels, height, width).

    Boxes inside [0, 1] were clipped to it, and then the midpoint is not the centre: a side that begins at 0 is measured
    from its upper end, the others from their lower end, by half the widest side of the channel. A box that this rule
    does not explain (the result is outside, by more than rounded decimals are) gets its nearest point instead.
    """
    if lower.min() < 0 or upper.max() > 1:
        return np.asarray((lower + upper) / 2)
    radius = (upper - lower).max(axis=(1, 2), keepdims=True) / 2
    middle = np.where(lower == 0, upper - radius, lower + radius)
    explained = (middle >= lower - ROUNDED) & (middle <= upper + ROUNDED)
    return np.asarray(np.where(explained, middle, np.clip(middle, lower, upper)))
