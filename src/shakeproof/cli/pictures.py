"""The files that `profile` and `verify` write beside their answers: plots and counterexamples."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from shakeproof.cli.options import PICTURES, check_writable
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.cli.queries import Answer
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


def write_pictures(answer: Answer, plot: Path | None, counterexample: Path | None) -> None:
    """What an answer has to show, as far as it is wanted."""
    from shakeproof.report import counterexample_figure, result_figure, save

    _, network, result = answer
    if plot is not None and result.query.path is not None:
        save(result_figure(result), plot)
    if counterexample is not None and result.counterexample is not None:
        if counterexample.suffix == ".npy":
            write_whole({counterexample: _array(network, result)})
        else:
            save(counterexample_figure(result), counterexample)


def numbered(path: Path | None, number: int, count: int) -> Path | None:
    """The file for a query: its number, from 1, is part of the name if there are several."""
    return path if path is None or count == 1 else path.with_stem(f"{path.stem}-{number + 1}")


def _array(network: Network, result: Result) -> bytes:
    """Exactly what the model was given, as an .npy file: in its input shape, normalised if its pictures are."""
    import numpy as np

    assert result.counterexample is not None
    data = BytesIO()
    np.save(data, network.prepared(result.counterexample.input[None])[0])
    return data.getvalue()
