"""`export` and `demo`: queries for other verifiers, and the bundled demo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from shakeproof.cli.options import (
    FILE,
    LABEL,
    InputOptions,
    check_writable,
    import_engines,
    numbers,
    picture_options,
    with_options,
)
from shakeproof.cli.queries import load_pictures
from shakeproof.cli.terminal import progress_bar, say, terminal
from shakeproof.errors import strictly
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.exporting import Format


@click.command()
@click.argument("model")
@click.argument("image")
@with_options(
    click.option("-p", "--perturbation", required=True, metavar="PERTURBATION",
                 help="E.g. motion-blur:size=9,angle=45 (angle 0 is up)."),
    click.option("--strength", callback=numbers(), required=True, metavar="Z[,Z...]",
                 help="Ask about all strengths from 0 to Z; for a sum, one Z for all parts or one each."),
    click.option("-o", "--output", "folder", required=True, type=FILE, metavar="DIR",
                 help="Folder for the files; created if missing."),
    click.option("--format", "form", type=click.Choice(["augmented", "vnnlib", "perturbed"]), default="augmented",
                 show_default=True,
                 help="augmented: the network and the query. vnnlib: only the query, for another strength or label."
                 " perturbed: one file with image and perturbation, for shakeproof itself."),
    click.option("--rewrite", is_flag=True,
                 help="Replace max pooling by ReLUs and fold the normalisation, for verifiers that support neither."),
    LABEL,
)  # fmt: skip
@picture_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    model: str,
    image: str,
    perturbation: str,
    strength: Sequence[float],
    folder: Path,
    form: Format,
    rewrite: bool,
    inputs: InputOptions,
    as_json: bool,
) -> int:
    """Write a query for other verifiers (ONNX and VNN-LIB).

    The exported network has the perturbation in front: its inputs are strengths. MODEL and IMAGE as for `profile`.
    """
    from shakeproof.question import parse_path

    parsed = parse_path(perturbation)
    parsed.strengths(strength)
    import_engines()
    from shakeproof.analysis import readable
    from shakeproof.exporting import AUGMENTED, write_query
    from shakeproof.question import one_source, perturbed

    network, pictures = load_pictures(model, [one_source(image, inputs.array, inputs.labels)], inputs, kernels=[parsed])
    (query,) = perturbed(network, [*strictly(pictures)], parsed, inputs.label, tuple(strength))
    written = write_query(model, readable(network), query, folder, form, rewrite)
    if as_json:
        say(json.dumps(written.to_json()))
    elif form == "perturbed":
        say(f"wrote {written.query}, for shakeproof verify: {parsed} of an image of class {written.label}")
    else:
        files = " and ".join(str(path) for path in (written.augmented, written.query) if path is not None)
        pair = f"{folder / AUGMENTED} {written.query}"
        say(f"wrote {files}. Run any VNN-LIB verifier, e.g. Marabou {pair} (unsat: class {written.label} always wins)")
    return 0


@click.command()
@click.option("--output", type=FILE, default="demo-report.html", show_default=True, help="The report to write.")
@click.option("--files", "folder", type=FILE, metavar="DIR",
              help="Write the model, images and a campaign file to this folder; analyse nothing.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of the table.")
@click.option("--quiet", is_flag=True, help="Print no progress and no table.")
def demo(output: Path, folder: Path | None, as_json: bool, quiet: bool) -> int:
    """Certify the bundled traffic-sign classifier and write a report.

    With --files DIR, write its files to a folder instead, to try commands on.
    """
    from shakeproof import demo as bundle

    if folder is not None:
        return _write_demo_files(folder, quiet)
    import_engines()
    from shakeproof.analysis import answers
    from shakeproof.budget import no_progress
    from shakeproof.model import load
    from shakeproof.question import perturbed, read_image
    from shakeproof.report import DemoRows, gathered, html_page, safety_case
    from shakeproof.settings import Settings
    from shakeproof.store import Store, keep

    check_writable(output, (".html",))
    network = load(bundle.MODEL)
    pictures = [
        replace(read_image(str(path)).fitted(network.picture()), name=path.stem, label=label)
        for path, label in bundle.images()
    ]
    settings = Settings(whole_curve=True)
    console, shown = terminal(), not (as_json or quiet)
    rows = DemoRows([picture.name for picture in pictures], bundle.PERTURBATIONS, console.width)
    by_kernel = {text: perturbed(network, pictures, text) for text in bundle.PERTURBATIONS}
    asked = [[by_kernel[text][number] for text in table] for table in rows.tables for number in range(len(pictures))]
    queries = [query for row in asked for query in row]
    results = []
    with progress_bar(f"certifying {len(queries)} times", not shown, len(queries), console) as bar:
        coming = answers(network, queries, settings, bar.advance)
        for row in asked:
            for result in islice(coming, len(row)):
                results.append(result)
                if as_json:
                    say(json.dumps(result.to_json()))
            if shown:
                console.print(rows.drawn(results[-len(row) :]))
    if shown:
        console.print("critical strength for each image and perturbation; [green]safe[/]: none up to 1; angle 0 is up")
    with TemporaryDirectory() as place:
        kept = Path(place) / "demo.sqlite"
        keep(kept, "How much shake can a traffic-sign classifier take?", network, results, settings)
        with Store.open(kept) as store:
            reported = gathered(store, None, checks=False, advance=no_progress)
    write_whole({output: html_page(reported, safety_case(reported), reported.campaign.name).encode()})
    if shown:
        say(f"wrote {output}")
    return 0


def _write_demo_files(folder: Path, quiet: bool) -> int:
    from shakeproof import demo as bundle

    written = bundle.write_files(folder)
    if not quiet:
        say(f"wrote to {folder}:")
        for names, content in written.items():
            say(f"  {names}: {content}")
        enter = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
        say(f"next: {enter}shakeproof profile model.onnx stop.png -p box-blur:size=5")
    return 0
