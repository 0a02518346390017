"""Every 8-bit picture of a path, run in the deployed runtime: complete, bit for bit, for any network that it loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import Budget, now
from shakeproof.enumeration import EightBitPictures, eight_bit_pictures
from shakeproof.errors import InputError, ProofError
from shakeproof.model import Deployed, Deployment, Runtime
from shakeproof.proof.evidence import Counterexample, Enumerated, EnumeratedWindow
from shakeproof.proof.result import Expected, Interrupted, Result
from shakeproof.proof.verdict import Evidence
from shakeproof.question import Image, Perturbation, Photograph, Property, Query, as_whole
from shakeproof.settings import Settings

# So many numbers of pictures, and so many pictures at most, are handed to the runtime at once.
AT_ONCE, MOST_AT_ONCE = 2**20, 256
# On so many pictures of a path a batch must give what each gives alone, bit for bit.
PROBED = 16
# A first run that took so many seconds says how long others take; in a shorter one, most may be preparation.
TELLING = 0.1
# A pixel's path takes so much memory at most while it is worked out in whole numbers.
PIXEL_BYTES = 512
WHITE, WHOLE = np.float32(255), 255
# Pictures that are run one by one are handed to a thread so many numbers at a time, to end soon when the time is up.
HANDED = 2**18
# The changes of pixels in so many windows are counted in a moment.
COUNTED = 4
# So many seconds pass before what is certified is told again.
TELL_SECONDS = 0.2
Judged = tuple[NDArray[np.float32], NDArray[np.int64]]
"""By how much a property holds of each of some pictures, and who wins."""
Tell = Callable[[Query, Expected, float], None]
"""Hears what a query takes before its pictures are run, then every now and then how far it is certified."""


def answer_by_enumeration(
    network: Deployed,
    query: Query,
    settings: Settings,
    progress: Callable[[float], None],
    expect: Tell | None = None,
    begun: EnumeratedWindow | None = None,
) -> Result:
    """Answer a query about a path of one strength, of which every picture is rounded to 8 bits.

    Where it was `begun` before, it goes on. Who interrupts it gets what is known by then, as an `Interrupted`.
    """
    started, budget = now(), Budget.starting(settings.timeout, settings.memory, progress)
    runner, about = Runner.of(network, pictures_of(query, settings), query.photograph), property_of(query)
    parts, before = ([], 0.0) if begun is None else ([_begun(query, runner, begun)], begun.seconds)
    told = _tell_nobody if expect is None else partial(expect, query, runner.expected)
    told(0.0)
    interrupted, wrong_label_ends = False, not settings.whole_curve and not query.label_predicted
    try:
        _run_on(runner, about, settings, budget, parts, told, wrong_label_ends)
    except KeyboardInterrupt:
        if not parts:
            raise
        interrupted = True
    margins, winners = _put_together(parts)
    late = (interrupted or budget.is_late()) and runner.pictures.has(len(margins))
    result = _answer(runner, query, margins, winners, late, before + now() - started)
    if interrupted:
        raise Interrupted(network, result)
    return result


def _run_on(
    runner: Runner,
    about: Property,
    settings: Settings,
    budget: Budget,
    parts: list[Judged],
    tell: Callable[[float], None],
    wrong_label_ends: bool = False,
) -> None:
    """Run the pictures behind those that were run, as far as the time lets it come; in `parts`, so that an interrupt
    loses none. With `stop_early`, up to the first that is lost; or if `wrong_label_ends` it, only if that is the first
    of all.
    """
    pictures, done, heard = runner.pictures, sum(len(margins) for margins, _ in parts), now()
    kept = all((margins > 0).all() for margins, _ in parts)
    if settings.stop_early and not kept:
        return
    for scores in runner.scores(done):
        parts.append(judged(scores, about))
        done += len(scores)
        kept = kept and bool((parts[-1][0] > 0).all())
        budget.progress(min(done / pictures.about, 1.0))
        if kept and now() - heard > TELL_SECONDS:
            tell(pictures.last_before(done) if pictures.has(done) else pictures.end)
            heard = now()
        is_over = (settings.stop_early and not kept) or (wrong_label_ends and not parts[0][0][0] > 0)
        if budget.is_late() or is_over:
            break


def _begun(query: Query, runner: Runner, begun: EnumeratedWindow) -> Judged:
    """The earlier results, if they are the beginning of this path and came from the same runtime."""
    if begun.start or (begun.end,) != query.strengths or not runner.pictures.has(len(begun.margins) - 1):
        raise ProofError("the pictures that were run before are not the beginning of these")
    _check_same((begun.deployment, runner.deployment))
    return begun.margins, begun.winners


def _check_same(deployments: Sequence[Deployment]) -> None:
    first, *others = dict.fromkeys(deployments)
    if others:
        raise InputError(f"some pictures were run by {first}, others by {others[0]}; start over with one of them")


def _put_together(parts: Sequence[Judged]) -> Judged:
    margins, winners = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return margins, winners


def _answer(
    runner: Runner,
    query: Query,
    margins: NDArray[np.float32],
    winners: NDArray[np.int64],
    timed_out: bool,
    seconds: float,
    lost: int | None = None,
) -> Result:
    """The answer, of what was made of the pictures from the first on; one that is `lost` may be behind them."""
    network, about = runner.network, property_of(query)
    proof = Enumerated(runner.pictures, about, margins, winners, runner.deployment, timed_out)
    lost = proof.first_lost if lost is None else lost
    evidence = Evidence(
        needed=1,
        proofs=(proof,),
        counterexample=None if lost is None else runner.counterexample(lost, about),
        comparison=None,
        start=float(margins[0]),
        finite=not bool(np.isnan(margins).any()),
        arithmetic="deployed",
        start_fails=True,
    )
    predicted = None if np.isnan(margins[0]) else int(winners[0])
    return Result(network.name, network.identity, query, evidence, predicted, seconds)


def enumerate_window(network: Deployed, query: Query, settings: Settings, start: float, end: float) -> EnumeratedWindow:
    """Run the pictures that begin on a part of a query's path."""
    started, budget = now(), Budget.starting(settings.timeout, settings.memory)
    whole = Runner.of(network, pictures_of(query, settings), query.photograph)
    runner, parts = replace(whole, pictures=whole.pictures.between(start, end)), list[Judged]()
    _run_on(runner, property_of(query), settings, budget, parts, _tell_nobody)
    margins, winners = _put_together(parts)
    late, before = budget.is_late() and runner.pictures.has(len(margins)), 1 if start else 0
    seconds = now() - started
    return EnumeratedWindow(start, end, margins[before:], winners[before:], runner.deployment, late, seconds)


def answer_by_picture_windows(
    network: Deployed, query: Query, settings: Settings, windows: Sequence[EnumeratedWindow]
) -> Result:
    """Answer a query from consecutive windows, whose pictures may have been run elsewhere.

    That none is missing in between is checked here, by the number of the picture at which each begins; that all are
    there, by the proof itself. Behind a window that was left early only a lost picture counts.
    """
    started, runner = now(), Runner.of(network, pictures_of(query, settings), query.photograph)
    parts, lost, end, count = list[Judged](), list[int](), 0.0, 0
    for window in sorted(windows, key=lambda window: (window.start, window.end)):
        first = runner.pictures.before(Fraction(window.start)) if window.start else 0
        if window.start != end or first < count:
            raise ProofError("windows of 8-bit pictures do not follow one another")
        if first == count:
            parts.append((window.margins, window.winners))
            count += len(window.margins)
        lost += (first + np.flatnonzero(~(window.margins > 0))[:1]).tolist()
        end = window.end
    _check_same([window.deployment for window in windows] + [runner.deployment])
    margins, winners = _put_together(parts)
    seconds = sum(window.seconds for window in windows) + now() - started
    late = any(window.late for window in windows)
    return _answer(runner, query, margins, winners, late, seconds, min(lost, default=None))


def _tell_nobody(certified: float) -> None:
    """Hears how much is certified and does nothing."""


def property_of(query: Query) -> Property:
    (obligation,) = query.obligations
    return obligation.property


def expected(network: Deployed, query: Query, settings: Settings) -> Expected:
    """How many pictures a query has, and about how long it takes to run them: they are counted, and one is run."""
    return Runner.alone(network, pictures_of(query, settings), query.photograph).expected


def pictures_of(query: Query, settings: Settings) -> EightBitPictures:
    """All pictures of a query about one strength."""
    assert settings.pixel_rounding is not None
    perturbation, image = query.perturbation, query.image
    if not isinstance(perturbation, Perturbation) or image is None or query.parameters != 1:
        raise InputError(
            f"{query.perturbation or query.name}: 8-bit pictures can be counted along one strength only; with several,"
            " or in a box of inputs, there are too many to run"
        )
    perturbation.check_straight("8-bit pictures are counted")
    (end,), budget, photograph = query.strengths, Budget.starting(None, settings.memory), query.photograph
    acted_on = image if photograph is None else photograph
    budget.fitting(PIXEL_BYTES, "the exact path of 8-bit pictures", least=acted_on.pixels.numel())
    levels = grey_levels(image) if photograph is None else (photograph.bytes().astype(object), WHOLE)
    path = perturbation.exactly(*levels)
    return eight_bit_pictures(path, end, perturbation.clip, settings.pixel_rounding, budget)


def grey_levels(image: Image) -> tuple[NDArray[Any], int]:
    """An image's pixels in whole numbers of a unit: 255 of it where they are bytes, whose 255th parts are rounded.

    Pixels of which all are the float64 or the float32 number nearest to n / 255 are taken to be that.
    """
    pixels = image.pixels.numpy()
    nearest = np.rint(pixels * 255)
    for kind in (np.float64, np.float32):
        if np.array_equal((nearest / 255).astype(kind), pixels) and ((nearest >= 0) & (nearest <= 255)).all():
            return nearest.astype(np.int64).astype(object), WHOLE
    return as_whole(image.pixels)


def judged(scores: NDArray[np.float32], about: Property) -> Judged:
    """By how much a property holds of each row of scores (n, classes), NaN if one is no number; and who wins.

    One that scores as much as the label beats it.
    """
    finite = np.isfinite(scores).all(1)
    with np.errstate(invalid="ignore"):
        lead = about.margin(scores.astype(np.float64)).astype(np.float32)
    winner = scores.argmax(1)
    if about.is_label and about.label is not None:
        rivals = scores.copy()
        rivals[:, about.label] = -np.inf
        winner = np.where(lead > 0, about.label, rivals.argmax(1))
    return np.where(finite, lead, np.float32(np.nan)), winner


@dataclass(frozen=True, eq=False)
class Runner:
    """Runs pictures in a network's runtime, so many at a time; `first` is the time of the first batch.

    Pictures of a `photograph` are photographs, which are resized on their way.
    """

    network: Deployed
    pictures: EightBitPictures
    photograph: Photograph | None
    runtime: Runtime
    at_once: int
    in_batches: bool = False
    first: float = 0.0

    @staticmethod
    def of(network: Deployed, pictures: EightBitPictures, photograph: Photograph | None) -> Runner:
        """With batches if the runtime makes of pictures in a batch what it makes of each alone, bit for bit."""
        size = max(prod(network.input_shape), prod(pictures.shape))
        most = max(min(MOST_AT_ONCE, AT_ONCE // size, pictures.about), 1)
        alone = Runner.alone(network, pictures, photograph, most)
        if most < 2 or not alone.runtime.in_batches:
            return alone
        together, probed = replace(alone, in_batches=True), next(pictures.batches(most))
        chosen = np.linspace(0, len(probed) - 1, min(PROBED, len(probed))).astype(int)
        started = now()
        try:
            scores = together.run(probed)
        except InputError:  # a batch size is fixed within the network, whatever its input says
            return alone
        together = replace(together, first=now() - started)
        return together if scores[chosen].tobytes() == alone.run(probed[chosen]).tobytes() else alone

    @staticmethod
    def alone(network: Deployed, pictures: EightBitPictures, photograph: Photograph | None, at_once: int = 1) -> Runner:
        """One by one, so many in the hands of a thread."""
        if not isinstance(network.runtime, Runtime):
            raise InputError(f"{network.name}: no runtime can run it; export it in float32")
        return Runner(network, pictures, photograph, network.runtime.on_one_thread(), at_once)

    @property
    def handed(self) -> int:
        """How many pictures a thread is handed at once."""
        return self.at_once if self.in_batches else min(self.at_once, max(1, HANDED // prod(self.network.input_shape)))

    @property
    def batch(self) -> int:
        """How many pictures the runtime is given at a time."""
        return self.at_once if self.in_batches else 1

    @cached_property
    def seconds_each(self) -> float:
        """About how long the runtime takes for a picture, on one thread."""
        if self.first > TELLING:
            return self.first / self.batch
        levels = np.repeat(self.pictures.picture(0)[None], self.batch, axis=0)
        self.run(levels)  # the first time is longer
        started = now()
        self.run(levels)
        return (now() - started) / len(levels)

    @property
    def expected(self) -> Expected:
        """Where there are too many to be counted in a moment, the first of them say how many there are."""
        if self.pictures.total <= COUNTED * self.pictures.most:
            len(self.pictures)
        count, is_exact = self.pictures.about, self.pictures.is_counted
        return Expected(count, self.seconds_each * count / self.workers, is_exact, self.workers)

    @property
    def workers(self) -> int:
        """How many runs there are at a time: one for each core, if a run keeps one of them busy."""
        return torch.get_num_threads() if self.deployment.threads == 1 else 1

    @property
    def deployment(self) -> Deployment:
        return self.runtime.deployment(self.batch)

    def scores(self, first: int = 0) -> Iterator[NDArray[np.float32]]:
        """Of all pictures in order from the `first` on, so many at once."""
        return self.run_all(self.pictures.batches(self.handed, first))

    def scores_of(self, numbers: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Of some pictures."""
        parts = (numbers[start : start + self.at_once] for start in range(0, len(numbers), self.at_once))
        batches = (np.stack([self.pictures.picture(number) for number in part]) for part in parts)
        return self.run_all(batches)

    def run_all(self, batches: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.float32]]:
        """The scores of batches, in order: several at a time, while the next ones are made.

        For one worker, no thread is worth its while: what is made beside its runs is little, and waiting costs more.
        """
        if self.workers == 1:
            yield from map(self.run, batches)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            pending: deque[Future[NDArray[np.float32]]] = deque()
            try:
                for batch in batches:
                    pending.append(pool.submit(self.run, batch))
                    if len(pending) > self.workers + 1:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:  # whoever asked may have heard enough
                for waiting in pending:
                    waiting.cancel()

    def run(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Scores (n, classes) of pictures (n, channels, height, width); of photographs that are resized to the same
        picture, one after another, it is run once.
        """
        if self.photograph is None:
            return self._run(levels)
        pictures = self.photograph.developed(levels)
        other = np.append(True, (pictures[1:] != pictures[:-1]).any((1, 2, 3)))
        scores: NDArray[np.float32] = self._run(pictures[other])[np.cumsum(other) - 1]
        return scores

    def _run(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Scores (n, classes) of the network's pictures; a batch that is not full is filled up."""
        if not self.in_batches:
            return self.runtime.one_by_one(self.network.prepared(self.given(levels)))
        filled = np.concatenate([levels, np.repeat(levels[-1:], self.batch - len(levels), axis=0)])
        return self.runtime(self.network.prepared(self.given(filled)))[: len(levels)]

    def given(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Grey levels as the float32 numbers that are nearest to their 255th parts, as the model lays pictures out."""
        return self.network.picture().to_input(torch.from_numpy(levels / WHITE)).numpy()

    def counterexample(self, number: int, about: Property) -> Counterexample:
        """A picture that is lost, run once more."""
        return self.shown(self.pictures.picture(number), self.pictures.strength_inside(number), about)

    def shown(self, levels: NDArray[np.uint8], strength: float, about: Property) -> Counterexample:
        """What the runtime makes of the picture at a strength."""
        (levels,) = levels[None] if self.photograph is None else self.photograph.developed(levels[None])
        scores = self._run(levels[None])
        lead, winner = judged(scores, about)
        return Counterexample(
            strengths=(strength,),
            input=self.given(levels[None])[0],
            outputs=scores[0],
            winner=int(winner[0]),
            margin=float(lead[0]),
            replayed=bool(lead[0] <= 0),
        )
