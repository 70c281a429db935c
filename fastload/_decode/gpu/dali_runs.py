"""One built DALI pipeline and the batches under way in it."""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TensorCPU: Any = importlib.import_module(
    "nvidia.dali.tensors"
).TensorCPU  # its stubs know no buffers: a border, hence Any


class Run:
    """One batch in a pipeline. ``outputs`` or ``error``, once it has landed."""

    __slots__ = ("__weakref__", "error", "landed", "outputs")

    def __init__(self) -> None:
        self.landed = False
        self.outputs: Any = None
        self.error: RuntimeError | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    run: weakref.ref[Run]  # nobody may want it any more
    held: object  # what DALI still reads


class Runs:
    """Pushes batches into a pipeline and takes them out in any order; DALI itself gives them back first in, first out.

    Several threads may use it. A run that was dropped still passes through; DALI reads its sources until then, so they are held.
    """

    def __init__(self, pipeline: Any, *, max_batch: int, take: Callable[[Any], Any]) -> None:
        self.max_batch = max_batch
        self._pipeline, self._take = pipeline, take
        self._pending: deque[_Pending] = deque()
        self._lock = threading.Lock()
        pipeline.build()
        _all.add(self)

    def push(
        self,
        streams: Sequence[memoryview],
        numbers: Mapping[str, NDArray[np.generic]],
        held: object,
    ) -> Run:
        """Begins a batch: the streams are read in place."""
        run = Run()
        with self._lock:
            self._pipeline.feed_input("jpeg", [TensorCPU(stream) for stream in streams])
            for name, values in numbers.items():
                self._pipeline.feed_input(name, values)
            self._pipeline.schedule_run()
            self._pending.append(_Pending(weakref.ref(run), (held, streams)))
        return run

    def wait(self, run: Run) -> None:
        """Until this run has landed; those in front of it land, too."""
        with self._lock:
            while not run.landed:
                self._land()

    def _land(self) -> None:
        """Takes the oldest run out. A bad sample fails its whole run, and only that (exec_dynamic; DALI says otherwise)."""
        run = self._pending[0].run()
        try:
            outputs, error = self._take(self._pipeline), None
        except RuntimeError as failed:
            outputs, error = None, failed
        finally:
            self._pipeline.release_outputs()
        self._pending.popleft()
        if run is not None:
            run.outputs, run.error, run.landed = outputs, error, True

    def drain(self) -> None:
        """Lets everything land: nothing reads any source afterwards."""
        with self._lock:
            while self._pending:
                self._land()

    def abandon(self) -> None:
        """Leaves the pipeline as it is for ever; what was under way in it never lands."""
        ctypes.pythonapi.Py_IncRef(
            ctypes.py_object(self._pipeline._pipe)
        )  # the C++ object is not destroyed, at exit neither
        self._pipeline._pipe = None
        self._pending.clear()


_all: weakref.WeakSet[Runs] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child, where none of DALI's threads is: the end of a pipeline would wait for them, or crash. So it never ends here."""
    for runs in list(_all):
        runs.abandon()
    _all.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
