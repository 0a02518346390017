"""What a worker does, wherever it runs: it takes a task in plain values, and gives findings in plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from shakeproof.analysis import answers, readable
from shakeproof.budget import GIB
from shakeproof.campaign.asking import ModelFile
from shakeproof.campaign.findings import Certified, Finding, certified, finding
from shakeproof.campaign.stored import PackedImage
from shakeproof.digests import network_digest
from shakeproof.errors import InputError, MemoryBudgetError, ShakeproofError
from shakeproof.memory import give_back
from shakeproof.model import Deployed, Network
from shakeproof.proof import Result, SweptWindow, answer_by_windows, sweep_window
from shakeproof.question import Perturbation, Query, perturbed
from shakeproof.settings import Settings

# So many answers whose certificates are due are kept from one task to the next.
KEPT = 64


@dataclass(frozen=True)
class AskedQuestion:
    """One of a task's queries: its number in the store, and what it is about, by places in the task's lists."""

    query: int
    image: int
    perturbation: int
    strength: float


@dataclass(frozen=True)
class Task:
    """Queries about one network that may share a sweep.

    Or a part of one query, number `window[0]` of `window[1]` windows of strength; or all that was `swept` of one. Or
    to `certify` queries that are answered already. `certificates` may take so many seconds each, if they are wanted.
    Numbers of queries mean something in one `run` only; `where` is the worker that has answered them.
    """

    model: ModelFile
    images: Sequence[PackedImage]
    perturbations: Sequence[Perturbation]
    questions: Sequence[AskedQuestion]
    settings: Settings
    certificates: float | None
    certify: bool = False
    run: str = ""
    where: str = ""
    window: tuple[int, int] | None = None
    swept: Sequence[SweptWindow] = ()

    @property
    def queries(self) -> list[int]:
        return [question.query for question in self.questions]


@dataclass(frozen=True)
class Failure:
    """A query that has no answer, and why: `kind` is refused, memory or internal."""

    query: int
    kind: str
    message: str


@dataclass(frozen=True, eq=False)
class FoundWindow:
    """One of the windows that a query was cut into."""

    query: int
    number: int
    swept: SweptWindow


Outcome = Finding | Certified | Failure | FoundWindow


class ModelError(InputError):
    """A network that cannot be loaded where it is needed: none of its queries can be answered."""


@dataclass
class Workbench:
    """Networks are loaded once; `copies` has files of those that came from elsewhere, by their digests.

    `answered` has the last answers whose certificates are due, by their runs and queries.
    """

    copies: dict[str, str] = field(default_factory=dict)
    networks: dict[str, Deployed] = field(default_factory=dict)
    answered: dict[tuple[str, int], Result] = field(default_factory=dict)

    def results(self, task: Task) -> Iterator[Outcome]:
        """An answer to each of a task's queries, or why there is none, in any order; or a part of one. Or certificates,
        of answers that are found again if they are not known here.
        """
        if task.certify:
            known = {(task.run, query) for query in task.queries} & self.answered.keys()
            unknown = [question for question in task.questions if (task.run, question.query) not in known]
            if unknown:
                yield from self._results(_part(task, unknown))
            yield from self._certificates(task)
        else:
            while len(self.answered) > KEPT:
                self.answered.pop(next(iter(self.answered)))
            yield from self._results(task)

    def _certificates(self, task: Task) -> Iterator[Outcome]:
        network = self.network(task.model, task.settings)
        assert task.certificates is not None
        for query in task.queries:
            result = self.answered.pop((task.run, query), None)
            if result is None:  # it has failed, or there is nothing to certify
                continue
            try:
                yield certified(query, network, result, task.certificates)
            except Exception as error:  # of a certificate; the answer is kept
                yield Certified(query, None, _sentence(error))

    def _found(self, task: Task, query: int, network: Deployed, result: Result) -> Finding:
        found = finding(query, network, result, task.model.name, task.certificates is not None)
        if found.is_due:
            self.answered[task.run, query] = result
        return found

    def _results(self, task: Task) -> Iterator[Outcome]:
        network = self.network(task.model, task.settings)
        pictures = [image.image() for image in task.images]
        asked: dict[tuple[int, float], list[AskedQuestion]] = {}
        for question in task.questions:
            asked.setdefault((question.perturbation, question.strength), []).append(question)
        questions = [question for some in asked.values() for question in some]
        try:
            queries = [
                query
                for (number, strength), some in asked.items()
                for query in perturbed(
                    network, [pictures[own.image] for own in some], task.perturbations[number], None, strength
                )
            ]
        except Exception as error:  # whatever is wrong with one of them, the others can be asked
            yield from self._one_by_one(task, error)
            return
        yield from self._answered(task, network, questions, queries)

    def _answered(
        self, task: Task, network: Deployed, questions: Sequence[AskedQuestion], queries: Sequence[Query]
    ) -> Iterator[Outcome]:
        done = 0
        try:
            if task.window is not None or task.swept:
                yield self._of_windows(task, readable(network), queries[0])
                return

            def progress(share: float) -> None:
                give_back(task.settings.memory * GIB)

            for question, result in zip(questions, answers(network, queries, task.settings, progress), strict=True):
                yield self._found(task, question.query, network, result)
                done += 1
        except Exception as error:
            yield from self._one_by_one(_part(task, questions[done:]), error)

    def _of_windows(self, task: Task, network: Network, query: Query) -> Finding | FoundWindow:
        """A part of a query's curve; or the answer, from all of them."""
        (question,) = task.questions
        with torch.inference_mode():
            if task.window is not None:
                number, count = task.window
                (strength,) = query.strengths
                start, end = (strength if k == count else strength * k / count for k in (number, number + 1))
                return FoundWindow(question.query, number, sweep_window(network, query, task.settings, start, end))
            result = answer_by_windows(network, query, task.settings, task.swept)
        return self._found(task, question.query, network, result)

    def _one_by_one(self, task: Task, error: Exception) -> Iterator[Outcome]:
        """After an error: that of the only query is recorded; of several, each is asked on its own."""
        if len(task.questions) == 1:
            yield Failure(task.questions[0].query, _kind(error), _sentence(error))
            return
        for question in task.questions:
            yield from self._results(_part(task, [question]))

    def network(self, model: ModelFile, settings: Settings) -> Deployed:
        if model.digest not in self.networks:
            try:
                network = model.load(self.copies.get(model.digest))
            except ShakeproofError as error:
                raise ModelError(str(error)) from error
            if network_digest(network, settings) != model.digest:
                raise ModelError(f"{model.name}: has changed since the campaign began; start it again")
            self.networks[model.digest] = network
        return self.networks[model.digest]


def _part(task: Task, questions: Sequence[AskedQuestion]) -> Task:
    return replace(task, questions=questions)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _kind(error: Exception) -> str:
    if isinstance(error, (MemoryError, MemoryBudgetError)) or "can't allocate memory" in str(error):
        return "memory"
    return "refused" if isinstance(error, ShakeproofError) else "internal"
