"""The work of a worker: it takes a task of plain values, and returns plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from shakeproof.analysis import Begun, answers, joined_windows, window_of
from shakeproof.budget import GIB, give_back
from shakeproof.digests import network_digest
from shakeproof.errors import InputError, MemoryBudgetError, ShakeproofError
from shakeproof.model import Deployed
from shakeproof.proof import Result
from shakeproof.question import Perturbation, Query, perturbed
from shakeproof.settings import Settings
from shakeproof.store import Certified, Finding, ModelFile, StoredImage, certified, finding

# So many answers whose certificates are due are kept from one task to the next.
KEPT = 64


@dataclass(frozen=True)
class AskedQuestion:
    """One of a task's queries, with its number in the store."""

    query: int
    image: StoredImage
    perturbation: Perturbation
    strength: float
    requirement: str = "label"


@dataclass(frozen=True)
class Task:
    """Queries about one network that may share a sweep; those with the same perturbation stand side by side.

    Or a part of one query, number `window[0]` of `window[1]` windows of strength; or all that was `swept` of one. Or
    to `certify` queries that are answered already. `certificates` may take so many seconds each, if they are wanted.
    Numbers of queries mean something in one `run` only; `where` is the worker that has answered them.
    """

    model: ModelFile
    questions: Sequence[AskedQuestion]
    settings: Settings
    certificates: float | None
    certify: bool = False
    run: str = ""
    where: str = ""
    window: tuple[int, int] | None = None
    swept: Sequence[Begun] = ()

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
    swept: Begun


Outcome = Finding | Certified | Failure | FoundWindow


class ModelError(InputError):
    """A network that cannot be loaded where it is needed: none of its queries can be answered."""


@dataclass
class TaskRunner:
    """Does tasks. `copies` has the models' files by digest; each network is loaded once.

    `answered` has the last answers whose certificates are due, by run and query.
    """

    copies: dict[str, str] = field(default_factory=dict)
    networks: dict[str, Deployed] = field(default_factory=dict)
    answered: dict[tuple[str, int], Result] = field(default_factory=dict)

    def network(self, model: ModelFile, settings: Settings) -> Deployed:
        """Loaded when it is first asked for, and checked to be the one that the campaign is about."""
        if model.digest not in self.networks:
            try:
                network = model.load(self.copies.get(model.digest))
            except ShakeproofError as error:
                raise ModelError(str(error)) from error
            if network_digest(network, settings) != model.digest:
                raise ModelError(f"{model.name}: has changed since the campaign began; start it again")
            self.networks[model.digest] = network
        return self.networks[model.digest]

    def outcomes(self, task: Task) -> Iterator[Outcome]:
        """An answer to each of a task's queries, or why there is none; or a part of one. Or certificates: answers that
        are not known here are worked out again.
        """
        if not task.certify:
            while len(self.answered) > KEPT:
                self.answered.pop(next(iter(self.answered)))
            yield from self._answers(task)
            return
        unknown = [question for question in task.questions if (task.run, question.query) not in self.answered]
        if unknown:
            yield from self._answers(replace(task, questions=unknown))
        network = self.network(task.model, task.settings)
        for query in task.queries:
            result = self.answered.pop((task.run, query), None)
            if result is None or task.certificates is None:  # it has failed, or there is nothing to certify
                continue
            try:
                yield certified(query, network, result, task.certificates)
            except Exception as error:  # of a certificate; the answer is kept
                yield Certified(query, None, _sentence(error))

    def _answers(self, task: Task) -> Iterator[Outcome]:
        """After an error, the queries that are left are asked one by one; that of a single query is its outcome."""
        network = self.network(task.model, task.settings)
        done = 0
        try:
            queries = _queries(task, network)
            if task.window is not None:
                number, count = task.window
                (strength,) = queries[0].strengths
                start, end = (strength if k == count else strength * k / count for k in (number, number + 1))
                yield FoundWindow(task.queries[0], number, window_of(network, queries[0], task.settings, start, end))
                return
            if task.swept:
                results = iter([joined_windows(network, queries[0], task.settings, task.swept)])
            else:
                results = answers(network, queries, task.settings, lambda _: _give_back(task.settings))
            for question, result in zip(task.questions, results, strict=True):
                answer = finding(question.query, network, result, task.model.name, task.certificates is not None)
                if answer.is_due:
                    self.answered[task.run, question.query] = result
                yield answer
                done += 1
        except Exception as error:  # whatever is wrong with one query, the others can be answered
            left = task.questions[done:]
            if len(left) == 1:
                yield Failure(left[0].query, _kind(error), _sentence(error))
                return
            for question in left:
                yield from self._answers(replace(task, questions=[question]))


def _queries(task: Task, network: Deployed) -> list[Query]:
    """Pictures that share a perturbation are convolved together."""
    pictures = {id(question.image): question.image.image() for question in task.questions}
    queries: list[Query] = []
    for (_, strength, requirement), group in groupby(
        task.questions, lambda question: (id(question.perturbation), question.strength, question.requirement)
    ):
        alike = list(group)
        images = [pictures[id(question.image)] for question in alike]
        queries += perturbed(network, images, alike[0].perturbation, None, strength, requirement)
    return queries


def _give_back(settings: Settings) -> None:
    give_back(settings.memory * GIB)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _kind(error: Exception) -> str:
    if isinstance(error, (MemoryError, MemoryBudgetError)) or "can't allocate memory" in str(error):
        return "memory"
    return "refused" if isinstance(error, ShakeproofError) else "internal"
