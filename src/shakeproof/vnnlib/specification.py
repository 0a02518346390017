"""What a counterexample is: boxes of inputs, and linear inequalities that their outputs meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shakeproof.errors import InputError
from shakeproof.property import Case, Floats, Property, wins

Box = tuple[Floats, Floats]

ROUNDED = 1e-6


@dataclass(frozen=True, eq=False)
class Specification:
    """What a counterexample is: an input in one of the parts' boxes, with outputs for which its property fails.

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
        """Refuse what is no specification: no part, a box that is none, numbers that are not finite."""
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

    def is_counterexample(self, given: Floats, outputs: Floats) -> bool:
        """Whether an input (inputs,) with its outputs (outputs,) is one."""
        inside = (about for (low, high), about in self.parts if (low <= given).all() and (given <= high).all())
        return any(bool(about.fails(outputs[None])[0]) for about in inside)


def by_boxes(inputs: int, outputs: int, cases: Iterable[tuple[Box, Case]]) -> Specification:
    """From boxes and the case that must not be met in each: those that share a box make one property."""
    boxes: dict[tuple[bytes, bytes], tuple[Box, list[Case]]] = {}
    for box, case in cases:
        boxes.setdefault((box[0].tobytes(), box[1].tobytes()), (box, []))[1].append(case)
    return Specification(inputs, outputs, tuple((box, Property(outputs, tuple(own))) for box, own in boxes.values()))


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
    found = np.where(lower == 0, upper - radius, lower + radius)
    explained = (found >= lower - ROUNDED) & (found <= upper + ROUNDED)
    return np.asarray(np.where(explained, found, np.clip(found, lower, upper)))
