"""One self-contained HTML page for a set of results: the table, and each image with its most dangerous perturbation."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from torch import Tensor

from shakeproof.files import write_whole
from shakeproof.perturbation import Perturbation
from shakeproof.report.names import shown
from shakeproof.report.plot import displayable, margin_figure
from shakeproof.result import Result
from shakeproof.verdict import Status

STYLE = """
:root { color-scheme: light; --ink: #1e293b; --dim: #64748b; --line: #e2e8f0; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 1360px;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin: 0 0 .3rem; }
p { max-width: 75ch; } .dim { color: var(--dim); } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .84rem; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
td img { width: 32px; height: 32px; image-rendering: pixelated; vertical-align: middle; margin-right: .5rem; }
article { display: grid; grid-template-columns: 330px 1fr; gap: 1.2rem; align-items: center; margin: 1.4rem 0;
  padding: 1rem; border: 1px solid var(--line); border-radius: 10px; }
article svg { width: 100%; height: auto; } figure { display: inline-block; margin: 0 .5rem 0 0; text-align: center; }
figure img { width: 144px; height: 144px; image-rendering: pixelated; border-radius: 6px; }
figcaption { font-size: .8rem; }
@media (max-width: 800px) { article { grid-template-columns: 1fr; } }
"""


def write_page(path: Path, results: Sequence[Result], classes: Sequence[str], title: str) -> None:
    """Write the page, whole or not at all."""
    write_whole({path: page(results, classes, title).encode()})


def page(results: Sequence[Result], classes: Sequence[str], title: str) -> str:
    """The whole page as text; `classes` are names for the class numbers."""
    by_image: dict[str, list[Result]] = {}
    for result in results:
        by_image.setdefault(shown(result.query.name), []).append(result)
    flips = sum(result.critical_strength is not None for result in results)
    seconds, pieces = sum(r.seconds for r in results), sum(r.pieces for r in results)
    sections = "".join(_article(most_dangerous(group), classes) for group in by_image.values())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>Each number is the exact strength at which the network stops giving an image its label, while the perturbation grows
from nothing (0) to its full kernel (1). <b>safe</b> means that no strength changes the answer: all
{pieces:,} linear pieces of the network along these {len(results)} paths were enumerated, in {seconds:.1f} seconds.</p>
<p class="dim">{len(by_image)} images, {flips} of {len(results)} combinations change the answer. Redder is sooner.</p>
<div class="scroll">{_table(by_image)}</div>
<h2 style="margin-top:2rem">The most dangerous perturbation of each image</h2>
<p class="dim">Left: the image, and the same image where the label loses most clearly. Right: the margin of the
label over its rivals. The label wins while all curves are above zero; the background shows who wins.</p>
{sections}
<p class="dim">Made by shakeproof. Rounding: {escape(results[0].rounding)} (float64).</p>
</body></html>
"""


def most_dangerous(results: Sequence[Result]) -> Result:
    """The perturbation that flips the answer soonest; if none does, the one that leaves the smallest margin."""
    return min(
        results,
        key=lambda r: (r.critical_strength[0] if r.critical_strength else 2.0, r.min_margin or 0.0),
    )


def _table(by_image: dict[str, list[Result]]) -> str:
    first = next(iter(by_image.values()))
    heads = "".join(
        f"<th>{escape(str(r.query.perturbation)).replace(':', '<br>').replace(',', '<br>')}</th>" for r in first
    )
    rows = "".join(
        f"<tr><td><img src='{png_address(_pixels(group[0]))}' alt=''>{escape(name)}</td>"
        + "".join(map(_cell, group))
        + "</tr>"
        for name, group in by_image.items()
    )
    return f"<table><thead><tr><th>image</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(result: Result) -> str:
    if result.critical_strength is None:
        text, colour = (str(result.status), "#dcfce7" if result.status is Status.SAFE else "#fef9c3")
    else:
        critical = result.critical_strength[0]
        text, colour = f"{critical:.4f}", f"hsl({8 + 30 * critical:.0f} 90% {72 + 20 * critical:.0f}%)"
    return f"<td style='background:{colour}'>{escape(text)}</td>"


def _article(result: Result, classes: Sequence[str]) -> str:
    query, witness = result.query, result.counterexample
    assert result.label is not None
    (strength,) = query.strengths if witness is None or witness.strengths is None else witness.strengths
    winner = int(np.argmax(result.curve.at(np.array([strength]))[0]))
    pictures = "".join(_figures(result, strength, classes[result.label], classes[winner]))
    if result.status is Status.SAFE:
        verdict = f"stays <b>{escape(classes[result.label])}</b> up to strength {query.strengths[0]:g}"
    elif result.critical_strength is None:
        verdict = f"is <b>{result.status}</b>" + (f": {escape(result.reason.sentence)}" if result.reason else "")
    else:
        verdict = (
            f"stops being <b>{escape(classes[result.label])}</b> at strength <b>{result.critical_strength[0]:.9f}</b>"
        )
    return (
        f"<article><div><h2>{escape(shown(query.name))}</h2><p>{escape(str(query.perturbation))}<br>{verdict}</p>{pictures}</div>"
        f"<div>{_svg(result, classes)}</div></article>"
    )


def _figures(result: Result, strength: float, label: str, winner: str) -> Iterator[str]:
    perturbation = result.query.perturbation
    assert isinstance(perturbation, Perturbation)
    moved = perturbation.apply(_pixels(result)).image(strength)
    for pixels, caption in ((_pixels(result), label), (moved, f"z = {strength:.4f}: {winner}")):
        yield f"<figure><img src='{png_address(pixels)}' alt=''><figcaption>{escape(caption)}</figcaption></figure>"


def _pixels(result: Result) -> Tensor:
    assert result.query.image is not None
    return result.query.image.pixels


def _svg(result: Result, classes: Sequence[str]) -> str:
    """The margin plot as inline SVG."""
    text = io.StringIO()
    margin_figure(result, str(result.query.perturbation), classes=classes).savefig(text, format="svg")
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def png_address(pixels: Tensor) -> str:
    """Pixels as a data address."""
    file = io.BytesIO()
    Pillow.fromarray((displayable(pixels) * 255).round().astype(np.uint8)).save(file, format="PNG")
    return data_address(file.getvalue())


def data_address(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
