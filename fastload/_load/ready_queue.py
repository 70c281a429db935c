"""What lies between the feeder's thread and its consumer: batches that are ready, calls for more, and what went wrong."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastload.errors import FastloadError

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in the place of a batch; the batches behind it come nevertheless."""

    error: BaseException

    @staticmethod
    def of(error: BaseException) -> Failed:
        """Ours say all in words; their traceback would keep this thread's frames, and so whole batches, while the user keeps it."""
        return Failed(error.with_traceback(None) if isinstance(error, FastloadError) else error)


class Mark(Enum):
    """What lies between batches and ids."""

    END = "behind the last batch"
    ROOM = "there is room for one batch more"
    STOP = "nobody wants any more"
    GONE = "the thread has ended before its work"


class Shelf:
    """What thread and consumer share. SimpleQueue is all C: neither Ctrl-C nor a finaliser finds it with its lock held."""

    def __init__(self, owner: object) -> None:
        self.laid: deque[Any] = (
            deque()
        )  # batches, Failed, END, GONE; each lies here until the consumer has it
        self.news: queue.SimpleQueue[None] = (
            queue.SimpleQueue()
        )  # wakes the consumer; one is enough
        self.calls: queue.SimpleQueue[Any] = (
            queue.SimpleQueue()
        )  # ROOM, or the ids of a batch to begin; END, STOP
        self.under_way: deque[Ids] = (
            deque()
        )  # ids of the batches begun and not finished, oldest first
        self.stopped = False
        self.owner = weakref.ref(
            owner, self.calls.put
        )  # wakes the thread when the owner is dropped
        self.over = threading.Lock()  # held until the thread has ended
        self.over.acquire()
        self.thread = 0

    def lay(self, item: Any) -> None:
        """Behind what lies there."""
        self.laid.append(item)
        if not self.news.qsize():  # who takes one that is there finds this, too
            self.news.put(None)

    @property
    def unwanted(self) -> bool:
        """Nobody takes another batch."""
        return self.stopped or self.owner() is None

    def stop(self) -> None:
        """Wakes the thread, which then ends."""
        self.stopped = True
        self.calls.put(Mark.STOP)

    def wait(self, until: float) -> None:
        """Waits for the thread's end."""
        if self.thread != threading.get_ident():
            Ending(self.over).wait(until)


@dataclass(frozen=True, slots=True)
class Ending:
    """Of a thread that has left its shelf: nothing to stop, only its end to wait for."""

    over: threading.Lock

    def stop(self) -> None:
        """It ends anyway."""

    def wait(self, until: float) -> None:
        """Waits for the thread's end."""
        if self.over.acquire(timeout=max(0.0, until - time.monotonic())):
            self.over.release()
