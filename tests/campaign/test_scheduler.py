"""What is handed out, and what becomes of what comes back; without any worker."""

from __future__ import annotations

import pytest
from campaign.running import QUICK, SLOW, SLOWLY, scheduler_of, written

from shakeproof.parallel import TaskRunner
from shakeproof.parallel.scheduler import FIRST, TASK_SECONDS, CostModel
from shakeproof.parallel.tasks import Failure


@pytest.fixture
def runner():
    return TaskRunner()


def test_of_several_queries_that_a_worker_died_of_each_is_tried_alone(tmp_path, runner):
    with scheduler_of(written(tmp_path, images=1)) as scheduler:
        task = scheduler.next_task()
        assert len(task.queries) == 4
        scheduler.lose(task, "crash", "3 workers died of it")
        assert not [*scheduler.writer.errors()]
        tasks = [scheduler.next_task() for _ in range(4)]
        assert [own.queries for own in tasks] == [[query] for query in task.queries]
        scheduler.lose(tasks[0], "crash", "3 workers died of it")
        for own in tasks[1:]:
            scheduler.finish(own, [*runner.outcomes(own)], 0.1)
        assert [error.message for error in scheduler.writer.errors()] == ["3 workers died of it"]
        assert (scheduler.writer.campaign().answered, scheduler.is_done()) == (3, True)
        assert (scheduler.settled, scheduler.statuses["error"]) == (4, 1)


def test_tasks_take_about_as_long_as_they_should(tmp_path, runner):
    """The first ones are small; once it is known how long queries take, so many go together."""
    with scheduler_of(written(tmp_path, images=10)) as scheduler:
        assert len(scheduler.queue) == 40
        first = scheduler.next_task()
        assert len(first.queries) == FIRST
        scheduler.finish(first, [*runner.outcomes(first)], seconds=FIRST * TASK_SECONDS / 3)
        slow = scheduler.next_task()
        assert len(slow.queries) == 3
        scheduler.finish(slow, [*runner.outcomes(slow)], seconds=1e-6)
        scheduler.costs = CostModel()
        scheduler.costs.add(slow.model.digest, False, 1, 1e-6)
        at_once = next(iter(scheduler.registered.models.values())).at_once
        assert len(scheduler.next_task().queries) == min(at_once, 40 - FIRST - 3)


def test_a_window_that_fails_is_the_failure_of_its_query(tmp_path):
    with scheduler_of(written(tmp_path, QUICK[:1], images=1, more="[analysis]\nwindows = 3\n")) as scheduler:
        tasks = [scheduler.next_task() for _ in range(3)]
        assert [own.window for own in tasks] == [(0, 3), (1, 3), (2, 3)]
        for own in tasks[:2]:  # of the second, nobody waits any more
            scheduler.finish(own, [Failure(own.queries[0], "memory", "too large")], 0.1)
        (error,) = scheduler.writer.errors()
        assert (error.kind, scheduler.settled, scheduler.is_done()) == ("memory", 1, True)


def test_only_paths_of_one_strength_are_cut(tmp_path):
    more = SLOWLY + "windows = 3\n"
    with scheduler_of(written(tmp_path, (SLOW, "identity"), images=1, more=more)) as scheduler:
        windows = {
            str(own.questions[0].perturbation): own.window for own in (scheduler.next_task(), scheduler.next_task())
        }
        assert windows == {SLOW: None, "identity": (0, 3)}
