"""Reads VNN-LIB 2.0 with the reference parser, the `vnnlib` package, which is an optional extra."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from shakeproof.errors import InputError
from shakeproof.vnnlib.formula import Assertions, Formula, LinearSum, number
from shakeproof.vnnlib.specification import Specification

if TYPE_CHECKING:
    import vnnlib

DEEPEST = 100  # parentheses inside each other: the parser recurses, and thousands of them crash it
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


def read_version2(text: str) -> Specification:
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
        formula = _value(assertion.expr, assertions)
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
        raise InputError(f"not valid VNN-LIB 2.0 ({_first_line(str(error))})") from error


def _check_harmless(text: str) -> None:
    """Refuse what the parser would crash on, skip over, or complain about on its own."""
    version = VERSION.match(text)
    if version and version[1] != "2.0":
        raise InputError(f"is of VNN-LIB {version[1][:9]}; only 1.0 and 2.0 can be read")
    marks = [mark for mark in LAYOUT.findall(text) if mark in '()"']
    if "\0" in text or '"' in marks:
        raise InputError("has a zero byte, or unusual characters in a quoted name; take them out")
    if max(accumulate(1 if mark == "(" else -1 for mark in marks), default=0) > DEEPEST:
        raise InputError(f"more than {DEEPEST} parentheses inside each other; simplify it")


def _first_line(complaint: str) -> str:
    """The parser's first complaint; some come as JSON."""
    try:
        first = json.loads(complaint)["errors"][0]
        return f"line {first['line']}: {first['message']} {first['offendingSymbol']!r}; {first['hint']}"
    except (ValueError, LookupError, TypeError):
        return " ".join(complaint.split())[:200]


def _value(node: Any, assertions: Assertions) -> LinearSum | Formula:
    match type(node).__name__:
        case "Float" | "Int":
            return number(node.lexeme)
        case "Var":
            name = f"{'X' if node.kind.name == 'Input' else 'Y'}_{_flat(node.indices, node.shape)}"
            return assertions.variable(name)
        case kind:
            return assertions.joined(OPERATORS[kind], [_value(child, assertions) for child in node.children()])


def _flat(indices: Sequence[int], shape: Sequence[int]) -> int:
    """The place of an entry in row-major order."""
    place = 0
    for index, size in zip(indices, shape, strict=True):
        if not 0 <= index < size:
            raise InputError(f"index {index} is not one of 0 to {size - 1}; correct it")
        place = place * size + index
    return place
