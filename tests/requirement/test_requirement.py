"""Requirements: text and value, and what a property says of outputs beside what a few plain lines of Python say."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shakeproof.errors import InputError
from shakeproof.graph import Graph
from shakeproof.model import with_cases
from shakeproof.model.required import logit
from shakeproof.question import KINDS, LABEL, Case, OutputContext, OutputPart, Property, Requirement, parse_requirement
from shakeproof.question.requirement import Among, Detection, Drift, Kind, Label, Never, Pixels, Score, Top, Within

OUTPUTS = 5
PARTS = (OutputPart("y", (OUTPUTS,)),)
finite = st.floats(-1e6, 1e6).map(lambda x: x + 0.0)
positive = st.floats(1e-6, 1e6)
classes = st.one_of(st.integers(0, OUTPUTS - 1), st.sampled_from(["stop", "speed limit 30", "no and entry"]))
some_classes = st.lists(classes, min_size=1, max_size=4, unique=True).map(tuple)
bands = st.tuples(finite, finite).filter(lambda band: band[0] < band[1])
kinds = st.one_of(
    st.builds(Label, positive),
    st.just(Label()),
    st.builds(Top, st.integers(1, OUTPUTS - 1)),
    st.builds(Among, some_classes),
    st.builds(Never, some_classes),
    st.builds(Score, classes, finite),
    st.builds(Within, st.one_of(st.integers(0, OUTPUTS - 1), st.sampled_from(["steering", "boxes[3,1]"])), bands),
    st.builds(Drift, st.integers(0, OUTPUTS - 1), positive),
    st.builds(Pixels, st.floats(0, 1, exclude_min=True), st.one_of(st.none(), classes)),
    st.builds(Detection, st.integers(0, 99), finite, positive),
)
requirements = st.lists(kinds, min_size=1, max_size=3).map(lambda parts: Requirement(tuple(parts)))


@given(requirement=requirements)
def test_text_and_value_round_trip(requirement):
    text = str(requirement)
    assert parse_requirement(text) == requirement
    assert str(parse_requirement(f" {text.replace(' and ', '   and ')} ".replace("no   and", "no and"))) == text


@pytest.mark.parametrize("kind", KINDS.values())
def test_examples_are_canonical(kind):
    assert str(parse_requirement(kind.example)) == kind.example
    assert str(LABEL) == "label"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown requirement ''"),
        ("win", "there are label, top"),
        ("label:lead=-1", "lead must be 0 or more"),
        ("label:lead=nan", "lead must be 0 or more"),
        ("top", "k missing; write for example top:k=3"),
        ("top:", "option '' is not one of k"),
        ("top:k=0", "k must be 1 or more"),
        ("top:k=1.5", "k must be a whole number"),
        ("top:k=1,k=2", "is given twice"),
        ("among:classes=", "classes must name an output"),
        ("among:classes=1,1", "classes that differ"),
        ("score:class=1,above=inf", "above must be a finite number"),
        ("score:class=1,over=2", "'over=2' is not one of class, above"),
        ("output:index=0,within=2..1", "LOW..HIGH"),
        ("output:index=,within=1..2", "index must name an output"),
        ("output:index=0,within=1", "must be LOW..HIGH"),
        ("drift:index=0,by=0", "by must be a positive number"),
        ("label and", "unknown requirement 'label and'"),
        ("label and top", "k missing"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(text, words):
    with pytest.raises(InputError) as refusal:
        parse_requirement(text)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


# -- what holds -------------------------------------------------------------------------------------------------------


def holds(kind: Kind, y: list[float], label: int, start: list[float]) -> bool:
    """What a requirement says of outputs, in plain words."""
    best = max(y)
    winners = [place for place, value in enumerate(y) if value == best]
    match kind:
        case Label():
            return all(Fraction(y[label]) - Fraction(own) > kind.lead for at, own in enumerate(y) if at != label)
        case Top():
            return sum(own >= y[label] for at, own in enumerate(y) if at != label) < kind.k
        case Among():
            return set(winners) <= set(kind.classes)
        case Never():
            return not set(winners) & set(kind.classes)
        case Score():
            return y[kind.output] > kind.above
        case Within():
            return kind.within[0] < y[kind.index] < kind.within[1]
        case Drift():
            return start[kind.index] - kind.by < y[kind.index] < start[kind.index] + kind.by
    raise AssertionError(kind)


# Few numbers, so that ties are frequent; halves and quarters, so that nothing is rounded.
quarters = st.integers(-8, 8).map(lambda n: n / 4)
numbers = st.integers(0, OUTPUTS - 1)
some_numbers = st.lists(numbers, min_size=1, max_size=OUTPUTS - 1, unique=True).map(tuple)
exact_kinds = st.one_of(
    st.builds(Label, st.integers(0, 6).map(lambda n: n / 4)),
    st.builds(Top, st.integers(1, OUTPUTS - 1)),
    st.builds(Among, some_numbers),
    st.builds(Never, some_numbers),
    st.builds(Score, numbers, quarters),
    st.builds(Within, numbers, st.tuples(quarters, quarters).filter(lambda band: band[0] < band[1])),
    st.builds(Drift, numbers, st.integers(1, 6).map(lambda n: n / 4)),
)
several_exact = st.lists(exact_kinds, min_size=1, max_size=3).map(tuple)
scores = st.lists(quarters, min_size=OUTPUTS, max_size=OUTPUTS)


def resolved(parts: tuple[Kind, ...], label: int, start: list[float]) -> Property:
    about = Requirement(parts).resolved(OutputContext(PARTS, int, label, np.array(start)))
    about.check()
    return about


@given(parts=several_exact, y=scores, start=scores, label=numbers)
@settings(max_examples=400)
def test_a_property_holds_where_plain_words_say_so(parts, y, start, label):
    about = resolved(parts, label, start)
    expected = all(holds(part, y, label, start) for part in parts)
    assert bool(about.margin(np.array([y]))[0] > 0) == expected
    assert bool(about.fails(np.array([y]))[0]) == (not expected)


@given(parts=several_exact, y=scores, start=scores, label=numbers, within=st.sampled_from([0.0, 0.25, 1.0]))
@settings(max_examples=200)
def test_a_margin_is_how_far_outputs_may_be_off(parts, y, start, label, within):
    """The least margin with outputs that are off is at a corner; and what `within` says is no more than that."""
    about = resolved(parts, label, start)
    signs = np.array(np.meshgrid(*[[-1, 1]] * OUTPUTS)).reshape(OUTPUTS, -1).T
    least = about.margin(np.array(y) + within * signs).min()
    assert about.margin(np.array([y]), np.full((1, OUTPUTS), within))[0] <= least


@given(parts=several_exact, y=scores, start=scores, label=numbers)
@settings(max_examples=200)
def test_the_graph_of_cases_has_the_same_margin(parts, y, start, label):
    about = resolved(parts, label, start)
    nothing = Graph(torch.Size([OUTPUTS]), ())
    made = with_cases(nothing, about).run(torch.tensor([y], dtype=torch.float64)).numpy()[0]
    assert made[0] == 0
    assert len(made) == len(about.cases) + 1
    assert -made[1:].max() == about.margin(np.array([y]))[0]
    assert with_cases(nothing, about) is with_cases(nothing, about)


groups = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(sizes=groups, seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=200)
def test_groups_of_rows_are_met_by_any_and_counted(sizes, seed, data):
    count, random = data.draw(st.integers(1, len(sizes))), np.random.default_rng(seed)
    rows, starts = sum(sizes), np.cumsum([0, *sizes[:-1]])
    coefficients, constants = random.integers(-2, 3, (rows, OUTPUTS)) * 1.0, random.integers(-2, 3, rows) * 1.0
    case = Case(coefficients, constants, np.zeros(rows, bool), starts, count)
    about, y = Property(OUTPUTS, (case,)), random.integers(-4, 5, (20, OUTPUTS)) / 2
    about.check()
    met = [
        [
            any(coefficients[a + i] @ row + constants[a + i] >= 0 for i in range(n))
            for a, n in zip(starts, sizes, strict=True)
        ]
        for row in y
    ]
    expected = [sum(own) >= count for own in met]
    assert case.met_by(y).tolist() == about.fails(y).tolist() == (about.margin(y) <= 0).tolist() == expected
    made = with_cases(Graph(torch.Size([OUTPUTS]), ()), about).run(torch.from_numpy(y)).numpy()
    assert np.array_equal(-made[:, 1], about.margin(y))


def test_a_case_that_is_none_is_refused():
    case = Case(np.eye(3), np.zeros(3), np.zeros(3, bool), np.array([0, 2]), 1)
    Property(3, (case,)).check()
    for broken in ({"starts": np.array([1, 2])}, {"starts": np.array([0, 3])}, {"count": 3}, {"count": 0}):
        with pytest.raises(InputError):
            Property(3, (replace(case, **broken),)).check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("never:classes=7", "numbered from 0 to 4"),
        ("among:classes=0,1,2,3,4", "not all of them"),
        ("output:index=5,within=0..1", "numbered from 0 to 4"),
        ("top:k=5", "choose a smaller k"),
    ],
)
def test_outputs_that_are_not_there_are_refused(text, words):
    with pytest.raises(InputError, match=words):
        parse_requirement(text).resolved(OutputContext(PARTS, int, 0, np.zeros(OUTPUTS)))


@given(share=st.floats(1e-300, 1, exclude_max=True))
def test_logits_are_rounded_outwards(share):
    assume(0 < share < 1)
    low, high = logit(share, up=False), logit(share, up=True)
    assert low <= high
    nearest = math.log(share) - math.log1p(-share)
    assert math.isclose((low + high) / 2, nearest, rel_tol=1e-12, abs_tol=1e-15)


# -- pixels and boxes -------------------------------------------------------------------------------------------------

HEIGHT, WIDTH, CLASSES = 2, 3, 3
SEGMENTED = (OutputPart("classes", (CLASSES, HEIGHT, WIDTH)),)
images = st.lists(st.integers(-3, 3).map(lambda n: n / 4), min_size=18, max_size=18).map(np.array)


@given(y=images, start=images, share=st.sampled_from([0.1, 0.5, 0.6, 0.95, 1.0]), chosen=st.sampled_from([None, 0, 2]))
@settings(max_examples=300)
def test_a_share_of_pixels_keeps_its_class(y, start, share, chosen):
    before, after = (value.reshape(CLASSES, -1) for value in (start, y))
    classes = before.argmax(0)
    pixels = [at for at in range(HEIGHT * WIDTH) if chosen in (None, classes[at])]
    requirement = Requirement((Pixels(share, chosen),))
    context = OutputContext(SEGMENTED, int, None, start)
    if not pixels:
        with pytest.raises(InputError, match="no pixel"):
            requirement.resolved(context)
        return
    kept = sum(
        all(after[classes[at], at] > after[rival, at] for rival in range(CLASSES) if rival != classes[at])
        for at in pixels
    )
    about = requirement.resolved(context)
    about.check()
    expected = Fraction(kept, len(pixels)) >= Fraction(str(share))
    assert bool(about.margin(y[None])[0] > 0) == (not about.fails(y[None])[0]) == expected
    made = with_cases(Graph(torch.Size([18]), ()), about).run(torch.from_numpy(y[None])).numpy()[0]
    assert -made[1] == about.margin(y[None])[0]


@given(seed=st.integers(0, 10**6), box=st.integers(0, 3))
def test_a_box_keeps_its_score_and_its_sides(seed, box):
    parts = (OutputPart("scores", (4, 2)), OutputPart("boxes", (4, 4)))
    random = np.random.default_rng(seed)
    start = random.normal(size=24)
    y = start + random.normal(size=24) * random.choice([0.01, 0.3])
    about = Requirement((Detection(box, 0.1, 0.4),)).resolved(OutputContext(parts, int, None, start))
    kind = start[:8].reshape(4, 2)[box].argmax()
    drift = np.abs(y - start)[8:].reshape(4, 4)[box].max()
    expected = y[:8].reshape(4, 2)[box, kind] > 0.1 and drift < 0.4
    assert bool(about.margin(y[None])[0] > 0) == expected


@pytest.mark.parametrize(
    ("text", "parts", "words"),
    [
        ("pixels:share=0.9", PARTS, "needs one output of shape"),
        ("pixels:share=0.9,class=3", SEGMENTED, "classes 0 to 2"),
        ("pixels:share=0.9", (OutputPart("m", (1, 4, 4)),), "needs one output of shape"),
        ("pixels:share=0.9", (OutputPart("m", (20, 64, 64)),), "too many"),
        ("detection:box=0,score=0,drift=1", PARTS, "needs two outputs"),
        ("detection:box=9,score=0,drift=1", (OutputPart("s", (4, 2)), OutputPart("b", (4, 4))), "numbered from 0 to 3"),
    ],
)
def test_networks_of_another_kind_are_refused(text, parts, words):
    with pytest.raises(InputError, match=words):
        parse_requirement(text).resolved(OutputContext(parts, int, 0, np.zeros(sum(part.size for part in parts))))
