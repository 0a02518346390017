"""`table`, `results` and `report`: what a store holds, for people, for programs, and to be checked elsewhere."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import FILE, check_writable, with_options
from shakeproof.cli.terminal import complain, many_values, plain_table, progress_bar, say, say_judged, terminal
from shakeproof.errors import InputError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.store import PaperTable, StoredCampaign

CAMPAIGN = click.option(
    "--campaign", type=int, metavar="ID", help="Which campaign of the store [default: the last one that ran]."
)
# Which of a campaign's answers.
ONLY = (
    click.option("--model", metavar="PATTERN", help="Only models whose names match, e.g. '*256x4*'."),
    click.option("--perturbation", metavar="PATTERN", help="Only perturbations that match, e.g. 'motion-blur*'."),
    click.option("--status", type=click.Choice(["safe", "unsafe", "undecided", "misclassified"]),
                 help="Only answers with this status."),
)  # fmt: skip


@click.command()
@click.argument("store", type=FILE)
@click.option("--format", "kind", type=click.Choice(["text", "csv", "json", "markdown", "latex"]), default="text",
              show_default=True, help="Output format.")  # fmt: skip
@click.option("--by-model", is_flag=True, help="Print a row for each model [default: all models together].")
@CAMPAIGN
def table(store: Path, kind: str, by_model: bool, campaign: int | None) -> int:
    """Count verified, unsafe and undecided images of a campaign.

    One row for each perturbation, one column for each strength. Misclassified images count as unsafe, and have a column
    of their own; errors count as undecided. The seconds are for the whole row: one profile answers all strengths.

    Above it, whether each requirement of the campaign is met; as JSON, too.
    """
    from shakeproof.store import Store, csv_lines, judged, paper_table

    with Store.open(store) as opened, many_values():
        chosen = opened.campaign(campaign)
        counts, found = paper_table(opened, chosen.id, by_model), judged(opened, chosen.id)
    if kind == "csv":
        cells = list(counts.cells())
        rows = [[*cells[0]], *([*cell.values()] for cell in cells)] if cells else []
        say("".join(csv_lines(rows)).rstrip("\n"))
    elif kind == "json":
        requirements = {"requirements": [one.to_json() for one in found]} if found else {}
        about = {"campaign": chosen.name, "strengths": counts.strengths, **requirements}
        say(json.dumps({**about, "cells": [*counts.cells()]}))
    else:
        if kind == "text":
            say_judged(found)
        _show(counts, chosen, kind)
    if chosen.failed or chosen.missing:
        complain(f"{chosen.failed} queries ended in an error; {chosen.missing} of {chosen.asked} not answered yet")
    return 0


@click.command()
@click.argument("store", type=FILE)
@click.option("--format", "kind", type=click.Choice(["csv", "jsonl", "parquet"]), default="jsonl", show_default=True,
              help="jsonl: the lines of --json. parquet requires -o and pyarrow.")  # fmt: skip
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write to a file [default: print].")
@with_options(*ONLY, CAMPAIGN)
def results(store: Path, kind: str, output: Path | None, campaign: int | None, **only: str | None) -> int:
    """Print or write all answers of a campaign, one per row."""
    from shakeproof.store import STORED_COLUMNS, Store, csv_lines

    if output is not None:
        check_writable(output, ())
    elif kind == "parquet":
        raise InputError("Parquet is binary; name a file with -o FILE")
    with Store.open(store) as opened, many_values():
        if kind == "parquet" and output is not None:
            write_whole({output: _parquet(STORED_COLUMNS, opened.rows(campaign, **only))})
            say(f"wrote {output}")
            return 0
        rows = chain([STORED_COLUMNS], opened.rows(campaign, **only))
        texts = opened.lines(campaign, **only) if kind == "jsonl" else csv_lines(rows)
        if output is not None:
            write_whole({output: "".join(texts).encode(errors="surrogateescape")})
            say(f"wrote {output}")
        else:
            sys.stdout.writelines(texts)
            sys.stdout.flush()
    return 0


def _parquet(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow; pip install 'shakeproof[parquet]'") from None
    table = dict(zip(columns, [*map(list, zip(*rows, strict=True))] or [[] for _ in columns], strict=True))
    truths = {"true": True, "false": False}
    table["counterexample_replayed"] = [*map(truths.get, table["counterexample_replayed"])]
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(table), data)
    return data.getvalue()


def _show(counts: PaperTable, campaign: StoredCampaign, kind: str) -> None:
    """The table as text, in Markdown or in LaTeX; models have a column if there are rows of their own for them."""
    by_model = any(model for model, _ in counts.rows)
    strengths = [f"{strength:g}" for strength in counts.strengths]
    headings = [*(["model"] * by_model), "perturbation, up to", *strengths, "misclassified", "seconds"]
    rows = [
        [*([Path(model).name] * by_model), perturbation, *row.cells(), str(row.misclassified), f"{row.seconds:.2f}"]
        for (model, perturbation), row in counts.rows.items()
    ]
    if kind == "markdown":
        for line in (headings, ["---"] * len(headings), *rows):
            say(f"| {' | '.join(line)} |")
    elif kind == "latex":
        special = str.maketrans({char: f"\\{char}" for char in "_%&#$"})
        say(rf"\begin{{tabular}}{{{'l' * (1 + by_model)}{'r' * (len(counts.strengths) + 2)}}}")
        say("\n".join([r"\hline", " & ".join(headings) + r" \\", r"\hline"]))
        for row in rows:
            say(" & ".join(word.translate(special) for word in row) + r" \\")
        say("\n".join([r"\hline", r"\end{tabular}"]))
    else:
        drawn = plain_table(*headings)
        for row in rows:
            drawn.add_row(*row)
        console, has_angles = terminal(), any("angle=" in perturbation for _, perturbation in counts.rows)
        console.print(drawn)
        console.print(
            f"{campaign.name}: verified/unsafe/undecided; {campaign.answered} of {campaign.asked} queries answered."
            " Misclassified images count as unsafe." + " Angle 0 is up." * has_angles
        )


@click.command()
@click.argument("store", type=FILE)
@click.option("-o", "--output", type=FILE, metavar="FILE",
              help="File to write [default: report.html or report.json].")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["html", "json"]), default="html", show_default=True,
              help="An HTML page, or only the evidence for a safety case.")  # fmt: skip
@click.option("--bundle", type=FILE, metavar="DIR",
              help="Write a new folder that others can check: page, evidence, store, certificates, networks, pixels,"
              " and a script that checks them.")  # fmt: skip
@click.option("--title", help="Title of the page [default: the campaign's name].")
@with_options(CAMPAIGN, *ONLY)
@click.option("--check/--no-check", "checks", default=True, show_default=True,
              help="Run the independent checker on every certificate.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Print nothing.")
def report(
    store: Path,
    output: Path | None,
    form: str,
    bundle: Path | None,
    title: str | None,
    campaign: int | None,
    checks: bool,
    quiet: bool,
    **only: str | None,
) -> int:
    """Write a campaign's report as one HTML page.

    STORE is the file that `shakeproof campaign` wrote. The page needs no other file; its last part is the evidence for
    a safety case. Exit code 1: the checker rejected a certificate.
    """
    from shakeproof.report import check_new, gathered, html_page, safety_case, write_bundle, written
    from shakeproof.store import Store

    output = output or (None if bundle else Path(f"report.{form}"))
    if output is not None:
        check_writable(output, (f".{form}",))
    if bundle is not None:
        check_new(bundle)
    with Store.open(store) as opened, many_values():
        with progress_bar("checking certificates", quiet or not checks) as bar:
            contents = gathered(opened, campaign, checks, bar.advance, **only)
        evidence = safety_case(contents)
        text = html_page(contents, evidence, title or contents.campaign.name) if form == "html" or bundle else ""
        if output is not None:
            write_whole({output: (text if form == "html" else written(evidence)).encode()})
        if bundle is not None:
            write_bundle(bundle, opened, contents, evidence, text)
    refused = sum(outcome.refused for outcome in contents.checks.values())
    if not quiet:
        held = sum(outcome.accepted for outcome in contents.checks.values())
        less = len(contents.checks) - held - refused
        outcome_words = f"; {held} of {len(contents.checks)} certificates hold" if contents.checks else ""
        outcome_words += f", {less} prove less than is claimed" if less else ""
        say(f"wrote {' and '.join(str(path) for path in (output, bundle) if path is not None)}{outcome_words}")
    return 1 if refused else 0
