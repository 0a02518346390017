"""A worker process of the local engine: `python -m shakeproof.campaign.worker FD`, a socket to whoever began it."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from shakeproof.budget import now
from shakeproof.campaign.working import ModelError, Task, Workbench
from shakeproof.memory import keep_freed_memory

# Answers wait for others to be sent with, but no longer than so many seconds.
TOGETHER = 0.2


def main() -> None:
    keep_freed_memory()
    connection = Connection(int(sys.argv[1]))
    tasks: SimpleQueue[Task] = SimpleQueue()
    Thread(target=_listen, args=(connection, tasks), daemon=True).start()
    work(connection, tasks, Workbench())


def _listen(connection: Connection, tasks: SimpleQueue[Task]) -> None:
    """Take tasks; and end at once, whatever is being worked on, when nobody is there any more to hear of it."""
    try:
        while True:
            tasks.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def work(connection: Connection, tasks: SimpleQueue[Task], bench: Workbench) -> None:
    """Answer tasks as long as there are any: some results at a time, and then that it is all."""
    while True:
        task = tasks.get()
        try:
            bench.network(task.model, task.settings)
            connection.send([])  # ready; the clock starts
            some, sent = [], now()
            for result in bench.results(task):
                some.append(result)
                if now() - sent > TOGETHER:
                    connection.send(some)
                    some, sent = [], now()
            connection.send(some)
            connection.send(None)
        except ModelError as error:
            connection.send(str(error))


if __name__ == "__main__":
    main()
