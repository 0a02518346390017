"""VNN-LIB files mean what they say, whatever their form, and a damaged one never means something else."""

from __future__ import annotations

import gzip
import math
import operator
import re
import sys
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shakeproof as sp
from shakeproof.errors import InputError
from shakeproof.question import (
    Case,
    Specification,
    perturbed_directives,
    read_specification,
    robustness,
    written_perturbed,
)
from shakeproof.question import vnnlib as reading
from shakeproof.question import vnnlib_formula as formula

HEAD = """; two inputs, three outputs
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(declare-const Y_2 Real)
"""
BOX = """(assert (>= X_0 -1.5))
(assert (<= X_0 2))
(assert (<= 0.25 X_1))
(assert (<= X_1 1e0))
"""
PROPERTY = """(assert (or
    (and (>= Y_0 Y_1))
    (and (<= Y_1 Y_2))
))
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(text: str | bytes, name: str = "q.vnnlib") -> Specification:
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return read_specification(tmp_path / name)

    return write_and_read


def cases_of(specification: Specification) -> list[tuple[np.ndarray, np.ndarray, Case]]:
    """Each case with the box that it is about."""
    return [(*box, case) for box, about in specification.parts for case in about.cases]


def meets(low: np.ndarray, high: np.ndarray, case: Case, x: np.ndarray, y: np.ndarray) -> bool:
    values = case.coefficients @ y + case.constants
    inside = (low <= x).all() and (x <= high).all()
    return bool(inside and np.where(case.strict, values > 0, values >= 0).all())


def plain(specification: Specification) -> tuple:
    """All that a specification says, in a form that == compares."""
    names = ("coefficients", "constants", "strict")
    cases = [
        (low.tolist(), high.tolist(), *(getattr(case, name).tolist() for name in names))
        for low, high, case in cases_of(specification)
    ]
    assert {about.outputs for _, about in specification.parts} == {specification.outputs}
    return specification.inputs, specification.outputs, cases, dict(specification.directives)


def complaint(read, text: str | bytes, name: str = "q.vnnlib") -> str:
    with pytest.raises(InputError) as error:
        read(text, name)
    message = str(error.value)
    assert name in message
    assert len(message.splitlines()) == 1
    assert len(message) < 400
    return message


# -- real files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["mnist_fc", "oval21", "sri_resnet_b"])
def test_benchmark_files(shared, folder):
    for path in sorted(shared(f"benchmarks/{folder}/vnnlib").iterdir()):
        text = gzip.decompress(path.read_bytes()).decode()
        bounds = {(sign, int(i)): float(v) for sign, i, v in re.findall(r"\((<=|>=) X_(\d+) (\S+)\)\)", text)}
        losers = {a if sign == "<=" else b for sign, a, b in re.findall(r"\((<=|>=) Y_(\d+) Y_(\d+)\)", text)}
        found = read_specification(path)
        assert {str(found.label)} == losers
        assert found.inputs == text.count("declare-const X_")
        assert found.outputs == len(cases_of(found)) + 1 == 10
        for sign, side in zip((">=", "<="), found.box, strict=True):
            assert side.tolist() == [bounds[sign, i] for i in range(found.inputs)]


def test_many_inputs(read):
    count = 3072
    lines = [f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0.{i}))\n(assert (<= X_{i} 1.{i}))" for i in range(count)]
    text = HEAD.replace("(declare-const X_0 Real)\n(declare-const X_1 Real)\n", "") + "\n".join(lines) + PROPERTY
    low, high = read(text).box
    assert low.tolist() == [float(f"0.{i}") for i in range(count)]
    assert high.tolist() == [float(f"1.{i}") for i in range(count)]


# -- meaning ----------------------------------------------------------------------------------------------------------


def test_a_robustness_query(read):
    found = read(HEAD + BOX + PROPERTY)
    expected = robustness(np.array([-1.5, 0.25]), np.array([2.0, 1.0]), label=1, outputs=3)
    assert plain(found) == plain(expected)
    assert found.label == expected.label == 1
    assert [side.tolist() for side in found.box] == [[-1.5, 0.25], [2.0, 1.0]]
    assert read(gzip.compress((HEAD + BOX + PROPERTY).encode()), "q.vnnlib.gz").label == 1
    for same in ((HEAD + BOX + PROPERTY).replace("\n", "\r"), "\ufeff" + HEAD.replace("\n", "\r\n") + BOX + PROPERTY):
        assert plain(read(same)) == plain(found)


def test_the_usual_lines_mean_what_the_same_words_mean_elsewhere(read):
    odd = BOX.replace("(assert (", "(assert  (")
    for old, new in (("", ""), ("-1.5", "-0.0"), ("-1.5", "+.5e-1")):
        usual, other = (plain(read(HEAD + box.replace(old, new) + PROPERTY)) for box in (BOX, odd))
        assert repr(usual) == repr(other)  # -0.0 is not 0.0
    for text in ("1e999", "0.1.2", "nan", ""):
        usual, other = (complaint(read, HEAD + box.replace("-1.5", text) + PROPERTY) for box in (BOX, odd))
        assert usual == other


def test_declarations_in_any_order_and_form(read):
    functions = re.sub(r"\(declare-const (\w+) Real\)", r"(declare-fun \1 () Real)", HEAD)
    backwards = "\n".join(reversed(HEAD.splitlines()))
    expected = plain(read(HEAD + BOX + PROPERTY))
    assert plain(read(functions + PROPERTY + BOX)) == expected
    assert plain(read(BOX + PROPERTY + backwards)) == expected


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("(or (>= Y_0 Y_1) (> Y_2 Y_1))", 1),
        ("(>= Y_0 Y_2)", 2),
        ("(or (>= (- Y_0 Y_1) 0) (<= 0 (+ Y_2 (- Y_1))))", 1),
        ("(or (>= (* 2 Y_0) (* 2 Y_1)))", 1),
        ("(or (>= Y_0 Y_1) (>= Y_1 Y_2))", None),
        ("(and (>= Y_0 Y_1) (>= Y_2 Y_1))", None),
        ("(or (>= Y_0 Y_1) (>= Y_2 0))", None),
        ("(>= (+ Y_0 0.1) Y_1)", None),
        ("(>= (* 2 Y_0) Y_1)", None),
        ("(>= (* 2 Y_0) (+ Y_1 Y_2))", None),
        ("(>= Y_0 Y_0)", None),
        ("(or (and (>= Y_0 Y_1) (<= X_0 1)) (>= Y_2 Y_1))", None),
    ],
)
def test_labels(read, text, label):
    assert read(f"{HEAD}{BOX}(assert {text})").label == label


def test_repeated_bounds_intersect(read):
    low, high = read(HEAD + BOX + "(assert (<= X_0 1))(assert (<= X_0 3))(assert (>= X_0 -9))" + PROPERTY).box
    assert (low[0], high[0]) == (-1.5, 1)


def test_boxes_of_their_own_and_empty_ones(read):
    text = HEAD + "".join(
        (
            "(assert (or",
            " (and (= X_0 1) (<= X_1 2) (>= X_1 0) (>= Y_0 3))",
            " (and (< X_0 2) (> X_0 1) (>= X_1 0) (<= X_1 0) (< Y_0 (- 3)) (== Y_1 Y_2))",
            " (and (<= X_0 2) (>= X_0 3) (>= X_1 0) (>= Y_0 3))",
            "))",
        )
    )
    found = read(text)
    assert found.box is None
    assert plain(found)[2] == [
        ([1, 0], [1, 2], [[1, 0, 0]], [-3], [False]),
        (
            [math.nextafter(1, 2), 0],
            [math.nextafter(2, 1), 0],
            [[-1, 0, 0], [0, 1, -1], [0, -1, 1]],
            [-3, 0, 0],
            [True, False, False],
        ),
    ]


def test_a_case_without_rows_is_the_whole_box(read):
    ((_, _, case),) = cases_of(read(f"{HEAD}{BOX}(assert (or (<= Y_0 Y_0) (< Y_1 Y_1)))"))
    assert case.coefficients.shape == (0, 3)
    assert case.constants.shape == case.strict.shape == (0,)


def test_any_depth(read):
    for depth in (2_000, 90_000):
        nested = "(and " * depth + "(>= Y_0 " + "(- " * 4 + "Y_1" + ")" * 4 + ")" + ")" * depth
        assert read(f"{HEAD}{BOX}(assert {nested})").label == 1


NUMBERS = st.integers(-8, 8).map(lambda n: n / 4)
SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq, "!=": operator.ne}


@st.composite
def sums(draw, names):
    """A linear expression as text, and as a function of the variables' values."""
    constant, weights = draw(NUMBERS), [draw(NUMBERS) for _ in names]
    words = [f"{constant}" if constant >= 0 else f"(- {-constant * 100:g}e-2)"]
    for name, weight in zip(names, weights, strict=True):
        words.append(
            draw(
                st.sampled_from(
                    [f"(* {weight} {name})", f"(/ (* {name} {8 * weight}) 4 2)", f"(+ (* {weight} {name}))"]
                )
            )
        )
    joined = draw(st.sampled_from([f"(+ {' '.join(words)})", f"(- {words[0]} (- 0 {' '.join(words[1:])}))"]))
    return joined, lambda v: constant + sum(w * v[n] for n, w in zip(names, weights, strict=True))


@st.composite
def comparisons(draw):
    names = draw(st.sampled_from([("X_0",), ("X_1",), ("Y_0",), ("Y_0", "Y_1"), ("Y_0", "Y_1", "Y_2")]))
    (left, left_value), (right, right_value) = draw(sums(names)), draw(sums(names))
    sign = draw(st.sampled_from(list(SIGNS)))

    return f"({sign} {left} {right})", lambda v: SIGNS[sign](left_value(v), right_value(v))


def junctions(children):
    return st.tuples(st.sampled_from([("and", all), ("or", any)]), st.lists(children, min_size=1, max_size=3)).map(
        lambda both: (
            f"({both[0][0]} {' '.join(text for text, _ in both[1])})",
            lambda v: both[0][1](holds(v) for _, holds in both[1]),
        )
    )


@settings(max_examples=300)
@given(
    st.lists(st.recursive(comparisons(), junctions, max_leaves=8), min_size=1, max_size=3),
    st.lists(st.tuples(*[NUMBERS] * 5), min_size=20, max_size=20),
)
def test_cases_agree_with_the_formula(tmp_path_factory, asserted, points):
    path = tmp_path_factory.getbasetemp() / "random.vnnlib"
    box = "".join(f"(assert (<= X_{i} 1.5))(assert (>= X_{i} -1.5))" for i in range(2))
    path.write_text(f"{HEAD}{box}{''.join(f'(assert {text})' for text, _ in asserted)}(assert (<= Y_0 Y_0))")
    try:
        found = read_specification(path)
        cases = cases_of(found)
    except InputError as error:
        found, cases = None, () if "contradict" in str(error) else None
    for point in points:
        values = dict(zip(("X_0", "X_1", "Y_0", "Y_1", "Y_2"), point, strict=True))
        expected = max(map(abs, point[:2])) <= 1.5 and all(holds(values) for _, holds in asserted)
        x, y = np.array(point[:2]), np.array(point[2:])
        assert any(meets(*case, x, y) for case in cases) == expected
        assert found is None or found.is_counterexample(x, y) == expected


# -- perturbed queries ------------------------------------------------------------------------------------------------

DIRECTIVES = """; shakeproof-perturbation: box-blur:size=3
; shakeproof-strength: 0.4
"""
POINT = re.sub(r"-1\.5|\b2\b|0\.25|1e0", "0.5", BOX)


def test_directives(read):
    found = read(DIRECTIVES + ";;shakeproof-mean: .1,2e-1\n" + HEAD + POINT + PROPERTY)
    assert found.directives == {"perturbation": "box-blur:size=3", "strength": "0.4", "mean": ".1,2e-1"}
    assert found.label == 1
    pytest.importorskip("vnnlib")
    assert read(DIRECTIVES + HEAD2 + version2(POINT + PROPERTY)).directives["strength"] == "0.4"
    assert read("; not a ; shakeproof-word: x\n" + HEAD + POINT + PROPERTY).directives == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.4\n", "0.4\n; shakeproof-padding: zeros\n", "unknown directive 'shakeproof-padding: zeros'"),
        ("0.4\n", "0.4\n; shakeproof-strength: 0.4\n", "shakeproof-strength is given twice"),
        ("0.4\n", "0.4\n(assert (<= X_0 1)) ; shakeproof-strength: 0.4\n", "shakeproof-strength is given twice"),
        ("0.4\n", "0.4\n; shakeproof-image-shape: 3,4\n", "shakeproof-image-shape cannot be '3,4'"),
        ("0.4\n", "0.4\n; shakeproof-image-shape: 3,0,4\n", "shakeproof-image-shape cannot be"),
        ("0.4\n", "0.4\n; shakeproof-\n", "unknown directive"),
        (": 0.4", " 0.4", "unknown directive 'shakeproof-strength 0.4'"),
        (": 0.4", ": 0.4,", "shakeproof-strength cannot be '0.4,'"),
        (": 0.4", ": nan", "shakeproof-strength cannot be 'nan'"),
        ("; shakeproof-strength: 0.4\n", "", "not shakeproof-strength"),
        ("; shakeproof-perturbation: box-blur:size=3\n", "", "not shakeproof-perturbation"),
        (": box-blur:size=3\n", ":\n", "shakeproof-perturbation cannot be ''"),
        ("(<= X_0 0.5)", "(<= X_0 0.6)", "must be one image"),
        (PROPERTY, "(assert (>= Y_0 1))", "names no label"),
    ],
)
def test_mistakes_in_directives(read, old, new, message):
    text = DIRECTIVES + HEAD + POINT + PROPERTY
    assert old in text
    assert message in complaint(read, text.replace(old, new))


def perturbations():
    kernels = st.one_of(
        st.builds(sp.motion_blur, st.sampled_from([3, 5, 9]), st.floats(0, 179)),
        st.builds(sp.box_blur, st.sampled_from([3, 5]), st.sampled_from(["zeros", "reflect"])),
        st.builds(sp.contrast, st.floats(0.01, 3), st.just((0.0, 1.0))),
    )
    return st.lists(kernels, min_size=1, max_size=3).map(lambda parts: reduce(operator.add, parts))


@settings(max_examples=100)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    perturbations(),
    st.floats(0, 1),
    st.none() | st.lists(st.floats(-3, 3), min_size=1, max_size=3),
    st.integers(2, 12).flatmap(lambda outputs: st.tuples(st.just(outputs), st.integers(0, outputs - 1))),
)
def test_perturbed_text_round_trips(tmp_path_factory, pixels, perturbation, strength, mean, classes):
    outputs, label = classes
    image = np.array(pixels)
    directives = perturbed_directives(
        str(perturbation), perturbation.strengths(strength), mean, None, (1, 1, len(image))
    )
    specification = replace(robustness(image, image, label, outputs), directives=directives)
    text = written_perturbed(specification)
    path = tmp_path_factory.getbasetemp() / "perturbed.vnnlib"
    path.write_text(text)
    found = read_specification(path)
    assert written_perturbed(found) == text
    assert plain(found) == plain(specification)
    assert found.label == label
    assert sp.parse(found.directives["perturbation"]) == perturbation
    assert perturbation.strengths(
        [float(z) for z in found.directives["strength"].split(",")]
    ) == perturbation.strengths(strength)


def test_what_cannot_be_written(read):
    with pytest.raises(InputError, match="cannot stand in a comment"):
        perturbed_directives("custom:file=a\nb.npy", [1.0], None, None, (1, 1, 1))
    for text in ("(assert (>= Y_0 1))", "(assert (or (and (<= X_0 1) (>= Y_0 Y_1)) (>= Y_2 Y_1)))"):
        with pytest.raises(InputError, match="can be written"):
            written_perturbed(read(HEAD + BOX + text))
    with pytest.raises(InputError, match="can be written"):
        written_perturbed(robustness(np.zeros(1), np.zeros(1), 0, 1))


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(assert (<= X_0 2))", "(assert (<= X_0 2)", "line 9: .* a parenthesis is missing before it"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 2)))", "line 8: '\\)' is outside of every command"),
        ("(assert (<= X_0 2))", "X_0 (assert (<= X_0 2))", "outside of every command"),
        ("(assert (<= X_0 2))", "(check-sat)", "line 8: unknown command 'check-sat'"),
        ("(assert (<= X_0 2))", "(assert (=> (<= X_0 2) (<= X_0 2)))", "unknown operator '=>'"),
        ("(assert (<= X_0 2))", "()", "begin with its name"),
        ("(assert (<= X_0 2))", "(assert)", "must hold one comparison"),
        ("(assert (<= X_0 2))", "(assert 3)", "must hold one comparison"),
        ("(assert (<= X_0 2))", "(assert (+ X_0 2))", "must hold one comparison"),
        ("(assert (<= X_0 2))", "(assert (and))", "must hold comparisons"),
        ("(assert (<= X_0 2))", "(assert (or (<= X_0 2) X_0))", "must hold comparisons"),
        ("(assert (<= X_0 2))", "(assert (or (<= X_0 2) ()))", "must hold comparisons"),
        ("(assert (<= X_0 2))", "(assert ((<=) X_0 2))", "must hold numbers and variables"),
        ("(assert (<= X_0 2))", "(assert ((+ 1) X_0 2))", "begin with an operator"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 (<= X_0 2)))", "must hold numbers and variables"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 1 2))", "must compare two values, not 3"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 2.0.0))", "neither a number nor a variable"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 nan))", "neither a number nor a variable"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 1_0))", "neither a number nor a variable"),
        ("(assert (<= X_0 2))", "(assert (<= X_00 2))", "neither a number nor a variable"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 1e999))", "too large"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 (* 1e200 1e200)))", "beyond 64 bits"),
        ("(assert (<= X_0 2))", "(assert (<= (* 1e-200 X_0) 1e200))", "beyond 64 bits"),
        ("(assert (<= X_0 2))", "(assert (<= (/ X_0 0) 2))", "divisors"),
        ("(assert (<= X_0 2))", "(assert (<= (/ 2 X_0) 2))", "divisors"),
        ("(assert (<= X_0 2))", "(assert (<= (* X_0 X_0) 2))", "not linear"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 Y_0))", "mixes inputs and outputs"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 X_1))", "only boxes"),
        ("(assert (<= X_0 2))", "", "input 0 .* has no upper bound"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 -2))", "contradict"),
        ("(assert (<= X_0 2))", "(assert (<= 2 1))", "contradict"),
        ("(assert (<= X_0 2))", "(assert (<= X_2 2))", "X_2 is used but not declared"),
        ("(assert (<= X_0 2))", "(assert (<= X_0 " + "z" * 10_000 + "))", "neither a number nor a variable"),
        ("(declare-const X_1 Real)", "(declare-const X_999999999999 Real)", "inputs must be declared as X_0, X_1"),
        ("(declare-const X_1 Real)", "(declare-const X_0 Real)", "X_0 is declared twice"),
        ("(declare-const X_1 Real)", "(declare-const Z_1 Real)", "'Z_1' is declared"),
        ("(declare-const X_1 Real)", "(declare-const X_1 Bool)", "a declaration must read"),
        (
            "(declare-const X_1 Real)",
            "(declare-fun X_1 (Real) Real)",
            "neither a number|a declaration|unknown operator",
        ),
        (PROPERTY, "", "says nothing about the outputs"),
        (HEAD, "", "inputs must be declared"),
    ],
)
def test_mistakes(read, old, new, message):
    text = HEAD + BOX + PROPERTY
    assert old in text
    assert re.search(message, complaint(read, text.replace(old, new)))


def test_no_outputs(read):
    assert "outputs must be declared" in complaint(read, re.sub(r"\(declare-const Y.*\n", "", HEAD) + BOX + PROPERTY)


def test_what_is_not_text_or_not_whole(read, tmp_path):
    packed = gzip.compress((HEAD + BOX + PROPERTY).encode())
    for cut in (0, 5, 50, len(packed) - 3):
        complaint(read, packed[:cut], "q.vnnlib.gz")
    assert "gzip" in complaint(read, b"no gzip", "q.vnnlib.gz")
    assert "not text" in complaint(read, packed)
    complaint(read, "")
    for name in ("gone.vnnlib", "."):
        with pytest.raises(InputError, match=r"cannot read the query|is a folder"):
            read_specification(tmp_path / name)


def test_what_is_too_large(read, monkeypatch):
    disjunctions = "(assert (and" + " (or (>= Y_0 Y_1) (>= Y_0 Y_2))" * 20 + "))"
    assert "too many cases" in complaint(read, HEAD + BOX + disjunctions)
    assert "too many cases" in complaint(read, HEAD + BOX + "(assert (or (>= Y_0 Y_1) (>= Y_0 Y_2)))" * 20)
    assert "too many cases" in complaint(read, HEAD + BOX + "(assert (!= Y_0 Y_1))" * 20_000)
    assert "inside each other" in complaint(read, HEAD + "(" * 200_000)
    monkeypatch.setattr(formula, "MOST_NUMBERS", 20)
    assert "more than 20 numbers" in complaint(read, HEAD + BOX + "(assert (or" + " (>= Y_0 Y_1)" * 6 + "))")
    monkeypatch.setattr(reading, "LARGEST_TEXT", 1 << 20)
    bomb = gzip.compress(b" " * (1 << 24))
    assert "more than 1 MiB of text" in complaint(read, bomb, "bomb.vnnlib.gz")


def test_a_prefix_never_means_something_else(read):
    text = HEAD + BOX + PROPERTY
    whole, read_as_whole = plain(read(text)), 0
    for end in range(len(text)):
        try:
            assert plain(read(text[:end])) == whole
            read_as_whole += 1
        except InputError:
            pass
    assert read_as_whole == 1  # all but the last line's end


# -- version 2.0 ------------------------------------------------------------------------------------------------------

HEAD2 = """; a comment ( with parentheses
(vnnlib-version <2.0>)
(declare-network net
    (declare-input image float32 [1, 2, 1])
    (declare-output scores float32 [3])
)
"""


def version2(text: str) -> str:
    """The assertions of 1.0 in 2.0's words: other names, no exponents, and points in all numbers."""
    text = re.sub(r"X_(\d)", r"image[0, \1, 0]", text).replace("1e0", "1.0").replace("(= ", "(== ")
    return re.sub(r"(?<=[ -])(\d)(?=\))", r"\1.0", re.sub(r"Y_(\d)", r"scores[\1]", text))


@pytest.mark.parametrize(
    "text",
    [
        BOX + PROPERTY,
        "(assert (or (and (= X_0 1) (<= X_1 2) (>= X_1 0) (>= Y_0 3))"
        " (and (< X_0 2) (> X_0 1) (>= X_1 0) (<= X_1 0) (< Y_0 (- 3)) (== Y_1 Y_2))))",
        BOX + "(assert (and (!= Y_0 (+ Y_1 Y_2 1)) (>= (- Y_0 Y_1 Y_2) (* -2.5 Y_1))))",
    ],
)
def test_version_2_means_the_same(read, text):
    pytest.importorskip("vnnlib")
    found = read(HEAD2 + version2(text))
    assert found.network == "net"
    assert plain(found) == plain(read(HEAD + text))


def test_version_2_flattens_in_row_major_order(read):
    pytest.importorskip("vnnlib")
    shape = (2, 3, 4)
    head = HEAD2.replace("[1, 2, 1]", "[2, 3, 4]")
    entries = [(f"image[{', '.join(map(str, index))}]", place) for place, index in enumerate(np.ndindex(shape))]
    box = "".join(f"(assert (>= {name} {place}.5))(assert (<= {name} {place}.75))" for name, place in entries)
    low, high = read(head + box + version2(PROPERTY)).box
    assert np.array_equal(low, np.arange(24) + 0.5)
    assert np.array_equal(high, np.arange(24) + 0.75)
    scalar = HEAD2.replace("[1, 2, 1]", "[]").replace("float32", "Real")
    assert read(scalar + "(assert (== image 3))" + version2(PROPERTY)).inputs == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<2.0>", "<2.1>", "VNN-LIB 2.1; only 1.0 and 2.0"),
        ("<2.0>", "<3.0>", "VNN-LIB 3.0; only 1.0 and 2.0"),
        ("(vnnlib-version <2.0>)", "", "not valid VNN-LIB 2.0"),
        ("image[0, 0, 0] -1.5", "image[0, 2, 0] -1.5", "Index 2 is out of bounds"),
        ("image[0, 0, 0] -1.5", "image[0, -1, 0] -1.5", "index -1 is not one of 0 to 1"),
        ("image[0, 0, 0] -1.5", "image[0, 0] -1.5", "Not enough indices"),
        ("image[0, 0, 0] -1.5", "picture[0, 0] -1.5", "Undeclared variable 'picture'"),
        ("-1.5", "-1e5", "syntax error"),
        ("-1.5", "9" * 400 + ".0", "not valid VNN-LIB 2.0"),
        ("-1.5", "(* image[0, 0, 0] image[0, 0, 0])", "not linear"),
        ("-1.5", "scores[0]", "mixes inputs and outputs"),
        ("-1.5", "image[0, 1, 0]", "only boxes"),
        ("[3]", "[99999999999999999999999]", "not valid VNN-LIB 2.0"),
        ("[3]", "[999999999999]", "more than 67,108,864 numbers"),
        ("[1, 2, 1]", "[1, 999999999, 1]", "more than 67,108,864 numbers"),
        ("[1, 2, 1]", "[1, 3, 1]", "input 2 .* has no lower bound"),
        ("float32 [3]", "int8 [3]", "not valid VNN-LIB 2.0|type I8"),
        ("(declare-output", '(declare-hidden h float32 [2] "h") (declare-output', "one input, one output"),
        ("(declare-output", "(declare-input more float32 [2]) (declare-output", "one input, one output"),
        (
            "\n)\n",
            "\n)\n(declare-network b (declare-input c Real [1]) (declare-output d Real [1]))",
            "about 2 networks",
        ),
        ("(assert", "\0(assert", "zero byte"),
        ("(assert", '"(assert', "quoted name"),
        ("(assert", "é(assert", "not valid VNN-LIB 2.0"),
        ("(assert (or", "(assert " + "(and " * 100_000 + "(or", "inside each other"),
        ("(assert (or", "(assert (or ;" + ")" * 200_000 + "\n" + "(and " * 100_000, "inside each other"),
    ],
)
def test_mistakes_in_version_2(read, old, new, message):
    pytest.importorskip("vnnlib")
    text = HEAD2 + version2(BOX + PROPERTY)
    assert old in text
    assert re.search(message, complaint(read, text.replace(old, new, 1)))


def test_a_prefix_of_version_2(read):
    pytest.importorskip("vnnlib")
    text = HEAD2 + version2(BOX + PROPERTY)
    whole = plain(read(text))
    for end in range(len(text)):
        try:
            assert plain(read(text[:end])) == whole
        except InputError:
            continue


def test_version_2_without_its_parser(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "vnnlib", None)
    assert "pip install 'shakeproof[vnnlib2]'" in complaint(read, HEAD2 + version2(BOX + PROPERTY))
