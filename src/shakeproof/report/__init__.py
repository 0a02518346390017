"""Plots, tables and pages. Nothing here decides anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shakeproof.report.gathering import gathered
    from shakeproof.report.notebook import result_html
    from shakeproof.report.page import html_page
    from shakeproof.report.plots import (
        compared_figure,
        counterexample_figure,
        families_figure,
        kernel_figure,
        result_figure,
        save,
    )
    from shakeproof.report.safety import check_new, safety_case, write_bundle, written
    from shakeproof.report.tables import ComparedRows, DemoRows, ResultRows

# Where each name lives. It is imported on first use: matplotlib takes half a second, and a table does not need it.
_HOMES = {
    "gathering": "gathered",
    "notebook": "result_html",
    "page": "html_page",
    "plots": "compared_figure counterexample_figure families_figure kernel_figure result_figure save",
    "safety": "check_new safety_case write_bundle written",
    "tables": "ComparedRows DemoRows ResultRows",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"shakeproof.report.{module}"), name)
    raise AttributeError(f"module 'shakeproof.report' has no attribute {name!r}")
