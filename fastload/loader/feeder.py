"""A thread that keeps batches coming: it begins batches ahead, waits for the oldest, and lays it ready for the trainer.

One thread an iteration. It ends with the iteration, when the iterator is dropped, and when Python exits; it holds no reference to
the iterator, so an abandoned `for` loop leaves nothing behind.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar, cast

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


class _Mark(Enum):
    END = "behind the last batch"
    ROOM = "there is room for one batch more"
    STOP = "nobody wants any more"


@dataclass(slots=True, eq=False)
class _Shelf:
    """What thread and consumer share. SimpleQueue is all C: neither Ctrl-C nor a finaliser finds it with its lock held."""

    ready: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)        # batches, _Failed, END
    calls: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)        # ROOM, or the ids of a batch to begin; END, STOP
    under_way: deque[Ids] = field(default_factory=deque)            # ids of the batches begun and not finished, oldest first
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True
        self.calls.put(_Mark.STOP)


class Feeder(Generic[Begun, Batch_co]):
    """Keeps up to ``ahead`` batches begun or ready. ``next`` is for one consumer thread.

    ``draw_here``: ids are drawn in the consumer's thread, ``ahead`` batches before they are delivered, as torch does: a user's sampler
    may use random numbers that the trainer uses, too, and both must get the same ones in every run.
    """

    def __init__(self, maker: Maker[Begun, Batch_co], batches: Iterator[Ids], *, ahead: int, draw_here: bool = False) -> None:
        self._shelf, self._pid, self._ended = _Shelf(), os.getpid(), False
        self._drawn = batches if draw_here else None
        for _ in range(ahead):
            self._make_room()
        source = _Called() if draw_here else batches
        self._thread = threading.Thread(target=_feed, name="fastload-feeder", daemon=True, args=(maker, source, self._shelf))
        self._thread.start()
        weakref.finalize(self, _stop_in, self._pid, self._shelf)
        _running.add(self)

    def next(self, timeout_s: float | None) -> Batch_co | None:
        """The next batch, None behind the last; raises what failed in its place, TimeoutError after ``timeout_s``."""
        item: Any = _Mark.END if self._ended or self._shelf.stopped else self._taken(timeout_s)
        if item is _Mark.END:
            self._ended = True
            return None
        self._make_room()
        if isinstance(item, _Failed):
            raise item.error
        return cast("Batch_co", item)

    def _taken(self, timeout_s: float | None) -> Any:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LOOK_S if deadline is None else max(0.0, min(_LOOK_S, deadline - time.monotonic()))
            try:
                return self._shelf.ready.get(timeout=left)
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no batch within {timeout_s} s") from None
                if not self._thread.is_alive() and self._shelf.ready.empty():
                    raise WorkerDied("waiting for a batch: the loader's feeder thread is gone; call iter(loader) again") from None

    def _make_room(self) -> None:
        """Tells the thread that it may begin one batch more; and which, where the ids are drawn here."""
        if self._drawn is None:
            self._shelf.calls.put(_Mark.ROOM)
            return
        call: Ids | _Failed | _Mark
        try:
            call = next(self._drawn, _Mark.END)
        except Exception as error:          # noqa: BLE001 - the user's sampler: raised in the place of the batch it did not give
            call = _Failed(error)
        if not isinstance(call, np.ndarray):
            self._drawn = iter(())
        self._shelf.calls.put(call)

    @property
    def n_ready(self) -> int:
        """Batches that wait for the consumer."""
        return self._shelf.ready.qsize()

    @property
    def oldest(self) -> Ids:
        """The ids of the batch that is being loaded; empty where none is."""
        try:
            return self._shelf.under_way[0]
        except IndexError:
            return np.empty(0, np.int64)

    def stop(self) -> None:
        """Ends the thread; what it had begun is dropped."""
        _running.discard(self)
        if self._pid != os.getpid():
            return                      # the thread stayed in the parent
        self._shelf.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)


class _Called:
    """The ids come with the calls."""


def _feed(maker: Maker[Begun, Batch_co], batches: Iterator[Ids] | _Called, shelf: _Shelf) -> None:
    begun: deque[Begun | _Failed] = deque()
    more = True
    while not shelf.stopped:
        while more:
            try:
                call = shelf.calls.get(block=not begun)             # with something to finish: only what is there already
            except queue.Empty:
                break
            if call is _Mark.STOP:
                return
            more = _begin(maker, batches, call, begun, shelf)
        if begun:
            _finish(maker, begun.popleft(), shelf)
        else:
            shelf.ready.put(_Mark.END)
            return


def _begin(maker: Maker[Begun, Batch_co], batches: Iterator[Ids] | _Called, call: object, begun: deque[Begun | _Failed],
           shelf: _Shelf) -> bool:
    """Begins one batch more; False where there is none."""
    ids: Any
    try:
        ids = call if isinstance(batches, _Called) else next(batches, _Mark.END)
    except BaseException as error:          # noqa: BLE001 - handed to the consumer, who raises it
        ids = _Failed(error)
    if ids is _Mark.END:
        return False
    if isinstance(ids, _Failed):            # an order that failed has no next batch
        shelf.under_way.append(np.empty(0, np.int64))
        begun.append(ids)
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
    shelf.ready.put(item)


_running: weakref.WeakSet[Feeder[Any, Any]] = weakref.WeakSet()


def _stop_in(pid: int, shelf: _Shelf) -> None:
    if pid == os.getpid():
        shelf.stop()


@atexit.register
def _stop_all() -> None:
    for feeder in list(_running):
        feeder.stop()


os.register_at_fork(after_in_child=_running.clear)
