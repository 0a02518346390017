"""What a notebook shows of a result: the answer, the pictures, the margins. It fetches nothing from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape
from io import BytesIO

import numpy as np
from PIL import Image as Pillow
from torch import Tensor

from shakeproof.files import readable_name
from shakeproof.proof import Result
from shakeproof.question import Perturbation
from shakeproof.report.plots import displayable, result_figure, spoken_class
from shakeproof.report.tables import class_name

COLOURS = {"safe": "#15803d", "unsafe": "#b91c1c", "misclassified": "#a21caf", "undecided": "#a16207"}
# Notebooks have light and dark themes, and some hosts strip style sheets: each element brings its own style.
CARD = (
    "display:inline-block;background:#fff;color:#1e293b;border:1px solid #e2e8f0;border-radius:8px;padding:12px 14px;"
    "font:14px/1.45 system-ui,sans-serif"
)
PICTURE = "width:150px;height:auto;image-rendering:pixelated;border-radius:4px;display:block;margin:0"
CAPTION = "font-size:12px;text-align:center"


def result_html(result: Result) -> str:
    """A result as one card."""
    record = result.record
    status = f"<b style='color:{COLOURS[record.status]}'>{record.status}</b>"
    pictures = "".join(
        f"<figure style='display:inline-block;margin:0 10px 0 0'><img src='{_png_address(pixels)}' style='{PICTURE}'"
        f" alt=''><figcaption style='{CAPTION}'>{_text(caption)}</figcaption></figure>"
        for pixels, caption in _pictures(result)
    )
    facts = f"label {class_name(result, result.label)}, {record.method}, {record.pieces} pieces, {record.seconds:.3g} s"
    return (
        f"<div style='{CARD}'><div>{status} &nbsp;{_text(record.asked)}</div><div>{_text(result.sentence)}</div>"
        f"<div style='display:flex;align-items:center;flex-wrap:wrap;margin:8px 0'><div>{pictures}</div>{_plot(result)}"
        f"</div><div style='font-size:12px;color:#64748b'>{_text(facts)}</div></div>"
    )


def _text(words: str) -> str:
    return escape(readable_name(words))


def _pictures(result: Result) -> Iterator[tuple[Tensor, str]]:
    """The image, and the counterexample or else the image at the full strength, with captions."""
    query, counterexample, picture = result.query, result.counterexample, result.picture()
    if query.image is None:
        return
    yield query.image.pixels, f"original: {spoken_class(result, result.predicted)}"
    if picture is not None and counterexample is not None:
        at = "" if counterexample.strengths is None else f"z = {_digits(counterexample.strengths)}: "
        yield picture, f"{at}{spoken_class(result, counterexample.winner)}"
    elif isinstance(query.perturbation, Perturbation):
        shown = query.picture(*query.strengths)
        if shown is not None:
            yield shown, f"z = {_digits(query.strengths)}"


def _digits(strengths: tuple[float, ...]) -> str:
    return ", ".join(f"{strength:.4g}" for strength in strengths)


def _plot(result: Result) -> str:
    """The margins, or the map of two strengths; nothing for more of them."""
    if result.query.parameters not in (1, 2):
        return ""
    file = BytesIO()
    result_figure(result).savefig(file, format="png", dpi=140)
    return f"<img src='{_address(file)}' style='width:540px;max-width:100%;height:auto' alt='margins'>"


def _png_address(pixels: Tensor) -> str:
    file = BytesIO()
    Pillow.fromarray((displayable(pixels) * 255).round().astype(np.uint8)).save(file, format="PNG")
    return _address(file)


def _address(png: BytesIO) -> str:
    """A picture as an address that holds its bytes."""
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
