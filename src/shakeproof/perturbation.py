"""A perturbation: a parameterised kernel, how the image is padded, and whether pixels are clipped afterwards.

The text form is `FAMILY:key=value,...`; parsing and printing round-trip. Applied to an image, a perturbation gives
the affine path x(z) = sum_i R_A_i z_i + R_B (Theorem 1 of the paper: m + 1 ordinary convolutions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof import kernels
from shakeproof.errors import InputError
from shakeproof.kernels import ParameterisedKernel

if TYPE_CHECKING:
    from torch import Tensor

# Our word for a padding, and torch's.
PADDINGS = {"reflect": "reflect", "zeros": "constant", "replicate": "replicate", "circular": "circular"}


@dataclass(frozen=True)
class Perturbation:
    """What happens to an image, as a function of the strength(s) z in [0, 1].

    Two perturbations are equal if their texts are; the kernel follows from the text.
    """

    family: str
    options: tuple[tuple[str, str], ...]
    kernel: ParameterisedKernel = field(compare=False, repr=False)
    padding: str = "reflect"
    clip: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise InputError(f"{self.family}: padding must be one of {', '.join(PADDINGS)}, not {self.padding!r}")
        if self.clip is not None and not (all(map(math.isfinite, self.clip)) and self.clip[0] < self.clip[1]):
            raise InputError(f"{self.family}: clip must be LOW..HIGH with LOW below HIGH, e.g. clip=0..1")

    def __str__(self) -> str:
        options = list(self.options)
        if self.padding != "reflect":
            options.append(("padding", self.padding))
        if self.clip is not None:
            options.append(("clip", "..".join(map(_plain, self.clip))))
        return ":".join(filter(None, (self.family, ",".join(f"{key}={value}" for key, value in options))))

    def apply(self, images: Tensor) -> AffineImage:
        """The path of perturbed images; `images` (..., height, width), float64. Clipping is not part of it."""
        import torch
        from torch.nn import functional

        height, width = images.shape[-2:]
        before, after = self._pad_widths((height, width))
        padded = functional.pad(
            images.reshape(-1, 1, height, width),
            (before[1], after[1], before[0], after[0]),
            mode=PADDINGS[self.padding],
        )
        matrices = torch.tensor(
            [[[float(entry) for entry in row] for row in m] for m in (*self.kernel.coefficients, self.kernel.bias)],
            dtype=images.dtype,
            device=images.device,
        )
        convolved = functional.conv2d(padded, matrices.unsqueeze(1)).transpose(0, 1)
        *slopes, base = convolved.reshape(-1, *images.shape)
        return AffineImage(torch.stack(slopes), base)

    def _pad_widths(self, image: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Padding (top, left) and (bottom, right): output has the image's size, even kernels pad more at the end."""
        before = [(side - 1) // 2 for side in self.kernel.shape]
        after = [side // 2 for side in self.kernel.shape]
        # reflect leaves out the edge pixel itself, circular may use every pixel once
        limit = {"reflect": 1, "circular": 0}.get(self.padding)
        if limit is not None and any(width > side - limit for width, side in zip(after, image, strict=True)):
            raise InputError(
                f"{self}: a {self.kernel.shape[0]} x {self.kernel.shape[1]} kernel is too large for an image of"
                f" {image[0]} x {image[1]} pixels with {self.padding} padding; use a smaller size or padding=replicate"
            )
        return before, after


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


Clip = tuple[float, float]


def identity(padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """No change at all: the control experiment."""
    return Perturbation("identity", (), kernels.identity(), padding, clip)


def box_blur(size: int, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Defocus-like blur: the mean over a size x size square."""
    return Perturbation("box-blur", (("size", str(size)),), kernels.box_blur(size), padding, clip)


def sharpen(size: int, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Sharpening: the image plus its difference from the mean over a diamond around each pixel."""
    return Perturbation("sharpen", (("size", str(size)),), kernels.sharpen(size), padding, clip)


def motion_blur(size: int, angle: float, padding: str = "reflect", clip: Clip | None = None) -> Perturbation:
    """Camera shake: the mean along a line; `angle` is a bearing (0 is up, clockwise), equal modulo 180."""
    kernel = kernels.motion_blur(size, angle)
    return Perturbation(
        "motion-blur", (("size", str(size)), ("angle", _plain(kernels.reduced(angle)))), kernel, padding, clip
    )


def custom(
    file: str | Path, normalise: bool = False, padding: str = "reflect", clip: Clip | None = None
) -> Perturbation:
    """From the identity to your own kernel; `normalise` divides it by its sum."""
    options = (("file", str(file)), *((("normalise", "yes"),) if normalise else ()))
    return Perturbation("custom", options, kernels.custom_target(Path(file), normalise), padding, clip)


@dataclass(frozen=True)
class Family:
    """How a family is made from the values in its text: each key's reader, and the keys that must be given."""

    make: Callable[..., Perturbation]
    readers: Mapping[str, Callable[[str], object]]
    required: tuple[str, ...]
    example: str

    @property
    def summary(self) -> str:
        return (self.make.__doc__ or "").splitlines()[0]


def parse(text: str) -> Perturbation:
    """The perturbation that a text describes, e.g. `motion-blur:size=9,angle=45,padding=zeros`."""
    name, _, rest = text.strip().partition(":")
    family = FAMILIES.get(name)
    if family is None:
        raise InputError(f"unknown perturbation {name!r}; the families are {', '.join(FAMILIES)}")
    values: dict[str, object] = {}
    for part in re.split(r",(?=[a-z]+=)", rest) if rest else []:
        key, equals, value = part.partition("=")
        readers: Mapping[str, Callable[[str], object]] = {**family.readers, "padding": str, "clip": _read_clip}
        reader = readers.get(key)
        if reader is None or not equals or key in values:
            problem = "is given twice" if key in values else f"is not one of {', '.join(readers)}"
            raise InputError(f"{text!r}: option {part!r} {problem}; write for example {family.example}")
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


def _read_angle(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("must be a number of degrees") from None


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
        motion_blur, {"size": _read_size, "angle": _read_angle}, ("size", "angle"), "motion-blur:size=9,angle=45"
    ),
    "custom": Family(custom, {"file": str, "normalise": _read_flag}, ("file",), "custom:file=kernel.npy,normalise=yes"),
}
