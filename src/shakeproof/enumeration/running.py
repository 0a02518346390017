"""Pictures through a runtime, in order, as fast as it takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def side_by_side(run: Callable[[Given], Made], batches: Iterable[Given], workers: int) -> Iterator[Made]:
    """run(batch) for each, in order: several at a time, while the next ones are made.

    For one worker, no thread is worth its while: what is made beside its runs is little, and waiting for it costs more.
    """
    if workers == 1:
        yield from map(run, batches)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Made]] = deque()
        try:
            for batch in batches:
                pending.append(pool.submit(run, batch))
                if len(pending) > workers + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # whoever asked may have heard enough
            for waiting in pending:
                waiting.cancel()
