"""Tables that fit their terminal, and plots in which nothing covers a curve."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import shakeproof as sp
from shakeproof import demo
from shakeproof.question import ClassNames
from shakeproof.report import DemoRows, ResultRows, save

IMAGES = {path.stem: (path, label) for path, label in demo.images()}
LONG = "a/rather/long/way/to/a/folder/of/pictures/" + "x" * 70 + ".png"


@pytest.fixture(scope="module")
def results(demo_network):
    """Safe, unsafe, by bounds, and undecided after some of the way."""
    network, (path, label) = demo_network, IMAGES["warning.1"]
    found = [
        sp.profile(network, path, "motion-blur:size=9,angle=0", label=label),
        sp.profile(network, path, "motion-blur:size=9,angle=90", label=label, whole_curve=True),
        sp.profile(network, path, "box-blur:size=9", label=label, method="bounds", max_strength=0.3),
        sp.profile(network, path, "box-blur:size=9+brightness:max=0.001", max_strength=(0.1, 0.1)),
        sp.profile(network, path, "box-blur:size=9", label=label, timeout=1e-6),
    ]
    assert [result.status for result in found] == ["safe", "unsafe", "safe", "safe", "undecided"]
    return found


def drawn(results, width: int, name: str | None = None) -> str:
    names = [(name or result.query.name, str(result.query.perturbation)) for result in results]
    console = Console(file=io.StringIO(), width=width)
    rows = ResultRows(names, width)
    for result in results:
        console.print(rows.drawn(result))
    return console.file.getvalue()


def test_what_float64_shows_and_does_not_prove_is_said(results):
    """As for networks so deep that rounding might explain every margin: no piece is proved."""
    proved = results[0]
    (proof,) = proved.evidence.proofs
    unproved = replace(proof, lower=np.full_like(proof.lower, -np.inf), reached=0.0, timed_out=True)
    result = replace(proved, evidence=replace(proved.evidence, proofs=(unproved,)))
    assert result.status == "undecided"
    assert "(in float64, not proved: wins up to 1)" in " ".join(drawn([result], 240).split())
    assert "not proved" not in drawn(results, 240)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_rows_fit_and_nothing_is_lost(results, width):
    text = drawn(results, width)
    assert max(map(len, text.splitlines())) <= width
    whole = "".join(text.split())  # names and numbers may be folded, but not cut
    for result in results:
        assert "".join(str(result.query.perturbation).split()) in whole or width == 40
    assert "0.68193704" in whole
    assert "…" not in text


def test_rows_are_stacked_where_columns_do_not_fit(results):
    narrow, wide = drawn(results, 80), drawn(results, 240)
    assert narrow.count(results[0].query.name) == 1  # the image once, its perturbations below
    assert wide.count(results[0].query.name) == len(results)
    assert "critical strength 0.68193704" in narrow
    assert wide.splitlines()[0].split()[:3] == ["image", "perturbation", "label"]


def test_a_name_longer_than_the_terminal_is_folded(results, demo_network):
    picture = sp.Image(LONG, results[0].query.image.pixels, 8)
    (query,) = sp.perturbed(demo_network, [picture], "identity")
    (result,) = sp.analyse(demo_network, [query])
    text = drawn([result], 60)
    assert max(map(len, text.splitlines())) <= 60
    assert LONG in "".join(text.split())


def test_margins_by_bounds_say_that_they_are_bounds(results):
    exact, lost, bounded, several, undecided = (drawn([result], 80) for result in results)
    assert f"min margin {results[0].min_margin:.4g}" in exact
    assert f"min margin {results[1].min_margin:.4g}" in lost
    for text, result in ((bounded, results[2]), (several, results[3])):
        said = float(text.partition("min margin >= ")[2].split()[0])
        assert result.min_margin - 1e-3 < said <= result.min_margin  # never rounded up
    assert "min margin" not in undecided


def test_an_undecided_answer_says_how_far_it_got(folded_demo, tmp_path):
    path, label = IMAGES["stop.1"]
    close = {"max_strength": 0.9823, "arithmetic": "float32"}  # just before it loses
    result = sp.profile(folded_demo, path, "motion-blur:size=9,angle=90", label=label, **close)
    assert (result.status, result.reason) == ("undecided", "float32")
    assert 0.9 < result.certified_strength < 0.9823
    assert f"critical strength > {result.certified_strength:.4f}"[:-1] in drawn([result], 80)
    assert "float32" in ResultRows.remarks(result)
    save(result.plot(), tmp_path / "p.png")
    names = {text.get_text() for legend in result.plot().legends for text in legend.get_texts()}
    assert {"not proved", f"proved up to {result.certified_strength:.6g}"} <= names


@pytest.mark.parametrize("classes", [None, [f"a class with quite a long name {k}" for k in range(10)], ["$x^{$"] * 10])
def test_nothing_covers_a_curve(results, classes, tmp_path):
    """Legend, title and names of classes lie beside the axes, and not on one another."""
    names = results[1].query.class_names if classes is None else ClassNames(tuple((name,) for name in classes))
    query = replace(results[1].query, class_names=names)
    figure = replace(results[1], query=query).plot()
    save(figure, tmp_path / "p.png")
    figure.draw_without_rendering()
    (axes,), (legend,) = figure.axes, figure.legends
    inner = axes.get_window_extent()
    boxes = [legend.get_window_extent(), *(text.get_window_extent() for text in (*axes.texts, axes.title))]
    for box in boxes:
        assert not box.overlaps(inner)
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize(("room", "tables"), [(15, 3), (45, 1)])
def test_the_demo_fits_its_terminal(results, room, tables):
    queries = {str(result.query.perturbation): result for result in results if result.query.parameters == 1}
    name = results[0].query.name
    width = len(name) + room
    rows = DemoRows([name], [*queries], width)
    assert len(rows.tables) == tables
    console = Console(file=io.StringIO(), width=width)
    for table in rows.tables:
        console.print(rows.drawn([queries[text] for text in table]))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("image ") == tables
    assert "0.6819" in text
    assert text.count("safe") >= 1
