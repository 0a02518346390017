"""A batch shared with other processes, each of which has all of it before it, but for the reference runtime.

The runtime is asked by one process only: the one that answers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import Budget
from shakeproof.crew import Crew, crew_for, packed, shift
from shakeproof.errors import ProofError
from shakeproof.evidence import Witness
from shakeproof.exact import WORTH_SHARING, Curve, Least, Precise, Work, cores_for, counted, job_cost, lines_by_work
from shakeproof.methods.edges import SIDES, Side
from shakeproof.model import Network
from shakeproof.question import Query
from shakeproof.settings import Settings

if TYPE_CHECKING:
    from shakeproof.methods.sweeping import Batch

# Beginning a process, and what both copy of their memory from then on, takes as long as so many entries of a sweep.
WORTH_A_PROCESS = 8e7
# So many lines for each core are shared out as wholes; how much work is on one is only known when it is done.
LINES_A_CORE = 2

Floats = NDArray[np.float64]

_numbers = count()


class Brackets(NamedTuple):
    """Up to where labels provably win, where they lose, and where they do without rounding though float64 does not show
    it, by lines.
    """

    wins: dict[int, float]
    loses: dict[int, float]
    sunk: list[tuple[int, Least]]

    def add(self, found: Brackets, numbers: Sequence[int]) -> None:
        """What was found of other lines, which have these numbers here."""
        self.wins.update((numbers[n], z) for n, z in found.wins.items())
        self.loses.update((numbers[n], z) for n, z in found.loses.items())
        self.sunk.extend((numbers[n], least) for n, least in found.sunk)


class LinesFound(NamedTuple):
    """What is found on lines, one after another: curves, and whether the time was up before they were complete; where
    labels first lose, and lower bounds of their margins between rows.
    """

    curves: list[Curve]
    late: list[bool]
    losses: list[float | None]
    proved: list[Floats]


@dataclass(frozen=True, eq=False)
class LinesJob:
    """Some lines of a batch, by their numbers, to be swept, and their brackets to be found."""

    numbers: Sequence[int]

    def do(self, batch: Batch, budget: Budget) -> tuple[LinesFound, Brackets] | None:
        """None if it takes a runtime, and there is none."""
        part = type(batch)(batch.network, [batch.queries[n] for n in self.numbers], batch.settings, budget)
        found = part.found(part.hopeless())
        try:
            brackets = part.brackets(found)
        except NoRuntimeError:  # a tie, which is for the runtime to break
            return None
        brackets.sunk.extend(part.sunk)
        return found, brackets


@dataclass(frozen=True, eq=False)
class SideJob:
    """The only line of a batch, of whose bracket one side is to be found."""

    found: LinesFound
    side: Side

    def do(self, batch: Batch, budget: Budget) -> Brackets | None:
        """None if it takes a runtime, and there is none."""
        try:
            return batch.brackets(self.found, [self.side])
        except NoRuntimeError:
            return None


@dataclass(frozen=True, eq=False)
class Opening:
    """What another process needs for a batch of its own."""

    queries: Sequence[Query]
    settings: Settings
    deadline: float
    memory: float


@dataclass(frozen=True)
class Stoppable(Budget):
    """A budget that somebody else may end."""

    stopped: Callable[[], bool] = field(default=lambda: False)

    def is_late(self, ahead: float = 0.0) -> bool:
        return self.stopped() or super().is_late(ahead)


class NoRuntimeError(ProofError):
    """Here is no runtime to ask."""


def no_runtime(x: NDArray[np.float32]) -> NDArray[np.float32]:
    raise NoRuntimeError("the reference runtime is asked by the process that answers")


class Session:
    """A crew at work on one batch: what a sweep takes for `Helpers`."""

    def __init__(self, batch: Batch, crew: Crew, cores: int, work: Work) -> None:
        self.batch, self.crew, self.cores, self.work = batch, crew, cores, work
        self.budget = batch.budget.shared(cores)
        self.number = next(_numbers)
        self.opening = packed(Opening(batch.queries, batch.settings, self.budget.deadline, self.budget.memory))

    @property
    def takes_lines(self) -> bool:
        """Whether lines should be shared out as wholes: nobody else can see to it that one is closed early, goes on
        where it was, or would work out again what its digits take.
        """
        batch = self.batch
        are_many = len(batch.queries) >= LINES_A_CORE * self.cores
        return are_many and not (batch.settings.stop_early or batch.begun or isinstance(batch.chords, Precise))

    def results(
        self,
        jobs: Sequence[Any],
        own: Callable[[Any, Budget], Any] | None = None,
        meanwhile: Callable[[], object] = bool,
    ) -> Iterator[Any]:
        """What becomes of each job, in their order. Something is done here meanwhile, when others have begun."""

        def here(number: int) -> Any:
            job = jobs[number]
            return job.do(self.batch, self.budget) if own is None else own(job, self.budget)

        if len(jobs) < 2 or self.crew.is_over:
            meanwhile()
            yield from map(here, range(len(jobs)))
            return
        given = packed((self.number, self.opening, jobs))
        self.opening = b""
        with one_thread(), shift(self.crew, len(jobs), given) as made:
            meanwhile()
            yield from made.results(here, self.budget.deadline)

    def compare(self) -> object:
        return self.batch.compare()


class Colleague:
    """In another process: does the jobs of sessions, one after another."""

    def __init__(self, kind: type[Batch], network: Network) -> None:
        self.kind, self.network = kind, replace(network, runtime=no_runtime)
        self.session: int | None = None
        self.batch: Batch | None = None

    @torch.inference_mode()
    def begin(self, given: bytes, stopped: Callable[[], bool]) -> Callable[[int], Any]:
        number, opening, jobs = pickle.loads(given)
        if opening:
            self.session = self.batch = None
            asked: Opening = pickle.loads(opening)
            budget = Stoppable(asked.deadline, asked.memory, stopped=stopped)
            self.batch = self.kind(self.network, asked.queries, asked.settings, budget)
            self.session = number
        batch = self.batch
        if number != self.session or batch is None:
            raise ProofError("these are jobs of another session")

        @torch.inference_mode()
        def do(job: int) -> Any:
            return jobs[job].do(batch, batch.budget)

        return do


def found_by_lines(session: Session) -> tuple[LinesFound, Brackets, dict[int, Witness]]:
    """What is found of a batch whose lines are shared out; and where the runtime shows that labels lose."""
    batch, count = session.batch, len(session.batch.queries)
    nothing = Curve(np.empty(0), np.empty((0, batch.graph.classes)))
    found = LinesFound([nothing] * count, [False] * count, [None] * count, [np.empty(0)] * count)
    brackets, shown, done = Brackets({}, {}, []), dict[int, Witness](), set[int]()
    jobs = [LinesJob(numbers) for numbers in lines_by_work(batch.graph, session.work, session.cores)]

    def take(job: LinesJob, given: tuple[LinesFound, Brackets]) -> None:
        part, bracket = given
        for i, number in enumerate(job.numbers):
            found.curves[number], found.late[number] = part.curves[i], part.late[i]
            found.losses[number], found.proved[number] = part.losses[i], part.proved[i]
        brackets.add(bracket, job.numbers)
        shown.update(batch.shown(found, job.numbers))
        batch.distrust(found, brackets, job.numbers)
        done.update(job.numbers)
        batch.budget.progress(len(done) / count)

    def here(job: LinesJob, budget: Budget) -> Literal["taken"]:
        """A job and all that follows from it, while others are at work."""
        told = batch.budget.part(len(done) / count, (len(done) + len(job.numbers)) / count)
        given = job.do(batch, replace(budget, progress=told.progress))
        assert given is not None  # here is a runtime
        take(job, given)
        return "taken"

    for job, given in zip(jobs, session.results(jobs, here, batch.compare), strict=True):
        if given is None:
            here(job, session.budget)
        elif given != "taken":
            take(job, given)
    return found, brackets, shown


def bracketed(batch: Batch, found: LinesFound, session: Session | None) -> tuple[Brackets, dict[int, Witness]]:
    """The brackets of a batch, and meanwhile where the runtime shows that labels lose. The sides of an only one are
    found side by side.
    """
    everyone = range(len(batch.queries))
    if session is None or len(everyone) > 1 or (found.proved[0] > 0).all():
        return batch.brackets(found), batch.shown(found, everyone)
    jobs, shown = [SideJob(found, side) for side in SIDES], dict(batch.confirmed)
    results = session.results(jobs, meanwhile=lambda: shown.update(batch.shown(found, everyone)))
    both = Brackets({}, {}, [])
    for job, given in zip(jobs, results, strict=True):
        side = given or job.do(batch, batch.budget)
        assert side is not None  # here is a runtime
        both.add(side, everyone)
    return both, shown


@contextmanager
def session(batch: Batch, closed: Sequence[int]) -> Iterator[Session | None]:
    """Other processes to share a batch with; None if there are none, or what is not closed is too little for that."""
    cores = cores_for(batch.graph, batch.lines, batch.budget)
    if cores < 2 or batch.graph.jumping_operators:
        yield None
        return
    work = counted(batch.graph, batch.lines, batch.at_once).without(closed)
    if work.total < WORTH_SHARING * job_cost(batch.graph):
        yield None
        return
    _ = batch.chords  # some of it is about the network: what is known before others begin, they know as well
    begin = Colleague(type(batch), batch.network).begin
    with crew_for(batch.network.graph, cores - 1, begin, work.total, WORTH_A_PROCESS) as crew:
        try:
            made = None if crew is None else Session(batch, crew, cores, work)
        except Exception:  # a perturbation of a user's own may be made of what cannot be sent
            made = None
        yield made


@contextmanager
def one_thread() -> Iterator[None]:
    """For torch, beside other processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
