"""Reads VNN-LIB files: 1.0 here, 2.0 with the help of the `vnnlib` package."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shakeproof.errors import InputError
from shakeproof.files import check_regular
from shakeproof.vnnlib.directives import check_perturbed, read_directives
from shakeproof.vnnlib.formula import NUMBER, Assertions, Formula, LinearSum, Value, number, shortened
from shakeproof.vnnlib.specification import Specification

LARGEST_TEXT, DEEPEST = 2**27, 100_000  # bytes, and parentheses inside each other

COMMANDS = ("assert", "declare-const", "declare-fun")
FIRST_COMMAND = re.compile(r"(?:\s|;[^\n]*)*+\(\s*([^\s();]*)")
TOKEN = re.compile(r"[()]|[^\s()]+")
# How most lines of most files look; the rest of the reader would say the same of them, three times as slowly.
BOUND = re.compile(rf"\(assert \(([<>]=) X_(0|[1-9][0-9]{{0,11}}) ({NUMBER.pattern})\)\)")
VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,11})")


def read_specification(path: Path) -> Specification:
    """What a .vnnlib or .vnnlib.gz file says a counterexample is."""
    text = _text(path)
    try:
        specification = replace(_specification(text), directives=read_directives(text))
        if specification.directives:
            check_perturbed(specification)
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


def _specification(text: str) -> Specification:
    first = FIRST_COMMAND.match(text)
    if first and first[1] in ("vnnlib-version", "declare-network"):
        from shakeproof.vnnlib.version2 import read_version2

        return read_version2(text)
    return _TextReader(text).specification()


class _TextReader:
    """Reads 1.0: each parenthesis is worked out as it closes, so that no nesting is too deep."""

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
                found = VARIABLE.fullmatch(name)
                if not found:
                    raise InputError(f"{shortened(name)} is declared; only inputs X_i and outputs Y_i can be")
                kind, index = found[1], int(found[2])
                if index in self.declared[kind]:
                    raise InputError(f"{name} is declared twice; correct it")
                self.declared[kind].add(index)
            case [("declare-const" | "declare-fun"), *_]:
                raise InputError("a declaration must read (declare-const X_0 Real)")
            case [str() as name, *_]:
                raise InputError(f"unknown command {shortened(name)}; only declare-const and assert can be read")
            case _:
                raise InputError("a command must begin with its name; correct the parentheses")

    def _value(self, words: Sequence[str | Value]) -> Value:
        """What (operator value ...) is worth."""
        if not words:
            return None  # the arguments in (declare-fun X_0 () Real)
        operator, *values = words
        if not isinstance(operator, str):
            raise InputError("a parenthesis must begin with an operator; correct it")
        if operator in COMMANDS:
            raise InputError(f"({operator} ...) inside another command; a parenthesis is missing before it")
        known = [self._leaf(value) if isinstance(value, str) else value for value in values]
        return self.assertions.joined(operator, known)

    def _leaf(self, text: str) -> LinearSum:
        return self.assertions.variable(text) if VARIABLE.fullmatch(text) else number(text)
