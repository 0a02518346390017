"""Two networks side by side, as a picture: both margins, both classes, and an image on which they disagree."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from shakeproof.comparing import Compared
from shakeproof.proof import Enumerated, Interval, Result, Swept, by_class
from shakeproof.report.compared_rows import told_apart
from shakeproof.report.names import image_and
from shakeproof.report.plot import INK, LOSS, class_colour, finished, merged, plain_axes, show_image

MINE, THEIRS = "#0f172a", "#0d9488"
OPEN = "#94a3b8"
# Bars of classes are about so wide, with so many letters to an inch; no stretch is drawn narrower than such a share.
BAR_INCHES, LETTERS, THINNEST = 5.5, 14.0, 0.0025
# So many classes are named in the legend.
NAMED = 8


def compared_figure(compared: Compared) -> Figure:
    """Margins above, classes below, against the strength; on red, the networks disagree."""
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    columns = 2 if compared.disagreements else 1
    grid = figure.add_gridspec(2, columns, height_ratios=(3, 1.1), width_ratios=(4, 1.15)[:columns])
    margins, classes = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    names = told_apart(compared.first.model, compared.second.model)
    (strength,) = compared.query.strengths
    _show_stretches(margins, compared)
    for axes in (margins, classes):
        axes.set_xlim(0, strength or 1.0)
        plain_axes(axes)
    for result, name, colour in zip((compared.first, compared.second), names, (MINE, THEIRS), strict=True):
        z, margin = _margin(result)
        style = "steps-post" if isinstance(result.proof, Enumerated) else "default"
        margins.plot(z, margin, color=colour, linewidth=0.9, label=name, drawstyle=style)
    margins.axhline(0, color=OPEN, linewidth=0.9, zorder=1)
    margins.tick_params(labelbottom=False)
    margins.set_ylabel("lead of the class\nat strength 0", fontsize=9)
    _show_classes(classes, compared, names)
    if compared.disagreements:
        _show_longest(figure.add_subplot(grid[:, 1]), compared, names)
    said = f"{compared.query.perturbation}: {_verdict(compared)}"
    figure.suptitle(image_and(compared.query.name, said, 105), fontsize=10, color=INK)
    _legend(figure, margins, compared)
    return finished(figure)


def _verdict(compared: Compared) -> str:
    where = f" on {100 * compared.share:.3g}% of strengths" if compared.disagreements else ""
    return f"{compared.status}{where}"


def _show_stretches(axes: Axes, compared: Compared) -> None:
    """Where they disagree, and what is not settled."""
    for start, end in _visible(compared):
        axes.axvspan(start, end, color=LOSS, alpha=0.16, linewidth=0)
    for start, end in compared.open:
        axes.axvspan(start, end, facecolor="none", edgecolor=OPEN, hatch="///", linewidth=0)


def _visible(compared: Compared) -> list[tuple[float, float]]:
    """Where they disagree, with every stretch wide enough to be seen."""
    (strength,) = compared.query.strengths
    found = [(own.start, max(own.end, own.start + THINNEST * strength)) for own in compared.disagreements]
    return merged(np.array(found).reshape(-1, 2))


def _margin(result: Result) -> tuple[NDArray[Any], NDArray[Any]]:
    """The lead of the class at strength 0 against the strength; of pictures, of those that were run."""
    proof = result.proof
    if isinstance(proof, Enumerated):
        return proof.pictures.strengths(len(proof.margins))[:-1], proof.margins
    assert result.label is not None
    return result.curve.z, result.curve.margin(result.label)


def _bars(result: Result) -> Iterator[Interval]:
    """Which class a network gives where: of equal scores, the first."""
    proof = result.proof
    if isinstance(proof, Swept):
        yield from by_class(proof.profile)
    elif isinstance(proof, Enumerated) and len(proof.classes):
        ends = proof.pictures.strengths(len(proof.classes))
        starts = np.flatnonzero(np.append(True, np.diff(proof.classes) != 0))
        for start, stop in zip(starts, np.append(starts[1:], len(proof.classes)), strict=True):
            yield Interval(float(ends[start]), float(ends[stop]), int(proof.classes[start]))


def _show_classes(axes: Axes, compared: Compared, names: tuple[str, str]) -> None:
    """A bar for each network in the colours of its classes, named where there is room; between, where they differ."""
    (strength,) = compared.query.strengths
    width = BAR_INCHES / (strength or 1.0)
    for place, result in ((1, compared.first), (0, compared.second)):
        for part in _bars(result):
            length, name = part.end - part.start, _class(compared, part.winner)
            if part.winner >= 0:
                axes.barh(place, length, 0.6, part.start, color=class_colour(part.winner), alpha=0.75, linewidth=0)
            if len(name) < length * width * LETTERS:
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "white"}
                axes.text(part.start + length / 2, place, name, fontweight="bold", **style)
    for start, end in _visible(compared):
        axes.barh(0.5, end - start, 0.28, start, color=LOSS, linewidth=0)
    axes.set_yticks([1, 0], [fill(name, 22) for name in names])
    for text, colour in zip(axes.get_yticklabels(), (MINE, THEIRS), strict=True):
        text.set_color(colour)
    axes.set_ylim(-0.4, 1.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("strength z", fontsize=9)


def _class(compared: Compared, number: int) -> str:
    return compared.class_names.shown(number, "class {}") if number >= 0 else ""


def _show_longest(axes: Axes, compared: Compared, names: tuple[str, str]) -> None:
    """The picture at the strength that was replayed in the longest stretch, and what it is taken for."""
    longest = max(compared.disagreements, key=lambda own: (own.replayed, own.end - own.start))
    path = compared.query.path
    assert path is not None
    at = torch.from_numpy(path.given(torch.tensor([[longest.strength]], dtype=torch.float64))[0])
    show_image(axes, path.layout.from_input(at), f"z = {longest.strength:.6g}")
    below = -0.06
    for name, number, colour in zip(names, (longest.first, longest.second), (MINE, THEIRS), strict=True):
        words = fill(f"{name}: {_class(compared, number)}", 26)
        style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": colour}
        axes.text(0.5, below, words, transform=axes.transAxes, **style)
        below -= 0.05 + 0.09 * len(words.splitlines())


def _legend(figure: Figure, axes: Axes, compared: Compared) -> None:
    """Lines, what red and hatched stretches are, and the classes by their colours."""
    handles, labels = axes.get_legend_handles_labels()
    seen = {part.winner: None for result in (compared.first, compared.second) for part in _bars(result)}
    named = [number for number in seen if number >= 0][:NAMED]
    patches = [Patch(color=class_colour(number), alpha=0.75, label=_class(compared, number)) for number in named]
    if compared.disagreements:
        patches.insert(0, Patch(color=LOSS, label="they disagree"))
    if compared.open:
        patches.insert(0, Patch(facecolor="none", edgecolor=OPEN, hatch="///", linewidth=0, label="not settled"))
    handles += patches
    labels += [str(patch.get_label()) for patch in patches]
    columns = max(1, min(6, int(8.0 / (max(map(len, labels)) * 0.066 + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(labels) // columns))
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=columns)
