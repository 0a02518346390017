"""A batch shared with other processes, each of which has all of it before it, but for the reference runtime.

The runtime is asked by one process only: the one that answers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from shakeproof.budget import Budget
from shakeproof.crew import Crew, crew_for, packed, shift
from shakeproof.errors import ProofError
from shakeproof.exact import WORTH_SHARING, Curve, Least, Work, cores_for, counted, job_cost
from shakeproof.methods.edges import Edges, Side
from shakeproof.network import Network
from shakeproof.query import Query
from shakeproof.settings import Settings

if TYPE_CHECKING:
    from shakeproof.methods.sweeping import Batch

# Beginning a process, and what both copy of their memory from then on, takes as long as so many entries of a sweep.
WORTH_A_PROCESS = 8e7
# Whoever asks has something else to do, and takes such a share of what would be his among equals.
OWN_SHARE = 0.8

Floats = NDArray[np.float64]
Meanwhile = TypeVar("Meanwhile")

_numbers = count()


@dataclass(frozen=True, eq=False)
class EdgesJob:
    """Some lines of a batch, by their numbers, whose brackets are to be found, or one side of them."""

    curves: Mapping[int, Curve]
    losses: Mapping[int, float | None]
    proved: Mapping[int, Floats]
    sides: Sequence[Side]

    def do(self, batch: Batch, budget: Budget) -> Brackets | None:
        """None if it takes a runtime, and there is none."""
        nothing, lines = Curve(np.empty(0), np.empty((0, batch.graph.classes))), range(len(batch.queries))
        curves = [self.curves.get(number, nothing) for number in lines]
        losses = [self.losses.get(number) for number in lines]
        proved = [self.proved.get(number, np.empty(0)) for number in lines]
        before, batch.sunk = batch.sunk, []
        try:
            wins, loses = Edges(batch, curves, losses, proved, self.sides).found()
            return Brackets(wins, loses, batch.sunk, batch.contradicted(curves) if "before" in self.sides else set())
        except NoRuntimeError:  # a tie, which is for the runtime to break
            return None
        finally:
            batch.sunk = before


class Brackets(NamedTuple):
    """Up to where labels provably win, where they lose, and where they do without rounding though float64 does not show
    it, by lines; and the lines that direct evaluation contradicts.
    """

    wins: dict[int, float]
    loses: dict[int, float]
    sunk: list[tuple[int, Least]]
    contradicted: set[int]


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


def bracketed(edges: Edges, session: Session | None, meanwhile: Callable[[], Meanwhile]) -> tuple[Brackets, Meanwhile]:
    """What is found of some lines here and of others elsewhere, or one side of the only one; and something else that is
    done meanwhile.
    """
    batch, lines, cores = edges.batch, len(edges.curves), 1 if session is None else session.cores
    both: tuple[Side, ...] = ("before", "after")
    shares = [(range(lines), both)]
    if cores > 1 and lines > 1:
        others = lines - round(OWN_SHARE * lines / cores)
        cuts = [*(others * k // (cores - 1) for k in range(cores)), lines]
        shares = [(range(a, b), both) for a, b in pairwise(cuts) if a < b]
    elif cores > 1 and edges.wanted:
        shares = [(range(1), both[:1]), (range(1), both[1:])]
    jobs = [
        EdgesJob(
            {n: edges.curves[n] for n in own},
            {n: edges.losses[n] for n in own},
            {n: edges.proved[n] for n in own},
            sides,
        )
        for own, sides in shares
    ]
    if session is None:
        results: Iterable[Brackets | None] = [None]
        done = [meanwhile()]
    else:
        done = []
        results = session.results(jobs, meanwhile=lambda: done.append(meanwhile()))
    all_found = Brackets({}, {}, [], set())
    for job, given in zip(jobs, results, strict=True):
        found = given or job.do(batch, batch.budget)
        assert found is not None  # here is a runtime
        all_found.wins.update(found.wins)
        all_found.loses.update(found.loses)
        all_found.sunk.extend(found.sunk)
        all_found.contradicted.update(found.contradicted)
    return all_found, done[0]


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
