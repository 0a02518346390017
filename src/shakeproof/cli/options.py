"""What commands have in common: options, how they are read, and files that must be writable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from shakeproof.cli.starting import import_engines
from shakeproof.errors import InputError
from shakeproof.files import check_regular, try_writing
from shakeproof.settings import Settings, asked

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


def setting(name: str) -> Callable[..., Any]:
    """The option of a setting."""
    own = asked()[name]
    kind = click.Choice(own.metadata["choices"]) if "choices" in own.metadata else own.metadata["type"]
    default, shown = own.default, own.default is not None
    return click.option(f"--{name}", type=kind, default=default, show_default=shown, help=own.metadata["help"])


# What is done to pictures, with how much time and memory, and which of them are run.
WORK = (
    click.option("-p", "--perturbation", "perturbations", multiple=True, metavar="PERTURBATION",
                 help="e.g. motion-blur:size=9,angle=45; repeat for several, join with + for both at once"
                 " (shakeproof kernels lists them)."),
    setting("timeout"),
    setting("memory"),
    click.option("--threads", type=click.IntRange(1, 1024), help="Cores to use [all]."),
    setting("device"),
    setting("pixels"),
)  # fmt: skip
# How a proof is made, and what it is about.
PROVING = (setting("method"), setting("tolerance"), setting("arithmetic"))
# Files beside the answers.
PLOT = click.option("--plot", type=click.Path(path_type=Path), help="Write margins against strength (.png, .svg).")
FILES = (
    PLOT,
    click.option("--counterexample", type=click.Path(path_type=Path),
                 help="Write original, perturbed image and kernel (.png, .svg), or the network's input (.npy)."),
    click.option("--certificate", type=click.Path(path_type=Path),
                 help="Write what shakeproof check needs to find the answer again, a file for each query."),
    click.option("--certificate-timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
                 help="How long a certificate may take, after its answer is shown [300]."),
    click.option("--output", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write every answer as a line of this file (.jsonl, .csv) as soon as it is known."),
    click.option("--resume", is_flag=True, help="Keep what is in --output FILE, and ask only what is not."),
    click.option("--junit", type=click.Path(path_type=Path), metavar="FILE",
                 help="Write a test case for each query, as build servers show them."),
)  # fmt: skip
# What is printed.
PRINTED = (
    click.option("--strict", is_flag=True,
                 help="Refuse everything if an image cannot be used [say so, and do the others]."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
    click.option("--quiet", is_flag=True, help="No progress, no notes, no table."),
)  # fmt: skip


def with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A command that takes options, listed in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def analysis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `profile` and `verify` have in common."""
    return with_options(command, (*WORK, *PROVING, *FILES, *PRINTED))


def comparing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `compare` has of it: who wins where is settled by one method, and for real numbers or 8-bit pictures."""
    return with_options(command, (*WORK, PLOT, *PRINTED))


def settings_from(threads: int | None, device: str, **options: Any) -> Settings:
    """Of the options that have the names of settings."""
    import_engines()

    settings = Settings(device=usable_device(device), **options)
    if threads:
        import torch

        torch.set_num_threads(threads)
    return settings


def usable_device(name: str) -> str:
    import torch

    if name.partition(":")[0] == "mps":
        raise InputError(
            "device 'mps' cannot be used: proofs are in float64, which Apple's GPUs do not compute; use cpu"
        )
    try:
        torch.zeros(1, dtype=torch.float64, device=name).add(1)
        if torch.device(name).type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError, TypeError, ImportError, AttributeError) as error:
        said = str(error).splitlines()[0].partition(". ")[0]
        raise InputError(f"device {name!r} cannot be used here ({said}); use cpu") from None
    return name


def check_writable(path: Path, endings: Sequence[str] = PICTURES) -> None:
    """Find out before the work whether a file can be written at its end, by writing another beside it."""
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"{path}: write it as {' or '.join(endings)}")
    check_regular(path)
    try_writing(path)
