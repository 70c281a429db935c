"""Python threads for small jobs, where concurrent.futures has three faults for us.

Its executors make the interpreter's end wait for every job that is queued (seconds of images after a Ctrl-C); dropping one runs
Python code in weakref callbacks, where a Ctrl-C is lost; and its threads do not follow into a forked child.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
_END_S = 1.5  # what the jobs under way get when Python exits


class Helpers:
    """``threads`` daemon threads that begin with the first job, and anew in a forked child. Dropping or closing it drops queued jobs."""

    def __init__(self, threads: int, name: str) -> None:
        self._n, self._name = threads, name
        self._crew: _Crew | None = None

    def submit(self, function: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """Queues a job."""
        if self._crew is None or self._crew.pid != os.getpid():
            self._crew = _Crew(self, self._n, self._name)
        job: Future[Made] = Future()
        self._crew.jobs.put((job, function, arguments))
        if self._crew.stopped:
            job.cancel()  # perhaps nobody sees it any more; whoever asks for the result must not wait for ever
        return job

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """Results in order."""
        jobs = [self.submit(function, item) for item in items]
        return (job.result() for job in jobs)

    def close(self) -> None:
        """Ends the threads after the jobs they are at; the others are cancelled."""
        if self._crew is not None and self._crew.pid == os.getpid():
            self._crew.stop()


class _Crew:
    """The threads of one process and what they share; it does not know its owner but by a weak reference."""

    def __init__(self, owner: Helpers, threads: int, name: str) -> None:
        self.pid, self.stopped = os.getpid(), False
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.owner = weakref.ref(
            owner, self.jobs.put
        )  # all C: wakes a thread when the owner is dropped
        for number in range(threads):
            threading.Thread(
                target=_work, args=(self,), name=f"{name}-{number}", daemon=True
            ).start()

    @property
    def unwanted(self) -> bool:
        return self.stopped or self.owner() is None

    def stop(self) -> None:
        self.stopped = True
        self.jobs.put(None)


def _work(crew: _Crew) -> None:
    _at_work[threading.get_ident()] = crew
    try:
        while True:
            job = crew.jobs.get()
            if crew.unwanted:
                break
            _do(*job)
        while job is not None and not isinstance(job, weakref.ref):
            job[0].cancel()
            job = crew.jobs.get()
        crew.jobs.put(job)  # for the next thread
    finally:
        del _at_work[threading.get_ident()]


def _do(job: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not job.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
        job.set_exception(error)
    else:
        job.set_result(result)


_at_work: dict[int, _Crew] = {}


@atexit.register
def _stop_all() -> None:
    """A thread that is inside torch when the interpreter goes would end the process with an abort."""
    until = time.monotonic() + _END_S
    while _at_work and time.monotonic() < until:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: nothing here lasts longer
            for crew in list(_at_work.values()):
                crew.stop()
            time.sleep(0.002)


os.register_at_fork(after_in_child=_at_work.clear)


class ForkSafeLock:
    """``with lock():``; a forked child gets a new lock, because the thread that may have held the old one does not exist there.

    The call returns the lock itself; there is no ``__enter__`` here, because a Ctrl-C could arrive between taking the lock and
    returning.
    """

    def __init__(self) -> None:
        self._by_process = {_forks[0]: threading.Lock()}

    def __call__(self) -> threading.Lock:
        lock = self._by_process.get(_forks[0])
        if lock is None:
            lock = self._by_process.setdefault(_forks[0], threading.Lock())
        return lock


_forks = [0]  # between the first process and this one


def _count_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count_fork)
