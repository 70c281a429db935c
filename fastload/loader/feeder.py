"""A thread that keeps batches coming: it begins batches ahead, waits for the oldest, and lays it ready for the trainer.

One thread an iteration. It ends with the iteration, when the iterator is dropped, and when Python exits; it holds no reference to
the iterator, so an abandoned `for` loop leaves nothing behind.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Begun = TypeVar("Begun")
Batch_co = TypeVar("Batch_co", covariant=True)

_LOOK_S = 0.05          # how often a waiting thread looks whether it is to stop


class Maker(Protocol[Begun, Batch_co]):
    """What turns ids into a batch, in two steps, so that several batches can be under way."""

    def begin(self, ids: Ids) -> Begun:
        """Starts work on a batch; returns at once."""

    def finish(self, begun: Begun) -> Batch_co:
        """Waits for a batch that was begun."""


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class _End:
    """Behind the last batch."""


class Feeder(Generic[Begun, Batch_co]):
    """Begins up to ``ahead`` batches, of which up to ``ready`` wait finished. ``next`` is for one consumer thread."""

    def __init__(self, maker: Maker[Begun, Batch_co], batches: Iterator[Ids], *, ahead: int, ready: int) -> None:
        self._ready: queue.Queue[Batch_co | _Failed | type[_End]] = queue.Queue(ready)
        self._stop = threading.Event()
        self.under_way: deque[Ids] = deque()            # ids of the batches begun and not finished, oldest first
        outlet = _Outlet(self._ready, self._stop, self.under_way)
        self._thread = threading.Thread(target=_feed, name="fastload-feeder", daemon=True, args=(maker, batches, ahead, outlet))
        self._thread.start()
        weakref.finalize(self, self._stop.set)
        _running.add(self)

    def next(self, timeout_s: float | None) -> Batch_co | None:
        """The next batch, None behind the last; raises what failed in the thread, TimeoutError after ``timeout_s``."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # In slices: Ctrl-C reaches a Python thread only between two waits, and a dead thread must be noticed.
            slice_s = 1.0 if deadline is None else max(0.0, min(1.0, deadline - time.monotonic()))
            try:
                item = self._ready.get(timeout=slice_s)
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no batch within {timeout_s} s") from None
                if not self._thread.is_alive() and self._ready.empty():
                    raise RuntimeError("the loader's feeder thread is gone: call iter(loader) again") from None
                continue
            if isinstance(item, _Failed):
                raise item.error
            return None if item is _End else item      # type: ignore[return-value]

    @property
    def n_ready(self) -> int:
        """Batches that wait for the consumer."""
        return self._ready.qsize()

    def stop(self, *, wait: bool = True) -> None:
        """Ends the thread; what it had begun is dropped."""
        self._stop.set()
        while not self._ready.empty():                  # let go of the batches, and of a thread that waits for room
            try:
                self._ready.get_nowait()
            except queue.Empty:
                break
        if wait and self._thread is not threading.current_thread():
            self._thread.join(timeout=2.0)
        _running.discard(self)


@dataclass(frozen=True, slots=True)
class _Outlet:
    """What the thread shares with its feeder."""

    ready: queue.Queue[Any]
    stop: threading.Event
    under_way: deque[Ids]

    def put(self, item: object) -> None:
        """Lays an item ready, waiting for room, unless nobody wants it any more."""
        while not self.stop.is_set():
            try:
                self.ready.put(item, timeout=_LOOK_S)
                return
            except queue.Full:
                continue


def _feed(maker: Maker[Begun, Batch_co], batches: Iterator[Ids], ahead: int, outlet: _Outlet) -> None:
    begun: deque[Begun] = deque()
    more = True
    try:
        while not outlet.stop.is_set():
            while more and len(begun) < ahead:
                ids = next(batches, None)
                if ids is None:
                    more = False
                    break
                outlet.under_way.append(ids)
                begun.append(maker.begin(ids))
            if not begun:
                outlet.put(_End)
                return
            batch = maker.finish(begun.popleft())
            outlet.under_way.popleft()
            outlet.put(batch)
            del batch                                   # it may live in the consumer's hands alone
    except BaseException as error:                      # noqa: BLE001 - handed to the consumer, who raises it
        outlet.put(_Failed(error))


_running: weakref.WeakSet[Feeder[Any, Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for feeder in list(_running):
        feeder.stop()
