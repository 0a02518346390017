"""`supports`: whether a network can be analysed, how, and at what cost; or why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import numbers
from shakeproof.cli.starting import import_engines
from shakeproof.cli.terminal import plain_table, say, terminal
from shakeproof.errors import NetworkMismatchError, ShakeproofError, UnsupportedNetworkError

if TYPE_CHECKING:
    from shakeproof.model import Deployed
    from shakeproof.question import Image, RawImage

EXIT_NO = 1


@click.command()
@click.argument("model", required=False)
@click.argument("image", required=False)
@click.option("--image-shape", callback=numbers(3, whole=True), metavar="C,H,W",
              help="How a flat input, or one that leaves its size open, is a picture.")  # fmt: skip
@click.option("--output-name", metavar="NAME", help="The output that holds the class scores, of several.")
@click.option("--trial", type=click.FloatRange(0, 3600), default=3.0, show_default=True, metavar="SECONDS",
              help="How long to try what a profile of IMAGE, or of a random picture, costs; 0: none.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def supports(
    model: str | None,
    image: str | None,
    image_shape: tuple[int, int, int] | None,
    output_name: str | None,
    trial: float,
    as_json: bool,
) -> int:
    """Whether a network can be analysed, by which method, and what it costs; without one, what there is.

    It is loaded and compared with its runtime as `profile` does. The exit code is 1 where it cannot be analysed.
    """
    said = _everything() if model is None else _about(model, image, image_shape, output_name, trial)
    if as_json:
        say(json.dumps(said))
    elif model is None:
        for key, values in said.items():
            say(f"{key}: {', '.join(values)}")
    else:
        _show(said)
    return 0 if said.get("supported", True) else EXIT_NO


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


def _about(
    model: str, image: str | None, image_shape: tuple[int, int, int] | None, output_name: str | None, trial: float
) -> dict[str, Any]:
    """All that there is to say of one network, as `--json` prints it."""
    import_engines()
    from shakeproof.analysis import arithmetics
    from shakeproof.estimate import estimated
    from shakeproof.model import bending_neurons, load

    raw, own = _raw(image)
    try:
        network = load(model, image_shape=image_shape, output_name=output_name, picture=own)
    except (UnsupportedNetworkError, NetworkMismatchError) as error:
        return _refused(model, error, output_name, image_shape, raw, trial)
    picture: Image | None = raw.fitted(network.picture()) if raw is not None else None
    cost = estimated(network, picture, trial)
    return {
        "model": model,
        "supported": True,
        "reason": None,
        "method": "exact" if network.graph.is_piecewise_linear else "bounds",
        "arithmetic": arithmetics(network.graph, network.dropped),
        "pixels": ["real", "8bit"],
        "queries": ["perturbation", "vnnlib"] if network.classifies else ["vnnlib"],
        "operators": dict(network.operators),
        "neurons": dict(bending_neurons(network.graph)),
        "problems": [],
        "notes": list(network.notes),
        "estimate": None if cost is None else cost.to_json() | {"text": str(cost)},
        "enumeration": _enumerating(network, raw, trial),
    }


def _enumerating(network: Deployed, raw: RawImage | None, trial: float) -> dict[str, Any] | None:
    """What it takes to run every 8-bit picture of an image, if something is to be tried."""
    from shakeproof.estimate import enumeration_estimated

    return enumeration_estimated(network, raw.fitted(network.picture())) if trial and raw is not None else None


def _raw(image: str | None) -> tuple[RawImage | None, tuple[int, int, int] | None]:
    if image is None:
        return None, None
    from shakeproof.question import read_image

    raw = read_image(image)
    return raw, raw.own_shape()


def _refused(
    model: str,
    error: Exception,
    output_name: str | None,
    image_shape: tuple[int, int, int] | None,
    raw: RawImage | None,
    trial: float,
) -> dict[str, Any]:
    """Why a network is not analysed: operator by operator if some stand in the way, or in one reason."""
    from shakeproof.model import Reading, read

    reading: Reading | None
    picture = image_shape or (None if raw is None else raw.own_shape())
    network = _deployed(model, output_name, picture)
    try:
        reading = read(Path(model), output_name, picture)
    except UnsupportedNetworkError:
        reading = None
    problems = [] if reading is None else reading.problems
    return {
        "model": model,
        "supported": False,
        "reason": str(error).removeprefix(f"{model}: "),
        "method": None,
        "arithmetic": [],
        "pixels": [] if network is None else ["8bit"],
        "queries": [],
        "operators": {} if reading is None else dict(reading.operators),
        "neurons": {},
        "problems": [{"operator": p.operator, "node": p.node, "reason": p.reason} for p in problems],
        "notes": [] if reading is None else list(reading.notes),
        "estimate": None,
        "enumeration": None if network is None else _enumerating(network, raw, trial),
    }


def _deployed(model: str, output_name: str | None, picture: tuple[int, int, int] | None) -> Deployed | None:
    """The model as its runtime takes it all the same, if it does."""
    from shakeproof.model import load_deployed

    try:
        network = load_deployed(model, output_name=output_name, picture=picture)
    except ShakeproofError:
        return None
    return network if network.classifies else None


def _show(said: dict[str, Any]) -> None:
    from rich.text import Text  # names and reasons are shown as they are: brackets in them are no markup

    failing: dict[str, list[str]] = {}
    for problem in said["problems"]:
        failing.setdefault(problem["operator"], []).append(problem["reason"])
    console = terminal()
    table = plain_table("operator", "nodes", "supported")
    for name in sorted({*said["operators"], *failing}):
        nodes = max(said["operators"].get(name, 0), len(failing.get(name, ())))
        supported = Text(f"no: {failing[name][0]}", "red") if name in failing else Text("yes", "green")
        table.add_row(Text(name), str(nodes), supported)
    if table.row_count:
        console.print(table)
    for note in said["notes"]:
        console.print(Text(f"note: {note}", "dim"))
    if not said["supported"]:
        verdict = Text.assemble(f"{said['model']}: ", ("not supported", "red"), f"; {said['reason']}")
        console.print(verdict, soft_wrap=not console.is_terminal)
        if said["pixels"]:
            console.print("its runtime runs it: profile and verify with --pixels 8bit answer for 8-bit pictures")
        if said["enumeration"]:
            console.print(said["enumeration"]["text"])
        return
    bends = ", ".join(f"{count} {kind} neurons" for kind, count in said["neurons"].items()) or "no bends: affine"
    about = f"proofs about {' and '.join(said['arithmetic'])}; agrees with its runtime"
    verdict = Text.assemble(
        f"{said['model']}: ", ("supported", "green"), f"; method: {said['method']} ({bends}); {about}"
    )
    console.print(verdict, soft_wrap=not console.is_terminal)
    for cost in filter(None, (said["estimate"], said["enumeration"])):
        console.print(cost["text"])
