"""And/or over linear comparisons, in disjunctive normal form while it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import inf, isfinite, nextafter, prod
from typing import NamedTuple

import numpy as np

from shakeproof.errors import InputError
from shakeproof.question.properties import Box, Case, Specification, by_boxes

# What the cases of a file may come to, before memory does: each product of disjunctions, and all arrays together.
MOST_CASES, MOST_PARTS, MOST_NUMBERS = 100_000, 2**24, 2**26
# And what all formulas inside one another may come to, before time does.
MOST_STEPS = 2**25

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class Bound(NamedTuple):
    """An input between two numbers."""

    place: int
    low: float
    high: float


class Row(NamedTuple):
    """The sum of coefficient x output, plus the constant, is at least 0, or above it."""

    coefficients: tuple[tuple[int, float], ...]
    constant: float
    strict: bool


class LinearSum(NamedTuple):
    """A sum of variables (`X_3`, an input, or `Y_0`, an output) times coefficients, and a constant."""

    coefficients: dict[str, float]
    constant: float = 0.0


class Formula(NamedTuple):
    """True where one of the terms is: where all of its bounds and rows hold."""

    terms: Sequence[tuple[Bound | Row, ...]]


Value = LinearSum | Formula | None
"""What a parenthesis is worth; an empty one is None."""


def number(text: str) -> LinearSum:
    """A decimal number, read as the nearest float64."""
    if not NUMBER.fullmatch(text):
        raise InputError(f"{shortened(text)} is neither a number nor a variable X_i or Y_i; correct it")
    value = float(text)
    if not isfinite(value):
        raise InputError(f"{shortened(text)} is too large for a 64-bit number; write a smaller one")
    return LinearSum({}, value)


def shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def every(formulas: Sequence[Formula]) -> Formula:
    """All of the formulas."""
    if len(formulas) == 1:
        return formulas[0]
    count = prod(len(formula.terms) for formula in formulas)
    parts = sum(sum(map(len, f.terms)) * count // len(f.terms) for f in formulas if f.terms)
    _check_size(count, parts)
    return Formula([tuple(chain.from_iterable(choice)) for choice in product(*(f.terms for f in formulas))])


def either(formulas: Sequence[Formula]) -> Formula:
    """One of the formulas."""
    if len(formulas) == 1:
        return formulas[0]
    terms = list(chain.from_iterable(formula.terms for formula in formulas))
    _check_size(len(terms), 0)
    return Formula(terms)


def _check_size(cases: int, parts: int) -> None:
    if cases > MOST_CASES or parts > MOST_PARTS:
        raise InputError(f"the property has too many cases; split it into files of at most {MOST_CASES:,}")


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _total(weighted: Iterable[tuple[float, LinearSum]]) -> LinearSum:
    coefficients: dict[str, float] = {}
    constant = 0.0
    for weight, part in weighted:
        constant += weight * part.constant
        for name, coefficient in part.coefficients.items():
            coefficients[name] = coefficients.get(name, 0.0) + weight * coefficient
    return LinearSum(coefficients, constant)


def _computed(operator: str, sums: Sequence[LinearSum]) -> LinearSum:
    first, *rest = sums
    if operator == "+":
        return _total((1.0, part) for part in sums)
    if operator == "-":
        return _total([(1.0, first), *((-1.0, part) for part in rest)] if rest else [(-1.0, first)])
    variable = [part for part in sums if part.coefficients]
    if operator == "*":
        if len(variable) > 1:
            raise InputError("a product of variables is not linear; only linear comparisons can be read")
        factor = prod(part.constant for part in sums if not part.coefficients)
        return _total([(factor, variable[0] if variable else LinearSum({}, 1.0))])
    divisor = prod(part.constant for part in rest)
    if not rest or variable not in ([], [first]) or divisor == 0 or not isfinite(divisor):
        raise InputError("(/ ...) can only be read where the divisors are numbers other than 0")
    quotients = {name: coefficient / divisor for name, coefficient in first.coefficients.items()}
    return LinearSum(quotients, first.constant / divisor)


# -- comparisons ------------------------------------------------------------------------------------------------------


def _above(left: LinearSum, right: LinearSum, strict: bool = False) -> Formula:
    """left >= right, or left > right."""
    difference = _total([(1.0, left), (-1.0, right)])
    constant = difference.constant
    names = {name: value for name, value in difference.coefficients.items() if value != 0}
    if not all(map(isfinite, (constant, *names.values()))):
        raise InputError("a comparison's numbers grow beyond 64 bits; write smaller ones")
    if not names:
        return Formula([()] if constant > 0 or (constant == 0 and not strict) else [])
    kinds = {name[0] for name in names}
    if kinds == {"Y"}:
        return Formula([(Row(tuple((_place(name), value) for name, value in names.items()), constant, strict),)])
    if len(kinds) > 1:
        raise InputError(f"a comparison mixes inputs and outputs ({', '.join([*names][:3])}); compare them apart")
    if len(names) > 1:
        raise InputError(f"a comparison joins several inputs ({', '.join([*names][:3])}); only boxes can be read")
    ((name, coefficient),) = names.items()
    end = -constant / coefficient + 0.0  # never -0.0
    if strict:  # a box has its ends: inputs are floating-point numbers, and this is the next one
        end = nextafter(end, inf if coefficient > 0 else -inf)
    if not isfinite(end):
        raise InputError(f"a bound of {name} grows beyond 64 bits; write a smaller one")
    return Formula([(Bound(_place(name), end, inf) if coefficient > 0 else Bound(_place(name), -inf, end),)])


def _place(name: str) -> int:
    return int(name[2:])


COMPARED: Mapping[str, Callable[[LinearSum, LinearSum], Formula]] = {
    "<=": lambda left, right: _above(right, left),
    ">=": _above,
    "<": lambda left, right: _above(right, left, strict=True),
    ">": lambda left, right: _above(left, right, strict=True),
    "=": lambda left, right: every([_above(left, right), _above(right, left)]),
    "==": lambda left, right: every([_above(left, right), _above(right, left)]),
    "!=": lambda left, right: either([_above(left, right, strict=True), _above(right, left, strict=True)]),
}


# -- cases ------------------------------------------------------------------------------------------------------------


class Assertions:
    """The assertions of a file, so far."""

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.steps_left, self.numbers_left = MOST_STEPS, MOST_NUMBERS
        # Most assertions have one term, a bound. What they say is common to all cases, and so are its arrays.
        self.common: list[Bound | Row] = []
        self.choices: list[Formula] = [Formula([()])]

    def variable(self, name: str) -> LinearSum:
        self.used.add(name)
        return LinearSum({name: 1.0})

    def joined(self, operator: str, values: Sequence[Value]) -> LinearSum | Formula:
        """The meaning of (operator value ...)."""
        if operator in ("and", "or"):
            formulas = [value for value in values if isinstance(value, Formula)]
            if not values or len(formulas) != len(values):
                raise InputError(f"({operator} ...) must hold comparisons, and nothing else")
            formula = every(formulas) if operator == "and" else either(formulas)
            if len(formulas) > 1:
                self._count_steps(formula)
            return formula
        if operator not in (*COMPARED, "+", "-", "*", "/"):
            operators = ", ".join(("and", "or", *COMPARED, "+", "-", "*", "/"))
            raise InputError(f"unknown operator {shortened(operator)}; only {operators} can be read")
        sums = [value for value in values if isinstance(value, LinearSum)]
        if not values or len(sums) != len(values):
            raise InputError(f"({operator} ...) must hold numbers and variables, and nothing else")
        if operator not in COMPARED:
            return _computed(operator, sums)
        if len(sums) != 2:
            raise InputError(f"({operator} ...) must compare two values, not {len(sums)}")
        formula = COMPARED[operator](*sums)
        self._count_steps(formula)
        return formula

    def _count_steps(self, formula: Formula) -> None:
        self.steps_left -= len(formula.terms) * (1 + (len(formula.terms[0]) if formula.terms else 0))
        if self.steps_left < 0:
            raise InputError(f"the property's cases take more than {MOST_STEPS:,} steps to work out; split the file")

    def add(self, formula: Formula) -> None:
        if len(formula.terms) == 1:
            self.common.extend(formula.terms[0])
        else:
            self.choices.append(formula)

    def add_bound(self, sign: str, place: str, text: str) -> None:
        """(assert (sign X_place text))"""
        self.used.add(f"X_{place}")
        end = number(text).constant + 0.0  # never -0.0
        self.common.append(Bound(int(place), end, inf) if sign == ">=" else Bound(int(place), -inf, end))

    def specification(self, inputs: int, outputs: int) -> Specification:
        """The conjunction of all assertions, without cases whose box is empty."""
        if not any(name[0] == "Y" for name in self.used):
            raise InputError("says nothing about the outputs; the file is cut off, or needs an assertion about them")
        specification = by_boxes(inputs, outputs, self._cases(inputs, outputs))
        if not specification.parts:
            raise InputError("the assertions contradict each other, so there is nothing to verify; correct them")
        return specification

    def _cases(self, inputs: int, outputs: int) -> Iterator[tuple[Box, Case]]:
        self._hold(2 * inputs)
        common_box = _narrowed((np.full(inputs, -inf), np.full(inputs, inf)), self.common)
        common_rows = [part for part in self.common if isinstance(part, Row)]
        for term in every(self.choices).terms:
            box = common_box
            if any(isinstance(part, Bound) for part in term):
                self._hold(2 * inputs)
                box = _narrowed((box[0].copy(), box[1].copy()), term)
            if (box[0] > box[1]).any():
                continue
            for side, ends in zip(("lower", "upper"), box, strict=True):
                if not np.isfinite(ends).all():
                    missing = int(np.isinf(ends).argmax())
                    raise InputError(f"input {missing} (of {ends.size}, from 0) has no {side} bound; assert one")
            rows = [*common_rows, *(part for part in term if isinstance(part, Row))]
            self._hold(len(rows) * outputs)
            coefficients = np.zeros((len(rows), outputs))
            for line, row in zip(coefficients, rows, strict=True):
                for output, value in row.coefficients:
                    line[output] = value
            constants = np.array([row.constant for row in rows])
            yield box, Case(coefficients, constants, np.array([row.strict for row in rows], dtype=bool))

    def _hold(self, count: int) -> None:
        """Check a limit before so many more numbers are held."""
        self.numbers_left -= count
        if self.numbers_left < 0:
            raise InputError(
                f"the cases hold more than {MOST_NUMBERS:,} numbers; split the property into several files"
            )


def _narrowed(box: Box, parts: Iterable[Bound | Row]) -> Box:
    """The box, which is changed, within all bounds among the parts."""
    bounds = [part for part in parts if isinstance(part, Bound)]
    if bounds:
        places, lows, highs = map(list, zip(*bounds, strict=True))
        np.maximum.at(box[0], places, lows)
        np.minimum.at(box[1], places, highs)
    return box
