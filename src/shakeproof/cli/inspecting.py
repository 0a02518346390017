"""What there is, and whether it will do: `kernels`, `supports` for networks, and `check` for certificates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import FILE, InputOptions, check_writable, import_engines, numbers, picture_options
from shakeproof.cli.terminal import EXIT_NO, plain_table, progress_bar, say, terminal
from shakeproof.errors import InputError, NetworkMismatchError, ShakeproofError, UnsupportedNetworkError
from shakeproof.files import check_regular

if TYPE_CHECKING:
    from torch import Tensor

    from shakeproof.model import Deployed
    from shakeproof.question import Matrix, Perturbation

Shape = tuple[int, int, int]
PICTURES = "with an IMAGE: how many 8-bit pictures its blur has, and how long they take to run (--pixels 8bit)"


@click.command()
@click.argument("perturbation", required=False)
@click.option("--strength", callback=numbers(), default="1", show_default=True,
              help="Strength of the kernel; for a sum, one for all parts or one each, e.g. 0.2,0.3.")  # fmt: skip
@click.option(
    "--png",
    type=FILE,
    help="Write a figure of the kernel, or of all families, and the effect on an image (.png, .svg).",
)
@click.option("--image", help="Image for --png [default: a bundled one].")
def kernels(perturbation: str | None, strength: Sequence[float], png: Path | None, image: str | None) -> int:
    """List the perturbation families, or show one kernel."""
    from shakeproof.question import parse_path

    if png is not None:
        check_writable(png)
    shown = None if perturbation is None else parse_path(perturbation)
    if shown is None:
        _list_families()
    else:
        _show_kernel(shown, strength)
    if png is not None:
        from shakeproof.report import families_figure, kernel_figure, save

        pixels = _pixels(image)
        save(families_figure(pixels) if shown is None else kernel_figure(shown, strength, pixels), png)
        say(f"wrote {png}")
    return 0


def _list_families() -> None:
    from shakeproof.question import FAMILIES, MOST_PARTS, PADDINGS

    table = plain_table("family", "what it does at strength 1", "for example")
    for group in dict.fromkeys(family.group for family in FAMILIES.values()):
        table.add_row(f"[bold]{group}[/bold]")
        for name, family in FAMILIES.items():
            if family.group == group:
                table.add_row(f"  {name}", family.summary, family.example)
    console = terminal()
    console.print(table)
    console.print(f"Kernels take padding={'|'.join(PADDINGS)} (default reflect). All take clip=LOW..HIGH (off).")
    console.print("Angles are bearings: 0 is up, 45 up and to the right, 90 to the right.")
    console.print(f"Add up to {MOST_PARTS}, each with its own strength: motion-blur:size=5,angle=0+brightness:max=0.2")


def _show_kernel(shown: Perturbation, strength: Sequence[float]) -> None:
    strengths = [Fraction(str(z)) for z in shown.strengths(strength)]  # the decimals as they were written
    bearing = " (angle 0 is up)" if "angle=" in str(shown) and "rotation" not in str(shown) else ""
    say(f"{shown} at strength {','.join(f'{float(z):g}' for z in strengths)}{bearing}")
    if shown.degradations:
        say("the kernel differs from pixel to pixel; --png FILE shows what points become")
    else:
        _say_matrix(shown.kernel.at(*strengths))
    if offset := shown.offset(*strengths):
        say(f"then {_entry(offset)} is added to every pixel")
    if len(shown.paddings) > 1:
        say(f"at the edges, each part uses its own padding ({', '.join(shown.paddings)})")


def _say_matrix(matrix: Matrix) -> None:
    if len(matrix) == len(matrix[0]) == 1:
        say(f"every pixel times {_entry(matrix[0][0])}")
        return
    entries = [[_entry(value) for value in row] for row in matrix]
    width = max(len(entry) for row in entries for entry in row)
    for row in entries:
        say("  ".join(entry.rjust(width) for entry in row))
    say(f"{len(matrix)} x {len(matrix[0])}, sum {_entry(sum(map(sum, matrix)))}")


def _pixels(image: str | None) -> Tensor:
    """The image to show an effect on."""
    from shakeproof import demo
    from shakeproof.question import Specification, as_picture, read_image

    raw = read_image(image or str(demo.images()[0][0]))
    shape = raw.own_shape()
    if shape is None or isinstance(raw.array, Specification):
        raise InputError(f"{raw.name}: not a picture to show a kernel's effect on")
    return as_picture(raw.array, shape, raw.name)


def _entry(value: Any) -> str:
    """A fraction where that says more than digits would."""
    return str(value) if value.denominator < 100_000 else f"{float(value):.6g}"


# -- networks ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("model", required=False)
@click.argument("image", required=False)
@picture_options
@click.option("--trial", type=click.FloatRange(0, 3600), default=3.0, show_default=True, metavar="SECONDS",
              help="Time for a trial analysis of IMAGE, or of a random picture; 0: none.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def supports(
    model: str | None,
    image: str | None,
    inputs: InputOptions,
    trial: float,
    as_json: bool,
) -> int:
    """Tell whether a network can be analysed, how, and at what cost.

    The network is loaded and compared with onnxruntime, as `profile` does. Without MODEL: list what is supported. Exit
    code 1: the network cannot be analysed.
    """
    facts = _everything() if model is None else _about(model, image, inputs, trial)
    if as_json:
        say(json.dumps(facts))
    elif model is None:
        for key, values in facts.items():
            say(f"{key}: {', '.join(values)}")
    else:
        _show(facts)
    return 0 if facts.get("supported", True) else EXIT_NO


def _everything() -> dict[str, Any]:
    from shakeproof.model import OPERATORS

    return {
        "arithmetic": ["real", "float32"],
        "methods": ["exact", "bounds", "enumeration"],
        "pixels": ["real", "8bit"],
        "formats": [".onnx", ".onnx.gz"],
        "queries": ["perturbation", "vnnlib 1.0", "vnnlib 2.0"],
        "operators": sorted(OPERATORS),
    }


def _about(model: str, image: str | None, inputs: InputOptions, trial: float) -> dict[str, Any]:
    """All facts about one network, as `--json` prints them."""
    import_engines()
    from shakeproof.analysis import arithmetics
    from shakeproof.estimate import enumeration_estimated, estimated
    from shakeproof.graph import bending_neurons
    from shakeproof.model import load
    from shakeproof.question import read_image

    raw = None if image is None else read_image(image, inputs.array, inputs.labels)
    steps = inputs.preprocessing()
    size = None if raw is None else raw.own_shape(steps)
    facts: dict[str, Any] = {
        "model": model,
        "supported": False,
        "reason": None,
        "method": None,
        "arithmetic": [],
        "pixels": [],
        "queries": [],
        "operators": {},
        "neurons": {},
        "problems": [],
        "notes": [],
        "estimate": None,
        "enumeration": None,
    }
    runnable: Deployed | None
    try:
        runnable = network = load(
            model,
            image_shape=inputs.image_shape,
            output_name=inputs.output_name,
            picture=size,
            preprocess=steps,
            classes=inputs.class_names(),
        )
    except (UnsupportedNetworkError, NetworkMismatchError) as error:
        runnable, reasons = _refused(model, error, inputs, size)
        facts |= reasons
    else:
        cost = estimated(network, None if raw is None else raw.fitted(network.picture(), steps), trial)
        facts |= {
            "supported": True,
            "method": "exact" if network.graph.is_piecewise_linear else "bounds",
            "arithmetic": arithmetics(network.graph, network.dropped),
            "pixels": ["real", "8bit"],
            "queries": ["vnnlib"] if network.layout is None else ["perturbation", "vnnlib"],
            "operators": dict(network.operators),
            "neurons": dict(bending_neurons(network.graph)),
            "notes": [*network.notes, *([] if network.classifies else [network.no_classifier])],
            "estimate": None if cost is None else cost.to_json() | {"text": str(cost)},
        }
    if runnable is not None and raw is not None and trial:  # what it takes to run every 8-bit picture of the image
        facts["enumeration"] = enumeration_estimated(runnable, raw.fitted(runnable.picture(), steps))
    return facts


def _refused(
    model: str, error: Exception, inputs: InputOptions, size: Shape | None
) -> tuple[Deployed | None, dict[str, Any]]:
    """Why a network is not analysed, operator by operator if some stand in the way, or in one reason; and the network,
    if its runtime takes it all the same.
    """
    from shakeproof.model import load_deployed, read

    runnable = None
    with suppress(ShakeproofError):
        runnable = load_deployed(
            model,
            image_shape=inputs.image_shape,
            output_name=inputs.output_name,
            picture=size,
            preprocess=inputs.preprocessing(),
        )
    if runnable is not None and not runnable.classifies:
        runnable = None
    facts: dict[str, Any] = {
        "reason": str(error).removeprefix(f"{model}: "),
        "pixels": [] if runnable is None else ["8bit"],
    }
    with suppress(UnsupportedNetworkError):
        reading = read(Path(model), inputs.output_name, inputs.image_shape or size)
        facts |= {"operators": dict(reading.operators), "notes": list(reading.notes)}
        facts["problems"] = [{"operator": p.operator, "node": p.node, "reason": p.reason} for p in reading.problems]
    return runnable, facts


def _show(facts: dict[str, Any]) -> None:
    from rich.text import Text  # names and reasons are shown as they are: brackets in them are no markup

    failing: dict[str, list[str]] = {}
    for problem in facts["problems"]:
        failing.setdefault(problem["operator"], []).append(problem["reason"])
    console = terminal()
    table = plain_table("operator", "nodes", "supported")
    for name in sorted({*facts["operators"], *failing}):
        nodes = max(facts["operators"].get(name, 0), len(failing.get(name, ())))
        supported = Text(f"no: {failing[name][0]}", "red") if name in failing else Text("yes", "green")
        table.add_row(Text(name), str(nodes), supported)
    if table.row_count:
        console.print(table)
    for note in facts["notes"]:
        console.print(Text(f"note: {note}", "dim"))
    if not facts["supported"]:
        verdict = Text.assemble(f"{facts['model']}: ", ("not supported", "red"), f"; {facts['reason']}")
        console.print(verdict, soft_wrap=not console.is_terminal)
        if facts["pixels"]:
            console.print(
                "onnxruntime runs it, so 8-bit pictures can be analysed: add --pixels 8bit to profile or verify"
            )
        if facts["enumeration"]:
            console.print(facts["enumeration"]["text"])
        elif facts["pixels"]:
            console.print(PICTURES)
        return
    bends = ", ".join(f"{count} {kind} neurons" for kind, count in facts["neurons"].items()) or "affine"
    about = f"provable in {' and '.join(facts['arithmetic'])} arithmetic; matches onnxruntime"
    verdict = Text.assemble(
        f"{facts['model']}: ", ("supported", "green"), f"; method: {facts['method']} ({bends}); {about}"
    )
    console.print(verdict, soft_wrap=not console.is_terminal)
    for cost in filter(None, (facts["estimate"], facts["enumeration"])):
        console.print(cost["text"])
    if facts["enumeration"] is None and "perturbation" in facts["queries"]:
        console.print(PICTURES)


# -- certificates -----------------------------------------------------------------------------------------------------


@click.command()
@click.argument("certificates", nargs=-1, required=True, type=FILE)
@click.option("--model", required=True, type=FILE, help="The .onnx or .onnx.gz file that was analysed.")
@click.option("--image", type=FILE,
              help="Require that the certificate is about this image: .npy and .npz@INDEX are compared by pixels, other"
              " files by digest.")  # fmt: skip
@click.option("--effort", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="Factor on the work and memory that a check may use.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def check(certificates: Sequence[Path], model: Path, image: Path | None, effort: float, as_json: bool) -> int:
    """Check certificates with an independent program.

    The checker shares no code with the prover and reads the model itself. `python -m shakeproof.checker` does the same
    and needs numpy only. Exit codes: 0 all hold, 1 at least one does not.
    """
    from shakeproof import checker

    for path in (*certificates, model, *(() if image is None else (image,))):
        check_regular(path)
    accepted = True
    with progress_bar("checking", as_json, len(certificates)) as bar:
        for number, path in enumerate(certificates):

            def progress(share: float, done: int = number) -> None:
                bar.advance(done + share)

            outcome = checker.check(path.read_bytes(), model.read_bytes(), image, progress, effort)
            accepted &= outcome.accepted
            answer = {"certificate": str(path), "accepted": outcome.accepted, "sentence": outcome.sentence}
            word = "holds" if outcome.accepted else "does not hold"
            say(json.dumps(answer | outcome.details) if as_json else f"{path}: {word}: {outcome.sentence}")
            bar.advance(number + 1)
    return 0 if accepted else EXIT_NO
