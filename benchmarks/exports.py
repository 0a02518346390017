"""Do everyday classifiers work? Small models of many kinds, as common exporters write them, each profiled and sampled.

    python benchmarks/exports.py make FOLDER [--only TEXT]      # in each environment that has some of the exporters
    python benchmarks/exports.py table FOLDER [--only TEXT] [--csv FILE]
    python benchmarks/exports.py compare BEFORE.csv AFTER.csv   # as a table in Markdown, models by exporters

`make` writes MODEL@EXPORTER.onnx and, as MODEL@EXPORTER.npy, a picture whose class changes as it is blurred,
if one is found. `table` asks `shakeproof profile` about each, and compares its answer with the file's own runtime
(onnxruntime) at 301 strengths. The exit code is 1 if any answer is contradicted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.group()
def main() -> None:
    """Models of many kinds from many exporters: make them, then ask about them."""


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only files whose name holds this text.")
@click.option("--again", is_flag=True, help="Also those that are there already.")
def make(folder: Path, only: str, again: bool) -> None:
    """Write the files that the exporters installed here can write."""
    from export_suite.making import make_all

    folder.mkdir(parents=True, exist_ok=True)
    for line in make_all(folder, only, again):
        click.echo(line)


@main.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", default="", help="Only files whose name holds this text.")
@click.option("--csv", "written", type=click.Path(path_type=Path), help="Write the rows to this file.")
@click.option("--timeout", default=20.0, show_default=True, help="Seconds for a query.")
def table(folder: Path, only: str, written: Path | None, timeout: float) -> None:
    """Ask about every file, and compare."""
    from export_suite.asking import rows, summary, write_csv

    found = []
    for row in rows(folder, only, timeout):
        click.echo(row.line())
        found.append(row)
        if written is not None:
            write_csv(written, found)
    click.echo(summary(found))
    sys.exit(any(row.contradicted for row in found))


@main.command()
@click.argument("before", type=click.Path(exists=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, path_type=Path))
def compare(before: Path, after: Path) -> None:
    """What two tables say, side by side."""
    from export_suite.asking import read_csv, summary
    from export_suite.comparing import markdown

    old, new = read_csv(before), read_csv(after)
    click.echo(f"before: {summary(old)}\nafter: {summary(new)}\n\n{markdown(old, new)}")


if __name__ == "__main__":
    main()
