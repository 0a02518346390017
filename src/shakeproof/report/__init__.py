"""Pictures, tables and pages. Nothing here decides anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.report.bundle import check_new, write_bundle
    from shakeproof.report.compared_plot import compared_figure
    from shakeproof.report.compared_rows import ComparedRows
    from shakeproof.report.gathering import gathered
    from shakeproof.report.notebook import result_html
    from shakeproof.report.page import html_page
    from shakeproof.report.plain import plain_table
    from shakeproof.report.plot import counterexample_figure, kernel_figure, margin_figure, result_figure, save
    from shakeproof.report.safety import safety_case, written
    from shakeproof.report.tables import DemoRows, ResultRows

# matplotlib takes half a second to import, and a table does not need it.
_HOMES = {
    "compared_plot": ("compared_figure",),
    "compared_rows": ("ComparedRows",),
    "notebook": ("result_html",),
    "bundle": ("check_new", "write_bundle"),
    "gathering": ("gathered",),
    "page": ("html_page",),
    "safety": ("safety_case", "written"),
    "plain": ("plain_table",),
    "plot": ("counterexample_figure", "kernel_figure", "margin_figure", "result_figure", "save"),
    "tables": ("DemoRows", "ResultRows"),
}

__all__ = [
    "ComparedRows",
    "DemoRows",
    "ResultRows",
    "check_new",
    "compared_figure",
    "counterexample_figure",
    "gathered",
    "html_page",
    "kernel_figure",
    "margin_figure",
    "plain_table",
    "result_figure",
    "result_html",
    "safety_case",
    "save",
    "write_bundle",
    "written",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"shakeproof.report.{module}"), name)
    raise AttributeError(f"module 'shakeproof.report' has no attribute {name!r}")
