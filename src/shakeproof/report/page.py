"""The report as one HTML file that asks nothing of anybody: text, style, program and data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from shakeproof import __version__
from shakeproof.report.contents import blocks
from shakeproof.report.names import shown
from shakeproof.report.reported import Reported

# One program, in the order in which its parts lean on one another.
SCRIPTS = (
    *("data", "picture", "marks", "kernel", "selection", "accuracy", "summary", "list", "curves", "detail", "evidence"),
    "main",
)


def html_page(reported: Reported, evidence: Mapping[str, Any], title: str) -> str:
    """The whole page.

    What people have named comes in as base64, or escaped, and is only ever shown as text. The browser is told to run
    and to style by what is here alone, by its digest, and to fetch nothing: a name that broke out would do nothing.
    """
    parts = files("shakeproof.report") / "assets"
    style = (parts / "page.css").read_text("utf-8")
    program = "\n".join((parts / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{program}\n}})();\n'
    data = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{text}</script>'
        for name, text in blocks(reported, evidence).items()
    )
    return Template((parts / "page.html").read_text("utf-8")).substitute(
        title=escape(shown(title)),
        tool=escape(f"shakeproof {__version__}"),
        policy=f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'",
        style=style,
        script=script,
        blobs=data,
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
