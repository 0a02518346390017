"""Two networks side by side: at which strengths of a perturbation they give different classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.analysis import Model, answers, as_network
from shakeproof.budget import no_progress
from shakeproof.errors import InputError, by
from shakeproof.model import Deployed, Network
from shakeproof.proof import FORMAT, Enumerated, Interval, Reason, Result, Runner
from shakeproof.question import ClassNames, Perturbation, Picture, Query, Strength, fitting, parse_path, perturbed
from shakeproof.settings import Pixels, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Agreement(StrEnum):
    """Whether two networks give the same class at every strength."""

    AGREE = "agree"
    DISAGREE = "disagree"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Disagreement:
    """Strengths from `start` to `end` at which the first network gives one class, and the second another.

    At a `strength` among them both were run once more; `replayed`, if they gave these classes again.
    """

    start: float
    end: float
    first: int
    second: int
    strength: float
    replayed: bool


@dataclass(frozen=True, eq=False)
class Compared:
    """What two networks make of an image under a perturbation, each in full, and where that is not the same.

    `open` are the strengths (from, to) at which it is not settled for both; everywhere else but in `disagreements` they
    agree.
    """

    first: Result
    second: Result
    disagreements: tuple[Disagreement, ...]
    open: tuple[tuple[float, float], ...]

    @property
    def query(self) -> Query:
        """The question, as the first network was asked it."""
        return self.first.query

    @property
    def status(self) -> Agreement:
        if any(stretch.replayed for stretch in self.disagreements):
            return Agreement.DISAGREE
        return Agreement.AGREE if self.reason is None else Agreement.UNDECIDED

    @property
    def reason(self) -> Reason | None:
        """Why something is left open, or is not to be relied on."""
        results = self.first, self.second
        if not all(result.evidence.finite for result in results):
            return Reason.NOT_FINITE
        if not all(result.evidence.runtime_agrees for result in results):
            return Reason.RUNTIME_DISAGREES
        if not all(stretch.replayed for stretch in self.disagreements):
            return Reason.NOT_REPLAYED
        if not self.open:
            return None
        if any(result.evidence.winners_told_up_to < self.query.strengths[0] for result in results):
            return Reason.COMPARISON
        finished = all(proof.is_finished for result in results for proof in result.evidence.proofs)
        return Reason.ROUNDING if finished else Reason.TIMEOUT

    @property
    def share(self) -> float:
        """Of all strengths, the share at which they disagree."""
        (end,) = self.query.strengths
        return sum(stretch.end - stretch.start for stretch in self.disagreements) / end if end else 0.0

    @property
    def seconds(self) -> float:
        return self.first.seconds + self.second.seconds

    @property
    def class_names(self) -> ClassNames:
        """What both call their classes, or the one that has names for them."""
        return self.first.query.class_names or self.second.query.class_names

    @property
    def summary(self) -> str:
        """The query and the answer in one line."""
        asked = f"{Path(self.query.name).name} under {self.query.perturbation}"
        if not self.disagreements:
            return f"{asked}: {self.status}"
        where = f"on {100 * self.share:.3g}% of strengths, first at {self.disagreements[0].start:.6g}"
        return f"{asked}: {self.status} {where}"

    def __repr__(self) -> str:
        return f"<Compared {self.summary}>"

    def to_json(self) -> dict[str, Any]:
        """The object that `shakeproof compare --json` prints."""
        results = self.first, self.second
        deployments = [result.record.deployment for result in results]
        facts = {
            "version": FORMAT,
            "models": [result.model for result in results],
            "image": self.query.name,
            "perturbation": str(self.query.perturbation),
            "strength": self.query.strengths[0],
            "status": self.status.value,
            "predicted": [_predicted(result) for result in results],
            "disagreements": [
                {
                    "from": stretch.start,
                    "to": stretch.end,
                    "classes": [stretch.first, stretch.second],
                    "strength": stretch.strength,
                    "replayed": stretch.replayed,
                }
                for stretch in self.disagreements
            ],
            "open": [{"from": start, "to": end} for start, end in self.open],
            "method": self.first.method,
            "pieces": [result.pieces for result in results],
            "arithmetic": self.first.arithmetic,
            "reason": None if self.reason is None else self.reason.value,
            "seconds": round(self.seconds, 6),
        }
        return facts | (
            {"deployments": [asdict(deployment) for deployment in deployments if deployment]}
            if all(deployments)
            else {}
        )

    def plot(self) -> Figure:
        """Both networks' margins and classes against the strength, in matplotlib."""
        from shakeproof.report import compared_figure

        return compared_figure(self)


def compare(
    first: Model,
    second: Model,
    image: Picture,
    perturbation: Perturbation | str,
    max_strength: Strength = 1.0,
    progress: Callable[[float], None] = no_progress,
    *,
    pixels: Pixels = "real",
    timeout: float | None = None,
    memory: float = 2.0,
    device: str = "cpu",
) -> Compared:
    """All strengths in [0, max_strength] at which two networks give an image different classes.

    By the exact method, or by running every picture (`pixels="8bit"`), for which any two networks will do. The other
    arguments are those of `Settings`; of the time, each network has half.
    """
    settings = Settings(timeout=timeout, memory=memory, device=device, pixels=pixels)
    one, other = (as_network(model, settings) for model in (first, second))
    asked = [(image, parse_path(perturbation))]
    (compared,) = comparisons(one, other, asked, max_strength, settings, progress)
    return compared


def comparisons(
    one: Deployed,
    other: Deployed,
    asked: Iterable[tuple[Picture, Perturbation]],
    strength: Strength,
    settings: Settings,
    progress: Callable[[float], None] = no_progress,
) -> Iterator[Compared]:
    """Compare networks on images, each under a perturbation, in their order, each as soon as it is known.

    `progress` is told how many are done with, those in work by their share.
    """
    check_comparable(one, other, settings)
    half = replace(settings, timeout=None if settings.timeout is None else settings.timeout / 2)
    done = [0.0, 0.0]

    def results(side: int, network: Deployed, asked: Iterator[tuple[Picture, Perturbation]]) -> Iterator[Result]:
        def tell(count: float) -> None:
            done[side] = count
            progress(sum(done) / 2)

        def query(image: Picture, perturbation: Perturbation) -> Query:
            if perturbation.parameters != 1:
                raise InputError(f"{perturbation}: networks are compared along one strength; leave out the other parts")
            # the network's own class at strength 0 is the label: what classes images should have does not matter here
            unlabelled = replace(fitting(network, image, perturbation.at_original), label=None)
            return perturbed(network, [unlabelled], perturbation, None, strength)[0]

        return answers(network, (query(*each) for each in asked), half, tell)

    first, second = tee(asked)
    for mine, theirs in zip(results(0, one, first), results(1, other, second), strict=True):
        yield _compared(one, other, mine, theirs)


def check_comparable(one: Deployed, other: Deployed, settings: Settings) -> None:
    """Refuse networks that do not take the same pictures, or have other classes; or that the method is not for."""
    shapes = [network.picture().image_shape for network in (one, other)]
    if shapes[0] != shapes[1]:
        mine, theirs = map(by, shapes)
        raise InputError(
            f"{one.name} takes pictures of {mine}, {other.name} of {theirs}; networks must take the same"
            " pictures to be compared"
        )
    if one.classes != other.classes:
        counts = f"{one.name} has {one.classes} classes, {other.name} {other.classes}"
        raise InputError(f"{counts}; networks must have the same classes to be compared")
    for number in range(one.classes) if one.class_names and other.class_names else ():
        mine, theirs = (network.class_names.shown(number) for network in (one, other))
        if mine != theirs:
            raise InputError(
                f"{one.name} calls class {number} {mine}, {other.name} {theirs}; if the classes are the same, give"
                " both networks the same names",
                option="classes",
            )
    for network in (one, other) if settings.pixel_rounding is None else ():
        if not isinstance(network, Network) or not network.graph.is_piecewise_linear:
            raise InputError(
                f"{network.name}: only piecewise-linear networks can be compared at every strength; compare 8-bit"
                " pictures",
                option="pixels",
            )


class Stretch(NamedTuple):
    """Strengths at which each network has one class (-1: unknown), and one of them to replay.

    Of 8-bit pictures, that is one with a `number`.
    """

    start: float
    end: float
    first: int
    second: int
    strength: float
    number: int = -1

    @property
    def is_open(self) -> bool:
        return min(self.first, self.second) < 0


def _compared(one: Deployed, other: Deployed, mine: Result, theirs: Result) -> Compared:
    proofs = mine.proof, theirs.proof
    if isinstance(proofs[0], Enumerated) and isinstance(proofs[1], Enumerated):
        stretches = list(_of_pictures(proofs[0], proofs[1]))
    else:
        # one function agrees with itself, even where rounding hides what it is
        same = all(getattr(one, name) == getattr(other, name) for name in ("identity", "normalisation", "layout"))
        stretches = [] if same else list(_of_lines(mine, theirs))
    apart = [stretch for stretch in stretches if not stretch.is_open and stretch.first != stretch.second]
    again = (_seen_again(network, result, apart) for network, result in ((one, mine), (other, theirs)))
    parts: list[tuple[float, float]] = []  # that are open, those that touch made one
    for stretch in stretches:
        if stretch.is_open and parts and parts[-1][1] == stretch.start:
            parts[-1] = parts[-1][0], stretch.end
        elif stretch.is_open:
            parts.append((stretch.start, stretch.end))
    return Compared(
        first=mine,
        second=theirs,
        disagreements=tuple(
            Disagreement(
                stretch.start,
                stretch.end,
                stretch.first,
                stretch.second,
                stretch.strength,
                seen == [stretch.first, stretch.second],
            )
            for stretch, *seen in zip(apart, *again, strict=True)
        ),
        open=tuple(parts),
    )


def _seen_again(network: Deployed, result: Result, stretches: Sequence[Stretch]) -> list[int]:
    """The class that the runtime gives at one strength of each stretch, run once more; -1 if scores are not finite."""
    if not stretches:
        return []
    if isinstance(result.proof, Enumerated):
        runner = Runner.of(network, result.proof.pictures, result.query.photograph)
        scores = np.concatenate([*runner.scores_of([stretch.number for stretch in stretches])])
    else:
        assert result.query.path is not None
        z = torch.tensor([[stretch.strength] for stretch in stretches], dtype=torch.float64)
        scores = network.reference(result.query.path.runtime_inputs(z))
    return [int(row.argmax()) if np.isfinite(row).all() else -1 for row in scores]


def _of_pictures(one: Enumerated, other: Enumerated) -> Iterator[Stretch]:
    """Both have run the same pictures, one after another, as far as they got."""
    pictures, count = one.pictures, max(len(one.margins), len(other.margins))
    classes = np.full((2, count), -1)
    for row, proof in zip(classes, (one, other), strict=True):
        row[: len(proof.classes)] = proof.classes
    ends = pictures.strengths(count)
    starts = np.flatnonzero(np.append(True, (classes[:, 1:] != classes[:, :-1]).any(0)))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True):
        widest = start + int(np.diff(ends[start : stop + 1]).argmax())
        mine, theirs = classes[:, start].tolist()
        middle = pictures.strength_inside(widest)
        yield Stretch(float(ends[start]), float(ends[stop]), mine, theirs, middle, widest)
    if pictures.has(count):
        yield Stretch(float(ends[-1]), pictures.end, -1, -1, pictures.end)


def _of_lines(mine: Result, theirs: Result) -> Iterator[Stretch]:
    """Where stretches overlap on which a class is proved to win."""
    (end,) = mine.query.strengths
    parts = [[part for part in result.profile if part.proved] for result in (mine, theirs)]
    inner = {z for profile in parts for part in profile for z in (part.start, part.end) if 0 < z < end}
    cuts = np.array([0.0, *sorted(inner), end])
    middles = (cuts[1:] + cuts[:-1]) / 2
    first, second = (_winners(profile, cuts[:-1]) for profile in parts)
    columns = cuts[:-1].tolist(), cuts[1:].tolist(), first, second, middles.tolist()
    yield from map(Stretch, *columns)


def _winners(parts: Sequence[Interval], starts: NDArray[np.float64]) -> list[int]:
    """Who is proved to win behind the starts of cells that no part cuts; -1 where nobody is."""
    places = np.searchsorted([part.start for part in parts], starts, side="right").tolist()
    before = [Interval(0.0, -1.0, -1), *parts]
    pairs = [(before[place], start) for place, start in zip(places, starts.tolist(), strict=True)]
    return [part.winner if start < part.end or start == part.start else -1 for part, start in pairs]


def _predicted(result: Result) -> int | None:
    """The class at strength 0: of pictures whose scores are the same, the first, as everywhere here."""
    if not isinstance(result.proof, Enumerated):
        return result.predicted
    number = int(result.proof.classes[0])
    return None if number < 0 else number
