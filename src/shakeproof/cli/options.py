"""The options that commands share, and what they become: settings, preprocessing, output files."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from shakeproof.errors import InputError
from shakeproof.files import check_regular, try_writing
from shakeproof.settings import Settings, asked

if TYPE_CHECKING:
    from shakeproof.question import ClassNames, Preprocessing

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
PICTURES = (".png", ".svg")


def numbers(count: int | None = None, whole: bool = False) -> Callable[..., Any]:
    """Reads an option like `0.49,0.48,0.45` (or `3,32,32`)."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        try:
            numbers = tuple((int if whole else float)(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or (count and len(numbers) != count) or (whole and min(numbers) < 1):
            raise click.BadParameter(f"{value!r} is not {count or 'a list of'} numbers with commas between them")
        return numbers

    return read


def _label(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    """A number, or else a name."""
    return int(value) if value is not None and value.lstrip("-").isdecimal() and len(value) < 20 else value


def _colour(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Either spelling."""
    return "grey" if value == "gray" else value


def setting(name: str) -> Decorator:
    """The option of a setting."""
    field = asked()[name]
    kind = click.Choice(field.metadata["choices"]) if "choices" in field.metadata else field.metadata["type"]
    shown = field.default is not None
    return click.option(f"--{name}", type=kind, default=field.default, show_default=shown, help=field.metadata["help"])


FILE = click.Path(path_type=Path)
# With how much time and memory, and which pictures are run.
EFFORT = (
    setting("timeout"),
    setting("memory"),
    click.option("--threads", type=click.IntRange(1, 1024), help="Number of cores to use [default: all]."),
    setting("device"),
    setting("pixels"),
)
# The same, and what is done to pictures.
WORK = (
    click.option("-p", "--perturbation", "perturbations", multiple=True, metavar="PERTURBATION",
                 help="E.g. motion-blur:size=9,angle=45 (angle 0 is up). Repeat -p for several; join with + to combine."
                 " `shakeproof kernels` lists the families."),
    *EFFORT,
)  # fmt: skip
# How a proof is made, and what it is about.
PROVING = (setting("method"), setting("tolerance"), setting("arithmetic"))
# Files beside the answers.
PLOT = click.option("--plot", type=FILE,
                    help="Write a plot of margins against strength (.png, .svg). Several queries write numbered files:"
                    " NAME-1.png, NAME-2.png, ...")  # fmt: skip
FILES = (
    PLOT,
    click.option("--counterexample", type=FILE,
                 help="Write each counterexample: a figure with the original and the kernel (.png, .svg), or the"
                 " network's input (.npy). Numbered as --plot."),
    click.option("--certificate", type=FILE,
                 help="Write a certificate that `shakeproof check` can check. Numbered as --plot."),
    click.option("--certificate-timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                 help="Time limit for writing each certificate [default: 300]."),
    click.option("--output", type=FILE, metavar="FILE",
                 help="Append each answer to this file (.jsonl, .csv) as soon as it is known."),
    click.option("--resume", is_flag=True, help="Keep the answers in --output FILE and analyse only the others."),
    click.option("--junit", type=FILE, metavar="FILE",
                 help="Write a JUnit XML file with one test case per query."),
)  # fmt: skip
# What is printed.
PRINTED = (
    click.option("--strict", is_flag=True, help="Abort on an unusable image (default: warn and skip it)."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line."),
    click.option("--quiet", is_flag=True, help="Print no progress, notes or table."),
)  # fmt: skip
REQUIRE = click.option("--require", metavar="TEXT",
                       help="What must hold of the outputs, e.g. top:k=3, never:classes=1,2 or"
                       " output:index=0,within=-0.1..0.1 (docs/requirements) [label: that it wins].")  # fmt: skip
LABEL = click.option("--label", callback=_label, metavar="N|NAME",
                     help="Class that should win [default: the image's own label, else the prediction].")  # fmt: skip


def with_options(*options: Decorator) -> Decorator:
    """A command's options, listed in their order."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


# -- which images are meant, and what is done to them -----------------------------------------------------------------


@dataclass(frozen=True)
class InputOptions:
    """The values of `picture_options` and `LABEL`, as typed."""

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
        """The preprocessing of pictures, from a file or from single options."""
        from shakeproof.question import Preprocessing, read_preprocessing

        scale = None if self.scale is None else _scale(self.scale)
        if self.preprocess is not None:
            both = [f"--{name}" for name in ("resize", "crop", "mean", "std") if getattr(self, name) is not None]
            if both:
                raise InputError(f"--preprocess defines the whole preprocessing; omit {' and '.join(both)}")
            steps = read_preprocessing(self.preprocess)
            return replace(steps, colour=self.colour or steps.colour, scale=scale)
        resize, resample = (None, "bilinear") if self.resize is None else _resize(self.resize)
        crop = None if self.crop is None else _sides(self.crop, self.crop, "--crop 224 or 224,224")
        square = (crop, crop) if isinstance(crop, int) else crop
        mean, std = _normalisation(self.mean, self.std)
        return Preprocessing(resize, square, resample, self.colour, scale, mean, std)


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that make `inputs`."""

    @wraps(command)
    def gathered(**options: Any) -> Any:
        inputs = InputOptions(**{field.name: options.pop(field.name, None) for field in fields(InputOptions)})
        return command(inputs=inputs, **options)

    return with_options(
        click.option("--classes", type=FILE, metavar="FILE",
                     help="Class names: one per line, or JSON [default: the model's metadata, or subfolder names]."),
        click.option("--array", metavar="NAME",
                     help="Array of images in .npz files [default: x, x_test, images, ...]."),
        click.option("--labels", metavar="NAME",
                     help="Array of labels in .npz files [default: y, y_test, labels, ...]."),
        click.option("--preprocess", type=FILE, metavar="FILE",
                     help="Preprocess as a Hugging Face preprocessor_config.json says."),
        click.option("--resize", metavar="N|H,W[,METHOD]",
                     help="Resize first: the shorter side, or height and width. METHOD: bilinear, bicubic, ..."),
        click.option("--crop", metavar="N|H,W", help="Then crop the centre."),
        click.option("--colour", "--color", type=click.Choice(["rgb", "grey", "gray"]), callback=_colour,
                     help="Convert pictures to RGB or grey first."),
        click.option("--scale", metavar="LOW..HIGH",
                     help="Black and white levels of arrays, e.g. 0..255 [default: 0..1 for floats, the full range for"
                     " unsigned integers]."),
        click.option("--mean", metavar="NUMBERS|PRESET",
                     help="Mean of each channel, subtracted after the perturbation. Presets set mean and std: imagenet,"
                     " cifar10, cifar100, mnist, clip, half (0.5)."),
        click.option("--std", metavar="NUMBERS|PRESET",
                     help="Standard deviation of each channel; pictures are divided by it."),
        click.option("--image-shape", callback=numbers(3, whole=True), metavar="C,H,W",
                     help="Picture shape of a flat input, or of one that leaves its size open."),
        click.option("--output-name", metavar="NAME[,NAME...]",
                     help="Outputs to analyse; * means all [default: the one with class scores, else all]."),
    )(gathered)  # fmt: skip


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
        raise InputError(f"--scale {text}: give the values of black and white, e.g. 0..255") from None
    return low, high


def _normalisation(mean: str | None, std: str | None) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Numbers; a preset stands for both, unless the other is given too."""
    from shakeproof.question import PRESETS

    preset = next((PRESETS[word] for word in (mean, std) if word in PRESETS), (None, None))

    def read(text: str | None, side: int) -> tuple[float, ...] | None:
        if text is None or text in PRESETS:
            return preset[side] if text is None else PRESETS[text][side]
        try:
            return tuple(float(word) for word in text.split(","))
        except ValueError:
            raise InputError(f"{text!r} is neither comma-separated numbers nor one of {', '.join(PRESETS)}") from None

    return read(mean, 0), read(std, 1)


# -- before the work --------------------------------------------------------------------------------------------------


def import_engines() -> None:
    """Import what an analysis needs, mostly torch, and exclude it from garbage collection.

    Whatever is imported stays until the end. Looking through it again and again, while it grows and once more at the
    end, takes a third of the time of `import torch` (docs/speed.md).
    """
    gc.disable()
    try:
        import shakeproof.analysis  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def settings_from(threads: int | None, device: str, **options: Any) -> Settings:
    """Of the options that have the names of settings."""
    import_engines()
    import torch

    if device.partition(":")[0] == "mps":
        raise InputError(
            "device 'mps' cannot be used: proofs are in float64, which Apple's GPUs do not compute; use cpu"
        )
    try:
        torch.zeros(1, dtype=torch.float64, device=device).add(1)
        if torch.device(device).type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError, TypeError, ImportError, AttributeError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(f"device {device!r} cannot be used here ({reason}); use cpu") from None
    settings = Settings(device=device, **options)
    if threads:
        torch.set_num_threads(threads)
    return settings


def check_writable(path: Path, endings: Sequence[str] = PICTURES) -> None:
    """Check before the work that a file can be written, by writing another one next to it."""
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"{path}: write it as {' or '.join(endings)}")
    check_regular(path)
    try_writing(path)
