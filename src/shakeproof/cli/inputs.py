"""Options about a model's input: which images are meant, what is done to them, which class should win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from shakeproof.cli.options import numbers, with_options
from shakeproof.errors import InputError

if TYPE_CHECKING:
    from shakeproof.question import ClassNames, Preprocessing


@dataclass(frozen=True)
class Given:
    """What `input_options` ask, as it was typed."""

    label: int | str | None
    classes: Path | None
    array: str | None
    labels: str | None
    preprocess: Path | None
    resize: str | None
    crop: str | None
    colour: Literal["rgb", "grey"] | None
    scale: str | None
    mean: str | None
    std: str | None
    image_shape: tuple[int, int, int] | None
    output_name: str | None

    def class_names(self) -> ClassNames | None:
        """The names in the file that was given."""
        from shakeproof.question import read_class_names

        return None if self.classes is None else read_class_names(self.classes)

    def preprocessing(self) -> Preprocessing:
        """What is done to pictures: as a file says, or as options of their own do."""
        from dataclasses import replace

        from shakeproof.question import Preprocessing, read_preprocessing

        scale = None if self.scale is None else _scale(self.scale)
        if self.preprocess is not None:
            both = [f"--{name}" for name in ("resize", "crop", "mean", "std") if getattr(self, name) is not None]
            if both:
                raise InputError(f"--preprocess says all that is done to pictures; leave out {' and '.join(both)}")
            said = read_preprocessing(self.preprocess)
            return replace(said, colour=self.colour or said.colour, scale=scale)
        resize, resample = (None, "bilinear") if self.resize is None else _resize(self.resize)
        crop = None if self.crop is None else _sides(self.crop, self.crop, "--crop 224 or 224,224")
        mean, std = _normalisation(self.mean, self.std)
        square = (crop, crop) if isinstance(crop, int) else crop
        return Preprocessing(resize, square, resample, self.colour, scale, mean, std)


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that make `given`."""
    label = click.option(
        "--label",
        callback=_label,
        metavar="N|NAME",
        help="The class that should win [the image's own, else the prediction].",
    )
    return label(picture_options(command))


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same without a label."""

    @wraps(command)
    def gathered(**options: Any) -> Any:
        given = Given(**{field.name: options.pop(field.name, None) for field in fields(Given)})
        return command(given=given, **options)

    options = (
        click.option("--classes", type=click.Path(path_type=Path), metavar="FILE",
                     help="What classes are called: a name a line, or JSON [the model's metadata, subfolders]."),
        click.option("--array", metavar="NAME", help="The array of images in .npz files [x, x_test, images, ...]."),
        click.option("--labels", metavar="NAME", help="The array of their labels [y, y_test, labels, ...]."),
        click.option("--preprocess", type=click.Path(path_type=Path), metavar="FILE",
                     help="Do what a preprocessor_config.json of Hugging Face says."),
        click.option("--resize", metavar="N|H,W[,METHOD]",
                     help="Resize pictures first: the shorter side, or both; bilinear, bicubic, nearest, ..."),
        click.option("--crop", metavar="N|H,W", help="Then take the middle of them."),
        click.option("--colour", type=click.Choice(["rgb", "grey"]), help="Make pictures RGB or grey first."),
        click.option("--scale", metavar="LOW..HIGH",
                     help="The numbers that are black and white in arrays, e.g. 0..255 [0..1, or what the type says]."),
        click.option("--mean", metavar="NUMBERS|PRESET",
                     help="Per channel: subtracted in front of the network; or imagenet, cifar10, cifar100, mnist,"
                     " clip or half (0.5), which set both."),
        click.option("--std", metavar="NUMBERS|PRESET", help="Per channel: divided by, after the mean."),
        click.option("--image-shape", callback=numbers(3, whole=True), metavar="C,H,W",
                     help="How a flat input, or one that leaves its size open, is a picture."),
        click.option("--output-name", metavar="NAME", help="The output that holds the class scores, of several."),
    )  # fmt: skip
    return with_options(gathered, options)


def _label(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """A number, or else a name."""
    return int(value) if value is not None and value.lstrip("-").isdecimal() and len(value) < 20 else value


def _resize(text: str) -> tuple[int | tuple[int, int], str]:
    sizes, _, method = text.rpartition(",") if text[-1:].isalpha() else (text, "", "")
    return _sides(sizes, text, "--resize 256 or 224,224 or 256,bicubic"), method or "bilinear"


def _sides(sizes: str, text: str, wanted: str) -> int | tuple[int, int]:
    words = sizes.split(",")
    if not all(word.isdecimal() and len(word) < 9 for word in words) or len(words) > 2:
        raise InputError(f"{text!r} is not a size; write {wanted}")
    return int(words[0]) if len(words) == 1 else (int(words[0]), int(words[1]))


def _scale(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(".."))
    except ValueError:
        raise InputError(f"--scale {text}: write which numbers are black and white, e.g. 0..255") from None
    return low, high


def _normalisation(mean: str | None, std: str | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Numbers; a preset stands for both, unless the other is given too."""
    from shakeproof.question import PRESETS

    preset = next((PRESETS[word] for word in (mean, std) if word in PRESETS), (None, None))
    return _numbers(mean, 0) or preset[0], _numbers(std, 1) or preset[1]


def _numbers(text: str | None, side: int) -> tuple[float, ...] | None:
    from shakeproof.question import PRESETS

    if text is None or text in PRESETS:
        return None if text is None else PRESETS[text][side]
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"{text!r} is neither numbers with commas between them nor one of {', '.join(PRESETS)}"
        ) from None
