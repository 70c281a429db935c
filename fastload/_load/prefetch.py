"""The background thread that prefetches batches, and the queue between it and the trainer.

    trainer's thread                 feeder thread
    get, commit  -- requests -->     starts the next batches
                 <--  ready  --      finishes the oldest one

Each iteration has one thread. It exits at the end of the epoch, on ``stop``, when the last
reference to the prefetcher is dropped, and at interpreter exit. It has no reference to the
prefetcher, so an abandoned ``for`` loop leaves no thread running.

Three constraints determine the design:

- Dropping a prefetcher must not run Python code. Python prints and discards a KeyboardInterrupt
  that is raised inside a weakref callback or a ``__del__`` (measured: 1 of 200 with
  ``weakref.finalize`` and ``WeakSet``). The callback is therefore the ``put`` of a queue, which is
  C code.
- Dropping a Thread object runs Python code of ``threading``, so only the thread itself references
  its Thread object.
- ``SimpleQueue`` is C code. Neither Ctrl-C nor a finalizer can interrupt it while it holds its
  lock.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from fastload._common.threads import at_exit
from fastload._load.batch import Batch, Failed, Ids
from fastload._load.pipeline import Driver
from fastload.errors import WorkerDied

# Time for all threads together to exit. They wait only for samples that are being decoded.
_EXIT_S = 1.5
_MAX_WAIT_S = 3600.0  # longer timeouts overflow that of the system


class Request(Enum):
    """A request of the trainer's thread. Ids that it has drawn itself are a request as well."""

    NEXT = "start one more batch"
    END = "the sampler has no more batches"
    STOP = "exit"


class End(Enum):
    """Follows the batches in the ready queue."""

    EPOCH = "after the last batch"
    THREAD = "the thread has exited"


class ReadyQueue:
    """The state that the two threads share."""

    def __init__(self, owner: object) -> None:
        # Batch, Failed or End. An item stays here until the consumer commits it.
        self.batches: deque[Any] = deque()
        # Wakes the consumer. It has at most one item.
        self.wake_up: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()  # Request, ids or Failed
        self.stopped = False
        # Dropping the owner puts this reference into the queue, which wakes the thread.
        self.owner = weakref.ref(owner, self.requests.put)
        self.exited = threading.Lock()  # held until the thread has exited
        self.exited.acquire()
        self.thread = 0

    def put(self, item: Any) -> None:
        """Appends a Batch, Failed or End."""
        self.batches.append(item)
        if not self.wake_up.qsize():  # an earlier wake-up also makes the consumer find this item
            self.wake_up.put(None)

    @property
    def abandoned(self) -> bool:
        """Whether no consumer is left."""
        return self.stopped or self.owner() is None

    def stop(self) -> None:
        """Makes the thread exit."""
        self.stopped = True
        self.requests.put(Request.STOP)

    def wait(self, deadline: float) -> None:
        """Waits until the thread has exited."""
        if self.thread != threading.get_ident():
            _ExitingThread(self.exited).wait(deadline)


@dataclass(frozen=True, slots=True)
class _ExitingThread:
    """A thread that has released its queue and is about to exit."""

    exited: threading.Lock

    def stop(self) -> None:
        """Does nothing."""

    def wait(self, deadline: float) -> None:
        """Waits until the thread has exited."""
        if self.exited.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self.exited.release()


class Prefetcher:
    """Builds batches in a background thread and keeps up to ``depth`` of them in flight or ready.

    One consumer thread calls ``get`` and then ``commit``. A batch stays at the head of the queue
    until it is committed, so a Ctrl-C between the two calls loses nothing: the next ``get`` returns
    the same batch.

    ``drawn`` is an iterator of ids that the consumer's thread draws ``depth`` batches ahead of
    delivery, as torch does. A user's sampler may share a random number generator with the trainer,
    and both must get the same numbers in every run. Without ``drawn``, the driver has its own
    plans.
    """

    def __init__(self, driver: Driver, *, depth: int, drawn: Iterator[Ids] | None = None) -> None:
        self._queue = ReadyQueue(self)
        self._pid = os.getpid()
        self._head: Any = None  # first item of the queue after ``get``, until ``commit``
        self._drawn = drawn
        for _ in range(depth):
            self.request_next()
        work = [(driver, self._queue)]
        threading.Thread(target=_run, name="fastload-feeder", daemon=True, args=(work,)).start()

    def get(self, timeout_s: float | None) -> Batch | Failed | None:
        """Returns the next batch, or the error in its place; None after the last one.

        Returns the same item until ``commit``. Raises TimeoutError after ``timeout_s`` seconds.
        """
        if self._head is None:
            self._head = End.EPOCH if self._queue.stopped else self._wait(timeout_s)
        if self._head is End.THREAD:
            raise WorkerDied(
                "the feeder thread of the loader has exited unexpectedly: call iter(loader) again"
            )
        head: Batch | Failed | None = None if self._head is End.EPOCH else self._head
        return head

    def commit(self, on_delivered: Callable[[], None] = lambda: None) -> None:
        """Removes the batch that ``get`` returned and requests one more.

        ``on_delivered`` counts the batch. A Ctrl-C inside it must not leave the batch counted.
        """
        self.request_next()
        on_delivered()
        # No Python call may follow: Ctrl-C must hit either before this point or after both lines.
        self._head = None
        del self._queue.batches[0]

    def _wait(self, timeout_s: float | None) -> Any:
        # Leaves the item in the queue: a Ctrl-C just after the queue returned it would lose it.
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._queue.batches:
            left_s = _MAX_WAIT_S
            if deadline is not None:
                left_s = max(0.0, min(_MAX_WAIT_S, deadline - time.monotonic()))
            try:
                self._queue.wake_up.get(timeout=left_s)
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no batch within {timeout_s} s") from None
        return self._queue.batches[0]

    def request_next(self) -> None:
        """Requests one more batch. Draws its ids if this thread must draw them."""
        if self._drawn is None:
            self._queue.requests.put(Request.NEXT)
            return
        request: Ids | Failed | Request
        try:
            request = next(self._drawn, Request.END)
        except Exception as error:  # noqa: BLE001 - the user's sampler; raised in place of a batch
            request = Failed(error)
        except BaseException:
            # Ctrl-C has ended the sampler's generator. That must not pass for the end of the epoch.
            self._drawn = iter(())
            why = "the sampler was interrupted while it drew a batch: call iter(loader) again"
            self._queue.requests.put(Failed(WorkerDied(why)))
            raise
        if not isinstance(request, np.ndarray):
            self._drawn = iter(())
        self._queue.requests.put(request)

    @property
    def n_ready(self) -> int:
        """Number of batches that are ready."""
        return len(self._queue.batches)

    @property
    def stopped(self) -> bool:

        return self._queue.stopped

    def stop(self) -> None:
        """Stops the thread and drops the batches in flight."""
        if self._pid == os.getpid():  # the thread does not exist in a forked child
            self._queue.stop()
            self._queue.wait(time.monotonic() + _EXIT_S)


def _run(work: list[tuple[Driver, ReadyQueue]]) -> None:
    """Runs in the thread.

    ``work`` is removed from its list, because this thread may have the last reference to the decode
    threads and to batches that were never delivered. It must release them before it reports its
    exit: at interpreter exit, a thread that returns from C++ code of torch (the destructor of a
    tensor) aborts the process, and one that returns from ours hangs (native/bind/python_support.h).
    """
    ready = work[0][-1]
    thread = threading.get_ident()
    ready.thread = thread
    _running[thread] = ready
    exited = ready.exited
    try:
        _build_batches(*work.pop())
    finally:
        ready.put(End.THREAD)  # follows End.EPOCH unless the thread failed
        _running[thread] = _ExitingThread(exited)
        del ready
        del _running[thread]
        exited.release()


def _build_batches(driver: Driver, ready: ReadyQueue) -> None:
    more = True
    while not ready.abandoned:
        while more and not driver.is_due:
            try:
                # With a batch to finish, only take requests that have already arrived.
                request = ready.requests.get(block=not driver.in_flight)
            except queue.Empty:
                break
            if request is Request.STOP or request is ready.owner:
                return
            more = _start(driver, request)
        if not driver.in_flight:
            ready.put(End.EPOCH)
            return
        # Not assigned to a variable: only the consumer may reference a finished batch, and an error
        # must not be referenced by a frame in its own traceback.
        ready.put(driver.finish_oldest())


def _start(driver: Driver, request: Any) -> bool:
    """Starts one more batch; returns False if there is none."""
    if request is Request.NEXT:
        return driver.start_next()
    if isinstance(request, Failed):  # the sampler failed and has no next batch
        driver.in_flight.append(request)
        return False
    if request is not Request.END:
        driver.start(request)
    return request is not Request.END


_running: dict[int, ReadyQueue | _ExitingThread] = {}  # thread id -> its queue


def _stop_all() -> None:
    deadline = time.monotonic() + _EXIT_S
    while _running and time.monotonic() < deadline:
        for each in list(_running.values()):
            each.stop()
        for each in list(_running.values()):
            each.wait(deadline)


at_exit(_stop_all)
os.register_at_fork(after_in_child=_running.clear)
