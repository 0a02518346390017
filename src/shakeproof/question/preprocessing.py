"""What happens to pictures on their way to a network: size and range before they are perturbed, normalisation after.

As a value, and read from a preprocessor_config.json, as Hugging Face's image processors write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from shakeproof.errors import InputError, by
from shakeproof.files import read_text
from shakeproof.question.linear_maps import UNITS, resizing

Array = NDArray[Any]
Floats = NDArray[np.float64]
RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
"""Names of resampling methods, and the numbers that Pillow has for them."""
PRESETS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,), (0.5,)),
}
"""Mean and standard deviation that many networks are trained with, of pixels in [0, 1]."""
# Longest side that a picture is resized to.
LARGEST = 16384
LUMA = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Preprocessing:
    """The steps before the perturbation, and the normalisation after it.

    In this order: `colour` ("rgb" repeats grey, "grey" takes the luminance), `resize` (the shorter side, or height and
    width, by `resample`), `crop` (height and width, of the middle), `scale` (the numbers that are black and white, if
    their type does not say). Pixels are then in [0, 1], and are perturbed. After that, (x - mean) / std is a part of
    the network.
    """

    resize: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample: str = "bilinear"
    colour: Literal["rgb", "grey"] | None = None
    scale: tuple[float, float] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        resize = (self.resize,) if isinstance(self.resize, int) else self.resize or ()
        for sides in (resize, self.crop or ()):
            if not all(1 <= side <= LARGEST for side in sides):
                raise InputError(f"a size of {by(sides)} is none from 1 to {LARGEST}")
        if self.resample not in RESAMPLING:
            raise InputError(f"{self.resample!r} is none of {', '.join(RESAMPLING)}")
        if self.scale is not None and not (all(map(isfinite, self.scale)) and self.scale[0] < self.scale[1]):
            raise InputError(f"a scale from {self.scale[0]:g} to {self.scale[1]:g} is none: black is below white")

    @property
    def moves(self) -> bool:
        """Whether a picture's shape may change."""
        return any(step is not None for step in (self.resize, self.crop, self.colour))

    @property
    def normalises(self) -> bool:
        return self.mean is not None or self.std is not None

    @property
    def note(self) -> str | None:
        """The steps in words; None if there are none."""
        steps = []
        if self.colour is not None:
            steps.append(f"converted to {'RGB' if self.colour == 'rgb' else self.colour}")
        if self.resize is not None:
            size = f"a shorter side of {self.resize}" if isinstance(self.resize, int) else by(self.resize)
            steps.append(f"resized to {size} ({self.resample})")
        if self.crop is not None:
            steps.append(f"cropped to the central {by(self.crop)}")
        if self.scale is not None:
            steps.append(f"scaled from {self.scale[0]:g}..{self.scale[1]:g} to 0..1")
        notes = [f"before the perturbation, pictures are {', '.join(steps)}"] if steps else []
        if self.normalises:
            mean, std = (_list(numbers) for numbers in (self.mean or (0.0,), self.std or (1.0,)))
            notes.append(f"perturbed pictures x are normalised: (x - {mean}) / {std}")
        return "; ".join(notes) or None

    def shape(self, original: tuple[int, int, int]) -> tuple[int, int, int]:
        """What becomes of a picture of (channels, height, width)."""
        channels = {None: original[0], "rgb": 3, "grey": 1}[self.colour]
        return channels, *(self.crop or self._resized(*original[1:]))

    def moved(self, picture: Array, name: str) -> Array:
        """A picture (channels, height, width) in another size and colour. Bytes stay bytes, as in Pillow."""
        if self.colour is not None:
            picture = _coloured(picture, self.colour, name)
        if self.resize is not None:
            height, width = self._resized(*picture.shape[1:])
            if max(height, width) > LARGEST:
                raise InputError(
                    f"{name}: would be {height} x {width} after resizing; give both sides", option="resize"
                )
            picture = _resized(picture, (height, width), RESAMPLING[self.resample])
        if self.crop is not None:
            picture = _cropped(picture, self.crop, name)
        return picture

    def matrices(self, shape: tuple[int, int, int], name: str) -> tuple[Floats, Floats, Floats]:
        """What `moved` does, in real numbers: the weights of channels, of rows and of columns (after, before).

        They are multiples of 2^-40, and those of a pixel sum to 1: what is flat stays as it is.
        """
        count, *sides = shape
        if self.colour is not None:
            _check_colours(count, name)
        after, size = self.shape(shape)[0], self._resized(*sides)
        luma = np.rint(LUMA * UNITS) / UNITS
        luma[1] += 1 - luma.sum()
        channels = np.eye(count) if after == count else np.ones((3, 1)) if after == 3 else luma[None]
        pairs = zip(sides, size, strict=True)
        rows, columns = (_in_units(resizing(one, other, self.resample)) for one, other in pairs)
        if self.crop is not None:
            top, left = _corner(size, self.crop, name)
            rows, columns = rows[top : top + self.crop[0]], columns[left : left + self.crop[1]]
        return channels, rows, columns

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.resize is None:
            return height, width
        if not isinstance(self.resize, int):
            return self.resize
        short, long = self.resize, int(self.resize * max(height, width) / min(height, width))
        return (short, long) if height <= width else (long, short)


def _coloured(picture: Array, colour: str, name: str) -> Array:
    wanted = 3 if colour == "rgb" else 1
    _check_colours(len(picture), name)
    if len(picture) == wanted:
        return picture
    if wanted == 3:
        return np.repeat(picture, 3, 0)
    if picture.dtype == np.uint8:
        return np.asarray(Pillow.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0))).convert("L"))[None]
    return np.tensordot(LUMA, picture, 1)[None]


def _check_colours(channels: int, name: str) -> None:
    if channels not in (1, 3):
        raise InputError(f"{name}: has {channels} channels, so it is neither grey nor RGB")


def _in_units(weights: Floats) -> Floats:
    """Rows of weights as multiples of 1 / UNITS that sum to 1 exactly."""
    units = np.rint(weights * UNITS)
    units[np.arange(len(units)), units.argmax(1)] += UNITS - units.sum(1)
    return units / UNITS


def _resized(picture: Array, size: tuple[int, int], method: int) -> Array:
    """Channel by channel, which is how Pillow does it; floats in single precision, without overshoot beyond [0, 1]."""
    kind = np.uint8 if picture.dtype == np.uint8 else np.float32
    height, width = size
    planes = (Pillow.fromarray(np.ascontiguousarray(plane, dtype=kind)) for plane in picture)
    resized = np.stack([np.asarray(plane.resize((width, height), method)) for plane in planes])
    return resized if kind is np.uint8 else np.clip(resized, min(0.0, picture.min()), max(1.0, picture.max()))


def _cropped(picture: Array, size: tuple[int, int], name: str) -> Array:
    top, left = _corner(picture.shape[1:], size, name)
    return picture[:, top : top + size[0], left : left + size[1]]


def _corner(sides: Sequence[int], size: tuple[int, int], name: str) -> tuple[int, int]:
    """The row and the column at which the middle of a picture begins."""
    if any(side < wanted for side, wanted in zip(sides, size, strict=True)):
        raise InputError(f"{name}: no {by(size)} can be cut out of {by(sides)}; resize it first", option="resize")
    # an odd border is divided as torchvision does it: halves are rounded to even numbers
    top, left = (round((side - wanted) / 2) for side, wanted in zip(sides, size, strict=True))
    return top, left


def _list(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:.6g}" if len(numbers) == 1 else f"[{', '.join(f'{number:.6g}' for number in numbers)}]"


# -- Hugging Face -----------------------------------------------------------------------------------------------------

NAME = "preprocessor_config.json"


@dataclass(frozen=True)
class _Kind:
    """The defaults of a kind of image processor."""

    resample: str
    is_square: bool
    """A size of one number is that of both sides; else of the shorter one."""
    crops: bool


KINDS = {
    "Beit": _Kind("bicubic", is_square=True, crops=True),
    "Bit": _Kind("bicubic", is_square=False, crops=True),
    "CLIP": _Kind("bicubic", is_square=False, crops=True),
    "ConvNext": _Kind("bilinear", is_square=False, crops=False),
    "DeiT": _Kind("bicubic", is_square=True, crops=True),
    "EfficientNet": _Kind("nearest", is_square=True, crops=False),
    "Levit": _Kind("bicubic", is_square=False, crops=True),
    "MobileNetV1": _Kind("bilinear", is_square=False, crops=True),
    "MobileNetV2": _Kind("bilinear", is_square=False, crops=True),
    "PoolFormer": _Kind("bicubic", is_square=False, crops=True),
    "Siglip": _Kind("bicubic", is_square=True, crops=False),
    "ViT": _Kind("bilinear", is_square=True, crops=False),
}
# What is done with a picture, or, in the last case, with other things than pictures.
STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels"}


def read_preprocessing(path: Path | str) -> Preprocessing:
    """Read a preprocessor_config.json, or the one in a folder; unknown steps are refused."""
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    try:
        config = json.loads(read_text(file))
        if not isinstance(config, dict):
            raise ValueError("it holds no object")
        return _understood(config)
    except (KeyError, RecursionError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{file}: not a {NAME} as image processors write it ({reason})") from error
    except InputError as error:
        raise InputError(f"{file}: {error}" if str(file) not in str(error) else str(error)) from error


def _understood(config: Mapping[str, Any]) -> Preprocessing:
    name = config.get("image_processor_type") or config.get("feature_extractor_type") or "ViTImageProcessor"
    kind_name = str(name).removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    kind = KINDS.get(kind_name)
    if kind is None:
        raise InputError(f"the steps of a {name} are unknown; give resize, crop, mean and std as separate options")
    strange = [key for key, value in config.items() if key.startswith("do_") and value and key not in STEPS]
    if strange:
        raise InputError(f"{', '.join(strange)}: unknown, and may change the pixels")
    resize, crop = _sizes(config, kind_name, kind)
    resample = config.get("resample")
    mean, std = _normalisation(config, config.get("include_top", kind_name == "EfficientNet"))
    return Preprocessing(
        resize=resize,
        crop=crop,
        resample=kind.resample
        if resample is None
        else {number: word for word, number in RESAMPLING.items()}[int(resample)],
        colour="rgb" if config.get("do_convert_rgb") else None,
        mean=mean,
        std=std,
    )


def _sizes(
    config: Mapping[str, Any], name: str, kind: _Kind
) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
    """The size to resize to, and the size to crop."""
    resize = _size(config["size"], kind.is_square) if config.get("do_resize", True) else None
    crop = None
    if config.get("do_center_crop", kind.crops):
        size = _size(config["crop_size"], is_square=True)
        crop = (size, size) if isinstance(size, int) else size
    share = config.get("crop_pct", 0.9 if name == "PoolFormer" else None)
    if name == "PoolFormer" and share and isinstance(resize, tuple):
        raise ValueError("a PoolFormer's size of height and width, with a share to crop")
    if resize is None or isinstance(resize, tuple):
        return resize, crop
    if name == "Levit":
        return int(256 / 224 * resize), crop
    if name == "ConvNext":  # small pictures are resized to more and cropped, large ones are squeezed
        small = resize < 384
        return (int(resize / (share or 224 / 256)), (resize, resize)) if small else ((resize, resize), None)
    return (int(resize / share) if name == "PoolFormer" and share else resize), crop


def _size(size: Any, is_square: bool) -> int | tuple[int, int]:
    """The shorter side, or height and width."""
    if isinstance(size, int):
        return (size, size) if is_square else size
    if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
        return int(size["shortest_edge"])
    if isinstance(size, dict) and size.keys() == {"height", "width"}:
        return int(size["height"]), int(size["width"])
    raise ValueError(f"a size of {json.dumps(size)}")


def _normalisation(
    config: Mapping[str, Any], divides_twice: bool
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation of pixels p in [0, 1]: the network is given (255 p factor - offset - mean) / std."""
    factor = 255 * float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 255.0
    offset = 1.0 if config.get("rescale_offset") and config.get("do_rescale", True) else 0.0
    mean, std = [0.0], [1.0]
    if config.get("do_normalize", True):
        mean, std = ([*map(float, config[key])] for key in ("image_mean", "image_std"))
        if divides_twice:  # EfficientNet's does
            std = [number**2 for number in std]
    if abs(factor - 1) < 1e-9:
        factor = 1.0
    if (factor, offset, mean, std) == (1.0, 0.0, [0.0], [1.0]):
        return None, None
    return tuple((offset + number) / factor for number in mean), tuple(number / factor for number in std)
