"""Motion blur of many sizes in many directions: how much of each an image takes, and of which it takes least.

Each size and angle is a question of its own, answered like any other. Between the angles nothing is claimed, unless it
is asked for: then, for each size, every angle is certified at one strength, by the chain `motion-angle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shakeproof.analysis import Model, answers, as_network
from shakeproof.budget import no_progress
from shakeproof.errors import InputError
from shakeproof.model import Deployed
from shakeproof.proof import FORMAT, Result, Status
from shakeproof.question import Image, Perturbation, Picture, Query, fitting, motion_angle, motion_blur, perturbed
from shakeproof.settings import Options, Settings

if TYPE_CHECKING:
    from typing import Unpack

    from matplotlib.figure import Figure

SIZES, ANGLES = range(3, 16, 2), range(0, 180, 15)
MOST_QUESTIONS = 10_000
# How often the strength is halved or raised at which every angle is certified, and its decimals.
STEPS, DECIMALS = 8, 4


@dataclass(frozen=True)
class Scanned:
    """The answer for one size and angle: certified up to a strength, and between which two the class flips first."""

    size: int
    angle: float
    status: Status
    certified: float
    critical: tuple[float, float] | None
    seconds: float

    @staticmethod
    def of(size: int, angle: float, result: Result) -> Scanned:
        return Scanned(size, angle, result.status, result.certified_strength, result.critical_strength, result.seconds)


@dataclass(frozen=True)
class EveryAngle:
    """Every angle from `start` to `end`, for one size, at one `strength`: the largest that bisection found certified.

    Of smaller strengths it says nothing. None: no strength was.
    """

    size: int
    start: float
    end: float
    strength: float | None


@dataclass(frozen=True, eq=False)
class Scan:
    """An image under motion blur of some sizes at some angles, up to a strength: `cells` by size, then by angle.

    `between` has every angle of each size, if that was asked for.
    """

    model: str
    image: str
    label: str
    predicted: int | None
    sizes: tuple[int, ...]
    angles: tuple[float, ...]
    strength: float
    perturbation: str
    cells: tuple[Scanned, ...]
    between: tuple[EveryAngle, ...] = ()

    @property
    def status(self) -> Status:
        """That of the worst cell: unsafe or misclassified, else undecided, else safe."""
        found = {cell.status for cell in self.cells}
        worst = (Status.MISCLASSIFIED, Status.UNSAFE, Status.UNDECIDED)
        return next((status for status in worst if status in found), Status.SAFE)

    @property
    def weakest(self) -> Scanned:
        """The size and angle at which the least is certified."""
        return min(self.cells, key=lambda cell: cell.certified)

    def cell(self, size: int, angle: float) -> Scanned:
        return self.cells[self.sizes.index(size) * len(self.angles) + self.angles.index(angle)]

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        counts = {status: sum(cell.status is status for cell in self.cells) for status in Status}
        told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        least = self.weakest
        where = f"size {least.size} at angle {least.angle:g}"
        if self.status is Status.SAFE:
            return f"{told}: {self.label} wins at every strength up to {self.strength:g}, at each size and angle"
        return f"{told}; least is certified for {where}: up to {least.certified:.6g}"

    def __repr__(self) -> str:
        return f"<Scan {Path(self.image).name}: {self.sentence}>"

    def to_json(self) -> dict[str, Any]:
        """The object that `shakeproof scan --json` prints; lists have a row for each size, an entry for each angle."""
        count = len(self.angles)
        rows = [self.cells[start : start + count] for start in range(0, len(self.cells), count)]
        return {
            "version": FORMAT,
            "model": self.model,
            "image": self.image,
            "label": self.label,
            "predicted": self.predicted,
            "perturbation": self.perturbation,
            "strength": self.strength,
            "sizes": list(self.sizes),
            "angles": list(self.angles),
            "status": self.status.value,
            "statuses": [[cell.status.value for cell in row] for row in rows],
            "certified": [[cell.certified for cell in row] for row in rows],
            "critical": [[None if cell.critical is None else list(cell.critical) for cell in row] for row in rows],
            "weakest": {"size": self.weakest.size, "angle": self.weakest.angle, "certified": self.weakest.certified},
            "between": [{"from": one.start, "to": one.end, "strength": one.strength} for one in self.between] or None,
            "seconds": round(sum(cell.seconds for cell in self.cells), 6),
        }

    def plot(self) -> Figure:
        """A polar map: the angle is the direction of motion, the radius its size, the colour what is certified."""
        from shakeproof.report import scan_figure

        return scan_figure(self)


def scan(
    network: Model,
    image: Picture,
    sizes: Sequence[int] = SIZES,
    angles: Sequence[float] = ANGLES,
    label: int | str | None = None,
    max_strength: float = 1.0,
    progress: Callable[[float], None] = no_progress,
    *,
    padding: str = "reflect",
    at_original: bool = False,
    between: bool = False,
    **options: Unpack[Options],
) -> Scan:
    """How much motion blur an image takes, for each of some sizes at each of some angles (bearings, 0 is up).

    `between`: for each size, every angle between is certified too, at the largest strength that is found; for networks
    that the exact method takes. `padding` and `at_original` are those of the perturbation; the other arguments are
    those of `Settings`, a time limit for each size and angle. `progress` is told which share is done.
    """
    settings = Settings(**options)
    asked, known = grid(sizes, angles, padding, at_original), as_network(network, settings)
    found = Scanning(known, fitting(known, image, at_original), asked, label, max_strength, settings, between)
    for done, _ in enumerate(found, start=1):
        progress(done / len(found))
    return found.scan


def grid(sizes: Sequence[int], angles: Sequence[float], padding: str, at_original: bool) -> list[Perturbation]:
    """The kernels of a scan, by size, then by angle; angles that are equal modulo 180 are one."""
    if not sizes or not angles:
        raise InputError("a scan has at least one size and one angle")
    if len(sizes) * len(angles) > MOST_QUESTIONS:
        raise InputError(f"{len(sizes)} sizes at {len(angles)} angles are more than {MOST_QUESTIONS} questions")
    kernels = [motion_blur(size, angle, padding) for size in dict.fromkeys(sizes) for angle in angles]
    return [kernel.of_photograph() if at_original else kernel for kernel in dict.fromkeys(kernels)]


class Scanning:
    """The questions of a scan, answered one by one: what is iterated over are the answers as they come."""

    def __init__(
        self,
        network: Deployed,
        image: Image,
        kernels: Sequence[Perturbation],
        label: int | str | None,
        strength: float,
        settings: Settings,
        between: bool = False,
    ) -> None:
        self.network, self.image, self.kernels, self.label = network, image, kernels, label
        self.strength, self.settings = strength, settings
        self.cells: list[Scanned] = []
        self.between: list[EveryAngle] = []
        self.first: Result | None = None
        places = [_size_and_angle(kernel) for kernel in kernels]
        self.sizes = tuple(dict.fromkeys(size for size, _ in places))
        self.angles = tuple(dict.fromkeys(angle for _, angle in places))
        self.turning = {size: self._turning(size, strength) for size in self.sizes} if between else {}
        if between and settings.pixel_rounding is not None:
            raise InputError("angles between others are certified for real-valued pixels, not for 8-bit pictures")

    def __len__(self) -> int:
        return len(self.kernels) + len(self.turning)

    def __iter__(self) -> Iterator[Scanned | EveryAngle]:
        results = answers(self.network, map(self._query, self.kernels), self.settings)
        for kernel, result in zip(self.kernels, results, strict=True):
            self.first = self.first or result
            cell = Scanned.of(*_size_and_angle(kernel), result)
            self.cells.append(cell)
            yield cell
        for size in self.turning:
            self.between.append(self._every_angle(size))
            yield self.between[-1]

    def _every_angle(self, size: int) -> EveryAngle:
        """The largest strength found at which every angle is certified: at no angle more than was certified of it."""
        high = min(cell.certified for cell in self.cells if cell.size == size)
        low, start, end = 0.0, *self._turn
        if high == self.strength and self._holds(size, high):
            return EveryAngle(size, start, end, high)
        for _ in range(STEPS if high else 0):
            middle = round((low + high) / 2, DECIMALS)
            low, high = (middle, high) if middle > low and self._holds(size, middle) else (low, middle)
        return EveryAngle(size, start, end, low or None)

    def _holds(self, size: int, strength: float) -> bool:
        """Whether the label provably wins at every angle, at one strength."""
        assert self.first is not None
        (query,) = perturbed(self.network, [self.image], self._turning(size, strength), self.first.label)
        (result,) = answers(self.network, [query], replace(self.settings, stop_early=True))
        return result.status is Status.SAFE

    @property
    def _turn(self) -> tuple[float, float]:
        """From the first angle to the last; or back to the first, if the gap there is no larger than others."""
        angles = sorted(self.angles)
        gaps = [after - before for before, after in pairwise(angles)]
        around = angles[0] + 180
        return angles[0], around if not gaps or around - angles[-1] <= max(gaps) + 1e-9 else angles[-1]

    def _turning(self, size: int, strength: float) -> Perturbation:
        start, end = self._turn
        one = self.kernels[0]
        kernel = motion_angle(size, start, end, strength, one.parts[0].padding)
        return kernel.of_photograph() if one.at_original else kernel

    def _query(self, kernel: Perturbation) -> Query:
        (query,) = perturbed(self.network, [self.image], kernel, self.label, self.strength)
        return query

    @property
    def scan(self) -> Scan:
        """All answers together."""
        assert self.first is not None
        last = ",".join(str(self.kernels[0]).split(",")[2:])  # what all of them share
        return Scan(
            model=self.first.model,
            image=self.image.name,
            label=_label_name(self.first),
            predicted=self.first.predicted,
            sizes=self.sizes,
            angles=self.angles,
            strength=self.strength,
            perturbation="motion-blur" + f":{last}" * bool(last),
            cells=tuple(self.cells),
            between=tuple(self.between),
        )


def _label_name(result: Result) -> str:
    """The class that should win."""
    names = result.query.class_names
    return "no class" if result.label is None else names.shown(result.label, "class {}")


def _size_and_angle(kernel: Perturbation) -> tuple[int, float]:
    options = dict(kernel.parts[0].options)
    return int(options["size"]), float(options["angle"])
