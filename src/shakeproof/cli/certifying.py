"""`check`, and the certificates that `profile` and `verify` write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shakeproof.cli.supporting import EXIT_NO
from shakeproof.cli.terminal import progress_bar, say
from shakeproof.errors import ShakeproofError
from shakeproof.files import check_regular, write_whole

if TYPE_CHECKING:
    from shakeproof.cli.queries import Answer


@click.command()
@click.argument("certificates", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", required=True, type=click.Path(path_type=Path), help="The .onnx or .onnx.gz file.")
@click.option("--image", type=click.Path(path_type=Path),
              help="Compare with this image: .npy and .npz@INDEX by pixels, others by their digest.")  # fmt: skip
@click.option("--effort", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="Multiplies the work and memory that a check may take.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def check(certificates: Sequence[Path], model: Path, image: Path | None, effort: float, as_json: bool) -> int:
    """Check certificates anew, from the model's own bytes, by a program that shares nothing with the prover.

    The same as python -m shakeproof.checker, which needs numpy only. Exit code 0: all hold, 1: one does not.
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
            said = {"certificate": str(path), "accepted": outcome.accepted, "sentence": outcome.sentence}
            word = "holds" if outcome.accepted else "does not hold"
            say(json.dumps(said | outcome.details) if as_json else f"{path}: {word}: {outcome.sentence}")
            bar.advance(number + 1)
    return 0 if accepted else EXIT_NO


def write_certificate(answer: Answer, path: Path | None, profile: bool, timeout: float | None) -> None:
    """What can be checked of an answer that was shown, if it is wanted; a line on stderr if that is nothing."""
    if path is None:
        return
    from shakeproof.certificate import CERTIFICATE_SECONDS, certificate

    try:
        made = certificate(answer.network, answer.result, profile, timeout or CERTIFICATE_SECONDS)
    except ShakeproofError as problem:
        say(f"no certificate: {problem}", sys.stderr)
        return
    write_whole({path: made})
