"""Between the store and the workers: hands out missing queries, and stores the answers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from shakeproof.budget import now
from shakeproof.parallel.tasks import AskedQuestion, Failure, FoundWindow, Outcome, Task
from shakeproof.store import LEASE, Campaign, Certified, Finding, Registered, StoreWriter, Waiting

# A task should take about so many seconds of a processor, however long its queries are: what a worker that dies costs.
TASK_SECONDS = 2.0
# Towards the end tasks get smaller, so that all workers end together; but they should take so many seconds.
LEAST_SECONDS, SHARES = 0.3, 3
# As long as nobody knows how long a network's queries take, so many make up a task.
FIRST = 8
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


class CostModel:
    """How long queries take, and their certificates: the mean of what was measured so far, for each model's digest."""

    def __init__(self) -> None:
        self.measured: dict[tuple[str, bool], tuple[int, float]] = {}

    def add(self, model: str, certify: bool, queries: int, seconds: float) -> None:
        count, total = self.measured.get((model, certify), (0, 0.0))
        self.measured[model, certify] = (count + queries, total + seconds)

    def each(self, model: str, certify: bool) -> float | None:
        """Seconds for one query, or its certificate; None while unknown."""
        count, total = self.measured.get((model, certify), (0, 0.0))
        return total / count if count else None


class TaskScheduler:
    """One campaign's work, for `jobs` workers at once."""

    def __init__(self, campaign: Campaign, registered: Registered, writer: StoreWriter, jobs: int) -> None:
        self.campaign, self.registered, self.writer, self.jobs = campaign, registered, writer, jobs
        self.timeout, self.certificates = campaign.settings.timeout, campaign.certificates
        self.run = uuid4().hex
        self.notices: list[str] = [*writer.notices]
        self.unusable: dict[int, str] = {}
        self.alone: set[int] = set()
        self.outcomes: dict[int, str] = {}
        self.in_work: set[int] = set()
        self.costs = CostModel()
        # Tasks that go before the queue: certificates of what was just answered, and windows of a query. And what was
        # swept of such a query so far, with the task that it was cut from.
        self.first: deque[Task] = deque()
        self.parts: dict[int, dict[int, FoundWindow]] = {}
        self.uncut: dict[int, Task] = {}
        self.started = self.renewed = self.looked = now()
        writer.renew()
        self.queue: deque[Waiting] = deque()
        self.total = writer.campaign(registered.id).asked
        self.look()
        self.before = self.settled

    # -- what is to be done -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Ask the store what is missing. Images that share a perturbation go together: they are convolved at once."""
        missing = self.writer.waiting(self.registered.id, self.timeout, self.certificates)
        mine = [
            waiting for waiting in missing if waiting.query not in self.in_work and waiting.model not in self.unusable
        ]
        self.queue = deque(sorted(mine, key=_alike))
        self.settled, self.looked = self.total - len(missing), now()

    def next_task(self) -> Task | None:
        """The next task for one worker, claimed for this process; None if there is none at the moment."""
        if not self.queue and now() - self.looked > LOOK_AGAIN:
            self.look()
        if self.first:
            return self.first.popleft()
        while self.queue:
            batch = self._take_from_queue()
            claimed = {*self.writer.claim([waiting.query for waiting in batch], self.timeout, self.certificates)}
            if claimed:
                self.in_work |= claimed
                task = self.task([waiting for waiting in batch if waiting.query in claimed])
                return self._first_window(task) if self._is_cut(batch[0]) else task
        return None

    def is_done(self) -> bool:
        """Whether nothing is left that anybody works on, or could."""
        if not self.queue and not self.in_work:
            self.look()
        return not self.queue and not self.in_work

    def task(self, batch: Sequence[Waiting]) -> Task:
        """What a worker needs to know of some queries about one network."""
        images = {number: self.writer.image(number) for number in {waiting.image for waiting in batch}}
        kernels = {number: self.writer.perturbation(number) for number in {waiting.perturbation for waiting in batch}}
        return Task(
            model=self.registered.models[batch[0].model],
            questions=[
                AskedQuestion(
                    waiting.query,
                    images[waiting.image],
                    kernels[waiting.perturbation],
                    waiting.strength,
                    waiting.requirement,
                )
                for waiting in batch
            ],
            settings=self.campaign.settings,
            certificates=self.certificates,
            certify=batch[0].is_answered,
            run=self.run,
        )

    def _take_from_queue(self) -> list[Waiting]:
        """The next queries that go together: of one network, none that is cut into windows or that a worker died of."""
        batch = [self.queue.popleft()]
        size = self._batch_size(batch[0])
        while self.queue and len(batch) < size:
            following = self.queue[0]
            if (following.model, following.is_answered) != (batch[0].model, batch[0].is_answered):
                break
            if following.query in self.alone or self._is_cut(following):
                break
            batch.append(self.queue.popleft())
        return batch

    def _batch_size(self, first: Waiting) -> int:
        """How many queries make up a task: as many as may share a sweep, if that does not take too long."""
        if first.query in self.alone or self._is_cut(first):
            return 1
        model = self.registered.models[first.model]
        each = self.costs.each(model.digest, first.is_answered)
        if each is None:
            return min(model.at_once, FIRST)
        each = max(each, 1e-6)
        fair_share = max(len(self.queue) / (SHARES * self.jobs), LEAST_SECONDS / each)
        return max(1, int(min(model.at_once, TASK_SECONDS / each, fair_share)))

    def _is_cut(self, waiting: Waiting) -> bool:
        """Whether a query is swept in windows, which are tasks of their own."""
        cuttable = self.registered.models[waiting.model].cuttable and waiting.strength > 0
        if self.campaign.windows == 1 or waiting.is_answered or not cuttable:
            return False
        return self.writer.perturbation(waiting.perturbation).parameters == 1

    def _first_window(self, task: Task) -> Task:
        count, query = self.campaign.windows, task.queries[0]
        self.parts[query], self.uncut[query] = {}, task
        first, *others = (replace(task, window=(number, count)) for number in range(count))
        self.first.extend(others)
        return first

    # -- what comes back ----------------------------------------------------------------------------------------------

    def finish(self, task: Task, outcomes: Sequence[Outcome], seconds: float, where: str = "") -> None:
        """Write down what a worker found in so many seconds. Certificates come next, there where the answers are."""
        if task.window is not None:
            self._add_window(task, outcomes)
            return
        self.costs.add(task.model.digest, task.certify, len(task.questions), seconds)
        findings = [outcome for outcome in outcomes if isinstance(outcome, Finding)]
        certificates = [outcome for outcome in outcomes if isinstance(outcome, Certified)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        if findings:
            self.writer.add(findings, self.timeout)
            self.outcomes |= {outcome.query: outcome.record["status"] for outcome in findings}
        if certificates and self.certificates is not None:
            self.writer.certify(certificates, self.certificates)
        for failure in failures:
            self._fail(failure.query, failure.kind, failure.message)
        due = {outcome.query for outcome in findings if outcome.is_due}
        due -= {outcome.query for outcome in certificates} | {outcome.query for outcome in failures}
        self._forget({*task.queries} - due)
        self.settled += len(task.queries) - len(due)
        if due:
            questions = [question for question in task.questions if question.query in due]
            self.first.appendleft(replace(task, questions=questions, certify=True, swept=(), where=where))

    def _add_window(self, task: Task, outcomes: Sequence[Outcome]) -> None:
        """Keep a window; when all are there, they are to be joined."""
        ((query,), (outcome,)) = task.queries, outcomes
        if query not in self.parts:  # it was given up, or begun again
            return
        if not isinstance(outcome, FoundWindow):
            del self.parts[query]
            self.finish(self.uncut[query], outcomes, 0.0)
            return
        self.parts[query][outcome.number] = outcome
        if len(self.parts[query]) == self.campaign.windows:
            parts = self.parts.pop(query)
            self.first.appendleft(replace(self.uncut.pop(query), swept=[parts[n].swept for n in sorted(parts)]))

    def lose(self, task: Task, kind: str, message: str) -> None:
        """Workers died of a task, or did not stop. Of several queries, nobody knows which it was: each is tried alone;
        a single one is given up.
        """
        if len(task.queries) == 1:
            self._fail(task.queries[0], kind, message, self.timeout if kind == "timeout" else None)
        self.alone |= {*task.queries}
        self.put_back(task.queries)

    def put_back(self, queries: Sequence[int]) -> None:
        """Release queries that no worker has; those with an answer have lost only their certificates."""
        self._forget({*queries})
        self.writer.release(queries)
        self.look()

    def give_up(self, task: Task, message: str) -> None:
        """A network cannot be used any more: its queries stay unanswered, the others go on."""
        number = next(number for number, model in self.registered.models.items() if model == task.model)
        self.unusable[number] = message
        self.put_back(task.queries)

    def beat(self) -> None:
        """Say every now and then that this process is at work."""
        if now() - self.renewed > LEASE / 4:
            self.writer.renew()
            self.renewed = now()

    def close(self) -> None:
        """Release the queries that are not answered."""
        self.writer.release()

    @property
    def statuses(self) -> Counter[str]:
        """How many of this run's answers are of each kind, and how many errors there are."""
        return Counter([*self.outcomes.values()])

    def standing(self) -> Standing:
        return Standing(self.total, self.before, self.settled, self.statuses, now() - self.started, self.notices)

    def _fail(self, query: int, kind: str, message: str, timeout: float | None = None) -> None:
        self.writer.fail(query, kind, message, timeout)
        self.outcomes.setdefault(query, "error")  # without a certificate, an answer is one

    def _forget(self, queries: set[int]) -> None:
        """Nothing more is expected of queries, nor of their parts."""
        self.in_work -= queries
        self.first = deque(task for task in self.first if not queries & {*task.queries})
        for query in queries:
            self.parts.pop(query, None)
            self.uncut.pop(query, None)


def _alike(waiting: Waiting) -> tuple[bool, int, int, str]:
    """What queries have in common that should stand side by side."""
    return waiting.is_answered, waiting.model, waiting.perturbation, waiting.requirement
