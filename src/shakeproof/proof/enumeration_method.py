"""Every 8-bit picture of a path, run in the deployed runtime: complete, bit for bit, for any network that it loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import Budget, now
from shakeproof.enumeration import EightBitPictures, eight_bit_pictures
from shakeproof.errors import InputError
from shakeproof.model import Deployed, Deployment, Runtime
from shakeproof.proof.evidence import Counterexample, Enumerated
from shakeproof.proof.result import Expected, Result
from shakeproof.proof.verdict import Evidence
from shakeproof.question import Image, Perturbation, Query, as_whole, margins
from shakeproof.settings import Settings

# So many numbers of pictures, and so many pictures at most, are handed to the runtime at once.
AT_ONCE, MOST_AT_ONCE = 2**20, 256
# On so many pictures of a path a batch must give what each gives alone, bit for bit.
PROBED = 16
# A first run that took so many seconds says how long others take; in a shorter one, most may be preparation.
TELLING = 0.1
# A pixel's path takes so much memory at most while it is worked out in whole numbers.
PIXEL_BYTES = 512
WHITE = np.float32(255)


def answer_by_enumeration(
    network: Deployed,
    query: Query,
    settings: Settings,
    progress: Callable[[float], None],
    expect: Callable[[Query, Expected], None] | None = None,
) -> Result:
    """Answer a query about a path of one strength, of which every picture is rounded to 8 bits."""
    started, budget = now(), Budget.starting(settings.timeout, settings.memory, progress)
    pictures = pictures_of(query, settings)
    runner, label = Runner.of(network, pictures), query.label
    assert label is not None
    if expect is not None:
        expect(query, runner.expected)
    found, done = list[tuple[NDArray[np.float32], NDArray[np.int64]]](), 0
    for scores in runner.scores():
        found.append(judged(scores, label))
        done += len(scores)
        budget.progress(min(done / pictures.about, 1.0))
        if budget.is_late() or (settings.stop_early and not (found[-1][0] > 0).all()):
            break
    leads, winners = (np.concatenate(parts) for parts in zip(*found, strict=True))
    proof = Enumerated(
        pictures=pictures,
        label=label,
        margins=leads,
        winners=winners,
        deployment=runner.deployment,
        timed_out=budget.is_late() and pictures.has(done),
    )
    evidence = Evidence(
        needed=1,
        proofs=(proof,),
        counterexample=runner.counterexample(proof),
        comparison=None,
        start=float(leads[0]),
        finite=not bool(np.isnan(leads).any()),
        arithmetic="deployed",
        start_fails=True,
    )
    predicted = None if np.isnan(leads[0]) else int(winners[0])
    return Result(network.name, network.identity, query, evidence, predicted, now() - started)


def expected(network: Deployed, query: Query, settings: Settings) -> Expected:
    """What it would take to run all pictures of a query."""
    return Runner.of(network, pictures_of(query, settings)).expected


def pictures_of(query: Query, settings: Settings) -> EightBitPictures:
    """All pictures of a query about one strength."""
    assert settings.pixel_rounding is not None
    perturbation, image = query.perturbation, query.image
    if not isinstance(perturbation, Perturbation) or image is None or query.parameters != 1:
        raise InputError(
            f"{query.perturbation or query.name}: 8-bit pictures can be counted along one strength only; with several,"
            " or in a box of inputs, there are too many to run"
        )
    (end,), budget = query.strengths, Budget.starting(None, settings.memory)
    budget.fitting(PIXEL_BYTES, "the exact path of 8-bit pictures", least=image.pixels.numel())
    path = perturbation.exactly(*grey_levels(image))
    return eight_bit_pictures(path, end, perturbation.clip, settings.pixel_rounding, budget)


def grey_levels(image: Image) -> tuple[NDArray[Any], int]:
    """An image's pixels in whole numbers of a unit: 255 of it where they are bytes, whose 255th parts are rounded.

    Pixels of which all are the float64 or the float32 number nearest to n / 255 are taken to be that.
    """
    pixels = image.pixels.numpy()
    nearest = np.rint(pixels * 255)
    for kind in (np.float64, np.float32):
        if np.array_equal((nearest / 255).astype(kind), pixels) and ((nearest >= 0) & (nearest <= 255)).all():
            return nearest.astype(np.int64).astype(object), 255
    return as_whole(image.pixels)


def judged(scores: NDArray[np.float32], label: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """By how much the label leads in each row of scores (n, classes), NaN if one is no number; and who wins.

    One that scores as much as the label beats it.
    """
    finite = np.isfinite(scores).all(1)
    with np.errstate(invalid="ignore"):
        lead = margins(scores.astype(np.float64), np.full(len(scores), label)).astype(np.float32)
    rivals = scores.copy()
    rivals[:, label] = -np.inf
    winner = np.where(lead > 0, label, rivals.argmax(1))
    return np.where(finite, lead, np.float32(np.nan)), winner


@dataclass(frozen=True, eq=False)
class Runner:
    """Pictures on their way through a network's runtime, so many at a time; `first` is how long a first batch took."""

    network: Deployed
    pictures: EightBitPictures
    runtime: Runtime
    at_once: int
    in_batches: bool = False
    first: float = 0.0

    @staticmethod
    def of(network: Deployed, pictures: EightBitPictures) -> Runner:
        """With batches if the runtime makes of pictures in a batch what it makes of each alone, bit for bit."""
        if not isinstance(network.runtime, Runtime):
            raise InputError(f"{network.name}: there is no runtime that runs it; export it in float32")
        most = max(min(MOST_AT_ONCE, AT_ONCE // prod(network.input_shape), pictures.about), 1)
        alone = Runner(network, pictures, network.runtime.on_one_thread(), most)
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

    @property
    def batch(self) -> int:
        """How many pictures the runtime is given at a time."""
        return self.at_once if self.in_batches else 1

    @cached_property
    def seconds_each(self) -> float:
        """About how long the runtime takes for a picture, on one thread."""
        if self.first > TELLING:
            return self.first / self.batch
        levels = next(self.pictures.batches(self.batch))
        self.run(levels)  # the first time is longer
        started = now()
        self.run(levels)
        return (now() - started) / len(levels)

    @property
    def expected(self) -> Expected:
        count, is_exact = self.pictures.about, self.pictures.is_counted
        return Expected(count, self.seconds_each * count / self.workers, is_exact)

    @property
    def workers(self) -> int:
        """How many runs there are at a time: one for each core, if a run keeps one of them busy."""
        return torch.get_num_threads() if self.deployment.threads == 1 else 1

    @property
    def deployment(self) -> Deployment:
        return self.runtime.deployment(self.batch)

    def scores(self) -> Iterator[NDArray[np.float32]]:
        """Of all pictures in order, so many at once."""
        return self.run_all(self.pictures.batches(self.at_once))

    def scores_of(self, numbers: Sequence[int]) -> Iterator[NDArray[np.float32]]:
        """Of some pictures."""
        parts = (numbers[start : start + self.at_once] for start in range(0, len(numbers), self.at_once))
        made = (np.stack([self.pictures.picture(number) for number in part]) for part in parts)
        return self.run_all(made)

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
        """Scores (n, classes) of pictures (n, channels, height, width); a batch that is not full is filled up."""
        if not self.in_batches:
            return self.runtime.one_by_one(self.network.prepared(self.given(levels)))
        filled = np.concatenate([levels, np.repeat(levels[-1:], self.batch - len(levels), axis=0)])
        return self.runtime(self.network.prepared(self.given(filled)))[: len(levels)]

    def given(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Grey levels as the float32 numbers that are nearest to their 255th parts, as the model lays pictures out."""
        return self.network.picture().to_input(torch.from_numpy(levels / WHITE)).numpy()

    def counterexample(self, proof: Enumerated) -> Counterexample | None:
        """The first picture that is lost, run once more."""
        place = proof.first_lost
        if place is None:
            return None
        levels = self.pictures.picture(place)[None]
        scores = self.run(levels)
        lead, winner = judged(scores, proof.label)
        return Counterexample(
            strengths=(self.pictures.strength_inside(place),),
            input=self.given(levels)[0],
            outputs=scores[0],
            winner=int(winner[0]),
            margin=float(lead[0]),
            replayed=bool(lead[0] <= 0),
        )
