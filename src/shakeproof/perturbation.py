"""A perturbation: kernels and tone changes with a strength each, and whether pixels are clipped afterwards.

The text form is `FAMILY:key=value,...`, or several of these joined by `+`; parsing and printing round-trip. Applied to
an image, a perturbation gives the affine path x(z) = sum_i R_A_i z_i + R_B (Theorem 1 of the paper: m + 1 ordinary
convolutions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof import kernels
from shakeproof.errors import InputError
from shakeproof.kernels import LARGEST_ENTRY, Matrix, ParameterisedKernel

if TYPE_CHECKING:
    from torch import Tensor

# Our word for a padding, and torch's.
PADDINGS = {"reflect": "reflect", "zeros": "constant", "replicate": "replicate", "circular": "circular"}
MOST_PARTS = 8

Clip = tuple[float, float]


@dataclass(frozen=True)
class Tone:
    """A change of every pixel on its own: x becomes x (1 + gain z) + offset z."""

    gain: Fraction = Fraction(0)
    offset: Fraction = Fraction(0)


@dataclass(frozen=True)
class Part:
    """What one strength does. Two parts are equal if their texts are; the effect follows from the text."""

    family: str
    options: tuple[tuple[str, str], ...]
    effect: ParameterisedKernel | Tone = field(compare=False, repr=False)
    padding: str = "reflect"

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise InputError(f"{self.family}: padding must be one of {', '.join(PADDINGS)}, not {self.padding!r}")

    def __str__(self) -> str:
        return self.written()

    def written(self, *more: tuple[str, str]) -> str:
        """The text form, with more options at its end."""
        padding = [("padding", self.padding)] if self.padding != "reflect" else []
        options = ",".join(f"{key}={value}" for key, value in (*self.options, *padding, *more))
        return ":".join(filter(None, (self.family, options)))

    def slope(self, images: Tensor, base: Tensor) -> Tensor:
        """What the full strength adds to `base`, the images at strength 0."""
        if isinstance(self.effect, Tone):
            return float(self.effect.gain) * base + float(self.effect.offset)
        (change,) = self.effect.coefficients
        return self.convolved(images, change)

    def change(self, start: Matrix) -> Matrix:
        """What the full strength adds to `start`, the kernel at strength 0."""
        if isinstance(self.effect, Tone):
            return tuple(tuple(entry * self.effect.gain for entry in row) for row in start)
        (change,) = self.effect.coefficients
        return change

    def convolved(self, images: Tensor, matrix: Matrix) -> Tensor:
        """Images (..., height, width), padded as this part is and convolved to their own size."""
        import torch
        from torch.nn import functional

        height, width = images.shape[-2:]
        before, after = self._pad_widths((len(matrix), len(matrix[0])), (height, width))
        padded = functional.pad(
            images.reshape(-1, 1, height, width),
            (before[1], after[1], before[0], after[0]),
            mode=PADDINGS[self.padding],
        )
        entries = [[float(entry) for entry in row] for row in matrix]
        weight = torch.tensor(entries, dtype=images.dtype, device=images.device)
        return functional.conv2d(padded, weight[None, None]).reshape(images.shape)

    def _pad_widths(self, kernel: tuple[int, int], image: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Padding (top, left) and (bottom, right): output has the image's size, even kernels pad more at the end."""
        before = [(side - 1) // 2 for side in kernel]
        after = [side // 2 for side in kernel]
        # reflect leaves out the edge pixel itself, circular may use every pixel once
        limit = {"reflect": 1, "circular": 0}.get(self.padding)
        if limit is not None and any(width > side - limit for width, side in zip(after, image, strict=True)):
            raise InputError(
                f"{self}: a {kernel[0]} x {kernel[1]} kernel is too large for an image of {image[0]} x {image[1]}"
                f" pixels with {self.padding} padding; use a smaller size or padding=replicate"
            )
        return before, after


@dataclass(frozen=True)
class Perturbation:
    """What happens to an image, as a function of the strengths z in [0, 1], one for each part.

    x(z) is the image at strength 0 plus what each part adds to it, times its strength. That image is the original one,
    or its 2 x 2 mean if the kernels are of even size (the paper's even identity).
    """

    parts: tuple[Part, ...]
    clip: Clip | None = None

    def __post_init__(self) -> None:
        text = "+".join(map(str, self.parts))
        if not 1 <= len(self.parts) <= MOST_PARTS:
            raise InputError(f"a perturbation has 1 to {MOST_PARTS} parts, not {len(self.parts)}; leave some out")
        if self.clip is not None and not (all(map(math.isfinite, self.clip)) and self.clip[0] < self.clip[1]):
            raise InputError(f"{text}: clip must be LOW..HIGH with LOW below HIGH, e.g. clip=0..1")
        if len(self.parts) > 1 and any(part.family == "identity" for part in self.parts):
            raise InputError(f"{text}: identity does nothing at any strength; leave it out of the sum")
        sides = {tuple(side % 2 for side in kernel.shape) for _, kernel in self._kernels()}
        if len(sides) > 1:
            raise InputError(
                f"{text}: odd and even kernel sizes cannot be added, since even ones start from a mean over the pixels"
                f" around the centre; make all sizes odd or all even"
            )
        if sides - {(1, 1)} and len(self.paddings) > 1:
            raise InputError(
                f"{text}: kernels of even size start from a mean that reaches into the padding, so they can only be"
                f" added with one padding; give all of them the same"
            )

    def __str__(self) -> str:
        clip = [("clip", "..".join(map(_plain, self.clip)))] if self.clip is not None else []
        return "+".join((*map(str, self.parts[:-1]), self.parts[-1].written(*clip)))

    def __add__(self, other: Perturbation) -> Perturbation:
        """Both at once, each with its own strengths; clipping, if any, comes after the sum."""
        if not isinstance(other, Perturbation):
            return NotImplemented
        if None not in (self.clip, other.clip) and self.clip != other.clip:
            raise InputError(f"{self} and {other}: clip applies to their sum; give it once, or the same on both")
        return Perturbation(self.parts + other.parts, other.clip if self.clip is None else self.clip)

    @property
    def parameters(self) -> int:
        """The number m of strengths."""
        return len(self.parts)

    @property
    def paddings(self) -> list[str]:
        """The paddings that its kernels use, without repetition."""
        return list(dict.fromkeys(part.padding for part, _ in self._kernels()))

    def strengths(self, given: float | Sequence[float]) -> tuple[float, ...]:
        """A strength for each part: one number is meant for all of them."""
        try:
            several = tuple(float(strength) for strength in given)  # type: ignore[union-attr]
        except TypeError:  # one number, of any kind
            several = (float(given),)  # type: ignore[arg-type]
        for strength in several:
            if not 0 <= strength <= 1:
                raise InputError(f"the strength must be between 0 and 1, not {strength:g}")
        if len(several) not in (1, self.parameters):
            ways = "one strength" if self.parameters == 1 else f"{self.parameters} strengths, or one for all parts"
            raise InputError(f"{self}: takes {ways}, not {len(several)}")
        return several * (self.parameters // len(several))

    def apply(self, images: Tensor) -> AffineImage:
        """The path of perturbed images; `images` (..., height, width), float64. Clipping is not part of it."""
        import torch

        # any of the kernels would do: they all start from the same image
        base = next((part.convolved(images, self._start()) for part, _ in self._kernels()), images)
        return AffineImage(torch.stack([part.slope(images, base) for part in self.parts]), base)

    @property
    def kernel(self) -> ParameterisedKernel:
        """The kernels and gains as one kernel, which with `offset` says all; at the edges, paddings matter too."""
        start = self._start()
        return kernels.combined([part.change(start) for part in self.parts])

    def offset(self, *strengths: Fraction | float) -> Fraction:
        """What is added to every pixel, at given strengths."""
        return sum(
            (
                part.effect.offset * Fraction(z)
                for part, z in zip(self.parts, strengths, strict=True)
                if isinstance(part.effect, Tone)
            ),
            Fraction(0),
        )

    def _kernels(self) -> list[tuple[Part, ParameterisedKernel]]:
        return [(part, part.effect) for part in self.parts if isinstance(part.effect, ParameterisedKernel)]

    def _start(self) -> Matrix:
        """The smallest kernel that makes the image at strength 0."""
        height, width = next((kernel.shape for _, kernel in self._kernels()), (1, 1))
        return kernels.identity_matrix(2 - height % 2, 2 - width % 2)


@dataclass(frozen=True)
class AffineImage:
    """x(z) = sum_i slopes[i] z_i + base; slopes (m, ..., height, width), base (..., height, width)."""

    slopes: Tensor
    base: Tensor

    def at(self, *strengths: float) -> Tensor:
        import torch

        z = torch.tensor(strengths, dtype=self.base.dtype, device=self.base.device)
        image: Tensor = self.base + torch.tensordot(z, self.slopes, dims=1)
        return image


def identity(padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """No change at all: the control experiment."""
    return _single("identity", (), kernels.identity(), clip, padding)


def box_blur(size: int, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Defocus-like blur: the mean over a size x size square."""
    return _single("box-blur", (("size", str(size)),), kernels.box_blur(size), clip, padding)


def sharpen(size: int, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Sharpening: the image plus its difference from the mean over a diamond around each pixel."""
    return _single("sharpen", (("size", str(size)),), kernels.sharpen(size), clip, padding)


def motion_blur(size: int, angle: float, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Camera shake: the mean along a line; `angle` is a bearing (0 is up, clockwise), equal modulo 180."""
    kernel = kernels.motion_blur(size, angle)
    options = (("size", str(size)), ("angle", _plain(kernels.reduced(angle))))
    return _single("motion-blur", options, kernel, clip, padding)


def brightness(max: float, clip: Clip | None = None) -> Perturbation:
    """Brighter: max is added to every pixel (darker if it is negative)."""
    text = _tone_text("brightness", max)
    return _single("brightness", (("max", text),), Tone(offset=Fraction(text)), clip)


def contrast(max: float, clip: Clip | None = None) -> Perturbation:
    """More contrast: every pixel times 1 + max (less if it is negative)."""
    text = _tone_text("contrast", max)
    if not max > -1:
        raise InputError(f"contrast: max must be above -1, where nothing is left of the image, not {text}")
    return _single("contrast", (("max", text),), Tone(gain=Fraction(text)), clip)


def custom(
    file: str | Path, normalise: bool = False, padding: str = "reflect", clip: Clip | None = None
) -> Perturbation:
    """From the identity to your own kernel; `normalise` divides it by its sum."""
    if _BETWEEN_PARTS.search(str(file)) or _BETWEEN_OPTIONS.search(str(file)):
        raise InputError(f"{file}: this file name would be read as more of a perturbation; rename the file")
    options = (("file", str(file)), *((("normalise", "yes"),) if normalise else ()))
    return _single("custom", options, kernels.custom_target(Path(file), normalise), clip, padding)


def _single(
    family: str,
    options: tuple[tuple[str, str], ...],
    effect: ParameterisedKernel | Tone,
    clip: Clip | None,
    padding: str = "reflect",
) -> Perturbation:
    return Perturbation((Part(family, options, effect, padding),), clip)


def _tone_text(family: str, largest: float) -> str:
    if not 0 < abs(largest) <= LARGEST_ENTRY:
        raise InputError(
            f"{family}: max must be a number other than 0, of at most {LARGEST_ENTRY:g} either way, not {largest:g}"
        )
    return _plain(largest)


@dataclass(frozen=True)
class Family:
    """How a family is made from the values in its text: each key's reader, and the keys that must be given."""

    make: Callable[..., Perturbation]
    readers: Mapping[str, Callable[[str], object]]
    required: tuple[str, ...]
    example: str
    takes_padding: bool = True

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").splitlines()[0]


def parse(text: str) -> Perturbation:
    """The perturbation that a text describes, e.g. `motion-blur:size=9,angle=45,padding=zeros+brightness:max=0.2`."""
    return reduce(add, map(_parse_single, _split(text.strip())))


def _split(text: str) -> list[str]:
    """The texts of the parts. A + belongs to a custom kernel's file name unless a family's name comes next."""
    return [
        part
        for piece in _BETWEEN_PARTS.split(text)
        # Elsewhere no value holds a + and a letter: what follows is a misspelt family, and to be called so.
        for part in ([piece] if piece.startswith("custom:") else re.split(r"\s*(?<!=)\+\s*(?=[A-Za-z])", piece))
    ]


def _parse_single(text: str) -> Perturbation:
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
                f"{text!r}: {name} looks at no neighbouring pixels, so padding means nothing; leave it out"
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


def _read_clip(text: str) -> Clip:
    low, _, high = text.partition("..")
    try:
        return float(low), float(high)
    except ValueError:
        raise ValueError("must be LOW..HIGH, e.g. clip=0..1") from None


def _read_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return text == "yes"


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(float(number))


FAMILIES: Mapping[str, Family] = {
    "identity": Family(identity, {}, (), "identity"),
    "box-blur": Family(box_blur, {"size": _read_size}, ("size",), "box-blur:size=5"),
    "sharpen": Family(sharpen, {"size": _read_size}, ("size",), "sharpen:size=5"),
    "motion-blur": Family(
        motion_blur, {"size": _read_size, "angle": _read_number}, ("size", "angle"), "motion-blur:size=9,angle=45"
    ),
    "brightness": Family(brightness, {"max": _read_number}, ("max",), "brightness:max=0.2", takes_padding=False),
    "contrast": Family(contrast, {"max": _read_number}, ("max",), "contrast:max=0.2", takes_padding=False),
    "custom": Family(custom, {"file": str, "normalise": _read_flag}, ("file",), "custom:file=kernel.npy,normalise=yes"),
}
_BETWEEN_PARTS = re.compile(rf"\s*\+\s*(?=(?:{'|'.join(FAMILIES)})(?:[:+]|$))")
_BETWEEN_OPTIONS = re.compile(r",(?=[a-z]+=)")
