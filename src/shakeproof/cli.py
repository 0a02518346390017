"""The command: parse, call, print. Nothing else in the package prints. Heavy imports wait until they are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof import __version__
from shakeproof.errors import InputError, ShakeproofError
from shakeproof.memory import keep_freed_memory

if TYPE_CHECKING:
    from rich.console import Console

    from shakeproof.exporting import Format
    from shakeproof.images import Image
    from shakeproof.network import Network
    from shakeproof.result import Result
    from shakeproof.settings import Method

EXIT_UNSAFE, EXIT_BAD_INPUT, EXIT_UNDECIDED, EXIT_INTERRUPTED = 1, 2, 3, 130


def main() -> None:
    """Run the command; every mistake of the user's ends as one line on stderr and exit code 2."""
    keep_freed_memory()
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = EXIT_BAD_INPUT
    except click.ClickException as error:
        code = _complain(error.format_message())
    except ShakeproofError as error:
        code = _complain(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        code = EXIT_BAD_INPUT
    except OSError as error:
        code = _complain(f"{error.filename or 'output'}: {error.strerror or error}")
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except Exception as error:  # a traceback's exit code, 1, would read as a verdict
        code = _complain(f"internal error, please report it: {type(error).__name__}: {error}")
    sys.exit(code)


def _complain(message: str) -> int:
    click.echo(f"shakeproof: {' '.join(message.split())}", err=True)
    return EXIT_BAD_INPUT


def _numbers(count: int | None = None, whole: bool = False) -> Callable[..., Any]:
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


def _input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How the model's input is meant, and which class should win."""
    options = (
        click.option("--label", type=int, help="The class that should win [the image's own, else the prediction]."),
        click.option("--mean", callback=_numbers(), help="Per channel: subtracted in front of the network."),
        click.option("--std", callback=_numbers(), help="Per channel: divided by, after the mean."),
        click.option("--image-shape", callback=_numbers(3, whole=True), metavar="C,H,W",
                     help="How a flat input is a picture."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _analysis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `profile` and `verify` have in common."""
    options = (
        click.argument("model"),
        click.argument("images", nargs=-1, required=True),
        click.option("-p", "--perturbation", "perturbations", multiple=True, required=True, metavar="PERTURBATION",
                     help="e.g. motion-blur:size=9,angle=45; repeat for several, join with + for both at once"
                     " (shakeproof kernels lists them)."),
        _input_options,
        click.option("--timeout", type=float, help="Seconds for each query."),
        click.option("--memory", type=float, default=2.0, show_default=True, help="Working memory in GiB."),
        click.option("--threads", type=click.IntRange(1), help="Threads for matrix products [all cores]."),
        click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ..."),
        click.option("--method", type=click.Choice(["auto", "exact", "bounds"]), default="auto", show_default=True,
                     help="Exact needs one strength and a piecewise-linear network; bounds take any."),
        click.option("--tolerance", type=float, default=1e-4, show_default=True,
                     help="How closely bounds pin down a critical strength."),
        click.option("--plot", type=click.Path(path_type=Path), help="Write margins against strength (.png, .svg)."),
        click.option("--counterexample", type=click.Path(path_type=Path),
                     help="Write original, perturbed image and kernel (.png, .svg)."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
        click.option("--quiet", is_flag=True, help="No progress, no notes, no table."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shakeproof")
def cli() -> None:
    """How much camera shake, blur or sharpening can an image take before a network changes its mind? Exactly.

    Try `shakeproof demo` first. Exit codes: 0 all safe, 1 some unsafe, 2 bad input, 3 some undecided and none unsafe.
    """


@cli.command()
@_analysis_options
@click.option("--max-strength", callback=_numbers(), default="1", show_default=True, metavar="Z[,Z...]",
              help="Analyse strengths from 0 to this; one for all parts, or one each.")  # fmt: skip
def profile(max_strength: Sequence[float], **options: Any) -> int:
    """The winning class at every strength, and the exact strength at which the label loses.

    MODEL is .onnx, .onnx.gz or .pt2; an image is a picture, .npy, FILE.npz@INDEX or .vnnlib(.gz).
    """
    return _analyse(strength=max_strength, stop_early=False, **options)


@cli.command()
@_analysis_options
@click.option("--strength", callback=_numbers(), required=True, metavar="Z[,Z...]",
              help="All strengths from 0 to this must be safe; one for all parts, or one each.")  # fmt: skip
@click.option("--profile", "whole_profile", is_flag=True, help="Do not stop at the first confirmed counterexample.")
def verify(strength: Sequence[float], whole_profile: bool, **options: Any) -> int:
    """Whether the label wins at every strength up to a given one."""
    return _analyse(strength=strength, stop_early=not whole_profile and options["plot"] is None, **options)


def _analyse(
    model: str,
    images: Sequence[str],
    perturbations: Sequence[str],
    label: int | None,
    strength: Sequence[float],
    stop_early: bool,
    timeout: float | None,
    memory: float,
    threads: int | None,
    device: str,
    method: Method,
    tolerance: float,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_shape: tuple[int, int, int] | None,
    plot: Path | None,
    counterexample: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    from shakeproof.perturbation import parse

    for path in filter(None, (plot, counterexample)):
        _check_writable(path)
    kernels = [parse(text) for text in perturbations]
    for kernel in kernels:
        kernel.strengths(strength)
        if plot is not None and kernel.parameters > 2:
            raise InputError(f"{kernel}: --plot draws one or two strengths; leave it out, or take fewer parts")

    from shakeproof.analysis import analyse
    from shakeproof.result import Query
    from shakeproof.settings import Settings

    settings = Settings(timeout, memory, stop_early, _device(device), method, tolerance, whole_curve=plot is not None)
    if threads:
        import torch

        torch.set_num_threads(threads)
    network, pictures = _load(model, images, image_shape, mean, std)
    queries = [
        Query(picture, kernel, picture.label if label is None else label, tuple(strength))
        for picture in pictures
        for kernel in kernels
    ]
    with _progress("certifying", quiet or as_json) as advance:
        results = analyse(network, queries, replace(settings, progress=advance))
    if as_json:
        for result in results:
            click.echo(json.dumps(result.to_json()))
    elif not quiet:
        from shakeproof.report.tables import explanations, label_notes, results_table

        console = _console()
        for note in (*network.notes, *label_notes(results)):
            console.print(f"[dim]note: {note}[/]")
        console.print(results_table(results))
        for explanation in explanations(results):
            console.print(explanation)
    _write_pictures(results, plot, counterexample)
    return exit_code(results)


def _load(
    model: str,
    images: Sequence[str],
    image_shape: tuple[int, int, int] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[Network, list[Image]]:
    """The network and the images as its pictures; a flat input is explained by the first image that can."""
    from math import prod

    from shakeproof.images import read_image
    from shakeproof.network import load

    raw = [read_image(name) for name in images]
    network = load(model, image_shape=image_shape)
    flat = network.layout is None or network.layout.note is not None
    own = next((shape for shape in (image.own_shape() for image in raw) if shape), None)
    if image_shape is None and flat and own and prod(own) == network.graph.input_shape.numel():
        network = network.with_image_shape(own)
    if mean is not None or std is not None:
        network = network.normalised(mean or [0.0], std or [1.0])
    layout = network.picture()
    return network, [image.fitted(layout) for image in raw]


def _device(name: str) -> str:
    import torch

    try:
        torch.empty(0, device=name)
        if torch.device(name).type == "meta":
            raise RuntimeError("it computes nothing")
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {name!r} cannot be used here ({str(error).splitlines()[0]})") from None
    return name


def _check_writable(path: Path, endings: Sequence[str] = (".png", ".svg")) -> None:
    """Find out before the work whether a file can be written at its end."""
    import os

    if path.suffix.lower() not in endings:
        raise InputError(f"{path}: write it as {' or '.join(endings)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or path.is_dir():
        raise InputError(f"{path}: cannot be written; choose a file in an existing folder you may write to")


def _write_pictures(results: Sequence[Result], plot: Path | None, counterexample: Path | None) -> None:
    from shakeproof.report.plot import counterexample_figure, result_figure, save

    for path, draw in ((plot, result_figure), (counterexample, counterexample_figure)):
        if path is None:
            continue
        drawn = results if draw is result_figure else [r for r in results if r.counterexample is not None]
        for number, result in enumerate(drawn, start=1):
            save(draw(result), path if len(drawn) == 1 else path.with_stem(f"{path.stem}-{number}"))


def exit_code(results: Sequence[Result]) -> int:
    """0 all safe, 1 some unsafe (or misclassified), 3 some undecided and none unsafe."""
    statuses = {result.status.value for result in results}
    if statuses & {"unsafe", "misclassified"}:
        return EXIT_UNSAFE
    return EXIT_UNDECIDED if "undecided" in statuses else 0


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    # A table squeezed into a pipe's assumed 80 columns is no use to anyone.
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=160)


@contextmanager
def _progress(title: str, silent: bool) -> Iterator[Callable[[float], None]]:
    """A live bar on stderr, where that is a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = _console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=silent or not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda fraction: bar.update(task, completed=fraction)


# -- the other commands -----------------------------------------------------------------------------------------------


@cli.command()
@click.argument("perturbation", required=False)
@click.option(
    "--strength",
    callback=_numbers(),
    default="1",
    show_default=True,
    help="One for all parts, or one each, e.g. 0.2,0.3.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Write the kernel and its effect on an image.")
@click.option("--image", help="The image to show the effect on [a bundled one].")
def kernels(perturbation: str | None, strength: Sequence[float], png: Path | None, image: str | None) -> int:
    """List the families of perturbations, or show the kernel of one, or of several joined by +."""
    from shakeproof.perturbation import FAMILIES, MOST_PARTS, PADDINGS, parse

    if perturbation is None:
        from shakeproof.report.tables import plain_table

        table = plain_table("family", "what it does at strength 1", "for example")
        for name, family in FAMILIES.items():
            table.add_row(name, family.summary, family.example)
        console = _console()
        console.print(table)
        console.print(f"Kernels take padding={'|'.join(PADDINGS)} (default reflect); all take clip=LOW..HIGH (off).")
        console.print(f"Up to {MOST_PARTS} add up, a strength each: motion-blur:size=5,angle=0+brightness:max=0.2")
        return 0
    if png is not None:
        _check_writable(png)
    shown = parse(perturbation)
    strengths = [Fraction(str(z)) for z in shown.strengths(strength)]  # the decimals as they were written
    matrix, offset = shown.kernel.at(*strengths), shown.offset(*strengths)
    click.echo(f"{shown} at strength {','.join(f'{float(z):g}' for z in strengths)}")
    if len(matrix) == len(matrix[0]) == 1:
        click.echo(f"every pixel times {_entry(matrix[0][0])}")
    else:
        entries = [[_entry(value) for value in row] for row in matrix]
        width = max(len(entry) for row in entries for entry in row)
        for row in entries:
            click.echo("  ".join(entry.rjust(width) for entry in row))
        click.echo(f"{len(matrix)} x {len(matrix[0])}, sum {_entry(sum(map(sum, matrix)))}")
    if offset:
        click.echo(f"then {_entry(offset)} is added to every pixel")
    if len(shown.paddings) > 1:
        click.echo(f"at the edges, each part goes by its own padding ({', '.join(shown.paddings)})")
    if png is not None:
        from shakeproof import demo
        from shakeproof.images import as_picture, read_image
        from shakeproof.report.plot import kernel_figure, save
        from shakeproof.vnnlib import Specification

        raw = read_image(image or str(demo.images()[0][0]))
        own = raw.own_shape()
        if own is None or isinstance(raw.array, Specification):
            raise InputError(f"{raw.name}: not a picture to show a kernel's effect on")
        save(kernel_figure(shown, strength, as_picture(raw.array, own, raw.name)), png)
    return 0


def _entry(value: Any) -> str:
    """A fraction where that says more than digits would."""
    return str(value) if value.denominator < 100_000 else f"{float(value):.6g}"


@cli.command()
@click.argument("model")
@click.option("--json", "as_json", is_flag=True)
def supports(model: str, as_json: bool) -> int:
    """Whether a network can be analysed, operator by operator, and by which method."""
    from shakeproof.network import Graph
    from shakeproof.network.network import load, read_onnx

    def method(graph: Graph) -> str:
        return "exact" if graph.is_piecewise_linear else "bounds"

    path = Path(model)
    if path.suffix == ".pt2":
        network = load(path)
        found = method(network.graph)
        click.echo(json.dumps({"model": model, "supported": True, "method": found, "problems": []}) if as_json
                   else f"{model}: supported; method: {found} ({_bending(network)})")  # fmt: skip
        return 0
    _, reading = read_onnx(path)
    if as_json:
        problems = [{"operator": p.operator, "node": p.node, "reason": p.reason} for p in reading.problems]
        supported = reading.graph is not None
        click.echo(json.dumps({"model": model, "supported": supported,
                               "method": method(reading.graph) if reading.graph else None,
                               "operators": dict(reading.operators), "problems": problems}))  # fmt: skip
        return 0
    from shakeproof.report.tables import plain_table

    table = plain_table("operator", "nodes", "supported")
    failing: dict[str, list[str]] = {}
    for problem in reading.problems:
        failing.setdefault(problem.operator, []).append(problem.reason)
    for name in sorted({*reading.operators, *failing}):
        nodes = max(reading.operators.get(name, 0), len(failing.get(name, ())))
        reasons = next(filter(None, failing.get(name, ())), "not supported")
        table.add_row(name, str(nodes), f"[red]no: {reasons}[/]" if name in failing else "[green]yes[/]")
    console = _console()
    console.print(table)
    if reading.graph is None:
        console.print(f"{model}: [red]not supported[/]; {len(reading.problems)} nodes stand in the way")
    else:
        network = load(path)
        for note in network.notes:
            console.print(f"[dim]note: {note}[/]")
        why = f"{method(network.graph)} ({_bending(network)})"
        console.print(f"{model}: [green]supported[/]; method: {why}; agrees with onnxruntime")
    return 0


def _bending(network: Network) -> str:
    from shakeproof.network.graph import bending_neurons

    counts = bending_neurons(network.graph)
    return ", ".join(f"{count} {kind} neurons" for kind, count in counts.items()) or "no bends: an affine network"


@cli.command()
@click.argument("model")
@click.argument("image")
@click.option("-p", "--perturbation", required=True, metavar="PERTURBATION", help="e.g. motion-blur:size=9,angle=45.")
@click.option(
    "--strength",
    callback=_numbers(),
    required=True,
    metavar="Z[,Z...]",
    help="The query is about all strengths from 0 to this; one for all parts, or one each.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder for the files; made if missing.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["augmented", "vnnlib", "perturbed"]),
    default="augmented",
    show_default=True,
    help="Both files, or only the query: another strength or label asks about the same network; or perturbed.vnnlib,"
    " which holds the image and the perturbation for shakeproof.",
)
@_input_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def export(
    model: str,
    image: str,
    perturbation: str,
    strength: Sequence[float],
    folder: Path,
    form: Format,
    label: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_shape: tuple[int, int, int] | None,
    as_json: bool,
) -> int:
    """Write a query for other verifiers: the network with the perturbation in front of it, and a VNN-LIB file.

    MODEL is .onnx or .onnx.gz, or for `--format perturbed` .pt2 too; IMAGE as for `profile`.
    """
    from shakeproof.perturbation import parse

    parsed = parse(perturbation)
    parsed.strengths(strength)

    from shakeproof.exporting import AUGMENTED, refuse_torch, write_query
    from shakeproof.result import Query

    refuse_torch(model, form)
    network, (picture,) = _load(model, [image], image_shape, mean, std)
    query = Query(picture, parsed, picture.label if label is None else label, tuple(strength))
    written = write_query(model, network, query, folder, mean, std, form)
    if as_json:
        click.echo(json.dumps(written.to_json()))
    elif form == "perturbed":
        click.echo(f"wrote {written.query}; for shakeproof: {parsed} of an image of class {written.label}")
    else:
        files = " and ".join(str(path) for path in (written.augmented, written.query) if path is not None)
        pair = f"{folder / AUGMENTED} {written.query}"
        click.echo(f"wrote {files}; for any VNN-LIB verifier, e.g. Marabou {pair} (unsat: class {written.label} wins)")
    return 0


@cli.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("demo-report.html"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of the table.")
@click.option("--quiet", is_flag=True)
def demo(output: Path, as_json: bool, quiet: bool) -> int:
    """Certify the bundled classifier on the bundled images and write a report."""
    from shakeproof import demo as bundle
    from shakeproof.analysis import analyse
    from shakeproof.images import read_image
    from shakeproof.network import load
    from shakeproof.perturbation import parse
    from shakeproof.report.page import write_page
    from shakeproof.result import Query
    from shakeproof.settings import Settings

    _check_writable(output, (".html",))
    network = load(bundle.MODEL)
    pictures = [
        replace(read_image(str(path)).fitted(network.picture()), name=path.stem, label=label)
        for path, label in bundle.images()
    ]
    kernels = [parse(text) for text in bundle.PERTURBATIONS]
    queries = [Query(picture, kernel, picture.label) for picture in pictures for kernel in kernels]
    with _progress(f"certifying {len(queries)} times", quiet or as_json) as advance:
        results = analyse(network, queries, Settings(whole_curve=True, progress=advance))
    write_page(output, results, bundle.CLASSES, "shakeproof demo: how much shake can a traffic-sign classifier take?")
    if as_json:
        for result in results:
            click.echo(json.dumps(result.to_json()))
    elif not quiet:
        console = _console()
        from shakeproof.report.tables import demo_table

        console.print(demo_table(results))
        console.print(
            f"critical strength for each image and perturbation; [green]safe[/]: none up to 1. Wrote {output}"
        )
    return 0


if __name__ == "__main__":
    main()
