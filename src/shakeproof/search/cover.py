"""Whether boxes cover a box, exactly: floating-point numbers are only compared, never computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def covers(low: Floats, high: Floats, leaf_low: Floats, leaf_high: Floats) -> bool:
    """Whether the closed leaves, (n, m) each, together hold every point of the box from low to high (m).

    Cuts the box at a face of a leaf and looks at both parts, until each part lies within a single leaf. A part that is
    in no leaf and is cut by no face is not covered.
    """
    flat = low == high
    on_plane = ((leaf_low <= low) & (leaf_high >= high) | ~flat).all(1)
    thick = ~flat
    boxes = [(low[thick], high[thick], np.flatnonzero(on_plane))]
    leaf_low, leaf_high = leaf_low[:, thick], leaf_high[:, thick]
    if not thick.any():
        return bool(on_plane.any())
    while boxes:
        box_low, box_high, near = boxes.pop()
        lows, highs = leaf_low[near], leaf_high[near]
        if ((lows <= box_low) & (highs >= box_high)).all(1).any():
            continue
        cut = _cut(box_low, box_high, np.concatenate([lows, highs]))
        if cut is None:
            return False
        axis, place = cut
        parts = (box_low, _replaced(box_high, axis, place)), (_replaced(box_low, axis, place), box_high)
        for part_low, part_high in parts:
            touching = ((lows < part_high) & (highs > part_low)).all(1)
            boxes.append((part_low, part_high, near[touching]))
    return True


def _cut(low: Floats, high: Floats, faces: Floats) -> tuple[int, Any] | None:
    """An axis and a face inside the box, the median along the axis that has the most; None if there is none."""
    inside = (faces > low) & (faces < high)
    axis = int(inside.sum(0).argmax())
    places = np.sort(faces[inside[:, axis], axis])
    return (axis, places[len(places) // 2]) if len(places) else None


def _replaced(point: Floats, axis: int, value: Any) -> Floats:
    changed = point.copy()
    changed[axis] = value
    return changed
