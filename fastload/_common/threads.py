"""Worker threads and a lock that survive Ctrl-C, fork and interpreter exit.

Executors of concurrent.futures are not suitable for three reasons. Interpreter exit waits for every
queued job, which means seconds of decoding after a Ctrl-C. Dropping an executor runs Python code in
a weakref callback, where a Ctrl-C is lost. Their threads do not exist in a forked child.
"""

from __future__ import annotations

import atexit
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
_EXIT_S = 1.5  # longest wait for running jobs at interpreter exit


class WorkerThreads:
    """A pool of daemon threads, started with the first job and again in a forked child.

    Dropping or closing the object cancels queued jobs.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._n = threads
        self._name = name
        self._workers: _Workers | None = None

    def submit(self, function: Callable[..., Made], *arguments: Any) -> Future[Made]:
        if self._workers is None or self._workers.pid != os.getpid():
            self._workers = _Workers(self, self._n, self._name)
        job: Future[Made] = Future()
        self._workers.jobs.put((job, function, arguments))
        if self._workers.stopped:
            job.cancel()  # the threads may not see the job; result() must not wait forever
        return job

    def map(self, function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        jobs = [self.submit(function, item) for item in items]
        return (job.result() for job in jobs)

    def close(self) -> None:
        """Stops the threads after their running jobs and cancels queued jobs."""
        if self._workers is not None and self._workers.pid == os.getpid():
            self._workers.stop()


class _Workers:
    """The threads of one process and their queue. They hold only a weak reference to the owner."""

    def __init__(self, owner: WorkerThreads, threads: int, name: str) -> None:
        self.pid = os.getpid()
        self.stopped = False
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # The callback wakes a thread when the owner is dropped. It is pure C, so Ctrl-C is not
        # lost.
        self.owner = weakref.ref(owner, self.jobs.put)
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


def _work(workers: _Workers) -> None:
    _running[threading.get_ident()] = workers
    try:
        while True:
            job = workers.jobs.get()
            if workers.unwanted:
                break
            _do(*job)
        while job is not None and not isinstance(job, weakref.ref):
            job[0].cancel()
            job = workers.jobs.get()
        workers.jobs.put(job)  # for the next thread
    finally:
        del _running[threading.get_ident()]


def _do(job: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if not job.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - raised by job.result()
        job.set_exception(error)
    else:
        job.set_result(result)


_running: dict[int, _Workers] = {}


def _stop_all() -> None:
    """Stops all threads, because a thread inside torch at interpreter exit aborts the process."""
    until = time.monotonic() + _EXIT_S
    while _running and time.monotonic() < until:
        for workers in list(_running.values()):
            workers.stop()
        time.sleep(0.002)


def at_exit(stop: Callable[[], None]) -> None:
    """Calls ``stop`` at interpreter exit, and again if Ctrl-C interrupts it.

    Python prints a KeyboardInterrupt that leaves an exit handler and skips the rest of the handler.
    A function can be interrupted before it enters its first ``try``. A generator that waits inside
    ``try`` cannot, and ``next`` is C code.
    """

    def handler() -> Iterator[None]:
        try:  # noqa: SIM105 - the end of a "with" runs Python code, which Ctrl-C can interrupt
            yield
        except KeyboardInterrupt:
            pass
        while True:
            try:
                stop()
                return
            except KeyboardInterrupt:
                pass

    waiting = handler()
    next(waiting)
    atexit.register(next, waiting, None)


at_exit(_stop_all)
os.register_at_fork(after_in_child=_running.clear)


class ForkSafeLock:
    """A lock for ``with lock():``. A forked child gets a new lock.

    A thread of the parent may hold the old lock, and that thread does not exist in the child. The
    call returns the plain lock. There is no ``__enter__``, because a Ctrl-C could arrive between
    acquiring the lock and returning.
    """

    def __init__(self) -> None:
        self._by_process = {_forks[0]: threading.Lock()}

    def __call__(self) -> threading.Lock:
        lock = self._by_process.get(_forks[0])
        if lock is None:
            lock = self._by_process.setdefault(_forks[0], threading.Lock())
        return lock


_forks = [0]  # number of forks between the first process and this one


def _count_fork() -> None:
    _forks[0] += 1


os.register_at_fork(after_in_child=_count_fork)
