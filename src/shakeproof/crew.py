"""Processes that work beside this one, on what it has in memory: forked once for a network, and kept.

A member of a crew has one thread for torch, and none of its parent's files. It takes numbered jobs as it has time,
from a pipe that its parent takes jobs from as well, and ends when its parent does, whatever ends that. Whatever ends a
member, its jobs are done by the parent: without it, an answer takes longer, and that is all.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import count
from multiprocessing import current_process
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from threading import Event, Lock, RLock, Thread
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar
from weakref import WeakKeyDictionary, finalize

import numpy as np
import torch

from shakeproof.budget import now
from shakeproof.products import multiply

Done = TypeVar("Done")
Begin = Callable[[bytes, Callable[[], bool]], Callable[[int], Any]]
"""How jobs are done: given what a shift is about, and a way to ask whether to stop, a function of a job's number."""

NUMBER = struct.Struct("i")
NO_MORE = -1
# So many numbers are written to a pipe at once, whatever the system.
MOST_JOBS = 4096 // NUMBER.size - 128
# A new member has so many seconds to show that it can compute, and any to stop when it is told to.
PATIENCE = 10.0
# So often a member looks whether its parent is there, in seconds, and a parent whether the time is up.
WATCH = 2.0
# If no member has computed anything for so many seconds, they hang.
LONG = 60.0
# So many crews of one network may break; there is no further one. And so many are kept, those that were asked last.
MOST_BROKEN, MOST_KEPT = 3, 2


class Packer(pickle.Pickler):
    """Sends of a tensor no more than its own entries, whatever it is a part of."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return torch.from_numpy, (np.array(obj.numpy(), order="C"),)
        return NotImplemented


def packed(value: Any) -> bytes:
    """For another process, which reads it by `pickle.loads`."""
    data = BytesIO()
    Packer(data, pickle.HIGHEST_PROTOCOL).dump(value)
    return data.getvalue()


class Member(NamedTuple):
    """A process, and the way to talk with it."""

    process: int
    connection: Connection


class Crew:
    """Members that are there for one shift at a time."""

    def __init__(self, size: int, begin: Begin) -> None:
        self.owner, self.busy, self.is_over, self.is_at_work = os.getpid(), Lock(), False, False
        self.is_broken, self.shifts = False, 0
        self.members: list[Member] = []
        _try_to_compute()  # what libraries set up at first is set up, and no other thread is at it
        self.claims, self.offers = os.pipe()
        try:
            for _ in range(size):
                _fork(self.members, self.claims, begin)
            for member in self.members:
                if not member.connection.poll(PATIENCE) or member.connection.recv_bytes():
                    raise OSError("a process was begun that cannot compute")
        except (OSError, EOFError) as error:
            self.end()
            raise OSError("no process can be begun to work beside this one") from error
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Leave no member behind; in a process that has only inherited the crew, no more than let go of it."""
        if self.is_over:
            return
        with _uninterrupted():
            self.is_over = True
            for member in self.members:
                member.connection.close()
                if self.owner == os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(member.process, signal.SIGKILL)
                    with suppress(ChildProcessError):
                        os.waitpid(member.process, 0)
            os.close(self.claims)
            os.close(self.offers)


class Shift(Generic[Done]):
    """Jobs that a crew does together with whoever asks for the results, begun in their order."""

    def __init__(self, crew: Crew, count: int, given: bytes) -> None:
        self.crew, self.count, self.working, self.is_broken = crew, count, list(crew.members), False
        self.done: dict[int, Done] = {}
        self.left = True  # whether some jobs may not have been begun
        self.spent, self.seen_at_work = 0.0, now()  # by members, in seconds of the processor, and when that was more
        crew.is_at_work = True
        crew.shifts += 1
        self.number = crew.shifts
        numbers = [*range(count), *[NO_MORE] * (1 + len(crew.members))]
        os.write(crew.offers, b"".join(map(NUMBER.pack, numbers)))
        self.tell(NUMBER.pack(self.number) + given)

    def results(self, own: Callable[[int], Done], deadline: float) -> Iterator[Done]:
        """What becomes of each job, in their order. What a member leaves undone, or does not give back soon after the
        deadline, is done here.
        """
        for number in range(self.count):
            while not self.has(number):
                if (claimed := self.claimed()) is not None:
                    self.done[claimed] = own(claimed)
                elif self.is_going_on() and now() < deadline + PATIENCE:
                    self.listen(min(WATCH, deadline + PATIENCE - now()))
                else:
                    if now() < deadline:  # a member hangs; what it would give up now would be less than was asked for
                        for member in list(self.working):
                            self.lose(member)
                    self.stop()
                    if number not in self.done:
                        self.done[number] = own(number)
            yield self.done.pop(number)

    def is_going_on(self) -> bool:
        """Whether members are at work, and some of them has computed something not long ago."""
        spent = sum(_processor_seconds(member.process) for member in self.working)
        if spent > self.spent:
            self.spent, self.seen_at_work = spent, now()
        return bool(self.working) and now() < self.seen_at_work + LONG

    def has(self, number: int) -> bool:
        """Whether a job is done, as far as one hears."""
        self.listen(0.0)
        return number in self.done

    def claimed(self) -> int | None:
        """A job that is the caller's from now on; None if there is none left."""
        number = NUMBER.unpack(os.read(self.crew.claims, NUMBER.size))[0] if self.left else NO_MORE
        self.left = number != NO_MORE
        return number if self.left else None

    def tell(self, message: bytes) -> None:
        for member in list(self.working):
            try:
                member.connection.send_bytes(message)
            except OSError:
                self.lose(member)

    def listen(self, seconds: float) -> None:
        """Take what members have done, or will have within so many seconds."""
        if not self.working:
            return
        ready = set(wait([member.connection for member in self.working], max(seconds, 0.0)))
        for member in [own for own in self.working if own.connection in ready]:
            try:
                while member in self.working and member.connection.poll():
                    if message := member.connection.recv_bytes():
                        shift_number, number, found = pickle.loads(message)
                        if shift_number != self.number:  # of a shift that nobody has brought to its end
                            raise EOFError
                        self.done[number] = found
                    else:
                        self.working.remove(member)
            except (OSError, EOFError):
                self.lose(member)

    def lose(self, member: Member) -> None:
        self.working.remove(member)
        self.is_broken = True

    def stop(self) -> None:
        """Have members finish what they are at, or give it up."""
        while self.working and self.claimed() is not None:
            pass
        self.tell(b"")
        until = now() + PATIENCE
        while self.working and now() < until:
            self.listen(until - now())
        for member in list(self.working):
            self.lose(member)

    def close(self) -> None:
        """Leave the crew as it was, or without any that is broken."""
        if self.crew.is_over:  # its pipes may be another's by now
            return
        if self.working:
            self.stop()
        if self.is_broken:
            self.crew.is_broken = True
            self.crew.end()
            return
        while select.select([self.crew.claims], [], [], 0)[0]:  # of members that have failed, and do not take more
            os.read(self.crew.claims, 4096)
        self.crew.is_at_work = False


@dataclass
class Kept:
    """The crew of a network, when it was last asked for, how many there were that broke, and for how much work."""

    crew: Crew | None = None
    last: int = 0
    broken: int = 0
    work: float = 0.0


_kept: WeakKeyDictionary[Any, Kept] = WeakKeyDictionary()
_keeping = Lock()
_times = count(1)


@contextmanager
def shift(crew: Crew, count: int, given: bytes) -> Iterator[Shift[Any]]:
    """A shift of so many jobs; whatever goes wrong here, nobody works on."""
    made: Shift[Any] = Shift(crew, count, given)
    try:
        yield made
    except GeneratorExit:  # whoever asked has heard enough
        made.close()
        raise
    except BaseException:
        crew.end()
        raise
    else:
        made.close()


@contextmanager
def crew_for(what: Any, size: int, begin: Begin, work: float, worth: float) -> Iterator[Crew | None]:
    """The crew that is kept as long as `what` is, for one shift; None where there can be none, or it is busy.

    It is begun when all the `work` that it was asked for is `worth` it: counted, not timed.
    """
    with _keeping:
        kept = _kept.setdefault(what, Kept())
        kept.work, kept.last = kept.work + work, next(_times)
        crew = kept.crew
        if crew is not None and crew.is_over:
            kept.broken += crew.is_broken
            crew = kept.crew = None
        elif crew is not None and len(crew.members) != size and crew.busy.acquire(blocking=False):  # not one at work
            crew.end()
            crew = kept.crew = None
        if crew is None and kept.work >= worth and kept.broken < MOST_BROKEN and can_fork():
            _make_room()
            try:
                crew = kept.crew = Crew(size, begin)
                finalize(what, crew.end)
            except OSError:
                kept.broken = MOST_BROKEN
    if crew is None or len(crew.members) != size or not crew.busy.acquire(blocking=False):
        yield None
        return
    try:
        yield crew
    finally:
        # a shift that was left, and is kept by a traceback: its results would be taken for the next one's
        if crew.is_at_work:
            crew.end()
        crew.busy.release()


def _make_room() -> None:
    """Have one crew fewer than may be kept; those at work are left alone."""
    there = sorted((own for own in list(_kept.values()) if own.crew is not None), key=lambda own: own.last)
    for own in there[: len(there) + 1 - MOST_KEPT]:
        if own.crew is not None and own.crew.busy.acquire(blocking=False):
            own.crew.end()
            own.crew = None


def can_fork() -> bool:
    """Whether a process may be forked: elsewhere than on Linux libraries do not expect it, nor do GPUs; and whoever has
    daemons has divided the cores among them.
    """
    return sys.platform == "linux" and not current_process().daemon and not torch.cuda.is_initialized()


def _let_go() -> None:
    """In a process that was forked: the crews of its parent are not its own."""
    global _keeping
    _keeping = Lock()
    for kept in list(_kept.values()):
        if kept.crew is not None:
            kept.crew.end()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Signals wait until this is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _fork(members: list[Member], claims: int, begin: Begin) -> None:
    """One more member."""
    parent = os.getpid()
    ours, theirs = socket.socketpair()
    for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # a member that is stopped in the middle of a message is lost
        ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", *divmod(int(PATIENCE * 10**6), 10**6)))
    with _uninterrupted(), warnings.catch_warnings():
        # Python warns of threads whose locks nobody will open in the child; see `_live` for what that touches.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
        if process == 0:
            _live(Connection(theirs.detach()), claims, begin, parent)
        members.append(Member(process, Connection(ours.detach())))
    theirs.close()


def _processor_seconds(process: int) -> float:
    """What a process has computed so far; 0 if it is gone."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            user, system = stat.read().rsplit(b")", 1)[1].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _live(connection: Connection, claims: int, begin: Begin, parent: int) -> NoReturn:
    """A member's life. It computes on one thread, and talks with its parent; it touches nothing else, so that no lock
    matters that another thread may have held, and never returns to what its parent was doing.
    """
    try:
        for own in gc.get_objects():  # until Python 3.12 one lock for all instances, which another thread may have held
            if type(own) is cached_property and hasattr(own, "lock"):
                own.lock = RLock()
        gc.freeze()  # what was garbage before is its parent's to clear away
        _keep_quiet({connection.fileno(), claims})
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        torch.set_num_threads(1)
        _try_to_compute()
        told: SimpleQueue[bytes] = SimpleQueue()
        said: SimpleQueue[bytes] = SimpleQueue()
        stopped = Event()
        Thread(target=_hear, args=(connection, told, stopped, parent), daemon=True).start()
        Thread(target=_say, args=(connection, said), daemon=True).start()
        said.put(b"")  # ready
        while True:
            given = told.get()
            stopped.clear()
            with suppress(Exception):  # whoever fails leaves it, and the rest, to the others
                (shift_number,) = NUMBER.unpack(given[: NUMBER.size])
                do = begin(given[NUMBER.size :], stopped.is_set)
                while (number := NUMBER.unpack(os.read(claims, NUMBER.size))[0]) != NO_MORE:
                    said.put(packed((shift_number, number, do(number))))
            said.put(b"")
    finally:
        os._exit(1)


def _try_to_compute() -> None:
    """Multiply on one thread, as members do: two matrices so large that it takes all that any product takes."""
    trial, threads = torch.ones(128, 128, dtype=torch.float64), torch.get_num_threads()
    torch.set_num_threads(1)
    total = float(multiply(trial, trial).sum())
    torch.set_num_threads(threads)
    if total != 128**3:
        raise OSError("products are wrong")


def _keep_quiet(kept: set[int]) -> None:
    """Close all files but a few, and leave signals to the parent: its interrupt is no business of a member's."""
    signal.set_wakeup_fd(-1)
    for heard in signal.valid_signals():
        if callable(signal.getsignal(heard)):
            signal.signal(heard, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number not in kept:
            with suppress(OSError):
                os.close(number)


def _hear(connection: Connection, told: SimpleQueue[bytes], stopped: Event, parent: int) -> None:
    """Take what the parent says; and end, whatever is being worked on, when it is gone."""
    try:
        while True:
            if connection.poll(WATCH):
                if message := connection.recv_bytes():
                    told.put(message)
                else:
                    stopped.set()
            elif os.getppid() != parent:
                break
    except (OSError, EOFError):
        pass
    finally:
        os._exit(0)


def _say(connection: Connection, said: SimpleQueue[bytes]) -> None:
    """Send what was done, however slowly it is taken, while the next job is being done."""
    with suppress(OSError):
        while True:
            connection.send_bytes(said.get())
