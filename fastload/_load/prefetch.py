"""A background thread that builds batches ahead of the trainer, and the queue between the two.

    trainer's thread                 feeder thread
    get, commit  -- requests -->     start the next batches
                 <--  ready  --      finish the oldest one

One thread per iteration. It exits at the end of the epoch, on ``stop``, when the last reference to
the prefetcher is dropped, and at interpreter exit. It holds no reference to the prefetcher, so an
abandoned ``for`` loop leaves nothing running.

Three traps shaped this module:

- No Python code runs when a prefetcher is dropped. A KeyboardInterrupt that is raised inside a
  weakref callback or a ``__del__`` is printed and forgotten (measured: 1 of 200 with
  ``weakref.finalize`` and ``WeakSet``). The callback is therefore a queue's ``put``, which is C.
- Thread objects run Python code of ``threading`` when they are dropped, so only the thread itself
  holds its Thread object.
- ``SimpleQueue`` is all C: neither Ctrl-C nor a finalizer can find its lock held.
"""

from __future__ import annotations

import atexit
import contextlib
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

from fastload._load.batch import Batch, Failed, Ids
from fastload._load.pipeline import Driver
from fastload.errors import WorkerDied

_EXIT_S = (
    1.5  # for all threads together to exit; they wait for the samples being decoded, no longer
)
_MAX_WAIT_S = 3600.0  # longer timeouts overflow the system's


class Request(Enum):
    """What the trainer's thread requests; ids that it has drawn itself are a request, too."""

    NEXT = "start one more batch"
    END = "the sampler has no more batches"
    STOP = "no more batches are wanted"


class End(Enum):
    """Follows the batches in the ready queue."""

    EPOCH = "after the last batch"
    THREAD = "the thread has exited"


class ReadyQueue:
    """What the two threads share."""

    def __init__(self, owner: object) -> None:
        # Batches, Failed and End. A batch stays here until the consumer commits it.
        self.batches: deque[Any] = deque()
        self.wake_up: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # for the consumer; one is enough
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()  # Request, ids or Failed
        self.stopped = False
        # Wakes the thread when the owner is dropped.
        self.owner = weakref.ref(owner, self.requests.put)
        self.exited = threading.Lock()  # held until the thread has exited
        self.exited.acquire()
        self.thread = 0

    def put(self, item: Any) -> None:
        """Appends a batch, Failed or End."""
        self.batches.append(item)
        if not self.wake_up.qsize():  # a consumer that takes an earlier one finds this item, too
            self.wake_up.put(None)

    @property
    def abandoned(self) -> bool:
        """No further batch will be taken."""
        return self.stopped or self.owner() is None

    def stop(self) -> None:
        """Wakes the thread, which then exits."""
        self.stopped = True
        self.requests.put(Request.STOP)

    def wait(self, deadline: float) -> None:
        """Waits for the thread to exit."""
        if self.thread != threading.get_ident():
            _ExitingThread(self.exited).wait(deadline)


@dataclass(frozen=True, slots=True)
class _ExitingThread:
    """A thread that has released its queue: nothing to stop, only its exit to wait for."""

    exited: threading.Lock

    def stop(self) -> None:
        """It is about to exit."""

    def wait(self, deadline: float) -> None:
        """Waits for the thread to exit."""
        if self.exited.acquire(timeout=max(0.0, deadline - time.monotonic())):
            self.exited.release()


class Prefetcher:
    """Builds batches in a background thread and keeps up to ``depth`` of them in flight or ready.

    One consumer thread calls ``get`` and then ``commit``. A batch stays at the head of the queue
    until it is committed, so a Ctrl-C between the two calls loses nothing: the next ``get`` returns
    the same batch.

    ``drawn``: batches of ids that the consumer's thread draws, ``depth`` batches ahead of delivery,
    as torch does. A user's sampler may share a random number generator with the trainer, and both
    must get the same numbers in every run. Without it the driver has its own plans.
    """

    def __init__(self, driver: Driver, *, depth: int, drawn: Iterator[Ids] | None = None) -> None:
        self._queue = ReadyQueue(self)
        self._pid = os.getpid()
        self._head: Any = None  # first of the queue, returned by ``get`` and not yet committed
        self._drawn = drawn
        for _ in range(depth):
            self.request_next()
        work = [(driver, self._queue)]
        threading.Thread(target=_run, name="fastload-feeder", daemon=True, args=(work,)).start()

    def get(self, timeout_s: float | None) -> Batch | Failed | None:
        """The next batch or the error in its place; None after the last. The same until ``commit``.

        Raises TimeoutError after ``timeout_s`` seconds.
        """
        if self._head is None:
            self._head = End.EPOCH if self._queue.stopped else self._wait(timeout_s)
        if self._head is End.THREAD:
            raise WorkerDied(
                "waiting for a batch: the loader's feeder thread is gone; call iter(loader) again"
            )
        head: Batch | Failed | None = None if self._head is End.EPOCH else self._head
        return head

    def commit(self, on_delivered: Callable[[], None] = lambda: None) -> None:
        """Removes the batch that ``get`` returned and requests one more.

        ``on_delivered`` counts the batch: a Ctrl-C in it must come before it has counted.
        """
        self.request_next()
        on_delivered()
        # No Python call may follow: Ctrl-C must hit either before this point or after both lines.
        self._head = None
        del self._queue.batches[0]

    def _wait(self, timeout_s: float | None) -> Any:
        """Leaves the item in the queue: Ctrl-C may hit just after a queue has returned an item."""
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
        """Has the thread start one more batch; draws its ids if that happens in this thread."""
        if self._drawn is None:
            self._queue.requests.put(Request.NEXT)
            return
        request: Ids | Failed | Request
        try:
            request = next(self._drawn, Request.END)
        except Exception as error:  # noqa: BLE001 - the user's sampler: raised in place of the batch
            request = Failed(error)
        except BaseException:
            # Ctrl-C. A generator that it passed through has ended, which is not the epoch's end.
            self._drawn = iter(())
            why = "the sampler was interrupted while it gave a batch: call iter(loader) again"
            self._queue.requests.put(Failed(WorkerDied(why)))
            raise
        if not isinstance(request, np.ndarray):
            self._drawn = iter(())
        self._queue.requests.put(request)

    @property
    def n_ready(self) -> int:
        """Batches that wait for the consumer."""
        return len(self._queue.batches)

    @property
    def stopped(self) -> bool:
        """``stop`` was called."""
        return self._queue.stopped

    def stop(self) -> None:
        """Ends the thread; drops the batches in flight."""
        if self._pid == os.getpid():  # in a forked child the thread does not exist
            self._queue.stop()
            self._queue.wait(time.monotonic() + _EXIT_S)


def _run(work: list[tuple[Driver, ReadyQueue]]) -> None:
    """The thread's target.

    ``work`` is removed from its list: this thread may hold the last reference to the decode threads
    and to batches that were never taken, and must release them before it reports its exit. At
    interpreter exit, a thread that returns from torch's C++ (a tensor's destructor) aborts the
    process, and one that returns from ours stays where it is (native/bind/python_support.h).
    """
    ready = work[0][-1]
    thread = threading.get_ident()
    ready.thread = thread
    _running[thread] = ready
    exited = ready.exited
    try:
        _build_batches(*work.pop())
    finally:
        ready.put(End.THREAD)  # after End.EPOCH, if the thread got that far
        _running[thread] = _ExitingThread(exited)
        del ready
        del _running[thread]
        exited.release()


def _build_batches(driver: Driver, ready: ReadyQueue) -> None:
    more = True
    while not ready.abandoned:
        while more and not driver.is_due:
            try:
                # With a batch to finish, take only requests that are already here.
                request = ready.requests.get(block=not driver.in_flight)
            except queue.Empty:
                break
            if request is Request.STOP or request is ready.owner:
                return
            more = _start(driver, request)
        if not driver.in_flight:
            ready.put(End.EPOCH)
            return
        # Unnamed: the consumer alone holds a finished batch, and an error whose traceback holds
        # this frame must not be held by it.
        ready.put(driver.finish_oldest())


def _start(driver: Driver, request: Any) -> bool:
    """Starts one more batch; False if there is none."""
    if request is Request.NEXT:
        return driver.start_next()
    if isinstance(request, Failed):  # a sampler that failed has no next batch
        driver.in_flight.append(request)
        return False
    if request is not Request.END:
        driver.start(request)
    return request is not Request.END


_running: dict[int, ReadyQueue | _ExitingThread] = {}  # by thread


@atexit.register
def _stop_all() -> None:
    deadline = time.monotonic() + _EXIT_S
    while _running and time.monotonic() < deadline:
        # A second Ctrl-C: nothing here takes longer because of it, and a traceback helps no one.
        with contextlib.suppress(KeyboardInterrupt):
            for each in list(_running.values()):
                each.stop()
            for each in list(_running.values()):
                each.wait(deadline)


os.register_at_fork(after_in_child=_running.clear)
