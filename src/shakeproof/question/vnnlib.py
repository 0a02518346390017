"""Reads VNN-LIB files, 1.0 here and 2.0 with the reference parser (the package `vnnlib`, an extra); writes 1.0.

Comments `; shakeproof-KEY: VALUE` name a perturbation to go with the image that the box holds. To everyone else the
file is about the image alone.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shakeproof.errors import InputError
from shakeproof.files import check_regular
from shakeproof.question.properties import Specification
from shakeproof.question.vnnlib_formula import NUMBER, Assertions, Formula, LinearSum, Value, number, shortened

if TYPE_CHECKING:
    import vnnlib

LARGEST_TEXT, DEEPEST = 2**27, 100_000  # bytes, and parentheses inside each other

COMMANDS = ("assert", "declare-const", "declare-fun")
FIRST_COMMAND = re.compile(r"(?:\s|;[^\n]*)*+\(\s*([^\s();]*)")
TOKEN = re.compile(r"[()]|[^\s()]+")
# How most lines of most files look; the rest of the reader would say the same of them, three times as slowly.
BOUND = re.compile(rf"\(assert \(([<>]=) X_(0|[1-9][0-9]{{0,11}}) ({NUMBER.pattern})\)\)")
VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,11})")
DEEPEST2 = 100  # parentheses inside each other: the parser recurses, and thousands of them crash it
# Enough of the language to see how deeply it nests: names in quotes, comments, parentheses.
LAYOUT = re.compile(r'"[^"\\;()\n]*"|;[^\n]*|[()"]')
VERSION = re.compile(r"(?:\s|;[^\n]*)*+\(\s*vnnlib-version\s*<\s*([^>\s]*)")

OPERATORS = {
    "And": "and",
    "Or": "or",
    "LessEqual": "<=",
    "GreaterEqual": ">=",
    "LessThan": "<",
    "GreaterThan": ">",
    "Equal": "==",
    "NotEqual": "!=",
    "Plus": "+",
    "Minus": "-",
    "Negate": "-",
    "Multiply": "*",
}
# The parser's names of types, and the language's.
REALS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "Real": "real", "Unknown": "real"}
PREFIX = "shakeproof-"
_NUMBERS = rf"{NUMBER.pattern}(?:,{NUMBER.pattern})*"
# What each key takes. The perturbation's own words are checked where it is made.
FORMS = {
    "perturbation": r"\S(?:.*\S)?",
    "strength": _NUMBERS,
    "mean": _NUMBERS,
    "std": _NUMBERS,
    "image-shape": r"[1-9][0-9]{0,8}(?:,[1-9][0-9]{0,8}){2}",
}
_COMMENT = re.compile(rf"^[^;\n]*;[; \t]*{PREFIX}([^\n]*)", re.MULTILINE)
PERTURBED = (
    "X is an image, Y are class scores. What shakeproof should do to the image is in the comments;",
    "to other tools, unsat means that the label wins on the image as it is.",
)


def read_specification(path: Path) -> Specification:
    """Read the specification in a .vnnlib or .vnnlib.gz file."""
    text = _text(path)
    try:
        first = FIRST_COMMAND.match(text)
        if first and first[1] in ("vnnlib-version", "declare-network"):
            specification = _read_version2(text)
        else:
            specification = _TextReader(text).specification()
        specification = replace(specification, directives=_read_directives(text))
        if specification.directives:
            _check_perturbed(specification)
        return specification
    except InputError as error:
        raise InputError(f"{path}: {error}") from error.__cause__


def _text(path: Path) -> str:
    """A file's text, with \\n at the end of its lines."""
    check_regular(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a whole gzip file ({error}); get it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read the query ({error.strerror or error})") from error
    if len(data) > LARGEST_TEXT:
        raise InputError(f"{path}: holds more than {LARGEST_TEXT >> 20} MiB of text; split it into several files")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not a VNN-LIB file: it is not text ({error.reason} at byte {error.start})"
        ) from error


# -- version 1.0 ------------------------------------------------------------------------------------------------------


class _TextReader:
    """Reads 1.0: each parenthesis is evaluated when it closes, so no nesting is too deep."""

    def __init__(self, text: str) -> None:
        self.declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self.assertions = Assertions()
        # What is open: the words and values of each parenthesis so far, and where the outermost one began.
        open_: list[list[str | Value]] = []
        line, began = 0, 0
        try:
            for line, code in enumerate(text.split("\n"), start=1):
                usual = None if open_ else BOUND.fullmatch(code)
                if usual:
                    self.assertions.add_bound(*usual.groups())
                    continue
                for token in TOKEN.findall(code.partition(";")[0]):
                    if token == "(":
                        if len(open_) == DEEPEST:
                            raise InputError(f"more than {DEEPEST} parentheses inside each other; simplify it")
                        began = began if open_ else line
                        open_.append([])
                    elif not open_:
                        raise InputError(f"{shortened(token)} is outside of every command; correct the parentheses")
                    elif token != ")":
                        open_[-1].append(token)
                    elif len(open_) > 1:
                        open_[-2].append(self._value(open_.pop()))
                    else:
                        self._command(open_.pop())
        except InputError as error:
            raise InputError(f"line {line}: {error}") from None
        if open_:
            raise InputError(f"ends inside the command of line {began}; the file is cut off, or a parenthesis missing")

    def specification(self) -> Specification:
        for kind, name in (("X", "inputs"), ("Y", "outputs")):
            indices = self.declared[kind]
            if not indices or max(indices) >= len(indices):
                raise InputError(f"the {name} must be declared as {kind}_0, {kind}_1, ... without a gap")
        inputs, outputs = (len(self.declared[kind]) for kind in "XY")
        undeclared = next(
            (v for v in sorted(self.assertions.used) if int(v[2:]) >= (inputs if v[0] == "X" else outputs)), None
        )
        if undeclared:
            raise InputError(f"{undeclared} is used but not declared; declare it")
        return self.assertions.specification(inputs, outputs)

    def _command(self, words: Sequence[str | Value]) -> None:
        match words:
            case ["assert", Formula() as formula]:
                self.assertions.add(formula)
            case ["assert", *_]:
                raise InputError("(assert ...) must hold one comparison, or one (and ...) or (or ...) of them")
            case ["declare-const", str() as name, "Real"] | ["declare-fun", str() as name, None, "Real"]:
                variable = VARIABLE.fullmatch(name)
                if not variable:
                    raise InputError(f"{shortened(name)} is declared; only inputs X_i and outputs Y_i can be")
                indices, index = self.declared[variable[1]], int(variable[2])
                if index in indices:
                    raise InputError(f"{name} is declared twice; correct it")
                indices.add(index)
            case [("declare-const" | "declare-fun"), *_]:
                raise InputError("a declaration must read (declare-const X_0 Real)")
            case [str() as name, *_]:
                raise InputError(f"unknown command {shortened(name)}; only declare-const and assert can be read")
            case _:
                raise InputError("a command must begin with its name; correct the parentheses")

    def _value(self, words: Sequence[str | Value]) -> Value:
        """The value of (operator value ...)."""
        if not words:
            return None  # the arguments in (declare-fun X_0 () Real)
        operator, *values = words
        if not isinstance(operator, str):
            raise InputError("a parenthesis must begin with an operator; correct it")
        if operator in COMMANDS:
            raise InputError(f"({operator} ...) inside another command; a parenthesis is missing before it")
        operands: list[Value] = []
        for value in values:
            if isinstance(value, str):
                operands.append(self.assertions.variable(value) if VARIABLE.fullmatch(value) else number(value))
            else:
                operands.append(value)
        return self.assertions.joined(operator, operands)


# -- version 2.0 ------------------------------------------------------------------------------------------------------


def _read_version2(text: str) -> Specification:
    """What a text says a counterexample is, about one network with one input and one output tensor."""
    query = _parsed(text)
    if len(query.networks) != 1:
        raise InputError(f"is about {len(query.networks)} networks; only queries about one can be read")
    (network,) = query.networks
    if network.hidden or len(network.inputs) != 1 or len(network.outputs) != 1:
        raise InputError(
            "only a network with one input, one output and no hidden tensors can be read; leave out others"
        )
    tensors = (*network.inputs, *network.outputs)
    for tensor in tensors:
        if tensor.dtype.name not in REALS:
            raise InputError(f"{tensor.name} is of type {tensor.dtype.name}; only real numbers can be read")
    inputs, outputs = (prod(tensor.shape) for tensor in tensors)
    assertions = Assertions()
    for assertion in query.assertions:
        formula = _value2(assertion.expr, assertions)
        assert isinstance(formula, Formula)  # the parser has checked the types
        assertions.add(formula)
    first, second = (
        f"{tensor.name} {REALS[tensor.dtype.name]} [{','.join(map(str, tensor.shape))}]" for tensor in tensors
    )
    return replace(assertions.specification(inputs, outputs), network=network.name, tensors=(first, second))


def _parsed(text: str) -> vnnlib.Query:
    try:
        import vnnlib
    except ImportError:
        raise InputError("is of VNN-LIB 2.0; to read it: pip install 'shakeproof[vnnlib2]'") from None
    _check_harmless(text)
    try:
        return vnnlib.parse_query_string(text)
    except (vnnlib.VNNLibException, IndexError, ValueError) as error:  # the last two: numbers and names out of range
        raise InputError(f"not valid VNN-LIB 2.0 ({_complaint(str(error))})") from error


def _check_harmless(text: str) -> None:
    """Refuse what the parser would crash on, skip over, or complain about on its own."""
    version = VERSION.match(text)
    if version and version[1] != "2.0":
        raise InputError(f"is of VNN-LIB {version[1][:9]}; only 1.0 and 2.0 can be read")
    marks = [mark for mark in LAYOUT.findall(text) if mark in '()"']
    if "\0" in text or '"' in marks:
        raise InputError("has a zero byte, or unusual characters in a quoted name; take them out")
    if max(accumulate(1 if mark == "(" else -1 for mark in marks), default=0) > DEEPEST2:
        raise InputError(f"more than {DEEPEST2} parentheses inside each other; simplify it")


def _complaint(complaint: str) -> str:
    """The parser's first complaint; some come as JSON."""
    try:
        first = json.loads(complaint)["errors"][0]
        return f"line {first['line']}: {first['message']} {first['offendingSymbol']!r}; {first['hint']}"
    except (ValueError, LookupError, TypeError):
        return " ".join(complaint.split())[:200]


def _value2(node: Any, assertions: Assertions) -> LinearSum | Formula:
    match type(node).__name__:
        case "Float" | "Int":
            return number(node.lexeme)
        case "Var":
            name = f"{'X' if node.kind.name == 'Input' else 'Y'}_{_flat(node.indices, node.shape)}"
            return assertions.variable(name)
        case kind:
            return assertions.joined(OPERATORS[kind], [_value2(child, assertions) for child in node.children()])


def _flat(indices: Sequence[int], shape: Sequence[int]) -> int:
    """The place of an entry in row-major order."""
    place = 0
    for index, size in zip(indices, shape, strict=True):
        if not 0 <= index < size:
            raise InputError(f"index {index} is not one of 0 to {size - 1}; correct it")
        place = place * size + index
    return place


# -- comments that speak to shakeproof --------------------------------------------------------------------------------


def _read_directives(text: str) -> dict[str, str]:
    """The values of a text's directives, in their order."""
    directives: dict[str, str] = {}
    for words in _COMMENT.findall(text) if PREFIX in text else ():
        key, _, value = (word.strip() for word in words.partition(":"))
        form = FORMS.get(key)
        if form is None:
            all_directives = ", ".join(PREFIX + key for key in FORMS)
            raise InputError(f"unknown directive {shortened(PREFIX + words)}; the directives are {all_directives}")
        if key in directives or not re.fullmatch(form, value):
            problem = "is given twice" if key in directives else f"cannot be {shortened(value)}"
            raise InputError(f"{PREFIX}{key} {problem}; correct the comment")
        directives[key] = value
    return directives


def _check_perturbed(specification: Specification) -> None:
    """Refuse directives that do not make a perturbed query together with the rest of the file."""
    for key in ("perturbation", "strength"):
        if key not in specification.directives:
            raise InputError(f"has directives, but not {PREFIX}{key}; a perturbed query needs it")
    rivals = len(specification.parts[0][1].cases)
    if specification.label is None or rivals != specification.outputs - 1:
        raise InputError("names no label to keep under the perturbation; assert that any other class scores no less")
    if specification.box is None or not np.array_equal(*specification.box):
        raise InputError("has a perturbation, so its box must be one image: equal lower and upper bounds")


def perturbed_directives(
    perturbation: str,
    strengths: Sequence[float],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_shape: Sequence[int],
) -> Mapping[str, str]:
    """The directives of a perturbed query."""
    if not perturbation.isprintable() or perturbation != perturbation.strip():
        raise InputError(f"{perturbation!r}: cannot stand in a comment; rename the kernel's file")
    lists = {"strength": strengths, "mean": mean, "std": std}
    written = {
        key: ",".join(repr(float(value)) for value in values) for key, values in lists.items() if values is not None
    }
    return {"perturbation": perturbation, **written, "image-shape": ",".join(map(str, image_shape))}


# -- writing ----------------------------------------------------------------------------------------------------------


def written(specification: Specification, comments: Iterable[str]) -> str:
    """The text of a specification that has a label, below comments and its directives."""
    box, label = specification.box, specification.label
    if box is None or label is None:
        raise InputError("only 'another class scores no less than the label', in one box, can be written")
    notes = (*comments, *(f"{PREFIX}{key}: {value}" for key, value in specification.directives.items()))
    bounds = zip(*([_decimal(value) for value in side] for side in box), strict=True)
    cases = specification.parts[0][1].cases
    rivals = ((case.coefficients[0].argmax(), ">" if case.strict[0] else ">=") for case in cases)
    return "\n".join(
        (
            *(f"; {note}" for note in notes),
            "",
            *(f"(declare-const X_{i} Real)" for i in range(specification.inputs)),
            *(f"(declare-const Y_{i} Real)" for i in range(specification.outputs)),
            "",
            *(f"(assert (>= X_{i} {low}))\n(assert (<= X_{i} {high}))" for i, (low, high) in enumerate(bounds)),
            "",
            "(assert (or",
            *(f"  (and ({sign} Y_{rival} Y_{label}))" for rival, sign in rivals),
            "))\n",
        )
    )


def written_perturbed(specification: Specification) -> str:
    """The text of a perturbed query; reading it gives the specification again, and that the same text."""
    return written(specification, PERTURBED)


def _decimal(number: float) -> str:
    """All digits of a number, without an exponent: VNN-LIB has none."""
    return np.format_float_positional(number + 0.0, trim="0")  # never -0.0
