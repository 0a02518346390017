"""The files that `profile` and `verify` write, and answers in VNN-COMP's format."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from shakeproof.cli.options import PICTURES, check_writable
from shakeproof.cli.queries import Known
from shakeproof.cli.terminal import say
from shakeproof.errors import InputError, Refusal, ShakeproofError
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.cli.queries import Answer
    from shakeproof.proof import Result
    from shakeproof.question import Specification
    from shakeproof.store import Judged

# What becomes of a test case: undecided is not passed, nor is what could not be asked.
OUTCOMES = {"safe": None, "unsafe": "failure", "misclassified": "failure", "undecided": "error"}
JUDGED = {"MET": None, "NOT MET": "failure", "NOT SHOWN": "error"}
NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Outputs:
    """The files that are asked for; those of several queries carry their numbers."""

    plot: Path | None
    counterexample: Path | None
    certificate: Path | None
    certificate_timeout: float | None
    output: Path | None
    resume: bool
    junit: Path | None
    results: Path | None = None

    def check(self, endings_of_output: Sequence[str]) -> None:
        """Check before the work that the output files can be written."""
        wanted = {
            self.plot: PICTURES,
            self.counterexample: (*PICTURES, ".npy"),
            self.certificate: (),
            self.output: endings_of_output,
            self.junit: (),
            self.results: (),
        }
        for path, endings in wanted.items():
            if path is not None:
                check_writable(path, endings)
        if self.resume and self.output is None:
            raise InputError("--resume continues a file; name it with --output FILE")
        if self.output is not None and not self.resume and self.output.exists() and self.output.stat().st_size:
            raise InputError(f"{self.output}: exists already; continue it with --resume, or choose another name")

    def write(self, answer: Answer, count: int, profile: bool) -> list[Path]:
        """Write the files for one of several answers; their names."""
        numbered_path = partial(numbered, number=answer.number, count=count)
        written = write_pictures(answer, numbered_path(self.plot), numbered_path(self.counterexample))
        if self.results is not None:
            write_results(self.results, answer.result)
            written.append(self.results)
        if (path := numbered_path(self.certificate)) is None:
            return written
        from shakeproof.certificate import CERTIFICATE_SECONDS, certificate

        seconds = self.certificate_timeout or CERTIFICATE_SECONDS
        try:
            write_whole({path: certificate(answer.network, answer.result, profile, seconds)})
        except ShakeproofError as problem:
            say(f"no certificate: {problem}", sys.stderr)
            return written
        return [*written, path]


def numbered(path: Path | None, number: int, count: int) -> Path | None:
    """The file for a query: its number, from 1, is part of the name if there are several."""
    return path if path is None or count == 1 else path.with_stem(f"{path.stem}-{number + 1}")


def write_pictures(answer: Answer, plot: Path | None, counterexample: Path | None) -> list[Path]:
    """Write the plot and the counterexample of an answer, if they are wanted and exist; their names."""
    from shakeproof import report  # which imports what draws when a figure is asked for

    _, network, result = answer
    written = []
    if plot is not None and result.query.path is not None:
        report.save(report.result_figure(result), plot)
        written.append(plot)
    if counterexample is None or result.counterexample is None:
        return written
    if counterexample.suffix != ".npy":
        report.save(report.counterexample_figure(result), counterexample)
    else:
        import numpy as np

        data = BytesIO()  # exactly what the model was given: in its input shape, normalised if its pictures are
        np.save(data, network.prepared(result.counterexample.input[None])[0])
        write_whole({counterexample: data.getvalue()})
    return [*written, counterexample]


# -- is there a counterexample? ---------------------------------------------------------------------------------------


def write_results(path: Path, result: Result) -> None:
    """VNN-COMP's format: the answer, and for `sat` every input and output."""
    lines = [_satisfiability(result, "timeout")]
    counterexample = result.counterexample
    if lines == ["sat"] and counterexample is not None:
        sides = (("X", counterexample.input.flatten()), ("Y", counterexample.outputs.flatten()))
        pairs = "\n ".join(f"({name}_{i} {float(value)!r})" for name, side in sides for i, value in enumerate(side))
        lines.append(f"({pairs})")
    write_whole({path: ("\n".join(lines) + "\n").encode()})


def standard_lines(specification: Specification, result: Result) -> str:
    """VNN-LIB 2.0's format: one word and, after `sat`, each tensor's declaration and its numbers, one per line."""
    lines = [_satisfiability(result, "timed-out")]
    counterexample = result.counterexample
    if lines == ["sat"] and counterexample is not None:
        sizes = f"X real [{counterexample.input.size}]", f"Y real [{counterexample.outputs.size}]"
        for declared, side in zip(
            specification.tensors or sizes, (counterexample.input, counterexample.outputs), strict=True
        ):
            lines += [declared, *(repr(float(value)) for value in side.flatten())]
    return "\n".join(lines)


def _satisfiability(result: Result, late: str) -> str:
    """The answer in the words of satisfiability."""
    answers = {"safe": "unsat", "unsafe": "sat", "undecided": late if result.reason == "timeout" else "unknown"}
    return answers[result.status.value]


# -- test cases -------------------------------------------------------------------------------------------------------


class JunitFile:
    """`--junit FILE`: a test case for each query, or requirement, as build servers show them.

    All are skipped until they are heard of; `cases` has a model and a name for each.
    """

    def __init__(self, path: Path, cases: Iterable[tuple[str, str]]) -> None:
        self.path, self.suite, self.seconds = path, ElementTree.Element("testsuite", name="shakeproof"), 0.0
        for model, name in cases:
            about = {"classname": _in_xml(model), "name": _in_xml(name), "time": "0.000"}
            case = ElementTree.SubElement(self.suite, "testcase", about)
            message = "not answered: the run ended first"
            ElementTree.SubElement(case, "skipped", type="unanswered", message=message)

    def answer(self, answer: Answer) -> None:
        result = answer.result
        self.seconds += result.seconds
        case = self._close(answer.number, OUTCOMES[result.status], result.status, result.sentence)
        case.set("time", f"{result.seconds:.3f}")
        ElementTree.SubElement(case, "system-out").text = json.dumps(result.to_json())

    def judge(self, number: int, judged: Judged) -> None:
        """Whether a requirement is met, and the numbers that decide it."""
        case = self._close(number, JUDGED[judged.outcome], judged.outcome, judged.sentence)
        ElementTree.SubElement(case, "system-out").text = json.dumps(judged.to_json())

    def settle(self, numbers: range, outcome: Known | Refusal) -> None:
        """Record a query that was answered before, or was refused."""
        for number in numbers:
            if isinstance(outcome, Refusal):
                self._close(number, "error", "refused", str(outcome.error))
            else:
                status = outcome.status
                self._close(number, OUTCOMES[status], status, f"{status} (answered in an earlier run)")

    def _close(self, number: int, kind: str | None, type_: str, message: str) -> ElementTree.Element:
        """Write how a query ended: an element of this kind with a type and a message, or none for success."""
        case = self.suite[number]
        del case[:]
        if kind is not None:
            ElementTree.SubElement(case, kind, type=type_, message=_in_xml(message))
        return case

    def write(self) -> None:
        """The file, whole or not at all."""
        self.suite.attrib |= {"tests": str(len(self.suite)), "time": f"{self.seconds:.3f}"}
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            self.suite.set(attribute, str(len(self.suite.findall(f"*/{kind}"))))
        ElementTree.indent(self.suite)
        write_whole({self.path: ElementTree.tostring(self.suite, "utf-8", xml_declaration=True) + b"\n"})


def _in_xml(text: str) -> str:
    """Escape what XML cannot hold but file names may: control characters and undecodable bytes."""
    return NOT_IN_XML.sub(lambda match: f"\\x{match[0].encode('utf-8', 'surrogateescape')[0]:02x}", text)
