"""The files that `profile` and `verify` write beside their answers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shakeproof.cli.certifying import write_certificate
from shakeproof.cli.options import PICTURES, check_writable
from shakeproof.cli.recording import ENDINGS
from shakeproof.cli.satisfiability import write_results
from shakeproof.errors import InputError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.cli.queries import Answer
    from shakeproof.model import Deployed
    from shakeproof.proof import Result


@dataclass(frozen=True)
class Outputs:
    """The files that are asked for beside the answers; those of several queries carry their numbers."""

    plot: Path | None
    counterexample: Path | None
    certificate: Path | None
    output: Path | None
    resume: bool
    junit: Path | None
    certificate_timeout: float | None = None
    results: Path | None = None

    @staticmethod
    def taken_from(options: dict[str, Any]) -> Outputs:
        """Those among the options of a command, which keeps the others."""
        return Outputs(**{field.name: options.pop(field.name) for field in fields(Outputs) if field.name in options})

    def check(self) -> None:
        """Find out before the work whether what is asked for can be written."""
        wanted = {
            self.plot: PICTURES,
            self.counterexample: (*PICTURES, ".npy"),
            self.certificate: (),
            self.output: ENDINGS,
            self.junit: (),
            self.results: (),
        }
        for path, endings in wanted.items():
            if path is not None:
                check_writable(path, endings)
        if self.resume and self.output is None:
            raise InputError("--resume continues what --output FILE names; say which file")
        if self.output is not None and not self.resume and self.output.exists() and self.output.stat().st_size:
            raise InputError(f"{self.output}: is there already; continue it with --resume, or choose another name")

    def write(self, answer: Answer, count: int, profile: bool) -> None:
        """What is asked for of one of several answers."""
        own = partial(numbered, number=answer.number, count=count)
        write_pictures(answer, own(self.plot), own(self.counterexample))
        if self.results is not None:
            write_results(self.results, answer.result)
        write_certificate(answer, own(self.certificate), profile, self.certificate_timeout)


def write_pictures(answer: Answer, plot: Path | None, counterexample: Path | None) -> None:
    """What an answer has to show, as far as it is wanted."""
    from shakeproof import report  # which imports what draws when a figure is asked for

    _, network, result = answer
    if plot is not None and result.query.path is not None:
        report.save(report.result_figure(result), plot)
    if counterexample is not None and result.counterexample is not None:
        if counterexample.suffix == ".npy":
            write_whole({counterexample: _array(network, result)})
        else:
            report.save(report.counterexample_figure(result), counterexample)


def numbered(path: Path | None, number: int, count: int) -> Path | None:
    """The file for a query: its number, from 1, is part of the name if there are several."""
    return path if path is None or count == 1 else path.with_stem(f"{path.stem}-{number + 1}")


def _array(network: Deployed, result: Result) -> bytes:
    """Exactly what the model was given, as an .npy file: in its input shape, normalised if its pictures are."""
    import numpy as np

    assert result.counterexample is not None
    data = BytesIO()
    np.save(data, network.prepared(result.counterexample.input[None])[0])
    return data.getvalue()
