"""The command's start, which is what users wait for where the question is small."""

from __future__ import annotations

import gc


def import_engines() -> None:
    """Import all that an analysis needs, most of it torch, and keep it out of Python's search for garbage.

    Whatever is imported stays until the end. Looking through it again and again, while it grows and once more at the
    end, takes a third of the time of `import torch` (docs/speed.md).
    """
    gc.disable()
    try:
        import shakeproof.analysis  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
