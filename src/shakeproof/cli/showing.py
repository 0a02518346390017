"""`table` and `results`: what a store holds, for people and for programs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shakeproof.cli.options import check_writable
from shakeproof.cli.terminal import complain, many_values, plain_table, say, terminal
from shakeproof.errors import InputError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.store import PaperTable, StoredCampaign

STATUSES = ("safe", "unsafe", "undecided", "misclassified")
HEADING = "perturbation, up to"


def _choice(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--campaign", type=int, metavar="N", help="Which of several campaigns, by its number [the last]."
    )(command)


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["text", "csv", "json", "markdown", "latex"]), default="text",
              show_default=True, help="How it is printed.")  # fmt: skip
@click.option("--by-model", is_flag=True, help="A row for each model, too [all together].")
@_choice
def table(store: Path, kind: str, by_model: bool, campaign: int | None) -> int:
    """How many images are verified, unsafe, or neither (v/us/to), for each perturbation and strength.

    Each cell has the seconds that its profiles took together. One profile answers all strengths, so these are the same
    along a row. What is misclassified counts as unsafe, what ended in an error as neither.
    """
    from shakeproof.store import Store, csv_lines, paper_table

    with Store.open(store) as opened, many_values():
        found = opened.campaign(campaign)
        made = paper_table(opened, found.id, by_model)
    if kind == "csv":
        cells = list(made.cells())
        rows = [cell.values() for cell in cells]
        say("".join(csv_lines([cells[0], *rows] if cells else [])).rstrip("\n"))
    elif kind == "json":
        say(json.dumps({"campaign": found.name, "strengths": made.strengths, "cells": [*made.cells()]}))
    elif kind == "text":
        _show(made, found)
    else:
        say(_markdown(made) if kind == "markdown" else _latex(made))
    if found.failed or found.missing:
        complain(f"{found.failed} queries ended in an error, {found.missing} of {found.asked} are not answered yet")
    return 0


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(["csv", "jsonl", "parquet"]), default="jsonl", show_default=True,
              help="JSONL has the lines of --json; Parquet needs -o, and pyarrow.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to a file [print].")
@click.option("--model", metavar="PATTERN", help="Only models whose names match a pattern, as of files.")
@click.option("--perturbation", metavar="PATTERN", help="Only perturbations whose texts match one.")
@click.option("--status", type=click.Choice(STATUSES), help="Only answers like this.")
@_choice
def results(
    store: Path,
    kind: str,
    output: Path | None,
    model: str | None,
    perturbation: str | None,
    status: str | None,
    campaign: int | None,
) -> int:
    """All answers of a campaign, one a row."""
    from shakeproof.store import STORED_COLUMNS, Store, csv_lines, results_line, stored_row

    if output is not None:
        check_writable(output, ())
    elif kind == "parquet":
        raise InputError("Parquet is no text; say where to write it, with -o FILE")
    with Store.open(store) as opened, many_values():
        found = opened.profiles(campaign, model, perturbation, status)
        if kind == "jsonl":
            lines = (f"{json.dumps(results_line(profile))}\n" for profile in found)
            _put(lines, output)
        elif kind == "csv":
            _put(csv_lines(chain([STORED_COLUMNS], map(stored_row, found))), output)
        elif output is not None:
            write_whole({output: _parquet(STORED_COLUMNS, map(stored_row, found))})
    return 0


def _put(texts: Iterable[str], output: Path | None) -> None:
    if output is not None:
        write_whole({output: "".join(texts).encode(errors="surrogateescape")})
        return
    sys.stdout.writelines(texts)
    sys.stdout.flush()


def _parquet(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow; pip install 'shakeproof[parquet]'") from None
    plain = [[json.dumps(value) if isinstance(value, (list, dict)) else value for value in row] for row in rows]
    values = zip(*plain, strict=True) if plain else [[] for _ in columns]
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(zip(columns, map(list, values), strict=True))), data)
    return data.getvalue()


def _rows(made: PaperTable) -> list[list[str]]:
    several = any(model for model, _ in made.rows)
    return [
        [
            *([Path(model).name] if several else []),
            perturbation,
            *(f"{cell} {cell.seconds:.2f}" for cell in row.values()),
        ]
        for (model, perturbation), row in made.rows.items()
    ]


def _headings(made: PaperTable) -> list[str]:
    several = any(model for model, _ in made.rows)
    return [*(["model"] if several else []), HEADING, *(f"{strength:g}" for strength in made.strengths)]


def _show(made: PaperTable, found: StoredCampaign) -> None:

    drawn = plain_table(*_headings(made))
    for row in _rows(made):
        drawn.add_row(*row)
    console = terminal()
    console.print(drawn)
    console.print(f"{found.name}: verified/unsafe/neither and seconds, {found.answered} of {found.asked} queries")


def _markdown(made: PaperTable) -> str:
    lines = [_headings(made), ["---"] * len(_headings(made)), *_rows(made)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex(made: PaperTable) -> str:
    headings, rows = _headings(made), _rows(made)
    first = len(headings) - len(made.strengths)
    special = str.maketrans({char: f"\\{char}" for char in "_%&#$"})
    body = [" & ".join(word.translate(special) for word in line) + r" \\" for line in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{'l' * first}{'r' * len(made.strengths)}}}",
            r"\hline",
            " & ".join(headings) + r" \\",
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
        ]
    )
