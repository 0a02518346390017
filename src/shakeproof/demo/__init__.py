"""The bundled classifier of traffic-sign-like pictures, and pictures to try it on (made by tools/make_demo.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
MODEL = FOLDER / "signs.onnx"
CLASSES = (
    "stop",
    "no-entry",
    "yield",
    "priority",
    "limit-30",
    "limit-50",
    "keep-right",
    "turn-left",
    "warning",
    "parking",
)
# The paper's six perturbations, at two sizes.
PERTURBATIONS = tuple(
    text.format(size)
    for size in (7, 11)
    for text in (
        "box-blur:size={}",
        "sharpen:size={}",
        "motion-blur:size={},angle=0",
        "motion-blur:size={},angle=45",
        "motion-blur:size={},angle=90",
        "motion-blur:size={},angle=135",
    )
)


def images() -> Sequence[tuple[Path, int]]:
    """The bundled pictures and their classes."""
    return [(path, CLASSES.index(path.name.split(".")[0])) for path in sorted((FOLDER / "images").glob("*.png"))]
