"""Plots of requirements: the margin, the outputs with their limits, and a map of lost pixels."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from shakeproof.proof import Enumerated, Result, Swept
from shakeproof.question import Case
from shakeproof.report.plots import (
    INK,
    LOSS,
    PROVED,
    legend_below,
    margin_of,
    name_strengths,
    plain_axes,
    show_image,
    show_proved,
    title_of,
    without_formulas,
)
from shakeproof.report.tables import critical_text

Floats = NDArray[np.float64]
# More outputs would only clutter the plot.
OUTPUTS_SHOWN = 6


def requirement_figure(result: Result) -> Figure:
    """The margin against the strength; below it the outputs, where they were kept, or how pixels are lost."""
    proof, about = result.proof, result.query.obligations[0].property
    outputs = proof.outputs if isinstance(proof, Swept) and len(proof.curve.z) > 1 else None
    pixels = _pixels(result, about.cases) if outputs is not None else None
    figure = Figure(figsize=(9.6, 4.4) if pixels else (7.0, 3.4 if outputs is None else 5.6), layout="constrained")
    if pixels is not None and outputs is not None:
        grid = figure.add_gridspec(2, 3, width_ratios=(2.4, 1, 1))
        axes, below = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
        maps = [figure.add_subplot(grid[row, column]) for row in range(2) for column in (1, 2)]
        _show_pixels(result, below, maps, *pixels)
    elif outputs is not None:
        axes, below = figure.subplots(2, 1, sharex=True)
        _show_outputs(result, below, outputs)
    else:
        axes = below = figure.add_subplot()
    _show_margin(result, axes)
    name_strengths(below, result)
    axes.set_title(title_of(result.query.name, str(result.query.perturbation), 60), fontsize=10, color=INK)
    names: dict[str, object] = {}
    for part in (axes, below):
        names |= {name: handle for handle, name in zip(*part.get_legend_handles_labels(), strict=True)}
    legend_below(figure, list(names.values()), list(names), most=4)
    return without_formulas(figure)


def _show_margin(result: Result, axes: Axes) -> None:
    (strength,) = result.query.strengths
    z, margin = margin_of(result)
    style = "steps-post" if isinstance(result.proof, Enumerated) else "default"
    axes.plot(z, margin, color=INK, linewidth=1.4, drawstyle=style, label="margin: above 0, it holds")
    show_proved(axes, result, "it")
    axes.axhline(0, color=INK, linewidth=0.9)
    if result.critical_strength is not None:
        low, high = result.critical_strength
        axes.plot(
            [low, high], [0, 0], "o-", color=LOSS, markersize=6, label=f"critical strength {critical_text(result)}"
        )
    if strength > 0:
        axes.set_xlim(0, strength)
    axes.set_ylabel(fill(f"margin of {result.query.requirement}", 30), fontsize=8)
    plain_axes(axes)


def _show_outputs(result: Result, axes: Axes, outputs: Floats) -> None:
    """The outputs that are spoken of, and the bounds of those that have bounds of their own."""
    cases = result.query.obligations[0].property.cases
    spoken_of = np.flatnonzero(sum(np.abs(case.coefficients).sum(0) for case in cases))
    z = margin_of(result)[0]
    closest = spoken_of[np.argsort(-outputs[:, spoken_of].max(0))][:OUTPUTS_SHOWN]
    for place in sorted(closest.tolist()):
        axes.plot(z, outputs[:, place], linewidth=1.2, label=f"output {place}")
    for bound in _bounds(cases):
        axes.axhline(bound, color=PROVED, linewidth=1.1, linestyle="--", label="limit")
    axes.set_ylabel("outputs", fontsize=9)
    plain_axes(axes)


def _bounds(cases: tuple[Case, ...]) -> Iterator[float]:
    """Numbers that single outputs must stay above, or below."""
    for case in cases:
        row = case.coefficients[0]
        if len(case.constants) == 1 and np.count_nonzero(row) == 1:
            yield float(-case.constants[0] / row[row != 0][0])


# -- pixels -----------------------------------------------------------------------------------------------------------


def _pixels(result: Result, cases: tuple[Case, ...]) -> tuple[Case, int, int] | None:
    """The case that counts pixels, and the picture's height and width; None if the requirement is another one."""
    image = result.query.image
    counting = [case for case in cases if case.starts is not None]
    if len(counting) != 1 or image is None:
        return None
    height, width = image.pixels.shape[1:]
    return (counting[0], height, width) if counting[0].coefficients.shape[1] % (height * width) == 0 else None


def _show_pixels(result: Result, axes: Axes, maps: list[Axes], case: Case, height: int, width: int) -> None:
    """How many pixels are kept, the classes at strength 0 and where it fails or ends, and where each is lost."""
    proof = result.proof
    assert isinstance(proof, Swept)
    assert proof.outputs is not None
    z, outputs = proof.curve.z, proof.outputs
    lost_from, kept = pixel_strengths(case, z, outputs)
    axes.step(z, 100 * kept, where="post", color=INK, linewidth=1.2, label="pixels kept, at breakpoints")
    axes.axhline(
        100 * (1 - (case.groups[1] - 1) / len(lost_from)), color=PROVED, linestyle="--", label="share required"
    )
    axes.set_xlim(0, float(z[-1]) or 1.0)
    axes.set_ylabel("pixels kept, %", fontsize=9)
    plain_axes(axes)
    end = float(z[-1]) if result.critical_strength is None else result.critical_strength[1]
    row = min(int(np.searchsorted(z, end)), len(z) - 1)
    classes = outputs.reshape(len(z), -1, height, width)[[0, row]].argmax(1)
    for part, segmented, name in zip(maps, classes, ("z = 0", f"z = {z[row]:.4g}"), strict=False):
        part.imshow(
            segmented, cmap="viridis", interpolation="nearest", vmin=0, vmax=outputs.shape[1] // (height * width) - 1
        )
        part.set_title(f"classes at {name}", fontsize=8, color=INK)
    heat = np.full(height * width, np.nan)
    heat[case.coefficients[case.groups[0]].argmin(1) % (height * width)] = np.where(
        np.isinf(lost_from), np.nan, lost_from
    )
    shown = maps[2].imshow(
        heat.reshape(height, width), cmap="magma", interpolation="nearest", vmin=0, vmax=float(z[-1])
    )
    maps[2].set_title("strength at which it is lost", fontsize=8, color=INK)
    axes.figure.colorbar(shown, ax=maps[2], fraction=0.05)
    if (picture := result.query.picture(float(z[row]))) is not None:
        show_image(maps[3], picture, f"z = {z[row]:.4g}")
    for part in maps:
        part.set_xticks([])
        part.set_yticks([])


def pixel_strengths(case: Case, z: Floats, outputs: Floats) -> tuple[Floats, Floats]:
    """For each pixel that counts, the first strength at which it is lost (infinite: none); and the share kept (rows).

    Between breakpoints every output is a chord, so a pixel's margin over each rival crosses 0 once at most.
    """
    rows = -(outputs @ case.coefficients.T + case.constants)
    starts, _ = case.groups
    margins = np.minimum.reduceat(rows, starts, axis=1)
    lost = margins <= 0
    first = lost.argmax(0)
    lost_from = np.full(len(starts), np.inf)
    ends = np.append(starts, rows.shape[1])
    for pixel in np.flatnonzero(lost.any(0)).tolist():
        row, rivals = int(first[pixel]), slice(ends[pixel], ends[pixel + 1])
        after = rows[row, rivals]
        before = rows[max(row - 1, 0), rivals]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(after <= 0, before / (before - after), 1.0)
        step = z[row] - z[max(row - 1, 0)]
        lost_from[pixel] = z[max(row - 1, 0)] + step * float(np.nanmin(share)) if row else z[0]
    return lost_from, 1 - lost.mean(1)
