"""The pictures: margins against strength, a counterexample beside its image and kernel, a kernel and its effect."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.files import write_whole
from shakeproof.proof import Enumerated, Result, Swept, by_class
from shakeproof.question import Perturbation
from shakeproof.report.names import class_name, critical_text, image_and, margin_text, shown, spoken_class

# Rivals that never come close would only clutter the picture.
RIVALS_SHOWN = 6
INK, LOSS = "#334155", "#b91c1c"
# How wide plots of margins are, and a letter of their small print on average, in inches.
WIDTH, LETTER = 7.0, 0.066
# A share of all strengths that is seen in a plot.
SEEN = 1e-3
REGION_COLOURS = {"certified": "#86efac", "violated": "#fca5a5", "not settled": "#e2e8f0"}


def result_figure(result: Result) -> Figure:
    """What was found, as a picture: margins against one strength, or a map of two."""
    parameters = result.query.parameters
    if parameters not in (1, 2):
        what = result.query.perturbation or result.query.name
        raise InputError(f"{what}: there are pictures of one or two strengths, not {parameters}")
    return margin_figure(result) if parameters == 1 else region_figure(result)


def region_figure(result: Result) -> Figure:
    """A map of two strengths: where the label provably wins, where it provably loses, and what is not settled."""
    from matplotlib.collections import PolyCollection

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    strengths, regions = result.query.strengths, result.regions
    if regions is not None:
        kinds = (("certified", regions.safe), ("violated", regions.violated), ("not settled", regions.open))
        for name, boxes in kinds:
            (left, bottom), (right, top) = boxes[:, 0].T, boxes[:, 1].T
            corners = np.stack([[left, bottom], [right, bottom], [right, top], [left, top]]).transpose(2, 0, 1)
            colour, share = REGION_COLOURS[name], regions.share(boxes, strengths)
            style: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.2}
            axes.add_collection(PolyCollection(list(corners), label=f"{name}: {share:.1%}", **style))
    witness = result.counterexample
    if witness is not None and witness.strengths is not None:
        axes.plot(
            *witness.strengths,
            "*",
            color="#7f1d1d",
            markersize=11,
            label=f"counterexample: {spoken_class(result, witness.winner)}",
        )
    perturbation = result.query.perturbation
    assert isinstance(perturbation, Perturbation)
    across, up = perturbation.parts
    axes.set_xlim(0, strengths[0] or 1.0)
    axes.set_ylim(0, strengths[1] or 1.0)
    axes.set_xlabel(f"strength of {across}")
    axes.set_ylabel(f"strength of {up}")
    axes.set_title(
        image_and(result.query.name, f"{spoken_class(result, result.label)}: {result.status}"), fontsize=10, color=INK
    )
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    plain_axes(axes)
    return finished(figure)


def margin_figure(result: Result, classes: Sequence[str] | None = None) -> Figure:
    """The label's margin over each rival against the strength; the background shows which class wins.

    The legend is below the plot, and the winners' names above it: neither covers a curve.
    """
    curve, label = result.curve, result.label
    assert label is not None
    numbers = range(curve.scores.shape[1])
    names = [spoken_class(result, number) for number in numbers] if classes is None else classes
    (strength,) = result.query.strengths
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.add_subplot()
    leads = curve.leads(label)
    rivals = sorted(np.argsort(leads.min(0, initial=np.inf))[:RIVALS_SHOWN].tolist())
    is_exact = isinstance(result.proof, Swept)
    for rival in rivals:
        if rival != label and len(curve.z):
            style = {"linewidth": 1.6} if is_exact else {"linewidth": 0.8, "marker": ".", "markersize": 3}
            colour, name = class_colour(rival), f"over {names[rival]}"
            axes.plot(curve.z, leads[:, rival], color=colour, label=name, **style)
            for row in np.flatnonzero(curve.bridged):  # who wins there is proved, by how much was not computed
                bridge = slice(row, row + 2)
                axes.plot(curve.z[bridge], leads[bridge, rival], color="white", linewidth=1.8, linestyle=":")
    if isinstance(result.proof, Enumerated):
        _show_pictures(axes, result.proof)
    _show_winners(axes, result, names)
    _show_proved(axes, result, names[label])
    axes.axhline(0, color=INK, linewidth=0.9)
    if result.critical_strength is not None:
        low, high = result.critical_strength
        axes.plot(
            [low, high], [0, 0], "o-", color=LOSS, markersize=6, label=f"critical strength {critical_text(result)}"
        )
        for end in {low, high} if high - low > 0.01 * strength else {low}:
            axes.axvline(end, color=LOSS, linewidth=1.6, linestyle="--")
    if strength > 0:
        axes.set_xlim(0, strength)
    axes.set_xlabel("strength z")
    axes.set_ylabel(fill(f"margin of {names[label]}", 30))
    axes.set_title(image_and(result.query.name, str(result.query.perturbation)), fontsize=10, color=INK, pad=16)
    plain_axes(axes)
    _legend_below(figure, axes)
    finished(figure)
    _drop_cramped(figure, axes, result)
    return figure


def _show_pictures(axes: Axes, proof: Enumerated) -> None:
    """The label's margin on each picture that was run, over whoever comes next."""
    axes.plot(
        proof.pictures.strengths(len(proof.margins))[:-1],
        proof.margins,
        drawstyle="steps-post",
        color=INK,
        linewidth=0.8,
        label="over the best rival, picture by picture",
    )


def _show_winners(axes: Axes, result: Result, names: Sequence[str]) -> None:
    """Which class wins where: a coloured stretch, and its name above."""
    for interval in by_class(result.profile):
        axes.axvspan(interval.start, interval.end, color=class_colour(interval.winner), alpha=0.16, linewidth=0)
        middle, above = (interval.start + interval.end) / 2, axes.get_xaxis_transform()
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8, "color": INK}
        axes.text(middle, 1.01, names[interval.winner], transform=above, **style)


def _drop_cramped(figure: Figure, axes: Axes, result: Result) -> None:
    """Without the names above that are wider than their stretches."""
    figure.draw_without_rendering()
    for text, interval in zip(list(axes.texts), by_class(result.profile), strict=True):
        left, right = axes.transData.transform([(interval.start, 0), (interval.end, 0)])[:, 0]
        if text.get_window_extent().width > right - left:
            text.remove()


def _show_proved(axes: Axes, result: Result, label: str) -> None:
    """What bounds proved where; how far an undecided answer got; and a margin that is only bounded."""
    if result.regions is not None:
        for number, (start, end) in enumerate(merged(result.regions.safe[:, :, 0])):
            name = None if number else f"{label} proved to win"
            axes.axvspan(start, end, color=REGION_COLOURS["certified"], alpha=0.35, linewidth=0, label=name)
    style: dict[str, Any] = {"facecolor": "none", "edgecolor": "#94a3b8", "hatch": "///", "linewidth": 0}
    for number, (start, end) in enumerate(_unproved(result)):
        axes.axvspan(start, end, label=None if number else "not proved", **style)
    reached = result.certified_strength
    if result.status == "undecided" and reached > 0:
        axes.axvline(reached, color="#15803d", linewidth=1.4, linestyle=":", label=f"proved up to {reached:.6g}")
    if result.regions is not None and result.status == "safe" and result.min_margin is not None:
        name = f"margin {margin_text(result)}"
        axes.axhline(result.min_margin, color="#15803d", linewidth=1.2, linestyle=":", label=name)


def _unproved(result: Result) -> list[tuple[float, float]]:
    """Where no class is proved to win, as far as it is wide enough to be seen; by bounds, where the label is not."""
    (strength,) = result.query.strengths
    if not result.profile:
        return [(result.certified_strength, strength)] if result.status == "undecided" else []
    ends = [0.0, *(end for own in result.profile if own.proved for end in (own.start, own.end)), strength]
    gaps = zip(ends[::2], ends[1::2], strict=True)
    return [(start, end) for start, end in gaps if end - start > SEEN * strength]


def _legend_below(figure: Figure, axes: Axes) -> None:
    """The legend under a plot, in as many columns as its longest name allows; the figure grows by its rows."""
    handles, names = axes.get_legend_handles_labels()
    if not names:
        return
    columns = int(max(1, min(4, WIDTH / (max(map(len, names)) * LETTER + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(names) // columns))
    figure.legend(handles, names, fontsize=8, frameon=False, loc="outside lower center", ncols=columns)


def merged(intervals: NDArray[Any]) -> list[tuple[float, float]]:
    """Intervals (n, 2) in order, neighbours that touch made one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(map(tuple, intervals.tolist())):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def counterexample_figure(result: Result) -> Figure:
    """Original, counterexample and kernel side by side. Of a box: the image (or its middle), and where they differ."""
    query, witness = result.query, result.counterexample
    found = result.picture()
    if query.image is None or witness is None or found is None:
        raise InputError(f"{query.name}: there is no picture of this query; write the counterexample as .npy")
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    original, perturbed, third = figure.subplots(1, 3)
    show_image(original, query.image.pixels, f"original: {spoken_class(result, result.predicted)}")
    if isinstance(query.perturbation, Perturbation) and witness.strengths is not None:
        there = _at_strengths("", witness.strengths)
        show_image(perturbed, found, f"{there}: {spoken_class(result, witness.winner)}")
        show_kernel(third, query.perturbation, witness.strengths)
    else:
        show_image(perturbed, found, f"counterexample: {spoken_class(result, witness.winner)}")
        show_difference(third, found - query.image.pixels)
    name = class_name(result, result.label)
    what = Path(query.name).name if query.perturbation is None else f"{query.perturbation}   label {name}"
    note = "" if witness.replayed else "; the float32 runtime does not show it"
    figure.suptitle(fill(f"{what}: {result.status}{note}", 110), fontsize=10, color=INK)
    return finished(figure)


def show_difference(axes: Axes, change: Tensor) -> None:
    """How far pixels (channels, height, width) have moved, as the mean of their channels."""
    mean = change.mean(0).numpy()
    limit = max(np.abs(mean).max(), 1e-12)
    axes.imshow(mean, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(f"difference (mean of channels), at most {limit:.3g}", fontsize=9, color=INK)
    axes.set_axis_off()


def kernel_figure(perturbation: Perturbation, strength: float | Sequence[float], image: Tensor) -> Figure:
    """A kernel, and what it does to an image (channels, height, width); one strength for all parts, or one each."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    kernel, before, after = figure.subplots(1, 3)
    show_kernel(kernel, perturbation, strength)
    show_image(before, image, "z = 0")
    strengths = perturbation.strengths(strength)
    show_image(after, perturbation.apply(image).image(*strengths), _at_strengths("", strengths))
    return finished(figure)


def show_image(axes: Axes, pixels: Tensor, title: str) -> None:
    """Pixels (channels, height, width); values outside [0, 1] are stretched over the picture's own range."""
    axes.imshow(displayable(pixels), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_axis_off()


def displayable(pixels: Tensor) -> NDArray[Any]:
    """Pixels as (height, width[, 3]) in [0, 1]: clipped, or scaled if the picture lives in a normalised space."""
    picture = pixels.detach().cpu().numpy()
    low, high = float(picture.min()), float(picture.max())
    if low < -0.75 or high > 1.75:  # more than a sharpened picture overshoots: normalised pixels
        picture = (picture - low) / max(high - low, 1e-12)
    shown: NDArray[Any] = np.clip(picture, 0, 1).transpose(1, 2, 0)
    return shown if shown.shape[2] == 3 else shown[..., 0]


def show_kernel(axes: Axes, perturbation: Perturbation, strength: float | Sequence[float]) -> None:
    """The kernel at a strength for all parts, or one each, and what is added to every pixel."""
    strengths = perturbation.strengths(strength)
    matrix = np.array([[float(v) for v in row] for row in perturbation.kernel.at(*strengths)])
    offset = float(perturbation.offset(*strengths))
    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    if matrix.size == 1:
        words = f"every pixel\n× {matrix.item():.4g}" + (f"\n{offset:+.4g}" if offset else "")
        axes.text(0.5, 0.5, words, transform=axes.transAxes, fontsize=12, color=INK, **centred)
        axes.set_box_aspect(1)
    else:
        limit = max(np.abs(matrix).max(), 1e-12)
        axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        for (row, column), value in np.ndenumerate(matrix) if matrix.size <= 49 else ():
            ink = INK if abs(value) < 0.7 * limit else "white"
            axes.text(column, row, f"{value:.2g}", fontsize=6, color=ink, **centred)
        axes.set_xlabel(f"{offset:+.4g} on every pixel" if offset else "", fontsize=9, color=INK)
    name = "tone at " if matrix.size == 1 else "kernel at "
    axes.set_title(_at_strengths(name, strengths), fontsize=9, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])


def class_colour(number: int) -> tuple[float, float, float]:
    """A colour per class: ten that are easy to tell apart, then golden-angle hues."""
    if number < 10:
        red, green, blue = matplotlib.colormaps["tab10"](number)[:3]
    else:
        red, green, blue = matplotlib.colors.hsv_to_rgb(((0.61803398875 * number) % 1, 0.65, 0.75))
    return float(red), float(green), float(blue)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .png or .svg, whole or not at all."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: a picture is written as .png or .svg")
    drawn = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in letters that the font lacks
        figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=150)
    write_whole({path: drawn.getvalue()})


def _at_strengths(words: str, strengths: Sequence[float]) -> str:
    """A title, in lines that fit above a picture."""
    return fill(f"{words}z = {', '.join(f'{strength:.6g}' for strength in strengths)}", 40)


def finished(figure: Figure) -> Figure:
    """Names are no formulas, whatever signs they have."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(shown(text.get_text()))
    return figure


def plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)
