"""The site that `make docs` builds. Nothing is fetched while it is built, and warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

import shakeproof

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "shakeproof"
author = "The shakeproof developers"
version = release = shakeproof.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "from_code"]
exclude_patterns = ["_build", "_generated", "_extensions"]
suppress_warnings = ["myst.strikethrough"]

myst_heading_anchors = 4
default_role = "code"  # docstrings put names between single backticks
highlight_language = "text"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}

html_theme = "furo"
html_title = f"shakeproof {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = False
