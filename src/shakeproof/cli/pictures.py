"""The files that `profile` and `verify` write beside their answers: plots and counterexamples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof.cli.options import PICTURES, check_writable
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.network import Network
    from shakeproof.result import Result


def check_outputs(
    plot: Path | None, counterexample: Path | None, results: Path | None, certificate: Path | None = None
) -> None:
    """Find out before the work whether what is asked for can be written."""
    asked = ((plot, PICTURES), (counterexample, (*PICTURES, ".npy")), (results, ()), (certificate, ()))
    for path, endings in asked:
        if path is not None:
            check_writable(path, endings)


def write_pictures(answers: Sequence[tuple[Network, Result]], plot: Path | None, counterexample: Path | None) -> None:
    """A file for each result that has something to show, numbered if there are several; each with its network."""
    from shakeproof.report import counterexample_figure, result_figure, save

    if plot is not None:
        for path, (_, result) in numbered(plot, [own for own in answers if own[1].query.path is not None]):
            save(result_figure(result), path)
    if counterexample is not None:
        shown = [own for own in answers if own[1].counterexample is not None]
        for path, (network, result) in numbered(counterexample, shown):
            if path.suffix == ".npy":
                write_whole({path: _array(network, result)})
            else:
                save(counterexample_figure(result), path)


def numbered(path: Path, answers: Sequence[tuple[Network, Result]]) -> Iterator[tuple[Path, tuple[Network, Result]]]:
    for number, own in enumerate(answers, start=1):
        yield (path if len(answers) == 1 else path.with_stem(f"{path.stem}-{number}")), own


def _array(network: Network, result: Result) -> bytes:
    """Exactly what the model was given, as an .npy file: in its input shape, normalised if its pictures are."""
    import numpy as np

    assert result.counterexample is not None
    data = BytesIO()
    np.save(data, network.prepared(result.counterexample.input[None])[0])
    return data.getvalue()
