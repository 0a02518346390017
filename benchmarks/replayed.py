"""Answers about 8-bit pictures, replayed at random strengths by a program that shares nothing with shakeproof.

    shakeproof profile model.onnx 'data.npz@0:5' -p box-blur:size=5 --pixels 8bit --json > answers.jsonl
    python benchmarks/replayed.py answers.jsonl [--count 5000] [--seed 0] [--mean 0.5] [--std 0.5]

For each answer, random strengths are drawn, half of them close to changes of class; the picture there is worked out in
whole numbers, rounded (halves to even), and run alone in plain onnxruntime; the class that the answer names there must
have the largest score. Needs numpy and onnxruntime. Pictures are FILE.npz@INDEX; perturbations are box-blur and
sharpen of odd sizes, and motion-blur of odd sizes along the axes and diagonals. Prints a line of JSON for each answer;
the exit code is 1 if one is contradicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Whole = NDArray[np.int64]
# Strengths are whole numbers of this unit, and so many of them are worked out at once.
UNIT, AT_ONCE = 2**20, 64
# Strengths close to a change of class are within so many units of it.
CLOSE = 2**10
# A strength that is closer than this to the end of an interval may be on either side of it.
ROUNDING = 1e-12


def kernel(text: str) -> tuple[Whole, int]:
    """The kernel at full strength as whole numbers, and what they are to be divided by."""
    family, _, options = text.partition(":")
    values = dict(option.split("=") for option in options.split(","))
    size = int(values["size"])
    if size % 2 == 0 or set(values) - {"size", "angle"}:
        raise SystemExit(f"{text}: not a perturbation that is known here")
    away = np.abs(np.arange(size) - size // 2)
    if family == "box-blur":
        entries = np.ones((size, size), np.int64)
    elif family == "motion-blur":
        entries = np.zeros((size, size), np.int64)
        rows, columns = np.arange(size), np.full(size, size // 2)
        places = {"0": (rows, columns), "90": (columns, rows), "45": (rows[::-1], rows), "135": (rows, rows)}
        entries[places[values["angle"]]] = 1
    elif family == "sharpen":
        entries = -(away[:, None] + away <= size // 2).astype(np.int64)
        entries[size // 2, size // 2] = 0
        entries[size // 2, size // 2] = -2 * entries.sum()
    else:
        raise SystemExit(f"{text}: not a perturbation that is known here")
    return entries, int(entries.sum())


def convolved(picture: Whole, entries: Whole) -> Whole:
    """A picture (channels, height, width), its border reflected, as a sum of shifted pictures."""
    (_, height, width), reach = picture.shape, len(entries) // 2
    padded = np.pad(picture, ((0, 0), (reach, reach), (reach, reach)), mode="reflect")
    found = np.zeros_like(picture)
    for (row, column), entry in np.ndenumerate(entries):
        found += entry * padded[:, row : row + height, column : column + width]
    return found


def rounded(numerators: Whole, denominator: int) -> Whole:
    """To the nearest whole numbers, halves to even."""
    whole, rest = np.divmod(numerators, denominator)
    return whole + ((2 * rest > denominator) | ((2 * rest == denominator) & (whole % 2 == 1)))


def pictures(picture: Whole, text: str, numbers: Whole) -> NDArray[np.uint8]:
    """The 8-bit pictures (n, channels, height, width) at strengths numbers / UNIT."""
    entries, total = kernel(text)
    z = numbers.reshape(-1, 1, 1, 1)
    exact = (UNIT - z) * total * picture + z * convolved(picture, entries)
    return rounded(exact, UNIT * total).clip(0, 255).astype(np.uint8)


def scores(session: Any, levels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> Iterator[Any]:
    """What onnxruntime gives each picture alone, normalised in float32."""
    wanted = session.get_inputs()[0]
    shape = [side if isinstance(side, int) else 1 for side in wanted.shape]
    centre, spread = (np.reshape(values, (-1, 1, 1)).astype(np.float32) for values in (mean, std))
    for picture in levels:
        given = picture if wanted.type == "tensor(uint8)" else (picture / np.float32(255) - centre) / spread
        yield session.run(None, {wanted.name: given.reshape(shape)})[0].reshape(-1)


def named(profile: Sequence[Mapping[str, Any]], z: float) -> set[int]:
    """The class at a strength, or the two on either side of it."""
    return {part["class"] for part in profile if part["from"] - ROUNDING <= z <= part["to"] + ROUNDING}


def archived(name: str) -> Whole:
    """Picture FILE.npz@INDEX as grey levels (channels, height, width)."""
    file, _, index = name.rpartition("@")
    levels = np.load(file)["x"][int(index)]
    assert levels.dtype == np.uint8, name
    return (levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1)).astype(np.int64)


def strengths(answer: Mapping[str, Any], count: int, random: np.random.Generator) -> Whole:
    """Random strengths, in units: half of them anywhere, half of them close to where another class begins to win."""
    last = int(answer["strength"] * UNIT)
    changes = [part["from"] * UNIT for part in answer["profile"][1:]]
    numbers = random.integers(0, last + 1, count)
    if changes:
        half = count // 2
        numbers[:half] = np.rint(random.choice(changes, half) + random.uniform(-CLOSE, CLOSE, half)).clip(0, last)
    return numbers


def contradictions(session: Any, answer: Mapping[str, Any], numbers: Whole, normalisation: Any) -> list[float]:
    """The strengths at which the class that an answer names does not win."""
    picture, found = archived(answer["image"]), []
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        levels = pictures(picture, answer["perturbation"], some)
        for number, row in zip(some.tolist(), scores(session, levels, *normalisation), strict=True):
            classes = named(answer["profile"], number / UNIT)
            if not any(row[winner] == row.max() for winner in classes):
                found.append(number / UNIT)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--count", type=int, default=5000, help="strengths for each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mean", type=float, nargs="+", default=[0.0])
    parser.add_argument("--std", type=float, nargs="+", default=[1.0])
    words = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions: dict[str, Any] = {}
    random, lost = np.random.default_rng(words.seed), 0
    for answer in map(json.loads, words.answers.read_text().splitlines()):
        model = answer["model"]
        if model not in sessions:
            sessions[model] = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        numbers = strengths(answer, words.count, random)
        found = contradictions(sessions[model], answer, numbers, (words.mean, words.std))
        asked = {key: answer[key] for key in ("model", "image", "perturbation")}
        print(json.dumps(asked | {"replays": len(numbers), "contradicted": found}), flush=True)
        lost += len(found)
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
