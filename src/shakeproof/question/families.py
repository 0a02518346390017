"""The families of perturbations: of each its end kernel, its text and what it means, in one place.

A family is a kernel that goes from the identity at strength 0 to an end kernel at strength 1, or a change of tone. Its
text form is `FAMILY:key=value,...`, or several of these joined by `+`; parsing and printing round-trip. The keys are
the arguments of the family's function.

Reference: Brückner & Lomuscio, "Verification of Neural Networks Against Convolutional Perturbations via
Parameterised Kernels", AAAI 2025, Section 3 and appendix (even sizes included).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, reduce
from itertools import pairwise, product
from operator import add
from pathlib import Path

from shakeproof.errors import InputError, kind_of
from shakeproof.question.perturbation import (
    LARGEST_ENTRY,
    LARGEST_SIZE,
    AnyKernel,
    ClipRange,
    Matrix,
    ParameterisedKernel,
    Part,
    Perturbation,
    Tone,
    identity_matrix,
    plain,
)


def identity(padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """No change at all: the control experiment."""
    return _to_kernel("identity", identity_matrix(1, 1), padding, clip)


def box_blur(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Blur: the mean over a size x size square."""
    _check_size(size)
    end = tuple((Fraction(1, size * size),) * size for _ in range(size))
    return _to_kernel("box-blur", end, padding, clip, size=size)


def sharpen(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Sharpening: the image plus its difference from the mean over a diamond around each pixel.

    At an even size the diamond surrounds the four centre entries (the drawing in the paper's appendix).
    """
    _check_size(size)
    centre = identity_matrix(size, size)
    reach = (size - 1) // 2

    def outside(i: int) -> int:
        """How far a row or column is from the middle (from the nearer of two middles at an even size)."""
        return max(reach - i, i - size // 2, 0)

    diamond = [[outside(i) + outside(j) <= reach and not centre[i][j] for j in range(size)] for i in range(size)]
    weight = Fraction(1, sum(map(sum, diamond)))
    end = tuple(tuple(2 * centre[i][j] - weight * diamond[i][j] for j in range(size)) for i in range(size))
    return _to_kernel("sharpen", end, padding, clip, size=size)


def motion_blur(size: int, angle: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Camera shake: the mean along a line; `angle` is a bearing (0 is up, clockwise), equal modulo 180.

    The line goes through the centre and is clipped to the size x size square. Each entry of the end kernel is
    proportional to the line's length inside that pixel.
    """
    angle = _number("motion-blur", "angle", angle)
    _check_size(size)
    if not math.isfinite(angle):
        raise InputError(f"motion-blur: angle must be a finite number of degrees, not {angle}")
    reduced = angle % 180 % 180  # a tiny negative angle modulo 180 rounds to 180 itself, hence twice
    entries = [[Fraction(0)] * size for _ in range(size)]
    eighth, rest = divmod(reduced, 45)
    if rest == 0:  # exact
        right, down = map(Fraction, ((0, -1), (1, -1), (1, 0), (1, 1))[int(eighth)])
    else:
        right, down = Fraction(math.sin(math.radians(angle))), Fraction(-math.cos(math.radians(angle)))
    for row, column, share in _pixels_on_ray(size, right, down):
        entries[row][column] += share / 2
        entries[size - 1 - row][size - 1 - column] += share / 2
    return _to_kernel("motion-blur", tuple(map(tuple, entries)), padding, clip, size=size, angle=reduced)


def _pixels_on_ray(size: int, right: Fraction, down: Fraction) -> Iterator[tuple[int, int, Fraction]]:
    """(row, column, share of the ray's length) of each pixel met from the centre to the square's border.

    A ray that runs along the border between two pixels is shared equally by both.
    """
    half = Fraction(size, 2)
    end = half / max(abs(right), abs(down))
    cuts = {Fraction(0), end}
    for component in (right, down):
        if component:
            lines = (half - k for k in range(size + 1))
            cuts.update(t for t in (line / component for line in lines) if 0 < t < end)
    for before, after in pairwise(sorted(cuts)):
        middle = (before + after) / 2
        places = (half + middle * component for component in (down, right))
        # the rows and the columns that hold the middle: two of them where it lies on a grid line
        rows, columns = ({math.ceil(place) - 1, math.floor(place)} for place in places)
        for row, column in product(rows, columns):
            yield row, column, (after - before) / end / (len(rows) * len(columns))


def gaussian_blur(size: int, sigma: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Soft blur: a Gaussian with a standard deviation of sigma pixels, cut off at a size x size square."""
    sigma = _number("gaussian-blur", "sigma", sigma)
    return _to_kernel("gaussian-blur", _gaussian("gaussian-blur", size, sigma), padding, clip, size=size, sigma=sigma)


def unsharp(size: int, sigma: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Unsharp masking: the image plus its difference from its Gaussian blur."""
    sigma = _number("unsharp", "sigma", sigma)
    blurred = _gaussian("unsharp", size, sigma)
    rows = zip(identity_matrix(size, size), blurred, strict=True)
    end = tuple(tuple(2 * same - blur for same, blur in zip(*pair, strict=True)) for pair in rows)
    return _to_kernel("unsharp", end, padding, clip, size=size, sigma=sigma)


def _gaussian(family: str, size: int, sigma: float) -> Matrix:
    """exp(-distance^2 / 2 sigma^2) at each pixel's centre, divided by the sum."""
    _check_size(size)
    if not 0 < sigma < math.inf:
        raise InputError(f"{family}: sigma must be a number of pixels above 0, not {sigma:g}")
    # distances from the centre in halves of a pixel; the nearest is taken off all, so that not all weights vanish
    squares = [(2 * i - size + 1) ** 2 - (size - 1) % 2 for i in range(size)]
    weights = [Fraction(math.exp(-square / 8 / sigma / sigma)) for square in squares]
    total = sum(weights)
    shares = [weight / total for weight in weights]
    return tuple(tuple(down * right for right in shares) for down in shares)


def defocus(radius: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Out of focus: the mean over a disk with a radius in pixels.

    Each entry of the end kernel is proportional to the disk's area in its pixel.
    """
    radius = _number("defocus", "radius", radius)
    if not 0.5 < radius <= LARGEST_SIZE / 2:
        raise InputError(
            f"defocus: radius must be above 0.5, or the disk is inside one pixel, and at most {LARGEST_SIZE / 2},"
            f" not {radius:g}"
        )
    reach = math.ceil(radius - 0.5)
    areas = [[Fraction(_area_in_pixel(radius, i, j)) for j in range(i + 1)] for i in range(reach + 1)]
    away = [abs(place - reach) for place in range(2 * reach + 1)]
    end = _normalised(tuple(tuple(areas[max(i, j)][min(i, j)] for j in away) for i in away))
    return _to_kernel("defocus", end, padding, clip, radius=radius)


def _area_in_pixel(radius: float, down: int, right: int) -> float:
    """The area that a disk around the origin has in common with the pixel around (right, down), both at least 0."""
    left, bottom = max(right - 0.5, 0.0), max(down - 0.5, 0.0)
    # of a pixel on an axis, this is half, or of the one on both a quarter
    halves = (1 + (right == 0)) * (1 + (down == 0))
    return halves * _area_in_rectangle(radius, left, right + 0.5, bottom, down + 0.5)


def _area_in_rectangle(radius: float, left: float, right: float, bottom: float, top: float) -> float:
    """The same for a rectangle in the quadrant: of its full height as far as the disk reaches at its top, then under
    the arc as far as the disk reaches at its bottom.
    """

    def height(x: float) -> float:
        return math.sqrt(max(radius * radius - x * x, 0.0))

    def under_arc(x: float) -> float:
        return (x * height(x) + radius * radius * math.asin(min(x / radius, 1.0))) / 2

    full, end = (min(max(height(y), left), right) for y in (top, bottom))
    arc = under_arc(end) - under_arc(full) - bottom * (end - full)
    return (full - left) * (top - bottom) + max(arc, 0.0)


def psf(
    file: str | Path, index: str | int | None = None, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """Measured shake: a point spread function from a file, centred and normalised; `index` says which.

    The centre is the pixel nearest to the centre of mass: blur stays, the shift of the whole image goes. Empty borders
    are cut off, and what is shorter on one side of the centre is padded, so that both sides are odd. A point spread
    function is what a point becomes; to be cross-correlated with, it is turned by 180 degrees.
    """
    options, spread = _from_file(file, index)
    if any(entry < 0 for row in spread for entry in row):
        raise InputError(f"{file}: what a point of light becomes has no negative entries; use the family custom")
    spread = _normalised(spread, file)
    rows, columns = (_around_mass([sum(line) for line in lines]) for lines in (spread, zip(*spread, strict=True)))
    if max(len(rows), len(columns)) > LARGEST_SIZE:
        raise InputError(f"{file}: centred, the kernel is larger than {LARGEST_SIZE} x {LARGEST_SIZE}; crop it")
    entries = {(i, j): entry for i, row in enumerate(spread) for j, entry in enumerate(row)}
    end = tuple(tuple(entries.get((i, j), Fraction(0)) for j in reversed(columns)) for i in reversed(rows))
    return _to_kernel("psf", end, padding, clip, **options)


def _around_mass(weights: Sequence[Fraction | int]) -> range:
    """An odd number of places around the centre of mass that take in everything but zeros."""
    centre = math.floor(sum(place * weight for place, weight in enumerate(weights)) + Fraction(1, 2))
    taken = [place for place, weight in enumerate(weights) if weight]
    reach = max(centre - taken[0], taken[-1] - centre)
    return range(centre - reach, centre + reach + 1)


def custom(
    file: str | Path,
    index: str | int | None = None,
    normalise: bool = False,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """From the identity to your own kernel, as it is; `normalise` divides it by its sum."""
    options, end = _from_file(file, index)
    if normalise:
        options, end = options | {"normalise": "yes"}, _normalised(end, file)
    return _to_kernel("custom", end, padding, clip, **options)


def haze(colour: float, clip: ClipRange | None = None) -> Perturbation:
    """Haze, fog, smoke: every pixel on its way to one grey level; at strength 1 nothing else is left."""
    colour = _number("haze", "colour", colour)
    if not abs(colour) <= LARGEST_ENTRY:
        raise InputError(f"haze: colour must be a number of at most {LARGEST_ENTRY:g} either way, not {colour:g}")
    return _tone("haze", Tone(gain=Fraction(-1), offset=Fraction(plain(colour))), clip, colour=colour)


def brightness(max: float, clip: ClipRange | None = None) -> Perturbation:
    """Brighter: max is added to every pixel (darker if it is negative)."""
    most = _limit("brightness", max)
    return _tone("brightness", Tone(offset=Fraction(plain(most))), clip, max=most)


def contrast(max: float, clip: ClipRange | None = None) -> Perturbation:
    """More contrast: every pixel times 1 + max (less if it is negative)."""
    most = _limit("contrast", max)
    if not most > -1:
        raise InputError(f"contrast: max must be above -1, where nothing is left of the image, not {plain(most)}")
    return _tone("contrast", Tone(gain=Fraction(plain(most))), clip, max=most)


def any_kernel(size: int, clip: ClipRange | None = None) -> AnyKernel:
    """Each pixel anywhere between the least and the greatest of its neighbourhood: only for `verify`."""
    return AnyKernel(size, clip)


def _to_kernel(family: str, end: Matrix, padding: str, clip: ClipRange | None, **options: str | float) -> Perturbation:
    """From the identity to an end kernel (the paper's Example 1); `options` are the keys of its text."""
    start = identity_matrix(len(end), len(end[0]))
    pairs = zip(start, end, strict=True)
    change = tuple(tuple(after - before for before, after in zip(*pair, strict=True)) for pair in pairs)
    return Perturbation((Part(family, _texts(options), ParameterisedKernel((change,), start), padding),), clip)


def _tone(family: str, tone: Tone, clip: ClipRange | None, **options: float) -> Perturbation:
    return Perturbation((Part(family, _texts(options), tone),), clip)


def _texts(options: Mapping[str, str | float]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value if isinstance(value, str) else plain(value)) for key, value in options.items())


def _normalised(matrix: Matrix, file: str | Path = "") -> Matrix:
    """The matrix divided by its sum."""
    total = sum(map(sum, matrix), Fraction(0))
    if total == 0:
        raise InputError(f"{file}: the kernel sums to 0, so it cannot be normalised")
    return tuple(tuple(entry / total for entry in row) for row in matrix)


def _check_size(size: int) -> None:
    if not isinstance(size, int):
        raise InputError(f"kernel size {size!r} is not possible: use a whole number of Python's own, an int")
    if not 3 <= size <= LARGEST_SIZE:
        raise InputError(
            f"kernel size {size} is not possible: use an odd size from 3 or an even size from 4, up to {LARGEST_SIZE}"
        )


def _from_file(file: str | Path, index: str | int | None) -> tuple[dict[str, str], Matrix]:
    """The options that name a kernel in a file, and the kernel."""
    from shakeproof.question.kernel_files import read_matrix

    if not isinstance(file, (str, Path)):
        raise InputError(f"a kernel's file is given by its name, not by {kind_of(file)}")
    options = {"file": str(file)} | ({} if index is None else {"index": str(index)})
    for key, text in options.items():
        if _BETWEEN_PARTS.search(text) or _BETWEEN_OPTIONS.search(text):
            what = "file" if key == "file" else "array"
            raise InputError(f"{text}: this {what} name would be read as more of a perturbation; rename the {what}")
    return options, read_matrix(Path(file), options.get("index"))


def _number(family: str, key: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{family}: {key} must be a number, not {value!r}") from None


def _limit(family: str, value: float) -> float:
    """What a change of light adds, or multiplies by, at most."""
    largest = _number(family, "max", value)
    if not 0 < abs(largest) <= LARGEST_ENTRY:
        raise InputError(
            f"{family}: max must be a number other than 0, of at most {LARGEST_ENTRY:g} either way, not {largest:g}"
        )
    return largest


# -- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A family by its function, and an example of its text. The function's arguments are the keys of the text."""

    make: Callable[..., Perturbation | AnyKernel]
    example: str

    @cached_property
    def keys(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.make).parameters

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").splitlines()[0]


FAMILIES: Mapping[str, Family] = {
    example.partition(":")[0]: Family(make, example)
    for make, example in (
        (identity, "identity"),
        (box_blur, "box-blur:size=5"),
        (sharpen, "sharpen:size=5"),
        (motion_blur, "motion-blur:size=9,angle=45"),
        (gaussian_blur, "gaussian-blur:size=7,sigma=1.5"),
        (defocus, "defocus:radius=3"),
        (unsharp, "unsharp:size=5,sigma=1"),
        (psf, "psf:file=shakes.npz,index=3"),
        (haze, "haze:colour=0.8"),
        (brightness, "brightness:max=0.2"),
        (contrast, "contrast:max=0.2"),
        (any_kernel, "any-kernel:size=3"),
        (custom, "custom:file=kernel.npy,normalise=yes"),
    )
}
_OF_FILES = tuple(f"{name}:" for name, family in FAMILIES.items() if "file" in family.keys)
_BETWEEN_PARTS = re.compile(rf"\s*\+\s*(?=(?:{'|'.join(FAMILIES)})(?:[:+]|$))")
_BETWEEN_OPTIONS = re.compile(r",(?=[a-z]+=)")


def parse(text: str) -> Perturbation | AnyKernel:
    """The perturbation that a text describes, e.g. `motion-blur:size=9,angle=45,padding=zeros+brightness:max=0.2`."""
    if not isinstance(text, str):
        raise InputError(f"a perturbation is parsed from a text, not from {kind_of(text)}")
    parts = [_parse_single(part) for part in _split(text.strip())]
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, AnyKernel) for part in parts):
        raise InputError(f"{text}: any-kernel is a box of images, to which nothing can be added; ask about it alone")
    return reduce(add, parts)


def as_perturbation(perturbation: Perturbation | AnyKernel | str) -> Perturbation | AnyKernel:
    """A perturbation as it is, or what a text describes."""
    if isinstance(perturbation, str):
        return parse(perturbation)
    if not isinstance(perturbation, (Perturbation, AnyKernel)):
        raise InputError(
            f"a perturbation is a text like motion-blur:size=9,angle=45, or what a family's function gives,"
            f" not {kind_of(perturbation)}"
        )
    return perturbation


def parse_path(perturbation: Perturbation | AnyKernel | str) -> Perturbation:
    """The same, for what needs a path of images."""
    parsed = as_perturbation(perturbation)
    if isinstance(parsed, AnyKernel):
        raise InputError(
            f"{perturbation}: any-kernel is a box of images, without a kernel or a path; only `verify` takes it"
        )
    return parsed


def _split(text: str) -> list[str]:
    """The texts of the parts. A + belongs to a kernel's file name unless a family's name comes next."""
    return [
        part
        for piece in _BETWEEN_PARTS.split(text)
        # Elsewhere no value holds a + and a letter: what follows is a misspelt family, and to be called so.
        for part in ([piece] if piece.startswith(_OF_FILES) else re.split(r"\s*(?<!=)\+\s*(?=[A-Za-z])", piece))
    ]


def _parse_single(text: str) -> Perturbation | AnyKernel:
    name, _, rest = text.partition(":")
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(f"unknown perturbation {name!r}; the families are {', '.join(FAMILIES)}")
    values: dict[str, object] = {}
    for option in _BETWEEN_OPTIONS.split(rest) if rest else []:
        key, equals, value = option.partition("=")
        if key == "padding" and key not in family.keys:
            raise InputError(
                f"{text!r}: {name} looks at no pixels outside the image, so padding means nothing; leave it out"
            )
        if key not in family.keys or not equals or key in values:
            problem = "is given twice" if key in values else f"is not one of {', '.join(family.keys)}"
            raise InputError(f"{text!r}: option {option!r} {problem}; write for example {family.example}")
        try:
            values[key] = READERS[family.keys[key].annotation](value)
        except ValueError as error:
            raise InputError(f"{text!r}: {key} {error}, not {value!r}") from error
    missing = [key for key, kind in family.keys.items() if kind.default is kind.empty and key not in values]
    if missing:
        raise InputError(f"{text!r}: {' and '.join(missing)} missing; write for example {family.example}")
    return family.make(**values)


def _read_size(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,9}", text):
        raise ValueError("must be a whole number")
    return int(text)


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number") from None


def _read_clip(text: str) -> ClipRange:
    low, _, high = text.partition("..")
    try:
        return float(low), float(high)
    except ValueError:
        raise ValueError("must be LOW..HIGH, e.g. clip=0..1") from None


def _read_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return text == "yes"


# How the value of a key is read, by the type that its function is annotated with.
READERS: Mapping[str, Callable[[str], object]] = {
    "int": _read_size,
    "float": _read_number,
    "bool": _read_flag,
    "str": str,
    "str | Path": str,
    "str | int | None": str,
    "ClipRange | None": _read_clip,
}
