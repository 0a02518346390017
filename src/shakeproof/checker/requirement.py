"""What is required of the outputs, by its text, and by how much that is proved to hold, or to fail, on each leaf.

A requirement is a list of cases. A case has rows, affine functions of the outputs, and a count: it is met, and the
requirement fails, where at least so many rows are 0 or less. So it holds where, of each case, the count-th smallest row
is positive, and that is the more so the larger rows are: lower bounds of rows are all it takes.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shakeproof.checker.budget import Array, Unknown, require, spend
from shakeproof.checker.enclosure import U64, Tube, up

# The keys of each kind; of a label's, none needs to be there.
KEYS = {"label": {"lead"}, "top": {"k"}, "among": {"classes"}, "never": {"classes"}, "score": {"class", "above"},
        "output": {"index", "within"}, "drift": {"index", "by"}}  # fmt: skip
NEAR = 0.01  # so close, as a share of what it may drift, must a value at strength 0 be to the one that is stated

# Rows (k, outputs) @ outputs + constants (k), and how many of them are needed to make the case.
Case = tuple[Array, Array, int]


def cases(header: Mapping[str, Any], scores: Tube, last: str) -> list[Case]:
    """Of a text whose classes and outputs are numbers; nothing, if that is not there: a label is required then.

    `scores` are those at strength 0; where a softmax is the `last` operator, only their order is known.
    """
    parts = header["requirement"].split(" and ") if header.get("requirement") else []
    spend(0, scores.radius.size**2 * len(parts))
    listed = [case for part in parts for case in _cases(part, header, scores)]
    compares = all(not constants.any() and not rows.sum(1).any() for rows, constants, _ in listed)
    require(compares or "Softmax" not in last, "outputs of a softmax, of which only the order is known", Unknown)
    return listed


def _cases(text: str, header: Mapping[str, Any], scores: Tube) -> Iterator[Case]:
    name, _, rest = text.partition(":")
    options = [option.split("=") for option in re.split(",(?=[a-z]+=)", rest) if rest]
    keys, unit = dict(options), np.eye(scores.radius.size)
    fits = len(keys) == len(options) and (keys.keys() == KEYS[name] or text == "label")
    named = ",".join(keys.get(key, "") for key in ("classes", "class", "index")).split(",")
    places = [header["label"]] if name in ("label", "top") else [int(place) for place in named if place]
    fits = fits and len({*places}) == len(places) and all(0 <= place < len(unit) for place in places)
    require(fits and 0 < len(places) <= len(unit) - (name in ("among", "never")), f"{text}: has no meaning here")
    chosen, others = unit[places], np.delete(unit, places, 0)
    if name in ("label", "top"):
        count, lead = int(keys.get("k", 1)), float(keys.get("lead", 0))
        require(0 < count <= len(others) and lead >= 0, f"{text}: has no meaning here")
        yield chosen - others, np.full(len(others), -lead), count
    elif name in ("among", "never"):
        allowed, rivals = (chosen, others) if name == "among" else (others, chosen)
        yield from ((allowed - rival, np.zeros(len(allowed)), len(allowed)) for rival in rivals)
    elif name == "score":
        yield chosen, np.array([-float(keys["above"])]), 1
    else:
        low, high = map(float, (keys.get("within") or f"-{keys['by']}..{keys['by']}").split(".."))
        if name == "drift":
            start, off = header["start"][places[0]], scores.radius[0, places[0]] + NEAR * high
            require(abs(start - scores.lines[0, 0, places[0]]) <= off, "an output at strength 0 is another one")
            low, high = start + low, start + high
        yield np.concatenate([chosen, -chosen]), np.array([-low, high]), 1


def required(scores: Tube, listed: list[Case], fails: bool) -> Array:
    """For each leaf a lower bound of by how much the requirement holds, or fails. NaN proves nothing."""
    proved, sign = [], -1 if fails else 1
    for rows, constants, count in listed:
        spend(scores.lines.size * len(rows), scores.lines.size // rows.shape[1] * len(rows))
        sizes, lines = np.abs(rows).T, scores.lines @ rows.T * sign
        # of rows with up to two entries of 1: as for differences of two scores
        error = np.minimum(scores.radius @ sizes, 1.5 * scores.norm[:, None]) + np.abs(lines[1:]).sum(0)
        rounded = 8 * U64 * (np.abs(scores.lines).sum(0) @ sizes + np.abs(constants))
        lower = lines[0] + sign * constants - up(error + rounded)
        proved.append(np.sort(lower, 1)[:, -count if fails else count - 1] + 0 * lower.sum(1))  # NaN where one is
    return np.asarray(np.max(proved, 0) if fails else np.min(proved, 0))
