"""The families of perturbations, made from numbers or from text.

The text form is `FAMILY:key=value,...`, or several of these joined by `+`; parsing and printing round-trip.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path

from shakeproof import kernels
from shakeproof.errors import InputError, kind_of
from shakeproof.kernels import LARGEST_ENTRY, ParameterisedKernel
from shakeproof.path import ClipRange
from shakeproof.perturbation.common import plain
from shakeproof.perturbation.neighbourhood import AnyKernel
from shakeproof.perturbation.path import Part, Perturbation, Tone


def identity(padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """No change at all: the control experiment."""
    return _single("identity", (), kernels.identity(), clip, padding)


def box_blur(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Blur: the mean over a size x size square."""
    return _single("box-blur", (("size", str(size)),), kernels.box_blur(size), clip, padding)


def sharpen(size: int, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Sharpening: the image plus its difference from the mean over a diamond around each pixel."""
    return _single("sharpen", (("size", str(size)),), kernels.sharpen(size), clip, padding)


def motion_blur(size: int, angle: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Camera shake: the mean along a line; `angle` is a bearing (0 is up, clockwise), equal modulo 180."""
    angle = _number("motion-blur", "angle", angle)
    kernel = kernels.motion_blur(size, angle)
    options = (("size", str(size)), ("angle", plain(kernels.reduced(angle))))
    return _single("motion-blur", options, kernel, clip, padding)


def gaussian_blur(size: int, sigma: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Soft blur: a Gaussian with a standard deviation of sigma pixels, cut off at a size x size square."""
    sigma = _number("gaussian-blur", "sigma", sigma)
    kernel = kernels.gaussian_blur(size, sigma)
    return _single("gaussian-blur", (("size", str(size)), ("sigma", plain(sigma))), kernel, clip, padding)


def defocus(radius: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Out of focus: the mean over a disk with a radius in pixels."""
    radius = _number("defocus", "radius", radius)
    kernel = kernels.defocus(radius)
    return _single("defocus", (("radius", plain(radius)),), kernel, clip, padding)


def unsharp(size: int, sigma: float, padding: str = "reflect", clip: ClipRange | None = None) -> Perturbation:
    """Unsharp masking: the image plus its difference from its Gaussian blur."""
    sigma = _number("unsharp", "sigma", sigma)
    kernel = kernels.unsharp(size, sigma)
    return _single("unsharp", (("size", str(size)), ("sigma", plain(sigma))), kernel, clip, padding)


def psf(
    file: str | Path, index: str | int | None = None, padding: str = "reflect", clip: ClipRange | None = None
) -> Perturbation:
    """Measured shake: a point spread function from a file, centred and normalised; `index` says which."""
    options = _file_options(file, index)
    return _single("psf", options, kernels.psf(Path(file), dict(options).get("index")), clip, padding)


def haze(colour: float, clip: ClipRange | None = None) -> Perturbation:
    """Haze, fog, smoke: every pixel on its way to one grey level; at strength 1 nothing else is left."""
    colour = _number("haze", "colour", colour)
    if not abs(colour) <= LARGEST_ENTRY:
        raise InputError(f"haze: colour must be a number of at most {LARGEST_ENTRY:g} either way, not {colour:g}")
    text = plain(colour)
    return _single("haze", (("colour", text),), Tone(gain=Fraction(-1), offset=Fraction(text)), clip)


def brightness(max: float, clip: ClipRange | None = None) -> Perturbation:
    """Brighter: max is added to every pixel (darker if it is negative)."""
    max = _number("brightness", "max", max)
    text = _tone_text("brightness", max)
    return _single("brightness", (("max", text),), Tone(offset=Fraction(text)), clip)


def contrast(max: float, clip: ClipRange | None = None) -> Perturbation:
    """More contrast: every pixel times 1 + max (less if it is negative)."""
    max = _number("contrast", "max", max)
    text = _tone_text("contrast", max)
    if not max > -1:
        raise InputError(f"contrast: max must be above -1, where nothing is left of the image, not {text}")
    return _single("contrast", (("max", text),), Tone(gain=Fraction(text)), clip)


def custom(
    file: str | Path,
    index: str | int | None = None,
    normalise: bool = False,
    padding: str = "reflect",
    clip: ClipRange | None = None,
) -> Perturbation:
    """From the identity to your own kernel, as it is; `normalise` divides it by its sum."""
    options = _file_options(file, index)
    kernel = kernels.custom_target(Path(file), normalise, dict(options).get("index"))
    return _single("custom", (*options, *((("normalise", "yes"),) if normalise else ())), kernel, clip, padding)


def any_kernel(size: int, clip: ClipRange | None = None) -> AnyKernel:
    """Each pixel anywhere between the least and the greatest of its neighbourhood: only for `verify`."""
    return AnyKernel(size, clip)


def _single(
    family: str,
    options: tuple[tuple[str, str], ...],
    effect: ParameterisedKernel | Tone,
    clip: ClipRange | None,
    padding: str = "reflect",
) -> Perturbation:
    return Perturbation((Part(family, options, effect, padding),), clip)


def _file_options(file: str | Path, index: str | int | None) -> tuple[tuple[str, str], ...]:
    if not isinstance(file, (str, Path)):
        raise InputError(f"a kernel's file is given by its name, not by {kind_of(file)}")
    options = (("file", str(file)), *(() if index is None else (("index", str(index)),)))
    for key, text in options:
        if _BETWEEN_PARTS.search(text) or _BETWEEN_OPTIONS.search(text):
            what = "file" if key == "file" else "array"
            raise InputError(f"{text}: this {what} name would be read as more of a perturbation; rename the {what}")
    return options


def _number(family: str, key: str, given: float) -> float:
    try:
        return float(given)
    except (TypeError, ValueError):
        raise InputError(f"{family}: {key} must be a number, not {given!r}") from None


def _tone_text(family: str, largest: float) -> str:
    if not 0 < abs(largest) <= LARGEST_ENTRY:
        raise InputError(
            f"{family}: max must be a number other than 0, of at most {LARGEST_ENTRY:g} either way, not {largest:g}"
        )
    return plain(largest)


@dataclass(frozen=True)
class Family:
    """How a family is made from the values in its text: each key's reader, and the keys that must be given."""

    make: Callable[..., Perturbation | AnyKernel]
    readers: Mapping[str, Callable[[str], object]]
    required: tuple[str, ...]
    example: str
    takes_padding: bool = True

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").splitlines()[0]


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


def as_perturbation(given: Perturbation | AnyKernel | str) -> Perturbation | AnyKernel:
    """A perturbation as it is, or what a text describes."""
    if isinstance(given, str):
        return parse(given)
    if not isinstance(given, (Perturbation, AnyKernel)):
        raise InputError(
            f"a perturbation is a text like motion-blur:size=9,angle=45, or what a family's function gives,"
            f" not {kind_of(given)}"
        )
    return given


def parse_path(given: Perturbation | AnyKernel | str) -> Perturbation:
    """The same, for what needs a path of images."""
    parsed = as_perturbation(given)
    if isinstance(parsed, AnyKernel):
        raise InputError(f"{given}: any-kernel is a box of images, without a kernel or a path; only `verify` takes it")
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
    readers: dict[str, Callable[[str], object]] = {**family.readers, "padding": str, "clip": _read_clip}
    if not family.takes_padding:
        del readers["padding"]
    values: dict[str, object] = {}
    for option in _BETWEEN_OPTIONS.split(rest) if rest else []:
        key, equals, value = option.partition("=")
        if key == "padding" and not family.takes_padding:
            raise InputError(
                f"{text!r}: {name} looks at no pixels outside the image, so padding means nothing; leave it out"
            )
        reader = readers.get(key)
        if reader is None or not equals or key in values:
            problem = "is given twice" if key in values else f"is not one of {', '.join(readers)}"
            raise InputError(f"{text!r}: option {option!r} {problem}; write for example {family.example}")
        try:
            values[key] = reader(value)
        except ValueError as error:
            raise InputError(f"{text!r}: {key} {error}, not {value!r}") from error
    missing = [key for key in family.required if key not in values]
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


FAMILIES: Mapping[str, Family] = {
    "identity": Family(identity, {}, (), "identity"),
    "box-blur": Family(box_blur, {"size": _read_size}, ("size",), "box-blur:size=5"),
    "sharpen": Family(sharpen, {"size": _read_size}, ("size",), "sharpen:size=5"),
    "motion-blur": Family(
        motion_blur, {"size": _read_size, "angle": _read_number}, ("size", "angle"), "motion-blur:size=9,angle=45"
    ),
    "gaussian-blur": Family(
        gaussian_blur, {"size": _read_size, "sigma": _read_number}, ("size", "sigma"), "gaussian-blur:size=7,sigma=1.5"
    ),
    "defocus": Family(defocus, {"radius": _read_number}, ("radius",), "defocus:radius=3"),
    "unsharp": Family(
        unsharp, {"size": _read_size, "sigma": _read_number}, ("size", "sigma"), "unsharp:size=5,sigma=1"
    ),
    "psf": Family(psf, {"file": str, "index": str}, ("file",), "psf:file=shakes.npz,index=3"),
    "haze": Family(haze, {"colour": _read_number}, ("colour",), "haze:colour=0.8", takes_padding=False),
    "brightness": Family(brightness, {"max": _read_number}, ("max",), "brightness:max=0.2", takes_padding=False),
    "contrast": Family(contrast, {"max": _read_number}, ("max",), "contrast:max=0.2", takes_padding=False),
    "any-kernel": Family(any_kernel, {"size": _read_size}, ("size",), "any-kernel:size=3", takes_padding=False),
    "custom": Family(
        custom,
        {"file": str, "index": str, "normalise": _read_flag},
        ("file",),
        "custom:file=kernel.npy,normalise=yes",
    ),
}
_OF_FILES = tuple(f"{name}:" for name, family in FAMILIES.items() if "file" in family.readers)
_BETWEEN_PARTS = re.compile(rf"\s*\+\s*(?=(?:{'|'.join(FAMILIES)})(?:[:+]|$))")
_BETWEEN_OPTIONS = re.compile(r",(?=[a-z]+=)")
