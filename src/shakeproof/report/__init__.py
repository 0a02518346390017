"""Pictures, tables and pages. Nothing here decides anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.report.page import write_page
    from shakeproof.report.plot import counterexample_figure, kernel_figure, margin_figure, result_figure, save
    from shakeproof.report.tables import demo_table, explanations, label_notes, plain_table, results_table

# matplotlib takes half a second to import, and a table does not need it.
_HOMES = {
    "page": ("write_page",),
    "plot": ("counterexample_figure", "kernel_figure", "margin_figure", "result_figure", "save"),
    "tables": ("demo_table", "explanations", "label_notes", "plain_table", "results_table"),
}

__all__ = [
    "counterexample_figure",
    "demo_table",
    "explanations",
    "kernel_figure",
    "label_notes",
    "margin_figure",
    "plain_table",
    "result_figure",
    "results_table",
    "save",
    "write_page",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"shakeproof.report.{module}"), name)
    raise AttributeError(f"module 'shakeproof.report' has no attribute {name!r}")
