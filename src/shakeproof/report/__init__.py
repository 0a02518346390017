"""Plots, tables and pages. Nothing here decides anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shakeproof import names_on_first_use

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
    from shakeproof.report.polar import scan_figure
    from shakeproof.report.safety import check_new, safety_case, write_bundle, written
    from shakeproof.report.tables import ComparedRows, DemoRows, ResultRows

# matplotlib takes half a second to import, and a table does not need it.
__getattr__ = names_on_first_use(__name__, __file__)
