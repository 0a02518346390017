"""What an analysis answers: the query, its evidence, and what follows from them; and that as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from enum import Enum
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shakeproof.errors import InputError, ProofError
from shakeproof.exact import Curve
from shakeproof.model import Deployed, Deployment
from shakeproof.proof.evidence import (
    BoundedCells,
    Bracket,
    Counterexample,
    Enumerated,
    EnumeratedWindow,
    Interval,
    Proof,
    Regions,
    Swept,
    SweptWindow,
    by_class,
    with_unproved,
)
from shakeproof.proof.verdict import (
    CLAIMED,
    FORMAT,
    MALFORMED,
    REASONS,
    Claim,
    Evidence,
    Reason,
    Status,
    check_version,
    claim_of,
    judge,
    malformed,
)
from shakeproof.question import LABEL, STRENGTH, ClassNames, KernelSet, Perturbation, Query

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL_WINS = str(LABEL)
# How many digits of a path's own parameter are read out.
SPOKEN_DIGITS = 6
# How sure the bound on the share of strengths that lose is, where some were drawn at random.
CONFIDENCE = 0.999
UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))


@dataclass(frozen=True, eq=False)
class Result:
    """The answer to a query. It has no field for the verdict: that is what the one judge makes of the evidence.

    `model` and `identity` name the network, `predicted` is the class at strength 0 (or in the middle of a box); None
    where its scores are not finite. `unperturbed` is the class of the image itself, only where the answer is
    misclassified and the kernel already blurs at strength 0. `as_pictures` is what the question about 8-bit pictures
    would take, `tested` what became of strengths drawn at random where nothing was decided.
    """

    model: str
    identity: str
    query: Query
    evidence: Evidence
    predicted: int | None
    seconds: float
    as_pictures: Expected | None = None
    tested: Tested | None = None
    unperturbed: int | None = None

    def __post_init__(self) -> None:
        """Evidence is about the query, or there is no result."""
        path, obligations = self.query.path, self.query.obligations
        matches = self.evidence.needed == len(obligations) and all(
            proof.is_about(obligation) for proof, obligation in zip(self.evidence.proofs, obligations, strict=False)
        )
        if not matches or (path is not None and path.end != self.query.strengths):
            raise ProofError("evidence was found for another query than this one")

    @cached_property
    def _verdict(self) -> tuple[Status, Reason | None]:
        return judge(self.evidence)

    @property
    def status(self) -> Status:
        return self._verdict[0]

    @property
    def reason(self) -> Reason | None:
        return self._verdict[1]

    @property
    def label(self) -> int | None:
        return self.query.label

    @property
    def counterexample(self) -> Counterexample | None:
        return self.evidence.counterexample

    @property
    def proof(self) -> Proof | None:
        """The proof of a query with one obligation."""
        return self.evidence.proofs[0] if len(self.evidence.proofs) == 1 else None

    @property
    def method(self) -> str:
        return self.evidence.proofs[0].method if self.evidence.proofs else "bounds"

    @property
    def arithmetic(self) -> str:
        """What the proofs are about: the network in real numbers, or every float32 evaluation of it."""
        return self.evidence.arithmetic

    @property
    def pieces(self) -> int:
        """How many linear pieces were enumerated, or parts bounded."""
        return sum(proof.pieces for proof in self.evidence.proofs)

    @property
    def remaining(self) -> Remaining | None:
        """The work left after a timeout; None if unknown."""
        left = None if self.proof is None or self.reason is not Reason.TIMEOUT else self.proof.left
        if not left or not self.pieces:
            return None
        return Remaining(self.pieces / self.seconds, left * self.seconds / self.pieces)

    @property
    def noise(self) -> Noise | None:
        """The float32 noise and the margin, if the noise is why nothing is claimed."""
        comparison = self.evidence.comparison
        if comparison is None or self.reason is not Reason.COMPARISON:
            return None
        return Noise(*(value if isfinite(value) else None for value in comparison.worst(self.evidence.smallest)))

    @property
    def critical_strength(self) -> Bracket | None:
        """Brackets the smallest strength at which the label loses; None where it was not found, or is not known."""
        if self.query.parameters != 1:
            return None
        if self.status is Status.MISCLASSIFIED:
            return 0.0, 0.0
        critical, told = self._critical, self.evidence.told_up_to
        if critical is None or not told or (told < critical[1] and self.status is Status.UNDECIDED):
            return None
        return min(critical[0], told), critical[1]

    @property
    def _critical(self) -> Bracket | None:
        """The proof's bracket, or else the certified strength and the strength of a replayed loss. If only the
        runtime loses there, nothing is known of the network's own critical strength.
        """
        shown = self.counterexample
        if self.proof is None or self.proof.critical is not None:
            return None if self.proof is None else self.proof.critical
        if self.status is not Status.UNSAFE or shown is None or not shown.replayed or shown.strengths is None:
            return None
        if shown.margin > 0:
            return None
        (lost,) = shown.strengths
        return min(self.proof.certified, lost), lost

    @property
    def certified_strength(self) -> float:
        """The largest strength up to which the label was proved to win."""
        if self.status is Status.SAFE and self.query.strengths:
            return min(self.query.strengths)
        if self.query.parameters != 1 or self.status is Status.MISCLASSIFIED or self.proof is None:
            return 0.0
        return min(self.proof.certified, self.evidence.told_up_to)

    @property
    def profile(self) -> tuple[Interval, ...]:
        """Which class wins where, if the method is exact. Proved as far as the comparison with the runtime goes."""
        profile, told = () if self.proof is None else self.proof.profile, self.evidence.winners_told_up_to
        if told == inf:
            return profile
        proved = [
            replace(interval, end=min(interval.end, told))
            for interval in profile
            if interval.proved and interval.start < told
        ]
        return with_unproved(proved, by_class(profile))

    @property
    def min_margin(self) -> float | None:
        """The smallest margin found; for a safe query decided by bounds, a proved lower bound."""
        margins = [] if self.counterexample is None else [self.counterexample.margin]
        curve = self.proof.curve if isinstance(self.proof, Swept) and len(self.proof.curve.z) else None
        if curve is not None and isinstance(self.proof, Swept):
            margins.append(float(curve.margin(self.proof.label).min()))
        if isinstance(self.proof, Enumerated) and len(self.proof.margins):
            return float(np.nanmin(self.proof.margins))
        if self.status is Status.SAFE and (curve is None or curve.lead is not None):  # it may be least just at a jump
            margins += [proof.least for proof in self.evidence.proofs]
        return min(margins, default=None)

    @property
    def curve(self) -> Curve:
        """The exact scores at every breakpoint that was reached, or by bounds wherever one strength was evaluated."""
        if isinstance(self.proof, (Swept, BoundedCells)) and self.query.path is not None:
            return self.proof.curve
        return Curve(np.empty(0), np.empty((0, self.query.obligations[0].property.outputs)))

    @property
    def regions(self) -> Regions | None:
        """What bounds proved where, on a path."""
        return self.proof.regions if isinstance(self.proof, BoundedCells) and self.query.path is not None else None

    def picture(self) -> Tensor | None:
        """The counterexample as a picture (channels, height, width), if inputs are pictures."""
        counterexample, inputs = self.counterexample, self.query.obligations[0].inputs
        if counterexample is None or inputs.layout is None:
            return None
        return inputs.layout.from_input(torch.from_numpy(counterexample.input))

    @property
    def kernel(self) -> CounterexampleKernel | None:
        """Of a set of kernels, the one that makes the counterexample."""
        kernels, counterexample = self.query.perturbation, self.counterexample
        if not isinstance(kernels, KernelSet) or counterexample is None or counterexample.shares is None:
            return None
        return CounterexampleKernel(kernels.kernel(counterexample.shares))

    @property
    def parameter(self) -> Parameter | None:
        """What was found, in the unit of a path that has one of its own."""
        perturbation, shown = self.query.perturbation, self.counterexample
        if not isinstance(perturbation, Perturbation) or perturbation.scale == STRENGTH:
            return None
        scale, critical = perturbation.scale, self.critical_strength
        at = None if shown is None or shown.strengths is None else shown.strengths[0]
        return Parameter(
            name=scale.name,
            unit=scale.unit,
            first=float(scale.values[0]),
            last=scale.reached(self.query.strengths[0]),
            certified=scale.reached(self.certified_strength),
            critical=None if critical is None else (scale.reached(critical[0]), scale.passed(critical[1])),
            counterexample=None if at is None else float(scale.value(at)),
            segments=scale.segments,
            distance=scale.distance,
            included=scale.included,
        )

    @property
    def record(self) -> Record:
        """The answer as plain data."""
        strength, shown = _one_or_several(self.query.strengths), None
        if (counterexample := self.counterexample) is not None:
            place = strength if counterexample.strengths is None else _one_or_several(counterexample.strengths)
            shown = RecordedCounterexample(place, counterexample.winner, counterexample.margin, counterexample.replayed)
        return Record(
            kernel=self.kernel,
            parameter=self.parameter,
            version=FORMAT,
            model=self.model,
            image=self.query.name,
            label=self.label,
            predicted=self.predicted,
            perturbation=None if self.query.perturbation is None else str(self.query.perturbation),
            strength=strength,
            status=self.status,
            critical_strength=self.critical_strength,
            certified_strength=self.certified_strength,
            profile=self.profile,
            counterexample=shown,
            min_margin=self.min_margin,
            method=self.method,
            pieces=self.pieces,
            rounding="rigorous",
            arithmetic=self.arithmetic,
            reason=self.reason,
            seconds=round(self.seconds, 6),
            remaining=self.remaining,
            deployment=self.proof.deployment if isinstance(self.proof, Enumerated) else None,
            comparison=self.noise,
            as_pictures=self.as_pictures,
            tested=self.tested,
            unperturbed=self.unperturbed,
            requirement=None if self.query.requirement is None else str(self.query.requirement),
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return self.record.to_json()

    def __repr__(self) -> str:
        return f"<Result {self.summary}>"

    @property
    def summary(self) -> str:
        """The query and the answer in one line."""
        return f"{self.record.asked}: {self.status}, {self.sentence}"

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        return self.record.told(self.query.class_names)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from shakeproof.report import result_html

        return result_html(self)

    def plot(self) -> Figure:
        """The label's margin over each rival against the strength, or a map of two strengths, in matplotlib."""
        from shakeproof.report import result_figure

        return result_figure(self)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while 8-bit pictures were run. `result` is the answer so far, as after a timeout."""

    def __init__(self, network: Deployed, result: Result) -> None:
        super().__init__(result.summary)
        self.network, self.result = network, result

    def __str__(self) -> str:
        pieces, reached = self.result.pieces, floor(self.result.certified_strength * 1e6) / 1e6
        return f"{pieces} pictures were run, certified up to strength {reached:g}"


def clopper_pearson(tried: int, lost: int, confidence: float = CONFIDENCE) -> float:
    """The one-sided Clopper-Pearson upper bound on the share of losses, rounded up."""
    from scipy.special import betaincinv

    share = 1.0 if lost == tried else float(betaincinv(lost + 1, tried - lost, confidence))
    return min(1.0, ceil(share * 1e6) / 1e6)


def begun_by(result: Result) -> SweptWindow | EnumeratedWindow | None:
    """The partial result of an answer that ran out of time, from which a later run can continue."""
    proof = result.proof
    if isinstance(proof, Enumerated) and proof.timed_out:
        return EnumeratedWindow(
            start=0.0,
            end=proof.pictures.end,
            margins=proof.margins,
            winners=proof.winners,
            deployment=proof.deployment,
            late=True,
            seconds=result.seconds,
        )
    if result.reason is not Reason.TIMEOUT or not isinstance(proof, Swept) or len(proof.curve.z) < 2:
        return None
    return SweptWindow(0.0, float(proof.curve.z[-1]), proof.curve, late=True, seconds=result.seconds)


@dataclass(frozen=True)
class Remaining:
    """The speed of a query until its time limit, and about how many seconds the remaining work takes."""

    pieces_per_second: float
    seconds: float

    def __str__(self) -> str:
        return f"needs about {spoken_time(self.seconds)} more at {_short(self.pieces_per_second)} pieces per second"


@dataclass(frozen=True)
class Expected:
    """The cost of running all 8-bit pictures: how many there are, and about how long they take here, on so many cores.

    The number is an estimate if the pictures are too many to be `counted` before.
    """

    pictures: int
    seconds: float
    counted: bool = True
    cores: int = 1

    def __str__(self) -> str:
        cores = "one core" if self.cores == 1 else f"{self.cores} cores"
        about = "" if self.counted else "about "
        return f"{about}{self.pictures:,} pictures, about {spoken_time(self.seconds)} on {cores}"


@dataclass(frozen=True)
class Tested:
    """So many `strengths`, drawn at random, were run, and so many of them `lost`: of all strengths, a share of at most
    `share_at_most` do, with a confidence of 99.9 %. A test, and no proof.
    """

    strengths: int
    lost: int
    share_at_most: float

    @staticmethod
    def of(strengths: int, lost: int) -> Tested:
        return Tested(strengths, lost, clopper_pearson(strengths, lost))

    def __str__(self) -> str:
        lost, loses = (self.lost, "lose") if self.lost else ("none", "loses")
        tried = f"{lost} of {self.strengths} strengths drawn at random {loses}"
        return f"{tried}: at most {100 * self.share_at_most:.3g} % of all do (confidence 99.9 %)"


@dataclass(frozen=True)
class Noise:
    """What float32's noise may take from a margin where the runtime was compared, and that margin; None is infinite."""

    noise: float | None
    margin: float | None

    def __str__(self) -> str:
        noise, margin = ("infinite" if value is None else f"{value:.2g}" for value in (self.noise, self.margin))
        return f"noise {noise}, margin {margin}"


@dataclass(frozen=True)
class CounterexampleKernel:
    """The entries, row by row, of a kernel under which the property fails."""

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))  # JSON has lists

    def __str__(self) -> str:
        return f"kernel {'; '.join(' '.join(f'{entry:.4g}' for entry in row) for row in self.rows)}"


@dataclass(frozen=True)
class Parameter:
    """What a record says in the unit of a path's own parameter, which goes from `first` to `last` as far as was asked.

    With a `distance`, kernels are those of chords, so near those of the curve that the name stands for; or all kernels
    so near to them are `included`, and the curve's with them.

    Rounded to the safe side: what is `certified` is no more than was proved, and `critical` brackets no less.
    """

    name: str
    unit: str
    first: float
    last: float
    certified: float
    critical: Bracket | None
    counterexample: float | None
    segments: int
    distance: float | None = None
    included: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "critical", _tupled(self.critical))  # JSON has lists

    def told(self, status: Status) -> str:
        """The number that belongs beside a verdict, in words; nothing where there is none."""
        if status is Status.MISCLASSIFIED or (status is Status.UNSAFE and self.critical is None):
            return ""
        distance = "" if self.distance is None else f"{self.distance:g} of the"
        near = distance and (
            f", all within {distance} chords" if self.included else f", by chords within {distance} curve"
        )
        if self.critical is None or status is not Status.UNSAFE:
            start = f"from {self.first:g} " if self.first else "up "
            return f"{self.name} {start}to {self._spoken(self.certified, inwards=True)} {self.unit}{near}"
        ends = [self._spoken(end, inwards) for end, inwards in zip(self.critical, (True, False), strict=True)]
        return f"{self.name} {' to '.join(dict.fromkeys(ends))} {self.unit}{near}"

    def _spoken(self, value: float, inwards: bool) -> str:
        """A value in digits that people read, rounded to the side of the value at 0, or to the other; parts of a second
        as cameras have them.
        """
        down = inwards == (self.last >= self.first)
        if self.unit == "s" and 0 < value < 1:
            return f"1/{ceil(1 / Fraction(value)) if down else floor(1 / Fraction(value))}"
        digits = Context(SPOKEN_DIGITS, ROUND_FLOOR if down else ROUND_CEILING).create_decimal(repr(value))
        return f"{float(digits):g}"


@dataclass(frozen=True)
class RecordedCounterexample:
    """What a record says of a counterexample."""

    strength: float | tuple[float, ...] | None
    winner: int
    margin: float
    replayed: bool


@dataclass(frozen=True)
class Record:
    """A result as plain data, without its evidence. It can be read back from its own JSON."""

    version: int
    model: str
    image: str
    label: int | None
    predicted: int | None
    perturbation: str | None
    strength: float | tuple[float, ...] | None
    status: Status
    critical_strength: Bracket | None
    certified_strength: float
    profile: tuple[Interval, ...]
    counterexample: RecordedCounterexample | None
    min_margin: float | None
    method: str
    pieces: int
    rounding: str
    arithmetic: str
    reason: Reason | None
    seconds: float
    tested: Tested | None = None
    remaining: Remaining | None = None
    deployment: Deployment | None = None
    comparison: Noise | None = None
    as_pictures: Expected | None = None
    unperturbed: int | None = None
    requirement: str | None = LABEL_WINS
    kernel: CounterexampleKernel | None = None
    parameter: Parameter | None = None

    def __repr__(self) -> str:
        return f"<Record {self.asked}: {self.status}, {self.told()}>"

    @property
    def is_about_label(self) -> bool:
        """Whether all that is required is that the label wins."""
        return self.requirement == LABEL_WINS

    @property
    def asked(self) -> str:
        """The image and what happens to it, in words."""
        return Path(self.image).name + (f" under {self.perturbation}" if self.perturbation else "")

    def told(self, classes: ClassNames | None = None) -> str:
        """What was found, in words."""
        label, predicted, unperturbed = (
            "no class" if number is None else (classes or ClassNames()).shown(number, "class {}")
            for number in (self.label, self.predicted, self.unperturbed)
        )
        asked = None if self.is_about_label or self.requirement is None else self.requirement
        asked = "the property" if asked is None and self.label is None else asked
        wins, loses = (f"{label} wins", f"{label} loses") if asked is None else (f"{asked} holds", f"{asked} fails")
        if self.status is Status.MISCLASSIFIED:
            if asked is not None:
                return f"{loses} at strength 0"
            blurred = "" if self.unperturbed is None else f"; {BLURS_AT_ZERO}, without blur {unperturbed} wins"
            cause = "" if self.unperturbed == self.label else f"; {LIKELY_CAUSE}"
            return f"{predicted} wins at strength 0, not {label}{blurred}{cause}"
        measured = "" if self.parameter is None else self.parameter.told(self.status)
        own = measured and f", {measured}"
        if self.status is Status.UNSAFE:
            if self.critical_strength is not None:
                return f"{loses}, critical strength {bracketed(self.critical_strength)}{own}"
            return loses + _at(self.counterexample.strength if self.counterexample else None, " at strength ")
        if self.status is Status.SAFE:
            return wins + _at(self.strength, " at every strength up to ") + own
        reached = _at(floor(self.certified_strength * 1e6) / 1e6 or None, f"; {wins} up to strength ")
        return self.why + reached + (reached and own)

    @property
    def why(self) -> str:
        """Why it is undecided, and what would decide it."""
        remaining = "" if self.remaining is None else f"; {self.remaining}"
        noise = "" if self.comparison is None else f" ({self.comparison})"
        test = "" if self.tested is None else f"; tested, not proved: {self.tested}"
        other = "" if self.as_pictures is None else f"; --pixels 8bit would decide it: {self.as_pictures}"
        chords = "; a smaller tolerance may decide it" if self.parameter and self.parameter.included else ""
        return (
            (self.reason.sentence if self.reason else "nothing was proved") + chords + noise + remaining + test + other
        )

    @cached_property
    def claim(self) -> Claim:
        """The claim about each part of the path."""
        return claim_of(self.to_json())

    def status_at(self, strength: float) -> Status:
        """The verdict on a part of the path, [0, `strength`]; of several strengths, on each up to that."""
        if not 0 <= strength <= min(self.claim.ends, default=-1.0):
            raise InputError(f"this answer covers strengths up to {self.strength}, not {strength}")
        return self.claim.at(strength)

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints: plain values only."""
        plain = {
            key: value
            for key, value in _plain(self).items()
            if value is not None or key not in (*SELDOM, "unperturbed")
        }
        return plain | ({OLD_NAME: plain["remaining"]} if "remaining" in plain else {})

    @staticmethod
    def from_json(line: str | Mapping[str, Any]) -> Record:
        """The record that one line of `--json` is, of an `--output` file, or of `shakeproof results`."""
        try:
            values = dict(json.loads(line) if isinstance(line, str) else line)
            check_version(values)
            for key in ("question", *CLAIMED):  # which are not the record's own
                values.pop(key, None)
            before = values.pop(OLD_NAME, None)
            values["remaining"] = values.get("remaining") or before
            for key, kind in OBJECTS.items():
                values[key] = kind(**values[key]) if values.get(key) else None
            shown = values["counterexample"]
            if shown is not None:
                place = _tupled(shown["strength"])
                shown = RecordedCounterexample(place, shown["class"], shown["margin"], shown["replayed"])
            profile = (  # answers of earlier versions do not say what is proved
                Interval(part["from"], part["to"], part["class"], part.get("proved", False))
                for part in values["profile"]
            )
            values |= {
                "status": Status(values["status"]),
                "reason": None if values["reason"] is None else REASONS[values["reason"]],
                "profile": tuple(profile),
                "critical_strength": _tupled(values["critical_strength"]),
                "strength": _tupled(values["strength"]),
                "counterexample": shown,
            }
            return Record(**values)
        except MALFORMED as error:
            raise malformed(error) from error


# Why a label may lose at strength 0.
BLURS_AT_ZERO = "the kernel already blurs at strength 0, as all of even size do"
LIKELY_CAUSE = "if this is unexpected, check the label and the preprocessing (size, colour, scale, mean and std)"
# What a record says only of some answers.
SELDOM = {
    "remaining": Remaining,
    "deployment": Deployment,
    "comparison": Noise,
    "as_pictures": Expected,
    "kernel": CounterexampleKernel,
    "parameter": Parameter,
}
# What it says as an object of its own.
OBJECTS = SELDOM | {"tested": Tested}
# What `remaining` was called in version 0.1; its JSON has both names.
OLD_NAME = "rest"
# Names that Python keeps for itself.
KEYS = {"start": "from", "end": "to", "winner": "class"}


def _plain(value: Any) -> Any:
    """A frozen value as JSON has it."""
    if is_dataclass(value):
        return {KEYS.get(each.name, each.name): _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.value if isinstance(value, Enum) else value


def spoken_time(seconds: float) -> str:
    """A time in the unit that people would say it in."""
    size, unit = next((unit for unit in UNITS if seconds < 120 * unit[0]), UNITS[-1])
    return f"{_short(seconds / size)} {unit}"


def _short(number: float) -> str:
    """About what a positive number is."""
    return f"{number:.{'2g' if number < 10 else '0f'}}"


def bracketed(critical: Bracket) -> str:
    """A critical strength, with the digits that are known."""
    low, high = critical
    if high - low < 1e-6:
        return f"{low:.9f}"
    return f"{low:.6f} to {high:.6f}" if low > 0 else f"at most {high:.6f}"


def _at(strength: float | tuple[float, ...] | None, words: str) -> str:
    """Words before a strength; nothing where there is none."""
    if strength is None:
        return ""
    several = strength if isinstance(strength, tuple) else (strength,)
    return words + ",".join(repr(z).removesuffix(".0") for z in several)


def _one_or_several(strengths: tuple[float, ...]) -> float | tuple[float, ...] | None:
    """One number on its own; nothing for none."""
    return (strengths[0] if len(strengths) == 1 else strengths) if strengths else None


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
