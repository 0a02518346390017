"""`report`: a store as a page for people, as evidence for programs, and as a bundle that can be checked elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from shakeproof.cli.options import check_writable
from shakeproof.cli.terminal import many_values, progress_bar, say
from shakeproof.files import write_whole


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="File to write [default: report.html or report.json].")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["html", "json"]), default="html", show_default=True,
              help="An HTML page, or only the evidence for a safety case.")  # fmt: skip
@click.option("--bundle", type=click.Path(path_type=Path), metavar="DIR",
              help="Write a new folder that others can check: page, evidence, store, certificates, networks, pixels,"
              " and a script that checks them.")  # fmt: skip
@click.option("--title", help="Title of the page [default: the campaign's name].")
@click.option(
    "--campaign", type=int, metavar="ID", help="Which campaign of the store [default: the last one that ran]."
)
@click.option("--model", metavar="PATTERN", help="Only models whose names match, e.g. '*256x4*'.")
@click.option("--perturbation", metavar="PATTERN", help="Only perturbations that match, e.g. 'motion-blur*'.")
@click.option(
    "--status",
    type=click.Choice(["safe", "unsafe", "misclassified", "undecided"]),
    help="Only answers with this status.",
)
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
    model: str | None,
    perturbation: str | None,
    status: str | None,
    checks: bool,
    quiet: bool,
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
            only = {"model": model, "perturbation": perturbation, "status": status}
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
