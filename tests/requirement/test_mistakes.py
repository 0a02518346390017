"""Negative controls: what is a little wrong in a requirement's rule, the prover's or the checker's, is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from requirement.test_requirement import PARTS, holds

from shakeproof.checker import requirement as checked
from shakeproof.checker.enclosure import Tube
from shakeproof.question import Case, OutputContext, OutputPart, Property, parse_requirement

SEGMENTED = (OutputPart("classes", (3, 2, 3)),)
DETECTED = (OutputPart("scores", (4, 2)), OutputPart("boxes", (4, 4)))
# A requirement of each kind, and the outputs that it is about.
PLAIN = (
    *("label:lead=0.5", "top:k=2", "among:classes=0,3", "never:classes=1,2", "score:class=1,above=0.25"),
    *("output:index=2,within=-0.5..1", "drift:index=4,by=0.75"),
)
ASKED = dict.fromkeys(PLAIN, PARTS) | {
    "pixels:share=0.6": SEGMENTED,
    "pixels:share=0.5,class=1": SEGMENTED,
    "detection:box=2,score=0.25,drift=0.75": DETECTED,
}
Change = Callable[[Case], Case]


def fewer_rows(case: Case) -> Case:
    """The last row of a case is left out."""
    starts, count = case.groups
    starts = starts[starts < len(case.constants) - 1]
    rows = {key: getattr(case, key)[:-1] for key in ("coefficients", "constants", "strict")}
    return replace(case, **rows, starts=starts, count=min(count, len(starts)))


def counted(by: int) -> Change:
    return lambda case: replace(case, starts=case.groups[0], count=case.groups[1] + by)


MISTAKES: dict[str, Change] = {
    "the other way round": lambda case: replace(case, coefficients=-case.coefficients, constants=-case.constants),
    "another output": lambda case: replace(case, coefficients=np.roll(case.coefficients, 1, axis=1)),
    "easier to meet": lambda case: replace(case, constants=case.constants + 0.25),
    "harder to meet": lambda case: replace(case, constants=case.constants - 0.25),
    "a tie holds": lambda case: replace(case, constants=case.constants - 1e-9),
    "a row less": fewer_rows,
    "one more is needed": counted(1),
    "one less is needed": counted(-1),
}


def truth(text: str, y: np.ndarray, label: int, start: np.ndarray) -> bool:
    """What a requirement says of outputs, in plain words."""
    (kind,) = parse_requirement(text).kinds
    if kind.name == "detection":
        best = 2 * kind.box + int(start[2 * kind.box : 2 * kind.box + 2].argmax())
        sides = slice(8 + 4 * kind.box, 12 + 4 * kind.box)
        return bool(y[best] > kind.score and (np.abs(y - start)[sides] < kind.drift).all())
    if kind.name == "pixels":
        before, after = (values.reshape(3, -1) for values in (start, y))
        classes = before.argmax(0)
        pixels = [at for at in range(6) if kind.output in (None, classes[at])]
        kept = sum(all(after[classes[at], at] > after[c, at] for c in range(3) if c != classes[at]) for at in pixels)
        return Fraction(kept, len(pixels)) >= Fraction(str(kind.share))
    return holds(kind, y.tolist(), label, start.tolist())


def questions(parts: tuple[OutputPart, ...]) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
    """Outputs, a label, and the outputs at strength 0: of few values, so that ties are frequent."""
    random, size = np.random.default_rng(0), sum(part.size for part in parts)
    for number in range(600):
        start = random.integers(-4, 5, size) / 4
        start[6:9] += 4 * (parts is SEGMENTED)  # some pixels have class 1 at any rate
        y = random.integers(-4, 5, size) / 4 if number % 2 else start + random.integers(-3, 4, size) / 4
        yield y, int(random.integers(5)), start


def is_contradicted(text: str, changed: Change, which: int | None = None) -> bool:
    """Whether some outputs show that a requirement's cases, or one of them, are others than they should be."""
    for y, label, start in questions(ASKED[text]):
        about = parse_requirement(text).resolved(OutputContext(ASKED[text], int, label, start))
        cases = [changed(case) if which in (None, n) else case for n, case in enumerate(about.cases)]
        if (Property(about.outputs, tuple(cases)).margin(y[None])[0] > 0) != truth(text, y, label, start):
            return True
    return False


@pytest.mark.parametrize("text", ASKED)
def test_the_rules_themselves_are_not_contradicted(text):
    assert not is_contradicted(text, lambda case: case)


def is_possible(mistake: str, text: str) -> bool:
    """Whether a case would still be one."""
    _, label, start = next(questions(ASKED[text]))
    case = parse_requirement(text).resolved(OutputContext(ASKED[text], int, label, start)).cases[0]
    starts, count = case.groups
    rows = {"a row less": len(case.constants) > 1, "one more is needed": count < len(starts)}
    return rows.get(mistake, mistake != "one less is needed" or count > 1)


@pytest.mark.parametrize(
    ("mistake", "text"), [(mistake, text) for mistake in MISTAKES for text in ASKED if is_possible(mistake, text)]
)
def test_a_mistake_in_a_rule_is_noticed(mistake, text):
    assert is_contradicted(text, MISTAKES[mistake])


@pytest.mark.parametrize("text", ASKED)
def test_a_mistake_in_any_one_case_is_noticed(text):
    """And that one is missing: an output that has no lower limit, a rival that may win."""
    _, label, start = next(questions(ASKED[text]))
    cases = parse_requirement(text).resolved(OutputContext(ASKED[text], int, label, start)).cases
    for number, _ in enumerate(cases):
        assert is_contradicted(text, MISTAKES["harder to meet"], number)
        assert is_contradicted(text, lambda case: replace(case, constants=case.constants - 1e6), number)


# -- the checker's own rules -------------------------------------------------------------------------------------------

CheckedCase = checked.Case
CHECKED: dict[str, Callable[[CheckedCase], CheckedCase]] = {
    "the other way round": lambda case: (-case[0], -case[1], case[2]),
    "another output": lambda case: (np.roll(case[0], 1, axis=1), case[1], case[2]),
    "easier": lambda case: (case[0], case[1] + 0.25, case[2]),
    "harder": lambda case: (case[0], case[1] - 0.25, case[2]),
    "a row less": lambda case: (case[0][:-1], case[1][:-1], min(case[2], len(case[1]) - 1)),
    "one more is needed": lambda case: (case[0], case[1], case[2] + 1),
    "one less is needed": lambda case: (case[0], case[1], case[2] - 1),
}


def tube(values: np.ndarray) -> Tube:
    """Outputs without any error."""
    return Tube(np.array([[values], [0 * values]]), np.zeros((1, len(values))), np.zeros(1), False)


def checked_cases(text: str, label: int, start: np.ndarray) -> list[CheckedCase]:
    return checked.cases({"requirement": text, "label": label, "start": start.tolist()}, tube(start), "Gemm")


def is_refuted(text: str, changed: Callable[[CheckedCase], CheckedCase]) -> bool:
    """Whether for some outputs the checker would prove what is not so, or prove neither side."""
    for y, label, start in questions(PARTS):
        cases = [changed(case) for case in checked_cases(text, label, start)]
        proved = [bool(checked.required(tube(y), cases, fails)[0] > -1e-12) for fails in (False, True)]
        so = truth(text, y, label, start)
        margin = parse_requirement(text).resolved(OutputContext(PARTS, int, label, start)).margin(y[None])[0]
        if margin and proved != [so, not so]:
            return True
    return False


@pytest.mark.parametrize("text", PLAIN)
def test_the_checkers_rules_are_not_refuted(text):
    assert not is_refuted(text, lambda case: case)


def can_be_checked(mistake: str, text: str) -> bool:
    _, label, start = next(questions(PARTS))
    rows, _, count = checked_cases(text, label, start)[0]
    fits = {"a row less": len(rows) > 1, "one more is needed": count < len(rows), "one less is needed": count > 1}
    return fits.get(mistake, True)


@pytest.mark.parametrize(
    ("mistake", "text"), [(mistake, text) for mistake in CHECKED for text in PLAIN if can_be_checked(mistake, text)]
)
def test_a_mistake_in_a_rule_of_the_checker_is_noticed(mistake, text):
    assert is_refuted(text, CHECKED[mistake])
