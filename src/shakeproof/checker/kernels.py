"""What a perturbation does to an image: its kernels in exact fractions, and the path x(z) with its rounding error."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from shakeproof.checker.enclosure import U64, gamma
from shakeproof.checker.wire import Array, require

Matrix = list[list[Fraction]]
PADDINGS: dict[str, Any] = {"reflect": "reflect", "zeros": "constant", "replicate": "edge", "circular": "wrap"}
LARGEST_SIZE, MOST_PARTS = 999, 8


def identity(height: int, width: int) -> Matrix:
    """1 in the centre; an even side has two middle entries, which share it."""
    down, right = ([Fraction(i in ((n - 1) // 2, n // 2), 2 - n % 2) for i in range(n)] for n in (height, width))
    return [[v * h for h in right] for v in down]


def sharpening(size: int) -> Matrix:
    """Twice the identity less the mean over the diamond around it."""
    reach, same = (size - 1) // 2, identity(size, size)
    away = [max(reach - i, i - size // 2, 0) for i in range(size)]
    diamond = {(i, j) for i in range(size) for j in range(size) if away[i] + away[j] <= reach and not same[i][j]}
    share = Fraction(1, len(diamond))
    return [[2 * same[i][j] - share * ((i, j) in diamond) for j in range(size)] for i in range(size)]


def motion(size: int, angle: float) -> Matrix:
    """The share of a line through the centre inside each pixel; a bearing (0 is up, clockwise)."""
    middle, cells, half = identity(1, size)[0], range(size), size / 2
    if angle == 0:  # along a column, or between two of them
        return [[share / size for share in middle] for _ in cells]
    if angle == 90:
        return [[share / size] * size for share in middle]
    if angle in (45, 135):
        return [[Fraction(i == (j if angle == 135 else size - 1 - j), size) for j in cells] for i in cells]
    right, down = math.sin(math.radians(angle)), -math.cos(math.radians(angle))
    reach = half / max(abs(right), abs(down))
    # from when to when the line is in each row, and in each column
    rows, columns = ([sorted(((c - half) / v, (c + 1 - half) / v)) for c in cells] for v in (down, right))
    stays = [[min(last, end, reach) - max(first, start, -reach) for start, end in columns] for first, last in rows]
    return [[Fraction(max(0.0, stay) / (2 * reach)) for stay in row] for row in stays]


# A family: which options it must have, and its kernel at full strength; "custom": whatever the certificate has.
FAMILIES: Mapping[str, tuple[list[str], Callable[[int, float], Matrix]]] = {
    "identity": ([], lambda size, angle: identity(1, 1)),
    "box-blur": (["size"], lambda size, angle: [[Fraction(1, size * size)] * size] * size),
    "sharpen": (["size"], lambda size, angle: sharpening(size)),
    "motion-blur": (["angle", "size"], motion),
}
TONES = {"brightness": "offset", "contrast": "gain"}
BETWEEN = re.compile(rf"\+(?=(?:{'|'.join((*FAMILIES, 'custom', *TONES))})(?:[:+]|$))")


def _number(text: str) -> Fraction:
    """The decimal number that is written, as Python writes floats; so its exponent is small."""
    value = float(text)
    written = math.isfinite(value) and text in (repr(value), str(int(value)))
    require(written, f"the perturbation has a number, {text[:40]}, that is not written as it should be")
    return Fraction(text)


def fraction(text: str) -> Fraction:
    written = re.fullmatch(r"-?\d{1,4000}(/\d{1,4000})?", text) and not text.endswith("/0")
    require(written, f"{text[:40]!r} is not a fraction")
    return Fraction(text)


def matrix(rows: Sequence[Sequence[str]]) -> Matrix:
    fits = {len(row) for row in rows} == {len(rows[0])} and 1 <= len(rows[0]) <= LARGEST_SIZE >= len(rows)
    require(fits, "a kernel is not a matrix of a possible size")
    return [[fraction(entry) for entry in row] for row in rows]


def confirm(text: str, parts: Sequence[Mapping[str, Any]], clip: Sequence[float] | None) -> list[str]:
    """Refuse unless `parts` and `clip` are what the text says, by the formulas above; remarks on what is left open."""
    written, remarks, said_clip = BETWEEN.split(text), list[str](), None
    alone = len(parts) == 1 or "identity" not in text.split("+")
    require(len(written) == len(parts) <= MOST_PARTS and alone, f"the perturbation {text!r} has other parts")
    for index, (words, part) in enumerate(zip(written, parts, strict=True)):
        family, _, rest = words.partition(":")
        pairs = [option.partition("=") for option in re.split(r",(?=[a-z]+=)", rest)] if rest else []
        options = {name: value for name, _, value in pairs}
        require(len(options) == len(pairs), f"the perturbation {words!r} says something twice")
        if index == len(parts) - 1 and "clip" in options:
            said_clip = [float(_number(bound)) for bound in options.pop("clip").split("..")]
        tolerance = _confirm_part(f"the certificate's part is not what {words!r} means", family, options, part)
        if tolerance:
            near = f", within {tolerance} of the checker's" if math.isfinite(tolerance) else ""
            remarks.append(f"the kernel of {words!r} is the certificate's own{near}")
    same = said_clip == (None if clip is None else list(clip))
    require(same, f"the perturbation {text!r} does not say that pixels are clipped to {clip}")
    return remarks


def _confirm_part(otherwise: str, family: str, options: dict[str, str], part: Mapping[str, Any]) -> float:
    """How far the certificate's kernel may be from ours: lines at most angles have no fractions."""
    if family in TONES:
        require(options.keys() == {"max"} and "gain" in part, otherwise)
        expected = {"gain": Fraction(0), "offset": Fraction(0), TONES[family]: _number(options["max"])}
        require({key: fraction(part[key]) for key in expected} == expected, otherwise)
        return 0.0
    require("change" in part and options.pop("padding", "reflect") == part["padding"], otherwise)
    start, change = matrix(part["start"]), matrix(part["change"])
    same = identity(len(change), len(change[0]))
    require(start == same, "a part of the perturbation does not start from the identity")
    if family == "custom":
        require({"file"} <= options.keys() <= {"file", "normalise"}, otherwise)
        return math.inf
    require(family in FAMILIES and sorted(options) == FAMILIES[family][0], otherwise)
    size, angle = options.get("size", "3"), float(_number(options.get("angle", "0")))
    require(re.fullmatch(r"\d{1,3}", size) and 3 <= int(size) <= LARGEST_SIZE and 0 <= angle < 180, otherwise)
    end = FAMILIES[family][1](int(size), angle)
    require((len(end), len(end[0])) == (len(change), len(change[0])), otherwise)
    apart = max(abs(c + s - e) for rows in zip(change, same, end, strict=True) for c, s, e in zip(*rows, strict=True))
    require(apart <= (Fraction(1, 10**9) if angle % 45 else 0), otherwise)
    return 1e-9 if angle % 45 else 0.0


def convolved(image: Array, kernel: Matrix, padding: str) -> tuple[Array, Array]:
    """Cross-correlation to the same size, and at least its error; even kernels reach further down and right."""
    (height, width), (tall, wide) = image.shape[1:], (len(kernel), len(kernel[0]))
    limit = {"reflect": 1, "circular": 0}.get(padding, -LARGEST_SIZE)
    fits = tall // 2 <= height - limit and wide // 2 <= width - limit
    require(fits, f"a kernel is too large for the image with {padding} padding")
    widths = [(0, 0), ((tall - 1) // 2, tall // 2), ((wide - 1) // 2, wide // 2)]
    padded = np.pad(image, widths, mode=PADDINGS[padding])
    total, size = np.zeros_like(image), np.zeros_like(image)
    for i, row in enumerate(kernel):
        for j, entry in enumerate(row):
            if entry:
                term = float(entry) * padded[:, i : i + height, j : j + width]
                total, size = total + term, size + np.abs(term)
    # each entry of the kernel is rounded once, each product once, and it takes part in all additions
    return total, gamma(2 * tall * wide + 16, U64) * size + tall * wide * 2.0**-1000


def path(pixels: Array, parts: Sequence[Mapping[str, Any]]) -> tuple[tuple[Array, Array], list[tuple[Array, Array]]]:
    """x(0) and what each strength adds to it, each with at least its error: (channels, height, width) arrays."""
    base, slopes = (pixels, np.zeros_like(pixels)), []
    sides = [
        (len(part["change"]) % 2, len(part["change"][0]) % 2, part["padding"]) for part in parts if "change" in part
    ]
    starts = {(2 - rows, 2 - columns, "" if rows == columns == 1 else padding) for rows, columns, padding in sides}
    require(len(starts) < 2, "the parts of the perturbation do not start from the same image")
    for height, width, padding in starts - {(1, 1, "")}:
        base = convolved(pixels, identity(height, width), padding)
    for part in parts:
        if "change" in part:
            slopes.append(convolved(pixels, matrix(part["change"]), part["padding"]))
            continue
        gain, offset = float(fraction(part["gain"])), float(fraction(part["offset"]))
        size = abs(gain) * np.abs(base[0]) + abs(offset)
        slopes.append((gain * base[0] + offset, 1.01 * abs(gain) * base[1] + 8 * U64 * size + 2.0**-1000))
    return base, slopes
