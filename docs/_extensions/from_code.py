"""Tables that the code writes itself: operators and their methods, names of both formats, reasons, statuses, errors.

Each becomes a Markdown file in docs/_generated, which a page includes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from shakeproof import Reason, errors, operators
from shakeproof.graph import STRAIGHT
from shakeproof.operators import Operator


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [[*heading], *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def first_sentence(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def kinds() -> list[type[Operator]]:
    named = (getattr(operators, name) for name in operators.__all__)
    return [
        kind for kind in named if inspect.isclass(kind) and issubclass(kind, Operator) and not inspect.isabstract(kind)
    ]


def method(kind: type[Operator]) -> str:
    return "exact, bounds" if issubclass(kind, STRAIGHT) else "bounds"


def operator_kinds() -> str:
    rows = [(f"`{kind.__name__}`", first_sentence(kind), method(kind)) for kind in kinds()]
    return table(("operator", "what it computes", "methods"), sorted(rows))


def names_of(room: str) -> Callable[[], str]:
    """The operators that a reader knows; where it is one function, which methods it leaves."""

    def said() -> str:
        rules = import_module(f"shakeproof.model.{room}").OPERATORS
        return (
            ", ".join(f"`{name}`{_smooth(rule)}" for name, rule in sorted(rules.items(), key=lambda x: x[0].lower()))
            + "\n"
        )

    return said


def _smooth(rule: Any) -> str:
    """A star where a rule is one smooth function of every entry."""
    given = rule.args[0] if isinstance(rule, partial) and rule.args else None
    return r"\*" if isinstance(given, Operator) and method(type(given)) == "bounds" else ""


def reasons() -> str:
    return table(("`reason`", "what it means"), ((f"`{reason.value}`", reason.sentence) for reason in Reason))


def error_kinds() -> str:
    found = (
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ShakeproofError)
    )
    return table(("error", "when"), ((f"`{kind.__name__}`", first_sentence(kind)) for kind in found))


TABLES: dict[str, Callable[[], str]] = {
    "operators": operator_kinds,
    "onnx": names_of("onnx_reader"),
    "reasons": reasons,
    "errors": error_kinds,
}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    for name, said in TABLES.items():
        (folder / f"{name}.md").write_text(said())


def as_plain(app: Sphinx, *about: Any) -> None:
    """Docstrings are prose: a star in a shape or a file name is no emphasis, FILE.npz@INDEX no address."""
    lines: list[str] = about[-1]
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = (re.sub(r"[*@]", r"\\\g<0>", outside) for outside in parts[::2])
        lines[number] = "`".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("autodoc-process-docstring", as_plain)
    app.connect("sphinx-click-process-description", as_plain)
    return {"parallel_read_safe": True}
