"""The desk between the store and the workers: hands out what is missing, and writes down what comes back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from shakeproof.budget import now
from shakeproof.campaign.asking import Registered
from shakeproof.campaign.file import Campaign
from shakeproof.campaign.findings import Certified, Finding
from shakeproof.campaign.ledger import LEASE, Ledger, Waiting
from shakeproof.campaign.working import AskedQuestion, Failure, FoundWindow, Outcome, Task

# A query that so many workers died of is given up.
MOST_DEATHS = 3
# The fewer are left, the fewer are handed out at once, so that all workers end together; but no fewer than this.
FEWEST, SHARES = 24, 3
# Every so many seconds, the store is asked what others have answered, if there is nothing else to do.
LOOK_AGAIN = 1.0


@dataclass(frozen=True)
class Standing:
    """How far a campaign has come: of `total` queries, `settled` need no more work, as `before` did when it began.

    `statuses` counts the answers, and errors, of this run, which has taken so many seconds. `notices` are lines about
    what went wrong on the way.
    """

    total: int
    before: int
    settled: int
    statuses: Mapping[str, int]
    seconds: float
    notices: Sequence[str] = ()

    @property
    def rate(self) -> float:
        """Answers a second."""
        return (self.settled - self.before) / max(self.seconds, 1e-9)


class Desk:
    """One campaign's work, for `jobs` workers at once."""

    def __init__(self, campaign: Campaign, registered: Registered, ledger: Ledger, jobs: int) -> None:
        self.campaign, self.registered, self.ledger, self.jobs = campaign, registered, ledger, jobs
        self.timeout, self.certificates = campaign.settings.timeout, campaign.certificates
        self.run = uuid4().hex
        self.notices: list[str] = [*ledger.notices]
        self.unusable: dict[int, str] = {}
        self.alone: set[int] = set()
        self.outcomes: dict[int, str] = {}
        self.out: set[int] = set()
        # Answers whose certificates are due, as soon as the task that they are from is done.
        self.due: set[int] = set()
        # Tasks that wait: of queries that were cut into windows, of certificates. And what was swept so far.
        self.cut: deque[Task] = deque()
        self.parts: dict[int, dict[int, FoundWindow]] = {}
        self.whole: dict[int, Task] = {}
        self.started = self.renewed = self.looked = now()
        ledger.renew()
        self.queue: deque[Waiting] = deque()
        self.total = ledger.campaign(registered.id).asked
        self.look()
        self.before = self.settled

    # -- what is to be done -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask the store what is missing. Images that share a perturbation go together: they are convolved at once."""
        waiting = self.ledger.waiting(self.registered.id, self.timeout, self.certificates)
        mine = [own for own in waiting if own.query not in self.out and own.model not in self.unusable]
        self.queue = deque(sorted(mine, key=lambda own: (own.is_answered, own.model, own.perturbation)))
        self.settled, self.looked = self.total - len(waiting), now()

    def next_task(self) -> Task | None:
        """Work for one worker, which is then this process's; None if there is none at the moment."""
        if not self.queue and now() - self.looked > LOOK_AGAIN:
            self.look()
        if self.cut:
            return self.cut.popleft()
        while self.queue:
            some = self._some()
            taken = {*self.ledger.claim([own.query for own in some], self.timeout, self.certificates)}
            if taken:
                self.out |= taken
                task = self.task([own for own in some if own.query in taken])
                return self._first_window(task) if self._is_cut(some[0]) else task
        return None

    def _is_cut(self, waiting: Waiting) -> bool:
        """Whether a query is swept in windows, which are tasks of their own."""
        can_be = self.campaign.windows > 1 and self.registered.models[waiting.model].cuttable
        can_be = can_be and not waiting.is_answered
        return can_be and self.ledger.perturbation(waiting.perturbation).parameters == 1

    def _first_window(self, task: Task) -> Task:
        count, query = self.campaign.windows, task.queries[0]
        self.parts[query], self.whole[query] = {}, task
        first, *others = (replace(task, window=(number, count)) for number in range(count))
        self.cut.extend(others)
        return first

    def _add_part(self, part: FoundWindow) -> None:
        """Keep a window; when all are there, they are to be joined."""
        parts = self.parts.get(part.query)
        if parts is None:  # the query was given up, or begun again
            return
        parts[part.number] = part
        if len(parts) == self.campaign.windows:
            del self.parts[part.query]
            whole = replace(self.whole.pop(part.query), swept=[parts[number].swept for number in sorted(parts)])
            self.cut.appendleft(whole)

    def _some(self) -> list[Waiting]:
        """The next queries that may go together: of one network, and none that a worker died of."""
        first = self.queue.popleft()
        if self._is_alone(first) or self._is_cut(first):
            return [first]
        size = self.registered.models[first.model].at_once
        if self.jobs > 1:
            size = min(size, max(FEWEST, len(self.queue) // (SHARES * self.jobs)))
        some = [first]
        alike = (first.model, first.is_answered)
        while self.queue and len(some) < size:
            following = self.queue[0]
            if (
                (following.model, following.is_answered) != alike
                or self._is_alone(following)
                or self._is_cut(following)
            ):
                break
            some.append(self.queue.popleft())
        return some

    def _is_alone(self, waiting: Waiting) -> bool:
        return waiting.deaths > 0 or waiting.query in self.alone

    def task(self, some: Sequence[Waiting]) -> Task:
        """What a worker needs to know of some queries."""
        images = {own.image: number for number, own in enumerate({own.image: own for own in some}.values())}
        kernels = {own.perturbation: n for n, own in enumerate({own.perturbation: own for own in some}.values())}
        return Task(
            model=self.registered.models[some[0].model],
            images=[self.ledger.packed_image(number) for number in images],
            perturbations=[self.ledger.perturbation(number) for number in kernels],
            questions=[
                AskedQuestion(own.query, images[own.image], kernels[own.perturbation], own.strength) for own in some
            ],
            settings=self.campaign.settings,
            certificates=self.certificates,
            certify=some[0].is_answered,
            run=self.run,
        )

    def is_done(self) -> bool:
        """Whether nothing is left that anybody works on, or could."""
        if not self.queue and not self.out:
            self.look()
        return not self.queue and not self.out

    # -- what comes back ----------------------------------------------------------------------------------------------

    def take(self, results: Iterable[Outcome]) -> None:
        """Write down answers, certificates, and why there are none; keep parts of answers until they are whole."""
        findings, certificates = [], []
        for result in results:
            if isinstance(result, FoundWindow):
                self._add_part(result)
                continue
            if isinstance(result, Finding):
                findings.append(result)
                self.outcomes[result.query] = result.record["status"]
                if result.is_due:
                    self.due.add(result.query)
                    continue
            self._forget({result.query})
            if isinstance(result, Failure):
                self._fail(result.query, result.kind, result.message)
                continue
            self.settled += 1
            if isinstance(result, Certified):
                certificates.append(result)
        if findings:
            self.ledger.add(findings, self.timeout)
        if certificates and self.certificates is not None:
            self.ledger.certify(certificates, self.certificates)

    def done(self, task: Task) -> None:
        """A task has come to its end: the certificates of its answers are next, where the answers are still known."""
        due = [question for question in task.questions if question.query in self.due]
        self.due -= {*task.queries}
        if due:
            self.cut.appendleft(replace(task, questions=due, certify=True, window=None, swept=()))

    def lose(self, queries: Sequence[int], kind: str, message: str) -> None:
        """A worker ended before it answered some queries. Of several, nobody knows which it died of: each is tried on
        its own. One that killed several workers is given up.
        """
        if len(queries) == 1 and kind == "timeout":
            self._fail(queries[0], kind, message, self.timeout)
        elif len(queries) == 1 and self.ledger.count_death(queries[0]) >= MOST_DEATHS:
            self._fail(queries[0], kind, f"{message}; so did {MOST_DEATHS - 1} workers before")
        else:
            self.alone |= {*queries}
        self.put_back(queries)

    def put_back(self, queries: Sequence[int]) -> None:
        """Queries that nobody works on any more; those that are answered have only lost their certificates."""
        self._forget({*queries})
        self.ledger.release(queries)
        self.look()

    def give_up(self, task: Task, message: str) -> None:
        """A network cannot be used any more: its queries stay unanswered, the others go on."""
        number = next(number for number, model in self.registered.models.items() if model == task.model)
        self.unusable[number] = message
        self.put_back(task.queries)

    def beat(self) -> None:
        """Say every now and then that this process is at work."""
        if now() - self.renewed > LEASE / 4:
            self.ledger.renew()
            self.renewed = now()

    def close(self) -> None:
        """Leave to others what is not answered."""
        self.ledger.release()

    @property
    def statuses(self) -> Counter[str]:
        """How many of this run's answers are of each kind, and how many errors there are."""
        return Counter([*self.outcomes.values()])

    def standing(self) -> Standing:
        return Standing(self.total, self.before, self.settled, self.statuses, now() - self.started, self.notices)

    def _fail(self, query: int, kind: str, message: str, timeout: float | None = None) -> None:
        self.ledger.fail(query, kind, message, timeout)
        self.outcomes.setdefault(query, "error")  # without a certificate, an answer is one
        self.settled += 1

    def _forget(self, queries: set[int]) -> None:
        """Nothing more is expected of queries, nor of their parts."""
        self.out -= queries
        self.due -= queries
        self.cut = deque(task for task in self.cut if not queries & {*task.queries})
        for query in queries:
            self.parts.pop(query, None)
            self.whole.pop(query, None)
