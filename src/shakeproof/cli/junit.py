"""`--junit FILE`: a test case for each query, as build servers show them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from shakeproof.cli.queries import Known
from shakeproof.errors import Refusal
from shakeproof.files import write_whole

if TYPE_CHECKING:
    from shakeproof.cli.queries import Answer

# What becomes of a test case: undecided is not passed, nor is what could not be asked.
OUTCOMES = {"safe": None, "unsafe": "failure", "misclassified": "failure", "undecided": "error"}
NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class JunitCase:
    """How a query ended: as a kind of element with a type and a message, or well. `said` is the answer's JSON."""

    kind: str | None
    type: str
    message: str
    seconds: float = 0.0
    said: str = ""


class JunitFile:
    """The cases of all queries, skipped until they are heard of; `names` has an image and a perturbation for each."""

    def __init__(self, path: Path, model: str, names: Sequence[tuple[str, str]]) -> None:
        self.path, self.model, self.names = path, model, names
        self.cases = [JunitCase("skipped", "unanswered", "it was not answered: the run ended before")] * len(names)

    def answer(self, answer: Answer) -> None:
        result = answer.result
        self.cases[answer.number] = JunitCase(
            OUTCOMES[result.status], result.status, result.sentence, result.seconds, json.dumps(result.to_json())
        )

    def settle(self, numbers: range, found: Known | Refusal) -> None:
        """What was answered before, or cannot be asked."""
        if isinstance(found, Refusal):
            case = JunitCase("error", "refused", str(found.error))
        else:
            case = JunitCase(OUTCOMES[found.status], found.status, f"{found.status}, as answered before")
        for number in numbers:
            self.cases[number] = case

    def write(self) -> None:
        """The file, whole or not at all."""
        kinds = [case.kind for case in self.cases]
        counts = {f"{kind}s": kinds.count(kind) for kind in ("failure", "error")} | {"skipped": kinds.count("skipped")}
        seconds = sum(case.seconds for case in self.cases)
        suite = ElementTree.Element("testsuite", name="shakeproof", tests=str(len(kinds)), time=f"{seconds:.3f}")
        suite.attrib.update({name: str(count) for name, count in counts.items()})
        for (image, perturbation), case in zip(self.names, self.cases, strict=True):
            suite.append(self._element(image if perturbation == "-" else f"{image} {perturbation}", case))
        ElementTree.indent(suite)
        write_whole({self.path: ElementTree.tostring(suite, "utf-8", xml_declaration=True) + b"\n"})

    def _element(self, name: str, case: JunitCase) -> ElementTree.Element:
        element = ElementTree.Element(
            "testcase", classname=_in_xml(self.model), name=_in_xml(name), time=f"{case.seconds:.3f}"
        )
        if case.kind is not None:
            ElementTree.SubElement(element, case.kind, type=case.type, message=_in_xml(case.message))
        if case.said:
            ElementTree.SubElement(element, "system-out").text = case.said
        return element


def _in_xml(text: str) -> str:
    """What XML has no way to write, as file names may have it: control characters, bytes that are no text, by codes."""
    return NOT_IN_XML.sub(lambda found: f"\\x{found[0].encode('utf-8', 'surrogateescape')[0]:02x}", text)
