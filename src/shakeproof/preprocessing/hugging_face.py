"""preprocessor_config.json, as Hugging Face's image processors write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shakeproof.errors import InputError
from shakeproof.files import read_text
from shakeproof.preprocessing.preprocessing import RESAMPLING, Preprocessing

NAME = "preprocessor_config.json"


@dataclass(frozen=True)
class _Kind:
    """What an image processor does where its file does not say."""

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
    """What a preprocessor_config.json says, or the one in a folder; what is not understood is refused."""
    file = Path(path) / NAME if Path(path).is_dir() else Path(path)
    try:
        said = json.loads(read_text(file))
        if not isinstance(said, dict):
            raise ValueError("it holds no object")
        return _understood(said)
    except (KeyError, RecursionError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise InputError(f"{file}: not a {NAME} as image processors write it ({_reason(error)})") from error
    except InputError as error:
        raise InputError(f"{file}: {error}" if str(file) not in str(error) else str(error)) from error


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _understood(said: Mapping[str, Any]) -> Preprocessing:
    name = said.get("image_processor_type") or said.get("feature_extractor_type") or "ViTImageProcessor"
    kind_name = str(name).removesuffix("Fast").removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    kind = KINDS.get(kind_name)
    if kind is None:
        raise InputError(f"what a {name} does is not known here; resize, crop and normalise by options of their own")
    strange = [key for key, value in said.items() if key.startswith("do_") and value and key not in STEPS]
    if strange:
        raise InputError(f"{', '.join(strange)}: is not known here, and would change the pixels")
    resize, crop = _sizes(said, kind_name, kind)
    resample = said.get("resample")
    mean, std = _normalisation(said, said.get("include_top", kind_name == "EfficientNet"))
    return Preprocessing(
        resize=resize,
        crop=crop,
        resample=kind.resample if resample is None else {n: word for word, n in RESAMPLING.items()}[int(resample)],
        colour="rgb" if said.get("do_convert_rgb") else None,
        mean=mean,
        std=std,
    )


def _sizes(
    said: Mapping[str, Any], name: str, kind: _Kind
) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
    """What to resize to, and what to cut out of that."""
    resize = _size(said["size"], kind.is_square) if said.get("do_resize", True) else None
    crop = None
    if said.get("do_center_crop", kind.crops):
        size = _size(said["crop_size"], is_square=True)
        crop = (size, size) if isinstance(size, int) else size
    share = said.get("crop_pct", 0.9 if name == "PoolFormer" else None)
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


def _size(said: Any, is_square: bool) -> int | tuple[int, int]:
    """The shorter side, or height and width."""
    if isinstance(said, int):
        return (said, said) if is_square else said
    if isinstance(said, dict) and said.keys() == {"shortest_edge"}:
        return int(said["shortest_edge"])
    if isinstance(said, dict) and said.keys() == {"height", "width"}:
        return int(said["height"]), int(said["width"])
    raise ValueError(f"a size of {json.dumps(said)}")


def _normalisation(
    said: Mapping[str, Any], divides_twice: bool
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation of pixels p in [0, 1]: the network is given (255 p factor - offset - mean) / std."""
    factor = 255 * float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 255.0
    offset = 1.0 if said.get("rescale_offset") and said.get("do_rescale", True) else 0.0
    mean, std = [0.0], [1.0]
    if said.get("do_normalize", True):
        mean, std = ([*map(float, said[key])] for key in ("image_mean", "image_std"))
        if divides_twice:  # EfficientNet's does
            std = [number**2 for number in std]
    if abs(factor - 1) < 1e-9:
        factor = 1.0
    if (factor, offset, mean, std) == (1.0, 0.0, [0.0], [1.0]):
        return None, None
    return tuple((offset + number) / factor for number in mean), tuple(number / factor for number in std)
