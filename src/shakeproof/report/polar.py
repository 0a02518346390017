"""The polar map of a scan: which motion, in which direction, how strongly."""

from __future__ import annotations

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes
from numpy.typing import NDArray

from shakeproof.report.plots import INK, NOT_PROVED, NotebookFigure, title_of, without_formulas
from shakeproof.scanning import Scan

# What is certified up to the strength asked about stands out from what flips just below it.
SAFE, COLOURS = "#15803d", "inferno"
Floats = NDArray[np.float64]


def scan_figure(scan: Scan) -> Figure:
    """Direction of motion by bearing, size outwards, and what is certified as a colour.

    Motion to and fro is the same, so each cell is seen on both sides of the middle.
    """
    figure = NotebookFigure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot(projection="polar")
    assert isinstance(axes, PolarAxes)
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    turns, sizes = _edges(scan.angles, 180.0), _edges(scan.sizes, np.inf)
    shape = len(scan.sizes), len(scan.angles)
    certified = np.array([cell.certified for cell in scan.cells]).reshape(shape)
    statuses = np.array([cell.status.value for cell in scan.cells]).reshape(shape)
    for side in (0.0, np.pi):
        mesh = axes.pcolormesh(
            np.radians(turns) + side, sizes, certified, cmap=COLOURS, vmin=0.0, vmax=scan.strength or 1.0
        )
        for row, column in np.argwhere(np.isin(statuses, ["safe", "undecided"])):
            left, right = np.radians(turns[[column, column + 1]]) + side
            low, high = sizes[[row, row + 1]]
            style = {"facecolor": SAFE, "linewidth": 0} if statuses[row, column] == "safe" else NOT_PROVED
            axes.bar((left + right) / 2, high - low, right - left, low, **style)
    weakest = scan.weakest
    if scan.status != "safe":
        place = np.radians(weakest.angle)
        (star,) = axes.plot([place, place + np.pi], [weakest.size] * 2, "*", color="white", markeredgecolor=INK, ls="")
        star.set_markersize(12)
    _describe(axes, scan)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.7, pad=0.1)
    bar.set_label("certified up to this strength", fontsize=9, color=INK)
    names = {"safe": f"safe up to {scan.strength:g}", "undecided": "beyond: not proved"}
    styles = {"safe": {"facecolor": SAFE}, "undecided": NOT_PROVED}
    shown: list[Artist] = [
        Patch(label=names[status], **styles[status]) for status in names if (statuses == status).any()
    ]
    if scan.status != "safe":
        shown.append(star)
        star.set_label(f"least: size {weakest.size}, angle {weakest.angle:g}, {weakest.certified:.4f}")
    figure.legend(handles=shown, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    return without_formulas(figure)


def _describe(axes: PolarAxes, scan: Scan) -> None:
    axes.set_rlim(0, float(_edges(scan.sizes, np.inf)[-1]))
    axes.set_rgrids(scan.sizes, [str(size) for size in scan.sizes], angle=0, fontsize=7, color="white", weight="bold")
    axes.set_thetagrids(np.arange(0, 360, 45), ["up", "45", "90", "135", "down", "225", "270", "315"], fontsize=8)
    axes.grid(False)
    title = title_of(scan.image, f"{scan.label} under {scan.perturbation}: direction and size in pixels", 60)
    axes.set_title(title, fontsize=10, color=INK)


def _edges(values: tuple[float, ...], whole: float) -> Floats:
    """Where cells around some values end: half way to the next; alone, a tenth of a turn wide, or a pixel."""
    places = np.array(values, dtype=float)
    if len(places) == 1:
        half = 9.0 if whole == 180 else 0.5
        return np.array([places[0] - half, places[0] + half])
    between = (places[1:] + places[:-1]) / 2
    return np.concatenate([[1.5 * places[0] - places[1] / 2], between, [1.5 * places[-1] - places[-2] / 2]])
