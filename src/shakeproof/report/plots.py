"""Plots: margins against strength, maps of two strengths, counterexamples, kernels, and two networks side by side."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from shakeproof.comparing import Compared
from shakeproof.errors import InputError
from shakeproof.files import readable_name, write_whole
from shakeproof.proof import BoundedCells, Enumerated, Interval, Result, Swept, by_class
from shakeproof.question import FAMILIES, STRENGTH, Perturbation, parse
from shakeproof.report.tables import class_name, critical_text, margin_text, short_names

# Rivals that never come close would only clutter the plot.
RIVALS_SHOWN = 6
INK, LOSS, PROVED, OPEN = "#334155", "#b91c1c", "#15803d", "#94a3b8"
NOT_PROVED: dict[str, Any] = {"facecolor": "none", "edgecolor": OPEN, "hatch": "///", "linewidth": 0}
REGION_COLOURS = {"certified": "#86efac", "violated": "#fca5a5", "not settled": "#e2e8f0"}
NETWORK_COLOURS = ("#0f172a", "#0d9488")
# How wide a letter of the small print is on average, in inches.
LETTER = 0.066
# About so many values of a path's own parameter are named; where they are is looked up in so many places.
TICKS, PLACES = 8, 1001
# A share of all strengths that can be seen in a plot.
SEEN = 1e-3
# Of two networks: how wide the bars of classes are, the share of them that a stretch takes at least, and how many
# classes the legend names.
BAR_INCHES, THINNEST, NAMED = 5.1, 0.0025, 8


class NotebookFigure(Figure):
    """A figure that notebooks show on their own, without pyplot."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png", dpi=140)
        return data.getvalue()


def result_figure(result: Result) -> Figure:
    """The plot of a result: margins against one strength, or a map of two."""
    parameters = result.query.parameters
    if parameters not in (1, 2):
        what = result.query.perturbation or result.query.name
        raise InputError(f"{what}: there are plots of one or two strengths, not of {parameters}")
    if parameters == 2:
        return _region_figure(result)
    if result.record.is_about_label:
        return _margin_figure(result)
    from shakeproof.report.requirement_plots import requirement_figure

    return requirement_figure(result)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .png or .svg, whole or not at all."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise InputError(f"{path}: a picture is written as .png or .svg")
    data = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in letters that the font lacks
        figure.savefig(data, format=path.suffix.lower()[1:], dpi=150)
    write_whole({path: data.getvalue()})


# -- one result -------------------------------------------------------------------------------------------------------


def _region_figure(result: Result) -> Figure:
    """A map of two strengths: where the label provably wins, where it provably loses, and the rest."""
    figure = NotebookFigure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    strengths, regions = result.query.strengths, result.regions
    if regions is not None:
        kinds = (("certified", regions.safe), ("violated", regions.violated), ("not settled", regions.open))
        for name, boxes in kinds:
            (left, bottom), (right, top) = boxes[:, 0].T, boxes[:, 1].T
            corners = np.stack([[left, bottom], [right, bottom], [right, top], [left, top]]).transpose(2, 0, 1)
            style: dict[str, Any] = {"facecolor": REGION_COLOURS[name], "edgecolor": "white", "linewidth": 0.2}
            label = f"{name}: {regions.share(boxes, strengths):.1%}"
            axes.add_collection(PolyCollection(list(corners), label=label, **style))
    counterexample = result.counterexample
    if counterexample is not None and counterexample.strengths is not None:
        label = f"counterexample: {spoken_class(result, counterexample.winner)}"
        axes.plot(*counterexample.strengths, "*", color="#7f1d1d", markersize=11, label=label)
    perturbation = result.query.perturbation
    assert isinstance(perturbation, Perturbation)
    across, up = perturbation.parts
    axes.set_xlim(0, strengths[0] or 1.0)
    axes.set_ylim(0, strengths[1] or 1.0)
    axes.set_xlabel(f"strength of {across}")
    axes.set_ylabel(f"strength of {up}")
    what = spoken_class(result, result.label) if result.record.is_about_label else result.query.requirement
    title = title_of(result.query.name, f"{what}: {result.status}")
    axes.set_title(title, fontsize=10, color=INK)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    plain_axes(axes)
    return without_formulas(figure)


def _margin_figure(result: Result) -> Figure:
    """The label's margin over each rival against the strength; the background shows which class wins.

    The legend is below the plot, and the winners' names above it: neither covers a curve.
    """
    assert result.label is not None
    label = spoken_class(result, result.label)
    (strength,) = result.query.strengths
    figure = NotebookFigure(figsize=(7.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    _plot_leads(axes, result)
    for interval in by_class(result.profile):  # which class wins where: a coloured stretch, and its name above
        axes.axvspan(interval.start, interval.end, color=_class_colour(interval.winner), alpha=0.16, linewidth=0)
        middle, above = (interval.start + interval.end) / 2, axes.get_xaxis_transform()
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8, "color": INK}
        axes.text(middle, 1.01, spoken_class(result, interval.winner), transform=above, **style)
    show_proved(axes, result, label)
    axes.axhline(0, color=INK, linewidth=0.9)
    if result.critical_strength is not None:
        low, high = result.critical_strength
        name = f"critical strength {critical_text(result)}"
        axes.plot([low, high], [0, 0], "o-", color=LOSS, markersize=6, label=name)
        for end in {low, high} if high - low > 0.01 * strength else {low}:
            axes.axvline(end, color=LOSS, linewidth=1.6, linestyle="--")
    if strength > 0:
        axes.set_xlim(0, strength)
    name_strengths(axes, result)
    axes.set_ylabel(fill(f"margin of {label}", 30))
    axes.set_title(title_of(result.query.name, str(result.query.perturbation)), fontsize=10, color=INK, pad=16)
    plain_axes(axes)
    legend_below(figure, *axes.get_legend_handles_labels(), most=4)
    without_formulas(figure)
    figure.draw_without_rendering()
    for text, interval in zip(list(axes.texts), by_class(result.profile), strict=True):
        left, right = axes.transData.transform([(interval.start, 0), (interval.end, 0)])[:, 0]
        if text.get_window_extent().width > right - left:  # a name that is wider than its stretch
            text.remove()
    return figure


def name_strengths(axes: Axes, result: Result) -> None:
    """What goes across: the strength, and the path's own parameter if it has one, in a second row of numbers."""
    axes.set_xlabel("strength z")
    perturbation, (strength,) = result.query.perturbation, result.query.strengths
    if not isinstance(perturbation, Perturbation) or perturbation.scale == STRENGTH or not strength:
        return
    scale, z = perturbation.scale, np.linspace(0, strength, PLACES)
    values = np.array([float(scale.value(at)) for at in z.tolist()])
    order = np.argsort(values)
    ticks = MaxNLocator(TICKS).tick_values(values.min(), values.max())
    ticks = ticks[(values.min() <= ticks) & (ticks <= values.max())]
    below = axes.secondary_xaxis(-0.22)
    below.set_xticks(np.interp(ticks, values[order], z[order]), [f"{tick:.6g}" for tick in ticks])
    below.set_xlabel(f"{scale.name} ({scale.unit})")
    below.spines["bottom"].set_visible(False)
    below.tick_params(labelsize=8, colors=INK, length=0)


def _plot_leads(axes: Axes, result: Result) -> None:
    """The label's lead over the closest rivals; of 8-bit pictures, its margin on each."""
    curve, label, proof = result.curve, result.label, result.proof
    assert label is not None
    leads = curve.leads(label)
    style: dict[str, Any] = {"linewidth": 0.8, "marker": ".", "markersize": 3}
    if isinstance(proof, Swept):
        style = {"linewidth": 1.6}
    for rival in sorted(np.argsort(leads.min(0, initial=np.inf))[:RIVALS_SHOWN].tolist()):
        if rival == label or not len(curve.z):
            continue
        name = f"over {spoken_class(result, rival)}"
        axes.plot(curve.z, leads[:, rival], color=_class_colour(rival), label=name, **style)
        for row in np.flatnonzero(curve.bridged):  # who wins there is proved, by how much was not computed
            bridge = slice(row, row + 2)
            axes.plot(curve.z[bridge], leads[bridge, rival], color="white", linewidth=1.8, linestyle=":")
    if isinstance(proof, Enumerated):
        style = {"drawstyle": "steps-post", "color": INK, "linewidth": 0.8}
        places = proof.pictures.strengths(len(proof.margins))[:-1]
        axes.plot(places, proof.margins, label="over the best rival, picture by picture", **style)


def show_proved(axes: Axes, result: Result, label: str) -> None:
    """What bounds proved, where no class is proved to win (if that is wide enough to be seen), how far an undecided
    answer got, and a margin that is only bounded.
    """
    if result.regions is not None:
        for number, (start, end) in enumerate(_merged(result.regions.safe[:, :, 0])):
            name = None if number else f"{label} is proved to {'win' if result.record.is_about_label else 'hold'}"
            axes.axvspan(start, end, color=REGION_COLOURS["certified"], alpha=0.35, linewidth=0, label=name)
    (strength,), reached = result.query.strengths, result.certified_strength
    if result.profile:
        ends = [0.0, *(end for part in result.profile if part.proved for end in (part.start, part.end)), strength]
        gaps = [(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True) if end - start > SEEN * strength]
    else:
        gaps = [(reached, strength)] if result.status == "undecided" else []
    for number, (start, end) in enumerate(gaps):
        axes.axvspan(start, end, label=None if number else "not proved", **NOT_PROVED)
    if result.status == "undecided" and reached > 0:
        axes.axvline(reached, color=PROVED, linewidth=1.4, linestyle=":", label=f"proved up to {reached:.6g}")
    if result.regions is not None and result.status == "safe" and result.min_margin is not None:
        name = f"margin {margin_text(result)}"
        axes.axhline(result.min_margin, color=PROVED, linewidth=1.2, linestyle=":", label=name)


def counterexample_figure(result: Result) -> Figure:
    """Original, counterexample and kernel side by side. Of a box: the image (or its middle), and where they differ."""
    query, counterexample, picture = result.query, result.counterexample, result.picture()
    if query.image is None or counterexample is None or picture is None:
        raise InputError(f"{query.name}: there is no picture of this query; write the counterexample as .npy")
    figure = NotebookFigure(figsize=(9.0, 3.4), layout="constrained")
    original, perturbed, third = figure.subplots(1, 3)
    show_image(original, query.image.pixels, f"original: {spoken_class(result, result.predicted)}")
    if isinstance(query.perturbation, Perturbation) and counterexample.strengths is not None:
        place = _at_strengths("", counterexample.strengths)
        show_image(perturbed, picture, f"{place}: {spoken_class(result, counterexample.winner)}")
        acted_on = query.image if query.photograph is None else query.photograph
        show_kernel(third, query.perturbation, counterexample.strengths, acted_on.pixels.shape)
    else:
        show_image(perturbed, picture, f"counterexample: {spoken_class(result, counterexample.winner)}")
        limit = _show_matrix(third, (picture - query.image.pixels).mean(0).numpy())
        third.set_title(f"difference (mean of channels), at most {limit:.3g}", fontsize=9, color=INK)
        third.set_axis_off()
    asked = f"label {class_name(result, result.label)}" if result.record.is_about_label else query.requirement
    what = Path(query.name).name if query.perturbation is None else f"{query.perturbation}   {asked}"
    note = "" if counterexample.replayed else "; the float32 runtime does not show it"
    figure.suptitle(fill(f"{what}: {result.status}{note}", 110), fontsize=10, color=INK)
    return without_formulas(figure)


# -- pictures and kernels ---------------------------------------------------------------------------------------------


def kernel_figure(perturbation: Perturbation, strength: float | Sequence[float], image: Tensor) -> Figure:
    """A kernel, and what it does to an image (channels, height, width); one strength for all parts, or one each."""
    figure = NotebookFigure(figsize=(9.0, 3.6), layout="constrained")
    kernel, before, after = figure.subplots(1, 3)
    strengths = perturbation.strengths(strength)
    show_kernel(kernel, perturbation, strengths, image.shape)
    show_image(before, image, "z = 0")
    show_image(after, perturbation.apply(image).image(*strengths), _at_strengths("", strengths))
    return without_formulas(figure)


def displayable(pixels: Tensor) -> NDArray[Any]:
    """Pixels as (height, width[, 3]) in [0, 1]: clipped, or scaled if they look normalised."""
    picture = pixels.detach().cpu().numpy()
    low, high = float(picture.min()), float(picture.max())
    if low < -0.75 or high > 1.75:  # more than a sharpened picture overshoots: normalised pixels
        picture = (picture - low) / max(high - low, 1e-12)
    clipped: NDArray[Any] = np.clip(picture, 0, 1).transpose(1, 2, 0)
    return clipped if clipped.shape[2] == 3 else clipped[..., 0]


def show_image(axes: Axes, pixels: Tensor, title: str) -> None:
    axes.imshow(displayable(pixels), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_axis_off()


def families_figure(image: Tensor) -> Figure:
    """An image (channels, height, width), and what each family makes of it at strength 1; a row for each group."""
    groups: dict[str, list[tuple[str, Perturbation]]] = {}
    for name, family in FAMILIES.items():
        if name == "identity" or family.reads_files:
            continue
        if isinstance(perturbation := parse(family.example), Perturbation):
            groups.setdefault(family.group, []).append((name, perturbation))
    columns = max(map(len, groups.values()))
    figure = Figure(figsize=(1.6 * columns, 1.9 * len(groups)), layout="constrained")
    rows = figure.subplots(len(groups), columns, squeeze=False)
    for row, (group, shown) in zip(rows, groups.items(), strict=True):
        for axes, (name, perturbation) in zip(row, shown, strict=False):
            show_image(axes, perturbation.apply(image).image(1.0), name)
        for axes in row[len(shown) :]:
            axes.set_axis_off()
        row[0].text(0, 1.22, group, transform=row[0].transAxes, fontsize=10, fontweight="bold", color=INK)
    return without_formulas(figure)


def show_kernel(
    axes: Axes, perturbation: Perturbation, strengths: Sequence[float], shape: Sequence[int] = (3, 33, 33)
) -> None:
    """The kernel at a strength for each part, and what is added to every pixel.

    Where pixels have kernels of their own: what points become in a picture of this shape.
    """
    if perturbation.degradations:
        points = torch.zeros(*shape, dtype=torch.float64)
        points[..., shape[1] // 8 :: shape[1] // 4, shape[2] // 8 :: shape[2] // 4] = 1
        spread = perturbation.apply(points).image(*strengths)
        show_image(axes, spread / spread.max().clamp(min=1e-12), _at_strengths("points at ", strengths))
        return
    matrix = np.array([[float(entry) for entry in row] for row in perturbation.kernel.at(*strengths)])
    offset = float(perturbation.offset(*strengths))
    centred: dict[str, Any] = {"ha": "center", "va": "center"}
    if matrix.size == 1:
        words = f"every pixel\n× {matrix.item():.4g}" + (f"\n{offset:+.4g}" if offset else "")
        axes.text(0.5, 0.5, words, transform=axes.transAxes, fontsize=12, color=INK, **centred)
        axes.set_box_aspect(1)
    else:
        limit = _show_matrix(axes, matrix)
        for (row, column), value in np.ndenumerate(matrix) if matrix.size <= 49 else ():
            ink = INK if abs(value) < 0.7 * limit else "white"
            axes.text(column, row, f"{value:.2g}", fontsize=6, color=ink, **centred)
        axes.set_xlabel(f"{offset:+.4g} on every pixel" if offset else "", fontsize=9, color=INK)
    name = "tone at " if matrix.size == 1 else "kernel at "
    axes.set_title(_at_strengths(name, strengths), fontsize=9, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])


def _show_matrix(axes: Axes, matrix: NDArray[Any]) -> float:
    """Red adds, blue takes away; returns the largest absolute value."""
    limit = max(float(np.abs(matrix).max()), 1e-12)
    axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    return limit


# -- two networks side by side ----------------------------------------------------------------------------------------


def compared_figure(compared: Compared) -> Figure:
    """Margins above, classes below, against the strength; on red, the networks disagree."""
    figure = NotebookFigure(figsize=(8.4, 4.2), layout="constrained")
    columns = 2 if compared.disagreements else 1
    grid = figure.add_gridspec(2, columns, height_ratios=(3, 1.1), width_ratios=(4, 1.15)[:columns])
    margins, classes = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    names = short_names(compared.first.model, compared.second.model)
    (strength,) = compared.query.strengths
    for start, end in _visible(compared):
        margins.axvspan(start, end, color=LOSS, alpha=0.16, linewidth=0)
    for start, end in compared.open:
        margins.axvspan(start, end, **NOT_PROVED)
    for axes in (margins, classes):
        axes.set_xlim(0, strength or 1.0)
        plain_axes(axes)
    for result, name, colour in zip((compared.first, compared.second), names, NETWORK_COLOURS, strict=True):
        z, margin = margin_of(result)
        style = "steps-post" if isinstance(result.proof, Enumerated) else "default"
        margins.plot(z, margin, color=colour, linewidth=0.9, label=name, drawstyle=style)
    margins.axhline(0, color=OPEN, linewidth=0.9, zorder=1)
    margins.tick_params(labelbottom=False)
    margins.set_ylabel("lead of the class\nat strength 0", fontsize=9)
    _show_classes(classes, compared, names)
    where = f" on {100 * compared.share:.3g}% of strengths" if compared.disagreements else ""
    if compared.disagreements:
        _show_longest(figure.add_subplot(grid[:, 1]), compared, names)
    title = title_of(compared.query.name, f"{compared.query.perturbation}: {compared.status}{where}", 105)
    figure.suptitle(title, fontsize=10, color=INK)
    _name_colours(figure, margins, compared)
    return without_formulas(figure)


def _visible(compared: Compared) -> list[tuple[float, float]]:
    """Where they disagree, with every stretch wide enough to be seen."""
    (strength,) = compared.query.strengths
    stretches = [(part.start, max(part.end, part.start + THINNEST * strength)) for part in compared.disagreements]
    return _merged(np.array(stretches).reshape(-1, 2))


def margin_of(result: Result) -> tuple[NDArray[Any], NDArray[Any]]:
    """The lead of the class at strength 0 against the strength; of pictures, of those that were run."""
    proof = result.proof
    if isinstance(proof, Enumerated):
        return proof.pictures.strengths(len(proof.margins))[:-1], proof.margins
    if isinstance(proof, (Swept, BoundedCells)):
        return result.curve.z, result.curve.margin(proof.label)
    return result.curve.z, np.empty(0)


def _bars(result: Result) -> Iterator[Interval]:
    """The class that a network gives at each strength; of equal scores, the first."""
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
    letters = BAR_INCHES / LETTER / (strength or 1.0)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "white", "fontweight": "bold"}
    for place, result in ((1, compared.first), (0, compared.second)):
        for part in _bars(result):
            length, name = part.end - part.start, _either_class(compared, part.winner)
            if part.winner >= 0:
                axes.barh(place, length, 0.6, part.start, color=_class_colour(part.winner), alpha=0.75, linewidth=0)
            if len(name) < length * letters:
                axes.text(part.start + length / 2, place, name, **style)
    for start, end in _visible(compared):
        axes.barh(0.5, end - start, 0.28, start, color=LOSS, linewidth=0)
    axes.set_yticks([1, 0], [fill(name, 22) for name in names])
    for text, colour in zip(axes.get_yticklabels(), NETWORK_COLOURS, strict=True):
        text.set_color(colour)
    axes.set_ylim(-0.4, 1.4)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("strength z", fontsize=9)


def _either_class(compared: Compared, number: int) -> str:
    return compared.class_names.shown(number, "class {}") if number >= 0 else ""


def _show_longest(axes: Axes, compared: Compared, names: tuple[str, str]) -> None:
    """The picture at the strength that was replayed in the longest stretch, and the class that each network gives."""
    longest = max(compared.disagreements, key=lambda part: (part.replayed, part.end - part.start))
    path = compared.query.path
    assert path is not None
    at = torch.from_numpy(path.runtime_inputs(torch.tensor([[longest.strength]], dtype=torch.float64))[0])
    show_image(axes, path.layout.from_input(at), f"z = {longest.strength:.6g}")
    below = -0.06
    for name, number, colour in zip(names, (longest.first, longest.second), NETWORK_COLOURS, strict=True):
        words = fill(f"{name}: {_either_class(compared, number)}", 26)
        style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": colour}
        axes.text(0.5, below, words, transform=axes.transAxes, **style)
        below -= 0.05 + 0.09 * len(words.splitlines())


def _name_colours(figure: Figure, axes: Axes, compared: Compared) -> None:
    """Lines, what red and hatched stretches are, and the classes by their colours."""
    handles, labels = axes.get_legend_handles_labels()
    winners = {part.winner: None for result in (compared.first, compared.second) for part in _bars(result)}
    patches = [Patch(label="not settled", **NOT_PROVED)] if compared.open else []
    patches += [Patch(color=LOSS, label="they disagree")] if compared.disagreements else []
    patches += [
        Patch(color=_class_colour(number), alpha=0.75, label=_either_class(compared, number))
        for number in [number for number in winners if number >= 0][:NAMED]
    ]
    legend_below(figure, [*handles, *patches], [*labels, *(str(patch.get_label()) for patch in patches)], most=6)


# -- what plots share -------------------------------------------------------------------------------------------------


def spoken_class(result: Result, number: int | None) -> str:
    """A class, in sentences and plots."""
    return "no class" if number is None else result.query.class_names.shown(number, "class {}")


def title_of(image: str, words: str, letters: int = 85) -> str:
    """An image's name and a text about it, in lines that fit above a plot."""
    return fill(f"{Path(image).name}   {words}", letters)


def _at_strengths(words: str, strengths: Sequence[float]) -> str:
    """A title, in lines that fit above a picture."""
    return fill(f"{words}z = {', '.join(f'{strength:.6g}' for strength in strengths)}", 40)


def legend_below(figure: Figure, handles: Sequence[Any], names: Sequence[str], most: int) -> None:
    """The legend under a plot, in at most so many columns; the figure grows by its rows."""
    if not names:
        return
    columns = int(max(1, min(most, figure.get_figwidth() / (max(map(len, names)) * LETTER + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.19 * -(-len(names) // columns))
    figure.legend(handles, names, fontsize=8, frameon=False, loc="outside lower center", ncols=columns)


def _merged(intervals: NDArray[Any]) -> list[tuple[float, float]]:
    """Intervals (n, 2) in order; neighbours that touch become one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(map(tuple, intervals.tolist())):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _class_colour(number: int) -> tuple[float, float, float]:
    """A colour per class: ten that are easy to tell apart, then golden-angle hues."""
    if number < 10:
        red, green, blue = matplotlib.colormaps["tab10"](number)[:3]
    else:
        red, green, blue = matplotlib.colors.hsv_to_rgb(((0.61803398875 * number) % 1, 0.65, 0.75))
    return float(red), float(green), float(blue)


def plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def without_formulas(figure: Figure) -> Figure:
    """The figure, with every name shown letter by letter: a dollar sign starts no formula."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(readable_name(text.get_text()))
    return figure
