"""A thread that keeps batches coming: it begins batches ahead, waits for the oldest, and lays it ready for the trainer.

One thread an iteration. It ends with the iteration, when the iterator is dropped, and when Python exits; it holds no reference to
the iterator, so an abandoned `for` loop leaves nothing behind.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastload.errors import WorkerDied

Ids = NDArray[np.int64]
Begun = TypeVar("Begun")
Batch_co = TypeVar("Batch_co", covariant=True)

_LOOK_S = 1.0           # how often a waiting consumer looks whether the thread is still there
_JOIN_S = 1.5           # what a thread gets to end: it waits for the samples being decoded, no longer


class Maker(Protocol[Begun, Batch_co]):
    """What turns ids into a batch, in two steps, so that several batches can be under way."""

    def begin(self, ids: Ids) -> Begun:
        """Starts work on a batch; returns at once."""

    def finish(self, begun: Begun) -> Batch_co:
        """Waits for a batch that was begun."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """Stands in the place of a batch; the batches behind it come nevertheless."""

    error: BaseException


class _End:
    """Behind the last batch."""


@dataclass(slots=True, eq=False)
class _Shelf:
    """What thread and consumer share; ``change`` guards it and tells the other side."""

    change: threading.Condition = field(default_factory=threading.Condition)
    ready: deque[Any] = field(default_factory=deque)                # batches, _Failed, _End
    asked: deque[Ids | _Failed | None] = field(default_factory=deque)   # ids drawn by the consumer; None behind the last
    under_way: deque[Ids] = field(default_factory=deque)            # ids of the batches begun and not finished, oldest first
    stopped: bool = False

    def put(self, item: object) -> None:
        with self.change:
            self.ready.append(item)
            self.change.notify_all()

    def stop(self) -> None:
        with self.change:
            self.stopped = True
            self.ready.clear()
            self.change.notify_all()


class Feeder(Generic[Begun, Batch_co]):
    """Keeps up to ``ahead`` batches begun or ready. ``next`` is for one consumer thread.

    ``draw_here``: ids are drawn in the consumer's thread, ``ahead`` batches before they are delivered, as torch does: a user's sampler
    may use random numbers that the trainer uses, too, and both must get the same ones in every run.
    """

    def __init__(self, maker: Maker[Begun, Batch_co], batches: Iterator[Ids], *, ahead: int, draw_here: bool = False) -> None:
        self._shelf, self._pid = _Shelf(), os.getpid()
        self._drawn = batches if draw_here else None
        for _ in range(ahead if draw_here else 0):
            self._draw()
        source = _asked(self._shelf) if draw_here else batches
        self._thread = threading.Thread(target=_feed, name="fastload-feeder", daemon=True, args=(maker, source, ahead, self._shelf))
        self._thread.start()
        weakref.finalize(self, _stop_in, self._pid, self._shelf)
        _running.add(self)

    def next(self, timeout_s: float | None) -> Batch_co | None:
        """The next batch, None behind the last; raises what failed in its place, TimeoutError after ``timeout_s``."""
        item = self._taken(None if timeout_s is None else time.monotonic() + timeout_s, timeout_s)
        if item is _End:
            return None
        self._draw()
        if isinstance(item, _Failed):
            raise item.error
        return item         # type: ignore[no-any-return]

    def _taken(self, deadline: float | None, timeout_s: float | None) -> Any:
        shelf = self._shelf
        with shelf.change:
            while not shelf.ready:
                if shelf.stopped:
                    return _End
                left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"no batch within {timeout_s} s")
                if not shelf.change.wait(left) and not self._thread.is_alive() and not shelf.ready:
                    raise WorkerDied("waiting for a batch: the loader's feeder thread is gone; call iter(loader) again")
            item = shelf.ready[0] if shelf.ready[0] is _End else shelf.ready.popleft()     # whoever asks again is told the same
            shelf.change.notify_all()
            return item

    def _draw(self) -> None:
        if self._drawn is None:
            return
        ids: Ids | _Failed | None
        try:
            ids = next(self._drawn, None)
        except Exception as error:          # noqa: BLE001 - the user's sampler: raised in the place of the batch it did not give
            ids = _Failed(error)
        if ids is None or isinstance(ids, _Failed):
            self._drawn = None
        with self._shelf.change:
            self._shelf.asked.append(ids)
            self._shelf.change.notify_all()

    @property
    def n_ready(self) -> int:
        """Batches that wait for the consumer."""
        return sum(item is not _End for item in tuple(self._shelf.ready))

    @property
    def oldest(self) -> Ids:
        """The ids of the batch that is being loaded; empty where none is."""
        with self._shelf.change:
            return self._shelf.under_way[0] if self._shelf.under_way else np.empty(0, np.int64)

    def stop(self) -> None:
        """Ends the thread; what it had begun is dropped."""
        _running.discard(self)
        if self._pid != os.getpid():
            return                      # the thread, and who holds its locks, stayed in the parent
        self._shelf.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)


def _asked(shelf: _Shelf) -> Iterator[Ids]:
    """What the consumer has drawn; waits for it."""
    while True:
        with shelf.change:
            while not shelf.asked and not shelf.stopped:
                shelf.change.wait()
            ids = None if shelf.stopped else shelf.asked.popleft()
        if ids is None:
            return
        if isinstance(ids, _Failed):
            raise ids.error
        yield ids


def _feed(maker: Maker[Begun, Batch_co], batches: Iterator[Ids], ahead: int, shelf: _Shelf) -> None:
    begun: deque[Begun | _Failed] = deque()
    more = True
    while not shelf.stopped:
        while more and len(begun) + len(shelf.ready) < ahead and not shelf.stopped:
            more = _begin(maker, batches, begun, shelf)
        if begun:
            _finish(maker, begun.popleft(), shelf)
        elif not more:
            shelf.put(_End)
            return
        else:
            with shelf.change:
                while len(shelf.ready) >= ahead and not shelf.stopped:
                    shelf.change.wait()


def _begin(maker: Maker[Begun, Batch_co], batches: Iterator[Ids], begun: deque[Begun | _Failed], shelf: _Shelf) -> bool:
    """Begins one batch more; False where there is none."""
    try:
        ids = next(batches, None)
    except BaseException as error:          # noqa: BLE001 - handed to the consumer, who raises it
        begun.append(_Failed(error))        # an order that failed has no next batch
        shelf.under_way.append(np.empty(0, np.int64))
        return False
    if ids is None:
        return False
    shelf.under_way.append(ids)
    try:
        begun.append(maker.begin(ids))
    except BaseException as error:          # noqa: BLE001 - the same
        begun.append(_Failed(error))
    return True


def _finish(maker: Maker[Begun, Batch_co], oldest: Begun | _Failed, shelf: _Shelf) -> None:
    """Waits for a batch and lays it, or what went wrong, on the shelf. It lives in the consumer's hands alone from then on."""
    try:
        item = oldest if isinstance(oldest, _Failed) else maker.finish(oldest)
    except BaseException as error:          # noqa: BLE001 - the same
        item = _Failed(error)
    shelf.under_way.popleft()
    shelf.put(item)


_running: weakref.WeakSet[Feeder[Any, Any]] = weakref.WeakSet()


def _stop_in(pid: int, shelf: _Shelf) -> None:
    if pid == os.getpid():
        shelf.stop()


@atexit.register
def _stop_all() -> None:
    for feeder in list(_running):
        feeder.stop()


os.register_at_fork(after_in_child=_running.clear)
