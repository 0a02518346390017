"""`kernels` and `supports`: what there is, and what can be analysed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import check_writable, numbers
from shakeproof.cli.terminal import terminal
from shakeproof.errors import InputError

if TYPE_CHECKING:
    from shakeproof.network import Network

EXIT_NO = 1


@click.command()
@click.argument("perturbation", required=False)
@click.option(
    "--strength",
    callback=numbers(),
    default="1",
    show_default=True,
    help="One for all parts, or one each, e.g. 0.2,0.3.",
)
@click.option("--png", type=click.Path(path_type=Path), help="Write the kernel and its effect on an image.")
@click.option("--image", help="The image to show the effect on [a bundled one].")
def kernels(perturbation: str | None, strength: Sequence[float], png: Path | None, image: str | None) -> int:
    """List the families of perturbations, or show the kernel of one, or of several joined by +."""
    from shakeproof.perturbation import FAMILIES, MOST_PARTS, PADDINGS, parse_path

    if perturbation is None:
        from shakeproof.report import plain_table

        table = plain_table("family", "what it does at strength 1", "for example")
        for name, family in FAMILIES.items():
            table.add_row(name, family.summary, family.example)
        console = terminal()
        console.print(table)
        console.print(f"Kernels take padding={'|'.join(PADDINGS)} (default reflect); all take clip=LOW..HIGH (off).")
        console.print(f"Up to {MOST_PARTS} add up, a strength each: motion-blur:size=5,angle=0+brightness:max=0.2")
        return 0
    if png is not None:
        check_writable(png)
    shown = parse_path(perturbation)
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
        from shakeproof.report import kernel_figure, save
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


@click.command()
@click.argument("model", required=False)
@click.option("--json", "as_json", is_flag=True)
def supports(model: str | None, as_json: bool) -> int:
    """Whether a network can be analysed, operator by operator, and by which method; without one, what there is."""
    from shakeproof.analysis import arithmetics
    from shakeproof.network import OPERATORS, Graph, load, read

    if model is None:
        said: dict[str, Any] = {
            "arithmetic": ["real", "float32"],
            "methods": ["exact", "bounds"],
            "formats": [".onnx", ".onnx.gz", ".pt2"],
            "queries": ["perturbation", "vnnlib 1.0", "vnnlib 2.0"],
            "operators": sorted(OPERATORS),
        }
        if as_json:
            click.echo(json.dumps(said))
        else:
            for key, values in said.items():
                click.echo(f"{key}: {', '.join(values)}")
        return 0

    def method(graph: Graph) -> str:
        return "exact" if graph.is_piecewise_linear else "bounds"

    reading = read(Path(model))
    supported = reading.graph is not None
    if as_json:
        problems = [{"operator": p.operator, "node": p.node, "reason": p.reason} for p in reading.problems]
        click.echo(json.dumps({"model": model, "supported": supported,
                               "method": method(reading.graph) if reading.graph else None,
                               "arithmetic": arithmetics(reading.graph, reading.dropped) if reading.graph else [],
                               "operators": dict(reading.operators), "problems": problems}))  # fmt: skip
        return 0 if supported else EXIT_NO
    from shakeproof.report import plain_table

    table = plain_table("operator", "nodes", "supported")
    failing: dict[str, list[str]] = {}
    for problem in reading.problems:
        failing.setdefault(problem.operator, []).append(problem.reason)
    for name in sorted({*reading.operators, *failing}):
        nodes = max(reading.operators.get(name, 0), len(failing.get(name, ())))
        reasons = next(filter(None, failing.get(name, ())), "not supported")
        table.add_row(name, str(nodes), f"[red]no: {reasons}[/]" if name in failing else "[green]yes[/]")
    console = terminal()
    console.print(table)
    if not supported:
        console.print(f"{model}: [red]not supported[/]; {len(reading.problems)} nodes stand in the way")
    else:
        network = load(model)
        for note in network.notes:
            console.print(f"[dim]note: {note}[/]")
        why = f"{method(network.graph)} ({_bending(network)})"
        about = " and ".join(arithmetics(network.graph, network.dropped))
        console.print(f"{model}: [green]supported[/]; method: {why}; proofs about {about}; agrees with its runtime")
    return 0 if supported else EXIT_NO


def _bending(network: Network) -> str:
    from shakeproof.network import bending_neurons

    counts = bending_neurons(network.graph)
    return ", ".join(f"{count} {kind} neurons" for kind, count in counts.items()) or "no bends: an affine network"
