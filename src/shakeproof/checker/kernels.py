"""What a perturbation's text means: kernels in exact fractions, offsets, clipping; and the path x(z) with its error."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from shakeproof.checker.budget import Array, require, spend
from shakeproof.checker.enclosure import U64, gamma

Matrix = list[list[Any]]  # of fractions, or of floats where a family has no fractions
PADDINGS: dict[str, Any] = {"reflect": "reflect", "zeros": "constant", "replicate": "edge", "circular": "wrap"}
MOST_PARTS = 8
NEAR = Fraction(1, 10**9)


def identity(height: int, width: int) -> Matrix:
    """1 in the centre; an even side has two middle entries, which share it."""
    down, right = ([Fraction(i in ((n - 1) // 2, n // 2), 2 - n % 2) for i in range(n)] for n in (height, width))
    return [[v * h for h in right] for v in down]


def sharpening(size: int) -> Matrix:
    """Twice the identity less the mean over the diamond around it."""
    reach, same, cells = (size - 1) // 2, identity(size, size), range(size)
    away = [max(reach - i, i - size // 2, 0) for i in cells]
    around = [[away[i] + away[j] <= reach and not same[i][j] for j in cells] for i in cells]
    share = Fraction(1, sum(map(sum, around)))
    return [[2 * same[i][j] - share * around[i][j] for j in cells] for i in cells]


def motion(size: int, angle: Fraction) -> Matrix:
    """The share of a line through the centre inside each pixel; a bearing (0 is up, clockwise)."""
    require(0 <= angle < 180, "an angle is from 0 to 180 degrees")
    middle, cells = identity(1, size)[0], range(size)
    if angle == 0:  # along a column, or between two of them
        return [[share / size for share in middle] for _ in cells]
    if angle == 90:
        return [[share / size] * size for share in middle]
    if angle in (45, 135):
        return [[Fraction(i == (j if angle == 135 else size - 1 - j), size) for j in cells] for i in cells]
    return line(size, angle)


def line(size: int, angle: Any, reach: float = math.inf) -> Matrix:
    """The same of a line that ends so far from the centre, or at the border, in floats."""
    cells, half = range(size), size / 2
    right, down = (x or 1e-300 for x in (math.sin(math.radians(angle)), -math.cos(math.radians(angle))))
    reach = min(reach, half / max(abs(right), abs(down)))
    # from when to when the line is in each row, and in each column
    rows, columns = ([sorted(((c - half) / v, (c + 1 - half) / v)) for c in cells] for v in (down, right))
    stays = [[min(last, end, reach) - max(first, start, -reach) for start, end in columns] for first, last in rows]
    return [[max(0.0, stay) / (2 * reach) for stay in row] for row in stays]


def gaussian(size: int, sigma: Fraction, times: int = 1) -> Matrix:
    """A Gaussian at the pixels' centres, divided by its sum; `times` of it, and the identity for the rest of 1."""
    require(sigma > 0, "a Gaussian has a width")
    weights = np.exp(-(((np.arange(size) - (size - 1) / 2) / float(sigma)) ** 2) / 2)
    blurred = np.outer(weights, weights) / weights.sum() ** 2
    return [*map(list, times * blurred + (1 - times) * np.array(identity(size, size), dtype=float))]


def disk(radius: Fraction) -> Matrix:
    """The share of a disk around the centre inside each pixel: differences of what it has between 0 and a corner."""
    require(0 < radius < 500, "a disk has a radius of less than 500 pixels")
    r, reach = float(radius), math.ceil(radius - Fraction(1, 2))
    ends = np.clip(np.arange(-reach, reach + 2) - 0.5, -r, r)
    x, y, sides = np.abs(ends), np.abs(ends)[:, None], np.outer(np.sign(ends), np.sign(ends))
    flat = np.minimum(x, np.sqrt(r * r - y * y))  # up to there the disk is higher than y
    under, before = ((t * np.sqrt(r * r - t * t) + r * r * np.arcsin(t / r)) / 2 for t in (x, flat))
    return [*map(list, np.diff(np.diff(sides * (flat * y + under - before), axis=0)) / (math.pi * r * r))]


def transferred(
    size: int, jitter: Any = 0, vertical: Any = None, defocus: Any = 0, aperture: Any = None, turbulence: Any = None
) -> Matrix:
    """What a point becomes by transfer functions, with their Fourier sum up to 4 cycles per pixel."""
    jitters = float(jitter), float(jitter if vertical is None else vertical)
    limits = ((0.05, aperture, 4), (0.05, turbulence, 1), *((0, width, 60) for width in (*jitters, defocus)))
    require(size % 2 and size < 128, "a kernel by transfer functions has an odd size below 128")
    require(all(x is None or low <= x <= high for low, x, high in limits), "a transfer function is out of range")
    spend(2**32, 2**24)
    u = np.arange(-1024, 1025) / 256
    radius = np.hypot(u, u[:, None])
    passed = np.exp(-2 * (math.pi * jitters[0] * u) ** 2) * np.exp(-2 * (math.pi * jitters[1] * u[:, None]) ** 2)
    passed *= np.exp(-((math.pi / 2 * float(defocus) * radius) ** 2))
    if turbulence is not None:
        passed *= np.exp(-3.44 * (radius / float(turbulence)) ** (5 / 3))
    if aperture is not None:
        angle = np.arccos(np.minimum(radius / float(aperture), 1))
        passed *= (2 * angle - np.sin(2 * angle)) / math.pi
    waves = np.exp(2j * math.pi * np.outer(np.arange(size) - size // 2, u)) * np.where(np.abs(u) == 4, 0.5, 1)
    kernel = np.maximum((waves @ passed @ waves.T).real, 0)
    return [*map(list, kernel / kernel.sum())]


# A family by its options: the kernel at full strength (None: whatever the certificate has), and what it adds.
FAMILIES: Mapping[str, Callable[..., tuple[Matrix | None, Any]]] = {
    "identity": lambda: (identity(1, 1), 0),
    "box-blur": lambda size: ([[Fraction(1, size * size)] * size] * size, 0),
    "sharpen": lambda size: (sharpening(size), 0),
    "motion-blur": lambda size, angle: (motion(size, angle), 0),
    "gaussian-blur": lambda size, sigma: (gaussian(size, sigma), 0),
    "defocus": lambda radius: (disk(radius), 0),
    "otf": lambda **options: (transferred(**options), 0),
    "unsharp": lambda size, sigma: (gaussian(size, sigma, times=-1), 0),
    "haze": lambda colour: ([[0]], colour),
    "brightness": lambda max: (identity(1, 1), max),
    "contrast": lambda max: ([[1 + max]], 0),
    "psf": lambda file, index="", scale=1: (None, 0),
    "custom": lambda file, index="", normalise="": (None, 0),
}
WORDS = {"file", "index", "normalise", "padding", "trajectory"}  # options that are no numbers
BETWEEN = re.compile(rf"\+(?=(?:{'|'.join(FAMILIES)})(?:[:+]|$))")


def _number(text: str) -> Any:
    """A number as Python writes them, exactly as it is written."""
    require(re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?(e-?\d{1,3})?", text), f"{text[:40]!r} is not a number")
    return int(text) if re.fullmatch(r"\d{1,3}", text) else Fraction(text)


def _numbers(text: str) -> Any:
    """A number, or from one to another."""
    low, _, high = text.partition("..")
    return (_number(low), _number(high)) if high else _number(low)


class Added(NamedTuple):
    """What a strength adds: (kernel - identity) * x + offset; or a segment, behind the kernel `before`."""

    kernel: Matrix
    padding: str
    offset: Fraction
    before: Matrix | None = None


def fractions(rows: Matrix, words: str) -> Matrix:
    """A kernel as it is written."""
    plain = all(re.fullmatch(r"-?\d{1,4000}(/\d{1,4000})?", entry) for row in rows for entry in row)
    require(plain and len({len(row) for row in rows}) == 1, f"the kernel of {words!r} is not a matrix of fractions")
    return [[Fraction(entry) for entry in row] for row in rows]


# Where between two nodes a curve is compared with the chord.
SHARES = (0.25, 0.5, 0.75)
# The options of a chain.
CHAINS = {
    "motion-length": {"angle", "upto"},
    "motion-angle": {"size", "from", "to", "strength"},
    "exposure": {"trajectory", "upto", "focal"},
    "gaussian-blur": {"size", "sigma", "tolerance"},
    "defocus": {"size", "radius", "tolerance"},
}


def chained(
    words: str, family: str, options: Mapping[str, Any], rows: Sequence[Matrix], nodes: Sequence[Any]
) -> tuple[list[Matrix], str]:
    """The kernels at the nodes, and a remark; refused unless they are what the words mean there."""
    require(family in CHAINS and options.keys() <= CHAINS[family], f"no chain is known by {words!r}")
    increasing = all(type(z) is float for z in nodes) and all(a < b for a, b in pairwise(nodes))
    require(increasing and nodes[0] == 0 and nodes[-1] == 1, "the segments of a chain do not cover [0, 1]")
    require(len(rows) == len(nodes), "a chain has one kernel for each node")
    kernels, side = [fractions(one, words) for one in rows], len(rows[0])
    require(all(len(one) == len(one[0]) == side for one in kernels), "a chain's kernels are not of one size")
    straight = f"between {len(nodes)} nodes, {words!r} goes straight from picture to picture"
    if family == "exposure":
        return kernels, f"{straight}; the kernels are the certificate's own"
    require(options.get("size", side) == side, f"the kernels of {words!r} have another size")
    for z, kernel in zip(nodes, kernels, strict=True):
        apart = np.array(kernel, dtype=float) - _at_node(family, z, side, options)
        require((np.abs(apart) <= float(NEAR)).all(), f"the kernel at strength {z} is not what {words!r} means")
    missing = [z for z in _bends(family, side, options) if not (np.abs(np.array(nodes) - z) <= float(NEAR)).any()]
    require(not missing, f"{words!r} bends where the chain has no node, at the strengths {missing[:3]}")
    for (low, before), (high, after) in pairwise(zip(nodes, kernels, strict=True)) if "motion" not in family else ():
        for share in SHARES:
            chord = (1 - share) * np.array(before, dtype=float) + share * np.array(after, dtype=float)
            away = np.abs(chord - _at_node(family, low + share * (high - low), side, options)).sum()
            require(away <= options.get("tolerance", 0.01) + NEAR, f"{words!r} has no node between {low} and {high}")
    return kernels, f"{straight}; the kernels are the certificate's own, within 1e-9 of the checker's"


def _bends(family: str, side: int, options: Mapping[str, Any]) -> list[float]:
    """Strengths at which the kernels of a moving line bend: it enters a pixel, or two such places pass each other."""
    odd = range(1, side + 1, 2)
    if family == "motion-length":
        angle, upto = math.radians(options["angle"]), float(options["upto"])
        across = [abs(part) for part in (math.sin(angle), math.cos(angle)) if part]
        found = [k / part / upto for part in across for k in odd]
    elif family == "motion-angle":
        start, way = float(options["from"]), float(options["to"] - options["from"])
        tangents = {math.degrees(math.atan2(p, q)) for p in odd for q in odd if p <= q}
        around = range(int(min(start, start + way) // 90), int(max(start, start + way) // 90) + 2)
        found = [(90 * k + sign * turn - start) / way for k in around for turn in tangents for sign in (1, -1)]
    else:
        found = []
    return [z for z in found if 0 < z < 1]


def _at_node(family: str, z: float, side: int, options: Mapping[str, Any]) -> Array:
    """The kernel at a strength."""
    same = np.array(identity(side, side), dtype=float)
    if family == "motion-length":
        return np.array(line(side, options["angle"], max(z * float(options["upto"]) / 2, 1e-12)))
    if family == "motion-angle":
        angle = float(options["from"]) + z * float(options["to"] - options["from"])
        share = float(options.get("strength", 1))
        return (1 - share) * same + share * np.array(line(side, angle))
    low, high = options["sigma" if family == "gaussian-blur" else "radius"]
    width = Fraction(low) + (Fraction(high) - low) * Fraction(z)
    if family == "gaussian-blur":
        return np.array(gaussian(side, width), dtype=float) if width else same
    if width <= 0.5:
        return same
    area = np.array(disk(width), dtype=float)
    return np.pad(area, (side - len(area)) // 2)


def meaning(
    text: str, kernels: Sequence[Matrix], nodes: Sequence[Any] | None = None
) -> tuple[list[Added], list[float], list[str]]:
    """Parts, what pixels are clipped to (or []), and remarks; refused unless the `kernels` are what the text says.

    With `nodes`, those of a chain at these strengths; parts are its segments.
    """
    clip = re.search(r"[:,]clip=([^,=]+)\.\.([^,=]+)$", text)
    written, parts, remarks = BETWEEN.split(text[: clip.start()] if clip else text), list[Added](), list[str]()
    is_chain = nodes is not None
    few = len(written) == (1 if is_chain else len(kernels)) <= MOST_PARTS
    require(few, f"the perturbation {text!r} has other parts")
    for words, rows in zip(written, [kernels] if is_chain else kernels, strict=True):
        family, _, rest = words.partition(":")
        pairs = [option.partition("=") for option in re.split(r",(?=[a-z]+=)", rest)] if rest else []
        options = {name: value if name in WORDS else _numbers(value) for name, _, value in pairs}
        require(len(options) == len(pairs), f"the perturbation {words!r} says something twice")
        padding = options.pop("padding", "reflect")
        if nodes is not None:
            ends, remark = chained(words, family, options, kernels, nodes)
            parts += [Added(after, padding, Fraction(0), start) for start, after in pairwise(ends)]
            remarks.append(remark)
            continue
        require(options.get("size", len(rows)) == len(rows), f"the kernel of {words!r} has another size")
        derived, offset = FAMILIES[family](**options)
        kernel = fractions([*rows], words)
        if derived is None:
            remarks.append(f"the kernel of {words!r} is the certificate's own")
        elif derived != kernel:
            entries = [pair for both in zip(derived, kernel, strict=True) for pair in zip(*both, strict=True)]
            near = all(isinstance(a, float) and abs(Fraction(a) - b) <= NEAR for a, b in entries)
            require(near, f"the certificate's kernel is not what {words!r} means")
            remarks.append(f"the kernel of {words!r} is the certificate's own, within 1e-9 of the checker's")
        parts.append(Added(kernel, padding, Fraction(offset)))
    return parts, [float(_number(bound)) for bound in clip.groups()] if clip else [], remarks


def understood(header: Mapping[str, Any], pixels: Array) -> tuple[list[Added], list[float], list[str]]:
    """What a header asks about an image, whatever computes the network: parts, what pixels are clipped to, remarks."""
    strength, mean, std = (header[key] for key in ("strength", "mean", "std"))
    require(pixels.ndim == 3 and (np.abs(pixels) < 2.0**60).all(), "the pixels are not finite numbers")
    require(all(type(x) is float for x in (*strength, *mean, *std)), "a strength, mean or std is not a number")
    fits = len(mean) == len(std) in (0, 1, len(pixels)) and all(1e-30 < s < 1e30 for s in std)
    require(fits, "mean and std are not for the image's channels, or std is not positive")
    parts, clip, remarks = meaning(header["perturbation"], header["kernels"], header.get("nodes"))
    require(clip == [] or clip[0] < clip[1], "the clip range is empty")
    inside = len(strength) == (1 if "nodes" in header else len(parts)) and all(0 <= s <= 1 for s in strength)
    require(inside, "there must be one strength in [0, 1] for each part")
    # whoever reads the outcome must know what the network was given
    return parts, clip, [*remarks, f"the model is given (x - {mean}) / {std}"] if mean else remarks


def windows(image: Array, kernel: Matrix, padding: str) -> Iterator[tuple[Any, Array]]:
    """The terms of a cross-correlation to the same size: each entry that is not 0, and the pixels that it is to be
    multiplied with. Even kernels reach further down and right.
    """
    (height, width), (tall, wide) = image.shape[1:], np.shape(kernel)
    require(tall // 2 < height and wide // 2 < width, "a kernel is too large for the image")
    around = [(0, 0), ((tall - 1) // 2, tall // 2), ((wide - 1) // 2, wide // 2)]
    spend(8 * np.size(kernel) * image.size, 4 * image.size)
    padded = np.pad(image, around, mode=PADDINGS[padding])
    for i, j in np.argwhere(np.array(kernel)):
        yield kernel[i][j], padded[:, i : i + height, j : j + width]


def convolved(image: Array, kernel: Matrix, padding: str) -> tuple[Array, Array]:
    """Cross-correlation to the same size, and at least its error."""
    total, size, terms = np.zeros_like(image), np.zeros_like(image), 0
    for entry, window in windows(image, kernel, padding):
        term = float(entry) * window
        total, size, terms = total + term, size + np.abs(term), terms + 1
    # each entry of the kernel is rounded once, each product once, and it takes part in all additions
    return total, gamma(2 * terms + 8, U64) * size + terms * 2.0**-1000


def _start(part: Added) -> Matrix:
    return part.before or identity(*np.shape(part.kernel))


def path(pixels: Array, parts: Sequence[Added]) -> tuple[Array, Array, Array]:
    """x(0), what each strength adds to it, and at least the error of x(z), computed in any order, for z in [0, 1]^m.

    (channels, height, width), (m, channels, height, width), (channels, height, width). All parts start from the same
    image, or each segment where the one before it ends; a kernel of one entry is applied to that one.
    """
    wide = [part for part in parts if np.size(part.kernel) > 1]
    starts = [convolved(pixels, _start(part), part.padding) for part in (wide[:1] if parts[0].before else wide)]
    base, error = starts[0] if starts else (pixels, np.zeros_like(pixels))
    require(all((start == base).all() for start, _ in starts), "the parts do not start from the same image")
    slopes, doubt = [], error
    for part in parts:
        rows = zip(part.kernel, _start(part), strict=True)
        change = [[a - b for a, b in zip(*both, strict=True)] for both in rows]
        slope, wrong = convolved(pixels if part in wide else base, change, part.padding)
        slopes.append(slope + float(part.offset))
        inherited = 0.0 if part in wide else 1.01 * abs(float(change[0][0])) * error
        doubt = doubt + wrong + inherited + 4 * U64 * (np.abs(slope) + abs(float(part.offset)))
    size = np.abs(base) + np.abs(slopes).sum(0)
    return base, np.stack(slopes), 1.01 * (doubt + (len(parts) + 4) * 2 * U64 * size + 2.0**-1000)
