"""A thread that keeps batches coming: it begins batches ahead, waits for the oldest, and lays it ready for the trainer.

One thread an iteration. It ends with the iteration, when the iterator is dropped, and when Python exits; it holds no reference to
the iterator, so an abandoned `for` loop leaves nothing behind.

No Python code runs when a feeder is dropped: what a Ctrl-C raises inside a weakref callback or a ``__del__`` is printed and
forgotten (measured: 1 of 200 with ``weakref.finalize`` and ``WeakSet``). So the callback is a queue's ``put``, which is C, and
Thread objects, whose end runs Python code in ``threading``, are held by nobody but their own thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from fastload._load.ready_queue import Ending, Failed, Ids, Mark, Shelf
from fastload.errors import WorkerDied

Begun = TypeVar("Begun")
Batch_co = TypeVar("Batch_co", covariant=True)

_JOIN_S = (
    1.5  # what threads get to end, all together: they wait for the samples being decoded, no longer
)
_SLICE_S = 3600.0  # longer waits overflow the system's


class Maker(Protocol[Begun, Batch_co]):
    """What turns ids into a batch, in two steps, so that several batches can be under way."""

    def begin(self, ids: Ids) -> Begun:
        """Starts work on a batch; returns at once."""

    def done(self, begun: Begun) -> bool:
        """``finish`` would not wait, as far as can be told."""

    def finish(self, begun: Begun) -> Batch_co:
        """Waits for a batch that was begun."""


class Feeder(Generic[Begun, Batch_co]):
    """Keeps up to ``ahead`` batches begun or ready. ``next`` and ``took`` are for one consumer thread.

    ``draw_here``: ids are drawn in the consumer's thread, ``ahead`` batches before they are delivered, as torch does: a user's sampler
    may use random numbers that the trainer uses, too, and both must get the same ones in every run.
    """

    def __init__(
        self,
        maker: Maker[Begun, Batch_co],
        batches: Iterator[Ids],
        *,
        ahead: int,
        draw_here: bool = False,
    ) -> None:
        self._shelf, self._pid = Shelf(self), os.getpid()
        self._held: Any = None  # the first on the shelf, not yet in the consumer's hands
        self._drawn = batches if draw_here else None
        for _ in range(ahead):
            self._make_room()
        source = _Called() if draw_here else batches
        threading.Thread(
            target=_run, name="fastload-feeder", daemon=True, args=([(maker, source, self._shelf)],)
        ).start()

    def next(self, timeout_s: float | None) -> Batch_co | Failed | None:
        """The next batch or what failed in its place, the same until ``took``; None behind the last. TimeoutError after ``timeout_s``."""
        if self._held is None:
            self._held = Mark.END if self._shelf.stopped else self._first(timeout_s)
        if self._held is Mark.GONE:
            raise WorkerDied(
                "waiting for a batch: the loader's feeder thread is gone; call iter(loader) again"
            )
        return None if self._held is Mark.END else cast("Batch_co | Failed", self._held)

    def took(self, tell: Callable[[], None] = lambda: None) -> None:
        """The consumer has what ``next`` returned. ``tell`` says so to whoever counts: it fails when it is called, or not at all."""
        self._make_room()
        tell()
        self._held = None  # no call from here on: Ctrl-C comes before all of this or behind it
        del self._shelf.laid[0]

    def deepen(self) -> None:
        """One batch more is begun ahead from now on."""
        self._make_room()

    def _first(self, timeout_s: float | None) -> Any:
        """It stays where it is: Ctrl-C may come when a queue has given something, and then nobody has it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._shelf.laid:
            left = (
                _SLICE_S
                if deadline is None
                else max(0.0, min(_SLICE_S, deadline - time.monotonic()))
            )
            try:
                self._shelf.news.get(timeout=left)
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no batch within {timeout_s} s") from None
        return self._shelf.laid[0]

    def _make_room(self) -> None:
        """Tells the thread that it may begin one batch more; and which, where the ids are drawn here."""
        if self._drawn is None:
            self._shelf.calls.put(Mark.ROOM)
            return
        call: Ids | Failed | Mark
        try:
            call = next(self._drawn, Mark.END)
        except Exception as error:  # noqa: BLE001 - the user's sampler: raised in the place of the batch it did not give
            call = Failed(error)
        except BaseException:  # Ctrl-C: a generator that it went through gives nothing any more, and that is not the end
            self._drawn = iter(())
            self._shelf.calls.put(
                Failed(
                    WorkerDied(
                        "the sampler was interrupted while it gave a batch: call iter(loader) again"
                    )
                )
            )
            raise
        if not isinstance(call, np.ndarray):
            self._drawn = iter(())
        self._shelf.calls.put(call)

    @property
    def n_ready(self) -> int:
        """Batches that wait for the consumer."""
        return len(self._shelf.laid)

    @property
    def oldest(self) -> Ids:
        """The ids of the batch that is being loaded; empty where none is."""
        try:
            return self._shelf.under_way[0]
        except IndexError:
            return np.empty(0, np.int64)

    @property
    def stopped(self) -> bool:
        """``stop`` was called."""
        return self._shelf.stopped

    def stop(self) -> None:
        """Ends the thread; what it had begun is dropped."""
        if self._pid == os.getpid():  # else the thread stayed in the parent
            self._shelf.stop()
            self._shelf.wait(time.monotonic() + _JOIN_S)


class _Called:
    """The ids come with the calls."""


def _run(work: list[tuple[Maker[Begun, Batch_co], Iterator[Ids] | _Called, Shelf]]) -> None:
    """``work`` is taken out of its list: this thread may be the last to hold the decode threads and the batches that nobody took, and
    they must go before it says that it is over. Python's exit ends a thread that comes back from C++ (torch's, when a tensor goes) by
    aborting the process, or, from ours, keeps it where it is (native/bind/python_support.h)."""
    shelf, thread = work[0][-1], threading.get_ident()
    shelf.thread = thread
    _running[thread] = shelf
    over = shelf.over
    try:
        _feed(*work.pop())
    finally:
        shelf.lay(Mark.GONE)  # behind END, where it came to that
        _running[thread] = Ending(over)
        del shelf
        del _running[thread]
        over.release()


def _feed(maker: Maker[Begun, Batch_co], batches: Iterator[Ids] | _Called, shelf: Shelf) -> None:
    begun: deque[Begun | Failed] = deque()
    more = True
    while not shelf.unwanted:
        while more and not _is_due(maker, begun):
            try:
                call = shelf.calls.get(
                    block=not begun
                )  # with something to finish: only what is there already
            except queue.Empty:
                break
            if call is Mark.STOP or call is shelf.owner:
                return
            more = _begin(maker, batches, call, begun, shelf)
        if begun:
            _finish(maker, begun.popleft(), shelf)
        else:
            shelf.lay(Mark.END)
            return


def _is_due(maker: Maker[Begun, Batch_co], begun: deque[Begun | Failed]) -> bool:
    """The oldest batch is done, and the decode threads have another: first hand it over, then begin the next, which may take long."""
    return len(begun) > 1 and (isinstance(begun[0], Failed) or maker.done(begun[0]))


def _begin(
    maker: Maker[Begun, Batch_co],
    batches: Iterator[Ids] | _Called,
    call: object,
    begun: deque[Begun | Failed],
    shelf: Shelf,
) -> bool:
    """Begins one batch more; False where there is none."""
    ids: Any
    try:
        ids = call if isinstance(batches, _Called) else next(batches, Mark.END)
    except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
        ids = Failed.of(error)
    if ids is Mark.END:
        return False
    if isinstance(ids, Failed):  # an order that failed has no next batch
        shelf.under_way.append(np.empty(0, np.int64))
        begun.append(ids)
        return False
    shelf.under_way.append(ids)
    try:
        begun.append(maker.begin(ids))
    except BaseException as error:  # noqa: BLE001 - the same
        begun.append(Failed.of(error))
    return True


def _finish(maker: Maker[Begun, Batch_co], oldest: Begun | Failed, shelf: Shelf) -> None:
    """Waits for a batch and lays it, or what went wrong, on the shelf. It lives in the consumer's hands alone from then on."""
    try:
        item = oldest if isinstance(oldest, Failed) else maker.finish(oldest)
    except BaseException as error:  # noqa: BLE001 - the same
        item = Failed.of(error)
    shelf.under_way.popleft()
    shelf.lay(item)
    del item  # an error whose traceback is kept holds this frame: they must not hold each other


_running: dict[int, Shelf | Ending] = {}  # by thread


@atexit.register
def _stop_all() -> None:
    until = time.monotonic() + _JOIN_S
    while _running and time.monotonic() < until:
        with contextlib.suppress(
            KeyboardInterrupt
        ):  # a second Ctrl-C: nothing here lasts longer, and nobody wants a traceback
            for shelf in list(_running.values()):
                shelf.stop()
            for shelf in list(_running.values()):
                shelf.wait(until)


os.register_at_fork(after_in_child=_running.clear)
