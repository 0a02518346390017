"""Requirements: what must hold of a network's outputs, as text, and as the property that it stands for.

The text is `KIND:key=value,...`, or several of these joined by `and`; parsing and printing round-trip. A kind is a
class below: its fields are the keys of the text, and its `cases` are what the outputs must not meet. There is one
internal form for all of them (`Property`): it grows with affine functions of the outputs, and holds where it is
positive.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from shakeproof.errors import InputError, kind_of
from shakeproof.question.outputs import OutputPart, listed, one_place, places
from shakeproof.question.properties import Case, Floats, Property, wins
from shakeproof.question.text_form import Key, Reader, read_interval, read_number, read_options, read_whole

Output = int | str
"""A class by its number or name, or an output by its address."""
Band = tuple[float, float]
# A property of pixels has no more coefficients than this.
LARGEST = 2**24


@dataclass(frozen=True, eq=False)
class OutputContext:
    """The context of a requirement: the parts of a network's outputs, the label if there is one, and the values (count)
    at strength 0, where they are wanted. `number` gives the class that goes by a name.
    """

    parts: tuple[OutputPart, ...]
    number: Callable[[str], int]
    label: int | None = None
    start: Floats | None = None

    @property
    def count(self) -> int:
        return sum(part.size for part in self.parts)

    def place(self, output: Output) -> int:
        """The number of the output that a class or an address names; an error if there is none."""
        is_name = isinstance(output, str) and "[" not in output and output not in {part.name for part in self.parts}
        return self.number(str(output)) if is_name else one_place(self.parts, str(output))

    def row(self, plus: int | None, minus: int | None = None) -> Floats:
        """The coefficients of one output, less another."""
        row = np.zeros(self.count)
        if plus is not None:
            row[plus] += 1
        if minus is not None:
            row[minus] -= 1
        return row


def _case(rows: Sequence[Floats], constants: Sequence[float] | None = None, count: int | None = None) -> Case:
    """A case that the outputs must not meet: `count` of the rows (default: all) are not negative."""
    values = np.zeros(len(rows)) if constants is None else np.array(constants, dtype=np.float64)
    return Case(np.array(rows), values, np.zeros(len(rows), bool), count=count)


@dataclass(frozen=True)
class Kind(ABC):
    """One thing that is required."""

    name: ClassVar[str]
    example: ClassVar[str]
    needs_label: ClassVar[bool] = False
    needs_start: ClassVar[bool] = False

    @abstractmethod
    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        """What the outputs must not meet."""

    def check(self) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse numbers that mean nothing."""

    def __str__(self) -> str:
        texts = (
            f"{key}={_written(value)}"
            for key, asked in keys(type(self)).items()
            if (value := getattr(self, asked.name)) != asked.default
        )
        options = ",".join(texts)
        return f"{self.name}:{options}" if options else self.name


def keys(kind: type[Kind]) -> dict[str, Field[Any]]:
    """A kind's fields by the keys of its text."""
    return {each.metadata.get("key", each.name): each for each in fields(kind)}


@dataclass(frozen=True)
class Label(Kind):
    """The label scores more than every other class, by more than a lead."""

    name = "label"
    example = "label:lead=0.5"
    needs_label = True

    lead: float = 0.0

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        assert outputs.label is not None
        for case in wins(outputs.label, outputs.count).cases:
            yield Case(case.coefficients, case.constants + self.lead, case.strict)

    def check(self) -> None:
        _require(0 <= self.lead < math.inf, self, "lead", "0 or more")


@dataclass(frozen=True)
class Top(Kind):
    """The label is among the k classes that score most: fewer than k others score as much as it."""

    name = "top"
    example = "top:k=3"
    needs_label = True

    k: int

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        assert outputs.label is not None
        if self.k >= outputs.count:
            raise InputError(
                f"{self}: of {outputs.count} classes, the label is always among the top k; choose a smaller k"
            )
        rows = np.concatenate([case.coefficients for case in wins(outputs.label, outputs.count).cases])
        yield _case(list(rows), count=self.k)

    def check(self) -> None:
        _require(self.k >= 1, self, "k", "1 or more")


@dataclass(frozen=True)
class Among(Kind):
    """One of some classes scores more than every other class."""

    name = "among"
    example = "among:classes=3,5"

    classes: tuple[Output, ...]

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        allowed = [outputs.place(output) for output in self.classes]
        return _won_by_one_of(allowed, outputs)

    def check(self) -> None:
        _require(len(set(self.classes)) == len(self.classes), self, "classes", "classes that differ")


@dataclass(frozen=True)
class Never(Kind):
    """None of some classes wins: each of the others may, if it scores more than all of these."""

    name = "never"
    example = "never:classes=1,2"

    classes: tuple[Output, ...]

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        forbidden = {outputs.place(output) for output in self.classes}
        return _won_by_one_of([place for place in range(outputs.count) if place not in forbidden], outputs)

    def check(self) -> None:
        _require(len(set(self.classes)) == len(self.classes), self, "classes", "classes that differ")


def _won_by_one_of(allowed: Sequence[int], outputs: OutputContext) -> Iterator[Case]:
    """Each other class must be beaten by one of these: then the best of these beats them all."""
    others = [place for place in range(outputs.count) if place not in allowed]
    if not allowed or not others:
        raise InputError("name some of the network's classes, and not all of them: one class wins in any case")
    for other in others:
        yield _case([outputs.row(other, place) for place in allowed])


@dataclass(frozen=True)
class Score(Kind):
    """One output stays above a number: a score, or a probability where the network gives probabilities."""

    name = "score"
    example = "score:class=3,above=0.5"

    output: Output = field(metadata={"key": "class"})
    above: float

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        yield _case([-outputs.row(outputs.place(self.output))], [self.above])

    def check(self) -> None:
        _require(math.isfinite(self.above), self, "above", "a finite number")


@dataclass(frozen=True)
class Within(Kind):
    """One output stays strictly between two numbers."""

    name = "output"
    example = "output:index=0,within=-0.1..0.1"

    index: Output
    within: Band

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        low, high = self.within
        yield from _outside(outputs, outputs.place(self.index), low, high)

    def check(self) -> None:
        low, high = self.within
        _require(math.isfinite(low) and math.isfinite(high) and low < high, self, "within", "LOW..HIGH, finite")


@dataclass(frozen=True)
class Drift(Kind):
    """One output stays closer than a number to what the runtime gives at strength 0."""

    name = "drift"
    example = "drift:index=0,by=2"
    needs_start = True

    index: Output
    by: float

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        assert outputs.start is not None
        place = outputs.place(self.index)
        start = float(outputs.start[place])
        yield from _outside(outputs, place, start - self.by, start + self.by)

    def check(self) -> None:
        _require(0 < self.by < math.inf, self, "by", "a positive number")


def _outside(outputs: OutputContext, place: int, low: float, high: float) -> Iterator[Case]:
    """An output is no more than one number, or no less than another."""
    yield _case([-outputs.row(place)], [low])
    yield _case([outputs.row(place)], [-high])


@dataclass(frozen=True)
class Pixels(Kind):
    """A share of the pixels keep the class that the runtime gives them at strength 0; or of those of one class."""

    name = "pixels"
    example = "pixels:share=0.95,class=2"
    needs_start = True

    share: float
    output: Output | None = field(default=None, metadata={"key": "class"})

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        """Each pixel is a group of rows: it is lost where any rival scores as much. So many may be lost, but one."""
        assert outputs.start is not None
        parts = [part for part in outputs.parts if len(part.shape) == 3 and part.shape[0] > 1]
        if len(parts) != 1:
            raise InputError(
                f"{self}: needs one output of shape (classes, height, width); there are {listed(outputs.parts)}"
            )
        (part,) = parts
        numbers = places(outputs.parts, part.name).reshape(part.shape[0], -1)
        classes = outputs.start[numbers].argmax(0)
        chosen = np.arange(numbers.shape[1])
        if self.output is not None:
            chosen = np.flatnonzero(classes == self.of_class(outputs, part.shape[0]))
        if not len(chosen):
            raise InputError(f"{self}: the runtime gives that class to no pixel at strength 0")
        rivals = part.shape[0] - 1
        if len(chosen) * rivals * outputs.count > LARGEST:
            raise InputError(f"{self}: {len(chosen)} pixels of {part.shape[0]} classes are too many; cut the picture")
        rows = np.zeros((len(chosen) * rivals, outputs.count))
        for place, pixel in enumerate(chosen.tolist()):
            here = np.arange(place * rivals, (place + 1) * rivals)
            rows[here, np.delete(numbers[:, pixel], classes[pixel])] = 1
            rows[here, numbers[classes[pixel], pixel]] = -1
        kept = math.ceil(Fraction(repr(self.share)) * len(chosen))
        starts, nothing = np.arange(0, len(rows), rivals), np.zeros(len(rows))
        yield Case(rows, nothing, nothing.astype(bool), starts, len(chosen) - kept + 1)

    def of_class(self, outputs: OutputContext, count: int) -> int:
        """The number of the class; an error if there is none."""
        number = outputs.number(self.output) if isinstance(self.output, str) else self.output
        if number is None or number not in range(count):
            raise InputError(f"{self}: the pixels have classes 0 to {count - 1}")
        return number

    def check(self) -> None:
        _require(0 < self.share <= 1, self, "share", "above 0 and at most 1")


@dataclass(frozen=True)
class Detection(Kind):
    """A box of a dense detector keeps its best score above a number, and its sides near where they are at strength 0.

    That is before non-maximum suppression, and about this one box: by its row in the outputs of scores and boxes.
    """

    name = "detection"
    example = "detection:box=10,score=0.5,drift=4"
    needs_start = True

    box: int
    score: float
    drift: float

    def cases(self, outputs: OutputContext) -> Iterator[Case]:
        assert outputs.start is not None
        sides = [part for part in outputs.parts if len(part.shape) == 2 and part.shape[1] == 4]
        scores = [part for part in outputs.parts if len(part.shape) == 2 and part not in sides]
        if (len(sides), len(scores), len(outputs.parts)) != (1, 1, 2) or scores[0].shape[0] != sides[0].shape[0]:
            raise InputError(
                f'{self}: needs two outputs, scores (boxes, kinds) and sides (boxes, 4), all read (output name "*");'
                f" there are {listed(outputs.parts)}; or join score and drift of single outputs by and"
            )
        if self.box >= sides[0].shape[0]:
            raise InputError(f"{self}: the boxes are numbered from 0 to {sides[0].shape[0] - 1}")
        of_scores = places(outputs.parts, f"{scores[0].name}[{self.box}]").reshape(-1)
        best = int(of_scores[outputs.start[of_scores].argmax()])
        yield _case([-outputs.row(best)], [self.score])
        for place in places(outputs.parts, f"{sides[0].name}[{self.box}]").tolist():
            start = float(outputs.start[place])
            yield from _outside(outputs, place, start - self.drift, start + self.drift)

    def check(self) -> None:
        _require(math.isfinite(self.score), self, "score", "a finite number")
        _require(0 < self.drift < math.inf, self, "drift", "a positive number")


KINDS: Mapping[str, type[Kind]] = {
    kind.name: kind for kind in (Label, Top, Among, Never, Score, Within, Drift, Pixels, Detection)
}


@dataclass(frozen=True)
class Requirement:
    """What must hold of the outputs: all of these kinds."""

    kinds: tuple[Kind, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.kinds))

    @property
    def is_label(self) -> bool:
        """Whether all that is required is that the label wins."""
        return self.kinds == (Label(),)

    @property
    def needs_label(self) -> bool:
        return any(kind.needs_label for kind in self.kinds)

    @property
    def needs_start(self) -> bool:
        return any(kind.needs_start for kind in self.kinds)

    def numbered(self, outputs: OutputContext) -> Requirement:
        """The same with numbers for the names of classes, and for the addresses of outputs."""
        return Requirement(tuple(_numbered(kind, outputs) for kind in self.kinds))

    def resolved(self, outputs: OutputContext) -> Property:
        """The property of a network's outputs that it stands for."""
        if self.is_label:
            assert outputs.label is not None
            return wins(outputs.label, outputs.count)
        return Property(outputs.count, tuple(case for kind in self.kinds for case in kind.cases(outputs)))


def _numbered(kind: Kind, outputs: OutputContext) -> Kind:
    """Whatever field holds outputs, by their numbers."""
    changes: dict[str, object] = {}
    for each in fields(kind):
        value = getattr(kind, each.name)
        if each.type == "Output":
            changes[each.name] = outputs.place(value)
        elif each.type == "tuple[Output, ...]":
            changes[each.name] = tuple(map(outputs.place, value))
        elif isinstance(value, str):  # a class of pixels, which is no place among the outputs
            changes[each.name] = outputs.number(value)
    return replace(kind, **changes)


LABEL = Requirement((Label(),))


# -- text -------------------------------------------------------------------------------------------------------------

_BETWEEN_KINDS = re.compile(rf"\s+and\s+(?=(?:{'|'.join(KINDS)})(?:[:\s]|$))")


def parse_requirement(text: str) -> Requirement:
    """The requirement that a text describes, e.g. `top:k=3 and never:classes=1,2`."""
    if not isinstance(text, str):
        raise InputError(f"a requirement is a text, not {kind_of(text)}")
    return Requirement(tuple(_parse_kind(part) for part in _BETWEEN_KINDS.split(text.strip())))


def as_requirement(requirement: Requirement | str) -> Requirement:
    """A requirement as it is, or what a text describes."""
    return requirement if isinstance(requirement, Requirement) else parse_requirement(requirement)


def _parse_kind(text: str) -> Kind:
    name = text.partition(":")[0]
    kind = KINDS.get(name)
    if kind is None:
        raise InputError(f"unknown requirement {name!r}; there are {', '.join(KINDS)}")
    asked = keys(kind)
    known = {key: Key(READERS[str(each.type)], each.default is not MISSING) for key, each in asked.items()}
    values = {asked[key].name: value for key, value in read_options(text, known, kind.example).items()}
    parsed = kind(**values)
    parsed.check()
    return parsed


def _require(holds: bool, kind: Kind, key: str, must_be: str) -> None:
    if not holds:
        raise InputError(f"{kind}: {key} must be {must_be}; write for example {kind.example}")


def _read_output(text: str) -> Output:
    if not text.strip():
        raise ValueError("must name an output")
    return int(text) if re.fullmatch(r"\d{1,9}", text) else text


def _read_outputs(text: str) -> tuple[Output, ...]:
    return tuple(_read_output(word.strip()) for word in text.split(","))


# How the value of a key is read, by the type of its field.
READERS: Mapping[str, Reader] = {
    "int": read_whole,
    "float": read_number,
    "Band": read_interval,
    "Output": _read_output,
    "Output | None": _read_output,
    "tuple[Output, ...]": _read_outputs,
}


def _written(value: object) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        is_band = all(isinstance(part, float) for part in value)
        return (".." if is_band else ",").join(map(_written, value))
    return str(value)
